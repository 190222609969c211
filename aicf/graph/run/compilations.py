"""Compilations: what a program, or a function of another framework, was compiled for, in order; and why it was compiled again."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, overload

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from ... import channels
from ...code_cache import ledger
from ...code_cache.ledger import MadeCode
from ...pages.markup import joined, tag
from ...pages.notebook import InNotebook, headline, output, ruled
from ...printing import Printed
from ...registry.measured import counted
from ...registry.trace import microseconds
from ...whole import shared_lock

KEPT = 1000  # compilations that are remembered; all are counted
MANY = 6  # values of one thing that call for advice
SHOWN = 3  # differences that are told, kernels that are named
FIRST = "the first"
HEADS = "", "what", "for", "took", "why"
GRAPH = "graph"  # a fact that says of what: only those of the same are compared

_LOCK = shared_lock(inner=True)  # of all lists: held for moments, by who may hold a model's lock

Facts = Mapping[str, Any]  # what it was compiled for, by name: sizes, types, places, the phase


@dataclass
class Compilation:
    """One of them.

    what      "plan": kernels were chosen; "bound": they were made ready for feeds of one kind, and on CUDA captured; "function": a function
              of another framework was traced
    facts     what for
    why       why none of those before would do
    seconds   how long it took; of a plan without its kernels, which are made ready when it is bound
    kernels   what was compiled, or found on disk
    """

    number: int
    what: str
    facts: dict[str, Any]
    why: str
    seconds: float = 0.0
    kernels: list[MadeCode] = field(default_factory=list)

    @property
    def compiled(self) -> int:
        return sum(made.how == "compiled" for made in self.kernels)

    @property
    def from_disk(self) -> int:
        return sum(made.how == "disk" for made in self.kernels)

    def told(self) -> str:
        """`batch 32, x f32[32x64] on cpu`."""
        return ", ".join(f"{name} {value}" for name, value in self.facts.items())

    def took(self) -> str:
        """`0.4 s: 3 compiled, 2 from disk`."""
        parts = [f"{self.compiled} compiled"] * bool(self.compiled) + [f"{self.from_disk} from disk"] * bool(
            self.from_disk
        )
        return microseconds(self.seconds * 1e6) + (f": {', '.join(parts)}" if parts else "")

    def again(self) -> list[str]:
        """Why kernels were compiled that were compiled once before: `cuda.x.v1: numba-cuda 0.20 → 0.21`, those of one reason together."""
        names: dict[str, list[str]] = {}
        for made in self.kernels:
            if made.how == "compiled" and made.why != ledger.NEW:
                names.setdefault(made.why, []).append(made.name)
        return [
            f"{', '.join(list(dict.fromkeys(found))[:SHOWN])}{', …' if len(set(found)) > SHOWN else ''}: {why}"
            for why, found in names.items()
        ]

    def to_json(self) -> dict[str, Any]:
        return {
            "number": self.number, "what": self.what, "for": {k: str(v) for k, v in self.facts.items()}, "why": self.why,
            "seconds": self.seconds, "kernels": [made._asdict() for made in self.kernels],
        }  # fmt: skip


class Compilations(InNotebook, Printed, Sequence[Compilation]):
    """A list of them, oldest first: `print(program.compilations)` is a table, with advice where there are many."""

    def __init__(self, of: str) -> None:
        self.of = of
        self.total = 0  # of all there were
        self._kept: list[Compilation] = []

    @overload
    def __getitem__(self, index: int) -> Compilation: ...
    @overload
    def __getitem__(self, index: slice) -> list[Compilation]: ...
    def __getitem__(self, index: Any) -> Any:
        return self._kept[index]

    def __len__(self) -> int:
        return len(self._kept)

    @contextmanager
    def made(self, what: str, facts: Facts, why: str | None = None, always: bool = True) -> Iterator[None]:
        """Around what compiles. What raises is no compilation.

        why     if it is known; else it follows from the one before that was most like it
        always  whether it counts although no kernel was made ready
        """
        start = time.perf_counter()
        with ledger.collected() as kernels:
            yield
        if not always and not kernels:
            return
        with _LOCK:
            why = why or self.why(what, facts)
            one = Compilation(self.total, what, dict(facts), why, time.perf_counter() - start, kernels)
            self.total += 1
            self._kept.append(one)
            del self._kept[:-KEPT]
        self._log(one)

    def why(self, what: str, facts: Facts) -> str:
        """Why none of those so far would do."""
        before = [one for one in self._kept if one.what == what and one.facts.get(GRAPH) == facts.get(GRAPH)]
        if not before:
            return f"{FIRST} of it" if GRAPH in facts else FIRST
        nearest = min(reversed(before), key=lambda one: len(differences(one.facts, facts)))
        found = differences(nearest.facts, facts)
        if not found:
            return f"that of number {nearest.number} was forgotten: others were used since"
        more = len(found) - SHOWN
        return "; ".join(found[:SHOWN]) + (f"; and {more} more" if more > 0 else "")

    def _log(self, one: Compilation) -> None:
        if one.what != "plan":  # of which more is told: see tell.py
            text = f"{self.of}: {one.what} for {one.told()} in {one.took()}: {one.why}"
            channels.tell("plan", one.what, text, **one.to_json())

    # --- text ---------------------------------------------------------------------------------------------------------

    def hints(self) -> list[str]:
        """What to do where one thing was compiled for many times."""
        found = []
        for what, graph in dict.fromkeys((one.what, one.facts.get(GRAPH)) for one in self._kept):
            mine = [one for one in self._kept if (one.what, one.facts.get(GRAPH)) == (what, graph)]
            for name in dict.fromkeys(name for one in mine for name in one.facts):
                values = {one.facts.get(name) for one in mine}
                if len(values) >= MANY and all(type(value) is int for value in values):
                    found.append(
                        f"{len(values)} sizes of {name}: each has a plan of its own. Pad feeds to a few sizes, such as powers of two, "
                        "or leave out a smaller last batch: aicf.training.Batches(..., drop_last=True)"
                    )
                elif len(values) >= MANY and what in ("function", "sizes"):
                    found.append(
                        f"{len(values)} kinds of {name}{f' of {graph}' if graph else ''}: pad or convert it to a few before the call"
                    )
        return list(dict.fromkeys(found))

    def _rows(self) -> list[tuple[str, str, str, str, list[str]]]:
        return [
            (str(one.number), one.what, one.told(), one.took(), [one.why, *one.again()]) for one in self._kept
        ]

    def _foot(self) -> str:
        totals = Counter(one.what for one in self._kept)
        took = microseconds(1e6 * sum(one.seconds for one in self._kept))
        words = {
            "bound": lambda n: "bound once" if n == 1 else f"bound {n} times",
            "sizes": lambda n: counted(n, "set") + " of sizes",
        }
        counts = [words[what](n) if what in words else counted(n, what) for what, n in totals.items()]
        return " · ".join([*counts, took])

    def _rendering(self) -> RenderableType:
        head = Text(f"{self.of}: {counted(self.total, 'compilation')}", style="bold")
        table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False)
        for name in HEADS:
            table.add_column(name, overflow="fold", justify="left" if name else "right")
        for number, what, told, took, why in self._rows():
            table.add_row(number, what, Text(told), Text(took), Text("\n".join(why)))
        hints = (Text(f"next: {hint}", style="yellow") for hint in self.hints())
        return Group(head, table, Text(self._foot(), style="dim"), *hints)

    def _repr_html_(self) -> str:
        rows = [(*cells, joined(why, tag("br"))) for *cells, why in self._rows()]
        hints = [tag("p", f"next: {hint}") for hint in self.hints()]
        head = headline(self.of, counted(self.total, "compilation"), self._foot())
        return output(head, ruled((HEADS, rows, frozenset({0}))), *hints)

    def __repr__(self) -> str:
        return f"<{self.of}: {counted(self.total, 'compilation')}; print it>"

    def to_json(self) -> list[dict[str, Any]]:
        return [one.to_json() for one in self._kept]


def differences(before: Facts, now: Facts) -> list[str]:
    """`batch 32 → 33`, `x f32[32x8] → bf16[32x8]`, `y was not there`: what is known of one and otherwise of the other, in order."""
    found = []
    for name in dict.fromkeys((*now, *before)):
        if name not in before:
            found.append(f"{name} {now[name]}, which was not there")
        elif name not in now:
            found.append(f"without {name} {before[name]}")
        elif before[name] != now[name]:
            found.append(f"{name} {before[name]} → {now[name]}")
    return found
