"""Rows: any number of maps and reductions over the columns of a matrix, such as a softmax or a norm (registry/row_program.py).

`lanes` threads have a row. Each holds `chunks` runs of `width` neighbours of every operand, as they lie in memory, and goes over
them once for each pass; what a pass reduces goes through the warp by shuffles and through the block by shared memory. A row that
is too long for registers is read again for each pass (`held` is false): the second time it is likely to come from a cache.

Limit: memory bandwidth. Reductions are trees of a fixed shape, so results repeat bit for bit.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...registry.row_program import Part, Pass
from ...types import DType, bf16, f16
from ..dsl import cuda, deferred, device, device_calls, int32, intrinsic, ir, types
from .index import GIVEN, Walk, coordinates, offsets
from .llvm import capability, const, emit_call
from .ptx.assemble import assemble
from .storage import (
    decode,
    emit_load,
    emit_load_parts,
    emit_store,
    emit_store_vector,
    encode,
    numba_type,
    per_word,
    unpack,
)

WARP, EVERYONE = 32, 0xFFFFFFFF
HALVES, PAIRS_SINCE = (f16, bf16), (8, 0)  # compute capability: two are rounded by one instruction


@dataclass(frozen=True)
class Rows:
    """What a kernel is made for. Walks are over the axes of the rows, and last along the columns.

    ins     of each load: its element type, None where it is the index itself
    moves   which loads move along the columns, by one
    outs    of each store: (slot, element type, whether it moves)
    kept    stores of row values, and the pass after which they are known
    width   neighbours in one load; columns, and rows' places, are multiples of it
    steps   of each load and then each store along the columns: 0, 1, or GIVEN, a number that the kernel is called with
    ragged  columns are no multiple of what the threads of a row have
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
    width: int
    chunks: int
    held: bool
    ragged: bool
    steps: tuple[int, ...]

    def row_slots(self, p: int) -> tuple[int, ...]:
        """Slots of row values that are known before pass p, in the order that kernels have them."""
        slots = [n for n, moves in enumerate(self.moves) if not moves]
        for part, reduces in [(self.before, ()), *((q.after, q.reduces) for q in self.passes)][: p + 1]:
            slots += [s for s in (*(r.result for r in reduces), *part.makes) if s not in slots]
        return tuple(slots)


def _combine(how: str) -> Any:
    """fn(a, b), and what it begins with."""
    if how == "max":
        return lambda a, b: a if a > b or a != a else b, float("-inf")
    return lambda a, b: a + b, 0.0


# --- a thread's part of a row -----------------------------------------------------------------------------------------


def _row_kind(r: Rows, p: int) -> Any:
    return types.BaseTuple.from_types([numba_type(r.dtypes[s]) for s in r.row_slots(p)])


def _evaluated(ctx: Any, b: Any, part: Part, known: dict[int, Any]) -> list[Any]:
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
        value = emit_call(ctx, b, device_calls(fn), result, given, [slots[s] for s in arguments])
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


