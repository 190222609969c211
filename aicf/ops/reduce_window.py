"""Windows over all axes: their sums, products, minima and maxima, and what is given back to the greatest element of each.

A graph has slices in their place, one for each place of a window, and a tree of what joins them.
"""

from __future__ import annotations

import enum
import itertools
from functools import reduce

import numpy as np

from ..types import DType, TensorSpec
from .row_steps import narrow, wide
from .schema import ACCUMULATES, Number, is_integer, op, require
from .windows import Padded, extreme


class Join(enum.IntEnum):
    """What two elements of a window become."""

    add = 0
    mul = 1
    min = 2
    max = 3


UFUNCS = {Join.add: np.add, Join.mul: np.multiply, Join.min: np.minimum, Join.max: np.maximum}
NAMES = {"strides": 1, "dilation": 1, "low": 0, "high": 0}


def _neutral(how: Join, dtype: DType) -> float:
    if how in (Join.add, Join.mul):
        return float(how is Join.mul)
    if dtype.kind == "float":
        return float("inf") if how is Join.min else float("-inf")
    held = np.iinfo(dtype.numpy)
    return float(held.max if how is Join.min else held.min)


def _check(x: TensorSpec, **given) -> None:
    """C1 and C2."""
    for name, entries in given.items():
        constraint, least = ("C2", 0) if name in ("low", "high") else ("C1", 1)
        require(
            len(entries) == x.rank and all(is_integer(n) and n >= least for n in entries), constraint,
            f"{name} is {entries}, expected {x.rank} integers from {least} on",
        )  # fmt: skip


