"""Executor: binds a plan's slots and steps and walks them. It decides nothing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ... import config
from ...device.runtime import Runtime
from ...device.tensor import Tensor
from ...dispatch import Call, KernelLoader
from ...errors import NanError
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
        ids = {id for id in plan.kernel_ids if not self.loader.registry.by_id(id).capture_safe}
        refused = dict.fromkeys(ids, "the variant is not capture-safe")
        return Bound(plan, tensors, calls, copies, notes, refused)


def _copier(runtime: Runtime, target: Tensor, source: Tensor) -> Call:
    return lambda *on: runtime.write(target, source, *on)
