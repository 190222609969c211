"""Exponentials, logarithms, roots and reciprocals beside exp, log and sqrt of arithmetic.py."""

from __future__ import annotations

import math

import numpy as np

from .schema import Real, elementwise

_LN_2, _LN_10 = math.log(2), math.log(10)


@elementwise("exp2", types=Real, alias="x")
def exp2(x):
    """2 to the power x."""
    return math.exp2(x)


@exp2.gradient
def _(emit, dy, y):
    return emit.scale(emit.mul(dy, y), factor=_LN_2)


@elementwise("expm1", types=Real, alias="x")
def expm1(x):
    """exp(x) - 1, precise where x is small."""
    return math.expm1(x)


@expm1.gradient
def _(emit, dy, x):
    return emit.mul(dy, emit.exp(x))


@elementwise("log1p", types=Real, alias="x")
def log1p(x):
    """log(1 + x), precise where x is small: -inf at -1, NaN below."""
    return math.log1p(x)


@log1p.gradient
def _(emit, dy, x):
    return emit.div(dy, emit.add(x, 1.0))


@elementwise("log2", types=Real, alias="x")
def log2(x):
    """The logarithm to base 2: -inf at 0, NaN below."""
    return math.log2(x)


@log2.gradient
def _(emit, dy, x):
    return emit.scale(emit.div(dy, x), factor=1 / _LN_2)


@elementwise("log10", types=Real, alias="x")
def log10(x):
    """The logarithm to base 10: -inf at 0, NaN below."""
    return math.log10(x)


@log10.gradient
def _(emit, dy, x):
    return emit.scale(emit.div(dy, x), factor=1 / _LN_10)


@elementwise("rsqrt", types=Real, alias="x")
def rsqrt(x):
    """1 / sqrt(x): inf at 0, NaN below."""
    return 1.0 / math.sqrt(x)


@rsqrt.reference
def _(x):
    return 1 / np.sqrt(x)


@rsqrt.gradient
def _(emit, dy, y):
    return emit.mul(emit.mul(emit.scale(dy, factor=-0.5), y), emit.square(y))


@elementwise("cbrt", types=Real, alias="x", continuous=True)
def cbrt(x):
    """The cube root, which has the sign of x. Its gradient at 0 is infinite."""
    size = abs(x)
    root = math.pow(size, 0.3333333333333333)
    root = root - (root - size / (root * root)) * 0.3333333333333333  # Newton: a third is no float
    return x if size == 0.0 or size - size != 0.0 else math.copysign(root, x)


@cbrt.gradient
def _(emit, dy, y):
    return emit.div(dy, emit.mul(emit.square(y), 3.0))


@elementwise("reciprocal", types=Real, alias="x")
def reciprocal(x):
    """1 / x."""
    return 1.0 / x


@reciprocal.gradient
def _(emit, dy, y):
    return emit.neg(emit.mul(dy, emit.square(y)))


for _schema, _numpy in (
    (exp2, np.exp2), (expm1, np.expm1), (log1p, np.log1p), (log2, np.log2), (log10, np.log10), (cbrt, np.cbrt),
    (reciprocal, np.reciprocal),
):  # fmt: skip
    _schema.reference(_numpy)
for _schema in (exp2, expm1, log1p, log2, log10, rsqrt, cbrt, reciprocal):
    for _shape in ((4, 7), (0, 3), ()):
        _schema.samples(_shape)
for _schema in (log1p, log2, log10, rsqrt, cbrt, reciprocal):
    _schema.draws(x=(0.1, 3))
