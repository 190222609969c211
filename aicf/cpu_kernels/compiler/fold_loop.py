"""Reductions on the host as LLVM IR: sum, mean, product, max and min of values in memory, or of what a map makes, block by block.

The domain is seen as (outer, reduced, inner) axes. What is reduced is formed in a block of memory that stays in the cache, by the map's
own loop, so the order in which it is added up depends on the domain alone, never on the map. Floats add up in f64, in LANES sums
side by side along a row, or one for each column: as vectors, whose elements are independent.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from llvmlite import ir

from ...rows.program import worst
from .emit import LoopBuilder, memory_type, value_type
from .spec import FOLD_BLOCK, HEAD, LANES, OUT, REDUCED, VALUES, WALK, WIDTH, FoldSpec

VECTOR = 8  # elements of a row that are computed at once
WIDTHS = 16, 4, 1  # the same of columns: as many as there are left


def emit_fold(spec: FoldSpec) -> LoopBuilder:
    """The results of `count` elements of the outer axis from `first` on, for each element of the inner. frame: see spec.py."""
    fold = _Fold(spec)
    (fold.columns if spec.columns else fold.rows)()
    return fold.e


class _Fold:
    """`wide` is the type that values add up in, `narrow` theirs; NumPy's names."""

    def __init__(self, spec: FoldSpec) -> None:
        e = self.e = LoopBuilder()
        self.how, dtype = spec.how, spec.dtype.numpy
        best = self.how in ("max", "min")
        self.narrow = dtype.name
        longest = (
            np.dtype(f"{dtype.kind}8") if dtype.kind in "iu" and self.how != "mean" else np.dtype(np.float64)
        )
        self.wide = dtype.name if best else longest.name
        nothing = worst(self.how, spec.dtype) if best else longest.type(self.how == "prod")
        self.nothing = nothing.item()
        self.walk, out, where, self.reduced, self.width = map(e.in_frame, (WALK, OUT, VALUES, REDUCED, WIDTH))
        self.out, self.scratch = e.pointer(out, self.narrow), e.scratch
        self.feeds = e.icmp_signed("==", where, e.number(0))  # the map, into the scratch memory
        block = e.bitcast(e.scratch, memory_type(self.narrow).as_pointer())
        elsewhere = e.pointer(e.load(e.gep(e.frame, [where])), self.narrow)
        self.values = e.select(self.feeds, block, elsewhere)

    # --- arithmetic, of one element or of a vector --------------------------------------------------------------------

    def join(self, total: Any, other: Any) -> Any:
        e, floats = self.e, self.wide.startswith("float")
        if self.how in ("max", "min"):
            sign = ">" if self.how == "max" else "<"
            compare = (
                e.fcmp_ordered if floats else e.icmp_unsigned if self.wide.startswith("u") else e.icmp_signed
            )
            better = compare(sign, other, total)
            if not floats:
                return e.select(better, other, total)
            nan = e.fcmp_unordered("!=", other, other)  # which stays
            if isinstance(
                total.type, ir.VectorType
            ):  # a condition of two comparisons would leave vectors' registers
                return e.select(nan, other, e.select(better, other, total))
            return e.select(e.or_(better, nan), other, total)  # and two selections would become branches
        if self.how == "prod":
            return (e.fmul if floats else e.mul)(total, other)
        return (e.fadd if floats else e.add)(total, other)

    def widened(self, value: Any, lanes: int) -> Any:
        if self.narrow == self.wide:
            return value
        kind = _of(value_type(self.wide), lanes)
        if self.narrow.startswith("float"):
            return self.e.fpext(value, kind)
        unsigned = self.narrow.startswith("u")
        if self.wide.startswith("float"):
            return (self.e.uitofp if unsigned else self.e.sitofp)(value, kind)
        return (self.e.zext if unsigned else self.e.sext)(value, kind)

    def finished(self, total: Any, lanes: int) -> Any:
        """The result of a sum, in the type of the values."""
        e = self.e
        if self.how == "mean":
            total = e.fdiv(total, self._spread(e.sitofp(self.reduced, value_type(self.wide)), lanes))
        if self.narrow == self.wide:
            return total
        kind = _of(value_type(self.narrow), lanes)
        if self.wide.startswith("float"):
            unsigned = e.fptoui if self.narrow.startswith("u") else e.fptosi
            return (e.fptrunc if self.narrow.startswith("float") else unsigned)(total, kind)
        return e.trunc(total, kind)

    def begin(self, lanes: int) -> Any:
        kind = value_type(self.wide)
        return ir.Constant(
            _of(kind, lanes), [ir.Constant(kind, self.nothing)] * lanes if lanes > 1 else self.nothing
        )

    def _spread(self, value: Any, lanes: int) -> Any:
        if lanes == 1:
            return value
        kind = _of(value.type, lanes)
        one = self.e.insert_element(ir.Constant(kind, ir.Undefined), value, ir.IntType(32)(0))
        return self.e.shuffle_vector(one, one, _indices([0] * lanes))

    # --- memory -------------------------------------------------------------------------------------------------------

    def _at(self, pointer: Any, index: Any, lanes: int) -> Any:
        place = self.e.gep(pointer, [index])
        return place if lanes == 1 else self.e.bitcast(place, _of(pointer.type.pointee, lanes).as_pointer())

    def load_wide(self, pointer: Any, index: Any, lanes: int) -> Any:
        return self.e.load(self._at(pointer, index, lanes), align=np.dtype(self.wide).itemsize)

    def load_value(self, index: Any, lanes: int) -> Any:
        """One of the values, wide."""
        loaded = self.e.load(self._at(self.values, index, lanes), align=np.dtype(self.narrow).itemsize)
        return self.widened(loaded, lanes)

    def store(self, value: Any, pointer: Any, index: Any, lanes: int, name: str) -> None:
        self.e.store(value, self._at(pointer, index, lanes), align=np.dtype(name).itemsize)

    def add_to(self, sums: Any, place: Any, value: Any, lanes: int) -> None:
        self.store(self.join(self.load_wide(sums, place, lanes), value), sums, place, lanes, self.wide)

    def feed(self, needed: Any, first: Any, count: Any) -> None:
        """The map's loop makes `count` values from position `first` on, if it is needed."""
        e = self.e
        with e.if_then(e.and_(needed, e.icmp_signed("!=", self.walk, e.number(0)))):
            e.call_loop(self.walk, e.gep(e.frame, [e.number(HEAD)]), self.scratch, first, count)

    # --- rows ---------------------------------------------------------------------------------------------------------

    def rows(self) -> None:
        """Rows of less than LANES elements are added up in their order; many short ones are fed at a time."""
        e, reduced = self.e, self.reduced
        block, end = e.number(FOLD_BLOCK), e.add(e.first, e.total)
        group = self._as_many(reduced)
        fits, short = e.icmp_signed("<=", reduced, block), e.icmp_signed("<", reduced, e.number(LANES))
        sums = e.variable(value_type(self.wide), count=LANES)
        with e.count_up(e.first, end, group) as first:
            many = e.least(group, e.sub(end, first))
            self.feed(fits, e.mul(first, reduced), e.mul(many, reduced))
            with e.count_up(first, e.add(first, many)) as row:
                at = e.mul(e.select(self.feeds, e.sub(row, first), row), reduced)
                with e.if_else(short) as (then, otherwise):
                    with then:
                        self.store(self.finished(self._short(at), 1), self.out, row, 1, self.narrow)
                    with otherwise:
                        total = self._long(sums, fits, row, at)
                        self.store(self.finished(total, 1), self.out, row, 1, self.narrow)

    def _as_many(self, size: Any) -> Any:
        """How many rows of that size a block has, at least one."""
        e, one = self.e, self.e.number(1)
        some = e.select(e.icmp_signed(">", size, one), size, one)
        count = e.udiv(e.number(FOLD_BLOCK), some)
        return e.select(e.icmp_signed(">", count, one), count, one)

    def _short(self, at: Any) -> Any:
        e, total = self.e, self.e.variable(value_type(self.wide))
        e.store(self.begin(1), total)
        done = e.number(0)
        for many in (4, 1):
            end = e.and_(self.reduced, e.number(-many))
            with e.count_up(done, end, e.number(many)) as i:
                for n in range(many):
                    value = self.load_value(e.add(at, e.add(i, e.number(n))), 1)
                    e.store(self.join(e.load(total), value), total)
            done = end
        return e.load(total)

    def _long(self, sums: Any, fits: Any, row: Any, at: Any) -> Any:
        """Lane by lane, block by block; then the lanes' sums as one, in halves."""
        e, reduced = self.e, self.reduced
        for lane in range(0, LANES, VECTOR):
            self.store(self.begin(VECTOR), sums, e.number(lane), VECTOR, self.wide)
        with e.count_up(e.number(0), reduced, e.number(FOLD_BLOCK)) as done:
            count = e.least(e.number(FOLD_BLOCK), e.sub(reduced, done))
            self.feed(e.not_(fits), e.add(e.mul(row, reduced), done), count)
            self._add_row(sums, e.add(at, e.select(self.feeds, e.number(0), done)), count)
        half = LANES // 2
        total = self.join(*(self.load_wide(sums, e.number(n), half) for n in (0, half)))
        while half > 1:
            half //= 2
            total = self.join(self._some(total, 0, half), self._some(total, half, half))
        return total

    def _some(self, vector: Any, first: int, count: int) -> Any:
        if count == 1:
            return self.e.extract_element(vector, ir.IntType(32)(first))
        return self.e.shuffle_vector(vector, vector, _indices(range(first, first + count)))

    def _add_row(self, sums: Any, at: Any, count: Any) -> None:
        """Elements at .. at + count into LANES sums. Eight elements are joined before a sum is touched."""
        e = self.e
        long, whole = (e.add(at, e.and_(count, e.number(-many))) for many in (8 * LANES, LANES))
        lanes = range(0, LANES, VECTOR)
        parts = [
            e.variable(_of(value_type(self.wide), VECTOR)) for _ in lanes
        ]  # in registers, as long as they are needed
        for lane, part in zip(lanes, parts):
            e.store(self.load_wide(sums, e.number(lane), VECTOR), part)
        with e.count_up(at, long, e.number(8 * LANES)) as first:
            for lane, part in zip(lanes, parts):
                some = [self.load_value(e.add(first, e.number(lane + n * LANES)), VECTOR) for n in range(8)]
                while len(some) > 1:
                    some = [self.join(a, b) for a, b in zip(some[::2], some[1::2])]
                e.store(self.join(e.load(part), some[0]), part)
        with e.count_up(long, whole, e.number(LANES)) as first:
            for lane, part in zip(lanes, parts):
                value = self.load_value(e.add(first, e.number(lane)), VECTOR)
                e.store(self.join(e.load(part), value), part)
        for lane, part in zip(lanes, parts):
            self.store(e.load(part), sums, e.number(lane), VECTOR, self.wide)
        with e.count_up(e.number(0), e.sub(e.add(at, count), whole)) as lane:
            self.add_to(sums, lane, self.load_value(e.add(whole, lane), 1), 1)

    # --- columns ------------------------------------------------------------------------------------------------------

    def columns(self) -> None:
        """A sum for each column, as many columns at a time as a block has elements; many short rows are fed at a time."""
        e, reduced, width, zero = self.e, self.reduced, self.width, self.e.number(0)
        chunk, group, always = (
            e.least(width, e.number(FOLD_BLOCK)),
            self._as_many(width),
            ir.Constant(ir.IntType(1), 1),
        )
        sums = e.bitcast(e.gep(e.scratch, [e.number(8 * FOLD_BLOCK)]), value_type(self.wide).as_pointer())
        with e.count_up(e.first, e.add(e.first, e.total)) as o, e.count_up(zero, width, chunk) as column:
            n = e.least(chunk, e.sub(width, column))
            self._across(n, lambda j, lanes: self.store(self.begin(lanes), sums, j, lanes, self.wide))
            with e.count_up(zero, reduced, group) as first:
                many = e.least(group, e.sub(reduced, first))
                start = e.add(e.mul(e.add(e.mul(o, reduced), first), width), column)
                self.feed(always, start, e.mul(many, n))
                with e.count_up(zero, many) as row:
                    at = e.select(self.feeds, e.mul(row, n), e.add(start, e.mul(row, width)))
                    self._across(
                        n, lambda j, lanes: self.add_to(sums, j, self.load_value(e.add(at, j), lanes), lanes)
                    )
            to = e.add(e.mul(o, width), column)
            self._across(
                n,
                lambda j, lanes: self.store(
                    self.finished(self.load_wide(sums, j, lanes), lanes),
                    self.out,
                    e.add(to, j),
                    lanes,
                    self.narrow,
                ),
            )

    def _across(self, count: Any, body: Callable[[Any, int], None]) -> None:
        """body(first, how many) for so many columns, in vectors of WIDTHS."""
        e, done = self.e, self.e.number(0)
        for lanes in WIDTHS:
            end = e.and_(count, e.number(-lanes))
            with e.count_up(done, end, e.number(lanes)) as j:
                body(j, lanes)
            done = end


def _of(kind: Any, lanes: int) -> Any:
    return kind if lanes == 1 else ir.VectorType(kind, lanes)


def _indices(places: Sequence[int] | range) -> Any:
    kind = ir.IntType(32)
    return ir.Constant(ir.VectorType(kind, len(places)), [kind(n) for n in places])
