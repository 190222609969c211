"""Rows on the host: softmax, norms and the like, a pass for each reduction and one for the results, block of rows by block."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ..registry.cost import Cost, host_memory_us, one_launch, roofline
from ..registry.variant import HostCall, Reject, variant
from ..rows import RegionSpec
from ..rows.program import Expression, Load, Shape
from ..rows.row_program import Part, RowProgram, read_rows
from ..types import BASIC, DType, TensorDesc, TensorSpec, numel, row_major
from .costs import ARRAY_US, CALL_US, EFFICIENCY
from .elementwise import loops_take
from .reduce import ADD_US, ROW_US, SHORT_ROW_US, fold_class

BLOCK_BYTES = 2**18  # half of a core's L2 cache


@variant("map", "reduce", "rows", id="cpu.rows_loop.v1", takes=("rows",), dtypes=BASIC)
class RowsLoop:
    """A loop for each reduction, one for the results, and loops over row values, which are arrays of their own, in between: over
    as many rows as a cache holds, then over the next.

    Reductions add up in f64, as those alone do. Bytes: operands once from memory and once more from a cache for each further
    pass, results once.
    """

    def accepts(region):
        program = read_rows(region)
        yield program if isinstance(program, Reject) else None
        yield (
            Reject("strict", "values between the reductions are kept wider than they are stored")
            if region.strict and len(region.ops) > 1
            else None
        )
        yield from loops_take(region)
        order, rows = _order(program), len(program.rows)
        for store in program.stores:
            if store.slot in program.moves:
                if program.count * program.length and _dense(program, order.stores) != store.strides:
                    yield Reject("access", f"result {store.position} is written in another order than others")
            elif _row_strides(program, order.axes) != store.strides[:rows]:
                yield Reject(
                    "access", f"result {store.position} is written in another order than rows are read"
                )

    least = one_launch

    def numerics(region, device):
        program = read_rows(region)
        return fold_class(program.length, _order(program).inner)

    def cost(region, device):
        program = read_rows(region)
        terms = {"launch": device.launch_us, "call": 0.0, "memory": 0.0, "compute": 0.0, "sums": 0.0}
        plan = _Plan(program, region)
        blocks, seen = max(1, -(-plan.order.outer // _rows_at_once(plan, region))), set[int]()
        for loop in plan.loops:
            read = [
                x.operand for x in loop.loads if x.operand is not None and x.operand < len(region.operands)
            ]
            sizes = [region.results[p].nbytes for _, p in loop.stores if p < len(region.results)]
            sizes += [region.operands[p].nbytes for p in read if p not in seen]
            again = [
                region.operands[p].nbytes / blocks for p in read if p in seen
            ]  # later passes: from a cache
            seen.update(read)
            terms["call"] += CALL_US * blocks + ARRAY_US * (len(loop.loads) + len(loop.stores))
            memory = math.fsum(
                [
                    *(host_memory_us(device, n) for n in sizes),
                    *(blocks * host_memory_us(device, n) for n in again),
                ]
            )
            flops = loop.numel * len(loop.expression.steps) * 4
            compute = (
                roofline(device, bytes=0, flops=flops, efficiency=EFFICIENCY, launches=0).us if flops else 0.0
            )
            terms["memory" if memory >= compute else "compute"] += max(memory, compute)
            if loop.how:
                terms["sums"] += loop.numel * ADD_US + program.count * min(
                    ROW_US, program.length * SHORT_ROW_US
                )
        return Cost(terms)

    def build(region, device):
        return HostCall.binding(_binder(_Plan(read_rows(region), region), region))


@dataclass(frozen=True)
class _Order:
    """How the domain's axes are walked: as results lie in memory, if their columns lie together and row values do like rows.

    axes    of the whole domain
    stores  where results that move are written; other than `axes` only where their columns lie apart
    outer, inner  rows before the columns, and behind them
    """

    axes: tuple[int, ...]
    stores: tuple[int, ...]
    outer: int
    inner: int

    @property
    def by_blocks(self) -> bool:
        return self.axes == self.stores


def _order(program: RowProgram) -> _Order:
    rows, sizes = len(program.rows), (*program.rows, *program.columns)
    natural = tuple(range(len(sizes)))
    stored = [s.strides for s in program.stores if s.slot in program.moves]
    loaded = [load.strides for load in program.loads if load.operand is not None and 0 not in load.strides]
    along = next(iter(stored or loaded), row_major(sizes))
    axes = tuple(sorted(natural, key=lambda axis: -along[axis]))
    stores = axes if stored else natural
    places = [place for place, axis in enumerate(axes) if axis >= rows]
    together = places[-1] - places[0] < len(places) if places else True
    of_rows = _row_strides(program, axes)
    if not together or any(program.stores[n].strides[:rows] != of_rows for n, _ in program.kept):
        return _Order(natural, stores if stored else natural, program.count, 1)
    first = places[0] if places else len(axes)
    outer, inner = ([sizes[axis] for axis in some if axis < rows] for some in (axes[:first], axes[first:]))
    return _Order(axes, stores if stored else axes, numel(tuple(outer)), numel(tuple(inner)))


def _row_strides(program: RowProgram, axes: Sequence[int]) -> Shape:
    """Along the rows' axes of a row value that lies as they are walked."""
    rows = len(program.rows)
    return _dense(program, [axis for axis in axes if axis < rows])[:rows]


