"""Ops that move or make elements without arithmetic."""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from ..types import BASIC, DType, Shape, TensorSpec, numel, rounded
from . import numbers
from .schema import LINEAR, MOVES, VIEW, Access, Any_, elementwise, is_integer, op, require


@elementwise("copy", types=Any_, traits=(LINEAR,))
def copy(x):
    """x in storage of its own."""
    return x


@copy.reference
def _(x):
    return x.copy()


@copy.gradient
def _(emit, dy):
    return dy


copy.samples((4, 7))
copy.samples((1025,))
copy.samples((0, 3))
copy.samples(())


def _check_shape(shape: Shape) -> None:
    for d in shape:
        require(d >= 0, "C1", f"size {d} of shape {shape} is negative")


@op("fill")
def fill(*, shape: Shape, value: float, dtype: DType):
    """A tensor with one value everywhere, converted as `convert` does.

    C1  sizes are >= 0
    C2  the element type holds the value, be it rounded
    C3  an integer is at most 2^53 in size               (the attribute is an f64)
    """
    _check_shape(shape)
    number = numbers.whole(value)
    require((reason := numbers.why_not(number, dtype)) is None, "C2", f"value is {number}: {reason}")
    require(
        dtype.kind != "int" or abs(number) <= 2**53,
        "C3",
        f"value is {number}, beyond 2^53; broadcast_in_dim repeats a constant of {dtype}",
    )
    return TensorSpec(shape, dtype)


@fill.reference
def _(shape, value, dtype):
    return np.full(shape, rounded(np.asarray(value), dtype))


for _type in sorted(BASIC, key=lambda t: t.id):
    fill.samples(shape=(4, 7), value=1.0, dtype=_type)
fill.samples(shape=(), value=-2.5, dtype=DType.f32)
fill.samples(shape=(0, 3), value=1.0, dtype=DType.f32)


@op("reshape", alias={0: (0, "may")}, traits=(VIEW, LINEAR, MOVES))
def reshape(x: Any_, *, shape: Shape):
    """The elements of x, in row-major order, in another shape.

    One size may be -1: what the others leave.

    C1  sizes are >= 0
    C2  x and the result have as many elements           (StableHLO reshape C2)
    """
    if -1 in shape:
        require(shape.count(-1) == 1, "C1", f"shape {shape} has -1 {shape.count(-1)} times, expected once")
        others = numel(tuple(d for d in shape if d != -1))
        require(
            False,
            "C2",
            f"the {x.numel} elements of x leave no one size for -1 beside {others} in shape {shape}",
        )
    _check_shape(shape)
    require(numel(shape) == x.numel, "C2", f"shape {shape} has {numel(shape)} elements, x has {x.numel}")
    return TensorSpec(shape, x.dtype, x.device)


