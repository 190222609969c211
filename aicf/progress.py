"""A line on stderr for what takes long: how far it is, and what is in work. Nothing where that is no terminal.

Lines that are open at once, such as training's and that of the kernels which its first step needs, stand one below the other.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from typing import Any

from rich.console import Console
from rich.progress import (
    BarColumn,
    ProgressColumn,
    Task,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.progress import Progress as Bars
from rich.table import Column
from rich.text import Text

from .printing import cut
from .text import visible
from .whole import shared_lock

Advance = Callable[
    [int, "int | None", str], None
]  # how many are done, of how many if that is known, what is in work
AFTER = 0.5  # seconds before a line is shown for what mostly is done sooner


def no_progress(done: int, total: int | None = None, what: str = "") -> None:
    pass


@contextmanager
def progress(
    name: str, total: int | None = None, *, wanted: bool | None = None, after: float = 0.0, kept: bool = False,
    remaining: bool = False,
) -> Iterator[Advance]:  # fmt: skip
    """A function that moves the line.

    wanted     whether there is one; by default where stderr is a terminal
    after      seconds before it is shown
    kept       it stays when all is done
    remaining  it estimates how long it will take
    """
    console = Console(stderr=True)
    if not (_is_terminal(console) if wanted is None else wanted):
        yield no_progress
        return
    line = _Line(console, name, total, remaining)
    timer = threading.Timer(after, line.show)
    timer.daemon = True
    if after:
        timer.start()
    else:
        line.show()
    try:
        yield line.advance
    finally:
        timer.cancel()
        line.end(kept)


def _is_terminal(console: Console) -> bool:
    """One that can take a line back; FORCE_COLOR makes none of a file."""
    return console.is_interactive and sys.stderr.isatty()


class _Line:
    """One line, which may not be shown yet, or not any more."""

    def __init__(self, console: Console, name: str, total: int | None, remaining: bool) -> None:
        self.console, self.ended = console, False
        self.now: dict[str, Any] = {"total": total, "completed": 0, "what": ""}
        self.name, self.remaining = visible(name), remaining
        self.lines: Bars | None = None  # where it is shown, and as which of them
        self.task = TaskID(-1)

    def show(self) -> None:
        global _open
        with _LOCK:
            if not self.ended:
                _open += 1
                self.lines = _lines(self.console)
                self.task = self.lines.add_task(self.name, remaining=self.remaining, **self.now)

    def advance(self, done: int, total: int | None = None, what: str = "") -> None:
        with _LOCK:
            total = self.now["total"] if total is None else total
            self.now = {"total": total, "completed": done, "what": visible(what)}
            if self.lines is not None and self.lines is _shown:
                self.lines.update(self.task, **self.now)

    def end(self, kept: bool) -> None:
        global _open, _shown
        with _LOCK:
            self.ended = True
            if self.lines is None or self.lines is not _shown:
                return
            if not kept:
                _shown.remove_task(self.task)
            _open -= 1
            if not _open:
                _shown.live.transient = not kept
                _shown.stop()
                _shown = None


_LOCK = shared_lock(inner=True)
_open = 0  # lines
_shown: Bars | None = None  # all of them


def _lines(console: Console) -> Bars:
    global _shown
    if _shown is None:
        columns = (
            TextColumn("{task.description}", markup=False), _Count(), BarColumn(20),
            _What(), TimeElapsedColumn(), _Remaining(),
        )  # fmt: skip
        _shown = Bars(*columns, console=console, redirect_stdout=sys.stdout.isatty(), transient=True)
        _shown.start()
    return _shown


def _forked() -> None:
    """What is shown is the parent's."""
    global _open, _shown
    _open, _shown = 0, None


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)


class _Count(ProgressColumn):
    def render(self, task: Task) -> Text:
        return Text(
            "" if task.total is None else f"{task.completed:.0f}/{task.total:.0f}", style="progress.download"
        )


class _What(ProgressColumn):
    """The one that is cut where there is no room."""

    def render(self, task: Task) -> Text:
        return cut(task.fields["what"])

    def get_table_column(self) -> Column:
        return Column()


class _Remaining(TimeRemainingColumn):
    def render(self, task: Task) -> Text:
        return super().render(task) if task.fields["remaining"] else Text()


# --- compiling --------------------------------------------------------------------------------------------------------


class Kernels:
    """Kernels that are made ready together. There is a line once one of them is compiled and that takes a while; until then this costs
    nothing.

    done, total  of them all, those that need not be compiled among them
    """

    def __init__(self, total: int | None) -> None:
        self.done, self.total = 0, total
        self._line, self._lock = ExitStack(), threading.Lock()
        self._advance: Advance | None = None

    def compiling(self, what: str) -> None:
        with self._lock:  # helpers are waited for in threads of their own
            if self._advance is None:
                self._advance = self._line.enter_context(progress("compiling kernels", after=AFTER))
        self._advance(self.done, self.total, what)

    def close(self) -> None:
        self._line.close()


_kernels: ContextVar[Kernels | None] = ContextVar("aicf_kernels", default=None)


@contextmanager
def kernels(total: int) -> Iterator[Kernels]:
    """Whatever is compiled inside is one of these."""
    made = Kernels(total)
    token = _kernels.set(made)
    try:
        yield made
    finally:
        _kernels.reset(token)
        made.close()


@contextmanager
def compiling(what: str) -> Iterator[None]:
    """A kernel is compiled inside."""
    of = _kernels.get()
    alone = Kernels(None)
    try:
        (of or alone).compiling(what)
        yield
    finally:
        alone.close()
