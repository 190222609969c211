"""Reading a region as a Program: which ops are the core, what stands around it, how every value is walked, what is rounded."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from ..ops import record
from ..ops.schema import Access, schema_of
from ..rows import RegionOp, RegionSpec
from ..types import AttrPack, DType, OpKind, TensorDesc
from .by_form import by_form
from .cores import core_of, tail_of
from .index_map import STILL, Coordinate, IndexMap, follow, identity, operand_map, told
from .outline import Extent, MapOutline, Mask, Outline, Position, Source, Walk
from .program import Apply, Bound, ColumnSums, Program, Shape
from .steps import steps_of
from .variant import Reject


def read(region: RegionSpec) -> Program | Reject:
    """The region as a Program; or at which op, and why, it is none."""
    known = region.__dict__.get("_program")  # every kernel asks: a region that was read remembers it
    if known is None or known[0] != record.removals:
        known = record.removals, by_outline(region, "outline", _outlined)
        object.__setattr__(region, "_program", known)
    return known[1]


def by_outline(region: RegionSpec, name: str, outlined: Callable[[RegionSpec], Any]) -> Any:
    """What a reading of regions makes of this one. `outlined` gives a Reject, or what has a `program`; it is asked once for all
    regions of a form, where ops don't find accesses by sizes."""
    key = name, record.removals, _own_accesses(region) if _any_own(region) else ()
    outline = region.form.known.get(key)
    if outline is None:
        outline = region.form.known[key] = outlined(region)
    if not isinstance(outline, Reject):
        return outline.program(region)
    again = outlined(region)  # the same, with the sizes of this region in its words
    assert isinstance(again, Reject)
    return again


@by_form
def _any_own(region: RegionSpec) -> bool:
    return any(schema_of(op.kind).access_fn is not None for op in region.ops)


def _own_accesses(region: RegionSpec) -> tuple[tuple[Access, ...], ...]:
    return tuple([own_accesses(op, region.tensors) for op in region.ops])


def own_accesses(op: RegionOp, tensors: Sequence[TensorDesc]) -> tuple[Access, ...]:
    """Of an op that finds them by itself: from the sizes, for all that is known; none of one that aligns its operands."""
    return () if schema_of(op.kind).access_fn is None else accesses_of(op, tensors)


def accesses_of(op: RegionOp, tensors: Sequence[TensorDesc]) -> tuple[Access, ...]:
    """What a map op's scalar function is called with, among these tensors."""
    shapes = tuple([tensors[t].shape if t >= 0 else None for t in op.inputs])
    return _accesses(op.kind, op.attrs, shapes, tensors[op.outputs[0]].rank, record.removals)


@lru_cache(maxsize=8192)
def _accesses(
    kind: OpKind, attrs: AttrPack, shapes: tuple[Shape | None, ...], rank: int, removals: int
) -> tuple[Access, ...]:
    """Each prefix of a region is read anew, and each op of it asked."""
    return schema_of(kind).accesses(shapes, rank, attrs)


def _outlined(region: RegionSpec) -> Outline | Reject:
    cores = [i for i, op in enumerate(region.ops) if not schema_of(op.kind).is_map]
    tail = region.ops[-1] if len(cores) == 2 and _ends_in_tail(region, cores) else None
    if len(cores) > 1 and tail is None:
        first, second = (region.ops[i].kind for i in cores[:2])
        return Reject("core", f"{first} and {second} need a kernel each")
    if tail is not None and region.strict:
        return Reject("strict", f"{tail.kind} beside a product adds up in another order than alone")
    reader = _Reader(region)
    try:
        if not cores:
            return reader.checked(Outline(None, None, reader.map(region.ops, region.ops[-1].outputs[0])))
        at = cores[0]
        after = region.ops[at + 1 :] if tail is None else region.ops[at + 1 : -1]
        return reader.checked(reader.around(region.ops[:at], region.ops[at], after, tail))
    except _Unreadable as reason:
        return reason.reject


def _ends_in_tail(region: RegionSpec, cores: Sequence[int]) -> bool:
    """A core, maps, and a reduction that the core's kernel does on the way."""
    first, last = (region.ops[i] for i in cores)
    core = core_of(first.kind)
    return last is region.ops[-1] and core is not None and core.name in tail_of(last, region.tensors)


def jumps(op: RegionOp, tensors: Sequence[TensorDesc]) -> bool:
    """Whether a rounding error of what the op reads may change its result by a jump."""
    operands, results = ([tensors[t].dtype for t in ts if t >= 0] for ts in (op.inputs, op.outputs))
    return schema_of(op.kind).jumps(operands, results)


