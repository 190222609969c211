"""Bits of integers. A shift is by a number of bits from 0 on; by as many as the type has, or more, it moves all of them out.

A negative amount counts as one that is too large, as in StableHLO, which takes it for unsigned.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from ..types import DType
from .constraints import TypeConstraint
from .schema import OpSchema, elementwise

Integer = TypeConstraint("integer", frozenset(t for t in DType if t.kind == "int"))


@elementwise("bitwise_and", types=Integer, alias="a")
def bitwise_and(a, b):
    """The bits that both have."""
    return a & b


@elementwise("bitwise_or", types=Integer, alias="a")
def bitwise_or(a, b):
    """The bits that one of them has, or both."""
    return a | b


@elementwise("bitwise_xor", types=Integer, alias="a")
def bitwise_xor(a, b):
    """The bits that just one of them has."""
    return a ^ b


@elementwise("bitwise_not", types=Integer, alias="x")
def bitwise_not(x):
    """The bits that x lacks."""
    return ~x


@elementwise("shift_left", types=Integer, alias="a")
def shift_left(a, b):
    """The bits of a moved up by b places; zeros come in."""
    return a << b


@elementwise("shift_right_arithmetic", types=Integer, alias="a")
def shift_right_arithmetic(a, b):
    """The bits of a moved down by b places; copies of the sign come in, zeros where the type has none."""
    return a >> b


@elementwise("shift_right_logical", types=Integer, alias="a")
def shift_right_logical(a, b):
    """The bits of a moved down by b places; zeros come in."""
    return a >> b


@lru_cache(maxsize=64)
def _shifts(dtype: DType):
    """Scalar functions by the names of ops. Amounts that processors leave undefined are not shifted by."""
    unsigned, bits = np.dtype(f"u{dtype.itemsize}").type, 8 * dtype.itemsize
    last, nothing = dtype.numpy.type(bits - 1), unsigned(0)

    def left(a, b):
        inside = 0 <= b <= last
        return a << (b if inside else last - last) if inside else last - last

    def arithmetic(a, b):
        return a >> (b if 0 <= b <= last else last)

    def logical(a, b):
        inside = 0 <= b <= last
        return unsigned(a) >> unsigned(b if inside else last) if inside else nothing

    signed = dtype.numpy.kind == "i"
    return {
        "shift_left": left,
        "shift_right_arithmetic": arithmetic if signed else logical,
        "shift_right_logical": logical,
    }


def _specialise(schema: OpSchema) -> None:
    @schema.specialised
    def _(operands, attrs):
        return _shifts(operands[0])[schema.name]


def _moved(a, b, shift, beyond):
    bits = 8 * a.dtype.itemsize
    inside = (b >= 0) & (b < bits)
    return np.where(inside, shift(a, np.where(inside, b, 0).astype(a.dtype)), beyond).astype(a.dtype)


@shift_left.reference
def _(a, b):
    return _moved(a, b, np.left_shift, 0)


@shift_right_arithmetic.reference
def _(a, b):
    return _moved(a, b, np.right_shift, np.where(a < 0, -1, 0))


@shift_right_logical.reference
def _(a, b):
    as_unsigned = f"u{a.dtype.itemsize}"
    shifted = _moved(a.view(as_unsigned), b.astype(np.int64), np.right_shift, 0)
    return shifted.view(a.dtype)


for _schema in (shift_left, shift_right_arithmetic, shift_right_logical):
    _specialise(_schema)
    _schema.draws(b=lambda rng, shape, shapes: rng.integers(0, 12, shape))
for _schema, _numpy in (
    (bitwise_and, np.bitwise_and), (bitwise_or, np.bitwise_or), (bitwise_xor, np.bitwise_xor), (bitwise_not, np.bitwise_not),
):  # fmt: skip
    _schema.reference(_numpy)
for _schema in (
    bitwise_and,
    bitwise_or,
    bitwise_xor,
    shift_left,
    shift_right_arithmetic,
    shift_right_logical,
):
    _schema.samples((4, 7), (4, 7))
    _schema.samples((4, 1), (3, 1, 7))
    _schema.samples((0, 3), ())
for _shape in ((4, 7), (0, 3), ()):
    bitwise_not.samples(_shape)
