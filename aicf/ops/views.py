"""Ops that read elements of their operand in another order, or only some of them: affine reads, that maps compose."""

from __future__ import annotations

import numpy as np

from ..types import TensorSpec
from .schema import LINEAR, MOVES, Access, Any_, is_integer, op, require


def check_axes(name: str, axes: tuple, rank: int) -> None:
    """C1 of what names axes."""
    for axis in axes:
        require(
            is_integer(axis) and 0 <= axis < rank,
            "C1",
            f"{name} has {axis}, expected integers in [0, {rank})",
        )
    require(len(set(axes)) == len(axes), "C1", f"{name} {axes} names an axis twice")


@op("transpose", traits=(LINEAR, MOVES))
def transpose(x: Any_, *, perm: tuple):
    """x with its axes in another order: axis i of the result is axis perm[i] of x.

    C1  perm has integers in [0, rank(x)), each once     (StableHLO transpose C2)
    C2  perm has one entry per axis of x
    """
    check_axes("perm", perm, x.rank)
    require(len(perm) == x.rank, "C2", f"perm {perm} has {len(perm)} entries, x has rank {x.rank}")
    return TensorSpec(tuple([x.shape[axis] for axis in perm]), x.dtype, x.device)


@transpose.maps(lambda x, perm: [Access(0, _inverse(perm))])
def _(x):
    return x


def _inverse(perm: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(sorted(range(len(perm)), key=perm.__getitem__))


@transpose.reference
def _(x, perm):
    return np.transpose(x, perm).copy()


@transpose.gradient
def _(emit, dy, perm):
    return emit.transpose(dy, perm=_inverse(perm))


transpose.samples((4, 7), perm=(1, 0))
transpose.samples((2, 3, 5), perm=(2, 0, 1))
transpose.samples((2, 3, 4, 5), perm=(0, 2, 1, 3))
transpose.samples((1, 3, 5), perm=(1, 0, 2))
transpose.samples((4, 7), perm=(0, 1))
transpose.samples((0, 3), perm=(1, 0))
transpose.samples((), perm=())


@op("slice", traits=(LINEAR, MOVES))
def slice_(x: Any_, *, start: tuple, limit: tuple, step: tuple = ()):
    """The elements of x from start on, up to limit, which is not among them, by step along each axis; a step of () is 1.

    C1  start, limit and step are integers, one for each axis of x   (StableHLO slice C2)
    C2  0 <= start <= limit <= size of the axis                      (StableHLO slice C3)
    C3  step >= 1                                                    (StableHLO slice C4)
    """
    for name, entries in (("start", start), ("limit", limit), ("step", step or (1,) * x.rank)):
        require(
            len(entries) == x.rank, "C1", f"{name} {entries} has {len(entries)} entries, x has rank {x.rank}"
        )
        require(all(map(is_integer, entries)), "C1", f"{name} {entries} is not of integers")
    for axis, (first, last, size) in enumerate(zip(start, limit, x.shape)):
        require(
            0 <= first <= last and last <= size,
            "C2",
            f"axis {axis} is taken from {first} to {last}, expected 0 <= start <= limit <= {size}",
        )
    require(all(by >= 1 for by in step), "C3", f"step {step} has one under 1")
    return TensorSpec(
        tuple([len(range(*taken)) for taken in zip(start, limit, step or (1,) * x.rank)]), x.dtype, x.device
    )


@slice_.normalizer
def _(operands, attrs):
    return {**attrs, "step": attrs.get("step") or (1,) * operands[0].rank}


@slice_.maps(lambda x, start, limit, step: [Access(0, tuple(range(len(x))), start, step)])
def _(x):
    return x


@slice_.reference
def _(x, start, limit, step):
    return x[tuple(map(slice, start, limit, step))].copy()


@slice_.gradient
def _(emit, dy, x, start, limit, step):
    """The elements back where they came from, and zeros between and around them."""
    if dy.shape == x.shape:
        return dy
    taken = [(n - 1) * by + 1 if n else 0 for n, by in zip(dy.shape, step)]
    high = tuple([size - first - count for size, first, count in zip(x.shape, start, taken)])
    return emit.pad(dy, value=0.0, low=start, high=high, interior=tuple([by - 1 for by in step]))


slice_.samples((9,), start=(2,), limit=(7,), step=(1,))
slice_.samples((4, 7), start=(1, 0), limit=(3, 7), step=(1, 1))
slice_.samples((4, 7), start=(0, 1), limit=(4, 7), step=(3, 2))
slice_.samples((2, 3, 5), start=(1, 0, 2), limit=(2, 3, 5), step=(1, 2, 1))
slice_.samples((4, 7), start=(2, 3), limit=(2, 7), step=(1, 1))
slice_.samples((0, 3), start=(0, 1), limit=(0, 3), step=(1, 1))
slice_.samples((), start=(), limit=(), step=())


@op("reverse", traits=(LINEAR,))
def reverse(x: Any_, *, dims: tuple):
    """x backwards along some of its axes.

    C1  dims are integers in [0, rank(x)), each once     (StableHLO reverse C2, C3)
    """
    check_axes("dims", dims, x.rank)
    return x


def _reverse_access(x, dims):
    axes = tuple(range(len(x)))
    starts = tuple([size - 1 if axis in dims else 0 for axis, size in enumerate(x)])
    return [Access(0, axes, starts, tuple([-1 if axis in dims else 1 for axis in axes]))]


@reverse.maps(_reverse_access)
def _(x):
    return x


@reverse.reference
def _(x, dims):
    return np.flip(x, dims).copy()


@reverse.gradient
def _(emit, dy, dims):
    return emit.reverse(dy, dims=dims)


reverse.samples((7,), dims=(0,))
reverse.samples((4, 7), dims=(1,))
reverse.samples((2, 3, 5), dims=(0, 2))
reverse.samples((4, 7), dims=())
reverse.samples((0, 3), dims=(0,))
reverse.samples((1, 3), dims=(0, 1))
