"""Elements in order along an axis: sort, argsort, top_k. Equal ones stay in their order; NaN is greater than all numbers.

On a GPU a graph has a bitonic network in their place: of i64 keys, whose upper half ranks an element and whose lower half says where it is.
"""

from __future__ import annotations

from math import prod

import numpy as np

from ..types import DType, TensorSpec, i64
from .argmax import NARROW
from .row_steps import along
from .schema import Number, op, require

_LOW = 2**32 - 1  # the lower half of a key


def _check_axis(x: TensorSpec, axis: int) -> None:
    require(-x.rank <= axis < x.rank, "C1", f"axis {axis} is not in [-{x.rank}, {x.rank})")


@op("sort")
def sort(x: Number, *, axis: int = -1, descending: bool = False):
    """The elements along an axis in ascending order, or descending. NaN comes last, or, descending, first.

    C1  axis is in [-rank(x), rank(x))                   (StableHLO sort C4)
    """
    _check_axis(x, axis)
    return x


@op("argsort")
def argsort(x: Number, *, axis: int = -1, descending: bool = False):
    """Where along an axis the elements in ascending order, or descending, are, as i64. Equal ones stay in their order.

    C1  axis is in [-rank(x), rank(x))                   (StableHLO sort C4)
    """
    _check_axis(x, axis)
    return TensorSpec(x.shape, i64, x.device)


@op("top_k", results=("values", "indices"))
def top_k(x: Number, *, k: int, axis: int = -1, largest: bool = True):
    """The k greatest elements along an axis, or the least, the most extreme first, and where they are, as i64. NaN is the greatest.

    Shapes: both are x's with k along the axis. Of equal elements the first ones are taken. The gradient goes to the elements that were taken.

    C1  axis is in [-rank(x), rank(x))
    C2  k is from 0 to the size of the axis
    """
    _check_axis(x, axis)
    require(
        0 <= k <= x.shape[axis], "C2", f"k is {k}, expected 0 to {x.shape[axis]}, the size of axis {axis}"
    )
    at = axis % x.rank
    shape = (*x.shape[:at], k, *x.shape[at + 1 :])
    return TensorSpec(shape, x.dtype, x.device), TensorSpec(shape, i64, x.device)


# --- on a GPU ---------------------------------------------------------------------------------------------------------


