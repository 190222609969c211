"""scatter: a tensor with updates at indices along an axis, in the place of what is there or joined with it."""

from __future__ import annotations

import enum
from math import prod

import numpy as np

from ..types import DType
from .indexing import accumulator, axis_from_the_end, wrapped
from .schema import Index, Number, op, require


class Scatter(enum.IntEnum):
    """What becomes of an element and an update for its place."""

    set = 0
    add = 1
    mul = 2
    min = 3
    max = 4


@op("scatter")
def scatter(
    x: Number,
    indices: Index,
    updates: Number,
    *,
    axis: int = 0,
    how: Scatter = Scatter.set,
    along: bool = False,
):
    """x with updates at indices, y[..., indices[i, j], ...] = updates[..., i, j, ...], or joined with them: added, multiplied, the less, the greater.

    Indices of any shape stand in the updates' shape where the axis is in that of x, as for gather; with `along` each update has an index
    of its own, as torch.scatter. Of several for one place the last is set. A negative axis or index counts from the end; updates for
    what is no index are left out. Bools are converted to integers, and back.

    C1  axis is one of x
    C2  updates have the shape of x, with that of the indices in the place of the axis
    C3  along: indices have the updates' shape, that of x but for the axis
    """
    require(0 <= axis < x.rank, "C1", f"axis is {axis}, x has rank {x.rank}")
    before, behind = x.shape[:axis], x.shape[axis + 1 :]
    if along:
        beside = (*indices.shape[:axis], *indices.shape[axis + 1 :])
        require(
            indices.rank == x.rank and beside == (*before, *behind) and updates.shape == indices.shape,
            "C3",
            f"updates have shape {updates.shape}, indices {indices.shape}, x {x.shape}",
        )
    else:
        require(
            updates.shape == (*before, *indices.shape, *behind),
            "C2",
            f"updates have shape {updates.shape}, expected {(*before, *indices.shape, *behind)}",
        )
    return x


scatter.normalizer(axis_from_the_end)


@scatter.guards
def _(emit, x, indices, updates, axis, how, along):
    emit.check_indices(indices, size=x.shape[axis], of="scatter: index")


@scatter.replaced_by
def _(emit, x, indices, updates, axis, how, along):
    """A sum is a scatter_add. On a GPU an element looks through the indices for those that are its own."""
    size = x.shape[axis]
    if how is Scatter.add:
        return emit.add(x, emit.scatter_add(updates, indices, size=size, axis=axis, along=along))
    if emit.device != "cuda":
        return None
    if 0 in (*indices.shape, *x.shape):
        return emit.copy(x)
    emit.check_indices(indices, size=size, of="scatter: index")
    at = emit.select(emit.less(indices, 0), emit.add(indices, size), indices)
    if how is Scatter.set and not along:
        return _set_rows(emit, x, at, updates, axis)
    hit, seen = _hits(emit, x, at, updates, axis, along)
    if how is Scatter.set:
        many = updates.shape[axis]
        place = emit.iota(shape=(many, *[1] * (x.rank - axis - 1)), axis=0, dtype=DType.i32)
        last = emit.reduce_max(emit.select(hit, emit.add(place, 1), 0), axes=(axis + 1,))
        taken = emit.take_along_axis(updates, emit.clamp(0, emit.sub(last, 1), many - 1), axis=axis)
        return emit.select(emit.greater(last, 0), taken, x)
    found = getattr(emit, _REDUCTIONS[how])(emit.select(hit, seen, _neutral(how, x.dtype)), axes=(axis + 1,))
    return getattr(emit, _JOINS[how])(x, found)


_REDUCTIONS = {Scatter.mul: "reduce_prod", Scatter.min: "reduce_min", Scatter.max: "reduce_max"}
_JOINS = {Scatter.mul: "mul", Scatter.min: "minimum", Scatter.max: "maximum"}


def _neutral(how: Scatter, dtype: DType):
    """What changes nothing that it is joined with."""
    if how is Scatter.mul:
        return 1
    if dtype.kind == "float":
        return float("inf") if how is Scatter.min else float("-inf")
    held = np.iinfo(dtype.numpy)
    return int(held.max if how is Scatter.min else held.min)


def _hits(emit, x, at, updates, axis, along):
    """(whether an update is for an element, the update), with an axis of elements before that of updates: kernels make neither in memory."""
    before, behind, size = x.shape[:axis], x.shape[axis + 1 :], x.shape[axis]
    many = at.shape[axis] if along else prod(at.shape)
    each = (*before, 1, many, *behind)
    seen = emit.reshape(updates, shape=each)
    own = emit.reshape(at, shape=each if along else (many, *[1] * len(behind)))
    places = emit.iota(shape=(size, 1, *[1] * len(behind)), axis=0, dtype=at.dtype)
    hit = emit.equal(own, places)
    full = (*before, size, many, *behind)
    dims = tuple(range(len(full) - hit.rank, len(full)))
    return hit if hit.shape == full else emit.broadcast_in_dim(hit, shape=full, dims=dims), seen


