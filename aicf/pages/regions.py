"""What is told of a region: what it reads and makes, why it ended, which kernels could run it and why others could not."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

from ..registry.cost import sum_of_terms
from ..registry.measured import counted
from ..registry.trace import microseconds
from .data import Json, ops_of, told_time, used_by
from .markup import Html, Rows, joined, table, tag

SHOWN = 16  # values of a region


def title(n: int, region: Json, measured: float | None = None) -> Html:
    """A line: the number, the ops, the kernel, its time, and the measured one."""
    parts = [tag("b", n), " ", tag("span", ops_of(region), class_="ops")]
    if region["view"]:
        return joined([*parts, " ", tag("span", "a view: nothing runs", class_="dim")])
    time = told_time(region) + ("" if measured is None else f", measured {microseconds(measured)}")
    return joined([*parts, " ", tag("code", region["chosen"]), " ", tag("span", time, class_="us")])


class Told:
    """An explanation's regions, to be told one by one."""

    def __init__(self, data: Json, linked: bool = True) -> None:
        self.regions = data["regions"]
        self.linked = linked  # to the places of regions on a page
        self.values = {value["vid"]: value for value in data["values"]}
        self.makers, self.readers = used_by(data)

    def names(self, n: int) -> str:
        """Of the values that a region reads and makes."""
        region = self.regions[n]
        return " ".join(self.values[v]["name"] for v in (*region["reads"][:16], *region["writes"][:16]))

    def body(self, n: int, folded: Callable[[str, Html], Html]) -> Html:
        """Everything of a region. `folded(summary, table)` puts a long table behind its summary."""
        region = self.regions[n]
        rows = self.facts(n)
        listed = tag("dl", *(part for name, what in rows for part in (tag("dt", name), tag("dd", what))))
        more = [folded(f"{counted(len(region['steps']), 'step')}: how it grew", table(*grew(region)))]
        if not region["view"]:
            more.append(folded(counted(len(region["candidates"]), "candidate"), table(*candidates(region))))
            if region["rejected"]:
                more.append(
                    folded(f"{len(region['rejected'])} rejected, with reasons", table(*rejected(region)))
                )
        return joined([listed, *more])

    def facts(self, n: int) -> list[tuple[str, Any]]:
        """What it reads and makes, the chosen kernel and the next, and why it ended."""
        region = self.regions[n]
        made = {vid: [self.makers[vid]] for vid in region["reads"] if vid in self.makers}
        return [
            ("reads", self._values(region["reads"], made, n)),
            ("makes", self._values(region["writes"], self.readers, n)),
            *_choice(region),
        ]

    def _values(self, vids: list[int], others: Mapping[int, list[int]], n: int) -> Html:
        """`%12 hidden: tensor<64x256xf32> region 3`."""
        parts = []
        for vid in vids[:SHOWN]:
            value = self.values[vid]
            near = [i for i in others.get(vid, [])[:8] if i != n]
            links = joined([tag("a", i, href=f"#r{i}") if self.linked else i for i in near], ", ")
            name = tag("code", f"%{vid} {value['name']}: {value['type']}")
            parts.append(joined([name, " region " if links else "", links]))
        if len(vids) > SHOWN:
            parts.append(Html(f"and {len(vids) - SHOWN} more"))
        return joined(parts, "; ")


def _choice(region: Json) -> list[tuple[str, Any]]:
    rows: list[tuple[str, Any]] = []
    if not region["view"]:
        best = region["candidates"][0]
        rows.append(
            ("chosen", joined([tag("code", best["id"]), f" {microseconds(best['us'])} = {_terms(best)}"]))
        )
        if len(region["candidates"]) > 1:
            other = region["candidates"][1]
            lost = region["next"] or f"+{other['us'] - best['us']:.3g} us"
            rows.append(("next", joined([tag("code", other["id"]), f" {microseconds(other['us'])}: {lost}"])))
        moved = f"{region['bytes']:,} B, {region['flops']:,} flops"
        if region["workspace"]:
            moved += f"; {region['workspace'][1]:,} B of workspace"
        rows.append(("moves", moved))
    return [*rows, ("ended", region["ended"]["sentence"])]


def _terms(candidate: Json) -> str:
    return sum_of_terms(candidate["terms"], candidate["us"])


def grew(region: Json) -> Rows:
    rows = [
        (
            step["op"],
            step["candidates"],
            "; ".join(f"{row} {what}" for row, what in step.get("changed", {}).items()),
            step.get("near", ""),
        )
        for step in region["steps"]
    ]
    return ("op", "candidates left", "rows it changed", "kept though"), rows, frozenset({1})


def candidates(region: Json, most: int | None = None) -> Rows:
    """The first is the chosen one."""
    best = region["candidates"][0]["us"]
    rows: list[tuple[Any, ...]] = [
        (
            tag("code", c["id"]),
            microseconds(c["us"]),
            f"+{c['us'] - best:.3g} us" if i else "",
            f"{c['score']:,.0f}",
            _terms(c),
        )
        for i, c in enumerate(region["candidates"][:most])
    ]
    if (more := len(region["candidates"]) - len(rows)) > 0:
        rows.append((f"and {more} more", "", "", "", ""))
    return ("kernel", "time", "over the chosen", "score", "terms, in us"), rows, frozenset({1, 2, 3})


def rejected(region: Json, most: int | None = None, ids: int | None = None) -> Rows:
    """Kernels with one reason stand in one row; the reasons of few come first.

    most   rows at the most
    ids    named in a row at the most
    """
    found: dict[tuple[str, str], list[str]] = {}
    for r in region["rejected"]:
        found.setdefault((r["condition"], r["reason"]), []).append(r["id"])
    reasons = sorted(found.items(), key=lambda item: len(item[1]))
    rows: list[tuple[Any, ...]] = []
    for (condition, reason), all_ids in reasons[:most]:
        named = [tag("code", id) for id in all_ids[:ids]]
        more = [f"and {len(all_ids) - len(named)} more"] if len(all_ids) > len(named) else []
        rows.append((condition, reason, joined([*named, *more], " ")))
    if (left := len(reasons) - len(rows)) > 0:
        rows.append((f"and {counted(left, 'reason')} more", "", ""))
    return ("condition", "reason", "kernels"), rows, frozenset()


def recognised(data: Json) -> list[tuple[str, str, str]]:
    """What was found spelt out, and what came close; nothing of a graph that has none."""
    notes = data.get("recognised") or []
    found = Counter((note["what"], note["told"], note["ops"]) for note in notes)
    return [
        (
            f"{what} ×{count}" if ops else f"close to {what} ×{count}",
            told,
            f"{counted(ops, 'op')} each" if ops > 1 else "",
        )
        for (what, told, ops), count in found.items()
    ]
