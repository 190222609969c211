"""Which outputs share their input's storage. Lowered ops are SSA; in place is decided here, after fusion.

must   an optimizer step writes its parameter in place: no later step may read the old value
may    the result of elementwise work takes over an operand that nobody needs any more
view   a reshape of a dense tensor is the same bytes, and so is what `find_views` found: no kernel runs

A kernel may write over an operand of which it reads each element only where it writes it: see `why_not_in_place`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from ...errors import AliasError
from ...ir import EXTERNAL, KEPT, Graph, LoweredOp, Role
from ...ops.schema import VIEW, schema_of
from ...registry.variant import Reject
from ...rows import RegionSpec
from ...rows.parts import read_parts
from ...rows.program import CoreOp, Gemm, Map, RegionProgram
from ...rows.read import read
from ...types import row_major
from ..fuse import Region


def resolve_aliases(
    graph: Graph, ops: Sequence[LoweredOp], regions: Sequence[Region]
) -> tuple[dict[int, int], set[int], list[str]]:
    """(out vid -> root vid, indices of regions that are views, notes in words). Roots are never aliases themselves."""
    resolver = _Resolver(graph, regions)
    for i, region in enumerate(regions):
        resolver.strided(i, ops[region.anchor])
        if i in resolver.views:
            continue
        for op in ops[region.anchor : region.last + 1]:
            resolver.declared(i, op)
        if region.anchor != region.last:
            resolver.fused(i)
    _check_updates(graph, resolver.root)
    return resolver.root, resolver.views, resolver.notes


@dataclass
class _Storage:
    """The values that live in one place, the first of which owns it."""

    members: list[int]
    last_read: int  # index of the last region that reads one of them
    written: int = -1  # index of the last region that wrote one of them over another


class _Ends:
    """What a region reads and makes: its operands by the storage that they lie in, and its results, by their positions."""

    def __init__(self, ins: Sequence[int], outs: Sequence[int], root: dict[int, int]) -> None:
        self.read, self.made = frozenset(ins), {vid: position for position, vid in enumerate(outs)}
        self.places: dict[int, list[int]] = {}
        for position, vid in enumerate(ins):
            self.places.setdefault(root.get(vid, vid), []).append(position)


class _Resolver:
    def __init__(self, graph: Graph, regions: Sequence[Region]) -> None:
        self.values, self.updates, self.regions = graph.values, graph.updates, regions
        self.strides = graph.views
        self.kept = set(graph.updates.values())  # copied into their state after the last step
        self.last_read = {vid: i for i, region in enumerate(regions) for vid in region.in_vids}
        self.last_read.update(dict.fromkeys(self.kept, len(regions)))
        self.last_read.update((v.vid, len(regions)) for v in graph.outputs)
        self.root: dict[int, int] = {}
        self.storages: dict[int, _Storage] = {}
        self.views: set[int] = set()
        self.notes: list[str] = []
        self.looked_at, self.ends = -1, _Ends([], [], self.root)

    def strided(self, i: int, first: LoweredOp) -> None:
        """Results that lie in the storage of others by strides, whether the region is no kernel or one that writes them."""
        if first.constraints.get("view"):
            self.views.add(i)
        for out in self.regions[i].out_vids:
            if (view := self.strides.get(out)) is not None:
                how = "a view" if i in self.views else "written by strides"
                self._share(i, out, self.root.get(view.base, view.base), how)

    def declared(self, i: int, op: LoweredOp) -> None:
        """What the op's schema says of its results. What may not be written is refused even if fusion leaves no write."""
        region, ends = self.regions[i], self._ends(i)
        for position, (operand, how) in op.constraints.get("alias", {}).items():
            out, source = op.out_vids[position], op.in_vids[operand]
            if source not in ends.read:
                continue
            into = self.root.get(source, source)
            if how == "must":
                self._check_must(i, op, out, into)
                if out in ends.made:
                    self._check_place(i, op, out, into)
                    self._share(i, out, into, "written in place")
            elif region.anchor != region.last:
                continue
            elif VIEW in schema_of(op.kind).traits:
                if self.values[out].role is Role.tmp and out not in self.kept:
                    self.views.add(i)
                    self._share(i, out, into, "a view")
            elif self._may(i, out, into):
                self._share(i, out, into, "takes over its storage")

    def fused(self, i: int) -> None:
        """Results of maps that are fused take over whichever operand they can."""
        region = self.regions[i]
        if not _elementwise(region.spec):
            return
        for out in region.out_vids:
            for source in region.in_vids if out not in self.root else ():
                into = self.root.get(source, source)
                if self._may(i, out, into):
                    self._share(i, out, into, "takes over its storage")
                    break

    def _share(self, i: int, out: int, into: int, how: str) -> None:
        storage = self._storage(into)
        storage.members.append(out)
        storage.last_read = max(storage.last_read, self.last_read.get(out, -1))
        storage.written = storage.written if how == "a view" else i
        self.root[out] = into
        self.notes.append(f"%{out} is %{into} ({self.values[into].name}): {how}")

    def _storage(self, into: int) -> _Storage:
        if into not in self.storages:
            self.storages[into] = _Storage([into], self.last_read.get(into, -1))
        return self.storages[into]

    def _ends(self, i: int) -> _Ends:
        """Of region i: found once, since one region may have thousands of operands."""
        if self.looked_at != i:
            region, self.looked_at = self.regions[i], i
            self.ends = _Ends(region.in_vids, region.out_vids, self.root)
        return self.ends

    def _why_not(self, i: int, out: int, into: int) -> str:
        ends = self._ends(i)
        positions = frozenset(ends.places.get(into, ()))
        return why_not_in_place(self.regions[i].spec, ends.made[out], positions)

    def _may(self, i: int, out: int, into: int) -> bool:
        values, storage = self.values, self._storage(into)
        return (
            values[out].role is Role.tmp
            and out not in self.kept
            and values[into].role is Role.tmp
            and values[out].spec == values[into].spec
            and storage.last_read <= i  # nor by another result of this region: that one is read later
            and not self._why_not(i, out, into)
        )

    def _check_must(self, i: int, op: LoweredOp, out: int, into: int) -> None:
        target, storage = self.values[into], self._storage(into)
        if storage.last_read > i:
            raise self._read_later(i, op, into)
        if target.role is Role.input or target.constant:
            raise AliasError(
                f"{op.kind} would write over the {'constant' if target.constant else 'input'} {target.name}",
                where=op.where,
                hint="make it a state, or copy it first",
            )
        if storage.written == i:
            raise AliasError(
                f"{op.kind} would write two results over {target.name}",
                where=op.where,
                hint="give it two states, or a copy",
            )
        if target.role in KEPT and not self._becomes(out, self.updates.get(into)):
            raise AliasError(
                f"{op.kind} writes {target.role} {target.name} in place, and nobody declared that as its update",
                where=op.where,
                hint=f"ctx.update({target.name}, result) declares it; emit.copy({target.name}) leaves it alone",
            )

    def _becomes(self, out: int, update: int | None) -> bool:
        """Whether a declared update is this value, or what is made of it in place."""
        while update is not None and update != out:
            op = self.values[update].producer
            written = {} if op is None else op.constraints.get("alias", {})
            operand, how = written.get(op.outputs.index(update), (0, "")) if op is not None else (0, "")
            update = op.inputs[operand] if op is not None and how == "must" else None
        return update is not None

    def _check_place(self, i: int, op: LoweredOp, out: int, into: int) -> None:
        if reason := self._why_not(i, out, into):
            raise AliasError(
                f"{op.kind} writes {self.values[into].name} in place, in one kernel with a read from another place",
                where=op.where,
                expected="each element is read only where it is written",
                got=f"{self.regions[i].spec.signature}: {reason}",
                hint="ctx.sync() before the op keeps the kernels apart",
            )

    def _read_later(self, i: int, op: LoweredOp, into: int) -> AliasError:
        late = [v for v in self._storage(into).members if self.last_read.get(v, -1) > i]
        reader = next((r for r in self.regions[i + 1 :] if set(late).intersection(r.in_vids)), None)
        returned = self.values[late[0]].role is Role.output
        who = reader.spec.signature if reader else "the caller" if returned else "the update of a state"
        then = f"it is {'returned' if returned else 'copied'} after the last op"
        return AliasError(
            f"{op.kind} writes {self.values[into].name} in place, and {who} reads the old value later",
            where=op.where,
            expected=f"every read of %{late[0]} before op {op.oid}",
            got=f"ops {reader.anchor}..{reader.last} read it" if reader else then,
            hint="emit the update after the last reader, or read a copy: emit.copy(value)",
        )


