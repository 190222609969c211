"""Ops that read or write where other tensors say: embeddings, gathers, scatters."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from ....ir import Value
from ....ops.scattering import Scatter
from ....types import DType, bool_
from ..rules import Site, axis_of, plain, rule
from ..types import Unsupported
from .views import permuted

INDICES = DType.i32, DType.i64


def checked(index: Value) -> Value:
    if index.dtype not in INDICES:
        raise Unsupported(f"indices of {index.dtype}")
    return index


def from_zero(s: Site, index: Value, size: int, of: str) -> Value:
    """Indices of an op whose negative ones PyTorch refuses. Where nothing reports them, they become what reads NaN."""
    first = s.ctx.first_of_count(checked(index))
    if first is not None and first >= 0:
        return index
    if s.ctx.reports:
        s.ctx.check_indices(index, size=size, negative=False, of=of)
        return index
    return s.ctx.select(s.ctx.less(index, 0), s.ctx.sub(index, size), index)


@rule("embedding", heavy=True)
def _embedding(s: Site, weight: Value, index: Value, *how: Any, **named: Any) -> Value:
    return s.ctx.gather(weight, from_zero(s, index, weight.shape[0], "embedding: index"), axis=0)


@rule("embedding_dense_backward", heavy=True)
def _embedding_backward(
    s: Site, dy: Value, index: Value, rows: int, padding: int, by_frequency: bool
) -> Value:
    if by_frequency:
        raise Unsupported("embedding gradients scaled by frequency")
    width = dy.shape[-1]
    flat, places = s.reshape(dy, (index.spec.numel, width)), s.reshape(index, (index.spec.numel,))
    if padding >= 0:
        keep = s.ctx.not_equal(s.reshape(places, (*places.shape, 1)), padding)
        flat = s.ctx.select(keep, flat, s.ctx.constant(0.0, flat.dtype))
    return s.ctx.scatter_add(flat, checked(places), size=rows, axis=0)


@rule("index_select")
def _index_select(s: Site, x: Value, dim: int, index: Value) -> Value:
    if x.rank == 0 or index.rank == 0:
        raise Unsupported("an index of no axes")
    axis = axis_of(dim, x.rank)
    return s.ctx.gather(x, from_zero(s, index, x.shape[axis], "index_select: index"), axis=axis)


@rule("gather")
def _gather(s: Site, x: Value, dim: int, index: Value, sparse_grad: bool = False) -> Value:
    axis = axis_of(dim, x.rank)
    if x.rank == 0 or index.rank == 0:
        raise Unsupported("an index of no axes")
    rest = [n for a, n in enumerate(zip(x.shape, index.shape)) if a != axis and n[0] != n[1]]
    if rest:  # PyTorch reads the first of each other axis
        start, limit = [0] * x.rank, list(index.shape)
        limit[axis] = x.shape[axis]
        x = s.ctx.slice(x, start=tuple(start), limit=tuple(limit))
    return s.ctx.take_along_axis(x, from_zero(s, index, x.shape[axis], "gather: index"), axis=axis)


def merged(s: Site, x: Value, indices: Sequence[Value | None]) -> tuple[Value, Value, int]:
    """x with the axes that are indexed as one axis, the index along it, and which axis it is. They stand side by side."""
    given = [(axis, index) for axis, index in enumerate(indices) if index is not None]
    first, last = given[0][0], given[-1][0]
    if len(given) == 1:
        s.ctx.check_indices(checked(given[0][1]), size=x.shape[first], of="index: index")
        return x, given[0][1], first
    place, inside = None, None
    for axis, index in given:  # row by row
        size = x.shape[axis]
        s.ctx.check_indices(checked(index), size=size, of=f"index: index of axis {axis},")
        index = s.cast(index, DType.i64)
        index = s.ctx.select(s.ctx.less(index, 0), s.ctx.add(index, size), index)
        valid = s.ctx.logical_and(s.ctx.greater_equal(index, 0), s.ctx.less(index, size))
        place = index if place is None else s.ctx.add(s.ctx.mul(place, size), index)
        inside = valid if inside is None else s.ctx.logical_and(inside, valid)
    many = math.prod(x.shape[first : last + 1])
    place = s.ctx.select(inside, place, many)  # beyond one axis is beyond all, not in the next row
    return s.reshape(x, (*x.shape[:first], many, *x.shape[last + 1 :])), place, first


def _beside(rank: int, indices: Sequence[Value | None]) -> tuple[int, ...] | None:
    """An order of axes in which those that are indexed come first, as in PyTorch's result, where they stand apart; None if they don't."""
    given = [axis for axis, index in enumerate(indices) if index is not None]
    if len(given) == given[-1] - given[0] + 1:
        return None
    return (*given, *(axis for axis in range(rank) if axis not in given))


@rule("index.Tensor")
def _index(s: Site, x: Value, indices: Sequence[Value | None]) -> Value:
    order = _beside(x.rank, indices)
    if order is not None:
        x, indices = permuted(s, x, order), [index for index in indices if index is not None]
    x, place, axis = merged(s, x, indices)
    return s.ctx.gather(x, place, axis=axis)


@rule("index_put", "_unsafe_index_put", "index_put_")
def _index_put(
    s: Site, x: Value, indices: Sequence[Value | None], values: Value, accumulate: bool = False
) -> Value:
    """What an index's gradient adds up, or what is written."""
    (first, *more) = [index for index in indices if index is not None]
    if (
        first.dtype is bool_
        and not more
        and indices[0] is not None
        and values.spec.numel == 1
        and not accumulate
    ):
        mask = s.reshape(first, (*first.shape, *[1] * (x.rank - first.rank)))
        return s.spread(s.ctx.select(mask, s.reshape(values, ()), x), x.shape)
    order = _beside(x.rank, indices)
    if order is not None:
        x, indices = permuted(s, x, order), [first, *more]
    flat, place, axis = merged(s, x, indices)
    values = s.spread(values, (*flat.shape[:axis], *place.shape, *flat.shape[axis + 1 :]))
    how = Scatter.add if accumulate else Scatter.set
    if accumulate:
        flat, values = s.wide(flat), s.wide(values)
    y = s.cast(s.reshape(s.ctx.scatter(flat, place, values, axis=axis, how=how), x.shape), x.dtype)
    return y if order is None else permuted(s, y, sorted(range(x.rank), key=order.__getitem__))


