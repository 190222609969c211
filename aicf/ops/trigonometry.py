"""Trigonometric and hyperbolic functions and their inverses. Angles are in radians; outside of a function's domain it is NaN."""

from __future__ import annotations

import math

import numpy as np

from .arithmetic import unbroadcast
from .schema import Real, elementwise


def _one_less_square(emit, x):
    """1 - x^2, as precise where |x| is almost 1."""
    return emit.mul(emit.sub(1.0, x), emit.add(x, 1.0))


@elementwise("sin", types=Real, alias="x")
def sin(x):
    """The sine; of an infinity it is NaN."""
    return math.sin(x)


@sin.gradient
def _(emit, dy, x):
    return emit.mul(dy, emit.cos(x))


@elementwise("cos", types=Real, alias="x")
def cos(x):
    """The cosine; of an infinity it is NaN."""
    return math.cos(x)


@cos.gradient
def _(emit, dy, x):
    return emit.neg(emit.mul(dy, emit.sin(x)))


@elementwise("tan", types=Real, alias="x")
def tan(x):
    """The tangent; of an infinity it is NaN."""
    return math.tan(x)


@tan.gradient
def _(emit, dy, y):
    return emit.mul(dy, emit.add(emit.square(y), 1.0))


@elementwise("asin", types=Real, alias="x")
def asin(x):
    """The angle in [-pi/2, pi/2] whose sine is x; NaN where |x| > 1."""
    return math.asin(x)


@asin.gradient
def _(emit, dy, x):
    return emit.mul(dy, emit.rsqrt(_one_less_square(emit, x)))


@elementwise("acos", types=Real, alias="x")
def acos(x):
    """The angle in [0, pi] whose cosine is x; NaN where |x| > 1."""
    return math.acos(x)


@acos.gradient
def _(emit, dy, x):
    return emit.neg(emit.mul(dy, emit.rsqrt(_one_less_square(emit, x))))


@elementwise("atan", types=Real, alias="x")
def atan(x):
    """The angle in [-pi/2, pi/2] whose tangent is x."""
    return math.atan(x)


@atan.gradient
def _(emit, dy, x):
    return emit.div(dy, emit.add(emit.square(x), 1.0))


@elementwise("atan2", types=Real, alias="a")
def atan2(a, b):
    """The angle in [-pi, pi] of the point with ordinate a and abscissa b, as math.atan2; zeros count by their sign."""
    return math.atan2(a, b)


@atan2.gradient
def _(emit, dy, a, b):
    share = emit.div(dy, emit.add(emit.square(a), emit.square(b)))
    return unbroadcast(emit, emit.mul(share, b), a), unbroadcast(emit, emit.neg(emit.mul(share, a)), b)


@elementwise("sinh", types=Real, alias="x")
def sinh(x):
    """The hyperbolic sine."""
    return math.sinh(x)


@sinh.gradient
def _(emit, dy, x):
    return emit.mul(dy, emit.cosh(x))


@elementwise("cosh", types=Real, alias="x")
def cosh(x):
    """The hyperbolic cosine."""
    return math.cosh(x)


@cosh.gradient
def _(emit, dy, x):
    return emit.mul(dy, emit.sinh(x))


@elementwise("asinh", types=Real, alias="x")
def asinh(x):
    """The number whose hyperbolic sine is x."""
    return math.asinh(x)


@asinh.gradient
def _(emit, dy, x):
    """dy / sqrt(1 + x^2), with both terms divided by the greater of x^2 and 1: no square overflows."""
    size = emit.abs(x)
    share = emit.reciprocal(emit.maximum(size, 1.0))
    terms = emit.add(emit.square(share), emit.square(emit.minimum(size, 1.0)))
    return emit.mul(dy, emit.mul(share, emit.rsqrt(terms)))


@elementwise("acosh", types=Real, alias="x")
def acosh(x):
    """The number from 0 on whose hyperbolic cosine is x; NaN where x < 1."""
    return math.acosh(x)


@acosh.gradient
def _(emit, dy, x):
    return emit.mul(dy, emit.mul(emit.rsqrt(emit.sub(x, 1.0)), emit.rsqrt(emit.add(x, 1.0))))


@elementwise("atanh", types=Real, alias="x")
def atanh(x):
    """The number whose hyperbolic tangent is x: infinite where |x| is 1, NaN beyond."""
    return math.atanh(x)


@atanh.gradient
def _(emit, dy, x):
    return emit.div(dy, _one_less_square(emit, x))


for _schema, _numpy in (
    (sin, np.sin), (cos, np.cos), (tan, np.tan), (asin, np.arcsin), (acos, np.arccos), (atan, np.arctan),
    (sinh, np.sinh), (cosh, np.cosh), (asinh, np.arcsinh), (acosh, np.arccosh), (atanh, np.arctanh),
):  # fmt: skip
    _schema.reference(_numpy)
    for _shape in ((4, 7), (0, 3), ()):
        _schema.samples(_shape)
tan.draws(x=(-1, 1))
for _schema in (asin, acos, atanh):
    _schema.draws(x=(-0.9, 0.9))
acosh.draws(x=(1.1, 4))
atan2.reference(np.arctan2)
atan2.samples((4, 7), (4, 7))
atan2.samples((4, 1), (3, 1, 7))
atan2.samples((0, 3), ())
