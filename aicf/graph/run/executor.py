"""Executor: binds a plan's slots and steps and walks them. It decides nothing."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ... import config
from ...device.runtime import Runtime
from ...device.tensor import Tensor
from ...dispatch import Call, KernelLoader
from ...errors import NanError
from ...ir import Role
from ...ops.schema import schema_of
from ...types import TensorSpec
from .capture import Work
from .plan import ExecPlan, Step
from .slots import bind_and_alloc_slots


@dataclass
class Bound:
    """A plan with a tensor for every slot and a call for every step."""

    plan: ExecPlan
    tensors: dict[int, Tensor]
    calls: list[tuple[Step, Call]]
    copies: list[Call]  # updates that are not written in place, after the last step
    notes: list[str] = field(default_factory=list)
    refused: dict[str, str] = field(default_factory=dict)  # kernel ids that no graph may hold, and why

    def run(self) -> list[str]:
        """Run the steps in order; the kernel ids that ran."""
        if config.check_enabled("nan"):
            self._run_checked()
        else:
            for _, call in self.calls:
                call()
        for copy in self.copies:
            copy()
        return [step.kernel_id for step, _ in self.calls]

    def work(self) -> list[Work]:
        """The steps and copies, with those that can't be captured marked."""
        steps = [Work(step.kernel_id, call, self.refused.get(step.kernel_id)) for step, call in self.calls]
        return [*steps, *(Work("update", copy) for copy in self.copies)]

    def _run_checked(self) -> None:
        """Every float tensor is looked at: those that come from outside before the first step, results after theirs."""
        for slot in self.plan.externals():
            if slot.vid in self.tensors and (count := self._count(np.isnan, slot.vid)):
                raise NanError(
                    f"{slot.role} {slot.name} has NaN before anything ran",
                    got=f"{count} NaN of {slot.spec.numel}: {slot.spec}",
                    hint="mend the data"
                    if slot.role is Role.input
                    else "load a state dict from before it went wrong",
                )
        for n, (step, call) in enumerate(self.calls):
            call()
            for vid in step.out_vids:
                if count := self._count(np.isnan, vid):
                    raise self._nan_error(n, step, vid, count)

    def _nan_error(self, n: int, step: Step, vid: int, count: int) -> NanError:
        slots = self.plan.slots
        seen = []
        for v in step.in_vids:
            infinite = self._count(np.isinf, v)
            seen.append(f"{slots[v].name}: {slots[v].spec}" + (f" with {infinite} Inf" if infinite else ""))
        reason = self._reason(step)
        return NanError(
            f"step {n} made the first NaN: {step.region.signature}, by {step.kernel_id}",
            where=step.where or None,
            got=f"{count} NaN of {slots[vid].spec.numel} in {slots[vid].name}: {slots[vid].spec}",
            details=["its inputs have none: " + ", ".join(seen), *([reason] if reason else [])],
        )

    def _reason(self, step: Step) -> str | None:
        """Which op of the region made a NaN of what, found by its reference; None if the operands were written over."""
        storage = {
            slot.vid: slot.vid if slot.alias_of is None else slot.alias_of
            for slot in self.plan.slots.values()
        }
        if {storage[v] for v in step.in_vids}.intersection(storage[v] for v in step.out_vids):
            return None
        region = step.region
        known = {i: self.tensors[v].numpy() for i, v in zip(region.inputs, step.in_vids)}
        for op in region.ops:
            schema = schema_of(op.kind)
            operands = [known[i] if i >= 0 else None for i in op.inputs]
            known.update(zip(op.outputs, schema.call_reference(operands, op.attrs)))
            floats = [known[i] for i in op.outputs if region.tensors[i].dtype.kind == "float"]
            if any(np.isnan(a.astype(np.float32)).any() for a in floats):
                why = schema.why_nan([a for a in operands if a is not None])
                of = f"{op.kind} made it" if len(region.ops) > 1 else None
                return ": ".join(filter(None, (of, why))) or None
        return None

    def _count(self, test: Callable[[np.ndarray], np.ndarray], vid: int) -> int:
        if self.plan.slots[vid].spec.dtype.kind != "float":
            return 0
        return int(test(self.tensors[vid].numpy().astype(np.float32)).sum())


class Executor:
    """Runs the plans of one program on one runtime."""

    def __init__(self, runtime: Runtime, loader: KernelLoader) -> None:
        self.runtime, self.loader = runtime, loader

    def bind(
        self, plan: ExecPlan, feed: Mapping[str, Any], variables: Mapping[str, Tensor] | None, **policy: Any
    ) -> Bound:
        """Slots, aliases and calls of a plan (C8). Every error of the feed comes from here, before anything runs."""
        tensors, notes = bind_and_alloc_slots(plan, feed, self.runtime, variables, **policy)
        scratch = None
        if plan.workspace_bytes:
            memory = self.runtime.allocate(plan.workspace_bytes)
            scratch = self.runtime.view(
                memory, 0, TensorSpec((plan.workspace_bytes // 4,), device=self.runtime.kind)
            )
        self.loader.prepare([(step.kernel_id, step.region) for step in plan.steps if step.kernel_id])
        calls = [
            (
                step,
                self.loader.bind(
                    step.kernel_id,
                    step.region,
                    [tensors[v] for v in step.in_vids],
                    [tensors[v] for v in step.out_vids],
                    scratch,
                ),
            )
            for step in plan.steps
            if step.kernel_id
        ]
        copies = []
        for old, new in plan.updates.items():
            if tensors[old].ptr != tensors[new].ptr:
                copies.append(_copier(self.runtime, tensors[old], tensors[new]))
        ids = {id for id in plan.kernel_ids if not self.loader.registry.by_id(id).capture_safe}
        refused = dict.fromkeys(ids, "the variant is not capture-safe")
        return Bound(plan, tensors, calls, copies, notes, refused)


def _copier(runtime: Runtime, target: Tensor, source: Tensor) -> Call:
    return lambda *on: runtime.write(target, source, *on)
