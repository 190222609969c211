"""Gradients of convolution_channels_last: with respect to its kernel and to what the kernel slides over."""

from __future__ import annotations

import itertools
from math import prod
from typing import Any

import numpy as np

from ..types import TensorSpec
from .convolution import convolution_channels_last
from .schema import ACCUMULATES, Float, is_integer, op, require
from .windows import STEPS, Windows, check_windows, filled, views, windows_of

LAYOUT = "(N, …, C)"


def _check_windows(t: TensorSpec, called: str, attrs: dict[str, tuple]) -> None:
    """C1 to C3."""
    axes = t.rank - 2
    steps = {name: attrs[name] or (1,) * axes for name in ("strides", "dilation", "input_dilation")}
    amounts = {name: attrs[name] or (0,) * axes for name in ("low", "high")}
    check_windows(t, steps, amounts, LAYOUT, called)


def _check_sizes(name: str, sizes: tuple, axes: int, least: int, constraint: str) -> None:
    require(
        len(sizes) == axes and all(is_integer(n) and n >= least for n in sizes),
        constraint,
        f"{name} is {sizes}, expected {axes} integers from {least} on",
    )


@op("convolution_weight_gradient_channels_last", results=("dw",), traits=(ACCUMULATES,))
def convolution_weight_gradient_channels_last(
    x: Float, dy: Float, *, kernel: tuple,
    strides: tuple = (), low: tuple = (), high: tuple = (), dilation: tuple = (), input_dilation: tuple = (), groups: int = 1,
):  # fmt: skip
    """The gradient of convolution_channels_last with respect to w.

    Of each place of the kernel, the sum over all windows of dy times what they have there.

    Shapes: x (N, …, C), dy (N, …, O) as the convolution's result, kernel the spatial sizes of w; dw (O, …, C / groups).

    C1  x has one to three spatial axes, dy as many
    C2  strides, dilation and input_dilation are integers from 1 on, one for each of them     (StableHLO convolution C2 to C8)
    C3  low and high are integers, one for each of them                                       (StableHLO convolution C4)
    C4  groups >= 1, and divides C and O                                                      (StableHLO convolution C11, C16, C21)
    C5  kernel has an integer from 1 on for each spatial axis
    C6  dy has as many images as x, and an element for each window
    """
    given = {
        "strides": strides,
        "low": low,
        "high": high,
        "dilation": dilation,
        "input_dilation": input_dilation,
    }
    _check_windows(x, "x", given)
    require(dy.rank == x.rank, "C1", f"dy has rank {dy.rank}, x has rank {x.rank}")
    require(groups >= 1, "C4", f"groups is {groups}, expected 1 or more")
    for name, t in (("x", x), ("dy", dy)):
        require(
            t.shape[-1] % groups == 0, "C4", f"groups is {groups}, which doesn't divide the {t.shape[-1]} channels of {name}"
        )  # fmt: skip
    _check_sizes("kernel", kernel, x.rank - 2, 1, "C5")
    made = windows_of(tuple(kernel), strides, dilation, low, high, input_dilation).made(x.shape[1:-1])
    expected = (x.shape[0], *made)
    require(
        dy.shape[:-1] == expected, "C6", f"dy has windows {dy.shape[:-1]}, x has {expected}, of a kernel of {tuple(kernel)}"
    )  # fmt: skip
    return TensorSpec((dy.shape[-1], *kernel, x.shape[-1] // groups), x.dtype, x.device)


@op(
    "convolution_data_gradient_channels_last",
    core="convolution_data_gradient",
    results=("dx",),
    traits=(ACCUMULATES,),
)
def convolution_data_gradient_channels_last(
    dy: Float, w: Float, *, sizes: tuple,
    strides: tuple = (), low: tuple = (), high: tuple = (), dilation: tuple = (), input_dilation: tuple = (), groups: int = 1,
):  # fmt: skip
    """The gradient of convolution_channels_last with respect to x.

    Of each element of x, the sum over all windows that have it of dy times the kernel at the place where they have it.

    Shapes: dy (N, …, O) as the convolution's result, w (O, …, C / groups), sizes the spatial sizes of x; dx (N, …, C).

    C1  dy has one to three spatial axes, w as many
    C2  strides, dilation and input_dilation are integers from 1 on, one for each of them     (StableHLO convolution C2 to C8)
    C3  low and high are integers, one for each of them                                       (StableHLO convolution C4)
    C4  groups >= 1, and divides O, of which dy and w have as many                            (StableHLO convolution C16, C21)
    C5  sizes has an integer from 0 on for each spatial axis
    C6  the kernel is not empty
    C7  dy has an element for each window
    """
    given = {
        "strides": strides,
        "low": low,
        "high": high,
        "dilation": dilation,
        "input_dilation": input_dilation,
    }
    _check_windows(dy, "dy", given)
    require(w.rank == dy.rank, "C1", f"w has rank {w.rank}, dy has rank {dy.rank}")
    o = dy.shape[-1]
    require(w.shape[0] == o, "C4", f"w is of {w.shape[0]} channels of y, dy has {o}")
    require(groups >= 1, "C4", f"groups is {groups}, expected 1 or more")
    require(o % groups == 0, "C4", f"groups is {groups}, which doesn't divide the {o} channels of dy")
    _check_sizes("sizes", sizes, dy.rank - 2, 0, "C5")
    require(all(n > 0 for n in w.shape[1:-1]), "C6", f"the kernel is empty: w has shape {w.shape}")
    made = windows_of(w.shape[1:-1], strides, dilation, low, high, input_dilation).made(tuple(sizes))
    require(
        dy.shape[1:-1] == made, "C7", f"dy has windows {dy.shape[1:-1]}, a tensor of {tuple(sizes)} has {made}, of a kernel of {w.shape[1:-1]}"
    )  # fmt: skip
    return TensorSpec((dy.shape[0], *sizes, w.shape[-1] * groups), dy.dtype, dy.device)


for _schema in (convolution_weight_gradient_channels_last, convolution_data_gradient_channels_last):
    _schema.normalizer(filled({**STEPS, "input_dilation": 1}))


@convolution_weight_gradient_channels_last.counts
def _(x, dy, kernel, strides, low, high, dilation, input_dilation, groups):
    return 2 * prod(dy.shape) * prod(kernel) * (x.shape[-1] // groups)


@convolution_data_gradient_channels_last.counts
def _(dy, w, sizes, strides, low, high, dilation, input_dilation, groups):
    return 2 * prod(dy.shape) * prod(w.shape[1:])


@convolution_weight_gradient_channels_last.gradient
def _(emit, ddw, x, dy, kernel, strides, low, high, dilation, input_dilation, groups):
    attrs = _attrs(strides, low, high, dilation, input_dilation, groups)
    dx = emit.convolution_data_gradient_channels_last(dy, ddw, sizes=x.shape[1:-1], **attrs)
    return dx, emit.convolution_channels_last(x, ddw, **attrs)


@convolution_data_gradient_channels_last.gradient
def _(emit, ddx, dy, w, sizes, strides, low, high, dilation, input_dilation, groups):
    attrs = _attrs(strides, low, high, dilation, input_dilation, groups)
    dw = emit.convolution_weight_gradient_channels_last(ddx, dy, kernel=w.shape[1:-1], **attrs)
    return emit.convolution_channels_last(ddx, w, **attrs), dw


def _attrs(strides, low, high, dilation, input_dilation, groups) -> dict[str, Any]:
    return {
        "strides": strides, "low": low, "high": high, "dilation": dilation, "input_dilation": input_dilation, "groups": groups,
    }  # fmt: skip


@convolution_weight_gradient_channels_last.reference
def _(x, dy, kernel, strides, low, high, dilation, input_dilation, groups):
    seen = views(np.moveaxis(x, -1, 1), windows_of(kernel, strides, dilation, low, high, input_dilation), 0)
    (n, c), o, axes = seen.shape[:2], dy.shape[-1], x.ndim - 2
    seen = seen.reshape(n, groups, c // groups, *seen.shape[2:])
    parts = dy.reshape(*dy.shape[:-1], groups, o // groups)
    windows, places = list(range(10, 10 + axes)), list(range(20, 20 + axes))
    dw = np.einsum(
        seen, [0, 1, 2, *windows, *places], parts, [0, *windows, 1, 3], [1, 3, *places, 2], optimize=True
    )
    return dw.reshape(o, *kernel, c // groups)


@convolution_data_gradient_channels_last.reference
def _(dy, w, sizes, strides, low, high, dilation, input_dilation, groups):
    o, *kernel, each = w.shape
    parts = dy.reshape(*dy.shape[:-1], groups, o // groups)
    places = np.einsum("...go,gopc->p...gc", parts, w.reshape(groups, o // groups, prod(kernel), each))
    of = windows_of(tuple(kernel), strides, dilation, low, high, input_dilation)
    return scattered(places.reshape(prod(kernel), *dy.shape[:-1], groups * each), of, tuple(sizes))


def scattered(places: np.ndarray, of: Windows, sizes: tuple[int, ...]) -> np.ndarray:
    """The reverse of windows: of each place of the kernel what every window gives it, (places, N, windows, C), added up where it lies: (N, sizes, C)."""
    n, *made, c = places.shape[1:]
    padded = np.zeros((n, *[max(size, 0) for size in of.padded(sizes)], c), places.dtype)
    for values, place in zip(places, itertools.product(*map(range, of.window))):
        start = [k * apart for k, apart in zip(place, of.dilation)]
        at: Any = tuple(
            [slice(first, first + m * step, step) for first, m, step in zip(start, made, of.strides)]
        )
        if 0 not in made:
            padded[(slice(None), *at)] += values
    spread = np.zeros(
        (n, *[size + max(size - 1, 0) * b for size, b in zip(sizes, of.interior)], c), places.dtype
    )
    into: list[slice] = []
    out_of: list[slice] = []
    for size, wide, before in zip(spread.shape[1:-1], padded.shape[1:-1], of.low):
        first, last = max(0, -before), max(min(size, wide - before), 0)
        into.append(slice(first, max(first, last)))
        out_of.append(slice(first + before, max(first, last) + before))
    spread[(slice(None), *into)] = padded[(slice(None), *out_of)]
    return spread[(slice(None), *[slice(None, None, b + 1) for b in of.interior])]


for _case in convolution_channels_last.sample_specs:
    (_x, _w), _given = _case["shapes"], _case["attrs"]
    _of = [_given.get(name, ()) for name in ("strides", "dilation", "low", "high", "input_dilation")]
    _dy = (_x[0], *windows_of(_w[1:-1], *_of).made(_x[1:-1]), _w[0])
    convolution_weight_gradient_channels_last.samples(_x, _dy, kernel=_w[1:-1], **_given)
    convolution_data_gradient_channels_last.samples(_dy, _w, sizes=_x[1:-1], **_given)
