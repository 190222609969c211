"""Composition: an open region and one step more: an op, or several side by side. Equal questions are answered once, whatever
their place.

An `Open` is a region on its way through the schedule; its `Node` is all that does not depend on where it stands. Nodes
are found again by what is composed: the step, which of the region's tensors it takes, and which values something outside reads.
A model's layers repeat, so most steps are one look-up.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from ...ops.schema import VIEW, schema_of
from ...registry.select import Candidate, Selector
from ...registry.variant import KernelVariant, Reject
from ...rows import Attributes, AttributeState, Conflict, RegionOp, RegionSpec
from ...rows.contribution import contribution, resized, together
from ...rows.read import own_accesses
from ...rows.rows import EMPTY, OVER_ROWS, Domain, Effect, join, join_unsized
from ...rows.structure import parts_of
from ...types import numel
from .nodes import Extension, Node, Open, Shared, Stop
from .steps import OpSchedule

STRIDED = Stop(Conflict("access", "a kernel", "a view by strides: no kernel", "view"))
FREE = Stop(Conflict("numerics", "invariant rows", "other rows", "conflict"))


class Composer:
    """Starts regions and extends them, for one selector."""

    def __init__(self, selector: Selector, schedule: OpSchedule) -> None:
        self.selector, self.schedule = selector, schedule
        memo = selector.compositions
        self._nodes: dict[Any, Node | Stop] = memo.setdefault("nodes", {})
        self._numbers: dict[Any, int] = memo.setdefault("numbers", {})
        self._shared: dict[Any, Shared] = memo.setdefault("shared", {})
        self._stops: dict[Any, Stop] = memo.setdefault("stops", {})
        self._alone: dict[Any, tuple[Candidate | None, int]] = memo.setdefault("alone", {})
        self.endings: dict[tuple[int, str], Any] = {}  # why regions ended, in words
        self._fits: dict[int, int] = {}  # of ops side by side, by where they end: how many a kernel took last
        self._dense = [self._number(d) for d in schedule.dense]
        self._descs = [self._number(d) for d in schedule.descs]
        self._calls = [self._number(c) for c in zip(schedule.kinds, schedule.attrs)]

    def start(self, i: int) -> Open:
        """Op i as a region, without candidates if no variant may begin with it."""
        found = self._extended(None, range(i, i + 1))
        assert isinstance(found, Open)
        return found

    def beside(self, i: int) -> Open | None:
        """Op i and those side by side with it as a region of one step: all, or as many halves of them as some kernel takes. None if
        there are none, or they are better apart."""
        end = self.schedule.beside[i]
        count = min(end - i, self._fits.get(end, end))
        while count > 1:
            found = self._extended(None, range(i, i + count))
            if isinstance(found, Open) and found.us is not None and self._pays(found):
                return found
            count //= 2
            self._fits[end] = count
        return None

    def _pays(self, together: Open) -> bool:
        """Whether ops side by side take no more than each by itself."""
        assert together.us is not None
        if together.us <= together.node.least:  # whatever the ops' own kernels take
            return True
        apart = [self.alone(n)[0] for n in range(together.anchor, together.last + 1)]
        return together.us <= math.fsum([one.us if one else math.inf for one in apart])

    def compose(self, region: Open) -> Open | Stop:
        """The region with what comes next: an op, or as many as stand side by side in it, each behind its own."""
        first = region.last + 1
        if self.schedule.is_strided(first) or self.schedule.is_strided(region.last):
            return STRIDED
        if self.schedule.is_free(first) != self.schedule.is_free(region.last):
            return FREE
        ops = range(first, first + region.node.abreast)
        if len(ops) > 1 and self.schedule.follow(range(region.anchor, first), ops):
            return self._extended(region, ops)
        return self._extended(region, ops[:1])

    def alone(self, i: int, count: int = 1) -> tuple[Candidate | None, int]:
        """The best kernel of op i by itself, or with those side by side, None if none takes it; and the bytes it then moves."""
        step = self._step(None, range(i, i + count))
        found = self._alone.get(step.key)
        if found is None:
            spec = self._spec(None, step)
            found = self._alone[step.key] = self.selector.alone(spec), spec.nbytes
        return found

    def apart(self, i: int, count: int = 1) -> tuple[float, float] | None:
        """What `alone` takes, and how far that may be off; None if no kernel takes it. A view takes nothing."""
        if count == 1 and self.is_view(i):
            return 0.0, 0.0
        candidate, _ = self.alone(i, count)
        return (candidate.us, candidate.cost.noise) if candidate else None

    def is_view(self, i: int) -> bool:
        """Whether op i by itself is a name for its operand's memory, as `resolve_aliases` has it."""
        if self.schedule.is_strided(i):
            return True
        if VIEW not in schema_of(self.schedule.kinds[i]).traits:
            return False
        (out,) = self.schedule.ops[i].out_vids
        return self.schedule.last_read.get(out, -1) < len(self.schedule.ops)

    def _number(self, value: Any) -> int:
        return self._numbers.setdefault(value, len(self._numbers))

    def _step(self, region: Open | None, ops: range) -> Extension:
        schedule = self.schedule
        descs = self._dense if schedule.is_strided(ops[0]) else self._descs
        index, homes = (dict(region.index), dict(region.homes)) if region else ({}, {})
        storage, read, new = schedule.storage, schedule.last_read, []
        ends, same = [], []
        for i in ops:
            op = schedule.ops[i]
            for vid in (*op.in_vids, *op.out_vids):
                if vid >= 0 and vid not in index:
                    if vid in storage:
                        homes.setdefault(storage[vid], len(index))
                    index[vid] = len(index)
                    new.append(vid)
            ins = tuple([index[v] if v >= 0 else -1 for v in op.in_vids])
            ends.append((ins, tuple([index[v] for v in op.out_vids])))
            same += [(index[v], homes[storage[v]]) for v in op.in_vids if v in storage]
        results = [v for i in ops for v in schedule.ops[i].out_vids]
        values = (*(region.live_out if region else ()), *results)
        live_out = tuple([v for v in values if read.get(v, -1) >= ops.stop])
        leaving = tuple([index[v] for v in live_out])
        if region is None or not leaving:  # a kernel of one op writes all its results, whoever reads them
            leaving = tuple([index[v] for v in results])
        fresh = tuple([descs[v] for v in new])
        sync = bool(schedule.ops[ops[0]].constraints.get("sync"))
        before = region.node.id if region else -1
        free = schedule.is_free(ops[0])
        key = (before, self._calls[ops[0]], tuple(ends), fresh, leaving, sync, tuple(same), free)
        return Extension(key, ops, ends, new, leaving, sync, tuple(same), index, live_out, homes)

    def _spec(self, before: Node | None, step: Extension) -> RegionSpec:
        kind, attrs = self.schedule.kinds[step.ops[0]], self.schedule.attrs[step.ops[0]]
        ops = tuple([RegionOp(kind, attrs, ins, outs) for ins, outs in step.ends])
        tensors = tuple([self.schedule.desc(v, step.ops[0]) for v in step.new])
        if before is not None:
            return before.spec.grown(ops, tensors, step.leaving)
        inputs = tuple(dict.fromkeys([t for ins, _ in step.ends for t in ins if t >= 0]))
        numerics = self.selector.rounding(self.schedule.is_free(step.ops[0]))
        return RegionSpec(ops, tensors, inputs, step.leaving, *numerics)

    def _extended(self, region: Open | None, ops: range) -> Open | Stop:
        step = self._step(region, ops)
        found = self._nodes.get(step.key)
        if found is None:
            found = self._nodes[step.key] = self._node(region.node if region else None, step)
        if isinstance(found, Stop):
            return found
        steps = (*(region.steps if region else ()), found)
        anchor = region.anchor if region else ops[0]
        view = region is None and len(ops) == 1 and self.is_view(ops[0])
        return Open(anchor, ops[-1], found, step.places, step.live_out, step.homes, steps, view)

    def _node(self, before: Node | None, step: Extension) -> Node | Stop:
        spec, index = self._spec(before, step), self.selector.index
        shared, ops = self._shared_by(before, spec, step), spec.ops[-len(step.ops) :]
        attrs, conflict, last = resized(shared.rows, ops[-1], spec.tensors), None, len(ops) - 1
        own = shared.own * sum([spec.tensors[op.outputs[0]].numel for op in ops])
        if before is not None:
            attrs, conflict = join(before.state.attrs, attrs, shared.joined)
            own, last = before.own_flops + own, before.state.last + len(ops)
            if shared.races:
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
            best = self.selector.best(spec, live & index.accepting(structure_of(attrs), len(spec.ops)))
        hint = best.score if best else None
        state = AttributeState(0, last, MappingProxyType(attrs), live, conflict, hint)
        return Node(
            len(self._nodes), spec, state, shared, best, own, self._least(before, spec, ops), len(ops)
        )

    def _least(self, before: Node | None, spec: RegionSpec, ops: Sequence[RegionOp]) -> float:
        """What the step's ops take at least if they are not fused: as kernels of their own, or behind others as one kernel."""
        if len(ops) > 1 and before is None:
            return sum([self.selector.least(spec.only(op)) for op in ops])
        if before is None or VIEW in schema_of(ops[0].kind).traits:
            return 0.0
        return self.selector.least(spec.only(*ops))

    def _shared_by(self, before: Node | None, spec: RegionSpec, step: Extension) -> Shared:
        known, ops = before.shared if before else None, spec.ops[-len(step.ops) :]
        key = known, spec.form, step.sync, step.same, tuple([own_accesses(op, spec.tensors) for op in ops])
        if key not in self._shared:
            self._shared[key] = self._share(known, before.state.attrs if before else EMPTY, spec, step)
        return self._shared[key]

    def _share(self, before: Shared | None, attrs: Attributes, spec: RegionSpec, step: Extension) -> Shared:
        ops, storage, defined, read = (
            spec.ops[-len(step.ops) :],
            dict(step.same),
            frozenset[int](),
            frozenset[int](),
        )
        if before is not None:
            defined, read, storage = before.defined, before.read, {**before.storage, **storage}
        schema, sync = schema_of(ops[0].kind), step.sync and before is not None
        results = [t for op in ops for t in op.outputs]
        inner = len(set(step.leaving).difference(results))
        earlier = spec.ops[: -len(ops)]
        rows = contribution(ops[0], spec.tensors, defined, inner, sync, spec.strict, storage, earlier)
        rows = together(rows, ops, spec.tensors, storage)
        reads = frozenset([storage.get(t, t) for op in ops for t in op.inputs])
        own = schema.flops if schema.is_map else 0
        return Shared(
            rows, join_unsized(attrs, rows), defined.union(results), read | reads,
            _touches(attrs, read, rows, reads) and _in_no_order(spec), storage,
            own * len(ops) + (before.point if before else 0), own, self.selector.index.living_with(spec),
        )  # fmt: skip

    def _narrowed(
        self,
        before: Node | None,
        shared: Shared,
        attrs: Attributes,
        conflict: Conflict | None,
        spec: RegionSpec,
    ) -> int:
        """The candidates that are left: those of the prefix, by the masks of structure and tensors, and by a `viable` of their own."""
        index = self.selector.index
        live = before.state.candidates if before else index.begins(schema_of(spec.kind))
        live &= index.viable(structure_of(attrs), len(spec.ops)) & shared.mask
        if conflict is not None:
            live &= index.custom  # variants that judge regions by themselves
        for variant in index.members(live & index.custom):
            if variant.continues(spec, self.selector.device) is not None:
                live &= ~index.bit(variant)
        return live

    def _emptied(self, before: Node, attrs: Attributes, spec: RegionSpec) -> tuple[str, str, str]:
        """The first row whose mask empties the prefix's candidates, with both values."""
        index, live, old = self.selector.index, before.state.candidates, before.state.attrs
        had = ", ".join(sorted({str(t.dtype) for t in before.spec.tensors}))
        masks = [
            ("slot", index.viable(structure_of(attrs), len(spec.ops))),
            ("avail", index.alignment(attrs["avail"])),
            ("access", index.reading(spec)),
        ]
        values = {
            "slot": (structure_of(old), structure_of(attrs)),
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
        left, key = before.state.candidates, (shared, before.state.candidates, structure_of(attrs))
        if key not in self._stops or left & self.selector.index.custom:
            self._stops[key] = Stop(None, self._against(before, spec), self._emptied(before, attrs, spec))
        return self._stops[key]

    def _against(self, before: Node, spec: RegionSpec) -> tuple[tuple[KernelVariant, Reject], ...]:
        survivors = list(self.selector.index.members(before.state.candidates))[:64]
        verdicts = ((v, v.continues(spec, self.selector.device)) for v in survivors)
        return tuple((v, reject) for v, reject in verdicts if reject is not None)


def structure_of(attrs: Attributes) -> str:
    domain: Domain = attrs["domain"]
    return "maps" if domain.parts > 1 else OVER_ROWS if domain.wide else attrs["slot"]


def _touches(before: Attributes, read: frozenset[int], rows: Attributes, reads: frozenset[int]) -> bool:
    """Whether an op reads what those before it write in place, or writes what they read."""
    none = Effect()
    written = before.get("effects", none).writes
    return not (written.isdisjoint(reads) and rows.get("effects", none).writes.isdisjoint(read))


def _in_no_order(spec: RegionSpec) -> bool:
    """Whether a kernel of parts may take it."""
    parts = parts_of(spec)
    return not isinstance(parts, Reject) and len(parts) > 1


def _race(spec: RegionSpec, storage: Mapping[int, int]) -> Conflict | None:
    """Parts side by side run in no order: what one writes in place, no other reads."""
    parts = parts_of(spec)
    assert not isinstance(parts, Reject)
    own = {n: number for number, part in enumerate(parts) for n in part}
    writer = {
        storage.get(op.inputs[operand], op.inputs[operand]): own[n]
        for n, op in enumerate(spec.ops)
        for operand, how in schema_of(op.kind).alias.values()
        if how == "must"
    }
    for n, op in enumerate(spec.ops):
        for t in op.inputs:
            if writer.get(storage.get(t, t), own[n]) != own[n]:
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
