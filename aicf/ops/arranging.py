"""Ops that put the elements of one tensor in another arrangement: rolled, repeated, mirrored beyond their ends. A graph has slices,
concatenations and broadcasts in their place."""

from __future__ import annotations

import numpy as np

from ..types import TensorSpec
from .schema import LINEAR, Any_, is_integer, op, require
from .views import check_axes


def part(emit, x, axis, start, limit):
    """x from start to limit along an axis."""
    first = tuple([start if a == axis else 0 for a in range(x.rank)])
    last = tuple([limit if a == axis else n for a, n in enumerate(x.shape)])
    return emit.slice(x, start=first, limit=last)


# --- roll -------------------------------------------------------------------------------------------------------------


@op("roll", traits=(LINEAR,))
def roll(x: Any_, *, shifts: tuple, axes: tuple):
    """x moved on by shifts[i] places along axes[i]; what leaves at the end comes in at the beginning. As numpy.roll with axes.

    C1  axes are integers in [0, rank(x)), each once
    C2  shifts has an integer for each of the axes
    """
    check_axes("axes", axes, x.rank)
    require(
        len(shifts) == len(axes),
        "C2",
        f"shifts {shifts} has {len(shifts)} entries, axes {axes} has {len(axes)}",
    )
    require(all(map(is_integer, shifts)), "C2", f"shifts {shifts} is not of integers")
    return x


@roll.replaced_by
def _(emit, x, shifts, axes):
    y = emit.copy(x)
    for shift, axis in zip(shifts, axes):
        size = x.shape[axis]
        if size and shift % size:
            cut = size - shift % size
            y = emit.concatenate(part(emit, y, axis, cut, size), part(emit, y, axis, 0, cut), axis=axis)
    return y


@roll.reference
def _(x, shifts, axes):
    return np.roll(x, shifts, axes)


roll.samples((7,), shifts=(2,), axes=(0,))
roll.samples((4, 7), shifts=(-1, 10), axes=(0, 1))
roll.samples((2, 3, 5), shifts=(0,), axes=(2,))
roll.samples((0, 3), shifts=(1,), axes=(0,))

# --- tile -------------------------------------------------------------------------------------------------------------


@op("tile", traits=(LINEAR,))
def tile(x: Any_, *, repeats: tuple):
    """x repeated repeats[i] times along axis i, one behind the other, as numpy.tile.

    C1  repeats has an integer from 0 on for each axis of x
    """
    _check_repeats(repeats, x.rank)
    return TensorSpec(tuple([n * d for n, d in zip(repeats, x.shape)]), x.dtype, x.device)


@op("repeat", traits=(LINEAR,))
def repeat(x: Any_, *, repeats: tuple):
    """Each element of x repeated repeats[i] times along axis i, beside itself, as numpy.repeat.

    C1  repeats has an integer from 0 on for each axis of x
    """
    _check_repeats(repeats, x.rank)
    return TensorSpec(tuple([n * d for n, d in zip(repeats, x.shape)]), x.dtype, x.device)


def _check_repeats(repeats: tuple, rank: int) -> None:
    require(len(repeats) == rank, "C1", f"repeats {repeats} has {len(repeats)} entries, x has rank {rank}")
    require(
        all(is_integer(n) and n >= 0 for n in repeats),
        "C1",
        f"repeats {repeats} is not of integers from 0 on",
    )


def _repeated(emit, x, repeats, before):
    """before: 1 where a repeat's axis stands in front of the axis of x, 0 where it stands behind."""
    split = [size for n, d in zip(repeats, x.shape) for size in ((n, d) if before else (d, n))]
    wide = emit.broadcast_in_dim(x, shape=tuple(split), dims=tuple(range(before, 2 * x.rank, 2)))
    return emit.reshape(wide, shape=tuple([n * d for n, d in zip(repeats, x.shape)]))


@tile.replaced_by
def _(emit, x, repeats):
    return _repeated(emit, x, repeats, 1)


@repeat.replaced_by
def _(emit, x, repeats):
    return _repeated(emit, x, repeats, 0)


