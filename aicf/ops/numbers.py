"""Numbers of Python and NumPy where an element type is asked for: which fit, and what to write instead of one that doesn't.

A number may be rounded, as any value that becomes a float. It may not lose its fraction, wrap, or become an infinity.
"""

from __future__ import annotations

import math
from functools import cache
from typing import Any

import ml_dtypes
import numpy as np

from ..types import DType, f8e4m3, f32, i64

NUMBERS = (bool, int, float, np.bool_, np.integer, np.floating)

Number = bool | int | float


def plain(value: Any) -> Number:
    """A number as Python's own: a NumPy scalar means its value, whatever its type."""
    if isinstance(value, (bool, np.bool_)):
        return bool(value)
    return int(value) if isinstance(value, (int, np.integer)) else float(value)


def whole(value: Number) -> Number:
    """2.0 as 2; what has a fraction, or is not finite, as it is."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def why_not(value: Number, dtype: DType) -> str | None:
    """Why an element type can't hold a number; None if it can, be it rounded."""
    if dtype.kind == "float":
        if isinstance(value, float) and not math.isfinite(value):
            return f"{dtype} has no infinity" if math.isinf(value) and dtype is f8e4m3 else None
        return None if abs(value) < _limit(dtype) else f"the greatest {dtype} is {_greatest(dtype):g}"
    if isinstance(value, float) and not math.isfinite(value):
        return f"{dtype} has no {value}"
    if dtype.kind == "bool":
        return None if value is True or value is False or value in (0, 1) else "a bool is True or False"
    if isinstance(value, float):
        return f"{dtype} is a type of integers"
    least, greatest = np.iinfo(dtype.numpy).min, np.iinfo(dtype.numpy).max
    return None if least <= value <= greatest else f"{dtype} reaches from {least} to {greatest}"


def instead(value: Number, dtype: DType, tensor: str = "x") -> str:
    """What to write where `why_not` refuses; `tensor` is what the number stands beside."""
    if dtype.kind == "bool":
        return "write True or False"
    if why_not(whole(value), dtype) is None:
        return f"write {whole(value)}"
    wider = i64 if dtype.kind == "int" and why_not(value, i64) is None else f32
    if why_not(value, wider) is not None:
        return f'write {"-" * (value < 0)}float("inf") if infinity is meant'
    return f"ctx.convert({tensor}, dtype=aicf.{wider}) makes room for it"


def told(value: Number) -> str:
    """A number in a message."""
    long = isinstance(value, int) and value.bit_length() > 128
    return f"an integer of {value.bit_length()} bits" if long else repr(value)


def constant(value: Number, dtype: DType) -> Number:
    """A number that fits, of the kind of its element type. It is rounded when it is stored, and only then."""
    if dtype.kind != "float":
        return bool(value) if dtype.kind == "bool" else value
    if isinstance(value, int) and (drop := value.bit_length() - 53) > 0:  # f64 would round, too: to odd
        value = (value >> drop | (value & ((1 << drop) - 1) != 0)) << drop
    return float(value)


@cache
def _greatest(dtype: DType) -> float:
    return float(ml_dtypes.finfo(dtype.numpy).max)


@cache
def _limit(dtype: DType) -> float:
    """From where on numbers are rounded to what is greater than the greatest: half of its last place above it."""
    most = _greatest(dtype)
    return most + 2.0 ** (math.frexp(most)[1] - 2 - ml_dtypes.finfo(dtype.numpy).nmant)


def float_bits(x: Any) -> Any:
    """The bits of an f32 as i32, in scalar functions too."""
    return np.float32(x).view(np.int32)
