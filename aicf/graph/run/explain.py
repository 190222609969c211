"""Explanation: the story of a compiled program, region by region: what was fused, why it ended, what was chosen and why."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import accumulate, groupby
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from ...device.spec import DeviceSpec
from ...errors import AicfError, Immovable
from ...ir import Recognised
from ...lazy import lazy
from ...pages import story
from ...pages.notebook import InNotebook
from ...registry.measured import counted
from ...registry.trace import (
    describe_product,
    labelled,
    microseconds,
    recognised_lines,
    render,
    selection_json,
    selection_lines,
)
from ..ask.wanted import Wanted, want
from ..emit.results import GRAD, LOSS, OUTPUT
from ..fuse import Composed, Region
from ..fuse.once import KeptOnce, sentences
from .peak import region_flops, unit_of
from .picture import Box, Picture, brief
from .plan import ExecPlan, Slot, Step, values_json


@dataclass(frozen=True)
class Gain:
    """One kernel per op, against the plan's."""

    kernels_before: int
    kernels: int
    bytes_before: int
    bytes: int
    us_before: float | None  # None if some op has no kernel of its own
    us: float

    def __str__(self) -> str:
        text = f"fused from {counted(self.kernels_before, 'kernel')} that move {self.bytes_before:,} B to {self.kernels} that move {self.bytes:,} B"
        return text + (
            f"; predicted {microseconds(self.us_before)} before" if self.us_before is not None else ""
        )


SHOWN = 4  # operands of a region, times of regions that are told in one line


