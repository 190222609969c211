"""Which values lie in the storage of others, so that no kernel moves them.

An op that only moves elements (the trait MOVES) is no kernel where those beside it take strides, as a variant says that is `strided`:

    read     its result is a view of its operand, and all who read it take strides: the heads of a projection
    written  its operands are views of its result, and kernels that write strides make them: a concatenation of gradients

What such kernels say of the strides is asked of the selector, as any region is; copies stay where it takes none, or takes longer.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace

from ...ir import Graph, LoweredOp, Role, StridedView, Value
from ...ops.record import Access
from ...ops.schema import MOVES, VIEW, schema_of
from ...registry.select import Selector
from ...rows import RegionSpec
from ...types import Shape, TensorDesc, pointer_alignment, reshaped_strides, row_major


def find_views(ops: Sequence[LoweredOp], graph: Graph, selector: Selector) -> list[LoweredOp]:
    """The ops, those marked that no kernel runs; `graph.views` has where their values lie."""
    begins = {op.kind_id: selector.index.takes_strides(schema_of(op.kind)) for op in ops}
    takers = {i for i, op in enumerate(ops) if begins[op.kind_id] and not _may_share(op)}
    if not takers:
        return list(ops)
    barred: set[int] = set()
    while True:
        moves = _Moves(ops, graph, takers, barred)
        lost = moves.unsaid or {i for n in sorted(takers) for i in _refused(moves, n, selector)}
        if not lost:
            break
        barred |= lost
    graph.views.update(moves.views)
    return [
        replace(op, constraints={**op.constraints, "view": True}) if i in moves.idle else op
        for i, op in enumerate(ops)
    ]


def _may_share(op: LoweredOp) -> bool:
    """Whether a result may lie in an operand or not: which is decided later. What has to lie there is fixed, and no view."""
    return any(how != "must" for _, how in op.constraints.get("alias", {}).values())


def desc_of(value: Value, view: StridedView | None, aligned: int = 256) -> TensorDesc:
    """A value as kernels find it, in memory that is aligned to so many bytes."""
    if view is None:
        return TensorDesc.dense(value.spec, aligned)
    alignment = min(aligned, pointer_alignment(view.start * value.dtype.itemsize))
    return TensorDesc(value.dtype, value.shape, view.stride, value.spec.device, alignment)


def is_strided(region: RegionSpec) -> bool:
    """Whether some operand or result is a view of another tensor."""
    return not all(t.contiguous for t in (*region.operands, *region.results))


# --- where elements lie -----------------------------------------------------------------------------------------------


def accesses(op: LoweredOp, shapes: Sequence[Shape], result: Shape) -> tuple[Access, ...]:
    return schema_of(op.kind).accesses(shapes, len(result), op.attrs)


def read_through(access: Access, at: StridedView, shape: Shape, result: Shape) -> StridedView | None:
    """Where the result of an access lies, if its operand, of this shape, lies there; None where no strides say it."""
    if access.in_order:
        strides = reshaped_strides(shape, at.stride, result)
        return None if strides is None else replace(at, stride=strides)
    start, made = at.start, [0] * len(result)
    for stride, (axis, first, step) in zip(at.stride, access.walked()):
        start += first * stride
        if axis >= 0:
            made[axis] += step * stride
    if access.masked or min(made, default=0) < 0:
        return None
    return StridedView(at.base, start, tuple(made))


def written_through(access: Access, at: StridedView, shape: Shape, result: Shape) -> StridedView | None:
    """Where the operand, of this shape, has to lie, if the result lies there."""
    if access.in_order:
        strides = reshaped_strides(result, at.stride, shape)
        return None if strides is None else replace(at, stride=strides)
    walked = list(access.walked())
    axes = [axis for axis, _, _ in walked]
    if (
        access.spread
        or access.index
        or len(set(axes)) < len(axes)
        or any(axis < 0 or step != 1 for axis, _, step in walked)
    ):
        return None
    start = at.start - sum(first * at.stride[axis] for axis, first, _ in walked)
    return StridedView(at.base, start, tuple([at.stride[axis] for axis in axes]))


# --- which ops are views ----------------------------------------------------------------------------------------------


class _Moves:
    """The ops that would be views if `takers` took whatever strides come of it; without those that are barred from it.

    unsaid  those of them of which no strides say what they do
    """

    def __init__(self, ops: Sequence[LoweredOp], graph: Graph, takers: set[int], barred: set[int]) -> None:
        self.ops, self.values, self.aligned, self.takers = ops, graph.values, graph.aligned, takers
        self.maker = {vid: i for i, op in enumerate(ops) for vid in op.out_vids}
        self.readers: dict[int, list[int]] = defaultdict(list)
        for i, op in enumerate(ops):
            for vid in op.in_vids:
                self.readers[vid].append(i)
        self._fixed, self._elsewhere = _fixed(ops, graph)
        movers = [i for i, op in enumerate(ops) if i not in barred and MOVES in schema_of(op.kind).traits]
        self.read = self._read(
            [i for i in movers if self._free(ops[i].out_vids) and self._lies_still(ops[i].in_vids)]
        )
        self.written = self._written(
            [i for i in movers if self._free(ops[i].in_vids) and self._lies_still(ops[i].out_vids)]
        )
        self.views: dict[int, StridedView] = {}
        self.idle, self.unsaid = set[int](), set[int]()
        self._lay_out()

    def desc(self, vid: int, view: StridedView | None) -> TensorDesc:
        """A value as kernels find it."""
        return desc_of(self.values[vid], view, self.aligned.get(vid if view is None else view.base, 256))

    def _free(self, vids: Sequence[int]) -> bool:
        """Whether these are values of the run's own that nothing writes over."""
        return all(vid >= 0 and vid not in self._fixed and self.values[vid].spec.numel for vid in vids)

    def _lies_still(self, vids: Sequence[int]) -> bool:
        """Whether others may be views of these: nothing writes over them, be they the run's own, or what it is fed or returns."""
        return all(vid >= 0 and vid not in self._elsewhere and self.values[vid].spec.numel for vid in vids)

    def _read(self, movers: list[int]) -> set[int]:
        found: set[int] = set()
        for i in reversed(movers):
            readers = self.readers[self.ops[i].out_vids[0]]
            if (
                len(self.ops[i].in_vids) == 1
                and readers
                and all(r in self.takers or r in found for r in readers)
            ):
                found.add(i)
        return found

    def _written(self, movers: list[int]) -> set[int]:
        """Those whose operands are written where the result is: each operand for one of them, since a value has one address."""
        found, makers, placed = set[int](), self.takers - self.read, set[int]()
        for i in movers:
            op = self.ops[i]
            (out,) = op.out_vids
            whole = sum(self.values[v].spec.numel for v in op.in_vids) == self.values[out].spec.numel
            made = all(self.maker.get(v) in makers or self.maker.get(v) in found for v in op.in_vids)
            if i in self.read or not whole or not made or len(set(op.in_vids)) < len(op.in_vids):
                continue
            others = {r for v in op.in_vids for r in self.readers[v]} - {i}
            if placed.isdisjoint(op.in_vids) and all(r in self.takers or r in self.read for r in others):
                found.add(i)
                placed.update(op.in_vids)
        for i in sorted(found, reverse=True):  # a reshape at the end is the same bytes anyway
            if VIEW in schema_of(self.ops[i].kind).traits and found.isdisjoint(
                self.readers[self.ops[i].out_vids[0]]
            ):
                found.remove(i)
        return found

    def _lay_out(self) -> None:
        for i in sorted(self.written, reverse=True):
            op, (out,) = self.ops[i], self.ops[i].out_vids
            shapes = [self.values[v].shape for v in op.in_vids]
            for vid, access in zip(op.in_vids, accesses(op, shapes, self.values[out].shape)):
                self._put(
                    i,
                    vid,
                    written_through(access, self._at(out), self.values[vid].shape, self.values[out].shape),
                )
        for i in sorted(self.read):
            op, (vid,), (out,) = self.ops[i], self.ops[i].in_vids, self.ops[i].out_vids
            shape, result = self.values[vid].shape, self.values[out].shape
            if VIEW in schema_of(op.kind).traits and vid not in self.views:
                continue  # the same bytes, strided nowhere
            self._put(i, out, read_through(accesses(op, [shape], result)[0], self._at(vid), shape, result))

    def _at(self, vid: int) -> StridedView:
        return self.views.get(vid) or StridedView(vid, 0, row_major(self.values[vid].shape))

    def _put(self, i: int, vid: int, view: StridedView | None) -> None:
        if view is None:
            self.unsaid.add(i)
        else:
            self.views[vid] = view
            self.idle.add(i)

    def causes(self, vids: Sequence[int]) -> set[int]:
        """The ops that make views of these values."""
        found = {self.maker[v] for v in vids if v in self.views and self.maker[v] in self.read}
        return found | {r for v in vids if v in self.views for r in self.readers[v] if r in self.written}


