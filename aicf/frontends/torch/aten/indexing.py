"""Ops that read or write where other tensors say: embeddings, gathers, scatters."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ....ir import Value
from ....types import DType
from ..rules import Site, axis_of, rule
from ..types import Unsupported

INDICES = DType.i32, DType.i64


def _checked(index: Value) -> Value:
    if index.dtype not in INDICES:
        raise Unsupported(f"indices of {index.dtype}")
    return index


@rule("embedding", heavy=True)
def _embedding(s: Site, weight: Value, index: Value, *how: Any, **named: Any) -> Value:
    return s.ctx.gather(weight, _checked(index), axis=0)


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
    return s.ctx.scatter_add(flat, _checked(places), size=rows, axis=0)


@rule("index_select")
def _index_select(s: Site, x: Value, dim: int, index: Value) -> Value:
    if x.rank == 0 or index.rank == 0:
        raise Unsupported("an index of no axes")
    return s.ctx.gather(x, _checked(index), axis=axis_of(dim, x.rank))


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
    return s.ctx.take_along_axis(x, _checked(index), axis=axis)


@rule("index.Tensor")
def _index(s: Site, x: Value, indices: Sequence[Value | None]) -> Value:
    """One tensor of indices, along one axis."""
    given = [(axis, index) for axis, index in enumerate(indices) if index is not None]
    if len(given) != 1:
        raise Unsupported("indices along several axes")
    axis, index = given[0]
    return s.ctx.gather(x, _checked(index), axis=axis)


@rule("index_put", "_unsafe_index_put", "index_put_")
def _index_put(
    s: Site, x: Value, indices: Sequence[Value | None], values: Value, accumulate: bool = False
) -> Value:
    """Adding along the first axis: the gradient of an index."""
    if not accumulate or len(indices) != 1 or indices[0] is None or x.dtype.kind != "float":
        raise Unsupported("index_put other than adding along the first axis")
    index = _checked(indices[0])
    values = s.spread(values, (*index.shape, *x.shape[1:]))
    flat = s.reshape(values, (index.spec.numel, *x.shape[1:]))
    return s.ctx.add(
        x, s.ctx.scatter_add(flat, s.reshape(index, (index.spec.numel,)), size=x.shape[0], axis=0)
    )


@rule("scatter_add")
def _scatter_add(s: Site, x: Value, dim: int, index: Value, source: Value) -> Value:
    axis = axis_of(dim, x.rank)
    if x.rank == 0 or any(n != m for a, (n, m) in enumerate(zip(x.shape, index.shape)) if a != axis):
        raise Unsupported("scatter_add into a part of a tensor")
    if source.shape != index.shape:
        source = s.ctx.slice(source, start=(0,) * source.rank, limit=index.shape)
    return s.ctx.add(x, s.ctx.scatter_add(source, _checked(index), size=x.shape[axis], axis=axis, along=True))


@rule("scatter.value")
def _scatter_value(s: Site, x: Value, dim: int, index: Value, value: Any) -> Value:
    """One place along the axis for each of the others: a one-hot, or a label's gradient."""
    axis = axis_of(dim, x.rank)
    rest = all(n == m for a, (n, m) in enumerate(zip(x.shape, index.shape)) if a != axis)
    if x.rank == 0 or not rest or index.shape[axis] != 1:
        raise Unsupported("scatter of several places in a row")
    places = s.ctx.iota(shape=x.shape, axis=axis, dtype=_checked(index).dtype)
    return s.ctx.select(s.ctx.equal(places, index), s.value(value, x.dtype), x)
