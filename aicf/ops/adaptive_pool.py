"""Pooling to so many windows as are asked for, whatever the size: of n elements, window i of m is those from floor(i n / m) to
ceil((i + 1) n / m)."""

from __future__ import annotations

import numpy as np

from ..types import TensorSpec
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

    Shapes: x (N, C, …), y (N, C, *sizes). Windows overlap where a size does not divide that of x. Of equal elements each has a share of
    the gradient.

    C1  x has one to three spatial axes
    C2  sizes are integers from 1 on, one for each of them
    C3  no spatial axis is empty
    """
    return _adapted(x, sizes)


def _by(how: str):
    """Side by side, windows are an axis of their own; else each is reduced by itself, one spatial axis after the other."""

    def replaced(emit, x, sizes):
        reduce = getattr(emit, how)
        over = tuple(range(2, x.rank))
        if set(sizes) == {1}:
            return reduce(x, axes=over, keepdims=True)
        if not any(n % m for n, m in zip(x.shape[2:], sizes)):
            pairs = [pair for n, m in zip(x.shape[2:], sizes) for pair in (m, n // m)]
            apart = emit.reshape(x, shape=(*x.shape[:2], *pairs))
            return reduce(apart, axes=tuple(range(3, apart.rank, 2)))
        y = wide(emit, x)
        for axis, m in zip(over, sizes):
            n = y.shape[axis]
            parts = [part(emit, y, axis, i * n // m, -(-(i + 1) * n // m)) for i in range(m)]
            made = [reduce(p, axes=(axis,), keepdims=True) for p in parts]
            y = made[0] if m == 1 else emit.concatenate(*made, axis=axis)
        return narrow(emit, y, x)

    return replaced


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


adaptive_avg_pool.replaced_by(_by("reduce_mean"))
adaptive_max_pool.replaced_by(_by("reduce_max"))
adaptive_avg_pool.reference(_reference("mean"))
adaptive_max_pool.reference(_reference("max"))
for _schema in (adaptive_avg_pool, adaptive_max_pool):
    _schema.samples((2, 3, 7), sizes=(3,))
    _schema.samples((2, 3, 5, 6), sizes=(1, 1))
    _schema.samples((2, 3, 6, 4), sizes=(3, 2))
    _schema.samples((1, 2, 3, 5), sizes=(5, 2))
    _schema.samples((1, 2, 2, 5, 3), sizes=(2, 3, 1))
    _schema.samples((0, 3, 5), sizes=(2,))
