"""What `aicf.explain_over` and `aicf explain --batch` show: the ranges of a size with one plan each, and the time over the size."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise, product
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from ...pages.markup import Html, joined, svg, tag
from ...pages.notebook import InNotebook, drawing, headline, output, ruled
from ...printing import Printed
from ...registry.invariant import percent
from ...registry.measured import counted
from ...registry.trace import microseconds
from ...text import printable
from .sizes import SizedPlan, SizeRange, differing

COLUMNS, ROWS = 64, 10  # characters of the plot; a row is two points high
LINES = 6  # of changes that a range is told with
WIDTH, HEIGHT, LEFT = 640.0, 260.0, 70.0  # of the drawing, in pixels


@dataclass(frozen=True, repr=False)
class Sweep(InNotebook, Printed):
    """`print(s)` is a table and a plot of characters; a notebook has the same as HTML; `s.to_json()` is data.

    points   every plan that was made, by size
    """

    dimension: str
    device: str
    ranges: tuple[SizeRange, ...]
    points: tuple[SizedPlan, ...]

    @property
    def switches(self) -> list[int]:
        """The sizes at which another plan begins."""
        return [
            r.first.size for before, r in pairwise(self.ranges) if r.first.regions != before.first.regions
        ]

    def _rendering(self) -> RenderableType:
        return Group(Text(self._head(), style="bold"), self._table(), *self._plot())

    def __repr__(self) -> str:
        return printable(f"<{self._head()}; print it>")

    def _head(self) -> str:
        low, high = self.points[0].size, self.points[-1].size
        plans = counted(len({r.first.regions for r in self.ranges}), "plan")
        span = f"{low:,}" + (f" to {high:,}" if high > low else "")
        return f"{self.dimension} {span} on {self.device} · {plans}, {counted(len(self.switches), 'switching point')}"

    def _rows(self) -> list[tuple[str, str, str, list[str]]]:
        """(sizes, predicted time, time per sample, what changes)."""
        rows = []
        for n, r in enumerate(self.ranges):
            sizes = f"{r.first.size:,}" + (f"..{r.end:,}" if r.end > r.first.size else "")
            ends = [r.first] if r.first.size == r.last.size else [r.first, r.last]
            took = " to ".join(dict.fromkeys(microseconds(p.us) for p in ends))
            each = " to ".join(dict.fromkeys(f"{p.us / p.size:.3g}" for p in ends))
            told = (
                [f"{' + '.join(c.ops)}: {c.kernel}" for c in r.first.regions]
                if n == 0
                else differing(self.ranges[n - 1].first.regions, r.first.regions)
            )
            if r.between is not None:
                other = differing(r.first.regions, r.between.regions)
                told = [
                    *told,
                    f"but not at sizes that are no multiples of {r.every}, such as {r.between.size:,}: {other[0]}",
                ]
            more = len(told) - LINES
            rows.append((sizes, took, each, told[:LINES] + ([f"and {more} more"] if more > 0 else [])))
        return rows

    def _table(self) -> Table:
        made = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False)
        for head in (self.dimension, "predicted", *self._price_head, "us each", "kernels that change"):
            made.add_column(head, overflow="fold")
        for (sizes, took, each, told), price in zip(self._rows(), self._prices()):
            made.add_row(sizes, took, *price, each, Text("\n".join(told)))
        return made

    @property
    def _is_priced(self) -> bool:
        return any(p.free_us is not None for p in self.points)

    @property
    def _price_head(self) -> list[str]:
        return ["price"] if self._is_priced else []

    def _prices(self) -> list[list[str]]:
        """Of each range, what invariant rows cost at both ends; nothing where there are none."""
        found = []
        for r in self.ranges:
            ends = [p for p in (r.first, r.last) if p.free_us]
            told = dict.fromkeys(percent(p.us / p.free_us) for p in ends if p.free_us)
            found.append([" to ".join(told)] if self._is_priced else [])
        return found

    # --- plots --------------------------------------------------------------------------------------------------------

    def _scale(self) -> tuple[float, float, float, float]:
        xs, ys = [p.size for p in self.points], [us for p in self.points for us in (p.us, p.free_us) if us]
        return math.log(min(xs)), math.log(max(xs)), math.log(min(ys)), math.log(max(ys))

    def _us_at(self, log_size: float, free: bool = False) -> float:
        """The logarithm of the time, interpolated between the plans that were made; `free`: without invariant rows."""
        logs = [(math.log(p.size), math.log(p.free_us if free and p.free_us else p.us)) for p in self.points]
        for (x, y), (x2, y2) in pairwise(logs):
            if x <= log_size <= x2:
                return y + (y2 - y) * (log_size - x) / (x2 - x)
        return logs[0][1] if log_size < logs[0][0] else logs[-1][1]

    def _plot(self) -> list[Text]:
        """Both axes logarithmic; `┆` marks the sizes at which the plan changes, `·` the time without invariant rows."""
        if len(self.points) < 2:
            return []
        x0, x1, y0, y1 = self._scale()
        grid = [[" "] * COLUMNS for _ in range(ROWS)]
        for size in self.switches:
            column = round((math.log(size) - x0) / (x1 - x0) * (COLUMNS - 1))
            for row in grid:
                row[column] = "┆"
        for column, free in product(range(COLUMNS), (True, False) if self._is_priced else (False,)):
            y = self._us_at(x0 + (x1 - x0) * column / (COLUMNS - 1), free)
            point = round((y - y0) / (y1 - y0) * (2 * ROWS - 1)) if y1 > y0 else 0
            grid[ROWS - 1 - point // 2][column] = "·" if free else "▀" if point % 2 else "▄"
        top, bottom = microseconds(math.exp(y1)), microseconds(math.exp(y0))
        labels = [top, *[""] * (ROWS - 2), bottom]
        width = max(map(len, labels))
        lines = [
            Text(
                f"\n{'':>{width}}  time over {self.dimension}, both logarithmic; ┆ another plan begins"
                + "; · without invariant rows" * self._is_priced,
                style="dim",
            )
        ]
        lines += [
            Text(f"{label:>{width}} ┤").append("".join(row), style="cyan") for label, row in zip(labels, grid)
        ]
        low, high = f"{self.points[0].size:,}", f"{self.points[-1].size:,}"
        lines.append(Text(f"{'':>{width}} └{'─' * COLUMNS}"))
        lines.append(Text(f"{'':>{width}}  {low}{high:>{COLUMNS - len(low)}}"))
        return lines

    def _repr_html_(self) -> str:
        rows = [
            (sizes, took, *price, each, joined(told, tag("br")))
            for (sizes, took, each, told), price in zip(self._rows(), self._prices())
        ]
        heads = self.dimension, "predicted", *self._price_head, "us each", "kernels that change"
        right = frozenset(range(1, len(heads) - 1))
        return output(headline(self._head()), drawing(self.svg()), ruled((heads, rows, right)))

    def svg(self) -> Html:
        """The plot as a drawing."""
        x0, x1, y0, y1 = self._scale()

        def at(size: float, us: float) -> tuple[float, float]:
            x = (math.log(size) - x0) / ((x1 - x0) or 1.0) * (WIDTH - LEFT - 20)
            y = (math.log(us) - y0) / ((y1 - y0) or 1.0) * (HEIGHT - 50)
            return LEFT + x, HEIGHT - 30 - y

        line = " ".join(f"{x:.1f},{y:.1f}" for x, y in (at(p.size, p.us) for p in self.points))
        free = " ".join(
            f"{x:.1f},{y:.1f}" for x, y in (at(p.size, p.free_us) for p in self.points if p.free_us)
        )
        shapes: list[Html] = [
            tag("path", d=f"M{LEFT:g} 15V{HEIGHT - 30:g}H{WIDTH - 10:g}", fill="none", stroke="currentColor", stroke_opacity=".5"),
            tag("path", d=f"M{line.replace(' ', 'L')}", fill="none", stroke="#2f7fd6", stroke_width="2"),
        ]  # fmt: skip
        if free:
            label = tag("title", "without invariant rows")
            drawn = tag(
                "path", d=f"M{free.replace(' ', 'L')}", fill="none", stroke="#888888", stroke_dasharray="4 3"
            )
            shapes.append(tag("g", label, drawn))
        for size in self.switches:
            x, _ = at(size, math.exp(y0))
            told = f"another plan from {size:,}"
            shapes.append(
                tag("g", tag("title", told), tag("path", d=f"M{x:.1f} 15V{HEIGHT - 30:g}", stroke="currentColor",
                    stroke_opacity=".35", stroke_dasharray="3 3"))
            )  # fmt: skip
        for p in self.points:
            x, y = at(p.size, p.us)
            label = tag("title", f"{self.dimension} {p.size:,}: {microseconds(p.us)}")
            shapes.append(tag("g", label, tag("circle", cx=f"{x:.1f}", cy=f"{y:.1f}", r=2, fill="#2f7fd6")))
        for size, anchor in ((self.points[0].size, "start"), (self.points[-1].size, "end")):
            x, _ = at(size, math.exp(y0))
            shapes.append(
                tag("text", f"{size:,}", x=f"{x:.1f}", y=f"{HEIGHT - 12:g}", text_anchor=anchor, font_size=11)
            )
        for us in {math.exp(y0), math.exp(y1)}:
            _, y = at(self.points[0].size, us)
            shapes.append(
                tag(
                    "text",
                    microseconds(us),
                    x=f"{LEFT - 6:g}",
                    y=f"{y + 4:.1f}",
                    text_anchor="end",
                    font_size=11,
                )
            )
        return svg(WIDTH, HEIGHT, f"Predicted time over {self.dimension}", *shapes)

    def to_json(self) -> dict[str, Any]:
        return {
            "dimension": self.dimension,
            "device": self.device,
            "ranges": [
                {
                    "first": r.first.size, "last": r.end, "every": r.every, "us": [r.first.us, r.last.us],
                    "between": r.between.size if r.between else None,
                    "regions": [{"ops": list(c.ops), "kernel": c.kernel} for c in r.first.regions],
                }
                for r in self.ranges
            ],
            "points": [
                {"size": p.size, "us": p.us, **({} if p.free_us is None else {"free_us": p.free_us})}
                for p in self.points
            ],
        }  # fmt: skip


def listed(plans: Sequence[SizedPlan]) -> tuple[SizeRange, ...]:
    """Sizes that were asked for one by one, each as a range of its own."""
    return tuple(SizeRange(p, p, p.size) for p in plans)
