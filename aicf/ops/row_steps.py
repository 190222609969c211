"""What ops over rows are made of: casts, reductions along one axis, and numbers. Statistics are f32, whatever the rows are."""

from __future__ import annotations

import numpy as np

from ..types import DType, TensorSpec, f32
from .schema import is_integer, op, require

ROWS = "rows"


def wide(emit, x):
    return x if x.dtype is f32 else emit.convert(x, dtype=f32)


def narrow(emit, y, like):
    return y if like.dtype is f32 else emit.convert(y, dtype=like.dtype)


def over(emit, how, x, axis=-1):
    return getattr(emit, f"reduce_{how}")(x, axes=(axis,), keepdims=True)


def check_axis(x: TensorSpec, axis: int) -> None:
    require(-x.rank <= axis < x.rank, "C1", f"axis {axis} is not in [-{x.rank}, {x.rank})")


def along(specs, attrs):
    """A normalizer: a negative axis counts from the end."""
    rank, axis = specs[0].rank, attrs.get("axis", -1)
    return {**attrs, "axis": axis % rank} if is_integer(axis) and -rank <= axis < rank else attrs


def enrol(schema, operands=1, **attrs):
    """Samples of an op along any axis."""
    schema.normalizer(along)
    for shape, axis in [
        ((4, 7), -1),
        ((4, 7), 0),
        ((2, 3, 5), 1),
        ((3, 1025), -1),
        ((1, 1), 1),
        ((0, 3), -1),
        ((3, 0), 1),
    ]:
        schema.samples(*[shape] * operands, axis=axis, **attrs)


@op("number")
def number(*, value: float, dtype: DType):
    """A 0-D constant that is computed where it is used."""
    return TensorSpec((), dtype)


@number.maps(lambda value, dtype: (), lambda attrs: {"value": np.float32(attrs["value"])})
def _(*, value):
    return value


@number.reference
def _(value, dtype):
    return np.full((), value, dtype.numpy)


number.samples(value=-2.5, dtype=f32)
