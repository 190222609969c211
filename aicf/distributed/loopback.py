"""Collectives of the CPU device, through rank 0's memory: the same bits on every rank, in the order of the ranks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ..device.collectives import ALL_REDUCE, Exchanged
from .mesh import Mesh


class HostCommunicator:
    """The ranks of a run of the CPU device."""

    def __init__(self, mesh: Mesh) -> None:
        self.mesh = mesh

    @property
    def rank(self) -> int:
        return self.mesh.world.rank

    @property
    def size(self) -> int:
        return self.mesh.world.size

    def run(self, parts: Sequence[Exchanged], stream: Any = None) -> None:
        """All parts, one after the other, in one message."""
        arrays = [part.array for part in parts]
        sent = b"".join(np.ascontiguousarray(a).tobytes() for a in arrays if a is not None)
        title = f"{parts[0].kind} of {len(parts)} tensors, {len(sent):,} bytes"
        answer = self.mesh.together(
            title, sent, lambda bodies: _combined(parts, bodies), len(sent), len(sent)
        )
        at = 0
        for part, array in zip(parts, arrays):
            assert array is not None
            array[...] = np.frombuffer(answer, part.dtype.numpy, part.numel, at).reshape(array.shape)
            at += part.nbytes

    def apart(self) -> None:
        """The host waits: there is nothing beside it."""


def _combined(parts: Sequence[Exchanged], bodies: Sequence[bytes]) -> bytes:
    made, at = [], 0
    for part in parts:
        given = [np.frombuffer(body, part.dtype.numpy, part.numel, at) for body in bodies]
        made.append(_sum(part, given) if part.kind == ALL_REDUCE else given[part.root].tobytes())
        at += part.nbytes
    return b"".join(made)


def _sum(part: Exchanged, given: Sequence[np.ndarray]) -> bytes:
    wide = part.dtype.compute.numpy
    total = given[0].astype(wide)
    for one in given[1:]:
        total += one.astype(wide)
    if part.mean:
        total = total / wide.type(len(given)) if part.dtype.kind == "float" else total // len(given)
    return total.astype(part.dtype.numpy).tobytes()
