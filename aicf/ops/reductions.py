"""Reductions over axes.

They share one type rule. StableHLO's reduce takes a body and initial values; here the body is the op, so of its
constraints those on the dimensions remain. Floats accumulate in f32, integers in their own type, wrapping.
"""

from __future__ import annotations

import numpy as np

from ..types import DType, TensorSpec, numel
from .schema import ACCUMULATES, LINEAR, Number, OpSchema, Real, is_integer, op, require


def normal_axes(rank: int, axes: tuple) -> tuple[int, ...]:
    """Axes as kernels see them: explicit, non-negative and ascending. () stands for all of them."""
    return tuple(sorted(int(a) % rank for a in axes)) if axes else tuple(range(rank))


def reduced(x: TensorSpec, axes: tuple, keepdims: bool) -> TensorSpec:
    for a in axes:
        require(
            is_integer(a) and -x.rank <= a < x.rank,
            "C1",
            f"axis {a} is not an integer in [-{x.rank}, {x.rank})",
        )
    normal = normal_axes(x.rank, axes)
    require(len(set(normal)) == len(normal), "C2", f"axes {axes} name an axis of {x.rank} twice")
    kept = [(1 if i in normal else d) for i, d in enumerate(x.shape) if keepdims or i not in normal]
    return TensorSpec(tuple(kept), x.dtype, x.device)


def normalize_axes(specs, attrs):
    rank, axes = specs[0].rank, attrs.get("axes", ())
    valid = isinstance(axes, (tuple, list)) and all(is_integer(a) and -rank <= a < rank for a in axes)
    if not valid or len({a % rank for a in axes}) < len(axes):
        return attrs  # infer refuses it, in the caller's words
    return {**attrs, "axes": normal_axes(rank, axes)}


def _expand(emit, g, x, axes, keepdims):
    """g, of a reduction's result shape, repeated along the reduced axes of x."""
    axes = normal_axes(x.rank, axes)
    dims = tuple(i for i in range(x.rank) if keepdims or i not in axes)
    return emit.broadcast_in_dim(g, shape=x.shape, dims=dims)


def _enrol(schema: OpSchema) -> None:
    schema.normalizer(normalize_axes)
    schema.samples((4, 7))
    schema.samples((4, 7), axes=(1,))
    schema.samples((4, 7), axes=(0,), keepdims=True)
    schema.samples((2, 3, 5), axes=(-1, 0))
    schema.samples((2, 3, 5), axes=(1,))
    schema.samples((3, 1025), axes=(-1,), keepdims=True)
    schema.samples((3, 0), axes=(1,))
    schema.samples((0, 3), axes=(1,))
    schema.samples(())


@op("reduce_sum", traits=(LINEAR, ACCUMULATES), core="reduce")
def reduce_sum(x: Number, *, axes: tuple = (), keepdims: bool = False):
    """The sum over axes; () means all axes. An empty sum is 0.

    Shapes: y is x without the axes, or with 1 in their place if keepdims.

    C1  each axis is an integer in [-rank(x), rank(x))   (StableHLO reduce C4; a negative one counts from the end)
    C2  axes are distinct                                (StableHLO reduce C5)
    """
    return reduced(x, axes, keepdims)


@reduce_sum.reference
def _(x, axes, keepdims):
    return np.sum(x, axis=axes or None, keepdims=keepdims, dtype=x.dtype)


@reduce_sum.gradient
def _(emit, dy, x, axes, keepdims):
    return _expand(emit, dy, x, axes, keepdims)


@op("reduce_mean", traits=(LINEAR, ACCUMULATES), core="reduce")
def reduce_mean(x: Real, *, axes: tuple = (), keepdims: bool = False):
    """The mean over axes; () means all axes. An empty mean is NaN.

    Shapes: y is x without the axes, or with 1 in their place if keepdims.

    C1  each axis is an integer in [-rank(x), rank(x))   (StableHLO reduce C4; a negative one counts from the end)
    C2  axes are distinct                                (StableHLO reduce C5)
    """
    return reduced(x, axes, keepdims)


@reduce_mean.reference
def _(x, axes, keepdims):
    total = np.sum(x, axis=axes or None, keepdims=keepdims)
    return total / x.dtype.type(counted(x, axes))