def _network(emit, keys, up: bool):
    """Rows of keys, (rows, n), in order, by compare-and-exchange over distances that are powers of two."""
    rows, size = keys.shape
    wide = 1 << max(size - 1, 0).bit_length()
    if wide > size:
        last = emit.constant(2**63 - 1 if up else -(2**63), i64)
        keys = emit.concatenate(keys, emit.broadcast_in_dim(last, shape=(rows, wide - size), dims=()), axis=1)
    block = 2
    while block <= wide:
        apart = block // 2
        while apart:
            pairs, shape = wide // (2 * apart), (rows, wide // (2 * apart), 1, apart)
            split = emit.reshape(keys, shape=(rows, pairs, 2, apart))
            a = emit.slice(split, start=(0, 0, 0, 0), limit=shape)
            b = emit.slice(split, start=(0, 0, 1, 0), limit=(rows, pairs, 2, apart))
            pair = emit.iota(shape=(pairs, 1, 1), axis=0, dtype=DType.i32)
            rising = emit.equal(
                emit.bitwise_and(pair, block // (2 * apart)), 0 if up else block // (2 * apart)
            )
            if block == wide:
                first, second = (emit.minimum, emit.maximum) if up else (emit.maximum, emit.minimum)
                ends = [first(a, b), second(a, b)]
            else:
                low, high = emit.minimum(a, b), emit.maximum(a, b)
                ends = [emit.select(rising, low, high), emit.select(rising, high, low)]
            keys, apart = emit.reshape(emit.concatenate(*ends, axis=2), shape=(rows, wide)), apart // 2
        block *= 2
    return emit.slice(keys, start=(0, 0), limit=(rows, size))


def _order(emit, x, axis, descending, count):
    """Where the first `count` elements in order are; None where a graph has the op itself."""
    if emit.device != "cuda" or x.dtype not in (*NARROW, i64):
        return None
    if 0 in x.shape:
        shape = tuple([count if a == axis else n for a, n in enumerate(x.shape)])
        return emit.fill(shape=shape, value=0.0, dtype=i64)
    if x.dtype is i64:
        return _order_by_halves(emit, x, axis, descending, count)
    last = (*[a for a in range(x.rank) if a != axis], axis)
    moved = emit.transpose(x, perm=last) if axis != x.rank - 1 else x
    rows = emit.reshape(moved, shape=(prod(x.shape) // x.shape[axis], x.shape[axis]))
    keys = emit.argmax_key(rows, emit.iota(shape=rows.shape, axis=1, dtype=i64))
    if not descending:
        keys = emit.bitwise_xor(keys, _LOW)  # of equal elements the first one has the least key
    keys = _network(emit, keys, not descending)
    if not descending:
        keys = emit.bitwise_xor(keys, _LOW)
    places = emit.slice(emit.argmax_place(keys), start=(0, 0), limit=(rows.shape[0], count))
    places = emit.reshape(places, shape=(*moved.shape[:-1], count))
    return emit.transpose(places, perm=tuple(np.argsort(last).tolist())) if axis != x.rank - 1 else places


def _order_by_halves(emit, x, axis, descending, count):
    """By the lower 32 bits, then by the upper ones: equal ones stay in their order, so the second sorts what the first has sorted."""
    low = emit.convert(emit.sub(emit.bitwise_and(x, _LOW), 2**31), dtype=DType.i32)
    high = emit.convert(emit.shift_right_arithmetic(x, 32), dtype=DType.i32)
    first = _order(emit, low, axis, descending, x.shape[axis])
    second = _order(emit, emit.take_along_axis(high, first, axis=axis), axis, descending, count)
    return emit.take_along_axis(first, second, axis=axis)


@argsort.replaced_by
def _(emit, x, axis, descending):
    return _order(emit, x, axis, descending, x.shape[axis])


@sort.replaced_by
def _(emit, x, axis, descending):
    places = _order(emit, x, axis, descending, x.shape[axis])
    return None if places is None else emit.take_along_axis(x, places, axis=axis)


@top_k.replaced_by
def _(emit, x, k, axis, largest):
    places = _order(emit, x, axis, largest, k)
    return None if places is None else (emit.take_along_axis(x, places, axis=axis), places)


# --- references and gradients -----------------------------------------------------------------------------------------


def _places(x, axis, descending):
    """Stable both ways: what descends is what ascends of the reversed, from its end."""
    if not descending:
        return np.argsort(x, axis, kind="stable")
    back = np.argsort(np.flip(x, axis), axis, kind="stable")
    return x.shape[axis] - 1 - np.flip(back, axis)


@argsort.reference
def _(x, axis, descending):
    return _places(x, axis, descending)


@sort.reference
def _(x, axis, descending):
    return np.take_along_axis(x, _places(x, axis, descending), axis)


@top_k.reference
def _(x, k, axis, largest):
    taken = tuple([slice(k) if a == axis % x.ndim else slice(None) for a in range(x.ndim)])
    places = _places(x, axis, largest)[taken]
    return np.take_along_axis(x, places, axis), places


@sort.gradient
def _(emit, dy, x, axis, descending):
    places = emit.argsort(x, axis=axis, descending=descending)
    return emit.scatter_add(dy, places, size=x.shape[axis], axis=axis, along=True)


@top_k.gradient
def _(emit, dvalues, x, indices, axis):
    return emit.scatter_add(dvalues, indices, size=x.shape[axis], axis=axis, along=True)


for _schema in (sort, argsort):
    _schema.normalizer(along)
    _schema.samples((4, 7))
    _schema.samples((2, 9, 3), axis=1, descending=True)
    _schema.samples((1,), axis=0)
    _schema.samples((3, 0))
top_k.normalizer(along)
top_k.samples((4, 7), k=3)
top_k.samples((2, 9, 3), k=4, axis=1, largest=False)
top_k.samples((3,), k=0)
top_k.samples((0, 3), k=2)
