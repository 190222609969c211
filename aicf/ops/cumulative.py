"""Sums, products, maxima and minima of all elements up to each one along an axis.

On a GPU a graph has steps in their place, each of which joins elements twice as far apart as the one before.
"""

from __future__ import annotations

import numpy as np

from ..types import TensorSpec
from .arranging import part
from .row_steps import along, narrow, wide
from .schema import ACCUMULATES, LINEAR, Number, OpSchema, op, require


def _same(x: TensorSpec, axis: int) -> TensorSpec:
    require(-x.rank <= axis < x.rank, "C1", f"axis {axis} is not in [-{x.rank}, {x.rank})")
    return x


@op("cumsum", traits=(LINEAR, ACCUMULATES))
def cumsum(x: Number, *, axis: int = -1, reverse: bool = False, exclusive: bool = False):
    """The sum of the elements up to each one along an axis; from the last one back if reverse; without itself if exclusive.

    Halves are summed in f32, integers wrap.

    C1  axis is in [-rank(x), rank(x))
    """
    return _same(x, axis)


@op("cumprod", traits=(ACCUMULATES,))
def cumprod(x: Number, *, axis: int = -1, reverse: bool = False, exclusive: bool = False):
    """The product of the elements up to each one along an axis; from the last one back if reverse; without itself if exclusive.

    Halves are multiplied in f32, integers wrap.

    C1  axis is in [-rank(x), rank(x))
    """
    return _same(x, axis)


@op("cummax")
def cummax(x: Number, *, axis: int = -1, reverse: bool = False):
    """The maximum of the elements up to each one along an axis, NaN from the first NaN on; from the last one back if reverse.

    C1  axis is in [-rank(x), rank(x))
    """
    return _same(x, axis)


@op("cummin")
def cummin(x: Number, *, axis: int = -1, reverse: bool = False):
    """The minimum of the elements up to each one along an axis, NaN from the first NaN on; from the last one back if reverse.

    C1  axis is in [-rank(x), rank(x))
    """
    return _same(x, axis)


# --- on a GPU: log2(n) steps ------------------------------------------------------------------------------------------


def _scanned(emit, x, axis, join, reverse):
    """Whatever joins two elements; no neutral one is needed."""
    y, size, apart = emit.reverse(x, dims=(axis,)) if reverse else emit.copy(x), x.shape[axis], 1
    while apart < size:
        joined = join(part(emit, y, axis, 0, size - apart), part(emit, y, axis, apart, size))
        y, apart = emit.concatenate(part(emit, y, axis, 0, apart), joined, axis=axis), 2 * apart
    return emit.reverse(y, dims=(axis,)) if reverse else y


def _moved_on(emit, y, axis, reverse, neutral):
    """y of the element before, and at the first one what joins with anything to that."""
    if y.shape[axis] == 0:
        return y
    low = tuple([int(a == axis and not reverse) - int(a == axis and reverse) for a in range(y.rank)])
    return emit.pad(y, value=neutral, low=low, high=tuple([-n for n in low]))


def _on_a_gpu(schema: OpSchema, neutral: float):
    @schema.replaced_by
    def _(emit, x, axis, reverse, exclusive):
        if emit.device != "cuda":
            return None
        join, floats = (emit.mul if neutral else emit.add), x.dtype.kind == "float" and x.dtype.itemsize < 4
        y = _scanned(emit, wide(emit, x) if floats else x, axis, join, reverse)
        y = _moved_on(emit, y, axis, reverse, neutral) if exclusive else y
        return narrow(emit, y, x) if floats else y


def _by_extremes(schema: OpSchema, how: str):
    @schema.replaced_by
    def _(emit, x, axis, reverse):
        return _scanned(emit, x, axis, getattr(emit, how), reverse)


_on_a_gpu(cumsum, 0.0)
_on_a_gpu(cumprod, 1.0)
_by_extremes(cummax, "maximum")
_by_extremes(cummin, "minimum")

# --- references and gradients -----------------------------------------------------------------------------------------


def _accumulated(ufunc, x, axis, reverse):
    y = np.flip(x, axis) if reverse else x
    y = ufunc.accumulate(y, axis, dtype=x.dtype)
    return np.flip(y, axis).copy() if reverse else y


def _reference(schema: OpSchema, ufunc, neutral):
    @schema.reference
    def _(x, axis, reverse, exclusive):
        y = _accumulated(ufunc, x, axis, reverse)
        if not exclusive or x.shape[axis] == 0:
            return y
        y = np.roll(y, -1 if reverse else 1, axis)
        np.moveaxis(y, axis, 0)[slice(-1, None) if reverse else slice(1)] = neutral
        return y


_reference(cumsum, np.add, 0)
_reference(cumprod, np.multiply, 1)


@cummax.reference
def _(x, axis, reverse):
    return _accumulated(np.maximum, x, axis, reverse)


@cummin.reference
def _(x, axis, reverse):
    return _accumulated(np.minimum, x, axis, reverse)


@cumsum.gradient
def _(emit, dy, axis, reverse, exclusive):
    return emit.cumsum(dy, axis=axis, reverse=not reverse, exclusive=exclusive)


@cumprod.gradient
def _(emit, dy, x, y, axis, reverse, exclusive):
    """Of an element before the first zero the sum of dy * y behind it, divided by it; of that zero the same without it; of others nothing."""
    zero = emit.equal(x, 0)
    zeros = emit.cumsum(emit.convert(zero, dtype="i32"), axis=axis, reverse=reverse)
    first = emit.logical_and(zero, emit.equal(zeros, 1))
    without = emit.cumprod(emit.select(first, 1, x), axis=axis, reverse=reverse, exclusive=exclusive)
    back = {"axis": axis, "reverse": not reverse, "exclusive": exclusive}
    before = emit.div(emit.cumsum(emit.mul(dy, y), **back), emit.select(zero, 1, x))
    at = emit.cumsum(emit.mul(dy, without), **back)
    return emit.select(emit.equal(zeros, 0), before, emit.select(first, at, 0))


def _some_zeros(rng, shape, shapes):
    return np.where(rng.uniform(size=shape) < 0.15, 0, rng.uniform(0.5, 2, shape))


cumprod.draws(x=_some_zeros)
for _schema in (cumsum, cumprod, cummax, cummin):
    _schema.normalizer(along)
    _schema.samples((4, 7))
    _schema.samples((2, 3, 5), axis=1, reverse=True)
    _schema.samples((3, 0))
    _schema.samples((1,), axis=0)
for _schema in (cumsum, cumprod):
    _schema.samples((4, 7), axis=0, exclusive=True)
    _schema.samples((9,), reverse=True, exclusive=True)
