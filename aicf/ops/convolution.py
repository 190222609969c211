"""Convolution: sums of products of a kernel with each window of a tensor, channels first or channels last."""

from __future__ import annotations

from functools import reduce
from math import prod

import numpy as np

from ..types import TensorSpec
from .row_steps import narrow, wide
from .schema import ACCUMULATES, Float, op, require
from .windows import STEPS, Windows, check_windows, filled, slices, views, windows_of


def _result(
    x: TensorSpec, w: TensorSpec, strides, low, high, dilation, input_dilation, groups, layout="(N, C, …)"
) -> TensorSpec:
    """C1 to C6, of channels first."""
    ones, zeros = (1,) * (x.rank - 2), (0,) * (x.rank - 2)
    steps = {
        "strides": strides or ones,
        "dilation": dilation or ones,
        "input_dilation": input_dilation or ones,
    }
    check_windows(x, steps, {"low": low or zeros, "high": high or zeros}, layout)
    require(w.rank == x.rank, "C1", f"w has rank {w.rank}, x has rank {x.rank}")
    require(groups >= 1, "C4", f"groups is {groups}, expected 1 or more")
    require(
        x.shape[1] % groups == 0,
        "C4",
        f"groups is {groups}, which doesn't divide the {x.shape[1]} channels of x",
    )
    require(
        w.shape[0] % groups == 0,
        "C4",
        f"groups is {groups}, which doesn't divide the {w.shape[0]} channels of y",
    )
    require(
        w.shape[1] == x.shape[1] // groups,
        "C5",
        f"w has {w.shape[1]} channels, x has {x.shape[1]} in {groups} groups",
    )
    require(all(n > 0 for n in w.shape[2:]), "C6", f"the kernel is empty: w has shape {w.shape}")
    made = windows_of(w.shape[2:], strides, dilation, low, high, input_dilation).made(x.shape[2:])
    return TensorSpec((x.shape[0], w.shape[0], *made), x.dtype, x.device)


@op("convolution", traits=(ACCUMULATES,))
def convolution(
    x: Float, w: Float, *,
    strides: tuple = (), low: tuple = (), high: tuple = (), dilation: tuple = (), input_dilation: tuple = (), groups: int = 1,
):  # fmt: skip
    """Sums of products of a kernel with each window of x, as torch.nn.functional.conv1d to conv3d: the kernel is not reversed.

    Shapes: x (N, C, …), w (O, C / groups, …), y (N, O, …). Each group of O / groups results reads its own C / groups of C. low and high
    are zeros before and behind each spatial axis, cut off if negative; input_dilation puts n - 1 zeros between elements of x, which
    makes it a transposed convolution.

    C1  x has one to three spatial axes, w as many
    C2  strides, dilation and input_dilation are integers from 1 on, one for each of them     (StableHLO convolution C2 to C8)
    C3  low and high are integers, one for each of them                                       (StableHLO convolution C4)
    C4  groups >= 1, and divides C and O                                                      (StableHLO convolution C11, C16, C21)
    C5  w has C / groups channels                                                             (StableHLO convolution C14)
    C6  the kernel is not empty
    """
    return _result(x, w, strides, low, high, dilation, input_dilation, groups)


convolution.normalizer(filled({**STEPS, "input_dilation": 1}))


@convolution.counts
def _(x, w, strides, low, high, dilation, input_dilation, groups):
    made = windows_of(w.shape[2:], strides, dilation, low, high, input_dilation).made(x.shape[2:])
    return 2 * x.shape[0] * prod(made) * prod(w.shape)


