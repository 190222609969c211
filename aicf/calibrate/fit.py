"""Fits predictions to measured times: constants by coordinate descent, and then what they leave by regions that are like each other.

The goal of descent is what selection needs: that the kernel of the least prediction is fast. It is the regret of a choice that is softened, so that
near misses count, and beside it how far predictions are off, so that constants stay physical, and how far constants moved. Residuals are for
registry/nearby.py.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from ..device.calibration import Calibration, names
from ..device.spec import DeviceSpec
from ..registry.nearby import FEATURES, MeasuredRegion, fitted
from ..registry.registry import KernelRegistry
from ..rows import RegionSpec

SOFT = 0.03  # a kernel that is predicted so much longer counts 1/e of the chosen one
ERROR, MOVED = 0.2, 0.1  # weights of predictions' errors and of constants' ways, beside regret
LEARNT = 2.5  # residuals are those of kernels that take up to so many times the best's time
NEAR = 2.0  # errors are those of kernels that take up to so many times the best's time
STEPS = 1.2, 1.1, 1.05  # of a constant, in each round


@dataclass(frozen=True)
class Sample:
    """A region, and the microseconds of each kernel that was timed on it."""

    region: RegionSpec
    times: Mapping[str, float]

    @cached_property
    def best(self) -> float:
        return min(self.times.values())


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
    """Samples of a device, and predictions for them that are made anew where a constant matters."""

    def __init__(
        self, samples: Sequence[Sample], device: DeviceSpec, registry: KernelRegistry, seed: int = 0
    ) -> None:
        self.device, self.rng = device, random.Random(seed)
        self.kernels = [
            (number, s.region, registry.by_id(id), us)
            for number, s in enumerate(samples)
            for id, us in s.times.items()
            if id in registry and registry.by_id(id).supported(s.region, device) is None
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
        """All rounds, and then the residuals; the calibration that was found."""
        self.calibration = self.calibration.with_measured({})
        self.predicted = self._predict(self.calibration, range(len(self.kernels)))
        for n, step in enumerate(STEPS):
            self._descend(step)
            say(f"round {n + 1} of {len(STEPS)}: {self.judged()}")
        self.calibration = self.calibration.with_measured(self.residuals())
        self.predicted = self._predict(self.calibration, range(len(self.kernels)))
        return self.calibration

    def residuals(self) -> dict[str, Any]:
        """Of ops that have features: what is left of measured times, as a calibration keeps it."""
        found: dict[str, list[MeasuredRegion]] = {}
        for row in self.rows:
            region, best = self.kernels[row[0]][1], min(self.kernels[k][3] for k in row)
            if (kind := region.kind.name) not in FEATURES:
                continue
            logs = {
                self.kernels[k][2].id: math.log(self.kernels[k][3] / self.predicted[k])
                for k in row
                if self.kernels[k][3] < LEARNT * best
            }
            found.setdefault(kind, []).append(MeasuredRegion(FEATURES[kind](region), logs))
        return {kind: fitted(residuals).to_json() for kind, residuals in found.items()}

    def _descend(self, step: float) -> None:
        """One round over all constants, in any order, each a step up or down where that is better."""
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
        """Finds the kernels whose prediction each constant changes, a little or a lot."""
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
        """The goal and its parts with another value, if that is better; then it is kept."""
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
