"""Fits the constants of predictions to measured times: by least squares of their logarithms, and then by coordinate descent of regret.

Least squares (Gauss-Newton, with a prior that holds each constant near its default) see how far predictions are off, and within a region by how
much more than each other's. Descent sees what selection needs, that the kernel of the least prediction is fast: the regret of a choice that is
softened, so that near misses count, and beside it how far predictions are off.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from ..device.calibration import Calibration, names
from ..device.spec import DeviceSpec
from ..registry.registry import KernelRegistry
from ..rows import RegionSpec

SOFT = 0.03  # a kernel that is predicted so much longer counts 1/e of the chosen one
ERROR, MOVED = 0.2, 0.1  # weights of predictions' errors and of constants' ways, beside regret
NEAR = 2.0  # errors are those of kernels that take up to so many times the best's time
STEPS = 1.1, 1.05  # of a constant, in each round of descent
SQUARES = 3  # rounds of least squares
PRIOR, LONGEST = (
    0.5,
    0.35,
)  # weight of a constant's logarithm beside those of predictions, and its longest step
ALONE, ROBUST = (
    0.3,
    0.15,
)  # weight of an error that all kernels of a region share; errors from which on they count less
TOLD_APART = 0.02  # the step that derivatives are taken by


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
        """All rounds; the calibration that was found."""
        for n in range(SQUARES):
            self._least_squares()
            say(f"least squares, round {n + 1}: {self.judged()}")
        for step in STEPS:
            self._descend(step)
            say(f"descent by {step}: {self.judged()}")
        return self.calibration

    def _least_squares(self) -> None:
        """One step of Gauss-Newton, halved until the errors are smaller."""
        near = [
            [k for k in row if self.kernels[k][3] < NEAR * min(self.kernels[j][3] for j in row)]
            for row in self.rows
        ]
        order = [k for row in near for k in row]
        changed = {name: self._derivative(name, order) for name, value in self.values.items() if value}
        slopes = {name: found for name, found in changed.items() if found.any()}
        if not slopes:
            return
        used = list(slopes)
        jacobian, errors = np.stack([slopes[name] for name in used], 1), self._errors(order, self.predicted)
        rows, weights = _centered([len(row) for row in near])
        shares = weights / np.maximum(1.0, np.abs(rows @ errors) / ROBUST)
        whole, aims = rows @ jacobian * shares[:, None], rows @ errors * shares
        moved = np.array(
            [math.log(self.values[name] / self.start[name]) if self.start[name] else 0.0 for name in used]
        )
        inverse = whole.T @ whole + PRIOR * np.eye(len(used))
        step = np.clip(-np.linalg.solve(inverse, whole.T @ aims + PRIOR * moved), -LONGEST, LONGEST)
        before = float(aims @ aims) + PRIOR * float(moved @ moved)
        for share in (1.0, 0.5, 0.25):
            values = {name: self.values[name] * math.exp(share * d) for name, d in zip(used, step)}
            calibration = self.calibration.with_values(values)
            predicted = self._predict(calibration, range(len(self.kernels)))
            errors = (rows @ self._errors(order, predicted)) * shares
            if (
                float(errors @ errors) + PRIOR * float((moved + share * step) @ (moved + share * step))
                < before
            ):
                self.calibration, self.predicted = calibration, predicted
                self.values.update(values)
                return

    def _derivative(self, name: str, kernels: Sequence[int]) -> NDArray[np.float64]:
        """Of the logarithms of predictions, by that of a constant."""
        by = math.exp(TOLD_APART)
        sides = [
            self._predict(self.calibration.with_values({name: self.values[name] * f}), kernels)
            for f in (by, 1 / by)
        ]
        return np.array([math.log(sides[0][k] / sides[1][k]) for k in kernels]) / (2 * TOLD_APART)

    def _errors(self, kernels: Sequence[int], predicted: Mapping[int, float]) -> NDArray[np.float64]:
        return np.array([math.log(predicted[k] / self.kernels[k][3]) for k in kernels])

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


def _centered(sizes: Sequence[int]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Rows of a matrix that takes errors of regions, of so many kernels each, to those within each region and its mean; and their weights."""
    number = sum(sizes)
    rows, weights, at = [], [], 0
    for size in sizes:
        mean = np.zeros(number)
        mean[at : at + size] = 1 / size
        rows += [np.eye(1, number, at + k)[0] - mean for k in range(size)] + [mean]
        weights += [1 / math.sqrt(size)] * size + [ALONE]
        at += size
    return np.array(rows), np.array(weights)


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