def _rows_of(s: Site, x: Value, dim: int, index: Value) -> tuple[Value, Value, int, tuple[int, ...]]:
    """(x, a list of indices, the axis it is along, the shape of the elements at those); a number is a list of one."""
    if x.rank == 0:
        x = s.reshape(x, (1,))
    index, axis = s.reshape(checked(index), (index.spec.numel,)), axis_of(dim, x.rank)
    return x, index, axis, (*x.shape[:axis], *index.shape, *x.shape[axis + 1 :])


@rule("index_add")
def _index_add(s: Site, x: Value, dim: int, index: Value, source: Value, alpha: Any = 1) -> Value:
    if x.dtype is bool_:
        raise Unsupported("sums of bools")
    x, index, axis, shape = _rows_of(s, x, dim, index)
    index, rows = from_zero(s, index, x.shape[axis], "index_add: index"), s.wide(s.reshape(source, shape))
    rows = rows if alpha == 1 else s.ctx.mul(rows, plain(alpha, rows.dtype))
    total = s.ctx.scatter_add(rows, index, size=x.shape[axis], axis=axis)
    return s.reshape(s.cast(s.ctx.add(s.wide(x), total), x.dtype), s.out.shape)


@rule("index_copy")
def _index_copy(s: Site, x: Value, dim: int, index: Value, source: Value) -> Value:
    x, index, axis, shape = _rows_of(s, x, dim, index)
    index = from_zero(s, index, x.shape[axis], "index_copy: index")
    y = s.ctx.scatter(x, index, s.reshape(source, shape), axis=axis, how=Scatter.set)
    return s.reshape(y, s.out.shape)


@rule("index_fill.int_Scalar", "index_fill.int_Tensor")
def _index_fill(s: Site, x: Value, dim: int, index: Value, value: Any) -> Value:
    x, index, axis, shape = _rows_of(s, x, dim, index)
    s.ctx.check_indices(index, size=x.shape[axis], of="index_fill: index")
    y = s.ctx.scatter(x, index, s.spread(s.value(value, x.dtype), shape), axis=axis, how=Scatter.set)
    return s.reshape(y, s.out.shape)


