"""A thread's part of a row: what it loads, what it makes of it in each pass, and what it stores (see rows.py)."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ...rows.row_program import Part, Pass
from ...types import DType, bf16, f16
from ..dsl import deferred, device, device_calls, intrinsic, ir, types, with_functions
from ..llvm import capability, const, emit_call
from ..ptx import approximate, assemble
from ..tiles.index import GIVEN
from ..tiles.storage import (
    decode,
    emit_load,
    emit_store,
    emit_store_vector,
    encode,
    numba_type,
    per_word,
    unpack,
)

AHEAD_WORDS = 12
HALVES, PAIRS_SINCE = (f16, bf16), (8, 0)  # compute capability: two are rounded by one instruction


@dataclass(frozen=True)
class Rows:
    """What a kernel is made for. Walks are over the axes of the rows, and last along the columns.

    ins      of each load: its element type, None where it is the index itself
    moves    which loads move along the columns, by one
    outs     of each store: (slot, element type, whether it moves)
    kept     stores of row values, and the pass after which they are known
    lanes    threads of a block that have a row; with those of all blocks of a `cluster`, if they are more than one
    width    neighbours in one load
    whole    of a thread's `chunks` of neighbours, the first ones that are inside of every row
    steps    of each load and then each store along the columns: 0, 1, or GIVEN, a number that the kernel is called with
    anchor   of the loads and then the stores the one by which rows are cut: its runs of `width` begin at multiples of it in memory,
             and what is left of a row at its ends goes element by element; -1: rows begin at such multiples, all of them
    loose    of each load and then each store: its runs don't begin at multiples of the width
    late     of each load: it is the same for all rows, and loaded where it is used, instead of staying in registers
    fast     results are halves: exp is as exact as these need it
    """

    ins: tuple[DType | None, ...]
    moves: tuple[bool, ...]
    outs: tuple[tuple[int, DType, bool], ...]
    before: Part
    passes: tuple[Pass, ...]
    kept: tuple[tuple[int, int], ...]
    dtypes: tuple[DType, ...]
    lanes: int
    block: int
    cluster: int
    width: int
    chunks: int
    resident: bool
    whole: int
    steps: tuple[int, ...]
    anchor: int
    loose: tuple[bool, ...]
    late: tuple[bool, ...]
    fast: bool

    @property
    def spread(self) -> int:
        """Threads that have a row."""
        return self.lanes * self.cluster

    @property
    def ends(self) -> Rows:
        """Of what is left at the ends of a row: an element for each thread, at most, which stays at hand."""
        return replace(self, width=1, chunks=1, whole=0, anchor=-1, resident=True)

    def row_slots(self, p: int) -> tuple[int, ...]:
        """Slots of row values that are known before pass p, in the order that kernels have them."""
        slots = [n for n, moves in enumerate(self.moves) if not moves]
        for part, reduces in [(self.before, ()), *((q.after, q.reduces) for q in self.passes)][: p + 1]:
            slots += [s for s in (*(r.result for r in reduces), *part.makes) if s not in slots]
        return tuple(slots)


def combine(how: str) -> Any:
    """fn(a, b), and what it begins with."""
    if how == "max":
        return lambda a, b: a if a > b or a != a else b, float("-inf")
    if how == "min":
        return lambda a, b: a if a < b or a != a else b, float("inf")
    if how == "prod":
        return lambda a, b: a * b, 1.0
    return lambda a, b: a + b, 0.0


def functions(r: Rows) -> tuple[tuple[str, Any], ...]:
    """In the place of those that maps call by these names. 2^(x log2 e) is off by 2^-24 |x| and 2^-22 of itself: below -16, where an f16
    has no more numbers, by 1e-6."""
    if not r.fast:
        return ()
    exp2, log2e = approximate("exp2"), np.float32(1.4426950408889634)
    return (("exp", device(lambda x: exp2(x * log2e))),)


def _row_kind(r: Rows, p: int) -> Any:
    return types.BaseTuple.from_types([numba_type(r.dtypes[s]) for s in r.row_slots(p)])


def _evaluated(ctx: Any, b: Any, part: Part, known: dict[int, Any], fast: Any) -> list[Any]:
    """As element.emit_expression, but that halves are rounded by an instruction, where there is one."""
    expr, slots = part.expression, {}

    def put(slot: int, value: Any) -> None:
        slots[slot] = _rounded(ctx, b, expr.dtypes[slot], value) if slot in expr.rounded else value

    for slot, taken in enumerate(part.takes):
        put(slot, known[taken])
    for fn, arguments, made in expr.steps:
        kinds = [numba_type(expr.dtypes[s]) for s in made]
        result = kinds[0] if len(made) == 1 else types.BaseTuple.from_types(kinds)
        given = [numba_type(expr.dtypes[s]) for s in arguments]
        called = device_calls(with_functions(fn, dict(fast)) if fast else fn)
        value = emit_call(ctx, b, called, result, given, [slots[s] for s in arguments])
        for k, slot in enumerate(made):
            put(slot, value if len(made) == 1 else b.extract_value(value, k))
    return [slots[s] for s in expr.results]


def _rounded(ctx: Any, b: Any, dtype: DType, value: Any) -> Any:
    if dtype in HALVES and capability() >= PAIRS_SINCE:
        return unpack(ctx, b, dtype, [_pair(b, dtype, value, ir.Constant(ir.FloatType(), 0.0))])[0]
    return decode(ctx, b, dtype, encode(ctx, b, dtype, value))


def _pair(b: Any, dtype: DType, low: Any, high: Any) -> Any:
    """Two f32 as halves in a word. `cvt.rn.bf16x2.f32`, sm_80."""
    return assemble(b, f"cvt.rn.{dtype.name}x2.f32 $0, $2, $1;", "=r,f,f", ir.IntType(32), [low, high])


def _store_run(ctx: Any, b: Any, dtype: DType, values: list[Any], target: Any, loose: bool) -> None:
    if loose or len(values) == 1:
        for k, value in enumerate(values):
            emit_store(ctx, b, dtype, value, b.gep(target, [const(k)]))
        return
    if len(values) % 2 or dtype not in HALVES or capability() < PAIRS_SINCE:
        emit_store_vector(ctx, b, dtype, values, target)
        return
    vector = ir.VectorType(ir.IntType(32), len(values) // 2)
    raw = vector(ir.Undefined)
    for i, (low, high) in enumerate(zip(values[::2], values[1::2])):
        raw = b.insert_element(raw, _pair(b, dtype, low, high), const(i))
    b.store(raw, b.bitcast(target, vector.as_pointer()), align=min(16, 2 * len(values)))


def _load_run(ctx: Any, b: Any, r: Rows, n: int, at: Any) -> list[Any]:
    """As `_parts` has them."""
    dtype, width = r.ins[n], r.width
    assert dtype is not None
    count = per_word(dtype, width)
    if not r.loose[n]:
        word = ir.IntType(32) if count > 1 else at.type.pointee
        vector = ir.VectorType(word, width // count)
        align = min(16, width * dtype.itemsize)
        raw = _load(b, r, n, b.bitcast(at, vector.as_pointer()), align)
        parts = [b.extract_element(raw, const(i)) for i in range(vector.count)]
    else:
        parts = [_load(b, r, n, b.gep(at, [const(k)])) for k in range(width)]
        if count > 1:
            bits, wide = 8 * dtype.itemsize, [b.zext(part, ir.IntType(32)) for part in parts]
            parts = wide[::count]
            for k in range(1, count):
                parts = [b.or_(x, b.shl(y, const(bits * k))) for x, y in zip(parts, wide[k::count])]
    return parts if count > 1 else unpack(ctx, b, dtype, parts)


def _load(b: Any, r: Rows, n: int, at: Any, align: int | None = None) -> Any:
    """What is the same for all rows is no result's memory: said so, loads of it may pass stores."""
    loaded = b.load(at, align=align)
    if r.late[n]:
        loaded.set_metadata("invariant.load", b.module.add_metadata([]))
    return loaded


