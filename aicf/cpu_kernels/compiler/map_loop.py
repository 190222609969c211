"""A map as LLVM IR: scalar functions called in order, at each element of a run along the innermost axis, by one vectorised loop.

A run goes in blocks: results of a block are formed in stack memory and then copied. So every operand of an element is read before a
result is written, a result may be written over an operand, and LLVM vectorises without checks of which pointers overlap.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from ...rows.program import Bound
from ...types import DType
from . import halves
from .emit import LoopBuilder, memory_type
from .spec import APART, NEXT, REPEATED, MapSpec

BLOCK = 256  # elements of a result that are on the stack at a time

_WIDEN = {
    DType.f16: halves.widen_f16, DType.bf16: halves.widen_bf16, DType.f8e4m3: halves.widen_e4m3, DType.f8e5m2: halves.widen_e5m2,
}  # fmt: skip
_NARROW = {
    DType.f16: halves.narrow_f16, DType.bf16: halves.narrow_bf16, DType.f8e4m3: halves.narrow_e4m3,
    DType.f8e5m2: halves.narrow_e5m2,
}  # fmt: skip
_BITS = "uint16", "uint8"  # that loops see halves and fp8 as


def emit_map(spec: MapSpec) -> LoopBuilder:
    """The expression at `count` positions of the domain from `first` on. frame: arrays, targets, columns of the plan, plan (see MapLoop).

    Position p is stored at p in the targets, and at p - first in the block, which is the scratch memory.
    """
    e = LoopBuilder()
    run = _MapRun(e, spec)
    at = len(spec.arrays) + len(spec.targets)
    columns, plan = e.in_frame(at), e.gep(e.frame, [e.number(at + 1)])
    last = e.sub(columns, e.number(1))
    innermost = e.sub(last, e.number(1))

    def planned(row: int, column: Any) -> Any:
        return e.load(e.gep(plan, [e.add(e.mul(e.number(row), columns), column)]))

    count = range(spec.expression.arguments)
    run.strides = {k: planned(k + 1, innermost) for k in count if spec.walks[k] == APART}
    begins = [planned(k + 1, last) for k in count]
    size, starts = planned(0, innermost), [e.variable(begin.type) for begin in begins]
    end, position = e.add(e.first, e.total), e.variable(e.first.type, e.first)
    coordinates = e.variable(e.first.type)  # of the axes that are left, as one number

    def go(axis: Any, coordinate: Any) -> None:
        for k in count:
            step = e.mul(coordinate, planned(k + 1, axis))
            e.store(e.add(e.load(starts[k]), step), starts[k])

    with e.repeat(lambda: e.icmp_signed("<", e.load(position), end)):
        here = e.load(position)
        for k in count:
            e.store(begins[k], starts[k])
        e.store(here, coordinates)
        with e.count_up(e.number(0), innermost) as n:
            axis, number = e.sub(innermost, n), e.load(coordinates)
            extent = planned(0, axis)
            rest = e.udiv(number, extent)
            go(axis, e.sub(number, e.mul(rest, extent)))
            e.store(rest, coordinates)
        go(e.number(0), e.load(coordinates))
        n = e.least(e.sub(end, here), e.sub(size, e.urem(here, size)))
        run.emit([e.load(start) for start in starts], here, e.sub(here, e.first), n)
        e.store(e.add(here, n), position)
    return e


class _MapRun:
    """Elements along the innermost axis: the expression's slots, and how arguments are read."""

    def __init__(self, emitter: LoopBuilder, spec: MapSpec) -> None:
        e = self.e = emitter
        self.spec, self.expression = spec, spec.expression
        self.bounds = spec.bounds or ((),) * len(spec.sources)
        self.strides: dict[int, Any] = {}
        self.arrays = [e.pointer(e.in_frame(n), name) for n, name in enumerate(spec.arrays)]
        first = len(spec.arrays)
        self.outs = [e.pointer(e.in_frame(first + n), name) for n, name in enumerate(spec.targets)]
        self.targets = list(spec.targets)
        if spec.block is not None:
            self.outs.append(e.bitcast(e.scratch, memory_type(spec.block).as_pointer()))
            self.targets.append(spec.block)
        self.blocks = [e.variable(memory_type(name), count=BLOCK) for name in self.targets]

    def emit(self, starts: Sequence[Any], position: Any, place: Any, total: Any) -> None:
        """`total` elements, at least one.

        starts    of each argument, its first element
        position  of the first element in the targets; place: in the block
        """
        e, spec, walks = self.e, self.spec, self.spec.walks
        count = range(self.expression.arguments)
        repeated: dict[int, Any] = {}  # arguments that are the same for all of the run
        for k in count:
            if walks[k] == REPEATED and all(
                slot in repeated for bound in self.bounds[k] for slot in bound.slots
            ):
                repeated[k] = self._argument(k, starts, e.number(0), repeated)
        # Bounds of coordinates that go on by one end blocks. So they hold for all of a block, or nowhere in it, and it is loaded
        # without a check, from zeros if need be.
        moving = {k for k in count if walks[k] == NEXT and spec.sources[k] is None and not self.bounds[k]}
        ends = [
            b
            for k in count
            for b in self.bounds[k]
            if b.slot in moving and b.every == 1 and b.stride is None and b.size in repeated
        ]
        steady = [
            k for k in count
            if self.bounds[k] and k not in repeated
            and all(b in ends or all(slot in repeated for slot in b.slots) for b in self.bounds[k])
        ]  # fmt: skip
        zeros = e.zeros(8 * BLOCK) if steady else None
        with self._each_block(total, [(starts[b.slot], repeated[b.size]) for b in ends]) as (start, size):
            known = {**repeated, **{m: e.add(starts[m], start) for m in moving}}
            bases = {k: self._base(k, starts, start, known, zeros) for k in steady}
            with e.count_up(e.number(0), size) as index:
                i, given = e.add(start, index), list[Any]()
                for k in count:
                    if k in repeated:
                        given.append(repeated[k])
                    elif k in bases:
                        first, step = bases[k]
                        given.append(first if step is None else self._load(k, first, e.mul(index, step)))
                    else:
                        given.append(self._argument(k, starts, i, given))
                for slot, value, name, block in zip(
                    self.expression.results, self.evaluate(given), self.targets, self.blocks
                ):
                    e.write(self.narrowed(slot, value) if self._is_bits(slot, name) else value, block, index)
            for n, (block, out) in enumerate(zip(self.blocks, self.outs)):
                begin = position if n < len(spec.targets) else place
                nbytes = e.mul(size, e.number(np.dtype(self.targets[n]).itemsize))
                e.copy(e.gep(out, [e.add(begin, start)]), block, nbytes)

    @contextmanager
    def _each_block(self, total: Any, ends: Sequence[tuple[Any, Any]]) -> Iterator[tuple[Any, Any]]:
        """(where it begins, how many elements) of each block. `ends`: (coordinate at 0, size): it ends where the coordinate comes
        to 0 or to the size."""
        e, most = self.e, self.e.number(BLOCK)
        if not ends:
            with e.count_up(e.number(0), total, most) as start:
                yield start, e.least(e.sub(total, start), most)
            return
        place, zero = e.variable(total.type), e.number(0)
        e.store(zero, place)
        with e.repeat(lambda: e.icmp_signed("<", e.load(place), total)):
            start = e.load(place)
            size = e.least(e.sub(total, start), most)
            for first, extent in ends:
                at = e.add(first, start)
                ahead = e.select(e.icmp_signed("<", at, extent), e.sub(extent, at), most)
                size = e.least(size, e.select(e.icmp_signed("<", at, zero), e.neg(at), ahead))
            yield start, size
            e.store(e.add(start, size), place)

    # --- arguments ----------------------------------------------------------------------------------------------------

    def _load(self, k: int, pointer: Any, index: Any) -> Any:
        source = self.spec.sources[k]
        assert source is not None
        name = self.spec.arrays[source]
        loaded = self.e.read(pointer, index, name)
        return self.widened(k, loaded) if self._is_bits(k, name) else loaded

    def _walked(self, k: int, starts: Sequence[Any], i: Any) -> Any:
        """Which element argument k has at the i-th of a run."""
        if self.spec.walks[k] == REPEATED:
            return starts[k]
        return self.e.add(starts[k], i if self.spec.walks[k] == NEXT else self.e.mul(i, self.strides[k]))

    def _argument(self, k: int, starts: Sequence[Any], i: Any, values: Any) -> Any:
        """Its value; `values`: of the arguments that its bounds read, by their slots."""
        e, source = self.e, self.spec.sources[k]
        if not self.bounds[k]:
            where = self._walked(k, starts, i)
            return where if source is None else self._load(k, self.arrays[source], where)
        inside, further = self._bounded(k, values)
        if source is None:
            return inside
        where = e.add(self._walked(k, starts, i), further)
        return e.where(inside, lambda: self._load(k, self.arrays[source], where))

    def _base(
        self, k: int, starts: Sequence[Any], start: Any, values: Any, zeros: Any
    ) -> tuple[Any, Any | None]:
        """Of an argument whose bounds are the same for all of a block: the mask, or a pointer and how it goes on."""
        e, source, walk = self.e, self.spec.sources[k], self.spec.walks[k]
        inside, further = self._bounded(k, values)
        if source is None:
            return inside, None
        pointer = e.gep(self.arrays[source], [e.add(self._walked(k, starts, start), further)])
        step = self.strides[k] if walk == APART else e.number(int(walk == NEXT))
        if walk == APART:
            step = e.select(inside, step, e.number(0))
        return e.select(inside, pointer, e.bitcast(zeros, pointer.type)), step

    def _bounded(self, k: int, values: Any) -> tuple[Any, Any]:
        """Whether all bounds of argument k hold, and how far they lead its load."""
        e, all_hold, further = self.e, None, self.e.number(0)
        for bound in self.bounds[k]:
            holds, index = self._inside(bound, values)
            all_hold = holds if all_hold is None else e.and_(all_hold, holds)
            if bound.stride is not None:
                further = e.add(further, e.mul(index, values[bound.stride]))
        return all_hold, further

    def _inside(self, bound: Bound, values: Any) -> tuple[Any, Any]:
        """(whether a bound holds, the index)."""
        e, index, size = self.e, values[bound.slot], values[bound.size]
        zero = e.number(0)
        if index.type != zero.type:
            index = e.sext(index, zero.type)
        if bound.wraps:
            index = e.select(e.icmp_signed("<", index, zero), e.add(index, size), index)
        if bound.every == 1:
            return e.icmp_unsigned("<", index, size), index
        every = e.number(bound.every)
        whole = e.udiv(index, every)
        even = e.icmp_unsigned("==", e.mul(whole, every), index)
        return e.and_(even, e.icmp_unsigned("<", whole, size)), whole

    # --- the expression -----------------------------------------------------------------------------------------------

    def _is_bits(self, slot: int, name: str) -> bool:
        """Whether memory of this type has a slot's floats as bits; u8 and u16 are what they are."""
        return self.expression.dtypes[slot] in _WIDEN and name in _BITS

    def widened(self, slot: int, value: Any) -> Any:
        dtype = self.expression.dtypes[slot]
        bits = _BITS[dtype.itemsize == 1]
        return self.e.scalar(_WIDEN[dtype], [bits], ["float32"], [value])[0]

    def narrowed(self, slot: int, value: Any) -> Any:
        dtype = self.expression.dtypes[slot]
        bits = _BITS[dtype.itemsize == 1]
        return self.e.scalar(_NARROW[dtype], ["float32"], [bits], [value])[0]

    def evaluate(self, values: Sequence[Any]) -> list[Any]:
        """The results, in their compute types, of the arguments' values."""
        expression, slots = self.expression, dict[int, Any]()

        def settle(slot: int, value: Any) -> None:
            slots[slot] = (
                self.widened(slot, self.narrowed(slot, value)) if slot in expression.rounded else value
            )

        for slot, value in enumerate(values):
            settle(slot, value)
        for function, ins, outs in expression.steps:
            operands, results = self._names(ins), self._names(outs)
            made = self.e.scalar(function, operands, results, [slots[i] for i in ins])
            for slot, value in zip(outs, made):
                settle(slot, value)
        return [slots[slot] for slot in expression.results]

    def _names(self, slots: Sequence[int]) -> list[str]:
        return [self.expression.dtypes[slot].compute.numpy.name for slot in slots]
