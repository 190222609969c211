"""Reductions that are made of others: whether any or all are true, variances and standard deviations. A graph has the others in their
place, which fuse as they stand."""

from __future__ import annotations

import numpy as np

from ..types import DType, f64
from .reductions import counted, normalize_axes, reduced
from .schema import ACCUMULATES, Bool, OpSchema, Real, op


@op("reduce_any")
def reduce_any(x: Bool, *, axes: tuple = (), keepdims: bool = False):
    """Whether any element along axes is true; () means all axes. Of none it is false.

    Shapes: y is x without the axes, or with 1 in their place if keepdims.

    C1  each axis is an integer in [-rank(x), rank(x))   (StableHLO reduce C4; a negative one counts from the end)
    C2  axes are distinct                                (StableHLO reduce C5)
    """
    return reduced(x, axes, keepdims)


@op("reduce_all")
def reduce_all(x: Bool, *, axes: tuple = (), keepdims: bool = False):
    """Whether all elements along axes are true; () means all axes. Of none it is true.

    Shapes: y is x without the axes, or with 1 in their place if keepdims.

    C1  each axis is an integer in [-rank(x), rank(x))   (StableHLO reduce C4; a negative one counts from the end)
    C2  axes are distinct                                (StableHLO reduce C5)
    """
    return reduced(x, axes, keepdims)


def _of_integers(how: str):
    def replaced(emit, x, axes, keepdims):
        number = emit.convert(x, dtype=DType.i32)
        return emit.greater(getattr(emit, how)(number, axes=axes, keepdims=keepdims), 0)

    return replaced


reduce_any.replaced_by(_of_integers("reduce_max"))
reduce_all.replaced_by(_of_integers("reduce_min"))


@reduce_any.reference
def _(x, axes, keepdims):
    return np.any(x, axis=axes or None, keepdims=keepdims)


@reduce_all.reference
def _(x, axes, keepdims):
    return np.all(x, axis=axes or None, keepdims=keepdims)


@op("reduce_var", traits=(ACCUMULATES,))
def reduce_var(x: Real, *, axes: tuple = (), keepdims: bool = False, correction: float = 0.0):
    """The variance over axes: the sum of squared distances from the mean, divided by the count less the correction.

    Shapes: y is x without the axes, or with 1 in their place if keepdims. A correction of 1 makes it that of a sample, PyTorch's default.
    Divided by 0 or less it is infinite or NaN.

    C1  each axis is an integer in [-rank(x), rank(x))   (StableHLO reduce C4; a negative one counts from the end)
    C2  axes are distinct                                (StableHLO reduce C5)
    """
    return reduced(x, axes, keepdims)


@op("reduce_std", traits=(ACCUMULATES,))
def reduce_std(x: Real, *, axes: tuple = (), keepdims: bool = False, correction: float = 0.0):
    """The standard deviation over axes: the root of reduce_var.

    Shapes: y is x without the axes, or with 1 in their place if keepdims.

    C1  each axis is an integer in [-rank(x), rank(x))   (StableHLO reduce C4; a negative one counts from the end)
    C2  axes are distinct                                (StableHLO reduce C5)
    """
    return reduced(x, axes, keepdims)


def _variance(emit, x, axes, keepdims, correction):
    """Of what is at least f32."""
    off = emit.sub(x, emit.reduce_mean(x, axes=axes, keepdims=True))
    total = emit.reduce_sum(emit.square(off), axes=axes, keepdims=keepdims)
    return emit.div(total, max(counted(x, axes) - correction, 0.0))


def _wide(emit, x):
    return x if x.dtype in (DType.f32, f64) else emit.convert(x, dtype=DType.f32)


def _like(emit, y, x):
    return y if y.dtype is x.dtype else emit.convert(y, dtype=x.dtype)


@reduce_var.replaced_by
def _(emit, x, axes, keepdims, correction):
    return _like(emit, _variance(emit, _wide(emit, x), axes, keepdims, correction), x)


@reduce_std.replaced_by
def _(emit, x, axes, keepdims, correction):
    return _like(emit, emit.sqrt(_variance(emit, _wide(emit, x), axes, keepdims, correction)), x)


@reduce_var.reference
def _(x, axes, keepdims, correction):
    off = x - np.sum(x, axis=axes or None, keepdims=True) / x.dtype.type(counted(x, axes))
    total = np.sum(np.square(off), axis=axes or None, keepdims=keepdims)
    return total / x.dtype.type(max(counted(x, axes) - correction, 0))


@reduce_std.reference
def _(x, axes, keepdims, correction):
    return np.sqrt(reduce_var.reference_fn(x, axes, keepdims, correction))


def _enrol(schema: OpSchema, **attrs) -> None:
    schema.normalizer(normalize_axes)
    schema.samples((4, 7), **attrs)
    schema.samples((4, 7), axes=(1,), **attrs)
    schema.samples((2, 3, 5), axes=(-1, 0), keepdims=True)
    schema.samples((3, 0), axes=(1,))


_enrol(reduce_any)
_enrol(reduce_all)
_enrol(reduce_var, correction=1.0)
_enrol(reduce_std)
