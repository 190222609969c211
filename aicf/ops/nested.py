"""Ops of several indices at once, of tensors that become one with an axis more, and of all pairs of two vectors' elements."""

from __future__ import annotations

from math import prod

import numpy as np

from ..types import TensorSpec
from .indexing import accumulator, wrapped
from .scattering import UFUNCS, Scatter
from .schema import Any_, Index, Number, is_integer, op, require

# --- stack and outer ------------------------------------------------------------------------------------------------


@op("stack")
def stack(*xs: Any_, axis: int = 0):
    """Tensors of one shape as one that has an axis more, of as many elements as there are tensors, as numpy.stack.

    C1  all have one shape
    C2  axis is in [-rank(y), rank(y))
    """
    rank = xs[0].rank + 1
    for n, x in enumerate(xs[1:], 1):
        require(x.shape == xs[0].shape, "C1", f"xs[{n}] has shape {x.shape}, xs[0] {xs[0].shape}")
    require(-rank <= axis < rank, "C2", f"axis {axis} is not in [-{rank}, {rank})")
    at = axis % rank
    return TensorSpec((*xs[0].shape[:at], len(xs), *xs[0].shape[at:]), xs[0].dtype, xs[0].device)


@stack.normalizer
def _(specs, attrs):
    rank, axis = specs[0].rank + 1, attrs.get("axis", 0)
    return {**attrs, "axis": axis % rank} if is_integer(axis) and -rank <= axis < rank else attrs


@stack.replaced_by
def _(emit, *xs, axis):
    shape = (*xs[0].shape[:axis], 1, *xs[0].shape[axis:])
    return emit.concatenate(*[emit.reshape(x, shape=shape) for x in xs], axis=axis)


@stack.reference
def _(*xs, axis):
    return np.stack(xs, axis)


@op("outer")
def outer(a: Number, b: Number):
    """The product of each element of a vector with each of another: y[i, j] = a[i] * b[j].

    C1  a and b have rank 1
    """
    for name, x in (("a", a), ("b", b)):
        require(x.rank == 1, "C1", f"{name} has rank {x.rank}, expected 1")
    return TensorSpec((*a.shape, *b.shape), a.dtype, a.device)


@outer.replaced_by
def _(emit, a, b):
    return emit.mul(emit.reshape(a, shape=(*a.shape, 1)), emit.reshape(b, shape=(1, *b.shape)))


@outer.reference
def _(a, b):
    return a[:, None] * b[None, :]


# --- several indices ----------------------------------------------------------------------------------------------------


def _check_indices(x: TensorSpec, indices: TensorSpec) -> int:
    deep = indices.shape[-1] if indices.rank else 0
    require(
        1 <= deep <= x.rank,
        "C1",
        f"indices have shape {indices.shape}, expected a last axis of 1 to {x.rank}",
    )
    return deep


@op("gather_nd")
def gather_nd(x: Any_, indices: Index):
    """What lies at several indices at once: y[i, j, ...] = x[tuple(indices[i, j])], as x[a, b] in NumPy of arrays a and b that were stacked.

    The last axis of indices has one for each of the first axes of x. A negative one counts from the end. Where one is none, y is NaN, of
    integers the least, of bools False.

    C1  the last axis of indices has 1 to rank(x) elements
    """
    deep = _check_indices(x, indices)
    return TensorSpec((*indices.shape[:-1], *x.shape[deep:]), x.dtype, x.device)


@op("scatter_nd")
def scatter_nd(x: Number, indices: Index, updates: Number, *, how: Scatter = Scatter.set):
    """x with updates at several indices at once, y[tuple(indices[i, j])] = updates[i, j], or joined with them; as x[a, b] = updates in NumPy.

    How they are joined, and several for one place, are as for scatter. A negative index counts from the end; updates for what is none are left out.

    C1  the last axis of indices has 1 to rank(x) elements
    C2  updates have the shape of indices without its last axis, then that of x without its first ones
    """
    deep = _check_indices(x, indices)
    shape = (*indices.shape[:-1], *x.shape[deep:])
    require(updates.shape == shape, "C2", f"updates have shape {updates.shape}, expected {shape}")
    return x