@reduce_mean.gradient
def _(emit, dy, x, axes, keepdims):
    """1 / n is a number in memory, in f32: as an attribute it would be part of a kernel, and each n would have its own."""
    dy, narrow = (dy, None) if x.dtype is DType.f32 else (emit.convert(dy, dtype=DType.f32), x.dtype)
    share = emit.mul(dy, 1.0 / max(counted(x, axes), 1))
    return _expand(emit, emit.convert(share, dtype=narrow) if narrow else share, x, axes, keepdims)


def counted(x, axes):
    return numel(tuple(x.shape[a] for a in axes or range(len(x.shape))))


@op("reduce_prod", core="reduce", traits=(ACCUMULATES,))
def reduce_prod(x: Number, *, axes: tuple = (), keepdims: bool = False):
    """The product over axes; () means all axes. An empty product is 1.

    Shapes: y is x without the axes, or with 1 in their place if keepdims.

    C1  each axis is an integer in [-rank(x), rank(x))   (StableHLO reduce C4; a negative one counts from the end)
    C2  axes are distinct                                (StableHLO reduce C5)
    """
    return reduced(x, axes, keepdims)


@reduce_prod.reference
def _(x, axes, keepdims):
    return np.prod(x, axis=axes or None, keepdims=keepdims, dtype=x.dtype)


@reduce_prod.gradient
def _(emit, dy, x, y, axes, keepdims):
    """The product of the others: y / x, but of the one zero among x that of all that are none, and nothing if there are more."""
    axes = normal_axes(x.rank, axes)
    zero = emit.equal(x, 0)
    zeros = _expand(
        emit,
        emit.reduce_sum(emit.convert(zero, dtype=DType.f32), axes=axes, keepdims=keepdims),
        x,
        axes,
        keepdims,
    )
    others = emit.reduce_prod(emit.select(zero, 1, x), axes=axes, keepdims=keepdims)
    of_zero = emit.select(
        emit.logical_and(zero, emit.equal(zeros, 1.0)), _expand(emit, others, x, axes, keepdims), 0
    )
    rest = emit.select(
        emit.equal(zeros, 0.0),
        emit.div(_expand(emit, y, x, axes, keepdims), emit.select(zero, 1, x)),
        of_zero,
    )
    return emit.mul(_expand(emit, dy, x, axes, keepdims), rest)


@op("reduce_max", core="reduce")
def reduce_max(x: Number, *, axes: tuple = (), keepdims: bool = False):
    """The maximum over axes; () means all axes. A NaN anywhere gives NaN; an empty maximum is the type's least value.

    Shapes: y is x without the axes, or with 1 in their place if keepdims. The least value is -inf for floats. Elements
    that tie for the maximum share its gradient equally.

    C1  each axis is an integer in [-rank(x), rank(x))   (StableHLO reduce C4; a negative one counts from the end)
    C2  axes are distinct                                (StableHLO reduce C5)
    """
    return reduced(x, axes, keepdims)


@reduce_max.reference
def _(x, axes, keepdims):
    least = -np.inf if x.dtype.kind == "f" else np.iinfo(x.dtype).min
    return np.max(x, axis=axes or None, keepdims=keepdims, initial=least)


@op("reduce_min", core="reduce")
def reduce_min(x: Number, *, axes: tuple = (), keepdims: bool = False):
    """The minimum over axes; () means all axes. A NaN anywhere gives NaN; an empty minimum is the type's greatest value.

    Shapes: y is x without the axes, or with 1 in their place if keepdims. The greatest value is inf for floats. Elements
    that tie for the minimum share its gradient equally.

    C1  each axis is an integer in [-rank(x), rank(x))   (StableHLO reduce C4; a negative one counts from the end)
    C2  axes are distinct                                (StableHLO reduce C5)
    """
    return reduced(x, axes, keepdims)


@reduce_min.reference
def _(x, axes, keepdims):
    greatest = np.inf if x.dtype.kind == "f" else np.iinfo(x.dtype).max
    return np.min(x, axis=axes or None, keepdims=keepdims, initial=greatest)


@reduce_max.gradient
@reduce_min.gradient
def _(emit, dy, x, y, axes, keepdims):
    axes = normal_axes(x.rank, axes)
    column = tuple(1 if i in axes else d for i, d in enumerate(x.shape))
    y, dy = (v if keepdims else emit.reshape(v, shape=column) for v in (y, dy))
    winners = emit.convert(emit.equal(x, y), dtype=x.dtype)
    return emit.mul(winners, emit.div(dy, emit.reduce_sum(winners, axes=axes, keepdims=True)))


for _schema in (reduce_sum, reduce_mean, reduce_prod, reduce_max, reduce_min):
    _enrol(_schema)
