"""Fits predictions to measured times: constants by coordinate descent, then the residuals by regression over similar regions.

Descent minimizes the regret of a softmax over predictions, so that near misses count, plus two penalties: the error of predictions, which keeps
constants physical, and the distance of constants from their defaults. registry/nearby.py fits and applies the residuals.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ..device.calibration import Calibration, names
from ..device.spec import DeviceSpec
from ..registry.nearby import FEATURES, MeasuredKernel, MeasuredRegion, fitted, shares
from ..registry.registry import KernelRegistry
from ..rows import RegionSpec

SOFT = 0.08  # temperature: a kernel predicted 8 % slower than the best weighs 1/e of it
ERROR, MOVED = (
    2.0,
    0.1,
)  # weights of the two penalties: the error of predictions, the distance of constants from defaults
LEARNT = 2.5  # residuals are fitted to kernels up to this many times as slow as the best
NEAR = 2.0  # errors are averaged over kernels up to this many times as slow as the best
OUTLIER = 8.0  # times above this multiple of the prediction are dropped: the first look at a kernel may include its loading
STEPS = 1.2, 1.1, 1.05  # factors that each round tries on a constant


@dataclass(frozen=True)
class Sample:
    """A region, and the microseconds of each kernel that was timed on it."""

    region: RegionSpec
    times: Mapping[str, float]


@dataclass(frozen=True)
class Judged:
    """Of samples: mean regret, the share of them over 10 %, and the mean factor that predictions are off by, all less one."""

    regret: float
    over: float
    off: float
    number: int

    def __str__(self) -> str:
        return f"regret {self.regret:.2%}, over 10 % {self.over:.1%}, predictions off by {self.off:.0%}, {self.number} regions"


class Fit:
    """Samples of a device and their predictions, of which only those that depend on a changed constant are computed again."""

    def __init__(
        self, samples: Sequence[Sample], device: DeviceSpec, registry: KernelRegistry, seed: int = 0
    ) -> None:
        self.device, self.rng = device, random.Random(seed)
        self.kernels = [
            (number, s.region, registry.by_id(id), us)
            for number, s in enumerate(samples)
            for id, us in s.times.items()
            if id in registry
            and registry.by_id(id).supported(s.region, device) is None
            and us <= OUTLIER * registry.by_id(id).predicted(s.region, device)[1]
        ]
        rows = [[] for _ in samples]  # type: list[list[int]]
        for k, (number, *_) in enumerate(self.kernels):
            rows[number].append(k)
        self.rows = [row for row in rows if len(row) > 1]
        self.calibration = device.calibration
        self.predicted = self._predict(self.calibration, range(len(self.kernels)))
        self.start = dict(names())
        self.values = {name: self.calibration.values.get(name, usual) for name, usual in self.start.items()}
        self.affected: dict[str, list[int]] = {}

    def _predict(self, calibration: Calibration, kernels: Sequence[int]) -> dict[int, float]:
        device = replace(self.device, calibration=calibration)
        return {k: self.kernels[k][2].predicted(self.kernels[k][1], device)[1] for k in kernels}

    def run(self, say: Callable[[str], None] = lambda text: None) -> Calibration:
        """Run all rounds of descent, fit the residuals, and return the calibration."""
        self.calibration = self.calibration.with_measured({})
        self.predicted = self._predict(self.calibration, range(len(self.kernels)))
        for n, step in enumerate(STEPS):
            self._descend(step)
            say(f"round {n + 1} of {len(STEPS)}: {self.judged()}")
        self.calibration = self.calibration.with_measured(self.residuals())
        self.predicted = self._predict(self.calibration, range(len(self.kernels)))
        return self.calibration

    def residuals(self) -> dict[str, Any]:
        """Residuals of the ops that have features, as JSON of a calibration."""
        found: dict[str, list[MeasuredRegion]] = {}
        device = replace(self.device, calibration=self.calibration)
        for row in self.rows:
            region, best = self.kernels[row[0]][1], min(self.kernels[k][3] for k in row)
            if (kind := region.kind.name) not in FEATURES:
                continue
            kernels = {}
            for k in row:
                _, _, variant, us = self.kernels[k]
                if us < LEARNT * best:
                    cost = variant.cost(region, device)
                    kernels[variant.id] = MeasuredKernel(math.log(us / cost.us), shares(cost))
            found.setdefault(kind, []).append(MeasuredRegion(FEATURES[kind](region), kernels))
        return {kind: fitted(residuals).to_json() for kind, residuals in found.items()}

    def _descend(self, step: float) -> None:
        """One round over all constants in random order: each moves a step up or down where the goal falls."""
        parts = self._parts(self.predicted)
        best = self._goal(parts)
        self._look()
        order = [name for name, kernels in self.affected.items() if kernels]
        self.rng.shuffle(order)
        for name in order:
            for factor in (step, 1 / step) if self.rng.random() < 0.5 else (1 / step, step):
                if (better := self._tried(name, self.values[name] * factor, parts, best)) is not None:
                    best, parts = better
                    break

    def _look(self) -> None:
        """Find the kernels whose predictions depend on each constant."""
        everyone = range(len(self.kernels))
        for name, value in self.values.items():
            if not value:
                continue
            seen = [
                self._predict(self.calibration.with_values({name: value * f}), everyone) for f in (1.4, 0.7)
            ]
            self.affected[name] = [k for k in everyone if any(s[k] != self.predicted[k] for s in seen)]

    def _tried(
        self, name: str, value: float, parts: list[float], best: float
    ) -> tuple[float, list[float]] | None:
        """Set a constant if the goal falls, and return the new goal and its parts; None if it does not fall."""
        trial = self.calibration.with_values({name: value})
        changed = self._predict(trial, self.affected[name])
        predicted = {**self.predicted, **changed}
        touched = {self.kernels[k][0] for k in changed}
        made = [
            self._part(row, predicted) if self.kernels[row[0]][0] in touched else part
            for row, part in zip(self.rows, parts)
        ]
        was, self.values[name] = self.values[name], value
        goal = self._goal(made)
        if goal < best - 1e-7:
            self.calibration, self.predicted = trial, predicted
            return goal, made
        self.values[name] = was
        return None

    def _goal(self, parts: Sequence[float]) -> float:
        ways = [
            math.log(value / self.start[name]) ** 2
            for name, value in self.values.items()
            if value and self.start[name]
        ]
        return sum(parts) / max(1, len(parts)) + MOVED * sum(ways) / max(1, len(ways))

    def _parts(self, predicted: Mapping[int, float]) -> list[float]:
        return [self._part(row, predicted) for row in self.rows]

    def _part(self, row: Sequence[int], predicted: Mapping[int, float]) -> float:
        """Of one region: its softened regret, and the error of its predictions."""
        times = [self.kernels[k][3] for k in row]
        least, best = min(predicted[k] for k in row), min(times)
        weights = [math.exp(-(predicted[k] / least - 1) / SOFT) for k in row]
        soft = sum(w * us for w, us in zip(weights, times)) / sum(weights) / best - 1
        near = [abs(math.log(predicted[k] / us)) for k, us in zip(row, times) if us < NEAR * best]
        return soft + ERROR * sum(near) / len(near)

    def judged(self) -> Judged:
        """Of these samples, by the predictions as they are."""
        return _judged([[(self.predicted[k], self.kernels[k][3]) for k in row] for row in self.rows])


def judge(samples: Sequence[Sample], device: DeviceSpec, registry: KernelRegistry) -> Judged:
    """How good the choices and predictions for a device are, on samples."""
    return Fit(samples, device, registry).judged()


def _judged(rows: Sequence[Sequence[tuple[float, float]]]) -> Judged:
    regrets, off = list[float](), list[float]()
    for row in rows:
        best = min(us for _, us in row)
        regrets.append(min(row)[1] / best - 1)
        off += [abs(math.log(predicted / us)) for predicted, us in row if us < NEAR * best]
    n = max(1, len(regrets))
    return Judged(
        sum(regrets) / n,
        sum(r > 0.1 for r in regrets) / n,
        math.expm1(sum(off) / max(1, len(off))),
        len(regrets),
    )
