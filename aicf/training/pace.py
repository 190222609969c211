"""How fast a training run is."""

from __future__ import annotations

from dataclasses import dataclass

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
