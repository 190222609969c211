"""Regions over rows: maps and reductions over the same axes, any number of them, such as a softmax or a layer norm.

Every axis of every value is an axis of one domain; those that the reductions reduce are its columns, the others its rows. A value
either moves along the columns or is one number for a row. A kernel keeps a row at hand and goes over its columns in passes:

    before    row values that need no reduction
    pass p    for each column: what the reductions of this pass take, and results that are known by now; then the reductions;
              then, once for the row, what follows from them

What a pass needs of earlier ones is computed again from the loads, but for row values, which are kept.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from ..ops import record
from ..ops.reductions import normal_axes
from ..ops.schema import MASKED, Access, schema_of
from ..types import DType, numel
from .index_map import STILL, Coordinate, accesses_of, operand_map
from .outline import IndexedLoad
from .program import Apply, Expression, Load, Shape, expression_of
from .read import by_outline, exposed_by
from .region import RegionOp, RegionSpec
from .reject import Reject
from .steps import expanded
from .ways import Unreadable

Node = tuple[int, int]  # a tensor (or a read of one) and its axis


class OperandRead(NamedTuple):
    """How an op reads an operand from outside; the point's index if there is no tensor. `number` stands for it among nodes."""

    tensor: int
    number: int
    access: Access


@dataclass(frozen=True)
class Reduce:
    """`how` (sum, mean, max or min) of a slot over the columns, into another."""

    how: str
    source: int
    result: int
    dtype: DType  # of both


@dataclass(frozen=True)
class Part:
    """An expression on slots of the program: its arguments and its results, in the expression's order."""

    expression: Expression
    takes: tuple[int, ...]
    makes: tuple[int, ...]


@dataclass(frozen=True)
class Pass:
    """Once over the columns.

    each    for each element: sources of `reduces`, then the slots of `stores`
    stores  positions in `RowProgram.stores`
    after   for the row, from the reductions' results and earlier row values
    """

    each: Part
    reduces: tuple[Reduce, ...]
    stores: tuple[int, ...]
    after: Part


class RowStore(NamedTuple):
    """A slot that leaves as a result: element sum(point * strides)."""

    slot: int
    position: int  # in `region.results`
    strides: Shape


@dataclass(frozen=True)
class RowProgram:
    """rows, columns   sizes of the domain's axes; strides of loads and stores are over (*rows, *columns)
    moves              slots that move along the columns
    kept               row values that are stored: positions in `stores`, and the pass after which they are known, -1: before
    """

    rows: Shape
    columns: Shape
    loads: tuple[Load, ...]
    dtypes: tuple[DType, ...]
    moves: frozenset[int]
    before: Part
    passes: tuple[Pass, ...]
    stores: tuple[RowStore, ...]
    kept: tuple[tuple[int, int], ...]
    flops: int  # of one element, in all passes

    @property
    def count(self) -> int:
        """Of rows."""
        return numel(self.rows)

    @property
    def length(self) -> int:
        """Of a row."""
        return numel(self.columns)


def read_rows(region: RegionSpec) -> RowProgram | Reject:
    """The region as rows; or at which op, and why, it is none."""
    known = region.__dict__.get("_row_program")  # every kernel asks
    if known is None or known[0] != record.schema_epoch:
        known = record.schema_epoch, by_outline(expanded(region), "rows", _outlined)
        object.__setattr__(region, "_row_program", known)
    return known[1]


# --- without sizes ----------------------------------------------------------------------------------------------------


class _Outline(NamedTuple):
    """A RowProgram without numbers. `axes`: of each axis of the domain a tensor and an axis that have its size."""

    axes: tuple[Node, ...]
    rows: int
    loads: tuple[IndexedLoad, ...]
    dtypes: tuple[DType, ...]
    moves: frozenset[int]
    before: Part
    passes: tuple[Pass, ...]
    stores: tuple[
        tuple[int, int, int, Shape], ...
    ]  # slot, position, tensor, the domain's axis of each of its axes
    kept: tuple[tuple[int, int], ...]
    flops: int

    def program(self, region: RegionSpec) -> RowProgram:
        tensors = region.tensors
        sizes = tuple([tensors[t].shape[a] for t, a in self.axes])
        loads = tuple([load.load(tensors, len(sizes)) for load in self.loads])
        stores = []
        for slot, position, tensor, axes in self.stores:
            steps = [0] * len(sizes)
            for axis, step in zip(axes, tensors[tensor].stride):
                if axis >= 0:
                    steps[axis] = step
            stores.append(RowStore(slot, position, tuple(steps)))
        n = self.rows
        return RowProgram(
            sizes[:n], sizes[n:], loads, self.dtypes, self.moves, self.before, self.passes, tuple(stores), self.kept, self.flops
        )  # fmt: skip


