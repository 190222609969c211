"""What is compiled and what is found on disk, told to whoever listens; and why something is compiled though it once was.

Beside each piece of code that was compiled a small file says by what: its source, the compilers, the target. Its name is that of the
question, not of the answer: the same kernel of the same region has the same one, whatever its code. So a difference can be named.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import NamedTuple

from . import disk

NEW = "never compiled before"
GONE = "compiled before, and no longer in the cache"


class MadeCode(NamedTuple):
    """A kernel or loop that was made ready. `how` is "compiled" or "disk"; `why` says why nothing that was there would do."""

    name: str
    how: str
    seconds: float = 0.0
    why: str = ""


_OPEN: ContextVar[list[MadeCode] | None] = ContextVar("aicf_made_code", default=None)


@contextmanager
def collected() -> Iterator[list[MadeCode]]:
    """What is made ready inside, in this thread; whoever listens around it is told, too."""
    around, made = _OPEN.get(), []  # type: ignore[var-annotated]
    token = _OPEN.set(made)
    try:
        yield made
    finally:
        _OPEN.reset(token)
        if around is not None:
            around += made


def note(name: str, how: str, seconds: float = 0.0, why: str = "") -> None:
    listening = _OPEN.get()
    if listening is not None:
        listening.append(MadeCode(name, how, seconds, why))


def why_again(question: str | None, facts: Mapping[str, str]) -> str:
    """Why code has to be compiled: the first fact that differs from what it was compiled by last.

    question  its name, or None where the code can't be described
    facts     texts by name, in the order in which they are compared
    """
    if question is None:
        return "its code can't be described, so no cache keeps it"
    before = disk.load(question, disk.MADE, lambda code, **known: known)
    if before is None:
        return NEW
    for name, value in facts.items():
        old = before.get(name)
        if old != value:
            long = len(value) > 24 or len(str(old)) > 24
            return f"{name} changed" if long or old is None else f"{name} {old} → {value}"
    return GONE


def remember(question: str | None, facts: Mapping[str, str]) -> None:
    if question is not None:
        disk.store(question, disk.MADE, b"", dict(facts))