def _flat(emit, x, indices):
    """(as one index of the merged axes, how many elements these have); beyond them where one lies outside of its axis."""
    *lead, deep = indices.shape
    sizes, flat, inside = x.shape[:deep], None, None
    for at, size in enumerate(sizes):
        start, limit = (*[0] * len(lead), at), (*lead, at + 1)
        one = emit.reshape(emit.slice(indices, start=start, limit=limit), shape=tuple(lead))
        one = emit.select(emit.less(one, 0), emit.add(one, size), one)
        fits = emit.logical_and(emit.greater_equal(one, 0), emit.less(one, size))
        flat = one if flat is None else emit.add(emit.mul(flat, size), one)
        inside = fits if inside is None else emit.logical_and(inside, fits)
    many = prod(sizes)
    return emit.select(inside, flat, many), many


@gather_nd.replaced_by
def _(emit, x, indices):
    deep = indices.shape[-1]
    flat, many = _flat(emit, x, indices)
    return emit.gather(emit.reshape(x, shape=(many, *x.shape[deep:])), flat, axis=0)


@scatter_nd.replaced_by
def _(emit, x, indices, updates, how):
    deep, count = indices.shape[-1], prod(indices.shape[:-1])
    flat, many = _flat(emit, x, indices)
    rows = emit.reshape(x, shape=(many, *x.shape[deep:]))
    given = emit.reshape(updates, shape=(count, *x.shape[deep:]))
    y = emit.scatter(rows, emit.reshape(flat, shape=(count,)), given, axis=0, how=how)
    return emit.reshape(y, shape=x.shape)


def _places(x, indices):
    """(one array for each axis, which are places), flat."""
    sizes = x.shape[: indices.shape[-1]]
    found = [wrapped(indices[..., k].reshape(-1), size) for k, size in enumerate(sizes)]
    return tuple([places for places, _ in found]), np.logical_and.reduce([valid for _, valid in found])


@gather_nd.reference
def _(x, indices):
    deep = indices.shape[-1]
    at, valid = _places(x, indices)
    none = np.nan if x.dtype.kind not in "iub" else np.iinfo(x.dtype).min if x.dtype.kind != "b" else False
    y = np.full((len(valid), *x.shape[deep:]), none, x.dtype)
    y[valid] = x[tuple([places[valid] for places in at])]
    return y.reshape(*indices.shape[:-1], *x.shape[deep:])


@scatter_nd.reference
def _(x, indices, updates, how):
    at, valid = _places(x, indices)
    joins = how in (Scatter.add, Scatter.mul)
    y, where = x.astype(accumulator(x.dtype) if joins else x.dtype), tuple([places[valid] for places in at])
    given = updates.reshape(len(valid), *x.shape[indices.shape[-1] :])[valid]
    if how is Scatter.set:
        y[where] = given
    else:
        UFUNCS[how].at(y, where, given.astype(y.dtype))
    return y


def _drawn(rng, shape, shapes):
    """No place twice, so that what is set does not depend on an order; some from the end."""
    x, deep = shapes[0], shape[-1]
    sizes = x[:deep]
    flat = rng.permutation(max(prod(sizes), 1))[: prod(shape[:-1])]
    if not prod(sizes):
        return np.zeros(shape)
    made = np.stack(np.unravel_index(flat, sizes), -1).reshape(shape)
    return np.where(rng.uniform(size=shape) < 0.3, made - np.array(sizes), made)


stack.samples((4, 7), (4, 7), (4, 7))
stack.samples((2, 3), (2, 3), axis=-1)
stack.samples((), ())
stack.samples((0, 3), (0, 3), axis=1)
outer.samples((4,), (7,))
outer.samples((1025,), (1,))
outer.samples((0,), (3,))
for _schema in (gather_nd, scatter_nd):
    _schema.draws(indices=_drawn)
gather_nd.samples((4, 5, 3), (6, 2))
gather_nd.samples((4, 5), (2, 3, 2))
gather_nd.samples((7, 3), (4, 1))
gather_nd.samples((4, 5), (0, 2))
scatter_nd.samples((4, 5, 3), (6, 2), (6, 3))
scatter_nd.samples((4, 5), (2, 3, 2), (2, 3))
scatter_nd.samples((4, 5), (0, 2), (0,))
for _how in (Scatter.add, Scatter.mul, Scatter.max):
    scatter_nd.samples((4, 5, 3), (6, 2), (6, 3), how=_how)
