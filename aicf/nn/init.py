"""Initialisers: functions of (shape, rng) that give a tensor its first value. The rng is seeded for each tensor by name.

The fan of a weight of shape (out, in) is its `in`; Glorot uses both. Sources: He et al. 2015, Glorot and Bengio 2010; the
default of Linear, kaiming_uniform(sqrt 5), is PyTorch's.
"""

from __future__ import annotations

import math

import numpy as np

from ..ir import Initializer


def constant(value: float) -> Initializer:
    return lambda shape, rng: np.full(shape, value)


zeros, ones = constant(0.0), constant(1.0)


def uniform(low: float = -1.0, high: float = 1.0) -> Initializer:
    return lambda shape, rng: rng.uniform(low, high, shape)


def normal(std: float = 1.0, mean: float = 0.0) -> Initializer:
    return lambda shape, rng: rng.normal(mean, std, shape)


def kaiming_uniform(a: float = 0.0) -> Initializer:
    """U(-b, b) with b = sqrt(6 / ((1 + a^2) fan_in)): keeps the variance through leaky ReLUs of slope a."""

    def init(shape: tuple[int, ...], rng: np.random.Generator) -> np.ndarray:
        bound = math.sqrt(6.0 / ((1.0 + a * a) * max(_fan_in(shape), 1)))
        return rng.uniform(-bound, bound, shape)

    return init


def xavier_uniform(gain: float = 1.0) -> Initializer:
    """U(-b, b) with b = gain sqrt(6 / (fan_in + fan_out)): keeps it through tanh."""

    def init(shape: tuple[int, ...], rng: np.random.Generator) -> np.ndarray:
        bound = gain * math.sqrt(6.0 / max(_fan_in(shape) + shape[0], 1))
        return rng.uniform(-bound, bound, shape)

    return init


def _fan_in(shape: tuple[int, ...]) -> int:
    return int(np.prod(shape[1:])) if len(shape) > 1 else shape[0] if shape else 1
