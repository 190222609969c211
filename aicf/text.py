"""Text that others wrote, such as names of layers and files, as people see it: nothing in it is obeyed, hidden or out of order."""

from __future__ import annotations

import codecs
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

# Control characters (C0, DEL, C1), which terminals obey; marks that end lines, have no width or turn the direction of text; and halves
# of surrogate pairs, which file names may have and no encoding takes.
_UNSEEN = re.compile("[\x00-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2060-\u2069\ud800-\udfff\ufeff]")


def visible(text: str, keep: str = "\n") -> str:
    r"""The text, with `\x1b` spelt out where that character is; what is to be kept, such as line ends, stays."""

    def spelt(found: re.Match[str]) -> str:
        return found[0] if found[0] in keep else found[0].encode("unicode_escape").decode()

    return _UNSEEN.sub(spelt, text)


def shortened(text: str, width: int) -> str:
    """At most so many characters."""
    return text if len(text) <= width else text[: width - 1] + "…"


# --- streams that can't encode all of it ------------------------------------------------------------------------------

# What stands for characters that aicf prints and that an encoding such as latin-1, cp949 or ASCII lacks; all others are spelt out.
ASCII = {
    "…": "...", "·": "|", "×": "x", "→": "->", "←": "<-", "±": "+/-", "–": "-", "—": "-", "µ": "u", "μ": "u", "›": ">", "•": "*",
    "▀": "'", "▄": ".", "█": "#", "■": "#", "░": ".", "▒": ":", "▓": "#", "┆": ":", "└": "+", "┘": "+", "┌": "+", "┐": "+",
    "├": "+", "┤": "+", "┼": "+", "─": "-", "━": "=", "╸": "=", "╺": "=", "│": "|", "┃": "|", "²": "2", "³": "3",
}  # fmt: skip
ERRORS = "aicf.ascii"  # the name of the error handler


def _ascii(error: UnicodeError) -> tuple[str, int]:
    """The error handler: one character after another as ASCII, or spelt out as `backslashreplace` does."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    lacking = error.object[error.start : error.end]
    return "".join(ASCII.get(c) or c.encode("ascii", "backslashreplace").decode() for c in lacking), error.end


codecs.register_error(ERRORS, _ascii)


_TO_FILES: ContextVar[bool] = ContextVar("aicf_to_files", default=False)


@contextmanager
def text_of_files() -> Iterator[None]:
    """Inside, text goes to files of UTF-8: the same whatever the encoding of standard output."""
    token = _TO_FILES.set(True)
    try:
        yield
    finally:
        _TO_FILES.reset(token)


def printable(text: str) -> str:
    """The text as standard output can encode it: unchanged where that is UTF-8."""
    encoding = getattr(sys.stdout, "encoding", None)
    if text.isascii() or not encoding or _TO_FILES.get():
        return text
    try:
        return text.encode(encoding, ERRORS).decode(encoding)
    except LookupError:  # a stream in the place of standard output may name a codec of its own
        return text


@contextmanager
def printable_streams(*streams: Any) -> Iterator[None]:
    """Inside, whatever is written to these streams is encoded, with ASCII for what their encodings lack; to standard output and error, if
    none is named. A stream for which the user has chosen what happens, such as PYTHONIOENCODING=ascii:ignore, stays as it is."""
    changed: list[tuple[Any, str]] = []
    for stream in streams or (sys.stdout, sys.stderr):
        errors = getattr(stream, "errors", None)
        if errors in ("strict", "surrogateescape", "backslashreplace") and hasattr(stream, "reconfigure"):
            changed.append((stream, errors))
            stream.reconfigure(errors=ERRORS)
    try:
        yield
    finally:
        for stream, errors in changed:
            if not stream.closed:
                stream.reconfigure(errors=errors)
