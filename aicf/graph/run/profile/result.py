"""Profile: what was measured, as text, as data, as a table in a notebook, and as a timeline for Perfetto."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from math import fsum
from pathlib import Path
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from ....device.spec import DeviceSpec
from ....errors import Immovable
from ....lazy import lazy
from ....pages.markup import joined, table, tag
from ....printing import ByWidth, Printed, render
from ....registry.measured import counted
from ....registry.trace import factor, microseconds
from ....registry.variant import Launch
from ....text import printable, shortened, visible
from ..explain import Explanation
from ..picture import brief
from .clocks import TimedRun

SHOWN = 15  # steps
OPS = 48  # letters of a row's ops
WIDE, WIDTH = 110, 150  # columns: from which on all are there; of what is piped
OVER = 1.1  # a step that takes so many times what was predicted, or less, is no surprise
HEADS = "region", "time", "share", "predicted", "GB/s", "TFLOP/s", "of peak", "bound", "host", "ops · kernel"
TEXTS = frozenset(("bound", "ops · kernel"))


@dataclass(frozen=True)
class Origin:
    """An op of the graph that is part of a step: the layer that emitted it, or whose gradient it is, and the user's line."""

    op: str
    layer: str
    where: str

    def __str__(self) -> str:
        return f"{self.layer}: {self.op}" if self.layer else self.op


@dataclass(frozen=True)
class StepTime:
    """One kernel of the plan. Times are in microseconds, medians of the runs.

    region    its number in the explanation
    call      its place among the calls of a replay
    spread    of the measured time, between the quartiles, as a part of the median
    host_us   what the host took to start it
    nbytes    that it moves at the least
    at_least  what its bytes and its flops take at the device's peaks, and a launch
    launches  the kernels that it is made of, where it runs on a GPU
    """

    region: int
    call: int
    ops: str
    kernel: str
    predicted_us: float
    us: float
    spread: float
    host_us: float
    nbytes: int
    flops: int
    unit: str
    at_least: Mapping[str, float]
    origins: tuple[Origin, ...] = ()
    launches: tuple[Launch, ...] = ()

    @property
    def brief(self) -> str:
        """Its ops, those of one kind that follow one another once."""
        return brief([o.op for o in self.origins]) or self.ops

    @property
    def bound(self) -> str:
        """What the device can't do faster: "memory", "compute" or "launch"."""
        return max(self.at_least, key=lambda name: self.at_least[name])

    @property
    def gbs(self) -> float:
        return self.nbytes / self.us * 1e-3 if self.us else 0.0

    @property
    def tflops(self) -> float:
        return self.flops / self.us * 1e-6 if self.us else 0.0

    def of_peak(self, what: str) -> float:
        """Achieved of the device's peak of "memory" or "compute"."""
        return self.at_least[what] / self.us if self.us else 0.0

    @property
    def over_us(self) -> float:
        """What it takes more than predicted."""
        return self.us - self.predicted_us


