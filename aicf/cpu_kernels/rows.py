"""Rows on the host: softmax, norms and the like, a pass over all rows for each reduction and one for the results."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ..registry.cost import Cost, host_memory_us, one_launch, roofline
from ..registry.program import Expression, Load, Shape
from ..registry.row_program import Part, RowProgram, read_rows
from ..registry.variant import HostCall, Reject, variant
from ..rows import RegionSpec
from ..types import DType, TensorDesc, TensorSpec, numel, row_major
from .costs import ARRAY_US, CALL_US, EFFICIENCY
from .elementwise import loops_take
from .reduce import ADD_US, ROW_US, SHORT_ROW_US


@variant("map", "reduce", "rows", id="cpu.rows_loop.v1", takes=("rows",))
class RowsLoop:
    """A loop for each reduction, one for the results, and loops over row values, which are arrays of their own, in between.

    Reductions add up in f64, as those alone do. Bytes: operands once for each pass, results once.
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
        order = _order(program)
        for store in program.stores:
            if store.slot in program.moves:
                if program.count * program.length and _dense(program, order) != store.strides:
                    yield Reject("access", f"result {store.position} is written in another order than others")
            elif _dense(program, range(len(program.rows))) != store.strides:
                yield Reject(
                    "access", f"result {store.position} is written in another order than rows are read"
                )

    least = one_launch

    def cost(region, device):
        program = read_rows(region)
        terms = {"launch": device.launch_us, "call": 0.0, "memory": 0.0, "compute": 0.0, "sums": 0.0}
        for loop in _Plan(program, region).loops:
            tensors = [
                region.operands[x.operand]
                for x in loop.loads
                if x.operand is not None and x.operand < len(region.operands)
            ]
            tensors += [region.results[p] for _, p in loop.stores if p < len(region.results)]
            terms["call"] += CALL_US + ARRAY_US * (len(loop.loads) + len(loop.stores))
            memory = math.fsum([host_memory_us(device, t.nbytes) for t in tensors])
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


def _order(program: RowProgram) -> list[int]:
    """The domain's axes as results have them, in which they are walked where results are written."""
    strides = next((s.strides for s in program.stores if s.slot in program.moves), None)
    axes = range(len(program.rows) + len(program.columns))
    return sorted(axes, key=lambda axis: -strides[axis]) if strides else list(axes)


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

    how, into  what is done to what it feeds, and which result that is; "" if nothing is fed
    """

    shape: Shape
    loads: tuple[Load, ...]
    stores: tuple[tuple[int, int], ...]
    expression: Expression
    fed: int | None = None
    how: str = ""
    into: int = -1
    carried: int = 0

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
        made = [program.before, *(step.after for step in program.passes)]
        reduced = [reduce.result for step in program.passes for reduce in step.reduces]
        self.values = [*dict.fromkeys([*reduced, *(slot for part in made for slot in part.makes)])]
        self.loops = list(self._planned())

    def _planned(self) -> Iterator[_Loop]:
        program, whole = self.program, (*self.program.rows, *self.program.columns)
        yield from self._after(program.before, -1)
        for p, step in enumerate(program.passes):
            for n, reduce in enumerate(step.reduces):
                fed = step.each.expression.results[n]
                loop = self._loop(step.each, whole, [(n, -1)])
                yield replace(loop, stores=(), fed=fed, how=reduce.how, into=self._value(reduce.result))
            if step.stores:
                stores = enumerate(step.stores, len(step.reduces))
                loop = self._loop(step.each, whole, [(k, program.stores[n].position) for k, n in stores])
                yield loop.ordered(_order(program))
            yield from self._after(step.after, p)

    def _after(self, part: Part, p: int) -> Iterator[_Loop]:
        """Row values that are made after pass p, and those that then leave."""
        program = self.program
        if part.makes:
            yield self._loop(part, program.rows, [(k, self._value(s)) for k, s in enumerate(part.makes)])
        for store in [program.stores[n] for n, after in program.kept if after == p]:
            copy = Expression("copy", (), (program.dtypes[store.slot],), frozenset(), 1, (0,))
            yield self._loop(Part(copy, (store.slot,), (store.slot,)), program.rows, [(0, store.position)])

    def _value(self, slot: int) -> int:
        return self.results + self.values.index(slot)

    def _loop(self, part: Part, shape: Shape, stores: list[tuple[int, int]]) -> _Loop:
        """With some of the part's results: (which, where to)."""
        program, rank = self.program, len(shape)
        steps = (*row_major(program.rows), *[0] * len(program.columns))
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
    """`bind(operands, results)`: a call of all loops; each call has row values of its own."""
    from .loops import FoldLoop, MapLoop

    program = plan.program
    values = [TensorDesc.dense(TensorSpec(program.rows, program.dtypes[s].compute)) for s in plan.values]
    operands, results = (*region.operands, *values), (*region.results, *values)
    built: list[Any] = []
    for loop in plan.loops:
        map = MapLoop(loop, operands, results)
        sizes = program.count, program.length, 1
        if loop.fed is None:
            built.append(map)
        else:
            built.append(FoldLoop(loop.how, loop.dtypes[loop.fed], map, False, None, sizes, False))

    def bind(operands, results):
        rows = [np.empty(d.shape, d.dtype.numpy) for d in values]
        ins, outs = [*operands, *rows], [*results, *rows]
        calls = [
            made.bind(ins, outs, outs[loop.into]) if loop.how else made.bind(ins, outs)
            for made, loop in zip(built, plan.loops)
        ]

        def run():
            for call in calls:
                call()

        return run

    return bind
