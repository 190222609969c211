"""Ops that put elements beside others. They read under a mask: kernels of maps take them with what stands around them."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from ..types import TensorSpec
from . import numbers
from .schema import MASKED, MOVES, Access, Any_, is_integer, op, require


@op("pad", traits=(MASKED,))
def pad(x: Any_, *, value: float = 0.0, low: tuple = (), high: tuple = (), interior: tuple = ()):
    """x with `value` around it: low elements before it along each axis, high behind it, interior between every two of its own.

    A negative low or high cuts so many off instead. () is 0 along every axis.

    C1  low, high and interior are integers, one for each axis of x   (StableHLO pad C2)
    C2  interior >= 0                                                 (StableHLO pad C3)
    C3  no axis is cut to less than nothing
    C4  the element type holds the value, be it rounded
    C5  a value beside integers is at most 2^53 in size               (the attribute is an f64)
    """
    shape = []
    for name, entries in (("low", low), ("high", high), ("interior", interior)):
        require(
            len(entries) in (x.rank, 0),
            "C1",
            f"{name} {entries} has {len(entries)} entries, x has rank {x.rank}",
        )
        require(all(map(is_integer, entries)), "C1", f"{name} {entries} is not of integers")
    require(all(n >= 0 for n in interior), "C2", f"interior {interior} has one under 0")
    for axis, (size, before, behind, between) in enumerate(
        zip(x.shape, *_amounts(x.shape, low, high, interior))
    ):
        shape.append(before + size + max(size - 1, 0) * between + behind)
        require(
            shape[-1] >= 0,
            "C3",
            f"axis {axis} of size {size} with {before} before, {between} between and {behind} behind has {shape[-1]} elements",
        )
    number = numbers.whole(value)
    reason = numbers.why_not(number, x.dtype)
    require(reason is None, "C4", f"value is {number}, x is {x.dtype}: {reason}")
    require(
        x.dtype.kind != "int" or abs(number) <= 2**53,
        "C5",
        f"value is {number}, beyond 2^53; select chooses between a pad and a constant of {x.dtype}",
    )
    return TensorSpec(tuple(shape), x.dtype, x.device)


def _amounts(shape: tuple, *amounts: tuple) -> list[tuple]:
    return [entries or (0,) * len(shape) for entries in amounts]


@pad.normalizer
def _(operands, attrs):
    names = "low", "high", "interior"
    given = [attrs.get(name) or () for name in names]
    return {**attrs, **dict(zip(names, _amounts(operands[0].shape, *given)))}


def _pad_access(x, value, low, high, interior):
    low, high, interior = _amounts(x, low, high, interior)
    strewn = tuple([axis for axis, between in enumerate(interior) if between and x[axis] > 1])
    added = [max(amounts) > 0 for amounts in zip(low, high, interior)]
    bounded = [axis for axis in range(len(x)) if added[axis] and axis not in strewn]
    axes = tuple([-1 if axis in strewn else axis for axis in range(len(x))])
    starts = tuple([0 if axis in strewn else -n for axis, n in enumerate(low)])
    spread = tuple([(axis, axis, low[axis], interior[axis] + 1) for axis in strewn])
    return [Access(0, axes, starts, bounded=tuple(bounded), spread=spread)]


@pad.maps(_pad_access, continuous=True)
def _(x, inside, *, value):
    return x if inside else value


@pad.specialised
def _(operands, attrs):
    """Where something is cut off at most, nothing is masked."""
    added = any(n > 0 for name in ("low", "high", "interior") for n in attrs[name])
    return None if added else _cut


def _cut(x):
    return x


@pad.reference
def _(x, value, low, high, interior):
    low, high, interior = _amounts(x.shape, low, high, interior)
    for axis, (before, behind, between) in enumerate(zip(low, high, interior)):
        size, x = x.shape[axis], np.moveaxis(x, axis, 0)
        wide = np.full((max(size + max(size - 1, 0) * between, 0), *x.shape[1:]), value, x.dtype)
        wide[:: between + 1] = x
        around = [np.full((max(n, 0), *x.shape[1:]), value, x.dtype) for n in (before, behind)]
        whole = np.concatenate([around[0], wide, around[1]])
        x = np.moveaxis(whole[max(-before, 0) : whole.shape[0] - max(-behind, 0)], 0, axis)
    return x.copy()


@pad.gradient
def _(emit, dy, x, low, high, interior):
    back = emit.pad(dy, low=tuple([-n for n in low]), high=tuple([-n for n in high]))
    if not any(interior):
        return back
    return emit.slice(back, start=(0,) * x.rank, limit=back.shape, step=tuple([n + 1 for n in interior]))


pad.samples((9,), low=(2,), high=(1,))
pad.samples((4, 7), value=1.0, low=(0, 3), high=(1, 2))
pad.samples((4, 7), value=1.0, low=(1, 0), interior=(0, 2))
pad.samples((3, 5), low=(2, -1), high=(-1, 3), interior=(1, 0))
pad.samples((3, 5), low=(-1, 0), high=(-1, -3))
pad.samples((2, 1, 3), low=(0, 2, 1), high=(0, 1, 0), interior=(0, 3, 1))
pad.samples((4, 7), value=1.0)
pad.samples((0, 3), value=1.0, low=(2, 0), high=(0, 1))
pad.samples((4, 3), low=(-4, 0))
pad.samples(())


# --- concatenate ------------------------------------------------------------------------------------------------------


@op("concatenate", traits=(MASKED, MOVES))
def concatenate(*xs: Any_, axis: int = 0):
    """Operands one behind the other along an axis. A negative axis counts from the end.

    C1  axis is one of the operands                          (StableHLO concatenate C4)
    C2  operands have one shape, but for that axis           (StableHLO concatenate C2)
    """
    first = xs[0]
    require(
        0 <= axis < first.rank,
        "C1",
        f"axis is {axis}, expected 0 to {first.rank - 1}" if first.rank else "a number has no axis",
    )
    for n, x in enumerate(xs[1:], 1):
        require(
            x.rank == first.rank
            and (*x.shape[:axis], *x.shape[axis + 1 :]) == (*first.shape[:axis], *first.shape[axis + 1 :]),
            "C2",
            f"xs[{n}] has shape {x.shape}, xs[0] {first.shape}: they may differ along axis {axis} alone",
        )
    shape = list(first.shape)
    shape[axis] = sum(x.shape[axis] for x in xs)
    return TensorSpec(tuple(shape), first.dtype, first.device)


@concatenate.normalizer
def _(operands, attrs):
    axis = attrs.get("axis", 0)
    return {**attrs, "axis": axis + operands[0].rank if is_integer(axis) and axis < 0 else axis}


def _concatenate_access(*xs, axis):
    """Each operand under a mask of its own."""
    made, begin = [], 0
    for x in xs:
        starts = tuple([-begin if at == axis else 0 for at in range(len(x))])
        made.append(Access(len(made), tuple(range(len(x))), starts, bounded=(axis,)))
        begin += x[axis]
    return made


@concatenate.maps(_concatenate_access, continuous=True)
def _(*arguments):
    return next(x for x, inside in zip(arguments[::2], arguments[1::2]) if inside)


@concatenate.specialised
def _(arguments, attrs):
    return _first_inside(len(arguments) // 2)


@lru_cache(maxsize=256)
def _first_inside(count):
    """Of so many operands, each with whether it has an element, the one that has: a chain of choices, as a kernel takes it."""
    given = ", ".join(f"x{n}, inside{n}" for n in range(count))
    choices = "".join(f"x{n} if inside{n} else " for n in range(count - 1))
    chosen = eval(f"lambda {given}: {choices}x{count - 1}")
    chosen.__name__, chosen.__module__ = "concatenate", __name__
    return chosen


@concatenate.reference
def _(*xs, axis):
    return np.concatenate(xs, axis)


@concatenate.gradient
def _(emit, dy, xs, axis):
    grads, begin = [], 0
    for x in xs:
        start = tuple([begin if at == axis else 0 for at in range(x.rank)])
        begin += x.shape[axis]
        limit = tuple([begin if at == axis else size for at, size in enumerate(dy.shape)])
        grads.append(emit.slice(dy, start=start, limit=limit))
    return tuple(grads)


concatenate.samples((4, 7), (2, 7))
concatenate.samples((4, 7), (4, 1), (4, 5), axis=1)
concatenate.samples((2, 3, 5), (2, 4, 5), axis=-2)
concatenate.samples((3,), *[(n,) for n in range(9)])
concatenate.samples((4, 7))
concatenate.samples((0, 3), (0, 3), (2, 3))
concatenate.samples((2, 3), (2, 0), axis=1)