@dataclass(frozen=True, repr=False)
class Profile(Immovable, Printed):
    """`print(p)` is plain text, `rich.print(p)` has colour, `p.verbose()` has every step; `p.to_json()` is data, `p.save("trace.json")` a
    timeline that https://ui.perfetto.dev opens.

    clock      how steps were timed; `why` not by a better one
    replay_us  a call of the program: feed, run, wait. `walk_us`: with each call started by itself, as it was measured
    copies_us  of what is no step: feeds and results that lie on the device, updates that are not in place
    timeline   the run of those measured that took the median time, and the names of its calls
    """

    explanation: Explanation
    spec: DeviceSpec
    steps: tuple[StepTime, ...]
    clock: str
    why: str
    runs: int
    replay_us: float
    walk_us: float
    copies_us: float
    timeline: TimedRun
    calls: tuple[str, ...]
    everything: bool = False
    instead = "str(profile) is its text, profile.to_json() its data"

    @lazy
    def kernels_us(self) -> float:
        """Of all steps together."""
        return fsum(step.us for step in self.steps)

    @property
    def predicted_us(self) -> float:
        return fsum(step.predicted_us for step in self.steps)

    @property
    def idle_us(self) -> float:
        """Of a replay, the time in which no kernel runs and nothing is copied on the device."""
        return max(self.replay_us - self.kernels_us - self.copies_us, 0.0)

    @property
    def idle(self) -> float:
        """The same, as a share."""
        return self.idle_us / self.replay_us if self.replay_us else 0.0

    @property
    def furthest(self) -> StepTime | None:
        """The step that loses most time against its prediction; None if all are about as predicted."""
        over = [step for step in self.steps if step.us > OVER * step.predicted_us]
        return max(over, key=lambda step: step.over_us, default=None)

    @lazy
    def slowest(self) -> tuple[StepTime, ...]:
        """The steps, the one that takes longest first."""
        return tuple(sorted(self.steps, key=lambda step: (-step.us, step.region)))

    @lazy
    def groups(self) -> tuple[tuple[StepTime, ...], ...]:
        """Steps of the same ops by the same kernel on as many bytes, such as those of a model's layers; those that take longest first."""
        found: dict[tuple[Any, ...], list[StepTime]] = {}
        for step in self.slowest:
            found.setdefault((step.ops, step.kernel, step.nbytes, step.flops), []).append(step)
        return tuple(sorted(map(tuple, found.values()), key=lambda group: -fsum(s.us for s in group)))

    @property
    def has_peaks(self) -> bool:
        """Whether the DeviceSpec's rates are this device's: that of the CPU is the same for all."""
        return self.spec.kind != "cpu"

    def share(self, step: StepTime) -> float:
        return step.us / self.kernels_us if self.kernels_us else 0.0

    def verbose(self) -> Profile:
        return replace(self, everything=True)

    def save(self, path: str | Path) -> Path:
        """Write the timeline as Chrome's trace events, which https://ui.perfetto.dev and chrome://tracing open."""
        from .timeline import trace_events

        place = Path(path)
        place.write_text(json.dumps(trace_events(self)) + "\n", encoding="utf-8")
        return place

    # --- as text ------------------------------------------------------------------------------------------------------

    def __str__(self) -> str:
        return printable(render(self, WIDTH))

    def __repr__(self) -> str:
        return f"<profile of the {self.explanation.plan.mode} plan {self.explanation.plan.key}: {self._headline()}>"

    def _rendering(self) -> RenderableType:
        return ByWidth(lambda width: Group(*self._parts(width)))

    def _parts(self, width: int) -> Iterator[RenderableType]:
        plan = self.explanation.plan
        yield Text(f"{plan.mode} plan {plan.key} on {plan.device}", style="bold").append(
            f" · {self._headline()}", style="none"
        )
        yield Text(f"timed by {self.clock}" + visible(f", as {self.why}" * bool(self.why)), style="dim")
        yield Text()
        yield self._table(width >= WIDE)
        if left := self._left_out():
            yield Text(f"{left} (-v)", style="dim")
        if self.everything:
            yield Text()
            yield from self._origins()
        yield Text()
        yield from map(Text, self.conclusions())

    @property
    def _shown(self) -> Sequence[tuple[StepTime, ...]]:
        return [(step,) for step in self.slowest] if self.everything else self.groups[:SHOWN]

    def _left_out(self) -> str:
        rest = [] if self.everything else [step for group in self.groups[SHOWN:] for step in group]
        return (
            f"and {counted(len(rest), 'kernel')} more of {microseconds(fsum(s.us for s in rest))} together"
            if rest
            else ""
        )

    def _headline(self) -> str:
        return f"{counted(len(self.steps), 'kernel')}, median of {counted(self.runs, 'run')}"

    def _heads(self, wide: bool = True) -> list[str]:
        """On the CPU there is no peak to be had, and starting a call is running it."""
        left_out = {"of peak", "host"} if not self.has_peaks else set()
        left_out |= {"GB/s", "TFLOP/s", "host"} if not wide else set()
        return [head for head in HEADS if head not in left_out]

    def _cells(self, group: tuple[StepTime, ...]) -> dict[str, str]:
        step, several = _together(group), f" ×{len(group)}" if len(group) > 1 else ""
        cells = (
            f"{step.region}{several}", microseconds(step.us), f"{self.share(step):.1%}", microseconds(step.predicted_us), _number(step.gbs),
            _number(step.tflops), f"{max(self._peaks(step).values()):.0%}", step.bound, microseconds(step.host_us),
            f"{step.brief if self.everything else shortened(step.brief, OPS)} · {step.kernel}",
        )  # fmt: skip
        return dict(zip(HEADS, cells, strict=True))

    @staticmethod
    def _peaks(step: StepTime) -> dict[str, float]:
        return {what: step.of_peak(what) for what in ("memory", "compute")}

    def _table(self, wide: bool) -> Table:
        made, heads = (
            Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim"),
            self._heads(wide),
        )
        for head in heads:
            made.add_column(
                head, justify="left" if head in TEXTS else "right", no_wrap=head != HEADS[-1], overflow="fold"
            )
        for group in self._shown:
            cells, style = self._cells(group), "yellow" if self.furthest in group else ""
            made.add_row(*(Text(cells[head], style=style) for head in heads))
        return made

    def _origins(self) -> Iterator[Text]:
        """Each kernel with its steps together; in the order of the schedule, where each step's ops come from."""
        of_kernel: dict[str, list[StepTime]] = {}
        for step in self.steps:
            of_kernel.setdefault(step.kernel, []).append(step)
        for kernel, steps in sorted(of_kernel.items(), key=lambda item: -fsum(s.us for s in item[1])):
            us, predicted = (fsum(getattr(s, name) for s in steps) for name in ("us", "predicted_us"))
            yield Text(
                f"{kernel}  {len(steps)} × together {microseconds(us)}, predicted {microseconds(predicted)}"
            )
        yield Text()
        for step in self.steps:
            yield (
                Text(f"region {step.region:<3} ")
                .append(step.ops, style="cyan")
                .append(f"  {step.kernel}  {microseconds(step.us)} ± {step.spread:.0%}")
            )
            for (layer, where), found in groupby(step.origins, key=lambda o: (o.layer, o.where)):
                ops = brief([o.op for o in found])
                line = Text(visible(f"  {layer}: {ops}" if layer else f"  {ops}"))
                yield line.append(visible(f"  at {where}") if where else "", style="dim")
            kernels = [span for span in self.timeline.device if span.call == step.call]
            for span in kernels if len(kernels) > 1 else ():
                yield Text(f"  {microseconds(span.us)}  {span.symbol or 'a copy'}", style="dim")

    def conclusions(self) -> list[str]:
        """What stands out, a line each."""
        copies = f" and {microseconds(self.copies_us)} of copies" if self.copies_us else ""
        lines = [
            f"kernels {microseconds(self.kernels_us)}{copies}, predicted {microseconds(self.predicted_us)}; "
            f"a replay {microseconds(self.replay_us)}, its calls one by one {microseconds(self.walk_us)}",
            f"idle for {microseconds(self.idle_us)} of a replay, {self.idle:.0%}: feeding, starting, waiting, and gaps between kernels",
        ]
        if (step := self.furthest) is not None:
            lines.append(
                f"furthest over its prediction: region {step.region}, {step.brief}, by {step.kernel}: "
                f"{microseconds(step.us)}, {factor(step.us / step.predicted_us)} times the predicted {microseconds(step.predicted_us)}"
            )
        if not self.has_peaks:
            lines.append(
                "no share of a peak: the CPU's rates are the same for every machine, for plans not to depend on it"
            )
        return lines

    def _repr_html_(self) -> str:
        heads, left = self._heads(), self._left_out()
        numbers = frozenset(at for at, head in enumerate(heads) if head not in TEXTS)
        rows = ([cells[head] for head in heads] for cells in map(self._cells, self._shown))
        said = [*([f"{left}: profile.verbose()"] if left else []), *self.conclusions()]
        parts = (
            tag("p", f"{self._headline()}, by {self.clock}"),
            table(heads, rows, numbers),
            *(tag("p", line) for line in said),
        )
        return str(joined(parts))

    # --- as data ------------------------------------------------------------------------------------------------------

    def to_json(self) -> dict[str, Any]:
        """`["regions"][n]` is the explanation's region n. `measured_us` is None where nothing ran: of views, and of what is computed once."""
        found = {step.region: step for step in self.steps}
        plan, furthest = self.explanation.plan, self.furthest
        return {
            "mode": plan.mode, "device": plan.device, "plan": plan.key, "clock": self.clock, "why": self.why, "runs": self.runs,
            "totals": {
                "kernels_us": self.kernels_us, "copies_us": self.copies_us, "predicted_us": self.predicted_us,
                "replay_us": self.replay_us, "walk_us": self.walk_us, "idle_us": self.idle_us, "idle": self.idle,
            },
            "furthest": None if furthest is None else furthest.region,
            "regions": [
                self._step_json(found[n]) if n in found else {"region": n, "ops": region.spec.signature, "measured_us": None}
                for n, region in enumerate(self.explanation.regions)
            ],
        }  # fmt: skip

    def _step_json(self, step: StepTime) -> dict[str, Any]:
        peaks = (
            {f"{what}_of_peak": share for what, share in self._peaks(step).items()} if self.has_peaks else {}
        )
        return {
            "region": step.region, "ops": step.ops, "kernel": step.kernel, "predicted_us": step.predicted_us, "measured_us": step.us,
            "spread": step.spread, "share": self.share(step), "host_us": step.host_us, "bytes": step.nbytes, "flops": step.flops,
            "unit": step.unit, "gbs": step.gbs, "tflops": step.tflops, **peaks, "bound": step.bound,
            "from": [{"op": o.op, "layer": o.layer, "where": o.where} for o in step.origins],
            "launches": [
                {"grid": [*map(int, la.grid)], "block": [*map(int, la.block)], "cluster": la.cluster, "shared": int(la.shared)} for la in step.launches
            ],
        }  # fmt: skip


def _together(group: Sequence[StepTime]) -> StepTime:
    """Equal steps as one."""
    first = group[0]
    if len(group) == 1:
        return first
    sums: dict[str, Any] = {
        name: sum(getattr(s, name) for s in group)
        for name in ("us", "predicted_us", "host_us", "nbytes", "flops")
    }
    return replace(
        first,
        **sums,
        region=min(s.region for s in group),
        at_least={n: us * len(group) for n, us in first.at_least.items()},
    )


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 99.5 else f"{value:.3g}" if value >= 5e-4 else "0"
