"""Index maps: where a value is made or read, at each point of a domain. Each coordinate is affine in the point.

A reshape reads the element in the same row-major position. Seen from another shape, a position's coordinates are affine if axes
of the domain split and merge as those of the shapes do; a domain is refined until they are.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

from ..ops import record
from ..ops.schema import Access, schema_of
from ..types import AttrPack, OpKind, TensorDesc, numel, row_major
from .region import RegionOp

NAMES = "ijklmn"  # of the domain's axes, in words


class Coordinate(NamedTuple):
    """`start`, and `step` for each step of an axis of the domain, for each (axis, step) of `terms`, whose steps are not 0."""

    start: int = 0
    terms: tuple[tuple[int, int], ...] = ()


Shape = Sequence[int]
IndexMap = tuple[Coordinate, ...]  # of each axis of a tensor
STILL = Coordinate()


class Refine(Exception):
    """An axis of the domain has to become two, of which the inner one has so many elements."""

    def __init__(self, axis: int, inner: int) -> None:
        self.axis, self.inner = axis, inner


class NoFactoring(Exception):
    """No axes serve both shapes: the one that a value is made in, and the one that it is read in."""


def accesses_of(op: RegionOp, tensors: Sequence[TensorDesc]) -> tuple[Access, ...]:
    """What a map op's scalar function is called with, among these tensors."""
    shapes = tuple([tensors[t].shape if t >= 0 else None for t in op.inputs])
    return _accesses(op.kind, op.attrs, shapes, tensors[op.outputs[0]].rank, record.schema_epoch)


@lru_cache(maxsize=8192)
def _accesses(
    kind: OpKind, attrs: AttrPack, shapes: tuple[tuple[int, ...] | None, ...], rank: int, schema_epoch: int
) -> tuple[Access, ...]:
    """Each prefix of a region is read anew, and each op of it asked."""
    return schema_of(kind).accesses(shapes, rank, attrs)


def operand_map(
    access: Access, result: IndexMap, shape: Shape, extents: Shape, domain: Shape = ()
) -> IndexMap:
    """How an operand of this shape is read where an op's result, of these extents, is made like `result`. Nothing moves along an
    axis of size 1."""
    if access.in_order:
        return coordinates(position(result, extents), shape, domain)
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


def points(domain: Shape) -> Coordinate:
    """The row-major position of a point."""
    return Coordinate(
        0, tuple([(a, s) for a, (s, n) in enumerate(zip(row_major(tuple(domain)), domain)) if n != 1])
    )


def whole(shape: Shape, domain: Shape) -> IndexMap:
    """Of a tensor whose elements are the points of a domain, in their order. Raises Refine, or NoFactoring."""
    if tuple(shape) == tuple(domain):
        return tuple([Coordinate(0, ((axis, 1),)) if n != 1 else STILL for axis, n in enumerate(shape)])
    return coordinates(points(domain), shape, domain)


def position(at: IndexMap, shape: Shape) -> Coordinate:
    """The row-major position of an element."""
    first, steps = 0, dict[int, int]()
    for (start, terms), stride in zip(at, row_major(tuple(shape))):
        first += start * stride
        for axis, step in terms:
            steps[axis] = steps.get(axis, 0) + step * stride
    return Coordinate(first, tuple([(axis, step) for axis, step in sorted(steps.items()) if step]))


def coordinates(position: Coordinate, shape: Shape, domain: Shape) -> IndexMap:
    """Of the element in a row-major position. Raises Refine, or NoFactoring."""
    if 0 in domain or not numel(tuple(shape)):
        return (STILL,) * len(shape)
    rest, starts = position.start, []
    strides = row_major(tuple(shape))
    for stride in strides:
        starts.append(rest // stride)
        rest %= stride
    terms: list[list[tuple[int, int]]] = [[] for _ in shape]
    for axis, by in position.terms:
        place = next((i for i, (s, n) in enumerate(zip(strides, shape)) if n != 1 and s <= abs(by)), None)
        if place is None or by % strides[place]:
            raise NoFactoring
        step, size = by // strides[place], shape[place]
        if abs(step) * (domain[axis] - 1) >= size:  # it goes on into the next axis to the left
            inner = size // abs(step)
            if size % abs(step) or domain[axis] % inner or not 1 < inner < domain[axis]:
                raise NoFactoring
            raise Refine(axis, inner)
        terms[place].append((axis, step))
    for start, along, size in zip(starts, terms, shape):
        ends = [step * (domain[axis] - 1) for axis, step in along]
        if start + sum(e for e in ends if e < 0) < 0 or start + sum(e for e in ends if e > 0) >= size:
            raise NoFactoring
    return tuple([Coordinate(start, tuple(along)) for start, along in zip(starts, terms)])


def told(at: IndexMap) -> str:
    """In words of the domain's point: `[i, 4 - j]`."""
    return "[" + ", ".join(map(_told, at)) + "]"


def _told(coordinate: Coordinate) -> str:
    words = [str(coordinate.start)] * bool(coordinate.start or not coordinate.terms)
    for axis, step in coordinate.terms:
        name = NAMES[axis] if axis < len(NAMES) else f"x{axis}"
        word = name if abs(step) == 1 else f"{abs(step)}*{name}"
        words += [("+ " if step > 0 else "- ") + word if words else word if step > 0 else "-" + word]
    return " ".join(words)
