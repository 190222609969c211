"""Collectives: what all processes of a run do together, and the communicator that this one has joined.

A communicator is made elsewhere (aicf.distributed); kernels, plans and the executor know it by this protocol alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from ..errors import DistributedError
from ..types import DType

ALL_REDUCE, BROADCAST = "all_reduce", "broadcast"


@dataclass(frozen=True, slots=True)
class Exchanged:
    """One tensor of a collective, which is written in place.

    kind   "all_reduce": the sum over all ranks, or with `mean` their mean; "broadcast": what rank `root` has
    array  of the CPU device: the memory itself
    """

    kind: str
    ptr: int
    numel: int
    dtype: DType
    mean: bool = False
    root: int = 0
    array: np.ndarray | None = None

    @property
    def nbytes(self) -> int:
        return self.numel * self.dtype.itemsize


class Communicator(Protocol):
    """The ranks of a run, seen from one of them."""

    @property
    def rank(self) -> int: ...
    @property
    def size(self) -> int: ...

    def run(self, parts: Sequence[Exchanged], stream: Any = None) -> None:
        """All parts at once. On CUDA they are ordered on a stream, and the host does not wait."""

    def apart(self) -> Any:
        """On CUDA: the stream that collectives have of their own. None: they are done when `run` returns."""


_joined: dict[str, Communicator] = {}


def join(place: str, communicator: Communicator) -> None:
    """From now on this is the communicator of a device: "cpu", "cuda:0"."""
    _joined[place] = communicator


def leave(place: str) -> None:
    """The device has none any more."""
    _joined.pop(place, None)


def joined(place: str, ranks: int) -> Communicator:
    """The communicator of a device; DistributedError if it has none of so many ranks."""
    found = _joined.get(place)
    if found is None or found.size != ranks:
        raise DistributedError(
            f"a plan for {ranks} ranks on {place}", expected=f"a process that is one of {ranks}",
            got="a process alone" if found is None else f"one of {found.size}",
            hint="compile(..., parallel=aicf.distributed.DataParallel()) in processes that torchrun, mpirun, srun or `aicf run --processes` started",
        )  # fmt: skip
    return found