# --- what a kernel may write over -------------------------------------------------------------------------------------


@lru_cache(maxsize=8192)
def why_not_in_place(spec: RegionSpec, result: int, operands: frozenset[int]) -> str:
    """Why no kernel may write this result over these operands; "" where each element is read only where it is written.

    A kernel reads all it needs for a point before it writes there, in whatever order it takes the points. Independent ops
    in one launch are in no order at all.
    """
    program, parts = read(spec), read_parts(spec)
    if isinstance(program, RegionProgram):
        core = program.core
        if isinstance(core, Gemm) and {core.a, core.b, core.c}.intersection(operands):
            return "the product reads it"
        if isinstance(core, CoreOp) and not operands.isdisjoint(core.operands):
            return f"{core.kind} reads it"
        if program.before is not None and any(load.operand in operands for load in program.before.loads):
            return f"it is read until the {core.kind if isinstance(core, CoreOp) else 'reduction'} is done"
        if _scattered(program.after, operands):
            return "it is broadcast or transposed"
    if not isinstance(parts, Reject):
        own, readers = _by_place(spec)
        for part in {part for operand in operands for part in readers.get(operand, ())}:
            if part != own[result]:
                return "another op of the same launch reads it"
            if _scattered(parts[part], operands):
                return "it is broadcast or transposed"
    elif isinstance(program, Reject):  # a kernel that knows its ops: it does what they declare
        tensors, written = {spec.inputs[p] for p in operands}, spec.outputs[result]
        others = [op.kind for op in spec.ops if tensors.intersection(op.inputs) and written not in op.outputs]
        return f"{others[0]} reads it, too" if others else ""
    return ""


