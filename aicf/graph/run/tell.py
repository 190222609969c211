"""What the log channels are told of plans: the choices, why regions end, what was made and why, what was captured."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from ... import channels
from ...registry.select import log_choice
from ...registry.trace import microseconds
from ..fuse import Region
from .capture import CaptureReport
from .plan import ExecPlan

if TYPE_CHECKING:
    from ...device.tensor import Runtime


def tell_plan(
    plan: ExecPlan, regions: Sequence[Region], once: Sequence[Region], runtime: Runtime, phase: str, sizes: Mapping[str, int],
    seconds: float, why: str,
) -> None:  # fmt: skip
    """A plan that was just made: its choices, its regions, itself."""
    both = sorted((*regions, *once), key=lambda region: region.anchor)
    for region in both:
        log_choice(region.selection, hex(runtime.stream_id))
    if channels.enabled("fusion"):
        for region in both:
            _tell_region(region)
    if not channels.enabled("plan"):
        return
    us = sum(region.selection.chosen.us for region in regions)
    at = ", ".join(f"{dim}={size}" for dim, size in sizes.items()) or "no named sizes"
    channels.tell(
        "plan", "made",
        f"{plan.mode} plan {plan.key} on {plan.device} for {at}, phase {phase}: {len(plan.kernel_ids)} kernels, arena {plan.arena_bytes:,} B, "
        f"peak {plan.peak_bytes:,} B, predicted {microseconds(us)}; made in {seconds:.2f} s: {why}",
        plan=plan.key, mode=plan.mode, device=plan.device, phase=phase, sizes=dict(sizes), kernels=len(plan.kernel_ids),
        regions=len(regions), arena_bytes=plan.arena_bytes, workspace_bytes=plan.workspace_bytes, peak_bytes=plan.peak_bytes,
        predicted_us=us, seconds=seconds, why=why,
    )  # fmt: skip
    for n, step in enumerate(plan.steps) if channels.enabled("plan", logging.DEBUG) else ():
        kernel = step.kernel_id or "a view"
        channels.tell(
            "plan", "step", f"{plan.key} step {n}: {step.region.signature} -> {kernel}", logging.DEBUG,
            plan=plan.key, step=n, kernel=step.kernel_id, reads=list(step.in_vids), writes=list(step.out_vids), where=step.where,
        )  # fmt: skip


def _tell_region(region: Region) -> None:
    ended, ops = region.ended, region.spec.signature
    detail = channels.enabled("fusion", logging.DEBUG)
    for step in region.steps if detail else ():
        rows = "".join(f" · {row} {text}" for row, text in step.changed.items())
        channels.tell(
            "fusion", "step", f"{step.op}: {step.candidates} candidates left{rows}", logging.DEBUG,
            region=[region.anchor, region.last], op=step.op, count=step.count, changed=dict(step.changed),
            candidates=step.candidates, best=step.best, us=step.us, alone_us=step.alone_us,
        )  # fmt: skip
    channels.tell(
        "fusion", "region", f"ops {region.anchor}..{region.last} {ops} -> {region.kernel_id}; ended by {ended.trigger}: {ended.sentence}",
        anchor=region.anchor, last=region.last, ops=[op.kind.name for op in region.spec.ops], kernel=region.kernel_id,
        trigger=ended.trigger, sentence=ended.sentence, row=ended.row, left=ended.left, right=ended.right,
    )  # fmt: skip


def tell_capture(plan: ExecPlan, report: CaptureReport, seconds: float) -> None:
    """A frozen plan that was just made."""
    graphs = sum(1 for s in report.segments if s.nodes)
    channels.tell(
        "capture", "captured",
        f"plan {plan.key}: {report.captured} of {report.total} calls captured in {graphs} graphs on {report.device} in {seconds:.2f} s, "
        f"{report.pinned_bytes:,} B pinned",
        plan=plan.key, device=report.device, captured=report.captured, calls=report.total, graphs=graphs,
        nodes=sum(s.nodes for s in report.segments), pinned_bytes=report.pinned_bytes, seconds=seconds,
    )  # fmt: skip
    for s in report.segments:
        if not s.nodes:
            text = f"plan {plan.key}: calls {s.first}..{s.last} not captured: {s.reason}"
            level = logging.INFO if report.device == "cpu" else logging.WARNING
            channels.tell(
                "capture",
                "not captured",
                text,
                level,
                plan=plan.key,
                first=s.first,
                last=s.last,
                reason=s.reason,
            )
