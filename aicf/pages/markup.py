"""HTML and SVG as strings. Whatever is not markup made here is text: it is shown, never run."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape
from typing import Any

from ..text import visible

# The heads of a table, its rows, and which columns are numbers.
Rows = tuple[Iterable[str], Iterable[Iterable[Any]], frozenset[int]]


class Html(str):
    """Markup, all of whose text is escaped."""

    __slots__ = ()


def text(value: Any) -> Html:
    """As it is read: markup escaped, what can't be seen as `\\x1b`."""
    if isinstance(value, Html):
        return value
    return Html(escape(visible(str(value), keep="")))


def tag(name: str, *inside: Any, **attributes: Any) -> Html:
    """`tag("td", 3, class_="n")`. An attribute that is None is left out, one that is True has no value; `data_to` is `data-to`."""
    given = "".join(
        [
            f" {key.rstrip('_').replace('_', '-')}" + ("" if value is True else f'="{text(value)}"')
            for key, value in attributes.items()
            if value is not None and value is not False
        ]
    )
    if name in ("rect", "path", "line", "circle", "input", "br"):
        return Html(f"<{name}{given}{'/' if name not in ('input', 'br') else ''}>")
    return Html(f"<{name}{given}>{''.join(map(text, inside))}</{name}>")


def joined(parts: Iterable[Any], between: Any = "") -> Html:
    return Html(text(between).join(map(text, parts)))


def size_of(nbytes: float) -> str:
    """`302 kB`, of bytes that stand beside a scale."""
    for unit, factor in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if nbytes >= factor:
            return (
                f"{nbytes / factor:.3g} {unit}" if nbytes < 1e3 * factor else f"{nbytes / factor:,.0f} {unit}"
            )
    return f"{nbytes:g} B"


def table(heads: Iterable[str], rows: Iterable[Iterable[Any]], numbers: frozenset[int] = frozenset()) -> Html:
    """A table; the columns `numbers` are aligned to the right."""
    of = [("n" if i in numbers else None) for i in range(64)]
    head = tag("tr", *(tag("th", h, class_=of[i], scope="col") for i, h in enumerate(heads)))
    body = (tag("tr", *(tag("td", cell, class_=of[i]) for i, cell in enumerate(row))) for row in rows)
    return tag("table", tag("thead", head), tag("tbody", *body))


def svg(width: float, height: float, label: str, *inside: Any, **attributes: Any) -> Html:
    """A drawing in pixels. Its colours are translucent or the text's own, so that it fits a light and a dark ground."""
    return tag(
        "svg", *inside, viewBox=f"0 0 {width:g} {height:g}", width=f"{width:g}", height=f"{height:g}", role="img", aria_label=label,
        font_family="ui-monospace, DejaVu Sans Mono, monospace", font_size=12, fill="currentColor", **attributes,
    )  # fmt: skip