@lru_cache(maxsize=64)
def _by_place(spec: RegionSpec) -> tuple[dict[int, int], dict[int, set[int]]]:
    """Of parts side by side: which one stores a result, and which ones read an operand."""
    parts, readers = read_parts(spec), dict[int, set[int]]()
    assert not isinstance(parts, Reject)
    for n, part in enumerate(parts):
        for load in part.loads:
            if load.operand is not None:
                readers.setdefault(load.operand, set()).add(n)
    return {place: n for n, part in enumerate(parts) for _, place in part.stores}, readers


def _elementwise(spec: RegionSpec) -> bool:
    program = read(spec)
    return (
        program.core is None
        if isinstance(program, RegionProgram)
        else not isinstance(read_parts(spec), Reject)
    )


def _scattered(map: Map, operands: frozenset[int]) -> bool:
    """Whether one of these operands is read anywhere but in the place of the point that is stored."""
    dense = row_major(map.shape)
    return any(
        load.bounds
        or load.offset != 0
        or any(a != b and n != 1 for a, b, n in zip(load.strides, dense, map.shape))
        for load in map.loads
        if load.operand in operands
    )


def _check_updates(graph: Graph, root: dict[int, int]) -> None:
    """The new content of a state is written in place or copied into it at the end of a run; never into another's."""
    for old, new in graph.updates.items():
        into = root.get(new, new)
        if into != old and graph.values[into].role in EXTERNAL:
            raise AliasError(
                f"the update of {graph.values[old].name} lives in {graph.values[into].name}",
                hint="emit.copy(value) makes it a value of its own",
            )
