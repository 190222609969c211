"""Pooling to so many windows as are asked for, whatever the size: of n elements, window i of m is those from floor(i n / m) to
ceil((i + 1) n / m)."""

from __future__ import annotations

from functools import partial
from math import prod

import numpy as np

from ..types import DType, TensorSpec
from .arranging import part
from .row_steps import narrow, wide
from .schema import ACCUMULATES, Float, is_integer, op, require


def _adapted(x: TensorSpec, sizes: tuple) -> TensorSpec:
    require(3 <= x.rank <= 5, "C1", f"x has rank {x.rank}, expected (N, C, …) with one to three spatial axes")
    require(
        len(sizes) == x.rank - 2 and all(is_integer(n) and n >= 1 for n in sizes),
        "C2",
        f"sizes is {sizes}, expected {x.rank - 2} integers from 1 on",
    )
    require(all(x.shape[2:]), "C3", f"x has shape {x.shape}, expected elements along each spatial axis")
    return TensorSpec((*x.shape[:2], *sizes), x.dtype, x.device)


@op("adaptive_avg_pool", traits=(ACCUMULATES,))
def adaptive_avg_pool(x: Float, *, sizes: tuple):
    """The mean of each of so many windows along each spatial axis: as torch.nn.functional.adaptive_avg_pool2d.

    Shapes: x (N, C, …), y (N, C, *sizes). Windows overlap where a size does not divide that of x.

    C1  x has one to three spatial axes
    C2  sizes are integers from 1 on, one for each of them
    C3  no spatial axis is empty
    """
    return _adapted(x, sizes)


@op("adaptive_max_pool")
def adaptive_max_pool(x: Float, *, sizes: tuple):
    """The maximum of each of so many windows along each spatial axis: as torch.nn.functional.adaptive_max_pool2d.

    Shapes: x (N, C, …), y (N, C, *sizes). Windows overlap where a size does not divide that of x. Of equal elements of a window the first
    has the gradient, in row-major order, as of max_pool.

    C1  x has one to three spatial axes
    C2  sizes are integers from 1 on, one for each of them
    C3  no spatial axis is empty
    """
    return _adapted(x, sizes)


def _split(emit, x, sizes):
    """x with each spatial axis as two, windows and their elements; None where windows overlap."""
    if any(n % m for n, m in zip(x.shape[2:], sizes)):
        return None
    pairs = [pair for n, m in zip(x.shape[2:], sizes) for pair in (m, n // m)]
    return emit.reshape(x, shape=(*x.shape[:2], *pairs))


def _one_axis_at_a_time(emit, x, sizes, reduce):
    """Windows that overlap: each axis is reduced by `reduce(x, axis)`, the last one first, so that the first row decides between equals."""
    y = wide(emit, x)
    for axis in range(x.rank - 1, 1, -1):
        n, m = y.shape[axis], sizes[axis - 2]
        parts = [part(emit, y, axis, i * n // m, -(-(i + 1) * n // m)) for i in range(m)]
        made = [reduce(p, axis) for p in parts]
        y = made[0] if m == 1 else emit.concatenate(*made, axis=axis)
    return narrow(emit, y, x)


@adaptive_avg_pool.replaced_by
def _(emit, x, sizes):
    if set(sizes) == {1}:
        return emit.reduce_mean(x, axes=tuple(range(2, x.rank)), keepdims=True)
    if (windows := _split(emit, x, sizes)) is not None:
        return emit.reduce_mean(windows, axes=tuple(range(3, windows.rank, 2)))
    return _one_axis_at_a_time(
        emit, x, sizes, lambda part, axis: emit.reduce_mean(part, axes=(axis,), keepdims=True)
    )


@adaptive_max_pool.replaced_by
def _(emit, x, sizes):
    windows = x if set(sizes) == {1} else _split(emit, x, sizes)
    if windows is None:
        return _one_axis_at_a_time(emit, x, sizes, partial(_first_greatest, emit))
    order = (0, 1, *range(2, windows.rank, 2), *range(3, windows.rank, 2))
    flat = x if windows is x else emit.transpose(windows, perm=order)
    flat = emit.reshape(flat, shape=(*x.shape[:2], *sizes, prod(x.shape[2:]) // prod(sizes)))
    return emit.reshape(_first_greatest(emit, flat, flat.rank - 1), shape=(*x.shape[:2], *sizes))


def _first_greatest(emit, x, axis):
    """The greatest element along an axis, which becomes 1; the first of equal ones alone has a gradient."""
    places = emit.iota(shape=x.shape, axis=axis, dtype=DType.i64)
    first = emit.equal(places, emit.argmax(x, axis=axis, keepdims=True))
    return emit.reduce_sum(emit.select(first, x, 0.0), axes=(axis,), keepdims=True)


def _reference(how: str):
    def reference(x, sizes):
        for axis, m in enumerate(sizes, 2):
            n = x.shape[axis]
            windows = [
                getattr(x.take(range(i * n // m, -(-(i + 1) * n // m)), axis), how)(axis) for i in range(m)
            ]
            x = np.stack(windows, axis)
        return x

    return reference


adaptive_avg_pool.reference(_reference("mean"))
adaptive_max_pool.reference(_reference("max"))
for _schema in (adaptive_avg_pool, adaptive_max_pool):
    _schema.samples((2, 3, 7), sizes=(3,))
    _schema.samples((2, 3, 5, 6), sizes=(1, 1))
    _schema.samples((2, 3, 6, 4), sizes=(3, 2))
    _schema.samples((1, 2, 3, 5), sizes=(5, 2))
    _schema.samples((1, 2, 2, 5, 3), sizes=(2, 3, 1))
    _schema.samples((0, 3, 5), sizes=(2,))
