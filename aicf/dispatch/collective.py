"""A collective as a call. Those that stand side by side leave together: the first starts all, the others have nothing left to do."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..device import collectives
from ..device.collectives import Communicator, Exchanged
from ..device.tensor import Tensor
from ..registry.variant import Collective


class CollectiveCall:
    """parts   tensors that leave together; () of a call whose tensor leaves with another's"""

    def __init__(self, communicator: Communicator, kernel_id: str, parts: Sequence[Exchanged]) -> None:
        self.communicator, self.kernel_id, self.parts = communicator, kernel_id, list(parts)

    @classmethod
    def of(cls, built: Collective, kernel_id: str, result: Tensor) -> CollectiveCall:
        found = collectives.joined(result.runtime.place, built.ranks)
        part = Exchanged(
            built.kind, result.ptr, result.spec.numel, result.spec.dtype, built.mean, built.root, result.array
        )
        return cls(found, kernel_id, [part])

    def take(self, later: CollectiveCall) -> None:
        """A later one leaves with this one."""
        self.parts += later.parts
        later.parts = []

    def __call__(self, *on: Any) -> str:
        if self.parts:
            self.communicator.run(self.parts, *on)
        return self.kernel_id
