"""Explanation: the story of a compiled program, region by region: what was fused, why it ended, what was chosen and why."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import accumulate
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from ...device.spec import DeviceSpec, measured_on
from ...errors import AicfError, Immovable
from ...ir import Recognised
from ...lazy import lazy
from ...pages import story
from ...pages.notebook import InNotebook
from ...printing import Printed
from ...registry.invariant import percent
from ...registry.measured import counted
from ...registry.trace import (
    describe_product,
    errors_of_predictions,
    microseconds,
    not_measured,
    recognised_lines,
    selection_json,
)
from ...text import visible
from ..ask.wanted import Wanted, want
from ..emit.results import GRAD, LOSS, OUTPUT
from ..fuse import Composed, Region
from ..fuse.once import KeptOnce, sentences
from .collective_time import CollectiveTime, collective_time
from .peak import region_flops, unit_of
from .picture import Box, Picture
from .plan import ExecPlan, Slot, Step, values_json
from .region_text import RegionStory, RegionTable


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


@dataclass(frozen=True)
class Price:
    """Invariant rows: the time of a run, that of the free choice, and what the latter is of."""

    us: float
    free_us: float
    against: str

    @property
    def ratio(self) -> float:
        return self.us / self.free_us if self.free_us else 1.0

    def __str__(self) -> str:
        return f"invariant rows: {percent(self.ratio)} against {microseconds(self.free_us)}, {self.against}"


KERNELS = 4  # kinds that are counted at the end
HOW = "region N in full: .region(N), or --region N · everything: .verbose(), or -v"


@dataclass(frozen=True, repr=False)
class Explanation(Immovable, InNotebook, Printed):
    """`print(e)` is plain text, `rich.print(e)` has colour, a notebook draws it, `e.verbose()` has every candidate, `e.to_json()` is data.

    The text has a line for each region, and one for all that are alike: the same ops, element types and kernel. `e.region(n)` tells one in full.

    regions   in the order of the schedule, those that the setup has among those of a run
    told      what was said of what could be computed once
    free_us   predicted time of the plan without invariant rows, where this one has them and somebody made the other
    """

    plan: ExecPlan
    regions: tuple[Region, ...]
    device: str
    everything: bool = False
    recognised: tuple[Recognised, ...] = ()
    told: tuple[KeptOnce, ...] = ()
    free_us: float | None = None
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

    def region(self, number: int) -> RegionStory:
        """One region in full: what it reads, how it grew, what was chosen, what came next, who was rejected and why, why it ended."""
        if not (isinstance(number, int) and 0 <= number < len(self.regions)):
            raise AicfError(
                f"there is no region {number}", expected=f"0 to {len(self.regions) - 1}" if self.regions else "a plan with regions",
                hint="print(explanation) lists them",
            )  # fmt: skip
        like = self._groups[self._group_of[number]]
        run = [self.regions[number]] if self._steps[number].kernel_id else []
        return self._story(number, tuple(n for n in like if n != number), tuple(self._accuracy(run)))

    def _story(self, n: int, like: tuple[int, ...] = (), notes: tuple[str, ...] = ()) -> RegionStory:
        return RegionStory(
            n, self.regions[n], self._steps[n], self._slots, self._once[n], like, self.everything, notes
        )

    def _rendering(self) -> RenderableType:
        head = [self._headline(), *recognised_lines(self.recognised, self.everything)]
        if self.everything:
            told = [part for n in range(len(self.regions)) for part in (Text(), self._story(n))]
            return Group(*head, *told, self._summary())
        table = RegionTable([[self._story(n) for n in group] for group in self._groups.values()])
        return Group(*head, Text(), table, self._summary(), Text(HOW, style="dim"))

    @lazy
    def _group_of(self) -> list[int]:
        """For each region the first one that differs from it in shapes at most."""
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
                chosen.cost.is_measured,
            )
            key = ops, types, len(spec.outputs), self._steps[n].kernel_id, told, self._once[n]
            first.append(found.setdefault(key, n))
        return first

    @lazy
    def _groups(self) -> dict[int, list[int]]:
        """By the first of each."""
        found: dict[int, list[int]] = {}
        for n, first in enumerate(self._group_of):
            found.setdefault(first, []).append(n)
        return found

    def _headline(self) -> Text:
        ops = sum(len(r.spec.ops) for r in self.regions)
        text = Text(f"{self.plan.mode} plan {self.plan.key} on {self.device}", style="bold")
        text.append(f" · {counted(ops, 'op')} in {counted(len(self.regions), 'region')}", style="none")
        return text.append(
            f" · arena {self.plan.arena_bytes:,} B · peak {self.plan.peak_bytes:,} B · {len(self.plan.alias)} aliases",
            style="none",
        )

    @property
    def spec(self) -> DeviceSpec | None:
        """Of the device that the kernels were chosen for; None where nothing had to be chosen."""
        return self.regions[0].selection.device if self.regions else None

    @property
    def predicted_us(self) -> float:
        """Of all kernels together, in microseconds; of several ranks with what is exchanged, less what passes beside kernels."""
        if self.collectives is not None:
            return self.collectives.whole_us
        return math.fsum(r.selection.chosen.us for r in self._run)

    @lazy
    def price(self) -> Price | None:
        """What invariant rows cost in a run; None of a plan without them."""
        if not any(r.spec.invariant for r in self.regions):
            return None
        if self.free_us is not None:
            return Price(self.predicted_us, self.free_us, "the plan without them")
        free = [r.selection.free for r in self._run]
        us = math.fsum(f.us if f else r.selection.chosen.us for f, r in zip(free, self._run))
        return Price(self.predicted_us, us, "the free choice for each of these regions")

    @lazy
    def collectives(self) -> CollectiveTime | None:
        """What ranks exchange in a run, and how much of it passes beside kernels; None on one rank."""
        run = [region for region, once in zip(self.regions, self._once) if not once]
        taken = [region for region, step in zip(run, self.plan.steps) if step.kernel_id]
        return collective_time(self.plan, taken, bool(self.spec and self.spec.kind == "cuda"))

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
        if not self.everything and len(parts) > KERNELS:
            parts[KERNELS:] = [f"and {counted(len(parts) - KERNELS, 'more kind')}"]
        return Text(
            f"\npredicted {microseconds(self.predicted_us)} in {counted(count.total(), 'kernel')}: "
            + visible(" · ".join(parts))
            + "".join(
                f"\n{line}"
                for line in (
                    *self._accuracy(self._run),
                    *([str(self.collectives)] if self.collectives else []),
                    *([str(self.price)] if self.price else []),
                    str(self.gain),
                    *sentences(self.told),
                )
            )
            + visible(self._results())
        )

    def _accuracy(self, regions: Iterable[Region]) -> list[str]:
        """One line where a predicted time of a region is shown for a device whose predictions were never compared with measured times; when
        verbose, how far off those of others are."""
        if self.spec is None or all(r.selection.chosen.cost.is_measured for r in regions):
            return []
        if measured_on(self.spec) is None:
            return [not_measured(self.device, self.spec.kind)]
        said = errors_of_predictions(self.spec.calibration.errors) if self.everything else ""
        return [said] if said else []

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

    def _repr_html_(self) -> str:
        return story.explanation(self.to_json())

    def to_json(self) -> dict[str, Any]:
        """Predicted times, but no clock, path or date: equal for equal ops, device and tuning data."""
        return {
            "mode": self.plan.mode,
            "device": self.device,
            "measured_on": measured_on(self.spec) if self.spec else None,
            **(
                {"prediction_errors": self.spec.calibration.errors}
                if self.spec and self.spec.calibration.errors
                else {}
            ),
            "numerics": _numerics(self.regions),
            **({"price": {**asdict(self.price), "ratio": self.price.ratio}} if self.price else {}),
            "plan": self.plan.key,
            "target": _target_json(self.spec) if self.spec else None,
            "memory": {name: getattr(self.plan, f"{name}_bytes") for name in ("arena", "workspace", "peak")},
            "fusion": asdict(self.gain),
            "recognised": [asdict(note) for note in self.recognised],
            "values": values_json(self.plan, self._slots, self._numbers),
            **({"collectives": asdict(self.collectives)} if self.collectives else {}),
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


def _numerics(regions: Sequence[Region]) -> str:
    if any(r.spec.invariant for r in regions):
        return "invariant"
    return "strict" if any(r.spec.strict for r in regions) else "fused"


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


def explain(
    plan: ExecPlan, regions: Sequence[Region], recognised: Sequence[Recognised] = (), once: Sequence[Region] = (),
    told: Sequence[KeptOnce] = (),
) -> Explanation:  # fmt: skip
    """regions   of the plan's steps; `once` those of its setup's; `told` what was said of what could be computed once"""
    both = sorted((*regions, *once), key=lambda region: region.anchor)
    return Explanation(plan, tuple(both), plan.device, recognised=tuple(recognised), told=tuple(told))
