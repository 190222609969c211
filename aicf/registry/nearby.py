"""Predictions, corrected by measured times of similar regions.

The physical terms of a cost miss effects of shape that have no model yet, such as conflicts in cache slices, or how clusters of blocks fill the
multiprocessors. A calibration stores, for each kernel, the logarithm of measured over predicted time on measured regions. Kernel ridge regression
with a Gaussian kernel predicts it for other regions. Near are regions with similar `features` of the op, on which the kernel's predicted time has the
same causes: what is missed where memory is the limit says little about where the last wave is. Far from all measured regions the correction vanishes.
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

CAUSES = (
    ("launch", "latency"),
    ("memory",),
    ("L2",),
    ("compute",),
    ("tile padding", "idle multiprocessors", "wave tail"),
    ("epilogue",),
    ("dependent steps",),
)  # terms of a cost, whose shares say what a prediction consists of
SHARE = 9.0  # distance of two predictions, one of which is of a cause alone and the other not at all
REACH = 4.0  # length scale: a region at this distance weighs 0.6
NOISE = 0.4  # ridge: variance of the noise, where a residual has variance 1
LARGEST = 0.35  # logarithm of a correction: a factor of 1.42
TERM = "nearby regions"

Features = Callable[[RegionSpec], Sequence[float]]
FEATURES: dict[str, Features] = {}


def features(kind: str) -> Callable[[Features], Features]:
    """Register the features of an op: numbers scaled alike, such as logarithms of sizes, whose distance says how similar two regions are."""

    def add(function: Features) -> Features:
        FEATURES[kind] = function
        return function

    return add


class MeasuredKernel(NamedTuple):
    """Of a kernel on a measured region: the logarithm of measured over predicted time, and the `shares` of its predicted time."""

    log: float
    shares: Sequence[int]


class MeasuredRegion(NamedTuple):
    """Features of a measured region, and its kernels."""

    features: Sequence[float]
    kernels: Mapping[str, MeasuredKernel]


def shares(cost: Cost) -> tuple[int, ...]:
    """Of each of CAUSES in a predicted time, in hundredths."""
    return tuple(round(100 * sum(cost.terms.get(term, 0.0) for term in terms) / cost.us) for terms in CAUSES)


def fitted(residuals: Sequence[MeasuredRegion]) -> Nearby:
    """Ridge regression of the residuals, for each kernel separately."""
    points = np.array([r.features for r in residuals], np.float64)
    found = {}
    for id in sorted({id for r in residuals for id in r.kernels}):
        at = [n for n, r in enumerate(residuals) if id in r.kernels]
        kernels = [residuals[n].kernels[id] for n in at]
        logs = np.array([max(-2 * LARGEST, min(2 * LARGEST, k.log)) for k in kernels])
        of = np.array([k.shares for k in kernels], np.float64)
        near = np.array([_closeness(points[at], points[n]) * _alike(of, s) for n, s in zip(at, of)])
        weights = np.linalg.solve(near + NOISE * np.eye(len(at)), logs)
        found[id] = (at, weights.tolist(), of.astype(int).tolist())
    return Nearby(points.tolist(), found)


def _closeness(points: NDArray[np.float64], point: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.exp(((points - point) ** 2).sum(1) / (-2 * REACH**2))


def _alike(shares: NDArray[np.float64], other: NDArray[np.float64]) -> NDArray[np.float64]:
    """By the causes of predicted times, as `_closeness` is by regions."""
    apart = shares - other
    return np.exp(np.einsum("ij,ij->i", apart, apart) * ((SHARE / 100) ** 2 / (-2 * REACH**2)))


@lru_cache(maxsize=1024)
def _of_region(region: RegionSpec, device: DeviceSpec) -> NDArray[np.float64]:
    """Weight of each measured region; zeros where a file of another version has other features."""
    kind = region.kind.name
    points = device.calibration.nearby[kind].points
    point = np.array(FEATURES[kind](region) if kind in FEATURES else (), np.float64)
    return _closeness(points, point) if points.shape[1:] == point.shape else np.zeros(len(points))


def corrected(kernel_id: str, region: RegionSpec, device: DeviceSpec, cost: Cost) -> Cost:
    """A kernel's cost with the correction as a term of its own."""
    found = device.calibration.nearby.get(region.kind.name)
    if found is None or kernel_id not in found.kernels or not math.isfinite(us := cost.us):
        return cost
    at, weights, of = found.kernels[kernel_id]
    near = _of_region(region, device)[at] * _alike(of, np.array(shares(cost), np.float64))
    factor = _factor(float(near @ weights))
    return cost.plus(**{TERM: (factor - 1) * us})


def _factor(log: float) -> float:
    """Within bounds; and rounded, since last digits of NumPy's sums and exponentials depend on the processor and those of predictions must not."""
    return round(math.exp(max(-LARGEST, min(LARGEST, log))), 6)


def least_factor(region: RegionSpec, device: DeviceSpec) -> float:
    """The smallest factor that a correction may be."""
    return _factor(-LARGEST) if region.kind.name in device.calibration.nearby else 1.0
