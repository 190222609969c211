"""argmax and argmin: one maximum of i64 keys, whose upper half ranks an element and whose lower half says where it is.

So they are reductions like others: kernels that reduce i64 take them, with what stands around, and read each element once. Keys are exact, and
the greatest of them is the same whatever the order in which they are compared.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from ..types import DType, TensorSpec
from .constraints import TypeConstraint
from .numbers import float_bits
from .row_steps import along
from .schema import I64, elementwise, op, require

NARROW = frozenset({
    DType.f32, DType.f16, DType.bf16, DType.i32, DType.u32, DType.i16, DType.u16, DType.i8, DType.u8,
})  # fmt: skip
Ranked = TypeConstraint("float or integer of at most 32 bits", NARROW)
_MOST = 2**32  # places that a key tells apart
_PLACES, _HALF = np.int64(_MOST - 1), np.int64(32)
_ZERO, _UPPER, _LEAST_U32 = np.int64(0), np.int64(2**31 - 1), np.int64(-(2**31))


def _placed(x: TensorSpec, axis: int, keepdims: bool, found: str) -> TensorSpec:
    require(-x.rank <= axis < x.rank, "C1", f"axis {axis} is not in [-{x.rank}, {x.rank})")
    at = axis % x.rank
    size = x.shape[at]
    require(size != 0, "C2", f"axis {axis} of {x.shape} is empty, so there is no {found} element on it")
    require(size <= _MOST, "C3", f"axis {axis} has {size} elements, expected 2^32 at most")
    kept = (*x.shape[:at], *((1,) if keepdims else ()), *x.shape[at + 1 :])
    return TensorSpec(kept, DType.i64, x.device)


@op("argmax", core="reduce")
def argmax(x: Ranked, *, axis: int = -1, keepdims: bool = False):
    """Where along an axis the greatest element is, as i64: the first one of equals, and the first NaN if there is any.

    Shapes: y is x without the axis, or with 1 in its place if keepdims. Zeros are equal whatever their sign. It has no gradient: a place
    doesn't change with small changes of x.

    C1  axis is in [-rank(x), rank(x))                   (StableHLO has no argmax; NumPy's rules)
    C2  the axis is not empty                            (NumPy refuses it as well)
    C3  the axis has at most 2^32 elements
    """
    return _placed(x, axis, keepdims, "greatest")


@op("argmin", core="reduce")
def argmin(x: Ranked, *, axis: int = -1, keepdims: bool = False):
    """Where along an axis the least element is, as i64: the first one of equals, and the first NaN if there is any.

    Shapes: y is x without the axis, or with 1 in its place if keepdims. Zeros are equal whatever their sign. It has no gradient: a place
    doesn't change with small changes of x.

    C1  axis is in [-rank(x), rank(x))                   (StableHLO has no argmin; NumPy's rules)
    C2  the axis is not empty                            (NumPy refuses it as well)
    C3  the axis has at most 2^32 elements
    """
    return _placed(x, axis, keepdims, "least")


def _steps(emit, x, axis, keepdims, least):
    place = emit.iota(shape=x.shape, axis=axis, dtype=DType.i64)
    key = emit.reduce_max(emit.argmax_key(x, place, least=least), axes=(axis,), keepdims=keepdims)
    return emit.argmax_place(key)


@argmax.expands
def _(emit, x, axis, keepdims):
    return _steps(emit, x, axis, keepdims, least=False)


@argmin.expands
def _(emit, x, axis, keepdims):
    return _steps(emit, x, axis, keepdims, least=True)


@argmax.reference
def _(x, axis, keepdims):
    return np.argmax(x, axis=axis, keepdims=keepdims)


@argmin.reference
def _(x, axis, keepdims):
    return np.argmin(x, axis=axis, keepdims=keepdims)


# --- keys -------------------------------------------------------------------------------------------------------------


@elementwise("argmax_key", types=Ranked, result=DType.i64, flops=8)
def argmax_key(x, place: I64, *, least: bool = False):
    """What argmax takes the maximum of, or argmin, if least: rank * 2^32 + 2^32 - 1 - place.

    rank is x's among the values of its type, from the greatest down if least. Equal numbers have one, and all NaNs the greatest. place is
    in [0, 2^32).
    """
    bits = np.int64(float_bits(x))
    rank = bits if bits >= _ZERO else bits ^ _UPPER  # magnitudes of negative numbers grow downwards
    rank = _ZERO if x == 0 else rank
    rank = ~rank if least else rank
    rank = rank if x == x else _UPPER
    return (rank << _HALF) | (_PLACES - place)


@lru_cache
def _of_integers(begin: np.int64, least: bool):
    def key(x, place):
        rank = np.int64(x) + begin
        rank = ~rank if least else rank
        return (rank << _HALF) | (_PLACES - place)

    return key


@argmax_key.specialised
def _(operands, attrs):
    dtype = operands[0]
    if dtype.kind == "float":
        return None
    return _of_integers(_LEAST_U32 if dtype is DType.u32 else _ZERO, bool(attrs["least"]))


@argmax_key.reference
def _(x, place, least):
    if x.dtype.kind == "f":
        bits = x.astype(np.float32).view(np.int32).astype(np.int64)
        rank = np.where(x == 0, 0, np.where(bits < 0, -(bits & 0x7FFFFFFF) - 1, bits))
        rank = np.where(np.isnan(x), 2**31 - 1, -1 - rank if least else rank)
    else:
        rank = x.astype(np.int64) - (2**31 if x.dtype == np.uint32 else 0)
        rank = -1 - rank if least else rank
    return rank * 2**32 + (2**32 - 1 - place)


@elementwise("argmax_place", types=I64, flops=2)
def argmax_place(key):
    """The place of an argmax_key."""
    return _PLACES - (key & _PLACES)


@argmax_place.reference
def _(key):
    return 2**32 - 1 - key % 2**32


def _places(rng, shape, shapes):
    return rng.integers(0, 2**32, shape)


argmax_key.draws(place=_places)
for _shape in ((4, 7), (1025,), (0, 3), ()):
    for _least in (False, True):
        argmax_key.samples(_shape, _shape, least=_least)
    argmax_place.samples(_shape)
for _schema in (argmax, argmin):
    _schema.normalizer(along)
    for _sizes, _axis in [
        ((4, 7), -1),
        ((4, 7), 0),
        ((2, 3, 5), 1),
        ((3, 1025), -1),
        ((1, 1), 1),
        ((0, 3), -1),
    ]:
        _schema.samples(_sizes, axis=_axis)
    _schema.samples((4, 7), axis=0, keepdims=True)
