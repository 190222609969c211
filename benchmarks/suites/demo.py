"""What `aicf demo` says of itself: what it learns, and how long a step takes. There is no peer."""

from __future__ import annotations

import io
from collections.abc import Iterator

from rich.console import Console

import aicf.demo

from ..harness import Bench, Case, Suite, WrongResult
from ..results import Row, row
from ..stats import Stats

LEAST_ACCURACY = 0.97


def cases(bench: Bench) -> list[Case]:
    return [Case("demo", _measure, seconds=0.0 if bench.tiny else 10.0)]


def _measure(bench: Bench) -> Iterator[Row]:
    epochs = 1 if bench.tiny else aicf.demo.EPOCHS
    figures = aicf.demo.run(bench.device, epochs=epochs, console=Console(file=io.StringIO()))
    accuracy = figures["test_accuracy"]
    lowest = 0.3 if bench.tiny else LEAST_ACCURACY
    if not accuracy >= lowest:
        raise WrongResult(f"test accuracy is {accuracy:.2%}, expected at least {lowest:.0%}")
    yield row(f"test accuracy after {epochs} epochs", "%", Stats(100 * accuracy))
    for how, us in figures["step_us"].items():
        yield row(f"train step, batch {aicf.demo.BATCH}, {how}", "us", Stats(us))


SUITE = Suite("demo", "the demo's own numbers: test accuracy and time of a step", 120, cases)