@dataclass(frozen=True, repr=False)
class Explanation(Immovable, InNotebook):
    """`print(e)` is plain text, `rich.print(e)` has colour, a notebook draws it, `e.verbose()` has every candidate, `e.to_json()` is data.

    The text tells of each (ops, element types, chosen kernel) once, and of the regions like it in one line.

    regions   in the order of the schedule, those that the setup has among those of a run
    told      what was said of what could be computed once
    """

    plan: ExecPlan
    regions: tuple[Region, ...]
    device: str
    everything: bool = False
    recognised: tuple[Recognised, ...] = ()
    told: tuple[KeptOnce, ...] = ()
    instead = "str(explanation) is its text, explanation.to_json() its data"

    @lazy
    def _steps(self) -> tuple[Step, ...]:
        """Of each region, in the plan or in its setup."""
        first = self.plan.setup
        steps = {step.anchor: step for step in (*self.plan.steps, *(first.steps if first else ()))}
        return tuple(steps[region.anchor] for region in self.regions)

    @lazy
    def _once(self) -> tuple[bool, ...]:
        """Of each region: whether it is the setup's."""
        anchors = {step.anchor for step in self.plan.steps}
        return tuple(region.anchor not in anchors for region in self.regions)

    @lazy
    def _numbers(self) -> list[int]:
        """Of each step of the plan the number of its region."""
        return [n for n, once in enumerate(self._once) if not once]

    @lazy
    def _run(self) -> tuple[Region, ...]:
        """The regions whose kernels each run has."""
        found = zip(self.regions, self._steps, self._once)
        return tuple(region for region, step, once in found if step.kernel_id and not once)

    @lazy
    def _slots(self) -> Mapping[int, Slot]:
        first = self.plan.setup
        return {**(first.slots if first else {}), **self.plan.slots}

    def verbose(self) -> Explanation:
        return replace(self, everything=True)

    def __rich__(self) -> RenderableType:
        first = self._first_like()
        parts: list[RenderableType] = [self._headline(), *recognised_lines(self.recognised, self.everything)]
        for (repeated, _), run in groupby(
            range(len(self.regions)), key=lambda n: (first[n] != n, self.regions[n].spec.signature)
        ):
            if repeated:
                parts.append(self._repeats(list(run), first))
            else:
                parts += [part for n in run for part in (self._title(n), self._body(n))]
        parts.append(self._summary())
        return Group(*parts)

    def _first_like(self) -> list[int]:
        """For each region the first one that is told like it: itself, if everything is to be told."""
        found: dict[tuple, int] = {}
        first = []
        for n, region in enumerate(self.regions):
            spec, chosen = region.spec, region.selection.chosen
            ops = tuple((op.kind, op.attrs) for op in spec.ops)
            types = tuple(t.dtype for t in spec.operands)
            told = (
                describe_product(region.selection),
                region.ended.trigger,
                region.ended.row,
                set(chosen.cost.terms) == {"measured"},
            )
            key = ops, types, len(spec.outputs), self._steps[n].kernel_id, told, self._once[n]
            first.append(n if self.everything else found.setdefault(key, n))
        return first

    def _headline(self) -> Text:
        ops = sum(len(r.spec.ops) for r in self.regions)
        text = Text(f"{self.plan.mode} plan {self.plan.key} on {self.device}", style="bold")
        text.append(f" · {counted(ops, 'op')} in {counted(len(self.regions), 'region')}", style="none")
        return text.append(
            f" · arena {self.plan.arena_bytes:,} B · peak {self.plan.peak_bytes:,} B · {len(self.plan.alias)} aliases",
            style="none",
        )

    def _body(self, n: int) -> RenderableType:
        region = self.regions[n]
        if not self._steps[n].kernel_id:
            slots = [self._slots[v] for v in (*region.in_vids, *region.out_vids)]
            lies = [f"; %{s.vid} is %{s.alias_of}{s.strided}" for s in slots if s.strided]
            return Group(self._operands(region), Text("  a view: nothing runs" + "".join(lies), style="dim"))
        lines = selection_lines(region.selection, self.everything, region.ended.sentence, self._grew(region))
        return Group(self._operands(region), lines)

    def _grew(self, region: Region) -> list[str]:
        """`gemm 7 candidates · bias_add 7 · relu 7`; verbose, a line for each op with the rows it changed."""
        if self.everything:
            width = max(len(step.op) for step in region.steps)
            return [
                f"{step.op:<{width}}  {step.candidates} left"
                + (f", {microseconds(step.us)}" if step.us is not None else ", none takes just this")
                + "".join(f" · {row} {text}" for row, text in step.changed.items())
                + (f" · kept: {step.near}" if step.near else "")
                for step in region.steps
            ]
        if len(region.steps) == 1:
            return []
        first, *others = region.steps
        plural = "s" if first.candidates != 1 else ""
        text = f"{first.op} {first.candidates} candidate{plural}"
        kept = (f" (kept: {step.near})" if step.near else "" for step in others)
        return [text + "".join(f" · {step.op} {step.candidates}{near}" for step, near in zip(others, kept))]

    def _repeats(self, run: list[int], first: Sequence[int]) -> Text:
        """`regions 22..25  adam_step ×4, as regions 20, 21: 2.97 us, 1.88 us, …`."""
        plural = f"regions {run[0]}..{run[-1]}" if len(run) > 1 else f"region {run[0]}"
        text = Text(f"\n{plural:<9}  ").append(_brief(self.regions[run[0]]), style="bold cyan")
        text.append(f" ×{len(run)}" if len(run) > 1 else "", style="bold cyan")
        like = list(dict.fromkeys(first[n] for n in run))
        text.append(f"   as region{'s' if len(like) > 1 else ''} {', '.join(map(str, like))}")
        times = [self.regions[n].selection.chosen.us for n in run if self._steps[n].kernel_id]
        if not times:
            return text
        text.append(
            ": " + ", ".join(map(microseconds, times[:SHOWN])) + (", …" if len(times) > SHOWN else "")
        )
        return text.append(f"; together {microseconds(math.fsum(times))}" if len(times) > 1 else "")

    def _title(self, n: int) -> Text:
        region = self.regions[n]
        ops = f"op {region.anchor}" if region.anchor == region.last else f"ops {region.anchor}..{region.last}"
        text = Text(f"\nregion {n:<3} ").append(_brief(region), style="bold cyan")
        return text.append(f"   {ops}{', once' * self._once[n]}{describe_product(region.selection)}")

    def _operands(self, region: Region) -> RenderableType:
        operands = [str(t) for t in region.spec.operands]
        more = f" and {len(operands) - SHOWN} more" if len(operands) > SHOWN else ""
        lines = [("on", "dim", ", ".join(operands[:SHOWN]) + more)]
        lines += [("instead", "dim", op) for op in region.instead]
        return labelled(lines)

    @property
    def spec(self) -> DeviceSpec | None:
        """Of the device that the kernels were chosen for; None where nothing had to be chosen."""
        return self.regions[0].selection.device if self.regions else None

    @property
    def predicted_us(self) -> float:
        """Of all kernels together, in microseconds."""
        return math.fsum(r.selection.chosen.us for r in self._run)

    @property
    def gain(self) -> Gain:
        """What fusion saved: kernels, bytes moved at the least, and predicted time, before and after."""
        run = self._run
        alone = [step for r in run for step in r.steps]
        before_us = math.fsum(step.alone_us or 0.0 for step in alone)
        return Gain(
            sum(step.count for step in alone), len(run), sum(step.alone_bytes for step in alone), sum(r.spec.nbytes for r in run),
            before_us if all(step.alone_us is not None for step in alone) else None, self.predicted_us,
        )  # fmt: skip

    def want(self, kernel: str, region: int | None = None) -> Wanted:
        """Why a kernel was not chosen, and the nearest changes for which it takes a region, and is chosen: `print(e.want("gemm_wgmma*"))`.

        kernel  an id, a name or a pattern of either
        region  its number in this explanation; all if it is None
        """
        run = [(n, r) for n, (r, step) in enumerate(zip(self.regions, self._steps)) if step.kernel_id]
        if region is not None and region not in (n for n, _ in run):
            raise AicfError(
                f"region {region} has no kernel to choose", got=f"regions {', '.join(str(n) for n, _ in run)} have",
                hint="print(explanation) shows their numbers",
            )  # fmt: skip
        return want([(n, r) for n, r in run if region in (None, n)], kernel, self.device)

    def picture(self) -> Picture:
        """The ops in a row, those of one kernel joined: in a terminal as text, in a notebook as boxes."""
        boxes = (
            Box(tuple(op.kind.name for op in r.spec.ops), r.kernel_id, r.selection.chosen.us)
            for r in self._run
        )
        return Picture(self.device, tuple(boxes), self.gain.us_before)

    def _summary(self) -> Text:
        count = Counter(self.plan.kernel_ids)
        parts = [f"{n} × {id}" for id, n in sorted(count.items(), key=lambda item: (-item[1], item[0]))]
        return Text(
            f"\npredicted {microseconds(self.predicted_us)} in {counted(count.total(), 'kernel')}: "
            + " · ".join(parts)
            + "".join(f"\n{line}" for line in (str(self.gain), *sentences(self.told)))
            + self._results()
        )

    def _results(self) -> str:
        """`returns logits: tensor<32x10xf32> · loss: tensor<f32>`; nothing where that is "output" and the loss. Gradients are not listed."""
        found = [slot for slot in self.plan.outputs if not slot.name.startswith(f"{GRAD}.")]
        if {slot.name for slot in found} <= {OUTPUT, LOSS}:
            return ""
        return "\nreturns " + " · ".join(f"{slot.name}: {slot.spec}" for slot in found)

    def __repr__(self) -> str:
        return (
            f"<{self.plan.mode} plan {self.plan.key} on {self.device}: {len(self.regions)} regions; print it>"
        )

    def __str__(self) -> str:
        return render(self.__rich__())

    def _repr_html_(self) -> str:
        return story.explanation(self.to_json())

    def to_json(self) -> dict[str, Any]:
        """Predicted times, but no clock, path or date: equal for equal ops, device and tuning data."""
        return {
            "mode": self.plan.mode,
            "device": self.device,
            "numerics": "strict" if any(r.spec.strict for r in self.regions) else "fused",
            "plan": self.plan.key,
            "target": _target_json(self.spec) if self.spec else None,
            "memory": {name: getattr(self.plan, f"{name}_bytes") for name in ("arena", "workspace", "peak")},
            "fusion": asdict(self.gain),
            "recognised": [asdict(note) for note in self.recognised],
            "values": values_json(self.plan, self._slots, self._numbers),
            **({"derived": [asdict(one) for one in self.told]} if self.told else {}),
            "regions": [
                {
                    "anchor": r.anchor,
                    "last": r.last,
                    "ended": {
                        name: getattr(r.ended, name)
                        for name in ("trigger", "row", "left", "right", "detail", "sentence")
                    },
                    "steps": [_step_json(step) for step in r.steps],
                    "links": _links(r),
                    "reads": list(r.in_vids),
                    "writes": list(r.out_vids),
                    "bytes": r.spec.nbytes,
                    "flops": region_flops(r.spec),
                    "unit": unit_of(r.spec),
                    "workspace": [s.workspace.offset, s.workspace.nbytes]
                    if s.workspace and not once
                    else None,
                    "view": not s.kernel_id,
                    **({"once": True} if once else {}),
                    **selection_json(r.selection),
                }
                for r, s, once in zip(self.regions, self._steps, self._once)
            ],
        }


