"""Reading a region as a RegionProgram: which ops are the core, what stands around it, how every value is walked, what is rounded."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from ..ops import record
from ..ops.schema import VIEW, Access, schema_of
from ..types import AttrPack, DType, TensorDesc, numel
from .by_form import by_form
from .cores import core_of, epilogue_reduction_of
from .index_map import Coordinate, NoFactoring, accesses_of, follow, points, position
from .outline import Extent, IndexedLoad, MapOutline, Mask, Outline, Position, Source
from .program import Apply, Bound, ColumnSums, RegionProgram, Shape
from .region import RegionOp, RegionSpec
from .reject import Reject
from .steps import steps_of
from .ways import WHOLE, Place, Test, Unreadable, infer_index_maps, is_whole, read_at


def read(region: RegionSpec) -> RegionProgram | Reject:
    """The region as a RegionProgram; or at which op, and why, it is none."""
    known = region.__dict__.get("_program")  # every kernel asks: a region that was read remembers it
    if known is None or known[0] != record.schema_epoch:
        known = record.schema_epoch, by_outline(region, "outline", _outlined)
        object.__setattr__(region, "_program", known)
    return known[1]


def by_outline(region: RegionSpec, name: str, outlined: Callable[[RegionSpec], Any]) -> Any:
    """What a reading of regions makes of this one. `outlined` gives a Reject, or what has a `program`. Cached per form. The key also
    holds size-dependent accesses and expansion attributes, and all shapes if there is a reshape."""
    own: Any = _own_accesses(region) if _any_own(region) else ()
    if any(access.in_order for accesses in own for access in accesses):
        own = tuple([desc.shape for desc in region.tensors]), own
    key = name, record.schema_epoch, own, _steps_attrs(region) if _any_expands(region) else ()
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


@by_form
def _any_expands(region: RegionSpec) -> bool:
    return any(schema_of(op.kind).expand_fn is not None for op in region.ops)


def _steps_attrs(region: RegionSpec) -> tuple[AttrPack, ...]:
    """Of ops that expand: their steps may have been given sizes, as an iota is."""
    every = [steps_of(op, region.tensors) for op in region.ops]
    return tuple([step.attrs for steps in every if steps for step in steps.ops])


def _own_accesses(region: RegionSpec) -> tuple[tuple[Access, ...], ...]:
    return tuple([own_accesses(op, region.tensors) for op in region.ops])


def own_accesses(op: RegionOp, tensors: Sequence[TensorDesc]) -> tuple[Access, ...]:
    """Of an op that finds them by itself: from the sizes, for all that is known; none of one that aligns its operands."""
    return () if schema_of(op.kind).access_fn is None else accesses_of(op, tensors)


def _outlined(region: RegionSpec) -> Outline | Reject:
    cores = [i for i, op in enumerate(region.ops) if not schema_of(op.kind).is_map]
    last = region.ops[-1] if len(cores) == 2 and _ends_in_epilogue_reduction(region, cores) else None
    if len(cores) > 1 and last is None:
        first, second = (region.ops[i].kind for i in cores[:2])
        return Reject("core", f"{first} and {second} need a kernel each")
    if last is not None and region.strict:
        return Reject("strict", f"{last.kind} beside a product adds up in another order than alone")
    reader = _Reader(region)
    try:
        if not cores:
            return reader.checked(Outline(None, None, reader.map(region.ops, _domain_of(region))))
        at = cores[0]
        after = region.ops[at + 1 :] if last is None else region.ops[at + 1 : -1]
        return reader.checked(reader.around(region.ops[:at], region.ops[at], after, last))
    except Unreadable as reason:
        return reason.reject


def _domain_of(region: RegionSpec) -> int:
    """The tensor whose points a map is computed at: what its last op makes, or what that one reshapes."""
    t, outside = region.ops[-1].outputs[0], set(region.inputs)
    for op in reversed(region.ops):
        if t in op.outputs and VIEW in schema_of(op.kind).traits and op.inputs[0] not in outside:
            t = op.inputs[0]
    return t


def _ends_in_epilogue_reduction(region: RegionSpec, cores: Sequence[int]) -> bool:
    """A core, maps, and a reduction that the core's kernel does on the way."""
    first, last = (region.ops[i] for i in cores)
    core = core_of(first.kind)
    return (
        last is region.ops[-1]
        and core is not None
        and core.name in epilogue_reduction_of(last, region.tensors)
    )


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