def _dense(program: RowProgram, order: Sequence[int]) -> Shape:
    """Strides along the domain's axes of a tensor that has these, in this order."""
    sizes = (*program.rows, *program.columns)
    strides = [0] * len(sizes)
    for axis, step in zip(order, row_major(tuple([sizes[axis] for axis in order]))):
        strides[axis] = step
    return tuple(strides)


@dataclass(frozen=True)
class _Loop:
    """A pass, with what MapLoop asks of a Map. Row values are operands and results behind those of the region.

    how, into  how its core input is reduced, and into which result; "" if it has none
    """

    shape: Shape
    loads: tuple[Load, ...]
    stores: tuple[tuple[int, int], ...]
    expression: Expression
    core_input: int | None = None
    how: str = ""
    into: int = -1
    core_results: int = 0

    def ordered(self, axes: Sequence[int]) -> _Loop:
        """The same with its axes in another order."""
        loads = [load._replace(strides=tuple([load.strides[a] for a in axes])) for load in self.loads]
        return replace(self, shape=tuple([self.shape[a] for a in axes]), loads=tuple(loads))

    @property
    def dtypes(self) -> tuple[DType, ...]:
        return self.expression.dtypes

    @property
    def numel(self) -> int:
        return numel(self.shape)


class _Plan:
    """The loops of a program, in order; `values`: the slots of row values."""

    def __init__(self, program: RowProgram, region: RegionSpec) -> None:
        self.program, self.operands, self.results = program, len(region.operands), len(region.results)
        self.order = _order(program)
        self.row_axes = [axis for axis in self.order.axes if axis < len(program.rows)]
        made = [program.before, *(step.after for step in program.passes)]
        reduced = [reduce.result for step in program.passes for reduce in step.reduces]
        self.values = [*dict.fromkeys([*reduced, *(slot for part in made for slot in part.makes)])]
        self.loops = list(self._planned())

    def _planned(self) -> Iterator[_Loop]:
        program, whole = self.program, (*self.program.rows, *self.program.columns)
        yield from self._after(program.before, -1)
        for p, step in enumerate(program.passes):
            for n, reduce in enumerate(step.reduces):
                core_input = step.each.expression.results[n]
                loop = self._loop(step.each, whole, [(n, -1)])
                loop = loop.ordered(self.order.axes)
                yield replace(
                    loop, stores=(), core_input=core_input, how=reduce.how, into=self._value(reduce.result)
                )
            if step.stores:
                stores = enumerate(step.stores, len(step.reduces))
                loop = self._loop(step.each, whole, [(k, program.stores[n].position) for k, n in stores])
                yield loop.ordered(self.order.stores)
            yield from self._after(step.after, p)

    def _after(self, part: Part, p: int) -> Iterator[_Loop]:
        """Row values that are made after pass p, and those that then leave."""
        program = self.program
        if part.makes:
            loop = self._loop(part, program.rows, [(k, self._value(s)) for k, s in enumerate(part.makes)])
            yield loop.ordered(self.row_axes)
        for store in [program.stores[n] for n, after in program.kept if after == p]:
            copy = Expression("copy", (), (program.dtypes[store.slot],), frozenset(), 1, (0,))
            part = Part(copy, (store.slot,), (store.slot,))
            yield self._loop(part, program.rows, [(0, store.position)]).ordered(self.row_axes)

    def _value(self, slot: int) -> int:
        return self.results + self.values.index(slot)

    def _loop(self, part: Part, shape: Shape, stores: list[tuple[int, int]]) -> _Loop:
        """With some of the part's results: (which, where to)."""
        program, rank = self.program, len(shape)
        steps = (*_row_strides(program, self.order.axes), *[0] * len(program.columns))
        loads = [
            program.loads[s] if s < len(program.loads)
            else Load(self.operands + self.values.index(s), program.dtypes[s], steps)
            for s in part.takes
        ]  # fmt: skip
        chosen = tuple(part.expression.results[k] for k, _ in stores)
        return _Loop(
            shape, tuple(load._replace(strides=load.strides[:rank]) for load in loads),
            tuple((slot, to) for slot, (_, to) in zip(chosen, stores)), replace(part.expression, results=chosen),
        )  # fmt: skip


