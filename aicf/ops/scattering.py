"""scatter: a tensor with updates at indices along an axis, in the place of what is there or joined with it."""

from __future__ import annotations

import enum
from math import prod

import numpy as np

from ..errors import TypeInferenceError
from ..types import DType
from .indexing import axis_from_the_end, wrapped
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
    emit.check_indices(indices, size=x.shape[axis])


@scatter.replaced_by
def _(emit, x, indices, updates, axis, how, along):
    """A sum is a scatter_add. On a GPU an element finds the last update that is for it, and takes that."""
    size = x.shape[axis]
    if how is Scatter.add:
        return emit.add(x, emit.scatter_add(updates, indices, size=size, axis=axis, along=along))
    if emit.device != "cuda" or how is not Scatter.set or along or 0 in indices.shape:
        return None
    emit.check_indices(indices, size=size)
    many = prod(indices.shape)
    flat = emit.reshape(indices, shape=(1, many))
    flat = emit.select(emit.less(flat, 0), emit.add(flat, size), flat)
    hit = emit.equal(emit.iota(shape=(size, 1), axis=0, dtype=indices.dtype), flat)
    place = emit.add(emit.iota(shape=(1, many), axis=1, dtype=DType.i32), 1)
    last = emit.reduce_max(emit.select(hit, place, 0), axes=(1,))
    rows = emit.reshape(updates, shape=(*x.shape[:axis], many, *x.shape[axis + 1 :]))
    taken = emit.gather(rows, emit.clamp(0, emit.sub(last, 1), many - 1), axis=axis)
    found = emit.reshape(emit.greater(last, 0), shape=(size, *[1] * (x.rank - axis - 1)))
    return emit.select(found, taken, x)


_UFUNCS = {Scatter.add: np.add, Scatter.mul: np.multiply, Scatter.min: np.minimum, Scatter.max: np.maximum}


@scatter.reference
def _(x, indices, updates, axis, how, along):
    places, valid = wrapped(indices, x.shape[axis])
    y = x.copy()
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
        _UFUNCS[how].at(view, where, given)
    return y


@scatter.gradient
def _(emit, dy, x, indices, updates, axis, how, along):
    """Of updates as PyTorch's: each of several for one place has it."""
    if how not in (Scatter.set, Scatter.add):
        raise TypeInferenceError(
            f"scatter has no gradient where how is {how.name}, and the loss depends on it",
            expected="set or add",
        )
    taken = emit.take_along_axis(dy, indices, axis=axis) if along else emit.gather(dy, indices, axis=axis)
    if how is Scatter.add:
        return dy, None, taken
    nothing = emit.fill(shape=updates.shape, value=0.0, dtype=updates.dtype)
    return emit.scatter(dy, indices, nothing, axis=axis, along=along), None, taken


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
