"""PlanCall: a plan as a function of pointers. Whoever calls it owns all memory, and says on which stream it runs.

A program has memory and a stream of its own; a call has neither. Another framework gives it its own tensors, what it allocates for
results and scratch, and its current stream, so that its allocator, its order of work and its graph capture hold.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...device import streams
from ...device.faults import tell
from ...device.runtime import CudaRuntime
from ...device.tensor import Tensor
from ...dispatch import KernelLoader
from ...dispatch.prepared import KernelStart, launch_all, start_of
from ...errors import VerifyError
from ...ir import KEPT, Role
from ...progress import kernels
from ...registry import blame
from ...registry.variant import HostCall
from ...types import TensorSpec, row_major
from .executor import faults_of
from .plan import ExecPlan, Slot, Step
from .ran import FirstRun, trace_of
from .variables import Variables

ARENA = 0  # the first base: memory for temporaries and for the kernels' workspaces
FIRST = 1  # the base of the first input; those of the results come after the inputs'


@dataclass(frozen=True)
class Whereabouts:
    """Where a value lies: `offset` bytes behind the pointer of a base; stride in elements, None if it is dense."""

    base: int
    offset: int
    spec: TensorSpec
    stride: tuple[int, ...] | None = None


class PlanCall:
    """Bases, whose pointers each call is given: the arena, the inputs, the results, in this order.

    inputs, outputs   names in the order in which their pointers come. `places` says where each result lies: one that is a view of
                      another, or of a temporary, needs no memory of its own, and its base is not read
    variables         constants and records of faults: they stay where they are
    watch             wants to know of the first call
    """

    def __init__(
        self, plan: ExecPlan, loader: KernelLoader, variables: Variables, inputs: Sequence[str], outputs: Sequence[str],
        watch: FirstRun | None = None,
    ) -> None:  # fmt: skip
        self.plan, self.runtime, self._watch = plan, loader.runtime, watch
        self.arena_bytes = plan.arena_bytes
        given = plan.externals(*KEPT)
        if wrong := [slot.name for slot in given if slot.role is Role.param]:
            raise VerifyError(f"a call has no params: {', '.join(wrong)}", hint="make them inputs")
        self._held: list[Tensor] = [variables[slot.name] for slot in given]
        order = {name: FIRST + n for n, name in enumerate((*inputs, *outputs))}
        bases = {slot.vid: order[slot.name] for slot in (*plan.externals(Role.input), *plan.outputs)}
        count = FIRST + len(order)
        bases.update((slot.vid, count + n) for n, slot in enumerate(given))
        self._pointers = tuple(tensor.ptr for tensor in self._held)
        self._places = {slot.vid: self._place(slot, bases) for slot in plan.slots.values()}
        by_name = {slot.name: slot.vid for slot in plan.outputs}
        self.places = tuple(self._places[by_name[name]] for name in outputs)
        self.alignments = tuple(
            next((s.alignment for s in plan.externals(Role.input) if s.name == name), 1) for name in inputs
        )
        records = {slot.vid: variables[slot.name] for slot in plan.externals(Role.fault)}
        self.faults = tuple(faults_of(plan, records).values())
        self._loader, self._steps = loader, [step for step in plan.steps if step.kernel_id]
        self.kernel_ids = tuple(step.kernel_id for step in self._steps)
        self._compiled = loader.begin([(step.kernel_id, step.region) for step in self._steps])
        for step in self._steps:
            loader.build(step.kernel_id, step.region)  # says what is wrong with it
        self._calls: list[Any] | None = None
        for old, new in plan.updates.items():
            if self._places[old] != self._places[new]:
                raise VerifyError("a call keeps nothing from run to run", got=plan.slots[old].name)

    def _place(self, slot: Slot, bases: dict[int, int]) -> Whereabouts:
        root = slot if slot.alias_of is None else self.plan.slots[slot.alias_of]
        at = (ARENA, root.offset) if root.offset is not None else (bases[root.vid], 0)
        return Whereabouts(at[0], at[1] + slot.start * slot.spec.dtype.itemsize, slot.spec, slot.stride)

    def bind(self) -> None:
        """Make ready to run: wait for kernels that are compiled in the background, compile the others, load all. The first call does so, too."""
        if self._calls is None:
            self._compiled()
            make = _on_host if self.runtime.kind == "cpu" else _on_device
            calls: list[Any] = []
            with kernels(len(self._steps)) as ready:
                for ready.done, step in enumerate(self._steps):
                    calls += make(step, self._loader, self._places)
            self._calls = calls

    def __call__(self, bases: Sequence[int], stream: int = 0) -> None:
        """Run all kernels in order. On CUDA on this stream, and the host does not wait. On the host what a check found wrong is raised."""
        if self._calls is None:
            self.bind()
        assert self._calls is not None
        pointers = [*bases, *self._pointers]
        if not isinstance(self.runtime, CudaRuntime):
            for call in self._calls:
                call(pointers)
            tell(*self.faults)
            self._first_call(pointers, stream)
            return
        ordinal = self.runtime.ordinal
        previous = streams.enter(ordinal)
        try:
            launch_all(self._calls, pointers, streams.stream_object(ordinal, stream))
        finally:
            streams.leave(previous)
        self._first_call(pointers, stream)

    def _first_call(self, pointers: Sequence[int], stream: int) -> None:
        watch, self._watch = self._watch, None
        if watch is None:  # told, or being told by another thread
            return

        def place(vid: int) -> tuple[tuple[int, ...], int]:
            at = self._places[vid]
            return at.stride or row_major(at.spec.shape), pointers[at.base] + at.offset

        launched = [step.kernel_id for step in self._steps if any(t.numel for t in step.region.results)]
        watch.ran(trace_of(self.plan, "call", stream, place, launched))


# --- the host ---------------------------------------------------------------------------------------------------------


def _on_host(step: Step, loader: KernelLoader, places: dict[int, Whereabouts]) -> list[Any]:
    if all(t.numel == 0 for t in step.region.results):
        return []
    built = loader.build(step.kernel_id, step.region)
    assert isinstance(built, HostCall), step.kernel_id
    ins, outs = ([places[vid] for vid in vids] for vids in (step.in_vids, step.out_vids))

    def call(pointers: Sequence[int]) -> None:
        blame.run_on_host(
            step.kernel_id,
            step.region,
            built,
            [_array(p, pointers) for p in ins],
            [_array(p, pointers) for p in outs],
        )

    return [call]


def _array(place: Whereabouts, pointers: Sequence[int]) -> np.ndarray:
    """The NumPy array over a place. It holds no memory: whoever calls does."""
    spec = place.spec
    dtype, shape = spec.dtype.numpy, spec.shape
    if not spec.numel:
        return np.empty(shape, dtype)
    reach = spec.numel if place.stride is None else 1 + sum((n - 1) * s for n, s in zip(shape, place.stride))
    nbytes = reach * dtype.itemsize
    memory = (ctypes.c_char * nbytes).from_address(pointers[place.base] + place.offset)
    flat: np.ndarray = np.ndarray((reach,), dtype, memoryview(memory))
    if place.stride is None:
        return flat.reshape(shape)
    return np.lib.stride_tricks.as_strided(flat, shape, [s * dtype.itemsize for s in place.stride])


# --- CUDA -------------------------------------------------------------------------------------------------------------


def _on_device(step: Step, loader: KernelLoader, places: dict[int, Whereabouts]) -> list[KernelStart]:
    if all(t.numel == 0 for t in step.region.results):
        return []
    built = loader.build(step.kernel_id, step.region)
    assert isinstance(built, list), step.kernel_id
    ins, outs = ([(places[v].base, places[v].offset) for v in vids] for vids in (step.in_vids, step.out_vids))
    work = (ARENA, step.workspace.offset if step.workspace else 0)
    return [start_of(launch, step.region, step.kernel_id, ins, outs, work) for launch in built]