def _made(x: TensorSpec, window, strides, dilation, low, high) -> tuple:
    """The sizes of the result."""
    sides = zip(x.shape, window, strides, dilation, low, high)
    return tuple([max((d + a + b - (k - 1) * apart - 1) // s + 1, 0) for d, k, s, apart, a, b in sides])


def _filled(specs, attrs):
    """() is that number along every axis."""
    rank = specs[0].rank
    return {
        **attrs,
        **{name: tuple(attrs.get(name) or ()) or (number,) * rank for name, number in NAMES.items()},
    }


@op("reduce_window", traits=(ACCUMULATES,))
def reduce_window(
    x: Padded, *, window: tuple, how: Join = Join.add, strides: tuple = (), dilation: tuple = (), low: tuple = (), high: tuple = (),
):  # fmt: skip
    """The sum of each window of x, or its product, minimum or maximum. A step is 1 unless strides says otherwise.

    low and high are how far windows may begin before each axis and end behind it: what is there changes nothing. Halves are added and
    multiplied in f32. Of equal extremes of a window the first has the gradient.

    C1  window, strides and dilation are integers from 1 on, one for each axis of x    (StableHLO reduce_window C4 to C9)
    C2  low and high are integers from 0 on, one for each axis of x                    (StableHLO reduce_window C12; there also negative)
    """
    _check(x, window=window, strides=strides, dilation=dilation, low=low, high=high)
    made = _made(x, window, strides, dilation, low, high)
    return TensorSpec(made, x.dtype, x.device)


def _slices(emit, x, value, window, strides, dilation, low, high):
    """(offset, what all windows have there) of each place of a window."""
    made = _made_of(x.shape, window, strides, dilation, low, high)
    padded = emit.pad(x, value=value, low=low, high=high) if any((*low, *high)) else x
    for place in itertools.product(*map(range, window)):
        start = tuple([n * apart for n, apart in zip(place, dilation)])
        limit = tuple([a + (m - 1) * s + 1 if m else a for a, m, s in zip(start, made, strides)])
        yield start, emit.slice(padded, start=start, limit=limit, step=strides)


def _made_of(shape, window, strides, dilation, low, high):
    sides = zip(shape, window, strides, dilation, low, high)
    return tuple([max((d + a + b - (k - 1) * apart - 1) // s + 1, 0) for d, k, s, apart, a, b in sides])


def _joining(emit, how: Join):
    """What joins two elements."""
    if how in (Join.min, Join.max):
        return extreme(emit, how is Join.max)
    return emit.add if how is Join.add else emit.mul


@reduce_window.replaced_by
def _(emit, x, window, how, strides, dilation, low, high):
    widened = how in (Join.add, Join.mul) and x.dtype.kind == "float" and x.dtype is not DType.f64
    y = wide(emit, x) if widened else x
    seen = [
        part for _, part in _slices(emit, y, _neutral(how, x.dtype), window, strides, dilation, low, high)
    ]
    y = emit.copy(reduce(_joining(emit, how), seen))
    return narrow(emit, y, x) if widened else y


def _views(x, value, window, strides, dilation, low, high):
    """(the result's axes, the window's axes) of what is padded."""
    padded = np.pad(x, list(zip(low, high)), constant_values=value)
    span = tuple([(k - 1) * apart + 1 for k, apart in zip(window, dilation)])
    made = _made_of(x.shape, window, strides, dilation, low, high)
    if 0 in made:
        return np.empty((*made, *window), x.dtype)
    seen = np.lib.stride_tricks.sliding_window_view(padded, span)
    return seen[tuple([slice(None, None, n) for n in (*strides, *dilation)])]


@reduce_window.reference
def _(x, window, how, strides, dilation, low, high):
    dtype = DType.f32 if x.dtype == np.float64 else DType.of(x.dtype)
    value = np.array(_neutral(how, dtype)).astype(x.dtype)
    seen = _views(x, value, window, strides, dilation, low, high)
    axes = tuple(range(x.ndim, 2 * x.ndim))
    return UFUNCS[how].reduce(seen, axes, dtype=x.dtype, initial=value) if x.ndim else seen


@op("select_and_scatter", traits=(ACCUMULATES,))
def select_and_scatter(
    x: Padded, source: Number, *, window: tuple, strides: tuple = (), low: tuple = (), high: tuple = ()
):
    """Zeros of x's shape, with an element of source for each window of x added where the first greatest element of the window is.

    The gradient of a maximum over windows: StableHLO's op with GE as what selects, and a sum as what scatters.

    C1  window and strides are integers from 1 on, one for each axis of x
    C2  low and high are integers from 0 on, one for each axis of x
    C3  source has an element for each window                  (StableHLO select_and_scatter C2)
    """
    _check(x, window=window, strides=strides, low=low, high=high)
    made = _made(x, window, strides, (1,) * x.rank, low, high)
    require(source.shape == made, "C3", f"source has shape {source.shape}, expected {made}")
    return x


def _of_four(specs, attrs):
    filled = _filled(specs, attrs)
    del filled["dilation"]
    return filled


@select_and_scatter.replaced_by
def _(emit, x, source, window, strides, low, high):
    ones, rank = (1,) * x.rank, x.rank
    if 0 in source.shape or not rank:
        return emit.mul(x, 0) if 0 in source.shape else emit.copy(source)
    seen = list(_slices(emit, x, _neutral(Join.max, x.dtype), window, strides, ones, low, high))
    best = reduce(emit.maximum, [part for _, part in seen])
    left, total = None, None
    for start, part in seen:
        is_it = emit.logical_or(emit.equal(part, best), emit.not_equal(part, part))
        first = is_it if left is None else emit.logical_and(is_it, left)
        left = emit.logical_not(is_it) if left is None else emit.logical_and(left, emit.logical_not(is_it))
        given = emit.select(first, source, 0)
        sides = zip(x.shape, start, low, source.shape, strides)
        before = tuple([a - p for a, p in zip(start, low)])
        behind = tuple([d - (a - p) - ((m - 1) * s + 1) for d, a, p, m, s in sides])
        placed = emit.pad(given, value=0.0, low=before, high=behind, interior=tuple([s - 1 for s in strides]))
        total = placed if total is None else emit.add(total, placed)
    return total


@select_and_scatter.reference
def _(x, source, window, strides, low, high):
    dtype = DType.f32 if x.dtype == np.float64 else DType.of(x.dtype)
    padded = np.pad(
        x, list(zip(low, high)), constant_values=np.array(_neutral(Join.max, dtype)).astype(x.dtype)
    )
    y = np.zeros_like(padded)
    for at in np.ndindex(*source.shape):
        first = tuple([i * s for i, s in zip(at, strides)])
        view = padded[tuple([slice(f, f + k) for f, k in zip(first, window)])]
        place = np.unravel_index(np.argmax(view), view.shape)
        y[tuple([f + p for f, p in zip(first, place)])] += source[at]
    return y[tuple([slice(a, a + d) for a, d in zip(low, x.shape)])]


reduce_window.normalizer(_filled)
select_and_scatter.normalizer(_of_four)
for _how in Join:
    reduce_window.samples((5, 6), window=(2, 3), strides=(2, 1), low=(1, 0), high=(0, 2), how=_how)
reduce_window.samples((9,), window=(3,), dilation=(2,))
reduce_window.samples((2, 3, 4), window=(1, 2, 2))
reduce_window.samples((0, 3), window=(1, 2))
select_and_scatter.samples((6, 6), (3, 3), window=(2, 2), strides=(2, 2))
select_and_scatter.samples((5, 6), (5, 3), window=(3, 2), strides=(1, 2), low=(1, 0), high=(1, 0))
select_and_scatter.samples((0, 3), (0, 2), window=(1, 2))
