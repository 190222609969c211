"""Is the kernel that selection takes the best there is, for regions of published models, drawn anew? The time of each against the best.

Cases are regions of steps that are drawn by a seed, of which `--draw` prints and repeats one: those with a choice among kernels, whatever the
kernels are. A third of them leaves Hopper's kernels out: how the others stand to each other is what Ampere and Ada will see. `summary` has the mean
of all and of each family, and counts how often a kernel was *best*, with no other within 1 %. Each case has its region, the times and the predictions, so
that costs can be fitted to one half of the cases and judged by the other: see `aicf/calibrate/fit.py`.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import aicf
from aicf.calibrate.families import family
from aicf.calibrate.published import Drawn, regions
from aicf.device.spec import DeviceSpec, preset
from aicf.errors import AicfError
from aicf.registry.registry import KernelRegistry
from aicf.registry.select import Selection, select
from aicf.rows import RegionSpec

from ..harness import Bench, Case, Suite
from ..kernel_runs import KernelRuns
from ..results import Row, row
from ..stats import Stats
from .selection import is_absurd, regret

NUMBER = 400
MOST_US = 3000.0  # of the chosen kernel, as predicted
ABOVE = 1.01  # how many times the best's time another has to take for the best to be so alone


@dataclass(frozen=True)
class Question:
    """The draw's `number`-th region, and whether Hopper's kernels are among its candidates."""

    number: int
    drawn: Drawn
    hopper: bool

    @property
    def name(self) -> str:
        return f"{self.number}, {self.drawn}{'' if self.hopper else ', without Hopper kernels'}"

    def selection(self, spec: DeviceSpec) -> Selection:
        return _selected(self.drawn.region, self.hopper, spec)


@cache
def _registry(hopper: bool) -> KernelRegistry:
    registry = aicf.default_registry()
    return (
        registry
        if hopper
        else KernelRegistry(v for v in registry if not any("sm_90" in need for need in v.needs))
    )


@cache  # called once while cases are drawn, once to compile all kernels, once to measure
def _selected(region: RegionSpec, hopper: bool, spec: DeviceSpec) -> Selection:
    return select(region, spec, _registry(hopper))


def _has_choice(spec: DeviceSpec, region: RegionSpec) -> bool:
    """Whether several kernels are worth a run, with and without Hopper's."""
    try:
        selections = [_selected(region, hopper, spec) for hopper in (True, False)]
    except AicfError:
        return False
    return all(s.chosen.us <= MOST_US and len(candidates(s)) > 1 for s in selections)


def candidates(selection: Selection) -> list[str]:
    return [c.variant.id for c in selection.ranked if not is_absurd(selection, c.us)]


def questions(draw: str, number: int, spec: DeviceSpec) -> list[Question]:
    """Of plans for a device; the first of them are the same whatever the number."""
    samples = regions(draw, number, spec.name, wanted=partial(_has_choice, spec))
    return [Question(n, d, n % 3 != 2) for n, d in enumerate(samples)]


def cases(bench: Bench) -> list[Case]:
    """A case for each region: the first of a budget are a fair sample. The same for every GPU, so that they can be compared. No more than
    there are seconds, since drawing one takes a tenth of a second."""
    spec = preset("h200" if bench.on_gpu else "cpu")
    number = 6 if bench.tiny else min(NUMBER, math.ceil(bench.budget))
    return [
        Case(q.name, partial(_measure, q), seconds=2.0, kernels=partial(_kernels, q))
        for q in questions(bench.draw, number, spec)
    ]


def _kernels(question: Question, spec: DeviceSpec) -> list[tuple[str, Any]]:
    selection = question.selection(spec)
    return [(id, selection.region) for id in candidates(selection)]


def _measure(question: Question, bench: Bench) -> Iterator[Row]:
    runs = KernelRuns(bench)
    selection = question.selection(runs.spec)
    outcome = regret(question.name, selection, runs)
    note = f"{outcome['chosen']} taken, {outcome['best']} best"
    total = row(
        question.name,
        "%",
        Stats(100 * outcome["regret"]),
        note=note,
        kernels={outcome["chosen"], outcome["best"]},
    )
    predicted = {c.variant.id: round(c.us, 3) for c in selection.ranked if c.variant.id in outcome["times"]}
    del outcome["us"]  # the times again, as text
    yield {**total, "instances": [{**outcome, "predicted": predicted, "region": selection.region.to_json()}]}


# --- summary ----------------------------------------------------------------------------------------------------------


def alone(times: dict[str, float]) -> str | None:
    """The kernel that no other equals within 1 %, if there is one."""
    ordered = sorted(times, key=times.__getitem__)
    return ordered[0] if len(ordered) == 1 or times[ordered[1]] >= ABOVE * times[ordered[0]] else None


def error(instance: dict[str, Any]) -> list[float]:
    """Of each kernel that takes less than twice the best's time: how many times the measured time its prediction is."""
    times, predicted = instance["times"], instance.get("predicted", {})
    best = min(times.values())
    return [us / times[id] for id, us in predicted.items() if times[id] < 2 * best]


def summary(rows: Sequence[Row]) -> list[Row]:
    """The mean of all and of each family, how far predictions are off, and how often each kernel was best."""
    judged = [i for r in rows for i in r.get("instances", ())]
    if not judged:
        return []
    families = defaultdict[str, list[Any]](list)
    for i in judged:
        families[family(op["kind"] for op in i["region"]["ops"]) if "region" in i else "products"].append(i)
    best = Counter(name for i in judged if (name := alone(i["times"])) is not None)
    said = ", ".join(f"{name} {n}" for name, n in best.most_common())
    all_ = (
        "regions of published models: regret" if any("region" in i for i in judged) else "all products"
    )  # of results from before
    totals = [_total(all_, judged, f"best: {said}")]
    return totals + [_total(name, some) for name, some in sorted(families.items())]


def _total(name: str, judged: Sequence[dict[str, Any]], note: str = "") -> Row:
    """Mean regret of instances, in percent."""
    over = sum(i["regret"] > 0.1 for i in judged)
    off = [abs(math.log(e)) for i in judged for e in error(i)]
    predicted = f"; predictions are off by {math.expm1(sum(off) / len(off)):.0%}" if off else ""
    text = f"{len(judged)} regions, {over} over 10 %{predicted}" + (f"; {note}" if note else "")
    return row(
        name,
        "%",
        Stats(100 * sum(i["regret"] for i in judged) / len(judged), 0.0, len(judged)),
        note=text,
        kernels=(),
    )


SUITE = Suite(
    "regret", "each chosen kernel against the best one, for regions of published models, drawn anew", 500, cases,
    summary=summary, compared=lambda row: False, headlines=(("regions of published models: regret", None), ("all products", None)),
)  # fmt: skip
