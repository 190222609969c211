"""Composition: an open region and one more op. Equal questions are answered once, whatever their place.

An `Open` is a region on its way through the schedule; its `Node` is all that does not depend on where it stands. Nodes
are found again by what is composed: the op, which of the region's tensors it takes, and which values something outside reads.
A model's layers repeat, so most steps are one look-up.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, NamedTuple

from ...ir import Graph, LoweredOp, Role
from ...ops.schema import VIEW, schema_of
from ...registry.contribution import contribution, resized
from ...registry.read import own_accesses
from ...registry.select import Candidate, Selector
from ...registry.variant import KernelVariant, Reject
from ...rows import Attributes, AttributeState, Conflict, RegionOp, RegionSpec
from ...rows.rows import EMPTY, OVER_ROWS, Domain, Effect, Joined, join, join_unsized
from ...types import AttrPack, OpKind, TensorDesc, TensorSpec, numel


@dataclass(frozen=True, eq=False)
class Shared:
    """What nodes have in common that differ in sizes alone, up to their last op.

    rows      that the op brings; of the domain, that of another size
    joined    with those before it, without those that depend on sizes
    reads     of the op, and `read` of the region: that one for each storage
    touches   the op reads what those before it write in place, or writes what they read
    storage   of operands that share storage with others of the region: the one that stands for all
    point     flops of its maps, at one point
    """

    rows: Attributes
    joined: Joined
    made: frozenset[int]
    read: frozenset[int]
    touches: bool
    storage: Mapping[int, int]
    point: int
    own: int  # of the op
    mask: int  # variants that live with its element types and alignments


class Node(NamedTuple):
    """A region and what selection knows of it."""

    id: int
    spec: RegionSpec
    state: AttributeState
    shared: Shared
    best: Candidate | None
    own_flops: int  # of its maps, each over its own result
    least: float  # microseconds that no kernel of its last op takes less than, if others stand before it


@dataclass(frozen=True)
class Stop:
    """Why an op does not join a region: the rows' conflict; or the row that left no candidates, its value before and
    now, and what the last candidates have against the op."""

    conflict: Conflict | None
    against: tuple[tuple[KernelVariant, Reject], ...] = ()
    emptied: tuple[str, str, str] = ("", "", "")


class Open(NamedTuple):
    """Ops anchor..last as one region."""

    anchor: int
    last: int
    node: Node
    index: dict[int, int]  # type: ignore[assignment]  # vid -> place in the region's tensors
    made: tuple[int, ...]  # vids that something after it reads
    homes: dict[int, int]  # storage that has several names -> the place of the first of them
    steps: tuple[Node, ...]  # of its prefixes, the last is its own

    @property
    def us(self) -> float | None:
        """Predicted or measured time of the best kernel; None if none takes exactly this."""
        return self.node.best.us if self.node.best else None


class _Step(NamedTuple):
    """An op on its way into a region. What `key` says is all that the Node depends on."""

    key: tuple[Any, ...]
    ins: tuple[int, ...]  # places in the region's tensors; of its results, too
    outs: tuple[int, ...]
    new: list[int]  # vids
    leaving: tuple[int, ...]
    sync: bool
    same: tuple[tuple[int, int], ...]  # operands that share storage, and the place that stands for it
    places: dict[int, int]  # these are of the region with the op
    made: tuple[int, ...]
    homes: dict[int, int]


@dataclass
class Schedule:
    """The lowered ops as small numbers, with who reads what last."""

    ops: Sequence[LoweredOp]
    kinds: list[OpKind] = field(default_factory=list)
    attrs: list[AttrPack] = field(default_factory=list)
    descs: list[TensorDesc] = field(default_factory=list)  # by vid
    last_read: dict[int, int] = field(default_factory=dict)
    storage: dict[int, int] = field(
        default_factory=dict
    )  # vid -> the first that lives where it does, if several

    @classmethod
    def of(cls, ops: Sequence[LoweredOp], graph: Graph) -> Schedule:
        schedule = cls(ops)
        packs: dict[tuple[int, bytes], tuple[OpKind, AttrPack]] = {}
        for i, op in enumerate(ops):
            call = (op.kind_id, op.attr_blob)
            if call not in packs:
                packs[call] = op.kind, op.attrs
            kind, attrs = packs[call]
            schedule.kinds.append(kind)
            schedule.attrs.append(attrs)
            for vid in op.in_vids:
                schedule.last_read[vid] = i
            for result, (operand, how) in op.constraints.get("alias", {}).items():
                if how == "must" or VIEW in schema_of(kind).traits:
                    source = op.in_vids[operand]
                    schedule.storage[op.out_vids[result]] = schedule.storage.setdefault(source, source)
        kept = {v.vid for v in graph.values if v.role is Role.output} | set(graph.updates.values())
        schedule.last_read.update(dict.fromkeys(kept, len(ops)))
        dense: dict[TensorSpec, TensorDesc] = {}
        for value in graph.values:
            if value.spec not in dense:
                dense[value.spec] = TensorDesc.dense(value.spec)
            schedule.descs.append(dense[value.spec])
        return schedule


class Composer:
    """Starts regions and extends them, for one selector."""

    def __init__(self, selector: Selector, schedule: Schedule) -> None:
        self.selector, self.schedule = selector, schedule
        memo = selector.compositions
        self._nodes: dict[Any, Node | Stop] = memo.setdefault("nodes", {})
        self._numbers: dict[Any, int] = memo.setdefault("numbers", {})
        self._shared: dict[Any, Shared] = memo.setdefault("shared", {})
        self._stops: dict[Any, Stop] = memo.setdefault("stops", {})
        self._alone: dict[Any, tuple[Candidate | None, int]] = memo.setdefault("alone", {})
        self.endings: dict[tuple[int, str], Any] = {}  # why regions ended, in words
        self._descs = [self._number(d) for d in schedule.descs]
        self._calls = [self._number(c) for c in zip(schedule.kinds, schedule.attrs)]

    def start(self, i: int) -> Open:
        """Op i as a region, without candidates if no variant may begin with it."""
        found = self._extended(None, i)
        assert isinstance(found, Open)
        return found

    def compose(self, region: Open) -> Open | Stop:
        """The region with the next op of the schedule."""
        return self._extended(region, region.last + 1)

    def alone(self, i: int) -> tuple[Candidate | None, int]:
        """The best kernel of op i by itself, None if none takes it; and the bytes it then moves."""
        step = self._step(None, i)
        found = self._alone.get(step.key)
        if found is None:
            spec = self._spec(None, i, step)
            found = self._alone[step.key] = self.selector.alone(spec), spec.nbytes
        return found

    def _number(self, value: Any) -> int:
        return self._numbers.setdefault(value, len(self._numbers))

    def _step(self, region: Open | None, i: int) -> _Step:
        op, descs = self.schedule.ops[i], self._descs
        index, homes = (dict(region.index), dict(region.homes)) if region else ({}, {})
        storage, new = self.schedule.storage, []
        for vid in (*op.in_vids, *op.out_vids):
            if vid >= 0 and vid not in index:
                if vid in storage:
                    homes.setdefault(storage[vid], len(index))
                index[vid] = len(index)
                new.append(vid)
        ins = tuple([index[v] if v >= 0 else -1 for v in op.in_vids])
        outs = tuple([index[v] for v in op.out_vids])
        read = self.schedule.last_read
        made = tuple([v for v in (*(region.made if region else ()), *op.out_vids) if read.get(v, -1) > i])
        leaving = tuple([index[v] for v in made])
        if region is None or not leaving:  # a kernel of one op writes all its results, whoever reads them
            leaving = outs
        fresh = tuple([descs[v] for v in new])
        sync = bool(op.constraints.get("sync"))
        same = tuple([(index[v], homes[storage[v]]) for v in op.in_vids if v in storage])
        key = (region.node.id if region else -1, self._calls[i], ins, outs, fresh, leaving, sync, same)
        return _Step(key, ins, outs, new, leaving, sync, same, index, made, homes)

    def _spec(self, before: Node | None, i: int, step: _Step) -> RegionSpec:
        op = RegionOp(self.schedule.kinds[i], self.schedule.attrs[i], step.ins, step.outs)
        tensors = tuple([self.schedule.descs[v] for v in step.new])
        if before is not None:
            return before.spec.grown(op, tensors, step.leaving)
        inputs = tuple([t for t in dict.fromkeys(step.ins) if t >= 0])
        return RegionSpec((op,), tensors, inputs, step.leaving, self.selector.strict)

    def _extended(self, region: Open | None, i: int) -> Open | Stop:
        step = self._step(region, i)
        found = self._nodes.get(step.key)
        if found is None:
            found = self._nodes[step.key] = self._node(region.node if region else None, i, step)
        if isinstance(found, Stop):
            return found
        steps = (*(region.steps if region else ()), found)
        return Open(region.anchor if region else i, i, found, step.places, step.made, step.homes, steps)

    def _node(self, before: Node | None, i: int, step: _Step) -> Node | Stop:
        spec, index = self._spec(before, i, step), self.selector.index
        shared, op = self._shared_by(before, spec, step), spec.ops[-1]
        attrs, conflict, last = resized(shared.rows, op, spec.tensors), None, 0
        own = shared.own * spec.tensors[op.outputs[0]].numel
        if before is not None:
            attrs, conflict = join(before.state.attrs, attrs, shared.joined)
            own, last = before.own_flops + own, before.state.last + 1
            if shared.touches and attrs["domain"].alike is not None:
                conflict = _race(spec, shared.storage) or conflict
            if conflict is not None and conflict.trigger != "conflict":
                return self._stops.setdefault(conflict, Stop(conflict))
            attrs = _with_recomputed(attrs, own, shared.point)
        live = self._narrowed(before, shared, attrs, conflict, spec)
        if before is not None and not live:
            if conflict is not None:
                return self._stops.setdefault(conflict, Stop(conflict))
            return self._without_candidates(before, shared, attrs, spec)
        if before is None:
            best = self.selector.alone(spec)
        else:
            best = self.selector.best(spec, live & index.accepting(_structure(attrs), len(spec.ops)))
        hint = best.score if best else None
        state = AttributeState(0, last, MappingProxyType(attrs), live, conflict, hint)
        least = self.selector.least(spec.only(op)) if before is not None else 0.0
        return Node(len(self._nodes), spec, state, shared, best, own, least)

    def _shared_by(self, before: Node | None, spec: RegionSpec, step: _Step) -> Shared:
        known, op = before.shared if before else None, spec.ops[-1]
        key = known, spec.form, step.sync, step.same, own_accesses(op, spec.tensors)
        if key not in self._shared:
            self._shared[key] = self._share(known, before.state.attrs if before else EMPTY, spec, step)
        return self._shared[key]

    def _share(self, before: Shared | None, attrs: Attributes, spec: RegionSpec, step: _Step) -> Shared:
        op, storage, made, read = spec.ops[-1], dict(step.same), frozenset[int](), frozenset[int]()
        if before is not None:
            made, read, storage = before.made, before.read, {**before.storage, **storage}
        schema, sync = schema_of(op.kind), step.sync and before is not None
        inner = len(step.leaving) - sum([t in step.leaving for t in op.outputs])
        rows = contribution(op, spec.tensors, made, inner, sync, spec.strict, storage)
        reads = frozenset([storage.get(t, t) for t in op.inputs])
        own = schema.flops if schema.is_map else 0
        return Shared(
            rows, join_unsized(attrs, rows), made.union(op.outputs), read | reads,
            _touches(attrs, read, rows, reads), storage, own + (before.point if before else 0), own,
            self.selector.index.living_with(spec),
        )  # fmt: skip

    def _narrowed(
        self,
        before: Node | None,
        shared: Shared,
        attrs: Attributes,
        conflict: Conflict | None,
        spec: RegionSpec,
    ) -> int:
        """The candidates that are left: those of the prefix, by the masks of the rows that changed, never more."""
        index = self.selector.index
        live = before.state.candidates if before else index.begins(schema_of(spec.kind))
        live &= index.viable(_structure(attrs), len(spec.ops)) & shared.mask
        if conflict is not None:
            live &= index.custom  # variants that judge regions by themselves
        for variant in index.members(live & index.custom):
            if variant.continues(spec, self.selector.device) is not None:
                live &= ~index.bit(variant)
        return live

    def _emptied(self, before: Node, attrs: Attributes, spec: RegionSpec) -> tuple[str, str, str]:
        """The last row whose mask left none of the prefix's candidates, with both values."""
        index, live, old = self.selector.index, before.state.candidates, before.state.attrs
        had = ", ".join(sorted({str(t.dtype) for t in before.spec.tensors}))
        masks = [
            ("slot", index.viable(_structure(attrs), len(spec.ops))),
            ("avail", index.alignment(attrs["avail"])),
            ("access", index.reading(spec)),
        ]
        values = {
            "slot": (_structure(old), _structure(attrs)),
            "avail": (str(old["avail"]), str(attrs["avail"])),
            "access": (" ".join(sorted(old["access"])), " ".join(sorted(attrs["access"]))),
        }
        emptied = "", "", ""
        for name, mask in masks:
            if live and not live & mask:
                emptied = name, *values[name]
            live &= mask
        for dtype in dict.fromkeys(t.dtype for t in spec.tensors[len(before.spec.tensors) :]):
            if live and not live & index.dtype(dtype):
                emptied = "dtype", had, str(dtype)
            live &= index.dtype(dtype)
        return emptied

    def _without_candidates(self, before: Node, shared: Shared, attrs: Attributes, spec: RegionSpec) -> Stop:
        """Said once for each form, unless variants were left that judge regions by themselves."""
        left, key = before.state.candidates, (shared, before.state.candidates, _structure(attrs))
        if key not in self._stops or left & self.selector.index.custom:
            self._stops[key] = Stop(None, self._against(before, spec), self._emptied(before, attrs, spec))
        return self._stops[key]

    def _against(self, before: Node, spec: RegionSpec) -> tuple[tuple[KernelVariant, Reject], ...]:
        survivors = list(self.selector.index.members(before.state.candidates))[:64]
        verdicts = ((v, v.continues(spec, self.selector.device)) for v in survivors)
        return tuple((v, reject) for v, reject in verdicts if reject is not None)