@convolution.replaced_by
def _(emit, x, w, strides, low, high, dilation, input_dilation, groups):
    """With channels last, as kernels read them. A graph's transposes between convolutions go (aicf/graph/recognise/layout.py)."""
    shape = windows_of(w.shape[2:], strides, dilation, low, high, input_dilation)
    beside = (
        shape.window == shape.strides and set(dilation) == {1} and not any((*low, *high, *shape.interior))
    )
    made = shape.made(x.shape[2:])
    if beside and groups == 1 and prod(w.shape[2:]) > 1 and 0 not in (*x.shape[:2], *made):
        return _of_patches(emit, x, w, made)
    if groups == x.shape[1] == w.shape[0] > 1 and emit.device == "cpu":
        return _depthwise(emit, x, w, shape)
    last = (0, *range(2, x.rank), 1)
    y = emit.convolution_channels_last(
        *[emit.transpose(t, perm=last) for t in (x, w)],
        strides=strides, low=low, high=high, dilation=dilation, input_dilation=input_dilation, groups=groups,
    )  # fmt: skip
    return emit.transpose(y, perm=(0, x.rank - 1, *range(1, x.rank - 1)))


def _of_patches(emit, x, w, made):
    """Windows of several elements that lie beside each other, such as the patches of a vision transformer, are rows of a matrix as they
    are. What no window reads is cut off."""
    (n, c), (o, _, *kernel) = x.shape[:2], w.shape
    whole = (n, c, *[m * k for m, k in zip(made, kernel)])
    if whole != tuple(x.shape):
        x = emit.slice(x, start=(0,) * x.rank, limit=whole)
    apart = emit.reshape(x, shape=(n, c, *[size for pair in zip(made, kernel) for size in pair]))
    apart = emit.transpose(apart, perm=(0, *range(2, apart.rank, 2), 1, *range(3, apart.rank, 2)))
    wide = c * prod(kernel)
    rows = emit.reshape(apart, shape=(n * prod(made), wide))
    y = emit.gemm(rows, emit.reshape(w, shape=(o, wide)), trans_b=True)
    return emit.transpose(emit.reshape(y, shape=(n, *made, o)), perm=(0, x.rank - 1, *range(1, x.rank - 1)))


def _depthwise(emit, x, w, shape: Windows):
    """Each channel by itself: a sum of products, in one loop of the host, which has no kernel for groups of one channel."""
    c, places = w.shape[0], prod(w.shape[2:])
    seen, ones = slices(emit, x, shape), (1,) * (x.rank - 2)
    columns = emit.reshape(
        emit.transpose(emit.reshape(w, shape=(c, places)), perm=(1, 0)), shape=(places, c, *ones)
    )
    of_place = [
        emit.slice(columns, start=(n, 0, *[0] * len(ones)), limit=(n + 1, c, *ones)) for n in range(places)
    ]
    terms = (emit.mul(*[wide(emit, v) for v in pair]) for pair in zip(seen, of_place))
    return narrow(emit, reduce(emit.add, terms), x)


