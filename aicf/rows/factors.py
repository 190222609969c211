"""Axes that a reshape split into factors, fitted to the cores around which maps stand."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate, chain
from operator import mul

from .program import Gemm, Map, Reduction, Shape, collapse
from .reject import Reject

Groups = tuple[Shape, ...]  # of each axis of a tensor, the domain's axes that it is made of


def merged(m: Map, factors: Groups) -> tuple[Map, Groups]:
    """The map with neighbouring factors of an axis as one, where every load walks them as one."""
    groups: list[Shape] = []
    strides: list[list[int]] = [[] for _ in m.loads]
    first = 0
    for group in factors:
        found, walks = collapse(group, [load.strides[first : first + len(group)] for load in m.loads])
        groups.append(found)
        for steps, walk in zip(strides, walks):
            steps += walk
        first += len(group)
    return _walked(m, groups, strides), tuple(groups)


def _walked(m: Map, groups: Sequence[Shape], strides: Sequence[Sequence[int]]) -> Map:
    loads = tuple([load._replace(strides=tuple(steps)) for load, steps in zip(m.loads, strides)])
    return replace(m, shape=tuple(chain.from_iterable(groups)), loads=loads)


def around_reduction(
    core: Reduction, before: Map, before_of: Groups, after: Map, after_of: Groups
) -> tuple[Reduction, Map, Map] | Reject:
    """With an axis that is kept split the same way before and after the reduction."""
    before, before_of = merged(before, before_of)
    after, after_of = merged(after, after_of)
    keepdims, places = len(after_of) == len(before_of), iter(range(len(after_of)))
    fine, behind, axes = list[Shape](), list[Shape](), list[int]()
    for axis, group in enumerate(before_of):
        if axis in core.axes:
            axes += range(sum(map(len, fine)), sum(map(len, fine)) + len(group))
            fine.append(group)
            if keepdims:
                next(places)
                behind.append((1,) * len(group))
            continue
        other = after_of[next(places)]
        common = _common(group, other)
        if common is None:
            return Reject("domain", f"an axis is split into {group} before the reduction, {other} after it")
        fine.append(common)
        behind.append(common)
    return replace(core, axes=tuple(axes)), _split(before, before_of, fine), _split(after, after_of, behind)


def around_gemm(gemm: Gemm, after: Map, factors: Groups) -> tuple[Gemm, Map] | Reject:
    """With rows in several axes as a batch of fewer rows: b is the same for all of it."""
    after, (*batch, rows, columns) = merged(after, factors)
    if len(columns) > 1:
        return Reject("domain", f"{gemm.n} columns of the product are read as {columns}")
    outer = [*batch, rows]

    def steps(of: Shape) -> Shape:
        return tuple([s * by for s, group in zip(of, outer) for by in _strides(group)])

    still = (*gemm.b_steps[:-2], 0)  # b has no rows
    return gemm._replace(
        m=rows[-1],
        batch=(*chain.from_iterable(batch), *rows[:-1]),
        a_steps=(*steps(gemm.a_steps), gemm.a_steps[-1]),
        b_steps=(*steps(still)[:-1], *gemm.b_steps[-2:]),
        c_steps=(*steps(gemm.c_steps), gemm.c_steps[-1]),
    ), after


def _strides(group: Shape) -> list[int]:
    """Of a group's axes, in elements of the axis that they make up."""
    return list(accumulate(reversed(group[1:]), mul, initial=1))[::-1]


def _common(a: Shape, b: Shape) -> Shape | None:
    """The fewest factors that make up those of both, if there are such."""
    left, right, made = list(a), list(b), list[int]()
    while left and right:
        x, y = left.pop(), right.pop()
        size = min(x, y)
        if max(x, y) % size:
            return None
        made.append(size)
        left += [x // size] if x > size else []
        right += [y // size] if y > size else []
    return tuple(reversed(made))


def _split(m: Map, groups: Groups, finer: Sequence[Shape]) -> Map:
    """The map over finer factors."""
    strides: list[list[int]] = [[] for _ in m.loads]
    first = 0
    for group, fine in zip(groups, finer):
        places = _strides(group)
        for steps, load in zip(strides, m.loads):
            own = load.strides[first : first + len(group)]
            for by in _strides(fine):
                # the innermost of the group's axes that this one is a part of
                inside = next((k for k, place in enumerate(places) if by >= place), len(places) - 1)
                steps.append(own[inside] * (by // places[inside]) if own else 0)
        first += len(group)
    return _walked(m, finer, strides)