def _structure(attrs: Attributes) -> str:
    domain: Domain = attrs["domain"]
    return "maps" if domain.parts > 1 else OVER_ROWS if domain.wide else attrs["slot"]


def _touches(before: Attributes, read: frozenset[int], rows: Attributes, reads: frozenset[int]) -> bool:
    """Whether an op reads what those before it write in place, or writes what they read."""
    none = Effect()
    written = before.get("effects", none).writes
    return not (written.isdisjoint(reads) and rows.get("effects", none).writes.isdisjoint(read))


def _race(spec: RegionSpec, storage: Mapping[int, int]) -> Conflict | None:
    """Ops side by side run in no order: what one writes in place, no other reads."""
    writer = {
        storage.get(op.inputs[operand], op.inputs[operand]): n
        for n, op in enumerate(spec.ops)
        for operand, how in schema_of(op.kind).alias.values()
        if how == "must"
    }
    for n, op in enumerate(spec.ops):
        for t in op.inputs:
            if writer.get(storage.get(t, t), n) != n:
                return Conflict(
                    "effects", f"a write of %{t} in place", f"a read of %{t} side by side", "barrier"
                )
    return None


def _with_recomputed(attrs: Attributes, own: int, point: int) -> Attributes:
    """Flops that a greater domain repeats. Before a core only: what comes after one has its domain."""
    domain = attrs["domain"]
    if domain.phase or domain.parts > 1 or (again := point * numel(domain.shape) - own) <= 0:
        return attrs
    return {**attrs, "recompute": again}