def _store_run(ctx: Any, b: Any, dtype: DType, values: list[Any], target: Any) -> None:
    if len(values) % 2 or dtype not in HALVES or capability() < PAIRS_SINCE:
        return (
            emit_store_vector(ctx, b, dtype, values, target)
            if len(values) > 1
            else emit_store(ctx, b, dtype, values[0], target)
        )
    vector = ir.VectorType(ir.IntType(32), len(values) // 2)
    raw = vector(ir.Undefined)
    for i, (low, high) in enumerate(zip(values[::2], values[1::2])):
        raw = b.insert_element(raw, _pair(b, dtype, low, high), const(i))
    b.store(raw, b.bitcast(target, vector.as_pointer()), align=min(16, 2 * len(values)))
    return None


def _join(ctx: Any, b: Any, how: str, x: Any, y: Any) -> Any:
    if how == "max" and capability() >= PAIRS_SINCE:
        return assemble(b, "max.NaN.f32 $0, $1, $2;", "=f,f,f", ir.FloatType(), [x, y])
    return emit_call(ctx, b, _combine(how)[0], types.float32, [types.float32] * 2, [x, y])


@deferred
def beginner(r: Rows) -> Any:
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
            known.update(zip(r.before.makes, _evaluated(ctx, b, r.before, known)))
            return ctx.make_tuple(b, sig.return_type, [known[s] for s in r.row_slots(0)])

        return _row_kind(r, 0)(ins, offsets), codegen

    return begin


def _along(b: Any, r: Rows, env: Any, n: int, column: Any) -> Any:
    """How far load n, or store n - len(ins), is from its row's beginning. env: (columns, the steps that are given)."""
    wide = b.sext(column, ir.IntType(64))
    if r.steps[n] != GIVEN:
        return wide
    return b.mul(wide, b.extract_value(env, [1, r.steps[:n].count(GIVEN)]))


def _parts(r: Rows, dtype: DType) -> tuple[Any, int]:
    """What a thread holds of a run: words of 32 bits, or numbers."""
    packed = per_word(dtype, r.width)
    return (types.uint32, r.width // packed) if packed > 1 else (numba_type(dtype), r.width)


def _moving(r: Rows) -> list[tuple[int, DType]]:
    return [(n, dtype) for n, dtype in enumerate(r.ins) if r.moves[n] and dtype is not None]


@deferred
def bringer(r: Rows) -> Any:
    """`bring(ins, offsets, first, env)`: of each operand that moves the thread's runs, the first of which begins at column
    `first`. What lies beyond the columns is the row's beginning instead, and counts for nothing."""
    moving, step = _moving(r), r.lanes * r.width
    kinds = [kind for _, dtype in moving for kind, n in [_parts(r, dtype)] for _ in range(n * r.chunks)]
    result = types.BaseTuple.from_types(kinds) if kinds else types.Tuple(())

    @intrinsic
    def bring(typing, ins, offsets, first, env):
        def codegen(ctx, b, sig, args):
            held, pointer = [], {}
            for n, dtype in enumerate(r.ins):
                if dtype is not None:
                    pointer[n] = len(pointer)
            for n, dtype in moving:
                base = b.gep(b.extract_value(args[0], pointer[n]), [b.extract_value(args[1], n)])
                for c in range(r.chunks):
                    column = b.add(args[2], const(c * step))
                    if r.ragged or c == 0:
                        inside = b.icmp_signed("<", column, b.extract_value(args[3], 0))
                    at = b.gep(base, [_along(b, r, args[3], n, b.select(inside, column, const(0)))])
                    parts = emit_load_parts(b, dtype, at, r.width)
                    held += parts if _parts(r, dtype)[0] is types.uint32 else unpack(ctx, b, dtype, parts)
            return ctx.make_tuple(b, sig.return_type, held)

        return result(ins, offsets, types.int32, env), codegen

    return bring


def _elements(
    ctx: Any, b: Any, r: Rows, offsets: Any, held: Any, first: Any, env: Any
) -> list[tuple[Any, Any, list]]:
    """Of each chunk: its column, whether it is inside, and for each of its elements the values of loads that move."""
    moving, step, made = _moving(r), r.lanes * r.width, []
    for c in range(r.chunks):
        column = b.add(first, const(c * step))
        numbers: dict[int, list[Any]] = {}
        at = 0
        for n, dtype in moving:
            kind, count = _parts(r, dtype)
            parts = [b.extract_value(held, at + c * count + k) for k in range(count)]
            numbers[n] = unpack(ctx, b, dtype, parts) if kind is types.uint32 else parts
            at += count * r.chunks
        for n, given in enumerate(r.ins):
            if given is None and r.moves[n]:
                place = b.add(b.extract_value(offsets, n), _along(b, r, env, n, column))
                numbers[n] = [b.add(place, const(k, 64)) for k in range(r.width)]
        each = [{n: values[k] for n, values in numbers.items()} for k in range(r.width)]
        if r.ragged or c == 0:  # else all of a row is inside, but for rows that there are none of
            inside = b.icmp_signed("<", column, b.extract_value(env, 0))
        made.append((column, inside, each))
    return made


@deferred
def folder(r: Rows, p: int) -> Any:
    """`fold(totals, known, held, offsets, first, env)`: what pass p reduces of the thread's elements, added to its totals; runs
    are added up as trees."""
    step, slots = r.passes[p], r.row_slots(p)
    count = len(step.reduces)

    @intrinsic
    def fold(typing, totals, known, held, offsets, first, env):
        def codegen(ctx, b, sig, args):
            rows = {s: b.extract_value(args[1], i) for i, s in enumerate(slots)}
            found: list[list[Any]] = [[] for _ in range(count)]
            for _, inside, each in _elements(ctx, b, r, args[3], args[2], args[4], args[5]):
                for values in each:
                    results = _evaluated(ctx, b, step.each, {**rows, **values})
                    for n, reduce in enumerate(step.reduces):
                        if r.ragged:
                            nothing = ir.Constant(ir.FloatType(), _combine(reduce.how)[1])
                            results[n] = b.select(inside, results[n], nothing)
                        found[n].append(results[n])
            made = []
            for n, (reduce, values) in enumerate(zip(step.reduces, found)):
                join = functools.partial(_join, ctx, b, reduce.how)
                while len(values) > 1:
                    values = [join(x, y) for x, y in zip(values[::2], values[1::2])] + values[
                        len(values) // 2 * 2 :
                    ]
                made.append(join(b.extract_value(args[0], n), values[0]))
            return ctx.make_tuple(b, sig.return_type, made)

        kinds = totals, known, held, offsets, types.int32, env
        return types.UniTuple(types.float32, count)(*kinds), codegen

    return fold


@deferred
def settler(r: Rows, p: int) -> Any:
    """`settle(known, totals, count)`: row values after pass p, of `count` columns as f32."""
    step, slots = r.passes[p], r.row_slots(p)

    @intrinsic
    def settle(typing, known, totals, count):
        def codegen(ctx, b, sig, args):
            rows = {s: b.extract_value(args[0], i) for i, s in enumerate(slots)}
            for n, reduce in enumerate(step.reduces):
                total = b.extract_value(args[1], n)
                rows[reduce.result] = b.fdiv(total, args[2]) if reduce.how == "mean" else total
            rows.update(zip(step.after.makes, _evaluated(ctx, b, step.after, rows)))
            return ctx.make_tuple(b, sig.return_type, [rows[s] for s in r.row_slots(p + 1)])

        return _row_kind(r, p + 1)(known, totals, types.float32), codegen

    return settle


@deferred
def leaver(r: Rows, p: int) -> Any:
    """`leave(outs, places, known, held, offsets, first, env)`: results of pass p that move, as far as they are inside."""
    step, slots = r.passes[p], r.row_slots(p)

    @intrinsic
    def leave(typing, outs, places, known, held, offsets, first, env):
        def codegen(ctx, b, sig, args):
            rows = {s: b.extract_value(args[2], i) for i, s in enumerate(slots)}
            for column, inside, each in _elements(ctx, b, r, args[4], args[3], args[5], args[6]):
                with b.if_then(inside):
                    made = [_evaluated(ctx, b, step.each, {**rows, **values}) for values in each]
                    for k, n in enumerate(step.stores, len(step.reduces)):
                        dtype = r.outs[n][1]
                        at = b.add(b.extract_value(args[1], n), _along(b, r, args[6], len(r.ins) + n, column))
                        target = b.gep(b.extract_value(args[0], n), [at])
                        values = [results[k] for results in made]
                        _store_run(ctx, b, dtype, values, target)
            return ctx.get_dummy_value()

        kinds = outs, places, known, held, offsets, types.int32, env
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


# --- together ---------------------------------------------------------------------------------------------------------


def _over_lanes(how: str, lanes: int) -> Any:
    """`whole(x)`: of the lanes of a warp that share a row, in each of them."""
    if lanes == 1:
        return device(lambda x: x)
    do, apart, rest = device(_combine(how)[0]), lanes // 2, _over_lanes(how, lanes // 2)

    def whole(x):
        return rest(do(x, cuda.shfl_xor_sync(EVERYONE, x, apart)))

    return device(whole)


def _narrow(hows: tuple[str, ...], lanes: int) -> Any:
    if not hows:
        return device(lambda totals: ())
    within, rest = _over_lanes(hows[0], lanes), _narrow(hows[1:], lanes)
    return device(lambda totals: (within(totals[0]),) + rest(totals[1:]))


def _joined(hows: tuple[str, ...], lanes: int, block: int, at: int) -> Any:
    """`join(totals, shared, thread)`: totals of a row in all of its threads. In shared memory they have places of their own, from
    `at` on, so that the next pass need not wait for this one's readers."""
    if lanes <= WARP:
        narrow = _narrow(hows, lanes)
        return device(lambda totals, shared, thread: narrow(totals))
    put, get = _putter(hows, at, block), _getter(hows, lanes // WARP, at, block)

    def join(totals, shared, thread):
        put(totals, shared, thread)
        cuda.syncthreads()
        return get(shared, thread)

    return device(join)


def _putter(hows: tuple[str, ...], at: int, block: int) -> Any:
    if not hows:
        return device(lambda totals, shared, thread: None)
    within, rest = _over_lanes(hows[0], WARP), _putter(hows[1:], at + block // WARP, block)

    def put(totals, shared, thread):
        x = within(totals[0])
        if thread % WARP == 0:
            shared[at + thread // WARP] = x
        rest(totals[1:], shared, thread)

    return device(put)


def _getter(hows: tuple[str, ...], warps: int, at: int, block: int) -> Any:
    if not hows:
        return device(lambda shared, thread: ())
    do, rest = device(_combine(hows[0])[0]), _getter(hows[1:], warps, at + block // WARP, block)

    def get(shared, thread):
        begin = at + thread // (warps * WARP) * warps
        x = shared[begin]
        for w in range(1, warps):
            x = do(x, shared[begin + w])
        return (x,) + rest(shared, thread)

    return device(get)


def _passes(r: Rows, p: int, shared_at: int) -> Any:
    """`run(ins, outs, offsets, places, known, held, first, env, count, shared, thread)`: pass p and those after it."""
    row_leave, own = row_leaver(r, p), any(after == p - 1 for _, after in r.kept)
    if p == len(r.passes):

        def end(ins, outs, offsets, places, known, held, first, env, count, shared, thread):
            if own and first == 0:
                row_leave(outs, places, known)

        return device(end)
    hows = tuple(q.how for q in r.passes[p].reduces)
    begin = tuple(np.float32(_combine(how)[1]) for how in hows)
    settle, join, once = settler(r, p), _joined(hows, r.lanes, r.block, shared_at), _over_row(r, p)
    rest = _passes(r, p + 1, shared_at + len(hows) * (r.block // WARP))

    def run(ins, outs, offsets, places, known, held, first, env, count, shared, thread):
        if own and first == 0:
            row_leave(outs, places, known)
        totals = once(begin, ins, outs, offsets, places, known, held, first, env)
        after = settle(known, join(totals, shared, thread), count)
        rest(ins, outs, offsets, places, after, held, first, env, count, shared, thread)

    return device(run)


def _over_row(r: Rows, p: int) -> Any:
    """`once(totals, ins, outs, offsets, places, known, held, first, env)`: the thread's part of pass p."""
    step = r.passes[p]
    fold, leave = folder(r, p), leaver(r, p)

    def folds(totals, outs, offsets, places, known, held, first, env):
        return fold(totals, known, held, offsets, first, env)

    def leaves(totals, outs, offsets, places, known, held, first, env):
        leave(outs, places, known, held, offsets, first, env)
        return totals

    def both(totals, outs, offsets, places, known, held, first, env):
        leave(outs, places, known, held, offsets, first, env)
        return fold(totals, known, held, offsets, first, env)

    part = device(both if step.stores and step.reduces else folds if step.reduces else leaves)
    if r.held:
        return device(
            lambda totals, ins, outs, offsets, places, known, held, first, env: part(
                totals, outs, offsets, places, known, held, first, env
            )
        )
    bring, stride = bringer(r), r.lanes * r.width * r.chunks

    def again(totals, ins, outs, offsets, places, known, held, first, env):
        at = first
        while at < env[0]:
            totals = part(totals, outs, offsets, places, known, bring(ins, offsets, at, env), at, env)
            at = int32(at + stride)
        return totals

    return device(again)


@functools.cache
def rows(
    r: Rows, walks: tuple[Walk, ...], places: tuple[Walk, ...], rank: int, narrow: bool, name: str
) -> Callable[..., None]:
    """The kernel. `walks` and `places`: of loads and of stores, over `rank` axes of the rows, and of the columns, which stand at 0."""
    at, of, to = coordinates(rank, narrow), offsets(walks), offsets(places)
    begin, bring, run = beginner(r), bringer(r), _passes(r, 0, 0)
    lanes, per_block, width, held = r.lanes, r.block // r.lanes, r.width, r.held
    words = max(1, sum(len(p.reduces) for p in r.passes) * (r.block // WARP))

    def kernel(ins, outs, shape, strides, out_strides, alongs, total, columns, count):
        shared = cuda.shared.array(words, types.float32)
        thread = int32(cuda.threadIdx.x)
        row = np.int64(cuda.blockIdx.x) * per_block + thread // lanes
        first = int32(thread % lanes * width)
        if row >= total:  # its threads go through the motions, as others of the block wait for them
            row = np.int64(0)
            first = int32(columns)
        here, env = at(row, shape), (int32(columns), alongs)
        offs, goes = of(here, strides), to(here, out_strides)
        known = begin(ins, offs)
        have = bring(ins, offs, first, env) if held else ()
        run(ins, outs, offs, goes, known, have, first, env, count, shared, thread)

    kernel.__name__ = name
    kernel.blocks_per_sm = 1
    return kernel
