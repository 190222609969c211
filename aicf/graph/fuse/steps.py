"""The schedule as steps of the walk: an op, or several side by side.

Side by side are neighbours in the schedule that do the same to tensors of their own, and so are one step. They are found before
the walk, in one pass: maps of one kind, with equal attributes and element types, each of whose operands has its result's shape or
one element. None reads what another makes, nor touches what another writes in place: one launch runs them in no order. Optimizer
steps are such, however many parameters there are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ...ir import Graph, LoweredOp, Role
from ...ops.schema import VIEW, schema_of
from ...types import AttrPack, OpKind, TensorDesc, TensorSpec
from .strided import desc_of


@dataclass
class OpSchedule:
    """The lowered ops as small numbers, with who reads what last."""

    ops: Sequence[LoweredOp]
    kinds: list[OpKind] = field(default_factory=list)
    attrs: list[AttrPack] = field(default_factory=list)
    descs: list[TensorDesc] = field(default_factory=list)  # by vid
    dense: list[TensorDesc] = field(default_factory=list)  # the same, without regard to where values lie
    last_read: dict[int, int] = field(default_factory=dict)
    storage: dict[int, int] = field(
        default_factory=dict
    )  # vid -> the first that lives where it does, if several
    beside: list[int] = field(
        default_factory=list
    )  # of each op: the end of those from it on that stand side by side
    fixed: frozenset[int] = frozenset()  # values that a run may not have to compute

    @classmethod
    def of(cls, ops: Sequence[LoweredOp], graph: Graph) -> OpSchedule:
        schedule = cls(ops, fixed=graph.fixed)
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
            schedule.dense.append(dense[value.spec])
        schedule.descs = list(schedule.dense)
        for vid, view in graph.views.items():
            schedule.descs[vid] = desc_of(graph.values[vid], view, graph.aligned.get(view.base, 256))
        for vid, alignment in graph.aligned.items():
            schedule.dense[vid] = schedule.descs[vid] = replace(schedule.descs[vid], alignment=alignment)
        schedule.beside = _ends_beside(schedule)
        return schedule

    def is_strided(self, i: int) -> bool:
        """Whether op i is nothing but strides of its operand or result, which kernels take."""
        return bool(self.ops[i].constraints.get("view"))

    def is_free(self, i: int) -> bool:
        """Whether op i has fused numerics and whatever class in a plan of invariant rows: that of a backward pass."""
        return bool(self.ops[i].constraints.get("free"))

    def desc(self, vid: int, i: int) -> TensorDesc:
        """Of a value, as op i finds it."""
        return (self.dense if self.is_strided(i) else self.descs)[vid]

    def follow(self, before: range, ops: range) -> bool:
        """Whether each of these ops goes on with one of as many before them, in order, and with nothing of the others'."""
        if ops.stop > len(self.ops) or self.beside[ops.start] < ops.stop:
            return False
        part = {v: n % len(ops) for n, i in enumerate(before) for v in self.ops[i].out_vids}
        return all(
            {part[v] for v in self.ops[i].in_vids if v in part} == {n} for n, i in enumerate(ops)
        )  # fmt: skip


def _ends_beside(schedule: OpSchedule) -> list[int]:
    """Of each op: where those end that stand side by side from it on."""
    ends = list(range(1, len(schedule.ops) + 1))
    first, family = 0, None
    made, read, written = set[int](), set[int](), set[int]()
    for i, op in enumerate(schedule.ops):
        reads, writes = _storage(schedule, i)
        own = _family(schedule, i)
        apart = op.constraints.get("sync") or not made.isdisjoint(op.in_vids)
        apart = apart or not (
            written.isdisjoint(reads) and written.isdisjoint(writes) and read.isdisjoint(writes)
        )
        if own is None or own != family or apart:
            _close(ends, first, i)
            first, family = i, own
            made, read, written = set(), set(), set()
        made.update(op.out_vids)
        read |= reads
        written |= writes
    _close(ends, first, len(ends))
    return ends


def _close(ends: list[int], first: int, end: int) -> None:
    ends[first:end] = [end] * (end - first)


def _family(schedule: OpSchedule, i: int) -> Any:
    """What ops side by side have in common; None of one that stands alone."""
    op, descs = schedule.ops[i], schedule.descs
    schema = schema_of(schedule.kinds[i])
    if not schema.is_map or schema.access_fn is not None or VIEW in schema.traits:
        return None
    shape, ways = descs[op.out_vids[0]].shape, []
    for v in op.in_vids:
        whole = v < 0 or descs[v].shape == shape
        if not whole and descs[v].numel != 1:
            return None
        ways.append((whole, op.in_vids.index(v), None if v < 0 else descs[v].dtype))
    once = op.out_vids[0] in schedule.fixed  # one launch has ops of each run, or others
    return (
        schedule.kinds[i],
        schedule.attrs[i],
        tuple(ways),
        tuple([descs[v].dtype for v in op.out_vids]),
        once,
        schedule.is_free(i),
    )


def _storage(schedule: OpSchedule, i: int) -> tuple[set[int], set[int]]:
    """What an op reads, and what it writes in place: of each storage the first value that lives there."""
    op, storage = schedule.ops[i], schedule.storage
    must = [op.in_vids[operand] for operand, how in op.constraints.get("alias", {}).values() if how == "must"]
    return {storage.get(v, v) for v in op.in_vids if v >= 0}, {storage.get(v, v) for v in must}
