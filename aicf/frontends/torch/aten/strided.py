"""Ops that name places in memory: as_strided, and what is written through it. The memory is that of a tensor as it lies in PyTorch."""

from __future__ import annotations

import math
from collections.abc import Sequence

from ....ir import Value
from ....ops.scattering import Scatter
from ....types import DType, row_major
from ..rules import Site, rule
from ..types import TorchLayout, Unsupported, hinted, is_dense, layout_of, may_overlap
from .views import permuted


def _memory(s: Site, x: Value) -> tuple[Value, TorchLayout]:
    """The elements in the order of memory, which is dense, and the layout that says so."""
    source = s.source
    layout = layout_of(source)
    if not is_dense(source) or not x.spec.numel:
        raise Unsupported("places in memory that is not dense")
    if hinted(source.storage_offset()):
        raise Unsupported("places in memory that begins elsewhere")
    return s.reshape(permuted(s, x, layout.order) if x.rank else x, (x.spec.numel,)), layout


def run_of(size: Sequence[int], stride: Sequence[int]) -> tuple[int, ...] | None:
    """An order of the axes in which they are one run of memory; None if there is none."""
    order = tuple(sorted(range(len(size)), key=lambda axis: (size[axis] == 1, -stride[axis])))
    dense = row_major(tuple(size[axis] for axis in order))
    fits = all(size[axis] == 1 or stride[axis] == step for axis, step in zip(order, dense))
    return order if fits else None


def _places(s: Site, size: Sequence[int], stride: Sequence[int], first: int) -> Value:
    """Where in memory each element is."""
    place = s.ctx.fill(shape=tuple(size), value=first, dtype=DType.i64)
    for axis, step in enumerate(stride):
        if step and size[axis] > 1:
            along = s.ctx.iota(shape=tuple(size), axis=axis, dtype=DType.i64)
            place = s.ctx.add(place, s.ctx.mul(along, step))
    return place


def _back(order: Sequence[int]) -> list[int]:
    return sorted(range(len(order)), key=order.__getitem__)


def _within(size: Sequence[int], stride: Sequence[int], first: int, extent: int) -> None:
    last = first + sum((n - 1) * step for n, step in zip(size, stride))
    if not all(size) or first < 0 or last >= extent:
        raise Unsupported("places beyond what the tensor has")


@rule("as_strided", view=True, strides=True)
def _as_strided(
    s: Site, x: Value, size: Sequence[int], stride: Sequence[int], offset: int | None = None
) -> Value:
    memory, _ = _memory(s, x)
    first = offset or 0
    _within(size, stride, first, memory.shape[0])
    order = run_of(size, stride)
    if order is None:
        return s.ctx.gather(memory, _places(s, size, stride, first), axis=0)
    count = math.prod(size)
    if count < memory.shape[0]:
        memory = s.ctx.slice(memory, start=(first,), limit=(first + count,), step=(1,))
    laid = s.reshape(memory, [size[axis] for axis in order])
    return permuted(s, laid, _back(order)) if size else laid


@rule("as_strided_scatter", strides=True)
def _as_strided_scatter(
    s: Site, x: Value, source: Value, size: Sequence[int], stride: Sequence[int], offset: int | None = None
) -> Value:
    memory, layout = _memory(s, x)
    first, count = offset or 0, math.prod(size)
    _within(size, stride, first, memory.shape[0])
    source, order = s.cast(source, x.dtype), run_of(size, stride)
    if order is None and may_overlap(size, stride):
        raise Unsupported("places that may be written twice")
    if order is not None:
        run = s.reshape(permuted(s, source, order) if size else source, (count,))
        sides = [memory if start == 0 and limit == memory.shape[0] else s.ctx.slice(memory, start=(start,), limit=(limit,), step=(1,))
                 for start, limit in ((0, first), (first + count, memory.shape[0])) if start < limit]  # fmt: skip
        kept = [*sides[: first > 0], run, *sides[first > 0 :]]
        memory = s.ctx.concatenate(*kept, axis=0) if len(kept) > 1 else run
    else:
        where = s.reshape(_places(s, size, stride, first), (count,))
        memory = s.ctx.scatter(memory, where, s.reshape(source, (count,)), axis=0, how=Scatter.set)
    laid = s.reshape(memory, layout.dense)
    return permuted(s, laid, _back(layout.order)) if x.rank else laid
