"""The error function, its complement and its inverse."""

from __future__ import annotations

import math
from statistics import NormalDist

import numpy as np

from .activations import erf as erf_of_array
from .activations import erfc as erfc_of_array
from .schema import Real, elementwise

_SLOPE = 2 / math.sqrt(math.pi)


@elementwise("erf", types=Real, alias="x")
def erf(x):
    """2 / sqrt(pi) times the integral of exp(-t^2) from 0 to x."""
    return math.erf(x)


erf.reference(erf_of_array)


@erf.gradient
def _(emit, dy, x):
    return emit.scale(emit.mul(dy, emit.exp(emit.neg(emit.square(x)))), factor=_SLOPE)


@elementwise("erfc", types=Real, alias="x")
def erfc(x):
    """1 - erf(x), precise where x is large."""
    return math.erfc(x)


erfc.reference(erfc_of_array)


@erfc.gradient
def _(emit, dy, x):
    return emit.scale(emit.mul(dy, emit.exp(emit.neg(emit.square(x)))), factor=-_SLOPE)


def _nearer(y, size, one, half, factor):
    """A step of Halley's method towards the y whose erf is `size`; the numbers are 1, 1/2 and sqrt(pi) / 2, of the type of y."""
    off = math.erf(y) - size if size < half else (one - size) - math.erfc(y)
    step = off * (factor * math.exp(y * y))
    return y - step / (one + y * step)


@elementwise("erf_inv", types=Real, alias="x", continuous=True)
def erf_inv(x):
    """The number whose erf is x: infinite where |x| is 1, NaN beyond. Winitzki's formula, then two steps of Halley's method."""
    size = abs(x)
    log = math.log((1.0 - size) * (1.0 + size))
    k = 4.330746750799873 + 0.5 * log
    y = math.sqrt(abs(math.sqrt(k * k - log * 6.802721088435375) - k))
    y = _nearer(_nearer(y, size, 1.0, 0.5, 0.886226925452758), size, 1.0, 0.5, 0.886226925452758)
    return math.copysign(1.0 / (1.0 - size) if size == 1.0 else y, x)


def _inverse(x: float) -> float:
    if not abs(x) < 1:
        return math.copysign(math.inf, x) if abs(x) == 1 else math.nan
    if abs(x) < 1e-3:  # 1 + x would lose its digits: three terms of the series
        return x / _SLOPE * (1 + math.pi / 12 * x * x + 7 * math.pi**2 / 480 * x**4)
    tail = NormalDist().inv_cdf((1 - abs(x)) / 2) if abs(x) > 0.5 else -NormalDist().inv_cdf((1 + abs(x)) / 2)
    return math.copysign(-tail / math.sqrt(2), x)


@erf_inv.reference
def _(x):
    return np.vectorize(_inverse, otypes=[np.float64])(x).astype(x.dtype)


@erf_inv.gradient
def _(emit, dy, y):
    return emit.scale(emit.mul(dy, emit.exp(emit.square(y))), factor=1 / _SLOPE)


for _schema in (erf, erfc, erf_inv):
    for _shape in ((4, 7), (0, 3), ()):
        _schema.samples(_shape)
erf_inv.draws(x=(-0.99, 0.99))
