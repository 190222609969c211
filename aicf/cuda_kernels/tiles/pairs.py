"""Maps of two neighbours at a time whose results are halves: what they read may come in words of 32 bits, and results leave so.

Both are rounded together, and functions are as exact as halves need them. For sm_80 and later.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from ...rows.program import Expression
from ...types import DType, bf16, f16
from ..dsl import SIMULATED, deferred, device_calls, intrinsic, ir, types, with_functions
from ..llvm import const, emit_call
from ..ptx import assemble
from .element import Lanes, Loads, emit_loads, rounded_by_store, run_made
from .halves import may_shorten
from .storage import decode, encode, numba_type, unpack

PAIR = 2


@deferred
def pair_maker(
    expr: Expression,
    ins: Loads,
    outs: tuple[DType, ...],
    moves: tuple[bool, ...],
    preloaded: tuple[int, ...],
    fast: Any,
) -> Any:
    """`make(core_result, words, ins, offsets, inside)`: (words of results, then pair of what is to be added up, or ()); of two numbers
    that a core made, and loads as `vector_mapper` has them. What is to be added up is 0 outside, whatever it is.

    outs     halves: types of the results, of which there may be one more, to be added up
    preloaded  loads of which the neighbours are given in a word, u32 or f32
    """
    lanes, adds = Lanes(expr, ins, (), moves, PAIR), len(expr.results) > len(outs)
    if SIMULATED:

        def make_pairs(core_result, words, sources, offsets, inside):
            given = dict(zip(preloaded, words))
            pairs = list(zip(*run_made(lanes, [(c,) for c in core_result], sources, offsets, given)))
            last = tuple(x if inside else np.float32(0) for x in pairs[-1]) if adds else ()
            return tuple(tuple(np.array(p, np.float32).astype(t.numpy)) for t, p in zip(outs, pairs)), last

        return make_pairs
    rounded = rounded_by_store(expr, len(outs))

    @intrinsic
    def make(typing, core_result, words, ins_, offsets, inside):
        last = types.UniTuple(types.float32, PAIR) if adds else types.Tuple(())
        results = types.UniTuple(types.uint32, len(outs))

        def codegen(ctx, b, sig, args):
            numbers = [(b.extract_value(args[0], j),) for j in range(PAIR)]
            given = {k: b.extract_value(args[1], i) for i, k in enumerate(preloaded)}
            arguments = emit_loads(ctx, b, lanes, numbers, args[2], args[3], given)
            slots, packed = _emit_steps(ctx, b, rounded, [list(pair) for pair in zip(*arguments)], dict(fast))

            def word(slot: int, dtype: DType) -> Any:
                known = slot in packed and rounded.dtypes[slot] is dtype
                return packed[slot] if known else _emit_pack(b, dtype, slots[slot])

            made = [word(slot, dtype) for slot, dtype in zip(rounded.results, outs)]
            added = _emit_inside(ctx, b, rounded, slots, packed, args[4]) if adds else []
            return ctx.make_tuple(
                b, sig.return_type, [ctx.make_tuple(b, results, made), ctx.make_tuple(b, last, added)]
            )

        return types.Tuple((results, last))(core_result, words, ins_, offsets, types.boolean), codegen

    return make


def _emit_steps(
    ctx: Any, b: Any, expr: Expression, values: list[list[Any]], fast: Mapping[str, Any]
) -> tuple[dict[int, list[Any]], dict[int, Any]]:
    """(What both lanes have in each slot, words of those that are rounded)"""
    slots: dict[int, list[Any]] = {}
    packed: dict[int, Any] = {}

    def put(slot: int, pair: list[Any]) -> None:
        dtype = expr.dtypes[slot]
        if slot in expr.rounded and dtype in (f16, bf16):
            packed[slot] = _emit_pack(b, dtype, pair)
            pair = unpack(ctx, b, dtype, [packed[slot]])
        elif slot in expr.rounded:
            pair = [decode(ctx, b, dtype, encode(ctx, b, dtype, value)) for value in pair]
        slots[slot] = pair

    for slot, pair in enumerate(values):
        put(slot, pair)
    for fn, arguments, made in expr.steps:
        kinds, given = ([numba_type(expr.dtypes[s]) for s in some] for some in (made, arguments))
        result = kinds[0] if len(made) == 1 else types.BaseTuple.from_types(kinds)
        short = not expr.for_halves or may_shorten(expr, fn, made)
        called = device_calls(with_functions(fn, fast) if short else fn)
        each = [
            emit_call(ctx, b, called, result, given, [slots[s][lane] for s in arguments])
            for lane in range(PAIR)
        ]
        for k, slot in enumerate(made):
            put(slot, each if len(made) == 1 else [b.extract_value(r, k) for r in each])
    return slots, packed


def _emit_pack(b: Any, dtype: DType, pair: list[Any]) -> Any:
    kind = {f16: "f16", bf16: "bf16"}[dtype]
    return assemble(b, f"cvt.rn.{kind}x2.f32 $0, $2, $1;", "=r,f,f", ir.IntType(32), pair)


def _emit_inside(
    ctx: Any, b: Any, expr: Expression, slots: dict[int, list[Any]], packed: dict[int, Any], inside: Any
) -> list[Any]:
    """The last result's pair, or zeros."""
    slot = expr.results[-1]
    if slot in packed:
        return unpack(ctx, b, expr.dtypes[slot], [b.select(inside, packed[slot], const(0))])
    return [b.select(inside, value, ir.Constant(ir.FloatType(), 0.0)) for value in slots[slot]]