@reshape.normalizer
def _(specs, attrs):
    """A size of -1 as the number that it stands for."""
    shape, x = attrs.get("shape"), specs[0]
    if x is None or x.dims or not isinstance(shape, (tuple, list)) or not all(map(is_integer, shape)):
        return attrs
    others = numel(tuple(d for d in shape if d != -1))
    if list(shape).count(-1) != 1 or others <= 0 or x.numel % others:
        return attrs  # infer refuses it, in the caller's words
    return {**attrs, "shape": tuple(x.numel // others if d == -1 else d for d in shape)}


@reshape.maps(lambda x, shape: [Access(0, in_order=True)])
def _(x):
    return x


@reshape.reference
def _(x, shape):
    return x.reshape(shape)


@reshape.gradient
def _(emit, dy, x):
    return emit.reshape(dy, shape=x.shape)


reshape.samples((4, 7), shape=(28,))
reshape.samples((2, 3, 5), shape=(5, 6))
reshape.samples((), shape=(1, 1))
reshape.samples((0, 3), shape=(5, 0))


@op("broadcast_in_dim", traits=(LINEAR,))
def broadcast_in_dim(x: Any_, *, shape: Shape, dims: tuple):
    """x repeated to a shape: axis i of x becomes axis dims[i] of the result.

    C1  sizes are >= 0
    C2  dims has one entry per axis of x                 (StableHLO broadcast_in_dim C2)
    C3  each dim is an integer in [0, rank(result))      (StableHLO broadcast_in_dim C3)
    C4  dims ascend, so nothing is transposed            (narrower than StableHLO broadcast_in_dim C4, unique)
    C5  an axis of x has size 1 or the result's          (StableHLO broadcast_in_dim C5)
    """
    _check_shape(shape)
    require(len(dims) == x.rank, "C2", f"dims {dims} has {len(dims)} entries, x has rank {x.rank}")
    for d in dims:
        require(
            is_integer(d) and 0 <= d < len(shape), "C3", f"dim {d} is not an integer in [0, {len(shape)})"
        )
    require(all(a < b for a, b in pairwise(dims)), "C4", f"dims {dims} do not ascend")
    for i, d in enumerate(dims):
        require(
            x.shape[i] in (1, shape[d]),
            "C5",
            f"axis {i} of x has size {x.shape[i]}, axis {d} of the result {shape[d]}",
        )
    return TensorSpec(shape, x.dtype, x.device)


@broadcast_in_dim.maps(lambda x, shape, dims: [Access(0, dims)])
def _(x):
    return x


@broadcast_in_dim.reference
def _(x, shape, dims):
    column = [1] * len(shape)
    for size, d in zip(x.shape, dims):
        column[d] = size
    return np.broadcast_to(x.reshape(column), shape).copy()


@broadcast_in_dim.gradient
def _(emit, dy, x, shape, dims):
    size = dict(zip(dims, x.shape))
    repeated = tuple(d for d in range(len(shape)) if size.get(d, 1) != shape[d] or d not in size)
    if not repeated:
        return dy
    dx = emit.reduce_sum(dy, axes=repeated, keepdims=False)
    return dx if dx.shape == x.shape else emit.reshape(dx, shape=x.shape)


broadcast_in_dim.samples((7,), shape=(4, 7), dims=(1,))
broadcast_in_dim.samples((4,), shape=(4, 7), dims=(0,))
broadcast_in_dim.samples((4, 1), shape=(4, 3, 5), dims=(0, 2))
broadcast_in_dim.samples((4, 7), shape=(4, 7), dims=(0, 1))
broadcast_in_dim.samples((), shape=(2, 3), dims=())
broadcast_in_dim.samples((1,), shape=(0, 3), dims=(1,))


@op("iota")
def iota(*, shape: Shape, axis: int = -1, dtype: DType = DType.i32):
    """The index along an axis, at each place of a shape.

    C1  sizes are >= 0
    C2  axis is in [-rank(y), rank(y))                   (StableHLO iota C1; a negative one counts from the end)
    C3  dtype is an integer type or f32                  (narrower than StableHLO iota: convert it)
    C4  the element type holds the greatest index        (StableHLO leaves it to the implementation)
    """
    _check_shape(shape)
    require(-len(shape) <= axis < len(shape), "C2", f"axis {axis} is not in [-{len(shape)}, {len(shape)})")
    require(
        dtype.kind == "int" or dtype is DType.f32, "C3", f"dtype is {dtype}, expected an integer type or f32"
    )
    reason = numbers.why_not(last := max(shape[axis] - 1, 0), dtype)
    require(reason is None, "C4", f"the last index is {last}: {reason}")
    return TensorSpec(shape, dtype)


def _stride(attrs):
    """Elements from one index to the next."""
    shape, axis = attrs["shape"], attrs["axis"]
    return {"stride": np.int64(numel(shape[axis % len(shape) + 1 :]))}


def _along_axis(shape, axis, dtype):
    return [Access(None, tuple(i if i == axis % len(shape) else -1 for i in range(len(shape))))]


@iota.maps(_along_axis, _stride, continuous=True)
def _(index, *, stride):
    return index // stride


def _itself(index):
    return index


@iota.specialised
def _(operands, attrs):
    """Along the last axis the place is the index."""
    return _itself if _stride(attrs)["stride"] == 1 else None


@iota.reference
def _(shape, axis, dtype):
    column = [1] * len(shape)
    column[axis] = shape[axis]
    index = np.arange(shape[axis], dtype=dtype.numpy).reshape(column)
    return np.broadcast_to(index, shape).copy()


for _type in (DType.i32, DType.i64, DType.f32):
    for _axis in (0, 1, -1):
        iota.samples(shape=(4, 7), axis=_axis, dtype=_type)
iota.samples(shape=(2, 3, 5), axis=1)
iota.samples(shape=(0, 3))
iota.samples(shape=(1025,))