@tile.reference
def _(x, repeats):
    return np.tile(x, repeats)


@repeat.reference
def _(x, repeats):
    for axis, n in enumerate(repeats):
        x = np.repeat(x, n, axis)
    return x.copy()


for _schema in (tile, repeat):
    _schema.samples((4, 7), repeats=(1, 3))
    _schema.samples((2, 3, 5), repeats=(2, 1, 2))
    _schema.samples((4, 7), repeats=(0, 1))
    _schema.samples((0, 3), repeats=(2, 2))
    _schema.samples((), repeats=())

# --- beyond the ends --------------------------------------------------------------------------------------------------


def _padded(x: TensorSpec, low: tuple, high: tuple) -> TensorSpec:
    for name, entries in (("low", low), ("high", high)):
        require(
            len(entries) == x.rank, "C1", f"{name} {entries} has {len(entries)} entries, x has rank {x.rank}"
        )
        require(
            all(is_integer(n) and n >= 0 for n in entries),
            "C1",
            f"{name} {entries} is not of integers from 0 on",
        )
    return TensorSpec(tuple([n + d + m for n, d, m in zip(low, x.shape, high)]), x.dtype, x.device)


@op("pad_reflect", traits=(LINEAR,))
def pad_reflect(x: Any_, *, low: tuple, high: tuple):
    """x with low[i] elements before it along axis i and high[i] behind it: its own, mirrored at the ends, which are not repeated.

    C1  low and high have an integer from 0 on for each axis of x
    C2  each is less than the size of its axis, or 0
    """
    spec = _padded(x, low, high)
    for name, entries in (("low", low), ("high", high)):
        require(
            all(n < max(d, 1) for n, d in zip(entries, x.shape)),
            "C2",
            f"{name} {entries} is not less than the shape {x.shape} everywhere",
        )
    return spec


@op("pad_edge", traits=(LINEAR,))
def pad_edge(x: Any_, *, low: tuple, high: tuple):
    """x with low[i] elements before it along axis i and high[i] behind it: the first and the last, repeated.

    C1  low and high have an integer from 0 on for each axis of x
    C2  an axis that gets any is not empty
    """
    spec = _padded(x, low, high)
    for axis, (before, size, behind) in enumerate(zip(low, x.shape, high)):
        require(
            size > 0 or before + behind == 0,
            "C2",
            f"axis {axis} of {x.shape} is empty, so it has no element to repeat",
        )
    return spec


def _pad_by(beside):
    def replaced(emit, x, low, high):
        y = emit.copy(x)
        for axis, (before, behind) in enumerate(zip(low, high)):
            parts = [beside(emit, y, axis, before, True)] if before else []
            parts += [y, *([beside(emit, y, axis, behind, False)] if behind else [])]
            y = emit.concatenate(*parts, axis=axis) if len(parts) > 1 else y
        return y

    return replaced


def _mirrored(emit, x, axis, count, before):
    first = 1 if before else x.shape[axis] - 1 - count
    return emit.reverse(part(emit, x, axis, first, first + count), dims=(axis,))


def _end(emit, x, axis, count, before):
    at = 0 if before else x.shape[axis] - 1
    shape = tuple([count if a == axis else d for a, d in enumerate(x.shape)])
    return emit.broadcast_in_dim(part(emit, x, axis, at, at + 1), shape=shape, dims=tuple(range(x.rank)))


pad_reflect.replaced_by(_pad_by(_mirrored))
pad_edge.replaced_by(_pad_by(_end))


@pad_reflect.reference
def _(x, low, high):
    return np.pad(x, tuple(zip(low, high)), "reflect")


@pad_edge.reference
def _(x, low, high):
    return np.pad(x, tuple(zip(low, high)), "edge")


for _schema in (pad_reflect, pad_edge):
    _schema.samples((4, 7), low=(1, 2), high=(3, 0))
    _schema.samples((2, 3, 5), low=(0, 2, 0), high=(1, 1, 4))
    _schema.samples((0, 3), low=(0, 1), high=(0, 2))
