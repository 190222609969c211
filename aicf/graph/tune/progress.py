"""A progress bar on stderr, where that is a terminal."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bar

Progress = Callable[[int, int, str], None]  # regions done, regions known of, the one in work


def no_progress(done: int, total: int, what: str) -> None:
    pass


@contextmanager
def progress_bar() -> Iterator[Progress]:
    console = Console(stderr=True)
    if not console.is_terminal:
        yield no_progress
        return
    columns = (
        TextColumn("tuning"), MofNCompleteColumn(), BarColumn(), TimeElapsedColumn(), TextColumn("{task.description}"),
    )  # fmt: skip
    with Bar(*columns, console=console, transient=True) as bar:
        task = bar.add_task("", total=None)

        def advance(done: int, total: int, what: str) -> None:
            bar.update(task, completed=done, total=total, description=what)

        yield advance
