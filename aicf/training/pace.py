"""How fast a training run is, and the bar that shows it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.progress import Progress as Bar

from .checkpoints import Progress

OVER = 0.7  # of what is shown, how much is the one before


@dataclass
class TrainingPace:
    """Items a second, and the share of the device's peak: smoothed from row to row.

    items   since the last row
    least   seconds that the runs since then take at the peak; None where that is not known
    since   when the last row was, later by what is no part of the pace
    """

    items: int = 0
    least: float | None = None
    since: float = 0.0
    rate: float | None = None
    peak: float | None = None

    def ran(self, items: int, least: float | None) -> None:
        """One run."""
        self.items += items
        self.least = self.least if least is None else (self.least or 0.0) + least

    def tell(self, now: float) -> None:
        """A row."""
        took = now - self.since
        if self.items and took > 0:
            self.rate = _smooth(self.rate, self.items / took)
            self.peak = None if self.least is None else _smooth(self.peak, self.least / took)
            self.items, self.least = 0, None
        self.since = now

    def __str__(self) -> str:
        share = "" if self.peak is None else f" · {self.peak:.0%} of peak"
        if self.rate is None:
            return f"–/s{share}"
        shown = f"{self.rate:,.0f}" if self.rate < 1e5 else f"{self.rate / 1e3:,.0f} k"
        return f"{shown}/s{share}"


def _smooth(before: float | None, new: float) -> float:
    return new if before is None else OVER * before + (1 - OVER) * new


@contextmanager
def progress_bar(wanted: bool | None, total: int | None) -> Iterator[Callable[[Progress, str], None]]:
    """`show(place, text)`; by default where stderr is a terminal."""
    console = Console(stderr=True)
    off = not (console.is_terminal if wanted is None else wanted)
    columns = (
        TextColumn("step"), MofNCompleteColumn(), BarColumn(20), TextColumn("{task.description}"), TimeElapsedColumn(),
        TimeRemainingColumn(),
    )  # fmt: skip
    with Bar(*columns, console=console, disable=off, redirect_stdout=sys.stdout.isatty()) as bar:
        task = bar.add_task("", total=total)
        yield lambda place, text: bar.update(task, completed=place.step, description=text)
