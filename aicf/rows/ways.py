"""In which ways a map makes its values: where each is, at each point of the domain, found from the last op back.

Most are made in one way. What is read in several, such as a row and the same row reversed, is computed once for each.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple

from ..ops.schema import VIEW, Access, schema_of
from ..types import TensorDesc, numel
from .index_map import (
    Coordinate,
    IndexMap,
    NoFactoring,
    Refine,
    accesses_of,
    follow,
    operand_map,
    told,
    whole,
)
from .program import Shape
from .region import RegionOp
from .reject import Reject

MOST_WAYS = 4  # of one op


class Unreadable(Exception):
    """A region that a reader can't read: the condition, and why."""

    def __init__(self, condition: str, reason: str) -> None:
        self.reject = Reject(condition, reason)


class Test(NamedTuple):
    """That a coordinate of the domain's points lies in an axis of a tensor."""

    coordinate: Coordinate
    tensor: int
    axis: int


class Place(NamedTuple):
    """Where a value is made, at each point of the domain; and the tests without which nobody wants it there.

    at  None: its elements are the points of the domain, in their order, whatever its shape
    """

    at: IndexMap | None
    tests: tuple[Test, ...] = ()

    def coordinates(self, shape: Shape, domain: Shape) -> IndexMap:
        return whole(shape, domain) if self.at is None else self.at

    def __str__(self) -> str:
        return ("in order" if self.at is None else told(self.at)) + " under a mask" * bool(self.tests)


WHOLE = Place(None)


class Ways(NamedTuple):
    """factors  of each axis that the domain's tensor has: the axes that it is split into
    domain   all of these axes
    of_op    in which ways each op's results are made
    """

    factors: tuple[Shape, ...]
    domain: Shape
    of_op: tuple[tuple[Place, ...], ...]


