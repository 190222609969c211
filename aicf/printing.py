"""How objects print: plain text the same everywhere, colour in a terminal, both in a notebook; what names hold is shown, never run."""

from __future__ import annotations

import io
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

from rich.console import Console, ConsoleOptions, Group, RenderableType
from rich.jupyter import JupyterMixin
from rich.measure import Measurement
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from .text import printable, printable_streams, visible

WIDTH = 118  # of plain text, wherever it goes


class Visible:
    """What it is made around, with nothing left in its text that a terminal obeys."""

    def __init__(self, inner: RenderableType) -> None:
        self.inner = inner

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Segment]:
        for segment in console.render(self.inner, options):
            yield segment if segment.control else Segment(visible(segment.text), segment.style)

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        return Measurement.get(console, options, self.inner)


class ByWidth:
    """What is made for the width that there is."""

    def __init__(self, make: Callable[[int], RenderableType]) -> None:
        self.make = make

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[RenderableType]:
        yield self.make(options.max_width)


class Printed(JupyterMixin):
    """An object that people print. What it says is `_rendering()`."""

    __slots__ = ()

    def _rendering(self) -> RenderableType:
        raise NotImplementedError

    def __rich__(self) -> RenderableType:
        return Visible(self._rendering())

    def __str__(self) -> str:
        return printable(render(self))

    def _repr_mimebundle_(
        self, include: Collection[str] | None = None, exclude: Collection[str] | None = None, **more: Any
    ) -> dict[str, Any]:
        """The text, and the same as HTML for notebooks, unless the object draws itself there."""
        bundle = {**super()._repr_mimebundle_((), (), **more), "text/plain": str(self)}  # type: ignore[misc]
        if hasattr(self, "_repr_html_") or hasattr(self, "_repr_svg_"):
            del bundle["text/html"]
        return {k: v for k, v in bundle.items() if (not include or k in include) and k not in (exclude or ())}


def render(renderable: RenderableType, width: int = WIDTH) -> str:
    """Plain text, the same on every machine: no colour, fixed width."""
    console = Console(
        file=io.StringIO(), width=width, no_color=True, legacy_windows=False, highlight=False,
        force_jupyter=False, force_terminal=False,
    )  # fmt: skip
    console.print(renderable)
    text = console.file.getvalue()  # type: ignore[attr-defined]
    return "\n".join(line.rstrip() for line in text.splitlines())


def show(*told: Printed) -> None:
    """On stdout, a line apart: with colour and as wide as it is where that is a terminal, as `print` does into files and pipes."""
    console = Console(highlight=False)
    for n, one in enumerate(told):
        text = one._rendering()
        parts = text.renderables if isinstance(text, Group) else [text]
        for part in [*([Text()] if n else []), *parts]:  # part by part: who reads needs not wait for the last
            if console.is_terminal:
                with printable_streams():
                    console.print(Visible(part))
            else:
                print(printable(render(Visible(part))))


def labelled(lines: Sequence[tuple[str, str, str]]) -> Table:
    """(label, its style, text): the texts one below the other, however narrow the terminal."""
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(min_width=10, no_wrap=True)
    table.add_column(overflow="fold")
    for label, style, text in lines:
        text = visible(text)
        table.add_row(Text(f"  {label}", style=style), _first_bold(text) if label == "chosen" else Text(text))
    return table


def _first_bold(text: str) -> Text:
    head, space, rest = text.partition(" ")
    return Text(head, style="bold").append(space + rest, style="not bold")


def paragraphs(lines: Iterable[str]) -> Group:
    """Lines that fold where they are too long; the first is a title."""
    return Group(*(Text(visible(line), style="" if n else "bold") for n, line in enumerate(lines)))


def cut(text: str, style: str = "") -> Text:
    """For a cell of a table: one line, which ends in … where there is no room for all of it."""
    return Text(visible(text), style=style, no_wrap=True, overflow="ellipsis")


def rows_table(*columns: str, numbers: Collection[str] = (), whole: Mapping[str, int | None] = {}) -> Table:
    """A table of lines. Numbers stand at the right and are never cut; what is to stay whole is so up to a width, or at any."""
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    for name in columns:
        right = name in numbers
        table.add_column(
            name, justify="right" if right else "left", no_wrap=right or name in whole, overflow="ellipsis",
            max_width=whole.get(name),
        )  # fmt: skip
    return table
