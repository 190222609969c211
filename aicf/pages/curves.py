"""Loss over steps as a drawing, and the place in a notebook where it is drawn anew while a model trains."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ..text import printable
from .graph import COLOURS
from .markup import Html, svg, tag
from .notebook import InNotebook, drawing, headline, output

WIDTH, HEIGHT, LEFT, BELOW = 640.0, 220.0, 70.0, 34.0  # pixels
POINTS = 400  # of a line: more can't be told apart
EVERY = 0.5  # seconds between two drawings
Points = Sequence[tuple[float, float]]
LINES = {"loss": COLOURS["product"], "validation": COLOURS["rows"]}


def losses(lines: Mapping[str, Points]) -> Html:
    """Lines by name, of (step, loss). Where losses span more than two decades the axis is logarithmic; what is no number leaves a gap."""
    found = {name: thinned(points) for name, points in lines.items() if points}
    values = [y for points in found.values() for _, y in points if math.isfinite(y)]
    if not values:
        return tag("p", "No loss is known yet.")
    low, high = min(values), max(values)
    log = low > 0 and high > 100 * low
    height = math.log10 if log else float
    bottom, top = height(low), height(high)
    if top - bottom < 1e-9 * max(abs(top), 1e-30):
        bottom, top = bottom - max(abs(bottom) * 0.05, 1e-9), top + max(abs(top) * 0.05, 1e-9)
    first = min(points[0][0] for points in lines.values() if points)
    last = max(max(points[-1][0] for points in found.values()), first + 1)

    def place(x: float, y: float) -> str:
        across = LEFT + (x - first) / (last - first) * (WIDTH - LEFT - 12)
        return f"{across:.1f} {12 + (top - height(y)) / (top - bottom) * (HEIGHT - BELOW - 12):.1f}"

    floor = HEIGHT - BELOW
    shapes = [tag("path", d=f"M{LEFT:g} 12V{floor:g}H{WIDTH - 12:g}", fill="none", stroke="currentColor", stroke_opacity=".4")]  # fmt: skip
    for part in (0.0, 0.5, 1.0):
        y = bottom + part * (top - bottom)
        at = 12 + (1 - part) * (floor - 12)
        shapes.append(tag("path", d=f"M{LEFT:g} {at:.1f}H{WIDTH - 12:g}", stroke="currentColor", stroke_opacity=".12"))  # fmt: skip
        shapes.append(tag("text", f"{10**y if log else y:.4g}", x=LEFT - 6, y=f"{at + 4:.1f}", text_anchor="end", font_size=11))  # fmt: skip
    shapes.append(tag("text", f"{first:g}", x=LEFT, y=floor + 16, font_size=11))
    shapes.append(tag("text", f"step {last:g}", x=WIDTH - 12, y=floor + 16, text_anchor="end", font_size=11))
    for n, (name, points) in enumerate(found.items()):
        colour, path, pen = LINES.get(name, COLOURS["map"]), "", "M"
        for x, y in points:
            if math.isfinite(y):
                path += pen + place(x, y)
                pen = "L"
            else:
                pen = "M"
        shapes.append(
            tag("path", d=path, fill="none", stroke=colour, stroke_width=1.6, stroke_linecap="round")
        )
        if math.isfinite(points[-1][1]):
            cx, cy = place(*points[-1]).split()
            shapes.append(
                tag("circle", tag("title", f"{name} {points[-1][1]:.4g}"), cx=cx, cy=cy, r=2.5, fill=colour)
            )
        shapes.append(tag("text", name, x=WIDTH - 100, y=26 + 15 * n, font_size=11, fill=colour))
    return svg(WIDTH, HEIGHT, "Loss over steps" + (", logarithmic" if log else ""), *shapes)


def thinned(points: Points, most: int = POINTS) -> list[tuple[float, float]]:
    """At most so many: means of neighbours, each at its last step. One that is no number makes its mean none."""
    if len(points) <= most:
        return list(points)
    ends = [round(len(points) * (i + 1) / most) for i in range(most)]
    groups = [points[a:b] for a, b in zip([0, *ends], ends)]
    return [(group[-1][0], math.fsum(y for _, y in group) / len(group)) for group in groups]


class Curve(InNotebook):
    """A training run as it stands: a line of words and the losses."""

    def __init__(self, words: str, lines: Mapping[str, Points]) -> None:
        self.words, self.lines = words, lines

    def __str__(self) -> str:
        return printable(self.words)

    __repr__ = __str__

    def _repr_html_(self) -> str:
        return output(headline(self.words), drawing(losses(self.lines)))


def in_notebook() -> bool:
    """Whether a front end shows what is displayed: a Jupyter kernel runs this process. IPython is not imported for it."""
    shell = sys.modules["IPython"].get_ipython() if "IPython" in sys.modules else None
    return shell is not None and getattr(shell, "kernel", None) is not None


def _nothing(make: Callable[[], Curve], last: bool = False) -> None:
    """Where nobody would see it."""


def live(wanted: bool = True) -> Callable[..., None]:
    """`show(make, last)` draws in one place of the notebook, in place of what it drew before, not more often than people see; elsewhere it
    does nothing."""
    if not wanted or not in_notebook():
        return _nothing
    from IPython.display import display

    handle: Any = None
    drawn = -math.inf

    def show(make: Callable[[], Curve], last: bool = False) -> None:
        nonlocal handle, drawn
        if not last and time.monotonic() - drawn < EVERY:
            return
        if handle is None:
            handle = display(make(), display_id=True)
        else:
            handle.update(make())
        drawn = time.monotonic()

    return show
