"""Elements picked by indices."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

from ....types import DType
from ..operands import Call, Operand
from ..table import rule
from .movement import sliced


def _index(n: Call, indices: Operand) -> Any:
    return indices if indices.dtype in (DType.i32, DType.i64) else n.op("convert", indices, dtype=DType.i64)


@rule("Gather")
def _gather(n: Call, x: Operand, indices: Operand) -> Any:
    axis = n.axis(n.attr("axis"), x.rank)
    if (
        indices.array is not None and indices.array.size == 1 and x.array is None
    ):  # one place: a slice, which needs no check
        at, size = int(indices.array.item()), x.shape[axis]
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


@rule("GatherND", since=11)
def _gather_nd(n: Call, x: Operand, indices: Operand) -> Any:
    """Of known indices, the rows of x with their axes merged; those outside of an axis are refused here."""
    batch = n.attr("batch_dims", 0)
    deep = indices.shape[-1] if indices.rank else 0
    if not indices.rank or batch + deep > x.rank or batch >= min(indices.rank, x.rank):
        raise n.wrong(f"indices {list(indices.shape)} do not lie in {list(x.shape)}")
    places = n.known(indices, "indices").astype(np.int64)
    sizes = x.shape[batch : batch + deep]
    if ((places < -np.array(sizes)) | (places >= np.array(sizes))).any():
        raise n.wrong(f"an index lies outside of {list(sizes)}")
    places = np.where(places < 0, places + np.array(sizes), places)
    outer = x.shape[:batch]
    flat = (places * np.array([prod(sizes[i + 1 :]) for i in range(deep)], np.int64)).sum(-1)
    each = np.arange(prod(outer)).reshape(*outer, *[1] * (flat.ndim - batch))
    rows = n.op("reshape", x, shape=(prod(x.shape[: batch + deep]), *x.shape[batch + deep :]))
    return n.op("gather", rows, flat + each * prod(sizes), axis=0)


@rule("Compress", since=9)
def _compress(n: Call, x: Operand, condition: Operand) -> Any:
    axis = n.attr("axis")
    keep = np.flatnonzero(n.known(condition, "condition"))
    y: Any = n.op("reshape", x, shape=(prod(x.shape),)) if axis is None else x
    return n.op("gather", y, keep.astype(np.int64), axis=0 if axis is None else n.axis(axis, x.rank))


@rule("OneHot", since=9)
def _one_hot(n: Call, indices: Operand, depth: Operand, values: Operand) -> Any:
    (count,) = n.known(depth, "depth").reshape(-1)[:1]
    rank = indices.rank + 1
    axis, size = n.axis(n.attr("axis"), rank), int(count)
    places = indices if indices.dtype is DType.i64 else n.op("convert", indices, dtype=DType.i64)
    shape = (*indices.shape[:axis], size, *indices.shape[axis:])
    column = n.op("reshape", places, shape=(*indices.shape[:axis], 1, *indices.shape[axis:]))
    counted = n.op("iota", shape=shape, axis=axis, dtype=DType.i64)
    wrapped = n.op("select", n.op("less", column, 0), n.op("add", column, size), column)
    off, on = (n.op("reshape", sliced(n, values, {0: slice(i, i + 1, 1)}), shape=()) for i in (0, 1))
    return n.op("select", n.op("equal", counted, wrapped), on, off)
