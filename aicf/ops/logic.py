"""Logic of bools, and questions about floats whose answers are bools."""

from __future__ import annotations

import math

import numpy as np

from ..types import DType
from .schema import Bool, Real, elementwise


@elementwise("logical_and", types=Bool, alias="a")
def logical_and(a, b):
    """Whether both are true."""
    return a & b


@elementwise("logical_or", types=Bool, alias="a")
def logical_or(a, b):
    """Whether one is true, or both."""
    return a | b


@elementwise("logical_xor", types=Bool, alias="a")
def logical_xor(a, b):
    """Whether just one is true."""
    return a != b


@elementwise("logical_not", types=Bool, alias="x")
def logical_not(x):
    """Whether it is false."""
    return not x


@elementwise("is_finite", types=Real, result=DType.bool)
def is_finite(x):
    """Whether x is neither infinite nor NaN."""
    return math.isfinite(x)


@elementwise("is_inf", types=Real, result=DType.bool)
def is_inf(x):
    """Whether x is inf or -inf."""
    return math.isinf(x)


@elementwise("is_nan", types=Real, result=DType.bool)
def is_nan(x):
    """Whether x is NaN."""
    return math.isnan(x)


def _with_specials(rng, shape, shapes):
    return rng.choice([-1.5, 0.0, 2.0, np.inf, -np.inf, np.nan], shape)


logical_and.reference(np.logical_and)
logical_or.reference(np.logical_or)
logical_xor.reference(np.logical_xor)
logical_not.reference(np.logical_not)
is_finite.reference(np.isfinite)
is_inf.reference(np.isinf)
is_nan.reference(np.isnan)
for _schema in (logical_and, logical_or, logical_xor):
    _schema.samples((4, 7), (4, 7))
    _schema.samples((4, 1), (3, 1, 7))
    _schema.samples((0, 3), ())
for _schema in (logical_not, is_finite, is_inf, is_nan):
    for _shape in ((4, 7), (0, 3), ()):
        _schema.samples(_shape)
for _schema in (is_finite, is_inf, is_nan):
    _schema.draws(x=_with_specials)