def exposed_by(ops: Sequence[RegionOp], tensors: Sequence[TensorDesc]) -> Iterator[int]:
    """Values whose own type is seen: what a convert made, and what an op reads whose result may jump."""
    for op in ops:
        if op.kind.name == "convert":
            yield from op.outputs
        if jumps(op, tensors):
            yield from op.inputs


# --- reading ----------------------------------------------------------------------------------------------------------


class _Unreadable(Exception):
    def __init__(self, condition: str, reason: str) -> None:
        self.reject = Reject(condition, reason)


class Test(NamedTuple):
    """That a coordinate of the domain's points lies in an axis of a tensor."""

    coordinate: Coordinate
    tensor: int
    axis: int


class Place(NamedTuple):
    """Where a value is made, at each point of the domain; and the tests without which nobody wants it there."""

    at: IndexMap
    tests: tuple[Test, ...] = ()


class _Reader:
    """One region on the way to a Program. Tensors beyond the region's own stand between the parts of one op."""

    def __init__(self, region: RegionSpec) -> None:
        self.region = region
        self.tensors: list[TensorDesc] = list(region.tensors)
        self.position = {t: p for p, t in enumerate(region.inputs)}
        self.stored: dict[int, list[int]] = {}
        for p, t in enumerate(region.outputs):
            self.stored.setdefault(t, []).append(p)
        self.inner: set[int] = set()  # tensors that are no op's result: never rounded for being one
        self.leaving: tuple[tuple[int, int], ...] = ()  # the core's results that it writes itself

    def checked(self, program: Outline) -> Outline:
        """Every result of the region is written by one of the maps."""
        written = {p for m in (program.before, program.after) if m for _, p in m.stores}
        written.update(p for _, p in self.leaving)
        if program.tail is not None:
            written.add(program.tail.result)
        for p, t in enumerate(self.region.outputs):
            if p not in written:
                raise _Unreadable(
                    "results", f"result {p} ({self.tensors[t]}) leaves the region before its last value"
                )
        return program

    def around(
        self, before: Sequence[RegionOp], op: RegionOp, after: Sequence[RegionOp], last: RegionOp | None
    ) -> Outline:
        """A core with maps around it. `last`: its fused epilogue reduction."""
        before, op, after = self._unfolded(before, op, after)
        core = core_of(op.kind)
        if core is None or core.wide:
            raise _Unreadable("core", f"{op.kind} has a kernel of its own")
        said = core.called(op.kind)
        if core.prologue is None and before:
            raise _Unreadable("core", f"{before[0].kind} comes before {said}")
        if not core.epilogue and after:
            raise _Unreadable("core", f"{after[0].kind} comes after {said}")
        places: list[int | None] = []
        for n, t in enumerate(op.inputs):
            if t >= 0 and n != core.prologue and t not in self.position:
                raise _Unreadable("core", f"{said} reads a value of the region")
            places.append(None if n == core.prologue else self.position.get(t))
        y, *others = op.outputs
        self.leaving = tuple([(n, p) for n, t in enumerate(others, 1) for p in self.stored.get(t, ())])
        sized = op._replace(outputs=tuple([self._sized(t) for t in op.outputs]))
        made = core.outline(sized, self.tensors, tuple(places), self.leaving)
        x = None if core.prologue is None else op.inputs[core.prologue]
        first = None if x is None else self.map(before, x, fed=x)
        if last is None:
            return Outline(made, first, self.map(after, y, carried=y))
        fed, shape = last.inputs[0], self.tensors[y].shape
        if self.tensors[fed].shape != shape:
            found = self.tensors[fed].shape
            raise _Unreadable("domain", f"columns of {found} are added up, {said} is {shape}")
        return Outline(made, first, self.map(after, y, carried=y, fed=fed), self._sums(last.outputs[0]))

    def _unfolded(
        self, before: Sequence[RegionOp], op: RegionOp, after: Sequence[RegionOp]
    ) -> tuple[Sequence[RegionOp], RegionOp, Sequence[RegionOp]]:
        """With an op that expands to maps around one core as these. What is between them is rounded nowhere."""
        steps = steps_of(op, self.tensors)
        cores = [] if steps is None else [n for n, s in enumerate(steps.ops) if not schema_of(s.kind).is_map]
        if steps is None or len(cores) != 1:
            return before, op, after
        self.inner.update(range(len(self.tensors), len(self.tensors) + len(steps.between)))
        self.tensors += steps.between
        for t, value in steps.again.items():  # whoever stores the one stores the other's value
            self.stored.setdefault(value, []).extend(self.stored.pop(t, []))
        (at,) = cores
        return [*before, *steps.ops[:at]], steps.ops[at], [*steps.ops[at + 1 :], *after]

    def _sized(self, t: int) -> int:
        """A tensor of the region with the shape of this one."""
        shape = self.tensors[t].shape
        found = (n for n, desc in enumerate(self.region.tensors) if desc.shape == shape)
        if (like := next(found, None)) is None:
            raise _Unreadable("domain", f"no tensor of the region has the shape {shape}")
        return t if t < len(self.region.tensors) else like

    def _sums(self, y: int) -> ColumnSums:
        if len(self.stored.get(y, ())) != 1:
            raise _Unreadable(
                "results", f"sums of columns ({self.tensors[y]}) leave {len(self.stored.get(y, ()))} times"
            )
        return ColumnSums(self.stored[y][0], self.tensors[y].dtype)

    # --- one map --------------------------------------------------------------------------------------------------------

    def map(
        self, ops: Sequence[RegionOp], domain: int, carried: int | None = None, fed: int | None = None
    ) -> MapOutline:
        """These ops over the shape of a tensor. `carried`: the tensor that a core hands over; `fed`: that it takes."""
        shape = self.tensors[domain].shape
        walks = self._walks(ops, shape, carried, fed)
        slots: dict[Any, int] = {} if carried is None else {carried: 0}
        dtypes = [] if carried is None else [self.tensors[carried].dtype]
        loads: list[Source] = []

        def slot(load: Source) -> int:
            if load not in slots:
                slots[load] = len(dtypes)
                loads.append(load)
                dtypes.append(load.dtype)
            return slots[load]

        arguments: list[list[Any]] = []
        own = {carried, *(t for op in ops for t in op.outputs)}
        for op in ops:
            keys = self._arguments(op, walks[op.outputs[0]], slot)
            for key in keys:
                if isinstance(key, int) and key not in own:
                    raise _Unreadable("core", f"{op.kind} reads a value from before the core")
            arguments.append(keys)
            # results are numbered after all loads; until then they are known by their tensors
        if fed is not None and fed not in own and fed not in self.position:
            raise _Unreadable("core", f"{self.tensors[fed]} is made before the maps that end in its sums")
        if fed is not None and fed in self.position:
            key = self._external(fed, walks[fed].at)
            slot(key)
        applies = []
        for op, keys in zip(ops, arguments):
            ins = tuple(slots[key] for key in keys)
            for t in op.outputs:
                slots[t] = len(dtypes)
                dtypes.append(self.tensors[t].dtype)
            applies.append(Apply(op.kind, op.attrs, ins, tuple(slots[t] for t in op.outputs)))
        made = [t for op in ops for t in op.outputs] + ([] if carried is None else [carried])
        stores = tuple((slots[t], p) for t in made for p in self.stored.get(t, ()))
        last = None if fed is None else slots[fed] if fed not in self.position else slots[key]
        exposed = set(exposed_by(ops, self.tensors))
        rounded = frozenset(slots[t] for t in made if self._is_rounded(t, exposed))
        return MapOutline(
            self._sized(domain),
            int(carried is not None),
            tuple(loads),
            tuple(applies),
            tuple(dtypes),
            rounded,
            stores,
            last,
        )

    def _walks(
        self, ops: Sequence[RegionOp], shape: Shape, carried: int | None, fed: int | None
    ) -> dict[int, Place]:
        """Of each tensor, where it is made at each point of the domain; found from the last op back."""
        walks: dict[int, Place] = {}

        def note(t: int, place: Place) -> None:
            if t in self.position or (known := walks.setdefault(t, place)) == place:
                return
            desc = self.tensors[t]
            if known.at == place.at:
                raise _Unreadable(
                    "access", f"{desc} is read in two ways: under a mask, and under none or another"
                )
            raise _Unreadable(
                "access", f"{desc} is read in two ways: at {told(known.at)} and {told(place.at)}"
            )

        whole = Place(tuple([c if size != 1 else STILL for c, size in zip(identity(len(shape)), shape)]))
        if fed is not None:
            note(fed, whole)
            walks.setdefault(fed, whole)
        for op in reversed(ops):
            for t in op.outputs:
                if t not in walks or self.stored.get(t):
                    if self.tensors[t].shape != shape:
                        raise _Unreadable(
                            "domain", f"{op.kind} makes {self.tensors[t].shape}, the domain is {shape}"
                        )
                    note(t, whole)
                if walks[t] != walks[op.outputs[0]]:
                    raise _Unreadable("access", f"results of {op.kind} are read in two ways")
            place, extents = walks[op.outputs[0]], self.tensors[op.outputs[0]].shape
            for access in accesses_of(op, self.tensors):
                if access.operand is None:
                    continue
                t = op.inputs[access.operand]
                if (access.spread or access.index) and t not in self.position:
                    how = "by index" if access.index else "at every so many points"
                    raise _Unreadable(
                        "access", f"{op.kind} reads {self.tensors[t]} {how}, and the region makes it"
                    )
                at = operand_map(access, place.at, self.tensors[t].shape, extents)
                note(t, Place(at, self._tests(access, t, place, extents)))
        if carried is not None:
            if self.tensors[carried].shape != shape:
                raise _Unreadable(
                    "domain", f"the core makes {self.tensors[carried].shape}, the domain is {shape}"
                )
            note(carried, whole)
        return walks

    def _tests(self, access: Access, t: int, place: Place, extents: Shape) -> tuple[Test, ...]:
        """What must be inside of what for a read to have an element: of its op's result, and of its own."""
        steps = list(access.walked())
        own = [Test(follow(place.at, extents, *steps[axis]), t, axis) for axis in access.bounded]
        return tuple(dict.fromkeys((*place.tests, *own)))

    def _arguments(self, op: RegionOp, place: Place, slot: Callable[[Source], int]) -> list[Source | int]:
        """What an op whose result is made like `place` is called with: loads, which `slot` numbers, or tensors that the map makes."""
        extents, accesses = self.tensors[op.outputs[0]].shape, accesses_of(op, self.tensors)
        keys: list[Source | int] = []
        for access in accesses:
            if access.operand is None:
                like = next(t for t, desc in enumerate(self.tensors) if desc.shape == extents)
                point = Walk(None, like, DType.i64, operand_map(access, place.at, extents, extents))
                slot(point)
                keys.append(point)
                continue
            t = op.inputs[access.operand]
            bounds = self._bounds(access, t, place, extents, slot)
            for axis, follows, start, every in access.spread:
                at = slot(Position(follow(place.at, extents, follows, -start)))
                bounds.append(Bound(at, slot(Extent(t, axis)), slot(Extent(t, axis, stride=True)), every))
            for axis, argument in access.index:
                index = self._index(op, accesses[argument], place, slot)
                size, stride = slot(Extent(t, axis)), slot(Extent(t, axis, stride=True))
                bounds.append(Bound(index, size, stride, wraps=True))
            if t in self.position:
                at_all = operand_map(access, place.at, self.tensors[t].shape, extents)
                read = self._external(t, at_all, tuple(bounds))
                slot(read)
                keys.append(read)
            else:
                keys.append(t)
            if access.masked:
                mask = Mask(tuple(bounds))
                slot(mask)
                keys.append(mask)
        return keys

    def _bounds(
        self, access: Access, t: int, place: Place, extents: Shape, slot: Callable[[Source], int]
    ) -> list[Bound]:
        """Of what is tested where a tensor is read."""
        return [
            Bound(slot(Position(test.coordinate)), slot(Extent(self._sized(test.tensor), test.axis)))
            for test in self._tests(access, t, place, extents)
        ]

    def _index(self, op: RegionOp, access: Access, place: Place, slot: Callable[[Source], int]) -> int:
        """The slot of an operand of indices."""
        assert access.operand is not None
        t, extents = op.inputs[access.operand], self.tensors[op.outputs[0]].shape
        if t not in self.position:
            raise _Unreadable(
                "access", f"{op.kind} reads at indices {self.tensors[t]}, which the region makes"
            )
        at = operand_map(access, place.at, self.tensors[t].shape, extents)
        return slot(self._external(t, at, tuple(self._bounds(access, t, place, extents, slot))))

    def _external(self, t: int, at: IndexMap, bounds: tuple[Bound, ...] = ()) -> Walk:
        return Walk(self.position[t], t, self.tensors[t].dtype, at, bounds)

    def _is_rounded(self, t: int, exposed: set[int]) -> bool:
        """Rounding points: what is stored, and `exposed`; when strict, every op's result."""
        if self.tensors[t].dtype.compute is self.tensors[t].dtype:
            return False  # its compute type is its own
        if self.stored.get(t) or (self.region.strict and t not in self.inner):
            return True
        return t in exposed
