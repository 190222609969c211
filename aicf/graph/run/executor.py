"""Executor: walks a plan's steps and decides nothing. Eager binds for each run; a frozen plan is bound once and replayed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ... import config
from ...device.runtime import Runtime
from ...device.tensor import Tensor
from ...dispatch import Call, KernelLoader
from ...errors import FeedError, NanError
from ...ir import Role
from ...types import TensorSpec
from .capture import CapturedGraph, capture
from .plan import ExecPlan, Step
from .slots import bind_and_alloc_slots, check_feed, fill_slot


@dataclass
class Bound:
    """A plan with a tensor for every slot and a call for every step."""

    plan: ExecPlan
    tensors: dict[int, Tensor]
    calls: list[tuple[Step, Call]]
    copies: list[Call]  # updates that are not written in place, after the last step
    notes: list[str] = field(default_factory=list)

    @property
    def all_calls(self) -> list[Call]:
        return [*(call for _, call in self.calls), *self.copies]

    def run(self, graph: CapturedGraph | None = None) -> list[str]:
        """Run the steps in order, or the graph that was captured of them; the kernel ids that ran."""
        if config.check_enabled("nan"):
            self._run_checked()
        elif graph is not None:
            graph.launch()
        else:
            for call in self.all_calls:
                call()
        return [step.kernel_id for step, _ in self.calls]

    def _run_checked(self) -> None:
        for n, (step, call) in enumerate(self.calls):
            clean = [self._nans(v) == 0 for v in step.in_vids]
            call()
            for vid in step.out_vids:
                if (count := self._nans(vid)) and all(clean):
                    slot = self.plan.slots[vid]
                    inputs = [f"{self.plan.slots[v].name}: {self.plan.slots[v].spec}" for v in step.in_vids]
                    raise NanError(
                        f"step {n} made the first NaN: {step.region.signature}, by {step.kernel_id}",
                        where=step.where or None,
                        got=f"{count} NaN of {slot.spec.numel} in {slot.name}: {slot.spec}",
                        details=["its inputs have none: " + ", ".join(inputs)],
                    )
        for copy in self.copies:
            copy()

    def _nans(self, vid: int) -> int:
        if self.plan.slots[vid].spec.dtype.kind != "float":
            return 0
        return int(np.isnan(self.tensors[vid].numpy().astype(np.float32)).sum())


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
        return Bound(plan, tensors, calls, copies, notes)


def _copier(runtime: Runtime, target: Tensor, source: Tensor) -> Call:
    return lambda *on: runtime.write(target, source, *on)


class FrozenPlan:
    """A plan bound once, to be replayed: inputs have slots of their own, into which each feed is copied (C9).

    On CUDA its steps are captured as one graph; cache key, roles, errors and results are the same on both devices.
    """

    def __init__(
        self,
        executor: Executor,
        plan: ExecPlan,
        feed: Mapping[str, Any],
        variables: Mapping[str, Tensor],
        copy_roles: frozenset[Role],
        ignored: frozenset[str],
    ) -> None:
        self.executor, self.copy_roles, self.ignored = executor, copy_roles, ignored
        self.bound = executor.bind(
            plan, feed, variables, static_inputs=Role.input in copy_roles, ignored=ignored
        )
        self._inputs = plan.externals(Role.input)
        self._outputs = [(s.name, self.bound.tensors[s.vid]) for s in plan.outputs]
        self.graph = capture(executor.runtime, self.bound.all_calls)
        self.replays = 0

    def replay(self, feed: Mapping[str, Any]) -> tuple[dict[str, Tensor], list[str]]:
        """Copy the feed in, run the steps, return fresh copies of the outputs and the kernel ids that ran."""
        runtime, bound = self.executor.runtime, self.bound
        found = check_feed(self._inputs, feed, runtime.kind, self.ignored)
        for slot in self._inputs:
            if Role.input in self.copy_roles:
                fill_slot(bound.tensors[slot.vid], found[slot.name], runtime)
            elif found[slot.name].ptr != bound.tensors[slot.vid].ptr:
                raise FeedError(
                    f"{slot.name} is a static input of this frozen plan, and another tensor was fed",
                    expected=hex(bound.tensors[slot.vid].ptr),
                    got=hex(found[slot.name].ptr),
                    hint="leave it out of static_roles, and each replay copies it",
                )
        ran = bound.run(self.graph)
        self.replays += 1
        results = {}
        for name, tensor in self._outputs:
            results[name] = runtime.empty(tensor.spec)
            runtime.write(results[name], tensor)
        return results, ran