def _fixed(ops: Sequence[LoweredOp], graph: Graph) -> tuple[set[int], set[int]]:
    """Values that live outside of a run, that outlive it, or that something writes over; and those of them of which nothing may be a view."""
    written = set(graph.updates.values())
    storage: dict[int, int] = {}
    for op in ops:
        for result, (operand, how) in op.constraints.get("alias", {}).items():
            if how == "must" or VIEW in schema_of(op.kind).traits:
                source = op.in_vids[operand]
                storage[op.out_vids[result]] = root = storage.get(source, source)
                written.update([root] if how == "must" else [])
    roles = {v.vid: v.role for v in graph.values}
    outside = {vid for vid, role in roles.items() if role is not Role.tmp}
    barred = {vid for vid in outside if roles[vid] not in (Role.input, Role.output)}

    def whole(roots: set[int]) -> set[int]:
        return roots | {vid for vid, root in storage.items() if root in roots}

    return whole(outside | written), whole(barred | written)


# --- what kernels say of it -------------------------------------------------------------------------------------------


def _refused(moves: _Moves, n: int, selector: Selector) -> set[int]:
    """The ops that can be no views, since op n has no kernel for the strides, or none that is as good as with copies."""
    op, views = moves.ops[n], moves.views
    strided = [v for v in (*op.in_vids, *op.out_vids) if v in views]
    if not strided or n in moves.idle:
        return set()
    if (us := _us(moves, n, views, selector)) is not None:
        copies = sum(_copy_us(moves, i, selector) for i in moves.causes(strided))
        dense = _us(moves, n, {}, selector)
        return set() if dense is None or us <= dense + copies else moves.causes(strided)
    for kept in (op.in_vids, op.out_vids):
        some = {v: views[v] for v in kept if v in views}
        if 0 < len(some) < len(set(strided)) and _us(moves, n, some, selector) is not None:
            return moves.causes([v for v in strided if v not in some])
    return moves.causes(strided)


def _us(moves: _Moves, n: int, views: Mapping[int, StridedView], selector: Selector) -> float | None:
    """What the best kernel of op n takes with these views; None if none takes them."""
    op = moves.ops[n]
    ins = [None if v < 0 else moves.desc(v, views.get(v)) for v in op.in_vids]
    outs = [moves.desc(v, views.get(v)) for v in op.out_vids]
    region = RegionSpec.single(op.kind, op.attrs, ins, outs)
    strict, invariant = selector.rounding(bool(op.constraints.get("free")))
    found = selector.alone(replace(region, strict=strict, invariant=invariant))
    return found.us if found else None


def _copy_us(moves: _Moves, i: int, selector: Selector) -> float:
    """Of the op as a kernel."""
    if VIEW in schema_of(moves.ops[i].kind).traits:
        return 0.0
    return _us(moves, i, {}, selector) or math.inf
