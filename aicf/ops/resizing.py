"""resize: images and the like made larger or smaller, by their nearest elements or by interpolation. A graph has repetitions, slices, sums
by tables, or a product in its place, one axis after the other."""

from __future__ import annotations

import enum
import math
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache

import numpy as np

from ..types import DType, TensorSpec
from .resampling import NOWHERE, reversed_tables
from .row_steps import narrow, wide
from .schema import LINEAR, Float, is_integer, op, require

MOST_TAPS = 16  # of sums by tables: with more, a kernel would load too much, and a product is made


class Interpolation(enum.IntEnum):
    """What an element is made of: the nearest one, two or four along each axis."""

    nearest = 0
    linear = 1
    cubic = 2


class Coordinates(enum.IntEnum):
    """Where element o of m is among n, with s = m / n or the scale that is given: half_pixel (o + 0.5) / s - 0.5, align_corners
    o (n - 1) / (m - 1), asymmetric o / s; half_pixel_or_zero is half_pixel, but 0 if m is 1."""

    half_pixel = 0
    align_corners = 1
    asymmetric = 2
    half_pixel_or_zero = 3


class Nearest(enum.IntEnum):
    """Which of two elements is the nearest: the one before, the one behind, or the nearer, of equally near ones the one before or behind."""

    floor = 0
    ceil = 1
    prefer_floor = 2
    prefer_ceil = 3


@dataclass(frozen=True)
class ResizedLine:
    """How n elements along an axis become m."""

    n: int
    m: int
    scale: float
    mode: Interpolation
    coordinates: Coordinates
    nearest: Nearest
    cubic: float
    inside: bool

    def place(self, o: int) -> Fraction:
        """Where element o is, exactly."""
        kind = self.coordinates
        if kind is Coordinates.align_corners:
            return Fraction(o * (self.n - 1), self.m - 1) if self.m > 1 else Fraction(0)
        step = 1 / Fraction(self.scale) if self.scale else Fraction(self.n, self.m)
        if kind is Coordinates.asymmetric:
            return o * step
        if kind is Coordinates.half_pixel_or_zero and self.m == 1:
            return Fraction(0)
        return (2 * o + 1) * step / 2 - Fraction(1, 2)

    def taps(self, o: int) -> dict[int, float]:
        """Index: weight, of what element o is made of. Beyond an end is the last element."""
        at = self.place(o)
        first = math.floor(at)
        if self.mode is Interpolation.nearest:
            half = Fraction(1, 2)
            chosen = {
                Nearest.floor: first, Nearest.ceil: math.ceil(at), Nearest.prefer_floor: math.ceil(at - half),
                Nearest.prefer_ceil: math.floor(at + half),
            }[self.nearest]  # fmt: skip
            return {min(max(chosen, 0), self.n - 1): 1.0}
        t = float(at - first)
        if self.mode is Interpolation.linear:
            found = {first: 1 - t, first + 1: t}
        else:
            found = {first + k: _cubic(abs(t - k), self.cubic) for k in (-1, 0, 1, 2)}
        if self.inside:
            found = {n: w for n, w in found.items() if 0 <= n < self.n}
            total = sum(found.values())
            found = {n: w / total for n, w in found.items()}
        made: dict[int, float] = {}
        for n, weight in found.items():
            at_end = min(max(n, 0), self.n - 1)
            made[at_end] = made.get(at_end, 0.0) + weight
        return {n: w for n, w in made.items() if w} or {min(max(first, 0), self.n - 1): 0.0}


def _cubic(d: float, a: float) -> float:
    """Keys' kernel, at a distance below 2."""
    if d <= 1:
        return ((a + 2) * d - (a + 3)) * d * d + 1
    return ((a * d - 5 * a) * d + 8 * a) * d - 4 * a if d < 2 else 0.0


@lru_cache(maxsize=64)
def forward_tables(line: ResizedLine) -> tuple[np.ndarray, np.ndarray]:
    found = [line.taps(o) for o in range(line.m)]
    count = max((len(taps) for taps in found), default=1)
    indices, weights = np.full((count, line.m), NOWHERE, np.int64), np.zeros((count, line.m))
    for o, taps in enumerate(found):
        for k, (index, weight) in enumerate(sorted(taps.items())):
            indices[k, o], weights[k, o] = index, weight
    return indices, weights


@lru_cache(maxsize=64)
def backward_tables(line: ResizedLine) -> tuple[np.ndarray, np.ndarray]:
    return reversed_tables(*forward_tables(line), line.n)


