"""Two explanations, compared: where regions are cut otherwise, where another kernel was chosen, and where the same one takes another
time, with the values that decided."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from itertools import accumulate
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from ...errors import AicfError
from ...lazy import lazy
from ...pages import objects
from ...pages.data import Json, us_of
from ...pages.notebook import InNotebook
from ...printing import Printed, labelled
from ...registry.cost import sum_of_terms
from ...registry.trace import factor, microseconds
from ...text import visible

ALIKE = 0.6  # of the ops, that two explanations of one model have in common at least
MOVED = 5  # regions of the same kernel that are told, those whose times differ most
NOTED = 0.01  # of a region's time: what is less is no difference
SHOWN = 64  # stretches that are told


@dataclass(frozen=True)
class Difference:
    """Ops anchor..last of the left side, which neither side cuts inside, with the regions that each side makes of them."""

    anchor: int
    last: int
    left: tuple[Json, ...]
    right: tuple[Json, ...]

    @property
    def which(self) -> str:
        return f"op {self.anchor}" if self.anchor == self.last else f"ops {self.anchor}..{self.last}"

    @property
    def recut(self) -> bool:
        return [_ops((r,)) for r in self.left] != [_ops((r,)) for r in self.right]

    @property
    def same(self) -> bool:
        return not self.recut and all(a["chosen"] == b["chosen"] for a, b in zip(self.left, self.right))

    @property
    def us(self) -> tuple[float, float]:
        return _total(self.left), _total(self.right)

    @property
    def moved(self) -> bool:
        """The same kernels, and another time."""
        left, right = self.us
        return self.same and abs(left - right) > NOTED * max(left, right)


@dataclass(frozen=True, repr=False)
class Diff(InNotebook, Printed):
    """What `aicf explain --diff` and `--without` show; `left` and `right` are `Explanation.to_json()` of one model: on two devices, before
    and after a change, of two versions of aicf.

    names  of the two sides, if not their devices
    """

    left: Json
    right: Json
    names: tuple[str, str] | None = None

    def __post_init__(self) -> None:
        ops = [_ops(side["regions"]) for side in (self.left, self.right)]
        if 2 * self._common <= ALIKE * (len(ops[0]) + len(ops[1])) and ops[0] != ops[1]:
            raise AicfError(
                "these explanations are not of the same ops",
                expected=f"{len(ops[0])} ops: {_first_words(ops[0])}", got=f"{len(ops[1])} ops: {_first_words(ops[1])}",
                hint="compare one model in one mode: on two devices, or before and after a change",
            )  # fmt: skip

    @lazy
    def _blocks(self) -> list[tuple[int, int, int]]:
        """(place on the left, place on the right, how many) ops that are the same, in order."""
        left, right = _ops(self.left["regions"]), _ops(self.right["regions"])
        if left == right:
            return [(0, 0, len(left))]
        matcher = SequenceMatcher(None, left, right, autojunk=max(len(left), len(right)) > 2000)
        return [tuple(block) for block in matcher.get_matching_blocks() if block.size]  # type: ignore[misc]

    @property
    def _common(self) -> int:
        return sum(size for *_, size in self._blocks)

    @lazy
    def parts(self) -> list[Difference]:
        """The schedule in the smallest stretches at whose ends both sides cut, and have the same ops."""
        ends = [
            list(accumulate(len(_ops((r,))) for r in side["regions"])) for side in (self.left, self.right)
        ]
        found: list[Difference] = []
        i = j = start = 0
        for a, b in self._cuts(*ends):
            left, right = bisect_right(ends[0], a), bisect_right(ends[1], b)
            if (left, right) != (i, j):
                regions = tuple(self.left["regions"][i:left]), tuple(self.right["regions"][j:right])
                found.append(Difference(start, max(a - 1, start), *regions))
            i, j, start = left, right, a
        return found

    def _cuts(self, left: Sequence[int], right: Sequence[int]) -> Iterator[tuple[int, int]]:
        """Places at which both sides cut, in order; the end is one."""
        cuts = set(left), set(right)
        for a, b, size in self._blocks:
            for n in range(size + 1):
                if a + n in cuts[0] and b + n in cuts[1]:
                    yield a + n, b + n
        yield (left[-1] if left else 0), (right[-1] if right else 0)

    def __repr__(self) -> str:
        return f"<{self.left['device']} against {self.right['device']}; print it>"

    def to_json(self) -> dict[str, Any]:
        return {
            "left": self._named()[0],
            "right": self._named()[1],
            "predicted_us": [_total(side["regions"]) for side in (self.left, self.right)],
            "differences": [
                {
                    "anchor": d.anchor,
                    "last": d.last,
                    "left": [_brief(r) for r in d.left],
                    "right": [_brief(r) for r in d.right],
                    "us": list(d.us),
                }
                for d in self.parts
                if not d.same
            ],
            "moved": [
                {"anchor": d.anchor, "last": d.last, "us": list(d.us), "terms": _terms_moved(d)}
                for d in self.parts
                if d.moved
            ],
        }

    def _named(self) -> tuple[str, str]:
        if self.names is not None:
            return self.names
        names = (self.left["device"], self.right["device"])
        if names[0] == names[1] and self.left.get("numerics") != self.right.get("numerics"):
            names = tuple(f"{side['device']}, {side.get('numerics')}" for side in (self.left, self.right))  # type: ignore[assignment]
        if names[0] == names[1]:
            names = (f"{names[0]} (this)", f"{names[1]} (other)")
        return names

    def _rendering(self) -> RenderableType:
        parts, names = self.parts, self._named()
        differ = [d for d in parts if not d.same]
        title = Text(visible(f"{names[0]} against {names[1]}"), style="bold")
        title.append(f" · {len(differ)} of {len(parts)} stretches differ", style="none")
        total = [_total(side["regions"]) for side in (self.left, self.right)]
        title.append(f" · predicted {microseconds(total[0])} against {microseconds(total[1])}", style="none")
        title.append(_ratio(*total), style="none")
        lines: list[RenderableType] = [part for d in differ[:SHOWN] for part in self._part(d, names)]
        if len(differ) > SHOWN:
            lines.append(
                Text(f"\nand {len(differ) - SHOWN} more: to_json() and --json have all", style="dim")
            )
        return Group(title, *lines, *self._moved())

    def _part(self, d: Difference, names: tuple[str, str]) -> list[RenderableType]:
        head = Text(f"\n{d.which}  ").append(visible(" + ".join(_ops(d.left or d.right))), style="bold cyan")
        head.append(f"   {microseconds(d.us[0])} against {microseconds(d.us[1])}", style="none")
        lines = []
        for name, regions in zip(names, (d.left, d.right)):
            for n, r in enumerate(regions):
                text = f"{r['region']}: {r['chosen']}  {microseconds(_us(r))}\n= {_terms(r)}"
                if d.recut and r is not regions[-1]:
                    text += (
                        f"\nends before the next op: {r['ended'].get('detail') or r['ended'].get('trigger')}"
                    )
                if not d.recut:
                    text += _why_not(r, (d.right if regions is d.left else d.left)[n]["chosen"])
                lines.append((name if n == 0 else "", "", text))
            if not regions:
                lines.append((name, "", "no such ops"))
        return [head, labelled(lines)]

    def _moved(self) -> list[RenderableType]:
        """Regions of the same kernel and another time, those that matter most."""
        moved = sorted((d for d in self.parts if d.moved), key=lambda d: -abs(d.us[0] - d.us[1]))
        if not moved:
            return []
        lines = []
        for d in moved[:MOVED]:
            terms = ", ".join(f"{name} {us:+.3g}" for name, us in _terms_moved(d).items())
            told = " · ".join(dict.fromkeys(r["chosen"] for r in d.left))
            lines.append(
                (d.which, "", f"{told}  {microseconds(d.us[0])} against {microseconds(d.us[1])}: {terms}")
            )
        more = len(moved) - len(lines)
        head = Text("\nthe same kernel, another time", style="bold")
        return [head.append(f" · {more} more" if more else "", style="none"), labelled(lines)]

    def _repr_html_(self) -> str:
        return objects.difference(self.to_json())


def _ratio(left: float, right: float) -> str:
    if not left or not right or abs(left - right) <= NOTED * max(left, right):
        return ""
    return (
        f", {factor(right / left)} times as long"
        if right > left
        else f", {factor(left / right)} times as fast"
    )


def _terms_moved(d: Difference) -> dict[str, float]:
    """By how many microseconds the terms of the prediction differ, those that matter."""
    left, right = d.us
    found: dict[str, float] = {}
    for sign, regions in ((-1.0, d.left), (1.0, d.right)):
        for r in regions:
            for name, us in r["candidates"][0]["terms"].items():
                found[name] = found.get(name, 0.0) + sign * us
    return {name: us for name, us in found.items() if abs(us) > 0.05 * abs(left - right)}


def _why_not(region: Json, other: str) -> str:
    """What the kernel that the other side chose has against it here."""
    if region["chosen"] == other:
        return ""
    for candidate in region["candidates"]:
        if candidate["id"] == other:
            return f"\n{other} would take {microseconds(candidate['us'])}"
    for rejected in region.get("rejected", ()):
        if rejected["id"] == other:
            return f"\n{other}: {rejected['reason']}"
    here = (
        other.partition(".")[0] == region["chosen"].partition(".")[0]
    )  # kernels of other kinds of devices are not listed
    return f"\n{other}: there is no such kernel on this side" if here else ""


def _ops(regions: Sequence[Json]) -> list[str]:
    """Each op by its name, those side by side one by one."""
    found = []
    for region in regions:
        for step in region["steps"]:
            count = step.get("count", 1)
            found += [step["op"].removesuffix(f" ×{count}")] * count if count > 1 else [step["op"]]
    return found


def _first_words(ops: list[str]) -> str:
    return ", ".join(ops[:6]) + (", …" if len(ops) > 6 else "")


def _us(region: Json) -> float:
    return float(region["candidates"][0]["us"])


def _total(regions: Sequence[Json]) -> float:
    return math.fsum(us_of(r) for r in regions)


def _terms(region: Json) -> str:
    best = region["candidates"][0]
    return sum_of_terms(best["terms"], best["us"])


def _brief(region: Json) -> dict[str, Any]:
    keep = ("anchor", "last", "region", "chosen", "ended")
    return {**{name: region[name] for name in keep}, "us": _us(region)}
