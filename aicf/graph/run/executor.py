"""Executor: binds a plan's slots and steps and walks them. It decides nothing."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ... import config
from ...device.faults import Fault, tell
from ...device.tensor import Memory, Runtime, Tensor
from ...dispatch import Call, KernelLoader
from ...errors import NanError, VerifyError
from ...ir import Role
from ...ops.schema import schema_of
from ...progress import kernels
from ...rows import RegionOp
from ...types import TensorSpec
from .capture import CapturedCall
from .overlap import arranged
from .plan import ExecPlan, Step
from .slots import bind_and_alloc_slots


@dataclass
class BoundPlan:
    """A plan with a tensor for every slot and a call for every step. Calls know pointers: who may make them holds this."""

    plan: ExecPlan
    tensors: dict[int, Tensor]
    calls: list[tuple[Step, Call]]
    copies: list[Call]  # updates that are not written in place, after the last step
    notes: list[str] = field(default_factory=list)
    refused: dict[str, str] = field(default_factory=dict)  # kernel ids that no graph may hold, and why
    arena: Memory | None = None  # the steps' workspaces lie there beside values
    faults: tuple[Fault, ...] = ()  # whose records the steps write

    def run(self) -> list[str | None]:
        """Run the steps in order; what the calls say that they ran."""
        if config.check_enabled("nan"):
            ran = self._run_checked()
        else:
            ran = [call() for _, call in self.calls]
        for copy in self.copies:
            copy()
        return ran

    def work(self) -> list[CapturedCall]:
        """The steps and copies, with those that can't be captured marked."""
        steps = [
            CapturedCall(step.kernel_id, call, self.refused.get(step.kernel_id)) for step, call in self.calls
        ]
        return [*steps, *(CapturedCall("update", copy) for copy in self.copies)]

    def _run_checked(self) -> list[str | None]:
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
        ran = []
        for n, (step, call) in enumerate(self.calls):
            ran.append(call())
            tell(*self.faults)
            for vid in step.out_vids:
                if count := self._count(np.isnan, vid):
                    error = self._nan_error(n, step, vid, count)  # before workspaces are used out of turn
                    self._told_by_guards(n + 1)
                    raise error
        return ran

    def _told_by_guards(self, n: int) -> None:
        """Guards stand anywhere in the schedule: those that lack nothing from step n on say first what they find in the same data."""
        roles = {vid: slot.role for vid, slot in self.plan.slots.items()}
        made = {vid for step, _ in self.calls[n:] for vid in step.out_vids}
        for step, call in self.calls[n:]:
            if Role.fault in [roles.get(v) for v in step.in_vids] and not made.intersection(step.in_vids):
                call()
        tell(*self.faults)

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
        """Which op of the region made a NaN of what: traced back from a result, op by op, through the places that have it.

        By the ops' references; None if the operands were written over, or if the references make no NaN.
        """
        storage = {s.vid: s.vid if s.alias_of is None else s.alias_of for s in self.plan.slots.values()}
        if {storage[v] for v in step.in_vids}.intersection(storage[v] for v in step.out_vids):
            return None
        region, known = step.region, {}
        for i, v in zip(region.inputs, step.in_vids):
            array = self.tensors[v].numpy()
            dtype = region.tensors[i].dtype
            narrow = dtype.compute is not dtype and not region.strict  # kept in f32 inside the kernel
            known[i] = array.astype(np.float32) if narrow else array
        for op in region.ops:
            operands = [known[i] if i >= 0 else None for i in op.inputs]
            known.update(zip(op.outputs, schema_of(op.kind).call_reference(operands, op.attrs)))
        producer = {i: op for op in region.ops for i in op.outputs}
        seen = next((i for i in region.outputs if _nans(known[i]).any()), None)
        if seen is None:
            return None
        while (source := _where_from(producer[seen], known[seen], known, producer)) is not None:
            seen = source
        op = producer[seen]
        why = schema_of(op.kind).why_nan([known[i] for i in op.inputs if i >= 0], op.attrs)
        return ": ".join(filter(None, (f"{op.kind} made it" if len(region.ops) > 1 else None, why))) or None

    def _count(self, test: Callable[[np.ndarray], np.ndarray], vid: int) -> int:
        if self.plan.slots[vid].spec.dtype.kind != "float":
            return 0
        return int(test(self.tensors[vid].numpy().astype(np.float32)).sum())


def _nans(array: np.ndarray) -> np.ndarray:
    return np.isnan(array) if array.dtype.kind not in "iub" else np.zeros(array.shape, bool)


def _where_from(
    op: RegionOp, result: np.ndarray, known: Mapping[int, np.ndarray], made: Collection[int]
) -> int | None:
    """An operand, made in the region, that has NaN where the result has; anywhere, where places don't correspond."""
    for i in op.inputs:
        if i in made:
            nans = _nans(known[i])
            with suppress(ValueError):
                nans = np.broadcast_to(nans, result.shape) & _nans(result)
            if nans.any():
                return i
    return None