@convolution.reference
def _(x, w, strides, low, high, dilation, input_dilation, groups):
    seen = views(x, windows_of(w.shape[2:], strides, dilation, low, high, input_dilation), 0)
    n, (c, axes) = x.shape[0], (x.shape[1], x.ndim - 2)
    seen = seen.reshape(n, groups, c // groups, *seen.shape[2:])
    kernel = w.reshape(groups, w.shape[0] // groups, *w.shape[1:])
    windows, places = list(range(10, 10 + axes)), list(range(20, 20 + axes))
    y = np.einsum(
        seen, [0, 1, 2, *windows, *places], kernel, [1, 3, 2, *places], [0, 1, 3, *windows], optimize=True
    )
    return y.reshape(n, w.shape[0], *y.shape[3:])


convolution.samples((2, 3, 9), (4, 3, 3))
convolution.samples((2, 3, 5, 6), (4, 3, 3, 2), strides=(2, 1), low=(1, 0), high=(1, 2), dilation=(1, 2))
convolution.samples((2, 4, 5, 6), (6, 2, 3, 3), low=(1, 1), high=(1, 1), groups=2)
convolution.samples((1, 3, 4), (3, 1, 2), groups=3, low=(-1,), high=(2,))
convolution.samples((2, 3, 4, 3), (2, 3, 2, 2), input_dilation=(2, 3), low=(1, 1), high=(1, 1))
convolution.samples((1, 2, 3, 4, 3), (2, 2, 2, 1, 3), strides=(1, 2, 1))
convolution.samples((2, 3, 5, 7), (4, 3, 2, 3), strides=(2, 3))
convolution.samples((1, 2, 6, 7), (3, 2, 6, 6))
convolution.samples((2, 3, 5), (4, 3, 1))
convolution.samples((0, 3, 5), (4, 3, 2))
convolution.samples((2, 0, 5), (4, 0, 2))
convolution.samples((2, 3, 2), (4, 3, 3))


# --- channels last ----------------------------------------------------------------------------------------------------


def _first(spec: TensorSpec) -> TensorSpec:
    """With its channels before the spatial axes."""
    shape = spec.shape
    return TensorSpec((shape[0], shape[-1], *shape[1:-1]), spec.dtype, spec.device) if spec.rank > 1 else spec


@op("convolution_channels_last", core="convolution", traits=(ACCUMULATES,))
def convolution_channels_last(
    x: Float, w: Float, *,
    strides: tuple = (), low: tuple = (), high: tuple = (), dilation: tuple = (), input_dilation: tuple = (), groups: int = 1,
):  # fmt: skip
    """convolution of what has its channels last, as tensor cores read them: a row of channels is contiguous.

    Shapes: x (N, …, C), w (O, …, C / groups), y (N, …, O).

    C1  x has one to three spatial axes, w as many
    C2  strides, dilation and input_dilation are integers from 1 on, one for each of them     (StableHLO convolution C2 to C8)
    C3  low and high are integers, one for each of them                                       (StableHLO convolution C4)
    C4  groups >= 1, and divides C and O                                                      (StableHLO convolution C11, C16, C21)
    C5  w has C / groups channels                                                             (StableHLO convolution C14)
    C6  the kernel is not empty
    """
    n, o, *made = _result(
        _first(x), _first(w), strides, low, high, dilation, input_dilation, groups, "(N, …, C)"
    ).shape
    return TensorSpec((n, *made, o), x.dtype, x.device)


convolution_channels_last.normalizer(filled({**STEPS, "input_dilation": 1}))


@convolution_channels_last.replaced_by
def _(emit, x, w, strides, low, high, dilation, input_dilation, groups):
    """Windows of one element are x as it lies: a product."""
    whole = {*w.shape[1:-1], *strides, *input_dilation} == {1} and not any((*low, *high)) and groups == 1
    if not whole or 0 in (*x.shape, *w.shape):
        return None
    return emit.gemm(x, emit.reshape(w, shape=(w.shape[0], w.shape[-1])), trans_b=True)


@convolution_channels_last.counts
def _(x, w, strides, low, high, dilation, input_dilation, groups):
    made = windows_of(w.shape[1:-1], strides, dilation, low, high, input_dilation).made(x.shape[1:-1])
    return 2 * x.shape[0] * prod(made) * prod(w.shape)


@convolution_channels_last.reference
def _(x, w, strides, low, high, dilation, input_dilation, groups):
    y = convolution.reference_fn(
        np.moveaxis(x, -1, 1), np.moveaxis(w, -1, 1), strides=strides, low=low, high=high, dilation=dilation,
        input_dilation=input_dilation, groups=groups,
    )  # fmt: skip
    return np.moveaxis(y, 1, -1)


@convolution_channels_last.gradient
def _(emit, dy, x, w, strides, low, high, dilation, input_dilation, groups):
    attrs = {
        "strides": strides, "low": low, "high": high, "dilation": dilation, "input_dilation": input_dilation, "groups": groups,
    }  # fmt: skip
    dx = emit.convolution_data_gradient_channels_last(dy, w, sizes=x.shape[1:-1], **attrs)
    return dx, emit.convolution_weight_gradient_channels_last(x, dy, kernel=w.shape[1:-1], **attrs)


for _case in convolution.sample_specs:  # the same, with their channels last
    _shapes = [(n, *places, channels) for n, channels, *places in _case["shapes"]]
    convolution_channels_last.samples(*_shapes, **_case["attrs"])
