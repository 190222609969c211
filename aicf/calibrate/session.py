"""Measuring a draw: regions of published models that have a choice among kernels, one after the other, until the time is up."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import islice
from typing import Protocol

from ..device.calibration import DEFAULT
from ..device.spec import DeviceSpec
from ..errors import AicfError, TuningError
from ..progress import Advance, no_progress
from ..registry.measured import Measured, counted
from ..registry.registry import KernelRegistry
from ..registry.select import select
from ..rows import RegionSpec
from .published import Drawn, endless
from .times import Line, line_of

NEAR = 2.0  # kernels that are predicted to take up to so many times the best one's time are measured
MOST_US = 3000.0  # of the chosen kernel, as predicted
AT_ONCE = 8  # regions whose kernels are compiled together
OF_STEP = 4  # regions of a step, at most


class Measures(Protocol):
    """What a session needs of a Bench."""

    def prepare(self, kernels: Sequence[tuple[str, RegionSpec]]) -> None: ...

    def region(self, region: RegionSpec, kernels: Sequence[str], deadline: float) -> Measured: ...


def drawn(draw: str, device: DeviceSpec, registry: KernelRegistry) -> Iterator[Drawn]:
    """Regions with a choice, without end. The constants of the package's defaults decide which: a draw is the same after a calibration."""
    usual = replace(device, calibration=DEFAULT)
    return endless(draw, usual, lambda region: len(candidates(region, usual, registry)) > 1, OF_STEP)


def candidates(region: RegionSpec, device: DeviceSpec, registry: KernelRegistry) -> list[str]:
    """Ids of the kernels that are predicted to be about as fast as the best one; none for a region that takes too long to measure."""
    try:
        selection = select(region, device, registry)
    except AicfError:
        return []
    if selection.chosen.us > MOST_US:
        return []
    return [c.variant.id for c in selection.ranked if c.us <= NEAR * selection.chosen.us]


def measure(
    regions: Iterator[Drawn], draw: str, known: frozenset[str], device: DeviceSpec, registry: KernelRegistry, bench: Measures,
    seconds: float, keep: Callable[[Line], None], progress: Advance = no_progress, clock: Callable[[], float] = time.monotonic,
) -> int:  # fmt: skip
    """Measure regions of a draw until the time is up; how many were. What is measured goes to `keep` at once.

    known  keys of regions that were measured before
    """
    start, count, numbered = clock(), 0, enumerate(regions)
    new = ((n, d) for n, d in numbered if d.region.key not in known)
    while clock() - start < seconds and (some := list(islice(new, AT_ONCE))):
        wanted = [(n, d, candidates(d.region, device, registry)) for n, d in some]
        progress(int(clock() - start), int(seconds), "compiling kernels")
        bench.prepare([(id, d.region) for _, d, ids in wanted for id in ids])
        for n, d, ids in wanted:
            if clock() - start >= seconds:
                break
            progress(int(clock() - start), int(seconds), f"{counted(count, 'region')}, {d}")
            keep(_measured(n, d, ids, draw, bench, clock, keep))
            count += 1
    return count


def _measured(
    n: int, d: Drawn, ids: Sequence[str], draw: str, bench: Measures, clock: Callable[[], float], keep: Callable[[Line], None]
) -> Line:  # fmt: skip
    """A region's times. Where none can be measured the line says why, so that a run that goes on does not try it again."""
    try:
        return line_of(draw, n, str(d.step), bench.region(d.region, ids, clock()))
    except TuningError as error:  # the device is lost
        keep(Line(draw, n, str(d.step), d.region, {}, {"device": error.what}))
        raise
    except Exception as error:
        return Line(draw, n, str(d.step), d.region, {}, {"region": repr(error)})