def _binder(plan: _Plan, region: RegionSpec):
    """`bind(operands, results)`: a call of all loops, for a block of rows after the other; each call has row values of its own."""
    from .compiler.loops import FoldLoop, MapLoop

    program, order = plan.program, plan.order
    shape = tuple([program.rows[axis] for axis in plan.row_axes])
    values = [TensorDesc.dense(TensorSpec(shape, program.dtypes[s].compute)) for s in plan.values]
    operands, results = (*region.operands, *values), (*region.results, *values)
    built: list[Any] = []
    sizes = order.outer, program.length, order.inner
    for loop in plan.loops:
        map = MapLoop(loop, operands, results)
        if loop.core_input is None:
            built.append(map)
        else:
            built.append(
                FoldLoop(loop.how, loop.dtypes[loop.core_input], map, False, None, sizes, order.inner > 1)
            )
    step = _rows_at_once(plan, region)

    def bind(operands, results):
        if not any(d.numel for d in region.results):
            return lambda: None  # folds divide by the number of rows
        rows = [np.empty(d.shape, d.dtype.numpy) for d in values]
        ins, outs = [*operands, *rows], [*results, *rows]
        if step >= order.outer:
            calls = [
                made.bind(ins, outs, outs[loop.into]) if loop.how else made.bind(ins, outs)
                for made, loop in zip(built, plan.loops)
            ]

            def run():
                for call in calls:
                    call()

            return run
        spans = [
            (made.bind_span(ins, outs, outs[loop.into]), 1)
            if loop.how
            else (made.bind_span(ins, outs), loop.numel // order.outer)
            for made, loop in zip(built, plan.loops)
        ]

        def run_blocks():
            for first in range(0, order.outer, step):
                count = min(step, order.outer - first)
                for span, size in spans:
                    span(first * size, count * size)

        return run_blocks

    return bind


def _rows_at_once(plan: _Plan, region: RegionSpec) -> int:
    """As many of the outer rows as a cache holds of all that moves, so that later passes find them there."""
    program, order = plan.program, plan.order
    if not order.by_blocks or len(plan.loops) == 1:
        return max(1, order.outer)
    moving = {load.operand: load.dtype.itemsize for n, load in enumerate(program.loads) if n in program.moves}
    each = sum(size for operand, size in moving.items() if operand is not None)
    each += sum(program.dtypes[s.slot].itemsize for s in program.stores if s.slot in program.moves)
    return max(1, BLOCK_BYTES // max(1, each * program.length * order.inner))
