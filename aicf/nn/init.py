"""Initialisers: functions of (shape, rng) that give a tensor its first value. The rng is seeded for each tensor by name.

They are records, so that a model with them can be compared, copied and pickled; a plain function does as well. The fan of a
weight of shape (out, in) is its `in`; Glorot uses both. Sources: He et al. 2015, Glorot and Bengio 2010; the default of
Linear, kaiming_uniform(sqrt 5), is PyTorch's.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

__all__ = ["constant", "kaiming_uniform", "normal", "ones", "uniform", "xavier_uniform", "zeros"]

Shape = tuple[int, ...]


def __dir__() -> list[str]:
    return __all__


@dataclass(frozen=True)
class constant:
    """The same value everywhere."""

    value: float

    def __call__(self, shape: Shape, rng: np.random.Generator) -> np.ndarray:
        return np.full(shape, self.value)


zeros, ones = constant(0.0), constant(1.0)


@dataclass(frozen=True)
class uniform:
    """U(low, high)."""

    low: float = -1.0
    high: float = 1.0

    def __call__(self, shape: Shape, rng: np.random.Generator) -> np.ndarray:
        return rng.uniform(self.low, self.high, shape)


@dataclass(frozen=True)
class normal:
    """N(mean, std^2)."""

    std: float = 1.0
    mean: float = 0.0

    def __call__(self, shape: Shape, rng: np.random.Generator) -> np.ndarray:
        return rng.normal(self.mean, self.std, shape)


@dataclass(frozen=True)
class kaiming_uniform:
    """U(-b, b) with b = sqrt(6 / ((1 + a^2) fan_in)): keeps the variance through leaky ReLUs of slope a."""

    a: float = 0.0

    def __call__(self, shape: Shape, rng: np.random.Generator) -> np.ndarray:
        bound = math.sqrt(6.0 / ((1.0 + self.a * self.a) * max(_fan_in(shape), 1)))
        return rng.uniform(-bound, bound, shape)


@dataclass(frozen=True)
class xavier_uniform:
    """U(-b, b) with b = gain sqrt(6 / (fan_in + fan_out)): keeps it through tanh."""

    gain: float = 1.0

    def __call__(self, shape: Shape, rng: np.random.Generator) -> np.ndarray:
        bound = self.gain * math.sqrt(6.0 / max(_fan_in(shape) + shape[0], 1))
        return rng.uniform(-bound, bound, shape)


def _fan_in(shape: Shape) -> int:
    return int(np.prod(shape[1:])) if len(shape) > 1 else shape[0] if shape else 1
