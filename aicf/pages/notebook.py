"""What a notebook shows of an object: markup and drawings without scripts, sheets of style or anything from elsewhere.

Text has the notebook's own colour and drawings take it, so that they fit a light and a dark theme. JupyterLab takes SVG out of notebooks that
are not trusted and leaves its words: there tables and bars remain, and a sentence stands where drawings were.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from .markup import Html, Rows, joined, tag

DIM = "opacity:.75"
# JupyterLab's sanitizer takes SVG away and leaves the words in it. They have no size outside of a drawing, which has sizes of its own.
DRAWN = "font-size:0;line-height:0;overflow-x:auto"
# The sanitizer does not know this property: the sentence shows where it was at work.
SANITIZED = "content-visibility:hidden;margin:0"


class InNotebook:
    """An object with `str()` as its text and `_repr_html_()` as what a notebook shows."""

    def _repr_html_(self) -> str:
        raise NotImplementedError

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None, **more: Any) -> dict[str, Any]:
        """Both, for the front end to choose; IPython in a terminal takes the text."""
        return {"text/plain": str(self), "text/html": self._repr_html_()}


def output(*parts: Any) -> Html:
    """All that an object shows. What is wide scrolls."""
    return tag("div", *parts, style="max-width:60rem;overflow-x:auto;line-height:1.4")


def headline(title: Any, *facts: Any) -> Html:
    """`<b>title</b> · fact · fact`."""
    return tag(
        "p", joined([tag("b", title), *(fact for fact in facts if fact)], " · "), style="margin:.3em 0"
    )


def folded(summary: Any, *inside: Any, opened: bool = False) -> Html:
    return tag("details", tag("summary", summary, style="cursor:pointer"), *inside, open=opened, style="margin:.2em 0")  # fmt: skip


def ruled(rows: Rows) -> Html:
    """A table whose cells say for themselves how they are aligned: notebooks have styles of their own."""
    heads, body, numbers = rows

    def line(name: str, cells: Iterable[Any]) -> Html:
        made = []
        for i, cell in enumerate(cells):
            align = "right;white-space:nowrap" if i in numbers else "left"
            made.append(tag(name, cell, style=f"text-align:{align};vertical-align:top;padding:.1em .5em"))
        return tag("tr", *made)

    head = [tag("thead", line("th", heads))] if any(heads) else []
    return tag("table", *head, tag("tbody", *(line("td", row) for row in body)))


def drawing(svg: Html) -> Html:
    """A drawing, which a notebook that is not trusted does not show."""
    note = "A drawing, which JupyterLab shows when the notebook is trusted or the cell is run."
    return joined([tag("p", tag("small", note), style=SANITIZED), tag("div", svg, style=DRAWN)])


def bars(most: float, *times: tuple[float | None, str, float]) -> Html:
    """Bars below each other on one scale.

    most   what the widest bar stands for
    times  (microseconds or None, colour, opacity)
    """
    made = [
        tag("div", style=f"width:{max(100 * us / most, 0.5):.1f}%;height:.55em;margin-top:1px;background-color:{colour};opacity:{ink:g}")
        for us, colour, ink in times
        if us and most
    ]  # fmt: skip
    return tag("div", *made, style="width:12em")