def _set_rows(emit, x, at, updates, axis):
    """An element finds the last update that is for it, and takes that."""
    size, many = x.shape[axis], prod(at.shape)
    hit = emit.equal(emit.iota(shape=(size, 1), axis=0, dtype=at.dtype), emit.reshape(at, shape=(1, many)))
    place = emit.add(emit.iota(shape=(1, many), axis=1, dtype=DType.i32), 1)
    last = emit.reduce_max(emit.select(hit, place, 0), axes=(1,))
    rows = emit.reshape(updates, shape=(*x.shape[:axis], many, *x.shape[axis + 1 :]))
    taken = emit.gather(rows, emit.clamp(0, emit.sub(last, 1), many - 1), axis=axis)
    found = emit.reshape(emit.greater(last, 0), shape=(size, *[1] * (x.rank - axis - 1)))
    return emit.select(found, taken, x)


UFUNCS = {Scatter.add: np.add, Scatter.mul: np.multiply, Scatter.min: np.minimum, Scatter.max: np.maximum}


@scatter.reference
def _(x, indices, updates, axis, how, along):
    places, valid = wrapped(indices, x.shape[axis])
    y = x.astype(accumulator(x.dtype)) if how in (Scatter.add, Scatter.mul) else x.copy()
    if along:
        at = list(np.indices(places.shape))
        at[axis] = places
        where, given, view = tuple([index[valid] for index in at]), updates[valid], y
    else:
        rows = updates.reshape(*x.shape[:axis], indices.size, *x.shape[axis + 1 :])
        keep = valid.reshape(-1)
        where, given = places.reshape(-1)[keep], np.moveaxis(rows, axis, 0)[keep]
        view = np.moveaxis(y, axis, 0)
    if how is Scatter.set:
        view[where] = given
    else:
        UFUNCS[how].at(view, where, given.astype(y.dtype))
    return y


@scatter.gradient
def _(emit, dy, x, indices, updates, y, axis, how, along):
    """Of updates as PyTorch's: each of several for one place has it, and of a least or greatest one all that are equal share it."""
    to = {"axis": axis, "along": along}

    def taken(values):
        return (
            emit.take_along_axis(values, indices, axis=axis)
            if along
            else emit.gather(values, indices, axis=axis)
        )

    def added(values):
        return emit.scatter_add(values, indices, size=x.shape[axis], **to)

    if how is Scatter.add:
        return dy, None, taken(dy)
    if how is Scatter.set:
        nothing = emit.fill(shape=updates.shape, value=0.0, dtype=updates.dtype)
        return emit.scatter(dy, indices, nothing, **to), None, taken(dy)
    if how is Scatter.mul:
        ones = emit.fill(shape=x.shape, value=1.0, dtype=x.dtype)
        dx = emit.mul(dy, emit.scatter(ones, indices, updates, how=how, **to))
        zero = emit.equal(updates, 0)
        others = emit.scatter(
            x, indices, emit.select(zero, 1, updates), how=how, **to
        )  # those that are not 0
        zeros = taken(added(emit.convert(zero, dtype=x.dtype)))
        alone = emit.select(emit.equal(zeros, 1), taken(emit.mul(dy, others)), 0)
        rest = emit.div(taken(emit.mul(dy, y)), emit.select(zero, 1, updates))
        return dx, None, emit.select(zero, alone, rest)
    own, theirs = emit.equal(x, y), emit.equal(updates, taken(y))
    count = emit.add(emit.convert(own, dtype=x.dtype), added(emit.convert(theirs, dtype=x.dtype)))
    share = emit.div(dy, emit.maximum(count, 1))
    return emit.select(own, share, 0), None, emit.select(theirs, taken(share), 0)


def _apart(rng, shape, shapes):
    """Indices of which no two are one, some of them from the end; the axis is the first one of another size."""
    x, _, updates = shapes
    axis = next((a for a, (n, m) in enumerate(zip(x, updates)) if n != m), 0)
    if len(shape) == len(x) and shape == updates:
        places = np.argsort(rng.uniform(size=x), axis)
        return np.take(places, range(shape[axis]), axis)
    made = rng.permutation(x[axis])[: int(np.prod(shape))].reshape(shape)
    return np.where(rng.uniform(size=shape) < 0.3, made - x[axis], made)


scatter.draws(indices=_apart)
scatter.samples((5, 7), (3,), (3, 7))
scatter.samples((2, 9, 3), (2, 2), (2, 2, 2, 3), axis=1)
scatter.samples((5, 7), (3,), (3, 7), how=Scatter.add)
scatter.samples((5, 7), (3, 7), (3, 7), along=True)
scatter.samples((4, 6), (4, 2), (4, 2), axis=-1, along=True, how=Scatter.add)
scatter.samples((5, 3), (0,), (0, 3))
for _how in (Scatter.mul, Scatter.min, Scatter.max):
    scatter.samples((5, 7), (3,), (3, 7), how=_how)
    scatter.samples((2, 9, 3), (2, 2), (2, 2, 2, 3), axis=1, how=_how)
    scatter.samples((5, 7), (3, 7), (3, 7), along=True, how=_how)