def matrix(line: ResizedLine) -> np.ndarray:
    """(m, n): the same as a product."""
    made = np.zeros((line.m, line.n))
    for index, weight in zip(*forward_tables(line)):
        places = np.flatnonzero(index >= 0)
        made[places, index[places]] += weight[places]
    return made


@dataclass(frozen=True)
class ResizeTable:
    """An initialiser: one of a line's tables."""

    line: ResizedLine
    which: str

    def __call__(self, shape: tuple[int, ...], rng: np.random.Generator) -> np.ndarray:
        if self.which == "matrix":
            return matrix(self.line)
        of = backward_tables if self.which.startswith("back") else forward_tables
        return of(self.line)[self.which.endswith("weights")]


@op("resize", traits=(LINEAR,))
def resize(
    x: Float, *, sizes: tuple, mode: Interpolation = Interpolation.linear, coordinates: Coordinates = Coordinates.half_pixel,
    nearest: Nearest = Nearest.prefer_floor, scales: tuple = (), cubic: float = -0.75, inside: bool = False,
):  # fmt: skip
    """x with other sizes along its axes, by its nearest elements, or by linear or cubic interpolation between them, axis by axis.

    Shapes: y has the shape `sizes`. What lies beyond an end is the last element there. Sums are f32.

    coordinates  where element o of m is among n, with s = m / n: half_pixel (o + 0.5) / s - 0.5; align_corners o (n - 1) / (m - 1);
                 asymmetric o / s; half_pixel_or_zero as half_pixel, but 0 if m is 1
    nearest      of mode nearest: floor, ceil, prefer_floor or prefer_ceil, which round to the nearer, of equally near ones down or up
    scales       s of each axis, where it is not m / n; 0 stands for that
    cubic        the parameter of Keys' kernel
    inside       whether weights beyond an end are left out, and the others made to add up to 1

    PyTorch's "nearest" is asymmetric with floor, its "nearest-exact" half_pixel with prefer_ceil. There is no antialiasing. From about
    eight times as large on, and for cubic from four, an axis is a product with a matrix: an infinite element makes NaN of its line.

    C1  sizes are integers from 0 on, one for each axis of x
    C2  an axis with elements in y has some in x
    C3  scales are finite numbers from 0 on, one for each axis of x, or ()
    C4  cubic is finite
    """
    require(
        len(sizes) == x.rank and all(is_integer(n) and n >= 0 for n in sizes),
        "C1",
        f"sizes is {sizes}, expected {x.rank} integers from 0 on",
    )
    for axis, (n, m) in enumerate(zip(x.shape, sizes)):
        require(n > 0 or m == 0, "C2", f"axis {axis} of x {x.shape} is empty, and y has {m} elements there")
    require(
        len(scales) in (0, x.rank) and all(_is_scale(s) for s in scales),
        "C3",
        f"scales is {scales}, expected {x.rank} finite numbers from 0 on",
    )
    require(math.isfinite(cubic), "C4", f"cubic is {cubic}, expected a finite number")
    return TensorSpec(tuple(sizes), x.dtype, x.device)


def _is_scale(s: object) -> bool:
    return isinstance(s, (int, float)) and 0 <= s < math.inf


def _lines(
    shape, sizes, mode, coordinates, nearest, scales, cubic, inside
) -> Iterator[tuple[int, ResizedLine]]:
    """Of each axis that changes: itself, and how."""
    for axis, (n, m) in enumerate(zip(shape, sizes)):
        scale = float(scales[axis]) if scales else 0.0
        if scale and Fraction(scale) == Fraction(m, max(n, 1)):
            scale = 0.0
        if n != m or scale:
            yield (
                axis,
                ResizedLine(
                    n, m, scale, Interpolation(mode), Coordinates(coordinates), Nearest(nearest), float(cubic), bool(inside)
                ),
            )  # fmt: skip


@resize.replaced_by
def _(emit, x, sizes, mode, coordinates, nearest, scales, cubic, inside):
    if 0 in sizes:
        return emit.fill(shape=sizes, value=0.0, dtype=x.dtype)
    lines = list(_lines(x.shape, sizes, mode, coordinates, nearest, scales, cubic, inside))
    if Interpolation(mode) is Interpolation.nearest:
        y = x
        for axis, line in lines:
            y = _nearest(emit, y, axis, line)
    else:
        y = wide(emit, x)
        for axis, line in sorted(
            lines, key=lambda pair: pair[1].m / pair[1].n
        ):  # what makes it smaller first
            y = _interpolated(emit, y, axis, line)
        y = narrow(emit, y, x)
    return emit.copy(y) if y is x else y


