"""Samples and their statistics: median, interquartile range, number; and alternating samples of the sides of a comparison."""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

Sample = Callable[[], float]  # takes one measurement; seconds for each call of what is measured
Now = Callable[[], float]

LEAST_ROUNDS = 3


@dataclass(frozen=True)
class Stats:
    """Seconds, usually; `per` and `rate` convert them to other units."""

    median: float
    iqr: float = 0.0
    n: int = 1

    @classmethod
    def of(cls, samples: Iterable[float]) -> Stats:
        values = sorted(samples)
        if len(values) < 2:
            return cls(values[0])
        low, _, high = statistics.quantiles(values, n=4, method="inclusive")
        return cls(statistics.median(values), high - low, len(values))

    @property
    def spread(self) -> float:
        """The interquartile range as a share of the median."""
        return self.iqr / self.median if self.median else 0.0

    def per(self, unit: float) -> Stats:
        """In units of so many seconds: `per(1e-6)` is microseconds."""
        return Stats(self.median / unit, self.iqr / unit, self.n)

    def rate(self, work: float) -> Stats:
        """So much work, divided by the time. The spread stays the same share."""
        return Stats(work / self.median, work / self.median * self.spread, self.n)


def interleave(
    sides: Mapping[str, Sample], rounds: int, deadline: float = float("inf"), now: Now = time.monotonic
) -> dict[str, Stats]:
    """Sample the sides there and back, A B B A, so that drifting clocks meet all of them alike and none always follows the same one,
    which may have left the chip hot; each once before it counts.

    Stops at the deadline with what there is, though not before every side has a few samples.
    """
    taken: dict[str, list[float]] = {name: [] for name in sides}
    collecting = gc.isenabled()
    try:
        for sample in sides.values():
            sample()
        gc.disable()
        for done in range(rounds):
            if done >= min(LEAST_ROUNDS, rounds) and now() >= deadline:
                break
            for name in list(sides)[:: -1 if done % 2 else 1]:
                taken[name].append(sides[name]())
    finally:
        if collecting:
            gc.enable()
    return {name: Stats.of(values) for name, values in taken.items()}


def nothing() -> None:
    pass


def host(call: Callable[[], object], calls: int, sync: Callable[[], object] = nothing) -> Sample:
    """Time on the host alone: what the calls set off is waited for, but not counted."""

    def sample() -> float:
        sync()
        start = time.perf_counter()
        for _ in range(calls):
            call()
        seconds = time.perf_counter() - start
        sync()
        return seconds / calls

    return sample


def wall(call: Callable[[], object], calls: int, sync: Callable[[], object] = nothing) -> Sample:
    """Time until the work of all calls is done."""

    def sample() -> float:
        sync()
        start = time.perf_counter()
        for _ in range(calls):
            call()
        sync()
        return (time.perf_counter() - start) / calls

    return sample


def enough(
    call: Callable[[], object], seconds: float, limit: int = 1000, sync: Callable[[], object] = nothing
) -> int:
    """How many calls take about so long, by a first look that also warms up."""
    for _ in range(2):
        call()
    look = wall(call, 3, sync)()
    return max(1, min(limit, int(seconds / max(look, 1e-9))))
