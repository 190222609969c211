"""Reads MLIR text piece by piece: what comes next, what was expected there, and how deep it nests."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

DEPTH = 64  # brackets within brackets that are followed
_SPACE = re.compile(r"(?:[ \t\r\n\0]+|//[^\n]*)*")  # as MLIR has it
_CLOSING = {"(": ")", "[": "]", "{": "}", "<": ">"}
_MARK = re.compile(r'"(?:[^"\\\n]|\\.)*"|->|//[^\n]*|[()\[\]{}<>]')
WORD = re.compile(r"[A-Za-z_][\w$.]*")
INTEGER = re.compile(r"-?(?:0x[0-9a-fA-F]+|\d+)")
STRING = re.compile(r'"((?:[^"\\\n]|\\(?:["\\nt]|[0-9A-Fa-f]{2}))*)"')


class Malformed(Exception):
    """Text that is no MLIR, or none of what is read here. The text says what, and where."""


class Scanner:
    """A text and a place in it. Blanks and comments before each piece are skipped."""

    def __init__(self, text: str) -> None:
        self.text, self.pos, self.depth = text, 0, 0
        self._skip()

    def _skip(self) -> None:
        found = _SPACE.match(self.text, self.pos)
        self.pos = found.end() if found else self.pos

    @property
    def done(self) -> bool:
        return self.pos >= len(self.text)

    def skip(self, count: int) -> None:
        self.pos += count
        self._skip()

    def sees(self, literal: str) -> bool:
        return self.text.startswith(literal, self.pos)

    def match(self, pattern: re.Pattern[str]) -> re.Match[str] | None:
        """What comes next, taken if it fits a pattern."""
        found = pattern.match(self.text, self.pos)
        if found is not None and found.end() > self.pos:
            self.pos = found.end()
            self._skip()
            return found
        return None

    def take(self, literal: str) -> bool:
        """Whether a literal comes next, which is then taken. A word ends where the literal does."""
        if not self.sees(literal):
            return False
        end = self.pos + len(literal)
        if (
            literal[-1].isalnum()
            and end < len(self.text)
            and (self.text[end].isalnum() or self.text[end] in "_$.")
        ):
            return False
        self.pos = end
        self._skip()
        return True

    def expect(self, literal: str) -> None:
        if not self.take(literal):
            raise self.wrong(repr(literal))

    def word(self, expected: str = "a word") -> str:
        found = self.match(WORD)
        if found is None:
            raise self.wrong(expected)
        return found.group()

    def integer(self) -> int:
        found = self.match(INTEGER)
        if found is None:
            raise self.wrong("an integer")
        return number(found.group())

    def wrong(self, expected: str) -> Malformed:
        got = self.text[self.pos : self.pos + 24]
        return Malformed(
            f"expected {expected} at character {self.pos}, got {got!r}"
            if got
            else f"expected {expected} at the end"
        )

    def end(self) -> None:
        if not self.done:
            raise self.wrong("no more")

    @contextmanager
    def within(self) -> Iterator[None]:
        """One level of nesting; Malformed if there are too many: what reads them is recursive."""
        self.depth += 1
        if self.depth > DEPTH:
            raise Malformed(f"brackets nest more than {DEPTH} deep at character {self.pos}")
        try:
            yield
        finally:
            self.depth -= 1

    def items(self, open: str, close: str) -> Iterator[int]:
        """The numbers of items of a list in brackets, for each of which the caller takes it; a comma stands between two."""
        with self.within():
            self.expect(open)
            count = 0
            while not self.take(close):
                if count:
                    self.expect(",")
                yield count
                count += 1

    def balanced(self) -> str:
        """A bracket and all up to its counterpart, as text."""
        start, closing = self.pos, [""]
        for mark in _MARK.finditer(self.text, self.pos):
            token = mark.group()
            if token in _CLOSING:
                closing.append(_CLOSING[token])
            elif token == closing[-1]:
                closing.pop()
            elif token in ")]}>":
                break
            if len(closing) == 1:
                self.pos = mark.end()
                self._skip()
                return self.text[start : mark.end()]
        raise Malformed(f"the bracket at character {start} is not closed")


def number(text: str) -> int:
    """The integer of a literal; Malformed if it has more digits than any type holds, which would take long to read."""
    if len(text) > 80:
        raise Malformed(f"{text[:20]}… is no integer of at most 64 bits")
    return int(text, 16 if "x" in text else 10)
