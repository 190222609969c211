"""What crosses the edges of a frozen plan at each replay: feeds into its slots, results into memory of their own.

What lies on the device is copied by calls of the plan, so that a graph holds them; before each launch they are told from where,
and where to. What lies on the host is read at once, as its owner may change it when the replay has begun.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ...device.foreign import Foreign
from ...device.tensor import Runtime, Tensor
from ...types import TensorSpec
from .capture import DenseCopy
from .slots import fill_slot


class Feeds:
    """Slots by name, and for each what is fed to it: of `found`, or else of the variables."""

    def __init__(
        self, runtime: Runtime, slots: Sequence[tuple[str, Tensor]], found: Mapping[str, Foreign],
        variables: Mapping[str, Tensor],
    ) -> None:  # fmt: skip
        self.runtime = runtime
        self._from_host: list[tuple[str, Tensor]] = []
        self._on_device: list[tuple[str, Tensor, DenseCopy]] = []
        for name, slot in slots:
            if _fed(name, found, variables).array is not None:
                self._from_host.append((name, slot))
            elif slot.spec.nbytes:
                self._on_device.append((name, slot, DenseCopy(runtime, 0, slot.ptr, slot.spec.nbytes)))
        self.copies = [copy for _, _, copy in self._on_device]

    def fill(self, found: Mapping[str, Foreign], variables: Mapping[str, Tensor]) -> None:
        """Read what lies on the host."""
        for name, slot in self._from_host:
            fill_slot(slot, _fed(name, found, variables), self.runtime)

    def aim(
        self, found: Mapping[str, Foreign], variables: Mapping[str, Tensor], gather: bool = True
    ) -> list[Tensor]:
        """Tell the copies where to read. What is strided is gathered for them, or has room made for it only; it has to live
        until they have read."""
        made = []
        for name, slot, copy in self._on_device:
            source = _fed(name, found, variables)
            if not source.contiguous:
                dense = self.runtime.empty(slot.spec)
                if gather:
                    fill_slot(dense, source, self.runtime)
                made.append(source := dense)
            copy.source = source.ptr
        return made


def _fed(name: str, found: Mapping[str, Foreign], variables: Mapping[str, Tensor]) -> Foreign | Tensor:
    return found[name] if name in found else variables[name]


class Results:
    """The outputs of a plan, by name; those that share an allocation are copied at once."""

    def __init__(self, runtime: Runtime, outputs: Sequence[tuple[str, Tensor]]) -> None:
        self.runtime, self._names = runtime, [name for name, _ in outputs]
        shared: dict[int, list[tuple[str, Tensor]]] = {}
        for name, tensor in outputs:
            shared.setdefault(id(tensor.owner), []).append((name, tensor))
        self._spans: list[tuple[DenseCopy, list[tuple[str, int, TensorSpec]]]] = []
        for held in shared.values():  # from the first to the last of them
            start = min(t.ptr for _, t in held)
            nbytes = max(t.ptr + t.spec.nbytes for _, t in held) - start
            self._spans.append(
                (DenseCopy(runtime, start, 0, nbytes), [(n, t.ptr - start, t.spec) for n, t in held])
            )
        self.copies = [copy for copy, _ in self._spans if copy.nbytes]

    def fresh(self) -> dict[str, Tensor]:
        """Tensors for the results of the next launch; the copies are told to write to them."""
        results: dict[str, Any] = dict.fromkeys(self._names)  # in their order, not in that of memory
        for copy, held in self._spans:
            memory = self.runtime.allocate(max(copy.nbytes, 1))
            copy.target = memory.ptr
            for name, offset, spec in held:
                results[name] = self.runtime.view(memory, offset, spec)
        return results