def _join(ctx: Any, b: Any, how: str, x: Any, y: Any) -> Any:
    if how in ("max", "min") and capability() >= PAIRS_SINCE:
        return assemble(b, f"{how}.NaN.f32 $0, $1, $2;", "=f,f,f", ir.FloatType(), [x, y])
    return emit_call(ctx, b, combine(how)[0], types.float32, [types.float32] * 2, [x, y])


@deferred
def beginner(r: Rows, fast: Any) -> Any:
    """`begin(ins, offsets)`: row values that need no reduction."""

    @intrinsic
    def begin(typing, ins, offsets):
        def codegen(ctx, b, sig, args):
            known, pointer = {}, 0
            for n, dtype in enumerate(r.ins):
                at = b.extract_value(args[1], n)
                if dtype is None:
                    known[n] = at
                    continue
                if not r.moves[n]:
                    known[n] = emit_load(ctx, b, dtype, b.gep(b.extract_value(args[0], pointer), [at]))
                pointer += 1
            known.update(zip(r.before.makes, _evaluated(ctx, b, r.before, known, fast)))
            return ctx.make_tuple(b, sig.return_type, [known[s] for s in r.row_slots(0)])

        return _row_kind(r, 0)(ins, offsets), codegen

    return begin


# --- elements ---------------------------------------------------------------------------------------------------------
#
# A thread's elements are told by `first`, the column of the first of its runs, and `env`: (the column where runs end, that where they
# begin, the steps that are given).


