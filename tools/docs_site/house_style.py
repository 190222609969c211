"""aicf's docstrings as reStructuredText. They are plain text: paragraphs, names beside what they mean in columns, indented code."""

from __future__ import annotations

import re
from collections.abc import Iterator, Set

TERM = re.compile(r"(\S(?:.*?\S)?) {2,}(\S.*)")
MARKUP = re.compile(r"([\\*_|]|(?<=\w):(?=[^\s/]))")  # a:b would be taken for a URL
LIST_LIKE = re.compile(
    r"[-+*:.>•]|\(?\w{1,4}[.)]\s"
)  # what a paragraph must not begin with, or it would be something else


def to_rst(text: str) -> list[str]:
    """Lines of reStructuredText that show what a docstring says; nothing in it is taken for markup but its backticks."""
    lines: list[str] = []
    for block in re.split(r"\n\s*\n", text.strip("\n")):
        given = block.split("\n")
        if all(line.startswith("    ") for line in given):
            lines += ["::", "", *given, ""]
        else:
            lines += _prose(given)
    return lines


def inline(text: str) -> str:
    """One run of text: `code` stays code, all else is itself."""
    parts = " ".join(text.split()).split("`")
    if len(parts) % 2 == 0:  # a backtick without its other
        return MARKUP.sub(r"\\\1", " ".join(text.split())).replace("`", r"\`")
    shown = [f"``{part}``" if n % 2 else MARKUP.sub(r"\\\1", part) for n, part in enumerate(parts)]
    # Code ends where a space or punctuation follows; `x`s needs to be told so.
    return "".join(
        re.sub(r"^(?=\w)", r"\\ ", part) if n and n % 2 == 0 else part for n, part in enumerate(shown)
    )


def _prose(given: list[str]) -> Iterator[str]:
    """Paragraphs, and columns: a line `name   what it is`, its continuation indented."""
    text: list[str] = []
    terms: list[tuple[str, list[str]]] = []
    wide = {found.start(2) for line in given if (found := _term(line, frozenset()))}
    for line in given:
        column = _term(line, wide)
        if column:
            yield from _paragraph(text)
            text = []
            terms.append((column[1], [column[2]]))
        elif terms and line.startswith(" "):
            terms[-1][1].append(line)
        else:
            yield from _columns(terms)
            terms = []
            text.append(line)
    yield from _paragraph(text)
    yield from _columns(terms)


def _term(line: str, wide: Set[int]) -> re.Match[str] | None:
    """A name and what it is: two spaces between them, or one where the name is as long as the column of those beside it."""
    if line.startswith(" "):
        return None
    full = re.fullmatch(r"(\S+) (\S.*)", line.rstrip())
    return TERM.fullmatch(line.rstrip()) or (full if full and full.start(2) in wide else None)


def _paragraph(text: list[str]) -> list[str]:
    if not text:
        return []
    said = inline(" ".join(text))
    return [f"\\{said}" if LIST_LIKE.match(said) else said, ""]


def _columns(terms: list[tuple[str, list[str]]]) -> list[str]:
    if not terms:
        return []
    lines = [".. rst-class:: terms", ""]
    for name, said in terms:
        lines += [f"``{name.replace('`', '')}``", f"    {_paragraph(said)[0]}"]
    return [*lines, ""]
