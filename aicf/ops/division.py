"""Quotients and remainders of integers and floats: rounded down, with the divisor's sign, or towards 0, with the dividend's.

Of integers, a quotient by 0 is -1 (all its bits are 1) and the remainder is the dividend; the least integer by -1 wraps. Of floats,
a quotient by 0 is infinite or NaN, and the remainder is NaN.
"""

from __future__ import annotations

import math

import numpy as np

from ..types import f64
from .arithmetic import unbroadcast
from .rounding import OF_F32, OF_F64
from .schema import Number, OpSchema, elementwise

# --- of floats --------------------------------------------------------------------------------------------------------


def _floored(floor):
    def floor_divide(a, b):
        """a / b rounded down, a whole number of the operands' type: (a - mod(a, b)) / b, as in Python. Its gradient is 0."""
        rest = math.fmod(a, b)
        near = (a - rest) / b - (1.0 if rest != 0.0 and (rest < 0.0) != (b < 0.0) else 0.0)
        down = floor(near)
        whole = down + 1.0 if near - down > 0.5 else down
        return a / b if b == 0.0 else math.copysign(whole, a / b) if whole == 0.0 else whole

    return floor_divide


def _truncated(trunc):
    def trunc_divide(a, b):
        """a / b rounded towards 0, a whole number of the operands' type: StableHLO's divide of integers. Its gradient is 0."""
        return trunc(a / b)

    return trunc_divide


floor_divide = elementwise("floor_divide", types=Number)(_floored(OF_F32["floor"]))
trunc_divide = elementwise("trunc_divide", types=Number)(_truncated(OF_F32["trunc"]))


@elementwise("mod", types=Number)
def mod(a, b):
    """a - b * floor(a / b), exactly: the remainder that has the divisor's sign, as Python's a % b and torch.remainder."""
    rest = math.fmod(a, b)
    fixed = rest + b if (rest < 0.0) != (b < 0.0) else rest
    return math.copysign(rest, b) if rest == 0.0 else fixed


@elementwise("rem", types=Number)
def rem(a, b):
    """a - b * trunc(a / b), exactly: the remainder that has the dividend's sign, as math.fmod and StableHLO's remainder."""
    return math.fmod(a, b)


@mod.gradient
def _(emit, dy, a, b):
    db = emit.neg(emit.mul(dy, emit.floor_divide(a, b)))
    return unbroadcast(emit, dy, a), unbroadcast(emit, db, b)


@rem.gradient
def _(emit, dy, a, b):
    db = emit.neg(emit.mul(dy, emit.trunc_divide(a, b)))
    return unbroadcast(emit, dy, a), unbroadcast(emit, db, b)


@floor_divide.gradient
@trunc_divide.gradient
def _(emit):
    return None, None


# --- of integers: no divisor of 0 or -1 is divided by, as processors trap there ----------------------------------------


def _floor_divide_signed(a, b):
    quotient = a // (1 if b == 0 or b == -1 else b)
    return -1 if b == 0 else -a if b == -1 else quotient


def _trunc_divide_signed(a, b):
    divisor = 1 if b == 0 or b == -1 else b
    down, rest = a // divisor, a % divisor
    quotient = down + 1 if rest != 0 and (a < 0) != (b < 0) else down
    return -1 if b == 0 else -a if b == -1 else quotient


def _mod_signed(a, b):
    return a if b == 0 else a % (1 if b == 0 or b == -1 else b)


def _rem_signed(a, b):
    rest = a % (1 if b == 0 or b == -1 else b)
    return a if b == 0 else rest - b if rest != 0 and (rest < 0) != (a < 0) else rest


def _divide_unsigned(a, b):
    return b - 1 if b == 0 else a // (1 if b == 0 else b)


def _rem_unsigned(a, b):
    return a if b == 0 else a % (1 if b == 0 else b)


def _specialise(schema: OpSchema, signed, unsigned, double=None) -> None:
    @schema.specialised
    def _(operands, attrs):
        dtype = operands[0]
        if dtype.kind != "int":
            return double if dtype is f64 else None
        return unsigned if dtype.numpy.kind == "u" else signed


_specialise(floor_divide, _floor_divide_signed, _divide_unsigned, _floored(OF_F64["floor"]))
_specialise(trunc_divide, _trunc_divide_signed, _divide_unsigned, _truncated(OF_F64["trunc"]))
_specialise(mod, _mod_signed, _rem_unsigned)
_specialise(rem, _rem_signed, _rem_unsigned)


# --- references -------------------------------------------------------------------------------------------------------


def _by_numpy(of_floats, of_integers, by_zero):
    """by_zero: (a) -> what an integer divided by 0 gives."""

    def reference(a, b):
        if a.dtype.kind == "f":
            return of_floats(a, b)
        return np.where(b == 0, by_zero(a), of_integers(a, np.where(b == 0, a.dtype.type(1), b)))

    return reference


def _ones(a):
    return ~np.zeros_like(a)


def _truncated_integers(a, b):
    return (a - np.fmod(a, b)) // b


floor_divide.reference(_by_numpy(np.floor_divide, np.floor_divide, _ones))
trunc_divide.reference(_by_numpy(lambda a, b: np.trunc(a / b), _truncated_integers, _ones))
mod.reference(_by_numpy(np.mod, np.mod, lambda a: a))
rem.reference(_by_numpy(np.fmod, np.fmod, lambda a: a))


def _divisors(rng, shape, shapes):
    """Away from 0, and whole for whole dividends."""
    return rng.uniform(1, 5, shape) * rng.choice([-1, 1], shape)


for _schema in (floor_divide, trunc_divide, mod, rem):
    _schema.draws(b=_divisors)
    _schema.samples((4, 7), (4, 7))
    _schema.samples((4, 1), (3, 1, 7))
    _schema.samples((0, 3), ())
