"""What batch norm is made of: the moments of each channel, and a map by them. Both read what they are given twice in a training step:
the gradient is two sums and a map."""

from __future__ import annotations

import numpy as np

from ..types import DType, TensorSpec
from .row_steps import narrow, wide
from .schema import ACCUMULATES, F32, LINEAR, Access, Float, Number, is_integer, op, require


@op("stop_gradient", alias={0: (0, "may")}, traits=(LINEAR,))
def stop_gradient(x: Number):
    """x, through which no gradient passes: for the loss it is a constant. PyTorch's detach."""
    return x


@stop_gradient.maps(lambda x: [Access(0, tuple(range(len(x))))])
def _(x):
    return x


@stop_gradient.reference
def _(x):
    return x.copy()


@stop_gradient.gradient
def _(emit):
    return None


stop_gradient.samples((4, 7))
stop_gradient.samples((0, 3))
stop_gradient.samples(())


# --- moments ----------------------------------------------------------------------------------------------------------


def _check_axis(x: TensorSpec, axis: int) -> None:
    require(-x.rank <= axis < x.rank, "C1", f"axis {axis} is not in [-{x.rank}, {x.rank})")


def _from_the_front(specs, attrs):
    rank, axis = specs[0].rank, attrs.get("axis", 1)
    return {**attrs, "axis": axis % rank} if is_integer(axis) and -rank <= axis < rank else attrs


def channel_sums(emit, x, axis: int):
    """The sum of each channel, of f32: first of what is behind the channels, which lies in rows, then of what is before."""
    behind, before = tuple(range(axis + 1, x.rank)), tuple(range(axis))
    for axes in (behind, before):
        x = emit.reduce_sum(x, axes=axes) if axes else x
    return x


def _beside(emit, v, x, axis: int):
    """A number for each channel beside all of its elements: it broadcasts."""
    return emit.reshape(v, shape=(v.shape[0], *[1] * (x.rank - 1 - axis)))


@op("moments", results=("mean", "var"), traits=(ACCUMULATES,))
def moments(x: Float, *, axis: int = 1):
    """The mean and the variance of each channel: those of all elements at one place of an axis. Of none they are NaN.

    Shapes: mean and var (C,), of f32, with C the size of the axis. The variance is divided by the count.

    C1  axis is in [-rank(x), rank(x))
    """
    _check_axis(x, axis)
    made = TensorSpec((x.shape[axis],), DType.f32, x.device)
    return made, made


moments.normalizer(_from_the_front)


@moments.replaced_by
def _(emit, x, axis):
    """The mean is a constant for the variance: distances from it add up to 0, and so does what would come back through it."""
    count = float(x.spec.numel // max(x.shape[axis], 1))
    mean = emit.div(channel_sums(emit, wide(emit, x), axis), count)
    centre = emit.stop_gradient(_beside(emit, mean, x, axis))
    var = emit.div(channel_sums(emit, emit.square(emit.sub(wide(emit, x), centre)), axis), count)
    return mean, var


@moments.reference
def _(x, axis):
    over = tuple([a for a in range(x.ndim) if a != axis])
    count = x.dtype.type(x.size // max(x.shape[axis], 1))
    mean = x.sum(over) / count
    column = mean.reshape(-1, *[1] * (x.ndim - 1 - axis))
    return mean, np.square(x - column).sum(over) / count


for _shape, _axis in [((4, 7), 1), ((4, 7), 0), ((2, 3, 5, 2), 1), ((2, 3, 4), -1), ((5,), 0), ((0, 3), 1), ((2, 0, 3), 1)]:  # fmt: skip
    moments.samples(_shape, axis=_axis)


# --- a map by them ----------------------------------------------------------------------------------------------------


@op("channel_affine", alias={0: (0, "may")}, flops=3)
def channel_affine(x: Float, centre: F32, scale: F32, bias: F32, *, axis: int = 1):
    """(x - centre) * scale + bias, with a number of each for each channel: a batch norm by given statistics.

    Shapes: x and y (…, C, …), centre, scale and bias (C,), with C the size of the axis. It is computed in f32.

    C1  axis is in [-rank(x), rank(x))
    C2  centre has shape (C,)
    C3  scale has shape (C,)
    C4  bias has shape (C,)
    """
    _check_axis(x, axis)
    channels = (x.shape[axis],)
    for constraint, name, v in (("C2", "centre", centre), ("C3", "scale", scale), ("C4", "bias", bias)):
        require(v.shape == channels, constraint, f"{name} has shape {v.shape}, expected {channels}")
    return x


channel_affine.normalizer(_from_the_front)


def _affine_access(x, centre, scale, bias, axis):
    return [Access(0, tuple(range(len(x)))), *[Access(n, (axis,)) for n in (1, 2, 3)]]


@channel_affine.maps(_affine_access, lambda attrs: {})
def _(x, centre, scale, bias):
    return (x - centre) * scale + bias


@channel_affine.reference
def _(x, centre, scale, bias, axis):
    centre, scale, bias = (v.reshape(-1, *[1] * (x.ndim - 1 - axis)) for v in (centre, scale, bias))
    return (x - centre) * scale + bias


@channel_affine.gradient
def _(emit, dy, x, centre, scale, axis):
    g = wide(emit, dy)
    beside = {name: _beside(emit, v, x, axis) for name, v in (("centre", centre), ("scale", scale))}
    dbias = channel_sums(emit, g, axis)
    dscale = channel_sums(emit, emit.mul(g, emit.sub(wide(emit, x), beside["centre"])), axis)
    dx = narrow(emit, emit.mul(g, beside["scale"]), x)
    return dx, emit.neg(emit.mul(dbias, scale)), dscale, dbias


for _shape, _axis in [((4, 7), 1), ((4, 7), 0), ((2, 3, 5, 2), 1), ((2, 3, 4), -1), ((0, 3), 1), ((5,), 0)]:
    _c = (_shape[_axis],)
    channel_affine.samples(_shape, _c, _c, _c, axis=_axis)