def _outlined(region: RegionSpec) -> _Outline | Reject:
    try:
        return _RowReader(region).outline()
    except Unreadable as reason:
        return reason.reject


class _RowReader:
    def __init__(self, region: RegionSpec) -> None:
        self.region, self.tensors = region, region.tensors
        self.position = {t: p for p, t in enumerate(region.inputs)}
        self.parent: dict[Node, Node] = {}
        self.reduced: dict[int, set[Node]] = {}  # by op: nodes that it reduces
        self.numbers: dict[int | tuple[int, int], int] = {}
        self.of_read: dict[int, int] = {}
        self.reads: dict[
            tuple[int, int], OperandRead
        ] = {}  # by op and argument: those of operands from outside

    def outline(self) -> _Outline:
        if not any(schema_of(op.kind).core == "reduce" for op in self.region.ops):
            raise Unreadable("core", "nothing is reduced")
        for op in self.region.ops:  # a later pass would read what an earlier one has overwritten
            if any(how == "must" for _, how in schema_of(op.kind).alias.values()):
                raise Unreadable(
                    "effects", f"{op.kind} writes in place, and rows are read again for each pass"
                )
        for n, op in enumerate(self.region.ops):
            self._link(n, op)
        axes, rows = self._domain()
        return self._slots(axes, rows)

    # --- axes

    def _find(self, node: Node) -> Node:
        while (up := self.parent.setdefault(node, node)) != node:
            self.parent[node] = node = self.parent[up]
        return node

    def _same(self, a: Node, b: Node) -> None:
        """One axis of the domain. The earlier node stands for it."""
        first, second = sorted((self._find(a), self._find(b)))
        self.parent[second] = first

    def _nodes(self, t: int, shape: Shape | None = None) -> list[Node | None]:
        return [None if size == 1 else (t, axis) for axis, size in enumerate(shape or self.tensors[t].shape)]

    def _link(self, n: int, op: RegionOp) -> None:
        """Axes of an op's operands and results are one where it reads them so.

        A read of an operand from outside has axes of its own, since reads of one tensor may differ; those in place are one.
        """
        schema, tensors = schema_of(op.kind), self.tensors
        if schema.core == "reduce":
            (x,), (y,) = op.inputs, op.outputs
            as_it_lies = Access(0, tuple(range(tensors[x].rank)))
            at = self._read(n, 0, x, as_it_lies, True) if x in self.position else x
            axes = normal_axes(tensors[x].rank, op.attrs["axes"])
            kept = [a for a in range(tensors[x].rank) if op.attrs["keepdims"] or a not in axes]
            self.reduced[n] = {(at, a) for a in axes if tensors[x].shape[a] != 1}
            for place, a in enumerate(kept):
                if a not in axes and tensors[x].shape[a] != 1:
                    self._same((at, a), (y, place))
            return
        if not schema.is_map:
            raise Unreadable("core", f"{op.kind} is no map, and no reduction")
        result = op.outputs[0]
        for other in op.outputs[1:]:
            if tensors[other].shape != tensors[result].shape:
                raise Unreadable("domain", f"results of {op.kind} differ in shape")
            for axis, size in enumerate(tensors[result].shape):
                if size != 1:
                    self._same((result, axis), (other, axis))
        if MASKED in schema.traits:
            raise Unreadable("mask", f"{op.kind} reads under a mask, or by index")
        for k, access in enumerate(accesses_of(op, tensors)):
            if access.operand is None:
                self.reads[n, k] = OperandRead(-1, -1, access)
                continue
            t = op.inputs[access.operand]
            shape, extents = tensors[t].shape, tensors[result].shape
            if access.in_order:
                raise Unreadable("domain", f"{op.kind} makes {extents} of {shape}, over rows")
            whole = shape == extents and access.axes == tuple(range(len(shape))) and access.plain
            at = self._read(n, k, t, access, whole) if t in self.position else t
            for axis, follows in enumerate(access.axes):
                if shape[axis] == 1:
                    continue
                if follows >= 0 and t not in self.position and shape[axis] != extents[follows]:
                    raise Unreadable(
                        "access", f"{op.kind} reads a part of {tensors[t]}, which the region makes"
                    )
                if follows >= 0 and extents[follows] != 1:
                    self._same((at, axis), (result, follows))
                elif t not in self.position:
                    raise Unreadable(
                        "access", f"{op.kind} reads one place of {tensors[t]}, which the region makes"
                    )
            if not access.plain and t not in self.position:
                raise Unreadable(
                    "access",
                    f"{op.kind} reads {tensors[t]}, which the region makes, from elsewhere than it is made",
                )

    def _read(self, n: int, k: int, t: int, access: Access, in_place: bool) -> int:
        """A number, beyond those of tensors, that stands for this read of one from outside."""
        key = t if in_place else (n, k)
        number = self.numbers.setdefault(key, len(self.tensors) + len(self.numbers))
        self.reads[n, k] = OperandRead(t, number, access)
        self.of_read[number] = t
        return number

    def _axes_of(self, t: int, like: int | None = None) -> Shape:
        """For each axis of a tensor its axis of the domain, -1 for none; `like`: of a read of it."""
        found = []
        for axis, size in enumerate(self.tensors[t].shape):
            node = (t if like is None else like, axis)
            found.append(-1 if size == 1 or node not in self.parent else self.index[self._find(node)])
        return tuple(found)

    def _domain(self) -> tuple[tuple[Node, ...], int]:
        """The domain's axes, rows before columns, each in the order of the first tensor that has it; and how many are rows."""
        made = [t for op in self.region.ops for t in op.outputs]
        for t in made:
            for axis, size in enumerate(self.tensors[t].shape):
                if size != 1:
                    self._find((t, axis))
        for nodes in self.reduced.values():
            for node in nodes:
                self._find(node)
        columns: set[Node] | None = None
        first = next(iter(self.reduced.values()))
        for nodes in self.reduced.values():  # loops of equal length are one, whatever they read
            for a, b in zip(sorted(first), sorted(nodes)):
                if self._size(a) == self._size(b):
                    self._same(a, b)
        for n, nodes in self.reduced.items():
            found = {self._find(node) for node in nodes}
            if columns is not None and found != columns:
                op = self.region.ops[n]
                x = self.tensors[op.inputs[0]].shape
                raise Unreadable(
                    "axes",
                    f"{op.kind} reduces axes {normal_axes(len(x), op.attrs['axes'])} of {x}, not those before it",
                )
            columns = found
        assert columns is not None
        order = list(dict.fromkeys(self._find(node) for node in sorted(self.parent)))
        order = [r for r in order if r not in columns] + [r for r in order if r in columns]
        self.index = {root: i for i, root in enumerate(order)}
        reads = [(t, number) for number, t in self.of_read.items()]
        for t, number in [*((t, None) for t in made), *reads]:
            axes = [a for a in self._axes_of(t, number) if a >= 0]
            if len(set(axes)) < len(axes):  # two axes of equal size became one: that would be the diagonal
                raise Unreadable("access", f"{self.tensors[t]} is read along one axis in two ways")
        real = tuple([self._real(root) for root in order])
        return real, len(order) - len(columns)

    def _size(self, node: Node) -> int:
        t, axis = self._real(node)
        return self.tensors[t].shape[axis]

    def _real(self, root: Node) -> Node:
        """A tensor with this axis' size: for a read, the operand's."""
        t, axis = root
        return self.of_read.get(t, t), axis

    # --- slots

    def _slots(self, axes: tuple[Node, ...], rows: int) -> _Outline:
        region, tensors = self.region, self.tensors
        loads: dict[IndexedLoad, int] = {}
        arguments: list[list[IndexedLoad | int]] = []
        for n, op in enumerate(region.ops):
            keys: list[IndexedLoad | int] = []
            result = op.outputs[0]
            reduce = schema_of(op.kind).core == "reduce"
            count = 1 if reduce else len(accesses_of(op, tensors))
            for k in range(count):
                if (n, k) not in self.reads:
                    keys.append(
                        op.inputs[0] if reduce else op.inputs[accesses_of(op, tensors)[k].operand or 0]
                    )
                    continue
                t, number, access = self.reads[n, k]
                like, along = (t, self._axes_of(t, number)) if reduce else (result, self._axes_of(result))
                at = tuple([Coordinate(0, ((a, 1),)) if a >= 0 else STILL for a in along])
                of, dtype = (t, tensors[t].dtype) if t >= 0 else (result, DType.i64)
                read = operand_map(access, at, tensors[of].shape, tensors[like].shape)
                load = IndexedLoad(self.position.get(t), of, dtype, read)
                loads.setdefault(load, len(loads))
                keys.append(load)
            arguments.append(keys)
        dtypes = [load.dtype for load in loads]
        moves = {slot for load, slot in loads.items() if any(a >= rows for a in load.axes)}
        slots: dict[int, int] = {}
        for op in region.ops:
            for t in op.outputs:
                slots[t] = len(dtypes)
                dtypes.append(tensors[t].dtype)
        applies: list[Apply] = []
        reduces: list[Reduce] = []
        depth = dict.fromkeys(range(len(loads)), 0)
        for op, keys in zip(region.ops, arguments):
            ins = tuple([loads[key] if isinstance(key, IndexedLoad) else slots[key] for key in keys])
            outs = tuple([slots[t] for t in op.outputs])
            level = max([depth[i] for i in ins], default=0)
            if schema_of(op.kind).core == "reduce":
                depth[outs[0]] = level + 1
                how = op.kind.name.removeprefix("reduce_")
                reduces.append(Reduce(how, ins[0], outs[0], dtypes[outs[0]]))
                continue
            applies.append(Apply(op.kind, op.attrs, ins, outs))
            depth.update(dict.fromkeys(outs, level))
            if any(a >= rows for a in self._axes_of(op.outputs[0])):
                moves.update(outs)
        stored = self._stored(slots, axes, rows, moves)
        exposed = set(exposed_by(region.ops, self.tensors))
        made = [t for op in region.ops for t in op.outputs]
        rounded = frozenset(slots[t] for t in made if self._is_rounded(t, exposed))
        build = _PassBuilder(tuple(dtypes), frozenset(moves), applies, reduces, rounded, depth)
        before, passes, kept = build.passes([(slot, n) for n, (slot, *_) in enumerate(stored)])
        flops = sum(schema_of(a.kind).flops for a in applies)
        return _Outline(
            axes,
            rows,
            tuple(loads),
            tuple(dtypes),
            frozenset(moves),
            before,
            passes,
            stored,
            kept,
            flops + len(reduces),
        )

    def _stored(
        self, slots: dict[int, int], axes: tuple[Node, ...], rows: int, moves: set[int]
    ) -> tuple[tuple[int, int, int, Shape], ...]:
        found = []
        for p, t in enumerate(self.region.outputs):
            if t not in slots:
                raise Unreadable("results", f"result {p} is an operand")
            along = self._axes_of(t)
            needed = range(len(axes)) if slots[t] in moves else range(rows)
            if {a for a in along if a >= 0} != set(needed):
                raise Unreadable(
                    "results",
                    f"result {p} ({self.tensors[t]}) has not all axes of the rows: it would be written again and again",
                )
            found.append((slots[t], p, t, along))
        return tuple(found)

    def _is_rounded(self, t: int, exposed: set[int]) -> bool:
        """Rounding points, as in maps: what is stored, and `exposed`."""
        if self.tensors[t].dtype.compute is self.tensors[t].dtype:
            return False
        if t in self.region.outputs or self.region.strict:
            return True
        return t in exposed