class Executor:
    """Runs the plans of one program on one runtime."""

    def __init__(self, runtime: Runtime, loader: KernelLoader) -> None:
        self.runtime, self.loader = runtime, loader

    def bind(
        self, plan: ExecPlan, feed: Mapping[str, Any], variables: Mapping[str, Tensor] | None, **policy: Any
    ) -> BoundPlan:
        """Slots, aliases and calls of a plan. Every error of the feed comes from here, before anything runs."""
        if (kind := "cpu" if plan.device == "cpu" else "cuda") != self.runtime.kind:
            raise VerifyError(
                f"the plan is for {plan.device}, a {kind} device", got=self.runtime.spec.name,
                hint="compile the model for the device that it is to run on",
            )  # fmt: skip
        tensors, arena, notes = bind_and_alloc_slots(plan, feed, self.runtime, variables, **policy)
        steps = [step for step in plan.steps if step.kernel_id]
        calls: list[tuple[Step, Call]] = []
        with kernels(len(steps)) as ready:
            self.loader.prepare([(step.kernel_id, step.region) for step in steps])
            for ready.done, step in enumerate(steps):
                ins, outs = ([tensors[v] for v in vids] for vids in (step.in_vids, step.out_vids))
                scratch = self._workspace(ready.done, step, arena)
                calls.append((step, self.loader.bind(step.kernel_id, step.region, ins, outs, scratch)))
        calls = arranged(calls, plan, self.runtime)
        faults = faults_of(plan, tensors)
        if self.runtime.kind == "cpu":  # a call may raise: before any that asks whether the run is valid
            calls = [(step, _telling(call, _written(plan, step, faults))) for step, call in calls]
        copies = []
        for old, new in plan.updates.items():
            if tensors[old].ptr != tensors[new].ptr:
                copies.append(_copier(self.runtime, tensors[old], tensors[new]))
        ids = {id for id in plan.kernel_ids if not self.loader.registry.by_id(id).capture_safe}
        refused = dict.fromkeys(ids, "the variant is not capture-safe")
        return BoundPlan(plan, tensors, calls, copies, notes, refused, arena, tuple(faults.values()))

    def run_setup(self, plan: ExecPlan, variables: Mapping[str, Tensor]) -> None:
        """Run a plan whose results are variables. On CUDA it is ordered before whatever comes next on the stream."""
        self.bind(plan, {}, variables, results=variables).run()

    def _workspace(self, n: int, step: Step, arena: Memory) -> Tensor | None:
        """The part of the arena that the plan gives to a kernel."""
        given = step.workspace.nbytes if step.workspace else 0
        needed = self.loader.workspace(step.kernel_id, step.region)
        if needed != given and any(t.numel for t in step.region.results):
            # more or less of it: a sum is split otherwise, and its bits are others than those of the plan that was saved
            raise VerifyError(
                "the plan has another workspace than its kernel uses", where=f"step {n}: {step.kernel_id}",
                expected=f"{needed} bytes", got=given,
                hint="compile the model again: kernels, or the calibration of the GPU, have changed since it was saved",
            )  # fmt: skip
        if step.workspace is None:
            return None
        spec = TensorSpec((given // 4,), device=self.runtime.kind)
        return self.runtime.view(arena, step.workspace.offset, spec)


def faults_of(plan: ExecPlan, tensors: Mapping[int, Tensor]) -> dict[int, Fault]:
    """Each record of a plan, by its value, with what its check reads."""
    kept = {slot.vid for slot in plan.externals(Role.param, Role.state)}
    guards, found = not kept.isdisjoint(plan.updates), {}
    checks = {vid: step for step in plan.steps for vid in step.in_vids}
    for slot in plan.externals(Role.fault):
        record = tensors[slot.vid]
        if (step := checks.get(slot.vid)) is None:
            found[slot.vid] = Fault(record)
            continue
        data = step.region.tensors[step.region.anchor.inputs[0]]
        found[slot.vid] = Fault(record, step.region.attrs.get("of", ""), data.shape, guards, step.where)
    return found


def _written(plan: ExecPlan, step: Step, faults: Mapping[int, Fault]) -> list[Fault]:
    """The faults whose records a step writes."""
    roots = [plan.slots[vid].alias_of for vid in step.out_vids]
    return [faults[root] for root in roots if root is not None and root in faults]


def _telling(call: Call, faults: list[Fault]) -> Call:
    """A call that raises for what it found wrong."""

    def checked(*on: Any) -> str | None:
        ran = call(*on)
        tell(*faults)
        return ran

    return checked if faults else call


def _copier(runtime: Runtime, target: Tensor, source: Tensor) -> Call:
    return lambda *on: runtime.write(target, source, *on)
