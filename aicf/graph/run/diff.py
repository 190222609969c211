"""Two explanations, compared: where regions are cut otherwise, and where another kernel was chosen, with the values that decided."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from ...errors import AicfError
from ...pages import objects
from ...pages.data import Json, us_of
from ...pages.notebook import InNotebook
from ...registry.trace import labelled, microseconds, render


@dataclass(frozen=True)
class Difference:
    """Ops anchor..last, which neither side cuts inside, with the regions that each side makes of them."""

    anchor: int
    last: int
    left: tuple[Json, ...]
    right: tuple[Json, ...]

    @property
    def recut(self) -> bool:
        return [_place(r) for r in self.left] != [_place(r) for r in self.right]

    @property
    def same(self) -> bool:
        return not self.recut and all(a["chosen"] == b["chosen"] for a, b in zip(self.left, self.right))


@dataclass(frozen=True, repr=False)
class Diff(InNotebook):
    """What `aicf explain --diff` shows; `left` and `right` are `Explanation.to_json()` of one model."""

    left: Json
    right: Json

    def __post_init__(self) -> None:
        ops = [_ops(side) for side in (self.left, self.right)]
        if ops[0] != ops[1]:
            raise AicfError(
                "these explanations are not of the same ops",
                expected=f"{len(ops[0])} ops: {_first_words(ops[0])}", got=f"{len(ops[1])} ops: {_first_words(ops[1])}",
                hint="compare one model in one mode: on two devices, or before and after a change",
            )  # fmt: skip

    @property
    def parts(self) -> list[Difference]:
        """The schedule in the smallest stretches at whose ends both sides cut."""
        found: list[Difference] = []
        left, right = list(self.left["regions"]), list(self.right["regions"])
        i = j = 0
        while i < len(left):
            a, b = i, j
            i, j = i + 1, j + 1
            while left[i - 1]["last"] != right[j - 1]["last"]:
                if left[i - 1]["last"] < right[j - 1]["last"]:
                    i += 1
                else:
                    j += 1
            found.append(
                Difference(left[a]["anchor"], left[i - 1]["last"], tuple(left[a:i]), tuple(right[b:j]))
            )
        return found

    def to_json(self) -> dict[str, Any]:
        return {
            "left": self.left["device"],
            "right": self.right["device"],
            "predicted_us": [_total(self.left), _total(self.right)],
            "differences": [
                {
                    "anchor": d.anchor,
                    "last": d.last,
                    "left": [_brief(r) for r in d.left],
                    "right": [_brief(r) for r in d.right],
                }
                for d in self.parts
                if not d.same
            ],
        }

    def __rich__(self) -> RenderableType:
        parts = self.parts
        differ = [d for d in parts if not d.same]
        names = (self.left["device"], self.right["device"])
        if names[0] == names[1] and self.left.get("numerics") != self.right.get("numerics"):
            names = tuple(f"{side['device']}, {side.get('numerics')}" for side in (self.left, self.right))  # type: ignore[assignment]
        if names[0] == names[1]:
            names = (f"{names[0]} (this)", f"{names[1]} (other)")
        title = Text(f"{names[0]} against {names[1]}", style="bold")
        title.append(f" · {len(differ)} of {len(parts)} stretches differ", style="none")
        total = [_total(side) for side in (self.left, self.right)]
        title.append(f" · predicted {microseconds(total[0])} against {microseconds(total[1])}", style="none")
        return Group(title, *(part for d in differ for part in self._part(d, names)))

    def _part(self, d: Difference, names: tuple[str, str]) -> list[RenderableType]:
        ops = f"op {d.anchor}" if d.anchor == d.last else f"ops {d.anchor}..{d.last}"
        head = Text(f"\n{ops}  ").append(" + ".join(_ops({"regions": d.left})), style="bold cyan")
        lines = []
        for name, regions in zip(names, (d.left, d.right)):
            for n, r in enumerate(regions):
                text = f"{r['region']}: {r['chosen']}  {microseconds(_us(r))}\n= {_terms(r)}"
                if d.recut and r["last"] != d.last:
                    text += f"\nends before the next op: {r['ended']['detail'] or r['ended']['trigger']}"
                if not d.recut:
                    text += _why_not(r, (d.right if regions is d.left else d.left)[n]["chosen"])
                lines.append((name if n == 0 else "", "", text))
        return [head, labelled(lines)]

    def __str__(self) -> str:
        return render(self.__rich__())

    def _repr_html_(self) -> str:
        return objects.difference(self.to_json())


def _why_not(region: Json, other: str) -> str:
    """What the kernel that the other side chose has against it here."""
    for candidate in region["candidates"]:
        if candidate["id"] == other != region["chosen"]:
            return f"\n{other} would take {microseconds(candidate['us'])}"
    for rejected in region["rejected"]:
        if rejected["id"] == other:
            return f"\n{other}: {rejected['reason']}"
    return ""


def _place(region: Json) -> tuple[int, int]:
    return region["anchor"], region["last"]


def _ops(side: Json) -> list[str]:
    return [step["op"] for region in side["regions"] for step in region["steps"]]


def _first_words(ops: list[str]) -> str:
    return ", ".join(ops[:6]) + (", …" if len(ops) > 6 else "")


def _us(region: Json) -> float:
    return float(region["candidates"][0]["us"])


def _total(side: Json) -> float:
    return math.fsum(us_of(r) for r in side["regions"])


def _terms(region: Json) -> str:
    terms = region["candidates"][0]["terms"]
    return " + ".join(f"{name} {us:.3g}" for name, us in terms.items() if us)


def _brief(region: Json) -> dict[str, Any]:
    keep = ("anchor", "last", "region", "chosen", "ended")
    return {**{name: region[name] for name in keep}, "us": _us(region)}
