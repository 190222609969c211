"""Windows that slide over the spatial axes of (N, C, …), and pooling in one to three dimensions.

A graph has slices in the place of pooling, one for each place of a window, and a tree of maxima or sums.
"""

from __future__ import annotations

import itertools
from functools import reduce
from math import prod
from typing import Any, NamedTuple

import numpy as np

from ..types import DType, TensorSpec
from .argmax import NARROW
from .constraints import TypeConstraint
from .row_steps import narrow, wide
from .schema import ACCUMULATES, Float, is_integer, op, require


class Windows(NamedTuple):
    """Along each spatial axis: the size of a window, its step, the distance of its elements, and what is added before and behind."""

    window: tuple[int, ...]
    strides: tuple[int, ...]
    dilation: tuple[int, ...]
    low: tuple[int, ...]
    high: tuple[int, ...]
    interior: tuple[int, ...]

    def padded(self, sizes: tuple) -> tuple:
        return tuple([
            before + size + max(size - 1, 0) * between + behind
            for size, before, behind, between in zip(sizes, self.low, self.high, self.interior)
        ])  # fmt: skip

    def made(self, sizes: tuple) -> tuple:
        """How many windows lie along each axis."""
        return tuple([
            max((size - (n - 1) * apart - 1) // step + 1, 0)
            for size, n, step, apart in zip(self.padded(sizes), self.window, self.strides, self.dilation)
        ])  # fmt: skip


def windows_of(window, strides=(), dilation=(), low=(), high=(), input_dilation=()) -> Windows:
    ones, zeros = (1,) * len(window), (0,) * len(window)
    interior = tuple([n - 1 for n in input_dilation]) or zeros
    return Windows(window, strides or ones, dilation or ones, low or zeros, high or zeros, interior)


def transposed_windows(window: tuple, sizes: tuple, made: tuple, attrs) -> Windows:
    """The windows over what a convolution made, with its kernel's places in reverse, that give the gradient of what it slid over, of such sizes."""
    strides, dilation, low, input_dilation = (
        tuple(attrs[name]) for name in ("strides", "dilation", "low", "input_dilation")
    )
    spans = [(n - 1) * apart for n, apart in zip(window, dilation)]
    wide = [max(n - 1, 0) * step + 1 for n, step in zip(sizes, input_dilation)]
    spread = [max(n - 1, 0) * step + 1 for n, step in zip(made, strides)]
    before = tuple([span - n for span, n in zip(spans, low)])
    behind = tuple([n + start - m for n, start, m in zip(wide, low, spread)])
    return windows_of(window, input_dilation, dilation, before, behind, strides)


def check_windows(
    x: TensorSpec,
    of_steps: dict[str, tuple],
    of_amounts: dict[str, tuple],
    layout: str = "(N, C, …)",
    called: str = "x",
) -> None:
    """C1 to C3, of all that slides."""
    require(
        3 <= x.rank <= 5,
        "C1",
        f"{called} has rank {x.rank}, expected {layout} with one to three spatial axes",
    )
    axes = x.rank - 2
    for name, entries in of_steps.items():
        require(
            len(entries) == axes and all(is_integer(n) and n >= 1 for n in entries),
            "C2",
            f"{name} is {entries}, expected {axes} integers from 1 on",
        )
    for name, entries in of_amounts.items():
        require(
            len(entries) == axes and all(map(is_integer, entries)),
            "C3",
            f"{name} is {entries}, expected {axes} integers",
        )


def filled(names: dict[str, int]):
    """A normalizer: () is that number along every spatial axis."""

    def normalize(specs, attrs):
        axes = max(specs[0].rank - 2, 0)
        return {
            **attrs,
            **{name: tuple(attrs.get(name) or ()) or (number,) * axes for name, number in names.items()},
        }

    return normalize


Padded = TypeConstraint(
    "float or integer of at most 32 bits", NARROW | {DType.f64}
)  # whose least value a pad can have
STEPS = {"strides": 1, "dilation": 1, "low": 0, "high": 0}


def slices(emit, x, w: Windows, value: float = 0.0):
    """Of each place of a window, what all windows have there: (N, C, windows along each axis)."""
    if any((*w.low, *w.high, *w.interior)):
        x = emit.pad(x, value=value, low=(0, 0, *w.low), high=(0, 0, *w.high), interior=(0, 0, *w.interior))
    made = w._replace(low=(0,) * len(w.low), high=(0,) * len(w.high), interior=(0,) * len(w.low)).made(
        x.shape[2:]
    )
    places = itertools.product(*map(range, w.window))
    for place in places:
        start = tuple([n * apart for n, apart in zip(place, w.dilation)])
        limit = tuple(
            [
                first + max(n - 1, 0) * step + 1 if n else first
                for first, n, step in zip(start, made, w.strides)
            ]
        )
        whole = start == (0,) * len(start) and limit == x.shape[2:] and set(w.strides) <= {1}
        yield (
            x
            if whole
            else emit.slice(x, start=(0, 0, *start), limit=(*x.shape[:2], *limit), step=(1, 1, *w.strides))
        )


def views(x: np.ndarray, w: Windows, value: float) -> np.ndarray:
    """(N, C, windows along each axis, places of a window), a view of what is padded."""
    wide = np.full((*x.shape[:2], *[max(n, 0) for n in w.padded(x.shape[2:])]), value, x.dtype)
    cut: Any = (..., *[slice(max(-low, 0), None) for low in w.low])
    spread = np.full(
        (*x.shape[:2], *[n + max(n - 1, 0) * b for n, b in zip(x.shape[2:], w.interior)]), value, x.dtype
    )
    apart: Any = (..., *[slice(None, None, b + 1) for b in w.interior])
    spread[apart] = x
    spread = spread[cut]
    at: Any = (..., *[slice(max(low, 0), max(low, 0) + n) for low, n in zip(w.low, spread.shape[2:])])
    inside = wide[at]
    kept: Any = (..., *[slice(n) for n in inside.shape[2:]])
    inside[...] = spread[kept]
    span = tuple([(n - 1) * apart + 1 for n, apart in zip(w.window, w.dilation)])
    made, axes = w.made(x.shape[2:]), tuple(range(2, x.ndim))
    if 0 in made:
        return np.empty((*x.shape[:2], *made, *w.window), x.dtype)
    seen = np.lib.stride_tricks.sliding_window_view(wide, span, axes)
    steps: Any = (..., *[slice(None, None, n) for n in (*w.strides, *w.dilation)])
    return seen[steps]


# --- pooling ----------------------------------------------------------------------------------------------------------


def _pooled(x: TensorSpec, window, strides, dilation, low, high) -> TensorSpec:
    ones, zeros = (1,) * (x.rank - 2), (0,) * (x.rank - 2)
    steps = {"window": window, "strides": strides or ones, "dilation": dilation or ones}
    check_windows(x, steps, {"low": low or zeros, "high": high or zeros})
    for name, entries in (("low", low), ("high", high)):
        require(
            all(0 <= n <= (size - 1) * apart for n, size, apart in zip(entries, window, dilation or ones)),
            "C4",
            f"{name} is {entries}, beyond a window of {window}",
        )
    made = windows_of(window, strides, dilation, low, high).made(x.shape[2:])
    return TensorSpec((*x.shape[:2], *made), x.dtype, x.device)


@op("max_pool")
def max_pool(
    x: Padded, *, window: tuple, strides: tuple = (), low: tuple = (), high: tuple = (), dilation: tuple = ()
):
    """The maximum of each window of x: NaN if there is one. A step is 1 unless strides says otherwise.

    Shapes: x (N, C, …), y the same with as many windows as fit along each spatial axis.

    low and high are how far windows may begin before each spatial axis and end behind it: nothing is there, and a window of nothing is
    the type's least value. Of equal elements the first has the gradient.

    C1  x has one to three spatial axes
    C2  window, strides and dilation are integers from 1 on, one for each of them    (StableHLO reduce_window C4 to C9)
    C3  low and high are integers, one for each of them                              (StableHLO reduce_window C12)
    C4  low and high are from 0 on and less than a window
    """
    return _pooled(x, window, strides, dilation, low, high)


@op("avg_pool", traits=(ACCUMULATES,))
def avg_pool(
    x: Float, *, window: tuple, strides: tuple = (), low: tuple = (), high: tuple = (), dilation: tuple = (),
    count_padding: bool = True,
):  # fmt: skip
    """The mean of each window of x. A step is 1 unless strides says otherwise.

    Shapes: x (N, C, …), y the same with as many windows as fit along each spatial axis.

    low and high are zeros before and behind each spatial axis; count_padding says whether they are counted.

    C1  x has one to three spatial axes
    C2  window, strides and dilation are integers from 1 on, one for each of them    (StableHLO reduce_window C4 to C9)
    C3  low and high are integers, one for each of them                              (StableHLO reduce_window C12)
    C4  low and high are from 0 on and less than a window
    """
    return _pooled(x, window, strides, dilation, low, high)


def _least(dtype: DType):
    return float("-inf") if dtype.kind == "float" else float(np.iinfo(dtype.numpy).min)


def extreme(emit, greatest: bool = True):
    """`join(best, other)`: the greater one, or the less; of equal ones the first, which has the gradient, and NaN before all."""
    stands = emit.greater_equal if greatest else emit.less_equal

    def join(best, other):
        return emit.select(emit.logical_or(stands(best, other), emit.not_equal(best, best)), best, other)

    return join


@max_pool.replaced_by
def _(emit, x, window, strides, low, high, dilation):
    shape = windows_of(window, strides, dilation, low, high)
    found = reduce(extreme(emit), slices(emit, x, shape, _least(x.dtype)))
    return emit.copy(found)


@avg_pool.replaced_by
def _(emit, x, window, strides, low, high, dilation, count_padding):
    shape = windows_of(window, strides, dilation, low, high)
    total = reduce(emit.add, slices(emit, wide(emit, x), shape))
    if count_padding or not any((*low, *high)):
        y = emit.scale(total, factor=1 / prod(window))
    else:
        ones = emit.fill(shape=(1, 1, *x.shape[2:]), value=1.0, dtype=DType.f32)
        y = emit.div(total, reduce(emit.add, slices(emit, ones, shape)))
    return narrow(emit, y, x)


@max_pool.reference
def _(x, window, strides, low, high, dilation):
    least = -np.inf if x.dtype.kind == "f" else np.iinfo(x.dtype).min
    seen = views(x, windows_of(window, strides, dilation, low, high), least)
    return seen.max(tuple(range(x.ndim, 2 * x.ndim - 2)), initial=least)


@avg_pool.reference
def _(x, window, strides, low, high, dilation, count_padding):
    shape, last = windows_of(window, strides, dilation, low, high), tuple(range(x.ndim, 2 * x.ndim - 2))
    count = prod(window) if count_padding else views(np.ones_like(x), shape, 0).sum(last)
    return views(x, shape, 0).sum(last) / count


for _schema in (max_pool, avg_pool):
    _schema.normalizer(filled(STEPS))
    _schema.samples((2, 3, 9), window=(3,))
    _schema.samples((2, 3, 5, 6), window=(2, 3), strides=(2, 2), low=(1, 0), high=(1, 1))
    _schema.samples((1, 2, 7), window=(3,), dilation=(2,), low=(2,))
    _schema.samples((1, 2, 3, 4, 3), window=(2, 2, 2))
    _schema.samples((0, 3, 5), window=(2,))
avg_pool.samples((2, 3, 5, 6), window=(2, 3), strides=(2, 2), low=(1, 0), high=(1, 1), count_padding=False)
