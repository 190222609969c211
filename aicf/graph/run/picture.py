"""Fusion as a picture: the ops in a row, those that became one kernel joined. Text in a terminal, SVG in a notebook."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from itertools import groupby

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from ...printing import Printed
from ...registry.measured import counted
from ...registry.trace import microseconds
from ...text import visible

OP, JOIN, APART = "■", "━", " "
ROW = 32  # ops: with their labels they fit a terminal
MOST = 16 * ROW  # that are drawn
COLOURS = "cyan", "magenta"  # in turn, so that neighbours can be told apart
# SVG, in pixels: text of a fixed width, boxes that flow like words
CHARACTER, LINE, PAD, GAP, WIDTH = 7.25, 17, 8, 10, 860
FILLS = {"gemm": "#dbe9ff", "reduce": "#ffe6c7", "map": "#e2f3df"}


@dataclass(frozen=True)
class Box:
    """A region: its ops, the kernel that runs them and how long it is predicted to take."""

    ops: tuple[str, ...]
    kernel_id: str
    us: float


@dataclass(frozen=True, repr=False)
class Picture(Printed):
    """`print(p)` is two rows of text; a notebook draws boxes. Views, which run nothing, are left out."""

    device: str
    boxes: tuple[Box, ...]
    us_before: float | None

    @property
    def ops(self) -> int:
        return sum(len(box.ops) for box in self.boxes)

    @property
    def us(self) -> float:
        return sum(box.us for box in self.boxes)

    def before(self) -> Text:
        """The ops, a kernel each."""
        return Text(APART.join(OP * self.ops))

    def after(self) -> Text:
        row = Text()
        for n, box in enumerate(self.boxes):
            row.append(JOIN.join(OP * len(box.ops)), style=COLOURS[n % 2])
            row.append(APART if n + 1 < len(self.boxes) else "")
        return row

    def _rendering(self) -> RenderableType:
        table = Table.grid(padding=(0, 2, 0, 0))
        rows = (counted(self.ops, "op"), self.before()), (counted(len(self.boxes), "kernel"), self.after())
        for first in range(0, min(self.ops, MOST), ROW):
            for label, row in rows:  # each op is a character, and so is what follows it
                table.add_row("" if first else label, row[2 * first : 2 * (first + ROW)])
        if self.ops > MOST:
            table.add_row("", Text(f"and {self.ops - MOST} more ops", style="dim"))
        table.add_row(Text(visible(self.device)), self._predicted)
        return table

    @property
    def _predicted(self) -> str:
        before = (
            "" if self.us_before is None else f", {microseconds(self.us_before)} with a kernel for each op"
        )
        return f"predicted {microseconds(self.us)}{before}"

    def __repr__(self) -> str:
        return str(self)

    def _repr_svg_(self) -> str:
        shapes: list[str] = []
        x, y, height = 0.0, LINE + GAP, 2 * LINE + PAD
        for box in self.boxes:
            title, under = brief(box.ops), f"{box.kernel_id} · {microseconds(box.us)}"
            width = max(len(title), len(under) * 0.85) * CHARACTER + 2 * PAD
            if x and x + width > WIDTH:
                x, y = 0.0, y + height + GAP
            fill = next(
                (colour for kind, colour in FILLS.items() if any(kind in op for op in box.ops)), FILLS["map"]
            )
            shapes += [
                f'<rect x="{x:.0f}" y="{y}" width="{width:.0f}" height="{height}" rx="5" fill="{fill}" stroke="#8a94a6"/>',
                f'<text x="{x + PAD:.0f}" y="{y + LINE}" font-size="12">{escape(title)}</text>',
                f'<text x="{x + PAD:.0f}" y="{y + 2 * LINE}" font-size="10" fill="#566072">{escape(under)}</text>',
            ]
            x += width + GAP
        head = f"{counted(self.ops, 'op')} in {counted(len(self.boxes), 'kernel')} on {self.device}, {self._predicted}"
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="-8 -8 {WIDTH + 16} {y + height + 16}" width="{WIDTH + 16}" '
            f'font-family="ui-monospace, DejaVu Sans Mono, monospace" fill="#1c2430">'
            f'<rect x="-8" y="-8" width="{WIDTH + 16}" height="{y + height + 16}" fill="#ffffff"/>'
            f'<text x="0" y="{LINE - 4}" font-size="12" font-weight="bold">{escape(head)}</text>{"".join(shapes)}</svg>'
        )


def brief(ops: Sequence[str]) -> str:
    """The ops in order, `adam_step ×6` for six of one kind."""
    runs = [(kind, len(list(run))) for kind, run in groupby(ops)]
    return " + ".join(kind if n == 1 else f"{kind} ×{n}" for kind, n in runs)