class _Reader:
    """One region on the way to a RegionProgram. Tensors beyond the region's own stand between the parts of one op."""

    def __init__(self, region: RegionSpec) -> None:
        self.region = region
        self.tensors: list[TensorDesc] = list(region.tensors)
        self.position = {t: p for p, t in enumerate(region.inputs)}
        self.stored: dict[int, list[int]] = {}
        for p, t in enumerate(region.outputs):
            self.stored.setdefault(t, []).append(p)
        self.domain: Shape = ()  # of the map that is being read
        self.inner: set[int] = set()  # tensors that are no op's result: never rounded for being one
        self.leaving: tuple[tuple[int, int], ...] = ()  # the core's results that it writes itself

    def checked(self, program: Outline) -> Outline:
        """Every result of the region is written by one of the maps."""
        written = {p for m in (program.before, program.after) if m for _, p in m.stores}
        written.update(p for _, p in self.leaving)
        if program.epilogue_reduction is not None:
            written.add(program.epilogue_reduction.result)
        for p, t in enumerate(self.region.outputs):
            if p not in written:
                raise Unreadable(
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
            raise Unreadable("core", f"{op.kind} has a kernel of its own")
        said = core.called(op.kind)
        if core.prologue is None and before:
            raise Unreadable("core", f"{before[0].kind} comes before {said}")
        if not core.epilogue and after:
            raise Unreadable("core", f"{after[0].kind} comes after {said}")
        places: list[int | None] = []
        for n, t in enumerate(op.inputs):
            if t >= 0 and n != core.prologue and t not in self.position:
                raise Unreadable("core", f"{said} reads a value of the region")
            places.append(None if n == core.prologue else self.position.get(t))
        y, *others = op.outputs
        self.leaving = tuple([(n, p) for n, t in enumerate(others, 1) for p in self.stored.get(t, ())])
        sized = op._replace(outputs=tuple([self._sized(t) for t in op.outputs]))
        made = core.outline(sized, self.tensors, tuple(places), self.leaving)
        x = None if core.prologue is None else op.inputs[core.prologue]
        first = None if x is None else self.map(before, x, core_input=x)
        if last is None:
            return Outline(made, first, self.map(after, y, core_result=y))
        core_input, shape = last.inputs[0], self.tensors[y].shape
        found = self.tensors[core_input].shape
        if found[-1:] != shape[-1:] or numel(found) != numel(shape):
            raise Unreadable("domain", f"columns of {found} are added up, {said} is {shape}")
        return Outline(
            made, first, self.map(after, y, core_result=y, core_input=core_input), self._sums(last.outputs[0])
        )

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
            raise Unreadable("domain", f"no tensor of the region has the shape {shape}")
        return t if t < len(self.region.tensors) else like

    def _sums(self, y: int) -> ColumnSums:
        if len(self.stored.get(y, ())) != 1:
            raise Unreadable(
                "results", f"sums of columns ({self.tensors[y]}) leave {len(self.stored.get(y, ()))} times"
            )
        return ColumnSums(self.stored[y][0], self.tensors[y].dtype)

    # --- one map --------------------------------------------------------------------------------------------------------

    def map(
        self,
        ops: Sequence[RegionOp],
        domain: int,
        core_result: int | None = None,
        core_input: int | None = None,
    ) -> MapOutline:
        """These ops over the shape of a tensor. `core_result`, `core_input`: tensors of the core before and behind."""
        shape, tensors = self.tensors[domain].shape, self.tensors
        ways = infer_index_maps(ops, tensors, shape, self.position, self.stored, core_result, core_input)
        self.domain = ways.domain
        slots: dict[Any, int] = {} if core_result is None else {(core_result, WHOLE): 0}
        dtypes = [] if core_result is None else [tensors[core_result].dtype]
        loads: list[Source] = []

        def slot(load: Source) -> int:
            if load not in slots:
                slots[load] = len(dtypes)
                loads.append(load)
                dtypes.append(load.dtype)
            return slots[load]

        calls: list[tuple[RegionOp, Place, list[Any]]] = []
        own = {core_result, *(t for op in ops for t in op.outputs)}
        for op, places in zip(ops, ways.of_op):
            for place in places:
                keys = self._arguments(op, place, slot)
                for key in keys:
                    if isinstance(key, tuple) and not isinstance(key, IndexedLoad) and key[0] not in own:
                        raise Unreadable("core", f"{op.kind} reads a value from before the core")
                calls.append((op, place, keys))
                # results are numbered after all loads; until then they are known by their tensors, and where they are made
        if core_input is not None and core_input not in own and core_input not in self.position:
            raise Unreadable("core", f"{tensors[core_input]} is made before the maps that end in its sums")
        if core_input is not None and core_input in self.position:
            slots[core_input, WHOLE] = slot(self._external(core_input, WHOLE))
        applies = []
        for op, place, keys in calls:
            ins = tuple(slots[key] for key in keys)
            if VIEW in schema_of(op.kind).traits:  # the same value, by another name
                slots[op.outputs[0], place] = ins[0]
                continue
            for t in op.outputs:
                slots[t, place] = len(dtypes)
                dtypes.append(tensors[t].dtype)
            applies.append(Apply(op.kind, op.attrs, ins, tuple(slots[t, place] for t in op.outputs)))
        made = [t for op in ops for t in op.outputs] + ([] if core_result is None else [core_result])
        stores = tuple((slots[t, WHOLE], p) for t in made for p in self.stored.get(t, ()))
        exposed = set(exposed_by(ops, tensors))
        rounded = {t for t in made if self._is_rounded(t, exposed)}
        return MapOutline(
            self._sized(domain),
            int(core_result is not None),
            tuple(loads),
            tuple(applies),
            tuple(dtypes),
            frozenset(slots[t, place] for op, place, _ in calls for t in op.outputs if t in rounded)
            | ({0} if core_result in rounded else frozenset()),
            stores,
            None if core_input is None else slots[core_input, WHOLE],
            None if ways.domain == shape else ways.factors,
            self.region.invariant,
        )

    def _arguments(self, op: RegionOp, place: Place, slot: Callable[[Source], int]) -> list[Any]:
        """What an op whose result is made like `place` is called with: loads, which `slot` numbers, or what the map makes: a tensor,
        and where."""
        accesses = accesses_of(op, self.tensors)
        keys: list[Any] = []
        for access in accesses:
            if access.operand is None:
                point = self._point(op, access, place)
                slot(point)
                keys.append(point)
                continue
            t = op.inputs[access.operand]
            read = self._read(op, access, place)
            bounds = self._bounds((read or place).tests, slot)
            for axis, follows, start, every in access.spread:
                at = slot(Position(self._follow(op, place, follows, -start)))
                bounds.append(Bound(at, slot(Extent(t, axis)), slot(Extent(t, axis, stride=True)), every))
            for axis, argument in access.index:
                index = self._index(op, accesses[argument], place, slot)
                size, stride = slot(Extent(t, axis)), slot(Extent(t, axis, stride=True))
                bounds.append(Bound(index, size, stride, wraps=True))
            if t in self.position:
                walk = self._loaded(op, access, place, read, tuple(bounds))
                slot(walk)
                keys.append(walk)
            else:
                keys.append((t, read))
            if access.masked:
                mask = Mask(tuple(bounds))
                slot(mask)
                keys.append(mask)
        return keys

    def _read(self, op: RegionOp, access: Access, place: Place) -> Place | None:
        """Where an operand is read; None if that has no coordinates, but a position."""
        try:
            return read_at(op, access, place, self.tensors, self.domain)
        except NoFactoring:
            return None

    def _follow(self, op: RegionOp, place: Place, axis: int, start: int) -> Coordinate:
        extents = self.tensors[op.outputs[0]].shape
        return follow(place.coordinates(extents, self.domain), extents, axis, start)

    def _point(self, op: RegionOp, access: Access, place: Place) -> IndexedLoad:
        """The point's index among those of an op's result, or along some of its axes."""
        extents = self.tensors[op.outputs[0]].shape
        like = self._sized(op.outputs[0])
        if place.at is None and extents != self.domain and is_whole(access, extents):
            return IndexedLoad(None, like, DType.i64, (points(self.domain),), in_order=True)
        at = read_at(op, access, place, self.tensors, self.domain)
        return IndexedLoad(None, like, DType.i64, at.coordinates(extents, self.domain))

    def _bounds(self, tests: Sequence[Test], slot: Callable[[Source], int]) -> list[Bound]:
        """Of what is tested where a tensor is read."""
        return [
            Bound(slot(Position(test.coordinate)), slot(Extent(self._sized(test.tensor), test.axis)))
            for test in tests
        ]

    def _index(self, op: RegionOp, access: Access, place: Place, slot: Callable[[Source], int]) -> int:
        """The slot of an operand of indices."""
        assert access.operand is not None
        t = op.inputs[access.operand]
        if t not in self.position:
            raise Unreadable(
                "access", f"{op.kind} reads at indices {self.tensors[t]}, which the region makes"
            )
        read = self._read(op, access, place)
        return slot(self._loaded(op, access, place, read, tuple(self._bounds((read or place).tests, slot))))

    def _loaded(
        self, op: RegionOp, access: Access, place: Place, read: Place | None, bounds: tuple[Bound, ...]
    ) -> IndexedLoad:
        assert access.operand is not None
        t = op.inputs[access.operand]
        if read is not None:
            return self._external(t, read, bounds)
        assert place.at is not None and access.in_order  # its position is known, though not its coordinates
        at = position(place.at, self.tensors[op.outputs[0]].shape)
        return IndexedLoad(self.position[t], t, self.tensors[t].dtype, (at,), bounds, in_order=True)

    def _external(self, t: int, read: Place, bounds: tuple[Bound, ...] = ()) -> IndexedLoad:
        desc = self.tensors[t]
        if read.at is None and desc.shape != self.domain and desc.contiguous:
            return IndexedLoad(self.position[t], t, desc.dtype, (points(self.domain),), bounds, in_order=True)
        return IndexedLoad(self.position[t], t, desc.dtype, read.coordinates(desc.shape, self.domain), bounds)

    def _is_rounded(self, t: int, exposed: set[int]) -> bool:
        """Rounding points: what is stored, and `exposed`; when strict, every op's result."""
        if self.tensors[t].dtype.compute is self.tensors[t].dtype:
            return False  # its compute type is its own
        if self.stored.get(t) or (self.region.strict and t not in self.inner):
            return True
        return t in exposed
