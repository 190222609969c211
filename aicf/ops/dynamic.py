"""Slices whose place is data. A start that would reach beyond an end is moved inside, as in StableHLO."""

from __future__ import annotations

from ..types import Shape, TensorSpec
from .schema import Any_, Index, op, require


def _check_starts(starts: TensorSpec, rank: int) -> None:
    require(
        starts.shape == (rank,),
        "C1",
        f"starts have shape {starts.shape}, expected ({rank},), one for each axis of x",
    )


@op("dynamic_slice")
def dynamic_slice(x: Any_, starts: Index, *, sizes: Shape):
    """sizes[i] elements of x along each axis i, from starts[i] on; a start is clamped to what leaves room for them.

    C1  starts have one entry for each axis of x               (StableHLO dynamic_slice C2; there each is an operand)
    C2  sizes has one for each axis, from 0 to the axis' own   (StableHLO dynamic_slice C4)
    """
    _check_starts(starts, x.rank)
    require(len(sizes) == x.rank, "C2", f"sizes {sizes} has {len(sizes)} entries, x has rank {x.rank}")
    require(
        all(0 <= n <= d for n, d in zip(sizes, x.shape)),
        "C2",
        f"sizes {sizes} do not fit into the shape {x.shape}",
    )
    return TensorSpec(sizes, x.dtype, x.device)


@op("dynamic_update_slice")
def dynamic_update_slice(x: Any_, update: Any_, starts: Index):
    """x with an update in the place of as many of its elements, from starts[i] on along axis i; clamped as for dynamic_slice.

    C1  starts have one entry for each axis of x               (StableHLO dynamic_update_slice C4)
    C2  the update has the rank of x and no longer axis        (StableHLO dynamic_update_slice C3, C6)
    """
    _check_starts(starts, x.rank)
    require(update.rank == x.rank, "C2", f"the update has rank {update.rank}, x has rank {x.rank}")
    require(
        all(n <= d for n, d in zip(update.shape, x.shape)),
        "C2",
        f"the update has shape {update.shape}, which does not fit into {x.shape}",
    )
    return x


def _start(emit, starts, axis: int, room: int):
    """Where along an axis, as a 1-D tensor of one: clamped to [0, room]."""
    one = emit.slice(starts, start=(axis,), limit=(axis + 1,))
    return emit.clamp(0, one, room)


@dynamic_slice.replaced_by
def _(emit, x, starts, sizes):
    y = emit.copy(x)
    for axis, (size, whole) in enumerate(zip(sizes, x.shape)):
        if size == whole:
            continue
        if size == 0:
            return emit.fill(shape=sizes, value=0.0, dtype=x.dtype)
        place = emit.add(
            emit.iota(shape=(size,), axis=0, dtype=starts.dtype), _start(emit, starts, axis, whole - size)
        )
        y = emit.gather(y, emit.clamp(0, place, whole - 1), axis=axis)
    return y


@dynamic_update_slice.replaced_by
def _(emit, x, update, starts):
    if 0 in update.shape:
        return emit.copy(x)
    inside, y = None, emit.copy(update)
    for axis, (size, whole) in enumerate(zip(update.shape, x.shape)):
        if size == whole:
            continue
        index = emit.iota(shape=(whole,), axis=0, dtype=starts.dtype)
        place = emit.sub(index, _start(emit, starts, axis, whole - size))
        column = (whole, *[1] * (x.rank - axis - 1))
        here = emit.reshape(emit.equal(emit.clamp(0, place, size - 1), place), shape=column)
        inside = here if inside is None else emit.logical_and(inside, here)
        y = emit.gather(y, emit.clamp(0, place, size - 1), axis=axis)
    return y if inside is None else emit.select(inside, y, x)


def _clamped(starts, shape, sizes):
    return tuple(slice(at := min(max(int(s), 0), d - n), at + n) for s, d, n in zip(starts, shape, sizes))


@dynamic_slice.reference
def _(x, starts, sizes):
    return x[_clamped(starts, x.shape, sizes)].copy()


@dynamic_update_slice.reference
def _(x, update, starts):
    y = x.copy()
    y[_clamped(starts, x.shape, update.shape)] = update
    return y


def _any_start(rng, shape, shapes):
    return rng.integers(-2, 9, shape)


for _schema in (dynamic_slice, dynamic_update_slice):
    _schema.draws(starts=_any_start)
dynamic_slice.samples((9,), (1,), sizes=(4,))
dynamic_slice.samples((4, 7), (2,), sizes=(2, 7))
dynamic_slice.samples((2, 3, 5), (3,), sizes=(1, 2, 3))
dynamic_slice.samples((0, 3), (2,), sizes=(0, 2))
dynamic_slice.samples((4, 7), (2,), sizes=(2, 0))
dynamic_update_slice.samples((9,), (4,), (1,))
dynamic_update_slice.samples((4, 7), (2, 7), (2,))
dynamic_update_slice.samples((2, 3, 5), (1, 2, 3), (3,))
dynamic_update_slice.samples((4, 7), (0, 7), (2,))
