"""Index maps: where a value is read, or made, at each point of a domain. Each coordinate is affine in the point."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from ..ops.schema import Access


class Coordinate(NamedTuple):
    """`start`, and `step` for each step of an axis of the domain, for each (axis, step) of `terms`. Steps are not 0."""

    start: int = 0
    terms: tuple[tuple[int, int], ...] = ()


IndexMap = tuple[Coordinate, ...]  # of each axis of a tensor
STILL = Coordinate()
NAMES = "ijklmn"  # of the domain's axes, in words


def identity(rank: int) -> IndexMap:
    """Of a value that has the domain's axes."""
    return tuple([Coordinate(0, ((axis, 1),)) for axis in range(rank)])


def operand_map(access: Access, result: IndexMap, shape: Sequence[int], extents: Sequence[int]) -> IndexMap:
    """How an operand of this shape is read where an op's result is made like `result`. Nothing moves along an axis of size 1.

    extents  of the result: an axis of one element stays at its start
    """
    found = []
    for (follows, start, step), size in zip(access.walked(), shape):
        found.append(STILL if size == 1 else follow(result, extents, follows, start, step))
    return tuple(found)


def follow(result: IndexMap, extents: Sequence[int], axis: int, start: int = 0, step: int = 1) -> Coordinate:
    """`start`, and `step` for each step of an axis of a result that is made like `result`."""
    if axis < 0 or extents[axis] == 1:
        return Coordinate(start)
    begin, terms = result[axis]
    return Coordinate(start + step * begin, tuple([(along, step * by) for along, by in terms]))


def told(at: IndexMap) -> str:
    """In words of the domain's point: `[i, 4 - j]`."""
    return "[" + ", ".join(map(_told, at)) + "]"


def _told(coordinate: Coordinate) -> str:
    text = ""
    for axis, step in coordinate.terms:
        name = NAMES[axis] if axis < len(NAMES) else f"x{axis}"
        by = name if abs(step) == 1 else f"{abs(step)}{name}"
        text += f" {'-' if step < 0 else '+'} {by}" if text or step < 0 else by
    if not text:
        return str(coordinate.start)
    return (
        f"{coordinate.start}{' + ' * (coordinate.terms[0][1] > 0)}{text}".lstrip()
        if coordinate.start
        else text.lstrip()
    )