@rule("scatter_add")
def _scatter_add(s: Site, x: Value, dim: int, index: Value, source: Value) -> Value:
    axis = axis_of(dim, x.rank)
    if x.rank == 0 or any(n != m for a, (n, m) in enumerate(zip(x.shape, index.shape)) if a != axis):
        raise Unsupported("scatter_add into a part of a tensor")
    if source.shape != index.shape:
        source = s.ctx.slice(source, start=(0,) * source.rank, limit=index.shape)
    index = from_zero(s, index, x.shape[axis], "scatter_add: index")
    return s.ctx.add(x, s.ctx.scatter_add(source, index, size=x.shape[axis], axis=axis, along=True))


@rule("scatter.src")
def _scatter(s: Site, x: Value, dim: int, index: Value, source: Value) -> Value:
    axis = axis_of(dim, x.rank)
    if x.rank == 0 or any(n != m for a, (n, m) in enumerate(zip(x.shape, index.shape)) if a != axis):
        raise Unsupported("scatter into a part of a tensor")
    if source.shape != index.shape:
        source = s.ctx.slice(source, start=(0,) * source.rank, limit=index.shape)
    index = from_zero(s, index, x.shape[axis], "scatter: index")
    return s.ctx.scatter(x, index, source, axis=axis, how=Scatter.set, along=True)


@rule("scatter.value")
def _scatter_value(s: Site, x: Value, dim: int, index: Value, value: Any) -> Value:
    """One place along the axis for each of the others: a one-hot, or a label's gradient."""
    axis = axis_of(dim, x.rank)
    rest = all(n == m for a, (n, m) in enumerate(zip(x.shape, index.shape)) if a != axis)
    if x.rank == 0 or not rest or index.shape[axis] != 1:
        raise Unsupported("scatter of several places in a row")
    index = from_zero(s, index, x.shape[axis], "scatter: index")
    s.ctx.check_indices(index, size=x.shape[axis], of="scatter: index")
    places = s.ctx.iota(shape=x.shape, axis=axis, dtype=index.dtype)
    return s.ctx.select(s.ctx.equal(places, index), s.value(value, x.dtype), x)


@rule("histc")
def _histc(s: Site, x: Value, bins: int = 100, min: float = 0, max: float = 0) -> Value:
    """How many lie in each of `bins` equal ranges; the last one has its upper end, too."""
    if not min < max:
        raise Unsupported("a histogram between the least and the greatest element")
    if x.dtype not in (DType.f32, DType.f64):
        raise Unsupported(f"a histogram of {x.dtype}")
    ctx, flat = s.ctx, s.reshape(x, (x.spec.numel,))
    inside = ctx.logical_and(ctx.greater_equal(flat, float(min)), ctx.less_equal(flat, float(max)))
    # in PyTorch's order: it decides on which side of a bound what is near it lies
    place = ctx.div(ctx.mul(ctx.sub(flat, float(min)), float(bins)), float(max) - float(min))
    place = s.cast(ctx.minimum(ctx.select(inside, place, 0.0), float(bins - 1)), DType.i64)
    return ctx.scatter_add(s.cast(inside, x.dtype), place, size=bins, axis=0)


# --- order --------------------------------------------------------------------------------------------------------------


def _cumulative(name: str) -> None:
    @rule(name, heavy=True)
    def _(s: Site, x: Value, dim: int, dtype: Any = None) -> Value:
        x = s.cast(x, s.out.dtype)
        return s.ctx.op(name, x, axis=axis_of(dim, x.rank)) if x.rank else x


for _name in ("cumsum", "cumprod"):
    _cumulative(_name)


@rule("sort", "sort.stable", heavy=True)
def _sort(
    s: Site, x: Value, *how: Any, stable: bool | None = None, dim: int = -1, descending: bool = False
) -> Any:
    if how:
        dim, descending = (*how[-2:], descending)[:2] if len(how) > 1 else (how[0], descending)
    if x.rank == 0:
        raise Unsupported("an order of one number")
    axis = axis_of(dim, x.rank)
    order = s.ctx.argsort(x, axis=axis, descending=descending)
    return s.ctx.sort(x, axis=axis, descending=descending), order


@rule("topk", heavy=True)
def _topk(s: Site, x: Value, k: int, dim: int = -1, largest: bool = True, sorted: bool = True) -> Any:
    if x.rank == 0:
        raise Unsupported("an order of one number")
    return s.ctx.top_k(x, k=k, axis=axis_of(dim, x.rank), largest=largest)