def infer_index_maps(
    ops: Sequence[RegionOp], tensors: Sequence[TensorDesc], shape: Shape, outside: Collection[int], leaving: Collection[int],
    core_result: int | None, core_input: int | None,
) -> Ways:  # fmt: skip
    """How ops make their values over a domain of this shape; Unreadable if some can't be.

    outside  tensors that are read from memory
    leaving  those that are stored
    """
    factors: list[list[int]] = [[size] for size in shape]
    while True:
        domain = tuple([size for group in factors for size in group])
        try:
            return _Tracer(ops, tensors, domain, shape, outside, leaving, core_result).traced(
                factors, core_input
            )
        except Refine as split:
            axis = split.axis
            for group in factors:
                if axis < len(group):
                    group[axis : axis + 1] = [group[axis] // split.inner, split.inner]
                    break
                axis -= len(group)


class _Tracer:
    def __init__(
        self, ops: Sequence[RegionOp], tensors: Sequence[TensorDesc], domain: Shape, shape: Shape, outside: Collection[int],
        leaving: Collection[int], core_result: int | None,
    ) -> None:  # fmt: skip
        self.ops, self.tensors, self.domain, self.shape = ops, tensors, domain, shape
        self.outside, self.leaving, self.core_result = outside, leaving, core_result
        self.ways: dict[int, dict[Place, None]] = {}
        self.reshaped = any(VIEW in schema_of(op.kind).traits for op in ops)

    def traced(self, factors: Sequence[Sequence[int]], core_input: int | None) -> Ways:
        if core_input is not None and core_input not in self.outside:
            self._check_whole(core_input, "what is reduced")
            self._note(core_input, WHOLE)
        found: list[tuple[Place, ...]] = []
        for op in reversed(self.ops):
            found.append(self._of(op))
            for at in found[-1]:
                self._operands(op, at)
        if self.core_result is not None:
            self._check_whole(self.core_result, "the core")
            for at in self.ways.get(self.core_result, ()):
                if at != WHOLE:
                    raise Unreadable(
                        "access",
                        f"what the core makes, {self.tensors[self.core_result]}, is read at {at}, where it is not made",
                    )
        return Ways(tuple(map(tuple, factors)), self.domain, tuple(reversed(found)))

    def _of(self, op: RegionOp) -> tuple[Place, ...]:
        """What is stored is made where it is stored, and so is what nobody reads."""
        ways = {at: None for t in op.outputs for at in self.ways.get(t, ())}
        for t in op.outputs:
            if t in self.leaving or not ways:
                self._check_whole(t, op.kind.name)
                ways[WHOLE] = None
        first, second, *_ = *map(str, ways), ""
        if len(ways) > MOST_WAYS:
            raise Unreadable(
                "access",
                f"{op.kind} is read in {len(ways)} ways, such as {first} and {second}, at most {MOST_WAYS}",
            )
        if len(ways) > 1 and any(how == "must" for _, how in schema_of(op.kind).alias.values()):
            raise Unreadable(
                "access", f"{op.kind} writes in place, and is read in two ways: {first} and {second}"
            )
        return tuple(ways)

    def _operands(self, op: RegionOp, at: Place) -> None:
        for access in accesses_of(op, self.tensors):
            if access.operand is None:
                self._check_index(op, access, at)
            else:
                t = op.inputs[access.operand]
                if (access.spread or access.index) and t not in self.outside:
                    how = "by index" if access.index else "at every so many points"
                    raise Unreadable(
                        "access", f"{op.kind} reads {self.tensors[t]} {how}, and the region makes it"
                    )
                try:
                    found = read_at(op, access, at, self.tensors, self.domain)
                    if found.at is None and t in self.outside and not self.tensors[t].contiguous:
                        whole(self.tensors[t].shape, self.domain)
                except NoFactoring:
                    if not (t in self.outside and access.in_order and self.tensors[t].contiguous):
                        raise self._no_factoring(op, t, access) from None
                else:
                    if t not in self.outside:
                        self._note(t, found)

    def _check_index(self, op: RegionOp, access: Access, at: Place) -> None:
        """That an index along some axes of an op's result has coordinates over the domain."""
        shape = self.tensors[op.outputs[0]].shape
        if is_whole(access, shape):
            return
        try:
            at.coordinates(shape, self.domain)
        except NoFactoring:
            raise Unreadable(
                "domain", f"no axes serve both {shape}, which {op.kind} makes, and {self.domain}"
            ) from None

    def _no_factoring(self, op: RegionOp, t: int, access: Access) -> Unreadable:
        made, read = self.tensors[op.outputs[0]].shape, self.tensors[t].shape
        first = f"{read}, which {op.kind} reads," if access.in_order else f"{made}, which {op.kind} makes,"
        return Unreadable(
            "domain", f"no axes serve both {first} and {made if access.in_order else self.domain}"
        )

    def _note(self, t: int, at: Place) -> None:
        self.ways.setdefault(t, {})[at] = None

    def _check_whole(self, t: int, who: str) -> None:
        shape = self.tensors[t].shape
        if shape != self.shape and not (self.reshaped and numel(shape) == numel(self.shape)):
            raise Unreadable("domain", f"{who} makes {shape}, the domain is {self.shape}")


def is_whole(access: Access, shape: Shape) -> bool:
    """Whether an access of the result's own shape is each element's place in row-major order."""
    return access.in_order or (access.axes == tuple(range(len(shape))) and access.plain)


def read_at(
    op: RegionOp, access: Access, place: Place, tensors: Sequence[TensorDesc], domain: Shape
) -> Place:
    """Where an operand is read, of an op whose result is made so. Raises Refine, or NoFactoring."""
    extents = tensors[op.outputs[0]].shape
    t = op.outputs[0] if access.operand is None else op.inputs[access.operand]
    shape = tensors[t].shape
    in_place = shape == extents and is_whole(access, shape)
    if place.at is None and (access.in_order or in_place):
        return place
    at = place.coordinates(extents, domain)
    steps = list(access.walked())
    own = [Test(follow(at, extents, *steps[axis]), t, axis) for axis in access.bounded]
    tests = tuple(dict.fromkeys((*place.tests, *own)))
    found = operand_map(access, at, shape, extents, domain)
    in_order = shape == domain and found == whole(shape, domain)  # said in two ways, and one place
    return Place(None if in_order else found, tests)