def _step_json(step: Composed) -> dict[str, Any]:
    usual = {"near": "", "count": 1}
    return {name: value for name, value in asdict(step).items() if value != usual.get(name)}


def _links(region: Region) -> list[list[int]]:
    """Which step of the region reads what which step of it made: [from, to]."""
    ends = list(accumulate(step.count for step in region.steps))
    maker: dict[int, int] = {}
    found: dict[tuple[int, int], None] = {}
    for n, op in enumerate(region.spec.ops):
        step = bisect_right(ends, n)
        found.update({(maker[t], step): None for t in op.inputs if maker.get(t, step) != step})
        maker.update(dict.fromkeys(op.outputs, step))
    return [list(link) for link in found]


def _target_json(spec: DeviceSpec) -> dict[str, Any]:
    return {
        "kind": spec.kind, "target": spec.target, "sms": spec.sms, "bandwidth": spec.bandwidth, "tflops": dict(spec.tflops),
        "l2_bytes": spec.l2_bytes, "shared_per_block": spec.shared_per_block, "memory_bytes": spec.memory_bytes,
        "launch_us": spec.launch_us,
    }  # fmt: skip


def _brief(region: Region) -> str:
    return brief([op.kind.name for op in region.spec.ops])


def explain(
    plan: ExecPlan, regions: Sequence[Region], recognised: Sequence[Recognised] = (), once: Sequence[Region] = (),
    told: Sequence[KeptOnce] = (),
) -> Explanation:  # fmt: skip
    """regions   of the plan's steps; `once` those of its setup's; `told` what was said of what could be computed once"""
    both = sorted((*regions, *once), key=lambda region: region.anchor)
    return Explanation(plan, tuple(both), plan.device, recognised=tuple(recognised), told=tuple(told))
