"""Rounding floats to whole numbers, and signs. Infinities and NaN stay what they are, and zeros keep their sign.

All of it comes of rounding to nearest even, which an addition does: from 2^23 on (2^52 in f64) floats have no fraction.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ..types import f64
from .schema import Number, OpSchema, Real, elementwise


def _functions(number: Any, whole_from: int) -> dict[str, Any]:
    """Scalar functions, by the names of ops, on one float type: their numbers have that type."""
    bound, half, one = number(whole_from), number(0.5), number(1)

    def even(x):
        size = number(abs(x))
        return math.copysign((size + bound) - bound if size < bound else size, x)

    def floor(x):
        near = even(x)
        return near - one if near > x else near

    def ceil(x):
        near = even(x)
        return math.copysign(near + one if near < x else near, x)

    def trunc(x):
        return math.copysign(floor(abs(x)), x)

    def away(x):
        whole = floor(abs(x))
        return math.copysign(whole + one if abs(x) - whole >= half else whole, x)

    return {"round": even, "floor": floor, "ceil": ceil, "trunc": trunc, "round_half_away": away}


OF_F32, OF_F64 = _functions(np.float32, 2**23), _functions(np.float64, 2**52)
_even, _floor, _ceil, _trunc, _away = OF_F32.values()


@elementwise("floor", types=Real, alias="x")
def floor(x):
    """The greatest whole number that is not above x. Its gradient is 0."""
    return _floor(x)


@elementwise("ceil", types=Real, alias="x")
def ceil(x):
    """The least whole number that is not below x. Its gradient is 0."""
    return _ceil(x)


@elementwise("trunc", types=Real, alias="x")
def trunc(x):
    """x without its fraction. Its gradient is 0."""
    return _trunc(x)


@elementwise("round", types=Real, alias="x")
def round_(x):
    """The nearest whole number; of two, the even one (round_nearest_even in StableHLO). Its gradient is 0."""
    return _even(x)


@elementwise("round_half_away", types=Real, alias="x")
def round_half_away(x):
    """The nearest whole number; of two, the one away from 0 (round_nearest_afz in StableHLO). Its gradient is 0."""
    return _away(x)


@round_half_away.reference
def _(x):
    whole = np.trunc(np.abs(x))
    return np.copysign(whole + (np.abs(x) - whole >= 0.5), x)


@elementwise("sign", types=Number, alias="x")
def sign(x):
    """-1, 0 or 1, as x is negative, 0 or positive. NaN stays NaN, and -0 is -0. Its gradient is 0."""
    return math.copysign(1.0, x) if x > 0.0 or x < 0.0 else x


def _sign_of_integer(x):
    return 1 if x > 0 else -1 if x < 0 else 0


def _sign_of_unsigned(x):
    return 1 if x > 0 else 0


@sign.specialised
def _(operands, attrs):
    kind = operands[0].numpy.kind
    return _sign_of_unsigned if kind == "u" else _sign_of_integer if kind == "i" else None


@sign.reference
def _(x):
    return np.sign(x) if x.dtype.kind != "f" else np.where(x == 0, x, np.sign(x))


def _of_f64(schema: OpSchema) -> None:
    @schema.specialised
    def _(operands, attrs):
        return OF_F64[schema.name] if operands[0] is f64 else None


def _no_slope(emit):
    return None


for _schema, _numpy in ((floor, np.floor), (ceil, np.ceil), (trunc, np.trunc), (round_, np.rint)):
    _schema.reference(_numpy)
for _schema in (floor, ceil, trunc, round_, round_half_away):
    _of_f64(_schema)
for _schema in (floor, ceil, trunc, round_, round_half_away, sign):
    _schema.gradient(_no_slope)
    for _shape in ((4, 7), (0, 3), ()):
        _schema.samples(_shape)
