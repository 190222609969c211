"""Predictions, corrected by what regions like this one took when a GPU was calibrated.

Terms of a cost are physical and leave out what depends on a shape in ways that nobody has described: which slices of a cache rows meet in, how
clusters of blocks fill a chip. A calibration keeps, for each kernel, by how much measured regions took longer than predicted; the nearer a region is
to these, in `features` of its op, the more of it is applied (kernel ridge regression with a Gaussian of the distance). Far from all it is nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..device.calibration import Nearby
from ..device.spec import DeviceSpec
from ..rows import RegionSpec
from .cost import Cost

REACH = 3.0  # of features: a region so far away counts 0.6
NOISE = 0.3  # what a measured region is trusted less for, beside a weight of 1
MOST = 0.35  # the greatest logarithm of a correction: a factor of 1.42
TERM = "nearby regions"

Features = Callable[[RegionSpec], Sequence[float]]
FEATURES: dict[str, Features] = {}


def features(kind: str) -> Callable[[Features], Features]:
    """Registers what the regions of an op are compared by: numbers of which 1 is about as far in each, such as logarithms of sizes."""

    def add(function: Features) -> Features:
        FEATURES[kind] = function
        return function

    return add


class MeasuredRegion(NamedTuple):
    """Of a measured region: its features, and for each kernel the logarithm of measured over predicted time."""

    features: Sequence[float]
    logs: Mapping[str, float]


def fitted(residuals: Sequence[MeasuredRegion]) -> Nearby:
    """By ridge regression, for each kernel by itself."""
    points = np.array([r.features for r in residuals], np.float64)
    found = {}
    for id in sorted({id for r in residuals for id in r.logs}):
        at = [n for n, r in enumerate(residuals) if id in r.logs]
        logs = np.array([max(-2 * MOST, min(2 * MOST, residuals[n].logs[id])) for n in at])
        near = np.array([_closeness(points[at], points[n]) for n in at])
        found[id] = (at, np.linalg.solve(near + NOISE * np.eye(len(at)), logs).tolist())
    return Nearby(points.tolist(), found)


def _closeness(points: NDArray[np.float64], point: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.exp(((points - point) ** 2).sum(1) / (-2 * REACH**2))


@lru_cache(maxsize=1024)
def _of_region(region: RegionSpec, device: DeviceSpec) -> NDArray[np.float64]:
    """How close each measured region is: not at all, where a file of another version compares regions by other features."""
    kind = region.kind.name
    points = device.calibration.nearby[kind].points
    point = np.array(FEATURES[kind](region) if kind in FEATURES else (), np.float64)
    return _closeness(points, point) if points.shape[1:] == point.shape else np.zeros(len(points))


def corrected(kernel_id: str, region: RegionSpec, device: DeviceSpec, cost: Cost) -> Cost:
    """A kernel's cost with a term for what regions like it took beyond their predictions."""
    found = device.calibration.nearby.get(region.kind.name)
    if found is None or kernel_id not in found.kernels or not math.isfinite(us := cost.us):
        return cost
    factor = _factor(found.log_factor(kernel_id, _of_region(region, device)))
    return cost.plus(**{TERM: (factor - 1) * us})


def _factor(log: float) -> float:
    """Within bounds; and rounded, since last digits of NumPy's sums and exponentials depend on the processor and those of predictions must not."""
    return round(math.exp(max(-MOST, min(MOST, log))), 6)


def least_factor(region: RegionSpec, device: DeviceSpec) -> float:
    """What a correction leaves of a time at least."""
    return _factor(-MOST) if region.kind.name in device.calibration.nearby else 1.0
