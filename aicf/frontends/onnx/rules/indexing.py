"""Elements picked by indices."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

from ....ops.scattering import Scatter
from ....types import DType
from ..operands import Call, Operand
from ..table import rule
from .movement import sliced


def _index(n: Call, indices: Operand) -> Any:
    return indices if indices.dtype in (DType.i32, DType.i64) else n.op("convert", indices, dtype=DType.i64)


@rule("Gather")
def _gather(n: Call, x: Operand, indices: Operand) -> Any:
    axis = n.axis(n.attr("axis"), x.rank)
    known = indices.array
    if known is not None and known.size == 1 and not x.is_known:  # one place: a slice, which needs no check
        at, size = int(known.item()), x.shape[axis]
        if not -size <= at < size:
            raise n.wrong(f"index {at} lies outside of an axis of {size}")
        one = sliced(n, x, {axis: slice(at % size, at % size + 1, 1)})
        return n.op("reshape", one, shape=(*x.shape[:axis], *indices.shape, *x.shape[axis + 1 :]))
    return n.op("gather", x, _index(n, indices), axis=axis)


@rule("GatherElements", since=11)
def _gather_elements(n: Call, x: Operand, indices: Operand) -> Any:
    axis = n.axis(n.attr("axis"), x.rank)
    part = {a: slice(0, d, 1) for a, d in enumerate(indices.shape) if a != axis}
    if indices.rank != x.rank or any(d > x.shape[a] for a, d in enumerate(indices.shape) if a != axis):
        raise n.wrong(f"indices {list(indices.shape)} do not lie in {list(x.shape)}")
    return n.op("take_along_axis", sliced(n, x, part) if part else x, _index(n, indices), axis=axis)


def _flat(n: Call, indices: Operand, sizes: tuple[int, ...]) -> Any:
    """Places in axes of these sizes as one index of all their elements; beyond them where one lies outside of its axis."""
    places = _index(n, indices)
    total, flat, inside = prod(sizes), None, None
    for at, size in enumerate(sizes):
        one = sliced(n, places, {indices.rank - 1: slice(at, at + 1, 1)})
        one = n.op("reshape", one, shape=indices.shape[:-1])
        one = n.op("select", n.op("less", one, 0), n.op("add", one, size), one)
        fits = n.op("logical_and", n.op("greater_equal", one, 0), n.op("less", one, size))
        flat = one if flat is None else n.op("add", n.op("mul", flat, size), one)
        inside = fits if inside is None else n.op("logical_and", inside, fits)
    return n.op("select", inside, flat, total)


@rule("GatherND", since=11)
def _gather_nd(n: Call, x: Operand, indices: Operand) -> Any:
    """Rows of x with the indexed axes merged; an entry of the batch is an index more."""
    batch = n.attr("batch_dims", 0)
    deep = indices.shape[-1] if indices.rank else 0
    if not deep or batch + deep > x.rank or batch >= min(indices.rank, x.rank) or batch < 0:
        raise n.wrong(f"indices {list(indices.shape)} do not lie in {list(x.shape)}")
    if indices.shape[:batch] != x.shape[:batch]:
        raise n.wrong(f"the batch of indices {list(indices.shape)} is not that of {list(x.shape)}")
    outer, sizes = x.shape[:batch], x.shape[batch : batch + deep]
    flat = _flat(n, indices, sizes)
    rows = n.op("reshape", x, shape=(prod(outer) * prod(sizes), *x.shape[batch + deep :]))
    if batch:
        n.reserve(*outer)
        each = np.arange(prod(outer)).reshape(*outer, *[1] * (len(flat.shape) - batch)) * prod(sizes)
        within = n.op("less", flat, prod(sizes))
        place = n.op("add", flat, each if flat.dtype is DType.i64 else each.astype(np.int32))
        flat = n.op("select", within, place, prod(outer) * prod(sizes))
    return n.op("gather", rows, flat, axis=0)


REDUCTIONS = {
    "none": Scatter.set, "add": Scatter.add, "mul": Scatter.mul, "max": Scatter.max, "min": Scatter.min,
}  # fmt: skip


def _how(n: Call) -> Scatter:
    reduction = n.attr("reduction", "none")
    if reduction not in REDUCTIONS:
        raise n.wrong(f"reduction is {reduction!r}, expected {', '.join(REDUCTIONS)}")
    return REDUCTIONS[reduction]


@rule("ScatterElements", "Scatter", since=9)
def _scatter_elements(n: Call, x: Operand, indices: Operand, updates: Operand) -> Any:
    """Where there are fewer indices than elements beside the axis, the first of them are scattered into."""
    axis = n.axis(n.attr("axis"), x.rank)
    reach = tuple(x.shape[a] if a == axis else d for a, d in enumerate(indices.shape))
    if indices.rank != x.rank or any(d > size for d, size in zip(reach, x.shape)):
        raise n.wrong(f"indices {list(indices.shape)} do not lie in {list(x.shape)}")
    if reach == x.shape:
        return n.op("scatter", x, _index(n, indices), updates, axis=axis, how=_how(n), along=True)
    part = sliced(n, n.value(x), {a: slice(0, d, 1) for a, d in enumerate(reach)})
    part = n.op("scatter", part, _index(n, indices), updates, axis=axis, how=_how(n), along=True)
    sides = {"low": (0,) * x.rank, "high": tuple(size - d for d, size in zip(reach, x.shape))}
    inside = n.op("pad", n.op("fill", shape=reach, value=1.0, dtype=DType.bool), value=0.0, **sides)
    return n.op("select", inside, n.op("pad", part, **sides), x)


@rule("ScatterND", since=11)
def _scatter_nd(n: Call, x: Operand, indices: Operand, updates: Operand) -> Any:
    deep = indices.shape[-1] if indices.rank else 0
    if not 0 < deep <= x.rank:
        raise n.wrong(f"indices {list(indices.shape)} do not lie in {list(x.shape)}")
    sizes, rest = x.shape[:deep], x.shape[deep:]
    count = prod(indices.shape[:-1])
    if updates.shape != (*indices.shape[:-1], *rest):
        raise n.wrong(f"updates {list(updates.shape)} are not one for each of {list(indices.shape)}")
    flat = n.op("reshape", _flat(n, indices, sizes), shape=(count,))
    rows = n.op("reshape", x, shape=(prod(sizes), *rest))
    given = n.op("reshape", updates, shape=(count, *rest))
    return n.op("reshape", n.op("scatter", rows, flat, given, axis=0, how=_how(n)), shape=x.shape)


@rule("CumSum", "CumProd", since=11)
def _cumulative(n: Call, x: Operand, axis: Operand) -> Any:
    at = n.integer(axis, "axis")
    backwards, exclusive = bool(n.attr("reverse")), bool(n.attr("exclusive"))
    kind = "cumsum" if n.node.op == "CumSum" else "cumprod"
    return n.op(kind, x, axis=n.axis(at, x.rank), reverse=backwards, exclusive=exclusive)


@rule("TopK", since=10)
def _top_k(n: Call, x: Operand, k: Operand) -> Any:
    """Sorted, which is also right where no order is asked for."""
    count = n.integer(k, "k")
    return n.op("top_k", x, k=count, axis=n.axis(n.attr("axis"), x.rank), largest=bool(n.attr("largest", 1)))


@rule("TopK", until=9)
def _top_k_by_attribute(n: Call, x: Operand) -> Any:
    return n.op("top_k", x, k=n.attr("k"), axis=n.axis(n.attr("axis"), x.rank))


@rule("Compress", since=9)
def _compress(n: Call, x: Operand, condition: Operand) -> Any:
    axis = n.attr("axis")
    keep = np.flatnonzero(n.known(condition, "condition"))
    y: Any = n.op("reshape", x, shape=(prod(x.shape),)) if axis is None else x
    return n.op("gather", y, keep.astype(np.int64), axis=0 if axis is None else n.axis(axis, x.rank))


@rule("OneHot", since=9)
def _one_hot(n: Call, indices: Operand, depth: Operand, values: Operand) -> Any:
    count = n.number_of(depth, "depth")
    rank = indices.rank + 1
    axis, size = n.axis(n.attr("axis"), rank), int(count)
    places = indices if indices.dtype is DType.i64 else n.op("convert", indices, dtype=DType.i64)
    shape = (*indices.shape[:axis], size, *indices.shape[axis:])
    column = n.op("reshape", places, shape=(*indices.shape[:axis], 1, *indices.shape[axis:]))
    counted = n.op("iota", shape=shape, axis=axis, dtype=DType.i64)
    wrapped = n.op("select", n.op("less", column, 0), n.op("add", column, size), column)
    off, on = (n.op("reshape", sliced(n, values, {0: slice(i, i + 1, 1)}), shape=()) for i in (0, 1))
    return n.op("select", n.op("equal", counted, wrapped), on, off)