class _PassBuilder(NamedTuple):
    """Slots and ops, on the way to passes."""

    dtypes: tuple[DType, ...]
    moves: frozenset[int]
    applies: list[Apply]
    reduces: list[Reduce]
    rounded: frozenset[int]
    depth: dict[int, int]

    def passes(
        self, stored: Sequence[tuple[int, int]]
    ) -> tuple[Part, tuple[Pass, ...], tuple[tuple[int, int], ...]]:
        """The row values from before, the passes, and of stored row values after which pass they are known."""
        last = max(self.depth[slot] for slot in [*(r.source for r in self.reduces), *(s for s, _ in stored)])
        eaches, planned = [], []
        for p in range(last + 1):
            reduces = tuple([r for r in self.reduces if self.depth[r.source] == p])
            leaving = tuple([n for slot, n in stored if slot in self.moves and self.depth[slot] == p])
            slots = [slot for slot, _ in stored]
            if reduces or leaving:
                targets = [*(r.source for r in reduces), *(slots[n] for n in leaving)]
                each = self._part(targets, lambda s: s in self.moves and s >= self._loads)
                planned.append((p, reduces, leaving))
                eaches.append(each)
        # row values: what some pass takes or is stored, and what those are made of, from the last on
        kept = tuple([(n, self.depth[slot] - 1) for slot, n in stored if slot not in self.moves])
        leaves = {slot for slot, _ in stored}
        wanted = {s for each in eaches for s in each.takes} | leaves
        parts: list[Part] = []
        for p in range(last + 1, -1, -1):
            parts.append(self._row(wanted, leaves, p))
            wanted |= set(parts[-1].takes)
        before, *after = reversed(parts)
        made = [
            Pass(each, reduces, leaving, after[p]) for each, (p, reduces, leaving) in zip(eaches, planned)
        ]
        return before, tuple(made), kept

    @property
    def _loads(self) -> int:
        made = [s for a in self.applies for s in a.outs] + [r.result for r in self.reduces]
        return min(made)

    @property
    def _constants(self) -> set[int]:
        """Made of nothing: again wherever they are used, not kept for each row."""
        return {s for a in self.applies if not a.ins for s in a.outs}

    def _row(self, wanted: set[int], stored: set[int], depth: int) -> Part:
        """Row values of a depth, computed once; a reduction's result is among them where it is rounded."""
        reduced = {r.result for r in self.reduces}
        wanted = wanted - self._constants.difference(stored)

        def made(s: int) -> bool:
            return s >= self._loads and s not in self.moves and s not in reduced and self.depth[s] == depth

        results = [s for s in reduced & self.rounded if self.depth[s] == depth]
        return self._part(sorted({s for s in wanted if made(s)}.union(results)), made)

    def _part(self, targets: Iterable[int], inside: Callable[[int], bool]) -> Part:
        """The expression that makes `targets` of slots that are not `inside`."""
        targets = tuple(targets)
        maker = {s: a for a in self.applies for s in a.outs}
        needed, takes, stack = set[int](), set[int](), list(targets)
        constants = self._constants
        while stack:
            s = stack.pop()
            if s not in maker or not (inside(s) or s in constants):
                takes.add(s)
            elif id(maker[s]) not in needed:
                needed.add(id(maker[s]))
                stack += maker[s].ins
        steps = [a for a in self.applies if id(a) in needed]
        order = (*sorted(takes), *[s for a in steps for s in a.outs])
        place = {s: i for i, s in enumerate(order)}
        renumbered = [
            a._replace(ins=tuple([place[s] for s in a.ins]), outs=tuple([place[s] for s in a.outs]))
            for a in steps
        ]
        # what is taken was rounded where it was made, but for reductions' results: those come as they are
        rounded = frozenset(
            [place[s] for s in order if s in self.rounded and (s not in takes or s in targets)]
        )
        dtypes, results = tuple([self.dtypes[s] for s in order]), tuple([place[s] for s in targets])
        return Part(
            expression_of(renumbered, dtypes, rounded, len(takes), results), tuple(sorted(takes)), targets
        )
