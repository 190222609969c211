"""Products of groups of rows, each with a matrix of its own: mixtures of experts. Where groups end is data, so aicf multiplies all rows by each
matrix and keeps a group's. PyTorch, which waits for the data, computes less: it is left where it may."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ....ir import Value
from ..rules import Site, rule
from ..types import Unsupported
from .products import product

MOST = 64  # each is a product of all rows


def _groups(s: Site, rows: int, ends: Value) -> Iterator[Value]:
    """For each group, which rows are in it: (rows, 1)."""
    place = s.ctx.iota(shape=(rows, 1), axis=0, dtype=ends.dtype)
    first: Any = 0
    for n in range(ends.shape[0]):
        end = s.reshape(s.ctx.slice(ends, start=(n,), limit=(n + 1,), step=(1,)), (1, 1))
        yield s.ctx.logical_and(s.ctx.greater_equal(place, first), s.ctx.less(place, end))
        first = end


def _matrix(s: Site, w: Value, n: int) -> Value:
    one = s.ctx.slice(w, start=(n, 0, 0), limit=(n + 1, *w.shape[1:]), step=(1, 1, 1))
    return s.reshape(one, w.shape[1:])


def _forward(s: Site, x: Value, w: Value, ends: Value, transposed: bool = False) -> Value:
    if w.shape[0] > MOST or not w.spec.numel or not x.spec.numel:
        raise Unsupported(f"products of more than {MOST} groups of rows, or of no elements")
    y = s.ctx.fill(shape=(x.shape[0], w.shape[1 if transposed else 2]), value=0.0, dtype=x.dtype)
    for n, inside in enumerate(_groups(s, x.shape[0], ends)):
        matrix = _matrix(s, w, n)
        made = s.ctx.gemm(x, matrix, trans_b=True) if transposed else product(s, x, matrix)
        y = s.ctx.select(inside, made, y)
    return y


@rule("transformers::grouped_mm_fallback", heavy=True, slower=True)
def _grouped(s: Site, x: Value, w: Value, ends: Value) -> Value:
    return _forward(s, x, w, ends)


@rule("_grouped_mm", heavy=True, slower=True)
def _grouped_mm(
    s: Site, x: Value, w: Value, offs: Value | None = None, bias: Value | None = None, out_dtype: Any = None
) -> Value:
    if x.rank != 2 or w.rank != 3 or offs is None or bias is not None:
        raise Unsupported("grouped products but of rows with matrices of their own")
    return s.cast(_forward(s, x, w, offs), s.out.dtype)


@rule("transformers::grouped_mm_fallback_backward", heavy=True, slower=True)
def _grouped_backward(s: Site, x: Value, w: Value, ends: Value, dy: Value) -> tuple[Value, Value]:
    dx, each = _forward(s, dy, w, ends, transposed=True), []
    for inside in _groups(s, x.shape[0], ends):
        own, grad = (s.ctx.select(inside, v, s.ctx.constant(0.0, v.dtype)) for v in (x, dy))
        each.append(s.reshape(s.ctx.gemm(own, grad, trans_a=True), (1, *w.shape[1:])))
    return dx, each[0] if len(each) == 1 else s.ctx.concatenate(*each, axis=0)