def _nearest(emit, x, axis: int, line: ResizedLine):
    """Elements one by one, as a repetition or a slice where they are that."""
    ((index,), _), n, m = forward_tables(line), line.n, line.m
    if m % n == 0 and np.array_equal(index, np.arange(m) // (m // n)):
        shape = (*x.shape[: axis + 1], m // n, *x.shape[axis + 1 :])
        dims = tuple(a for a in range(len(shape)) if a != axis + 1)
        made = emit.broadcast_in_dim(x, shape=shape, dims=dims)
        return emit.reshape(made, shape=(*x.shape[:axis], m, *x.shape[axis + 1 :]))
    step = int(index[1] - index[0]) if m > 1 else 1
    if step > 0 and np.array_equal(index, index[0] + np.arange(m) * step):
        start = tuple(int(index[0]) if a == axis else 0 for a in range(x.rank))
        limit = tuple(int(index[-1]) + 1 if a == axis else d for a, d in enumerate(x.shape))
        return emit.slice(
            x, start=start, limit=limit, step=tuple(step if a == axis else 1 for a in range(x.rank))
        )
    return _interpolated(emit, x, axis, line)


def _interpolated(emit, x, axis: int, line: ResizedLine):
    tables = forward_tables(line)[0], backward_tables(line)[0]
    if max(len(t) for t in tables) > MOST_TAPS:
        return _product(emit, wide(emit, x), axis, line, x)
    shapes = {"": tables[0].shape, "back ": tables[1].shape}
    given = [
        _table(emit, line, f"{way}{what}", shapes[way], dtype)
        for way in shapes
        for what, dtype in (("indices", DType.i32), ("weights", DType.f32))
    ]
    return emit.resample(x, *given, axis=axis)


def _table(emit, line: ResizedLine, which: str, shape, dtype):
    numbers = f"{line.mode.name}.{line.coordinates.name}.{line.nearest.name}.{line.scale}.{line.cubic}.{line.inside}"
    return emit.table(f"resize.{line.n}.{line.m}.{numbers}.{which}", shape, ResizeTable(line, which), dtype)


def _product(emit, x, axis: int, line: ResizedLine, like):
    """Of x as (before, n, behind)."""
    before, behind = x.shape[:axis], x.shape[axis + 1 :]
    w = _table(emit, line, "matrix", (line.m, line.n), DType.f32)
    if math.prod(behind) == 1:
        y = emit.gemm(emit.reshape(x, shape=(math.prod(before), line.n)), w, trans_b=True)
    else:
        y = emit.gemm(w, emit.reshape(x, shape=(math.prod(before), line.n, math.prod(behind))))
    return narrow(emit, emit.reshape(y, shape=(*before, line.m, *behind)), like)


@resize.reference
def _(x, sizes, mode, coordinates, nearest, scales, cubic, inside):
    if 0 in sizes:
        return np.zeros(sizes, x.dtype)
    for axis, line in _lines(x.shape, sizes, mode, coordinates, nearest, scales, cubic, inside):
        if line.mode is Interpolation.nearest:
            x = np.take(x, forward_tables(line)[0][0], axis)
        else:
            x = np.moveaxis(np.tensordot(matrix(line).astype(x.dtype), x, (1, axis)), 0, axis)
    return x.copy()


resize.samples(
    (2, 3, 4),
    sizes=(2, 3, 8),
    mode=Interpolation.nearest,
    coordinates=Coordinates.asymmetric,
    nearest=Nearest.floor,
)
resize.samples(
    (2, 3, 8),
    sizes=(2, 3, 4),
    mode=Interpolation.nearest,
    coordinates=Coordinates.asymmetric,
    nearest=Nearest.floor,
)
resize.samples((1, 2, 5, 3), sizes=(1, 2, 7, 4), mode=Interpolation.nearest)
resize.samples((1, 2, 3, 4), sizes=(1, 2, 6, 8))
resize.samples((1, 2, 5, 7), sizes=(1, 2, 3, 4), coordinates=Coordinates.align_corners)
resize.samples((1, 1, 4, 4), sizes=(1, 1, 7, 5), mode=Interpolation.cubic)
resize.samples((1, 1, 3), sizes=(1, 1, 40), mode=Interpolation.cubic, inside=True)
resize.samples((1, 2, 3, 2), sizes=(1, 2, 40, 2))
resize.samples((2, 4), sizes=(2, 7), scales=(1.0, 1.8))
resize.samples((2, 4), sizes=(2, 1), coordinates=Coordinates.half_pixel_or_zero)
resize.samples((2, 4), sizes=(2, 4))
resize.samples((0, 4), sizes=(0, 7))
