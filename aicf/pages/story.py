"""An explanation in a notebook: bars of predicted time, the graph with its regions, candidates behind folds, the arena over time."""

from __future__ import annotations

import math
from collections.abc import Sequence

from ..registry.measured import counted
from ..registry.trace import microseconds
from ..text import shortened
from . import charts, graph
from .data import Json, family_of, is_once, not_measured_in, ops_of, us_of
from .graph import COLOURS
from .markup import Html, joined, tag
from .notebook import DIM, bars, drawing, folded, headline, output, ruled
from .regions import Told, candidates, grew, recognised, rejected

KINDS = 24  # of regions that have a row, and details: a notebook stays small enough to read and to save
OPEN = 20  # regions of a graph that is unfolded at once
DRAWN = 40  # regions of the graph
PLACES = 800  # in the drawing of the arena: values, and workspaces
ROWS, IDS = 10, 4  # of a table of candidates or reasons; kernels of a reason


class Alike:
    """Regions of the same ops, kernel and reason to end, told once."""

    def __init__(self, data: Json, numbers: Sequence[int], measured: Sequence[float | None]) -> None:
        self.numbers = list(numbers)
        self.region = data["regions"][numbers[0]]
        self.us = math.fsum(us_of(data["regions"][n]) for n in numbers)
        times = [measured[n] for n in numbers if n < len(measured)]
        self.measured = math.fsum(t for t in times if t is not None) if any(times) else None

    @property
    def which(self) -> str:
        """`3`, `3, 9, 15` or `3, 9, … ×12`."""
        if len(self.numbers) <= 3:
            return ", ".join(map(str, self.numbers))
        return f"{self.numbers[0]}, {self.numbers[1]}, … ×{len(self.numbers)}"

    @property
    def told(self) -> str:
        if self.region["view"]:
            return "a view: nothing runs"
        return "once" if is_once(self.region) else microseconds(self.us)


def explanation(data: Json, measured: Sequence[float | None] = ()) -> Html:
    """Of `Explanation.to_json()`.

    measured   microseconds of each region, None where nothing was measured; drawn beside the predicted ones
    """
    kinds = _kinds(data, measured)
    shown = _longest(kinds)
    fusion, memory, regions = data["fusion"], data["memory"], data["regions"]
    ops = sum(step.get("count", 1) for region in regions for step in region["steps"])
    before = fusion["us_before"]
    head = headline(
        f"{data['mode']} plan on {data['device']}",
        f"{counted(ops, 'op')} in {counted(len(regions), 'region')}",
        f"predicted {microseconds(fusion['us'])}" + ("" if before is None else f", {microseconds(before)} with a kernel for each op"),
        measured and f"measured {microseconds(math.fsum(us or 0.0 for us in measured))}",
        f"arena {memory['arena']:,} B", f"peak {memory['peak']:,} B", not_measured_in(data),
    )  # fmt: skip
    parts = [head]
    if notes := recognised(data):
        parts.append(folded(counted(len(notes), "thing") + " recognised", ruled((("what", "as", "from"), notes, frozenset()))))  # fmt: skip
    parts += [_bars(kinds, shown, bool(measured)), _graph(data, measured), _details(data, kinds, shown)]
    parts.append(folded("Arena over time", drawing(charts.arena(data, PLACES)), opened=len(regions) <= OPEN))
    return output(*parts)


def _kinds(data: Json, measured: Sequence[float | None]) -> list[Alike]:
    found: dict[tuple, list[int]] = {}
    for n, region in enumerate(data["regions"]):
        key = region["region"], region["chosen"], region["view"], is_once(region), region["ended"]["trigger"]
        found.setdefault(key, []).append(n)
    return [Alike(data, numbers, measured) for numbers in found.values()]


def _longest(kinds: list[Alike]) -> list[Alike]:
    """Those that take longest, in the order of the run."""
    if len(kinds) <= KINDS:
        return kinds
    kept = set(sorted(range(len(kinds)), key=lambda i: -max(kinds[i].us, kinds[i].measured or 0.0))[:KINDS])
    return [kind for i, kind in enumerate(kinds) if i in kept]


def _bars(kinds: list[Alike], shown: list[Alike], measured: bool) -> Html:
    most = max((max(kind.us, kind.measured or 0.0) for kind in shown), default=0.0)
    rows = []
    for kind in shown:
        colour = COLOURS[family_of(kind.region)]
        took = ("" if kind.measured is None else microseconds(kind.measured),) if measured else ()
        kernel = "" if kind.region["view"] else tag("code", kind.region["chosen"])
        drawn = bars(most, (kind.us, colour, 0.65), (kind.measured, colour, 1.0))
        which = tag("span", kind.which, style="white-space:nowrap")
        rows.append((which, shortened(ops_of(kind.region), 60), kernel, kind.told, *took, drawn))
    if left := len(kinds) - len(shown):
        rest = math.fsum(kind.us for kind in kinds) - math.fsum(kind.us for kind in shown)
        what = f"and {left} kinds of regions more"
        rows.append(("", what, "", microseconds(max(rest, 0.0)), *(("",) if measured else ()), ""))
    words = (
        "region",
        "ops",
        "kernel",
        "predicted",
        *(("measured",) if measured else ()),
        "pale: predicted" if measured else "",
    )
    return ruled((words, rows, frozenset({3, 4} if measured else {3})))


def _graph(data: Json, measured: Sequence[float | None]) -> Html:
    regions = data["regions"]
    drawn = [svg for _, svg in graph.drawings(data, chunk=DRAWN, most=DRAWN, measured=measured)]
    more = len(regions) - DRAWN
    note = [tag("p", f"{more:,} regions more are not drawn here: report() draws all of them.", style=DIM)] if more > 0 else []  # fmt: skip
    return folded("Graph", _legend(), drawing(joined(drawn)), *note, opened=len(regions) <= OPEN)


def _legend() -> Html:
    square = "display:inline-block;width:.8em;height:.8em;opacity:.7;background-color:"
    keys = [joined([tag("span", style=square + COLOURS[name]), f" {what} "]) for name, what in graph.WORDS.items()]  # fmt: skip
    return tag("p", *keys, style=DIM)


def _details(data: Json, kinds: list[Alike], shown: list[Alike]) -> Html:
    told = Told(data, linked=False)
    parts = []
    for kind in shown:
        n, region = kind.numbers[0], kind.region
        inside = [ruled(((), told.facts(n), frozenset()))]
        if len(region["steps"]) > 1:
            inside.append(
                folded(f"{counted(len(region['steps']), 'step')}: how it grew", ruled(grew(region)))
            )
        if not region["view"]:
            inside.append(
                folded(counted(len(region["candidates"]), "candidate"), ruled(candidates(region, ROWS)))
            )
            if region["rejected"]:
                why = f"{len(region['rejected'])} rejected, with reasons"
                inside.append(folded(why, ruled(rejected(region, ROWS, IDS))))
        title = joined([f"{kind.which} ", tag("b", shortened(ops_of(region), 60)), f" · {kind.told}"])
        parts.append(folded(title, tag("div", *inside, style="margin-left:1.2em")))
    left = len(kinds) - len(shown)
    note = [tag("p", f"Not here: {left} kinds of regions that take less. report() has all of them.", style=DIM)] if left else []  # fmt: skip
    return folded("Why: what was chosen, the candidates, the reasons", *parts, *note)