def _along(b: Any, r: Rows, env: Any, n: int, column: Any) -> Any:
    """How far load n, or store n - len(ins), is from its row's beginning."""
    wide = b.sext(column, ir.IntType(64))
    if r.steps[n] != GIVEN:
        return wide
    return b.mul(wide, b.extract_value(env, [2, r.steps[:n].count(GIVEN)]))


def _parts(r: Rows, dtype: DType) -> tuple[Any, int]:
    """What a thread holds of a run: words of 32 bits, or numbers."""
    packed = per_word(dtype, r.width)
    return (types.uint32, r.width // packed) if packed > 1 else (numba_type(dtype), r.width)


def _moving(r: Rows) -> list[tuple[int, DType]]:
    """Loads that stay in registers."""
    return [(n, dtype) for n, dtype in enumerate(r.ins) if r.moves[n] and dtype is not None and not r.late[n]]


def _run_at(
    b: Any, r: Rows, n: int, ins: Any, offsets: Any, env: Any, first: Any, c: int, inside: Any
) -> Any:
    """Where chunk c's run of load n lies; another one of the row, if it is not inside. Those that are inside of every row lie
    at a constant from the first, which costs no instruction."""
    pointer, step = sum(dtype is not None for dtype in r.ins[:n]), c * r.spread * r.width
    base, begin = b.gep(b.extract_value(ins, pointer), [b.extract_value(offsets, n)]), b.extract_value(env, 1)
    if c < r.whole and r.steps[n] != GIVEN:
        return b.gep(b.gep(base, [_along(b, r, env, n, b.select(inside, first, begin))]), [const(step, 64)])
    column = b.add(first, const(step))
    return b.gep(base, [_along(b, r, env, n, b.select(inside, column, begin))])


@deferred
def bringer(r: Rows) -> Any:
    """`bring(ins, offsets, first, env)`: of each operand that moves the thread's runs. What lies beyond the end is a run at the
    beginning instead, and counts for nothing."""
    moving, step = _moving(r), r.spread * r.width
    kinds = [kind for _, dtype in moving for kind, n in [_parts(r, dtype)] for _ in range(n * r.chunks)]
    result = types.BaseTuple.from_types(kinds) if kinds else types.Tuple(())

    @intrinsic
    def bring(typing, ins, offsets, first, env):
        def codegen(ctx, b, sig, args):
            resident = []
            for n, _ in moving:
                for c in range(r.chunks):
                    column = b.add(args[2], const(c * step))
                    if c == 0 or c >= r.whole:
                        inside = b.icmp_signed("<", column, b.extract_value(args[3], 0))
                    resident += _load_run(
                        ctx, b, r, n, _run_at(b, r, n, args[0], args[1], args[3], args[2], c, inside)
                    )
            return ctx.make_tuple(b, sig.return_type, resident)

        return result(ins, offsets, types.int32, env), codegen

    return bring


def _again(b: Any, word: Any, p: int) -> Any:
    """The word, of which the compiler does not know that it is another pass' as well."""
    return assemble(b, f"mov.b32 $0, $1; // pass {p}", "=r,r", ir.IntType(32), [word]) if p else word


def _elements(
    ctx: Any, b: Any, r: Rows, p: int, ins: Any, offsets: Any, resident: Any, first: Any, env: Any
) -> Iterator[tuple[Any, Any, list]]:
    """Of each chunk: its column, whether it is inside, and for each of its elements the values of loads that move, as pass p unpacks
    them: what an earlier pass unpacked would take twice the registers, if it were kept. What is loaded late is so some chunks ahead."""
    moving, step, ahead = _moving(r), r.spread * r.width, _ahead(r)
    places: list[tuple[Any, Any, dict[int, list[Any]]]] = []
    for c in range(r.chunks):
        while len(places) < min(r.chunks, c + ahead):
            column = b.add(first, const(len(places) * step))
            if (
                not places or len(places) >= r.whole
            ):  # else it is, as the first is: but for rows that there are none of
                inside = b.icmp_signed("<", column, b.extract_value(env, 0))
            late = [n for n, late in enumerate(r.late) if late]
            runs = {
                n: _load_run(ctx, b, r, n, _run_at(b, r, n, ins, offsets, env, first, len(places), inside))
                for n in late
            }
            places.append((column, inside, runs))
        column, inside, runs = places[c]
        at = 0
        for n, dtype in moving:
            _, count = _parts(r, dtype)
            words = [b.extract_value(resident, at + c * count + k) for k in range(count)]
            runs[n] = [_again(b, word, p) for word in words] if _parts(r, dtype)[0] is types.uint32 else words
            at += count * r.chunks
        numbers = {}
        for n, given in enumerate(r.ins):
            if n in runs and given is not None:
                numbers[n] = (
                    unpack(ctx, b, given, runs[n]) if _parts(r, given)[0] is types.uint32 else runs[n]
                )
            elif r.moves[n]:
                place = b.add(b.extract_value(offsets, n), _along(b, r, env, n, column))
                numbers[n] = [b.add(place, const(k, 64)) for k in range(r.width)]
        yield column, inside, [{n: values[k] for n, values in numbers.items()} for k in range(r.width)]


def _ahead(r: Rows) -> int:
    """Chunks whose late loads are under way at once: some words of them, as a trip to the L2 cache takes as long as many chunks."""
    words = sum(_parts(r, dtype)[1] for dtype, late in zip(r.ins, r.late) if late and dtype is not None)
    return max(1, AHEAD_WORDS // words) if words else 1


@deferred
def folder(r: Rows, p: int, fast: Any) -> Any:
    """`fold(totals, known, resident, ins, offsets, first, env)`: what pass p reduces of the thread's elements, added to its totals: a
    chunk is added up as a tree, chunks one after the other."""
    step, slots = r.passes[p], r.row_slots(p)
    count = len(step.reduces)

    @intrinsic
    def fold(typing, totals, known, resident, ins, offsets, first, env):
        def codegen(ctx, b, sig, args):
            rows = {s: b.extract_value(args[1], i) for i, s in enumerate(slots)}
            made = [b.extract_value(args[0], n) for n in range(count)]
            for c, (_, inside, each) in enumerate(
                _elements(ctx, b, r, p, args[3], args[4], args[2], args[5], args[6])
            ):
                found = [_evaluated(ctx, b, step.each, {**rows, **values}, fast) for values in each]
                for n, reduce in enumerate(step.reduces):
                    join = functools.partial(_join, ctx, b, reduce.how)
                    values = [results[n] for results in found]
                    while len(values) > 1:
                        left = values[len(values) // 2 * 2 :]
                        values = [join(x, y) for x, y in zip(values[::2], values[1::2])] + left
                    if c >= r.whole:
                        nothing = ir.Constant(ir.FloatType(), combine(reduce.how)[1])
                        values[0] = b.select(inside, values[0], nothing)
                    made[n] = join(made[n], values[0])
            return ctx.make_tuple(b, sig.return_type, made)

        kinds = totals, known, resident, ins, offsets, types.int32, env
        return types.UniTuple(types.float32, count)(*kinds), codegen

    return fold


@deferred
def settler(r: Rows, p: int, fast: Any) -> Any:
    """`finish_pass(known, totals, count)`: row values after pass p, of `count` columns as f32."""
    step, slots = r.passes[p], r.row_slots(p)

    @intrinsic
    def finish_pass(typing, known, totals, count):
        def codegen(ctx, b, sig, args):
            rows = {s: b.extract_value(args[0], i) for i, s in enumerate(slots)}
            for n, reduce in enumerate(step.reduces):
                total = b.extract_value(args[1], n)
                rows[reduce.result] = b.fdiv(total, args[2]) if reduce.how == "mean" else total
            rows.update(zip(step.after.makes, _evaluated(ctx, b, step.after, rows, fast)))
            return ctx.make_tuple(b, sig.return_type, [rows[s] for s in r.row_slots(p + 1)])

        return _row_kind(r, p + 1)(known, totals, types.float32), codegen

    return finish_pass


@deferred
def leaver(r: Rows, p: int, fast: Any) -> Any:
    """`leave(outs, places, known, resident, ins, offsets, first, env)`: results of pass p that move, as far as they are inside."""
    step, slots = r.passes[p], r.row_slots(p)

    @intrinsic
    def leave(typing, outs, places, known, resident, ins, offsets, first, env):
        def codegen(ctx, b, sig, args):
            rows = {s: b.extract_value(args[2], i) for i, s in enumerate(slots)}
            for c, (column, inside, each) in enumerate(
                _elements(ctx, b, r, p, args[4], args[5], args[3], args[6], args[7])
            ):
                with b.if_then(inside):
                    made = [_evaluated(ctx, b, step.each, {**rows, **values}, fast) for values in each]
                    for k, n in enumerate(step.stores, len(step.reduces)):
                        dtype, position = r.outs[n][1], len(r.ins) + n
                        target = b.gep(b.extract_value(args[0], n), [b.extract_value(args[1], n)])
                        if r.steps[position] == GIVEN:
                            target = b.gep(target, [_along(b, r, args[7], position, column)])
                        else:  # at a constant from the first, as above
                            target = b.gep(target, [_along(b, r, args[7], position, args[6])])
                            target = b.gep(target, [const(c * r.spread * r.width, 64)])
                        values = [results[k] for results in made]
                        _store_run(ctx, b, dtype, values, target, r.loose[position])
            return ctx.get_dummy_value()

        kinds = outs, places, known, resident, ins, offsets, types.int32, env
        return types.void(*kinds), codegen

    return leave


@deferred
def row_leaver(r: Rows, p: int) -> Any:
    """`leave(outs, places, known)`: results that are row values, known before pass p and not before the one ahead of it."""
    slots = r.row_slots(p)
    leaving = [n for n, after in r.kept if after == p - 1]

    @intrinsic
    def leave(typing, outs, places, known):
        def codegen(ctx, b, sig, args):
            for n in leaving:
                slot, dtype, _ = r.outs[n]
                target = b.gep(b.extract_value(args[0], n), [b.extract_value(args[1], n)])
                emit_store(ctx, b, dtype, b.extract_value(args[2], slots.index(slot)), target)
            return ctx.get_dummy_value()

        return types.void(outs, places, known), codegen

    return leave
