"""resample: sums of a few elements along an axis, picked and weighted by tables. Its gradient is the same by the tables the other way
round, so that nothing is added to by two at once."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from ..types import TensorSpec
from .schema import ACCUMULATES, F32, LINEAR, MASKED, Access, Float, Index, is_integer, op, require

NOWHERE = -(2**31)  # an index of no element


@op("resample", traits=(MASKED, LINEAR, ACCUMULATES), flops=4)
def resample(x: Float, indices: Index, weights: F32, back_indices: Index, back_weights: F32, *, axis: int):
    """Along an axis, sums of weighted elements: y[..., o, ...] is the sum over k of weights[k, o] * x[..., indices[k, o], ...].

    Shapes: indices and weights (K, M), x (…, N, …), y (…, M, …). An index outside of [-N, N) adds nothing. back_indices and back_weights
    (J, N) are the same sums the other way, which the gradient takes: of x's element n they list where it goes and by which weight. Sums
    are f32, or f64.

    C1  axis is in [-rank(x), rank(x))
    C2  indices has shape (K, M)
    C3  weights has the shape of indices
    C4  back_indices has shape (J, N), with N the size of the axis
    C5  back_weights has the shape of back_indices
    """
    require(-x.rank <= axis < x.rank, "C1", f"axis {axis} is not in [-{x.rank}, {x.rank})")
    require(
        indices.rank == 2 and indices.shape[0] >= 1,
        "C2",
        f"indices has shape {indices.shape}, expected (K, M), K from 1 on",
    )
    require(
        weights.shape == indices.shape, "C3", f"weights has shape {weights.shape}, expected {indices.shape}"
    )
    n = x.shape[axis]
    require(
        back_indices.rank == 2 and back_indices.shape[0] >= 1 and back_indices.shape[1] == n,
        "C4",
        f"back_indices has shape {back_indices.shape}, expected (J, {n}), J from 1 on",
    )
    require(
        back_weights.shape == back_indices.shape,
        "C5",
        f"back_weights has shape {back_weights.shape}, expected {back_indices.shape}",
    )
    shape = tuple([indices.shape[1] if a == axis % x.rank else d for a, d in enumerate(x.shape)])
    return TensorSpec(shape, x.dtype, x.device)


@resample.normalizer
def _(specs, attrs):
    rank, axis = specs[0].rank, attrs.get("axis", -1)
    return {**attrs, "axis": axis % rank} if is_integer(axis) and -rank <= axis < rank else attrs


def _resample_access(x, indices, weights, back_indices, back_weights, axis):
    """Of each tap: the element, under a mask, where it is, and its weight."""
    axes = tuple([-1 if a == axis else a for a in range(len(x))])
    made = []
    for k in range(indices[0]):
        made.append(Access(0, axes, index=((axis, 3 * k + 1),)))
        made += [Access(operand, (-1, axis), starts=(k, 0)) for operand in (1, 2)]
    return made


@resample.maps(_resample_access, lambda attrs: {}, continuous=True)
def _(*arguments):
    taps = zip(*[arguments[n::4] for n in range(4)])
    return sum(x * weight if inside else 0.0 for x, inside, _, weight in taps)


@resample.specialised
def _(arguments, attrs):
    return _summed(len(arguments) // 4)


@lru_cache(maxsize=64)
def _summed(count):
    """The scalar function of so many taps."""
    given = ", ".join(f"x{n}, inside{n}, index{n}, weight{n}" for n in range(count))
    terms = " + ".join(f"(x{n} * weight{n} if inside{n} else 0.0)" for n in range(count))
    made = eval(f"lambda {given}: {terms}")
    made.__name__, made.__module__ = "resample", __name__
    return made


@resample.reference
def _(x, indices, weights, back_indices, back_weights, axis):
    n = x.shape[axis]
    made = np.zeros((*x.shape[:axis], indices.shape[1], *x.shape[axis + 1 :]), x.dtype)
    column = (-1, *[1] * (x.ndim - 1 - axis))
    for index, weight in zip(indices, weights):
        index = np.where(index < 0, index.astype(np.int64) + n, index)
        inside = ((index >= 0) & (index < n)).reshape(column)
        if n:
            part = np.take(x, np.clip(index, 0, n - 1), axis) * weight.reshape(column)
            made += np.where(inside, part, x.dtype.type(0))
    return made


@resample.gradient
def _(emit, dy, indices, weights, back_indices, back_weights, axis):
    dx = emit.resample(dy, back_indices, back_weights, indices, weights, axis=axis)
    return dx, None, None, None, None


def tables(n: int, m: int, count: int) -> tuple[np.ndarray, np.ndarray]:
    """What tests use: place o of m reads up to so many of n elements from some place on; (count, m) of indices and of weights."""
    k, o = np.mgrid[:count, :m]
    indices = (o * 2 + k) % max(n + 1, 1)
    return np.where(indices < n, indices, NOWHERE), 0.5 + 0.25 * k - 0.1 * (o % 3)


def reversed_tables(
    indices: np.ndarray, weights: np.ndarray, n: int, count: int = 0
) -> tuple[np.ndarray, np.ndarray]:
    """The same sums the other way: for each of n elements, the places that read it and by which weight; so many, or as many as needed."""
    read: list[list[tuple[int, float]]] = [[] for _ in range(n)]
    for (_, place), index, weight in zip(np.ndindex(indices.shape), indices.flat, weights.flat):
        if index >= 0:
            read[index].append((place, weight))
    count = max(count, 1, *map(len, read)) if read else max(count, 1)
    back, by = np.full((count, n), NOWHERE, np.int64), np.zeros((count, n))
    for element, places in enumerate(read):
        for k, (place, weight) in enumerate(sorted(places)):
            back[k, element], by[k, element] = place, weight
    return back, by


def _drawn(which: int):
    def draw(rng, shape, shapes):
        (count, m), (back, n) = shapes[1], shapes[3]
        there = tables(n, m, count)
        return (*there, *reversed_tables(*there, n, back))[which]

    return draw


_NAMES = ("indices", "weights", "back_indices", "back_weights")
resample.draws(**{name: _drawn(which) for which, name in enumerate(_NAMES)})
for _shape, _axis, _m, _k, _j in [
    ((4, 7), 1, 5, 2, 4),
    ((4, 3), 0, 6, 2, 6),
    ((2, 3, 5), 1, 4, 1, 4),
    ((2, 5), 1, 3, 3, 6),
    ((0, 4), 1, 3, 1, 3),
]:
    _n = _shape[_axis]
    resample.samples(_shape, *[(_k, _m)] * 2, *[(_j, _n)] * 2, axis=_axis)
