"""Register tiles: tuples of f32 values that one thread holds, and the few things that are done with them.

A tuple is never indexed by a variable, so it never goes to the stack: each operation here is unrolled by an intrinsic
around a plain Python function. (A Python loop over a local array is not fully unrolled, and spills it.) In the simulator
the same operations are Python loops over tuples.

An `env` is a tuple of whatever the function needs from the kernel: pointers, sizes, indices.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ...types import DType
from ..dsl import SIMULATED, deferred, intrinsic, ir, types
from ..llvm import const, emit_call
from .storage import emit_load, emit_load_parts, emit_load_vector, emit_store_vector, per_word, unpack


@deferred
def runs(dtype: DType, count: int, width: int, place: Callable[..., Any]) -> Any:
    """`load(pointer, env)`: a tile of `count` runs of `width` neighbours in memory, widened to f32; one load per run.

    Run i starts at element place(i, env), or is all 0 where that is negative. Starts are aligned to a run.
    """
    if SIMULATED:
        return lambda *args: tuple(map(np.float32, _load_each(count, width, place, *args)))

    @intrinsic
    def load(typing, pointer, env):
        def codegen(ctx, b, sig, args):
            def one(at):
                if width == 1:
                    return [emit_load(ctx, b, dtype, at)]
                return emit_load_vector(ctx, b, dtype, at, width)

            values = _emit_runs(ctx, b, count, place, env, args, width * [ir.FloatType()], one)
            return ctx.make_tuple(b, sig.return_type, values)

        return types.UniTuple(types.float32, count * width)(pointer, env), codegen

    return load


@deferred
def raw_runs(dtype: DType, count: int, width: int, place: Callable[..., Any]) -> Any:
    """As `runs`, but not widened: nothing waits for a load, and narrow types take fewer registers, until `multiply_runs`."""
    if SIMULATED:
        return lambda *args: _load_each(count, width, place, *args)
    packed = per_word(dtype, width)
    parts = width // packed

    @intrinsic
    def load(typing, pointer, env):
        kind = types.uint32 if packed > 1 else pointer.dtype

        def codegen(ctx, b, sig, args):
            kinds = parts * [ctx.get_value_type(kind)]
            values = _emit_runs(ctx, b, count, place, env, args, kinds,
                                lambda at: emit_load_parts(b, dtype, at, width))  # fmt: skip
            return ctx.make_tuple(b, sig.return_type, values)

        return types.UniTuple(kind, count * parts)(pointer, env), codegen

    return load


def _load_each(count: int, width: int, place: Callable[..., Any], pointer: Any, env: Any) -> tuple[Any, ...]:
    starts = [place(i, env) for i in range(count)]
    return tuple(pointer[s + j] if s >= 0 else np.float32(0) for s in starts for j in range(width))


def _emit_runs(ctx: Any, b: Any, count: int, place: Callable[..., Any], env: Any, args: Any, kinds: list[Any],
               load: Callable[..., list[Any]]) -> list[Any]:  # fmt: skip
    """`load` where a run is inside, zeros of these kinds where it is outside."""
    values = []
    for i in range(count):
        start = emit_call(ctx, b, place, types.int64, [types.int32, env], [const(i), args[1]])
        outside = b.basic_block
        with b.if_then(b.icmp_signed(">=", start, const(0, 64))):
            loaded = load(b.gep(args[0], [start]))
            inside = b.basic_block
        for value, kind in zip(loaded, kinds):
            merged = b.phi(kind)
            merged.add_incoming(ir.Constant(kind, 0), outside)
            merged.add_incoming(value, inside)
            values.append(merged)
    return values


@deferred
def put_run(dtype: DType, width: int) -> Any:
    """`store(pointer, i, tile)`: the tile's `width` elements to memory from element i, in one store; i is aligned to it."""
    if SIMULATED:

        def store_run(pointer, i, tile):
            pointer[i : i + width] = tile

        return store_run

    @intrinsic
    def store(typing, pointer, i, tile):
        def codegen(ctx, b, sig, args):
            values = [b.extract_value(args[2], j) for j in range(width)]
            emit_store_vector(ctx, b, dtype, values, b.gep(args[0], [args[1]]))
            return ctx.get_dummy_value()

        return types.void(pointer, i, tile), codegen

    return store


@deferred
def get_run(dtype: DType, width: int) -> Any:
    """`load(pointer, i)`: the tile of `width` elements from element i on, widened to f32; one load, which i is aligned to."""
    if SIMULATED:
        return lambda pointer, i: tuple(np.float32(pointer[i + j]) for j in range(width))

    @intrinsic
    def load(typing, pointer, i):
        def codegen(ctx, b, sig, args):
            values = emit_load_vector(ctx, b, dtype, b.gep(args[0], [args[1]]), width)
            return ctx.make_tuple(b, sig.return_type, values)

        return types.UniTuple(types.float32, width)(pointer, i), codegen

    return load


@deferred
def put_runs(count: int, width: int, apart: int, step: int) -> Any:
    """`store(shared, base, tile)`: run i of the tile to base + i * apart, its elements `step` apart.

    With a step of 1 a run is one store: base and apart are multiples of width, the array is aligned to it.
    """
    if SIMULATED:

        def store_each(shared, base, tile):
            for i in range(count):
                for j in range(width):
                    shared[base + i * apart + j * step] = tile[i * width + j]

        return store_each

    @intrinsic
    def store(typing, shared, base, tile):
        def codegen(ctx, b, sig, args):
            data = ctx.make_array(shared)(ctx, b, args[0]).data
            vector = ir.VectorType(ir.FloatType(), width)

            def at(offset):
                return b.gep(data, [b.add(args[1], ir.Constant(args[1].type, offset))])

            for i in range(count):
                values = [b.extract_value(args[2], i * width + j) for j in range(width)]
                if width > 1 and step == 1:
                    run = vector(ir.Undefined)
                    for j, value in enumerate(values):
                        run = b.insert_element(run, value, const(j))
                    b.store(
                        run, b.bitcast(at(i * apart), vector.as_pointer(data.type.addrspace)), align=4 * width
                    )
                else:
                    for j, value in enumerate(values):
                        b.store(value, at(i * apart + j * step))
            return ctx.get_dummy_value()

        return types.void(shared, base, tile), codegen

    return store


@deferred
def each(n: int, width: int, fn: Callable[..., None]) -> Any:
    """`run(tile, env)`: fn(i, run, env) for each run of `width` elements of its n, a tuple; i is the first one's index."""
    if SIMULATED:

        def run(tile, env):
            for i in range(0, n, width):
                fn(i, tile[i : i + width], env)

        return run

    @intrinsic
    def run(typing, tile, env):
        neighbours = types.UniTuple(tile.dtype, width)

        def codegen(ctx, b, sig, args):
            for i in range(0, n, width):
                values = ctx.make_tuple(
                    b, neighbours, [b.extract_value(args[0], i + j) for j in range(width)]
                )
                emit_call(ctx, b, fn, types.none, [types.int32, neighbours, env], [const(i), values, args[1]])
            return ctx.get_dummy_value()

        return types.void(tile, env), codegen

    return run


@deferred
def permute(order: tuple[int, ...]) -> Any:
    """`turn(tile)`: its elements in this order, or only some of them."""
    if SIMULATED:
        return lambda tile: tuple(tile[i] for i in order)

    @intrinsic
    def turn(typing, tile):
        def codegen(ctx, b, sig, args):
            return ctx.make_tuple(b, sig.return_type, [b.extract_value(args[0], i) for i in order])

        return types.UniTuple(tile.dtype, len(order))(tile), codegen

    return turn


@deferred
def mapped(n: int, width: int, fn: Callable[..., Any]) -> Any:
    """`run(tile, env)`: as `each`, of a fn that returns `width` numbers; the tile of these."""
    if SIMULATED:
        return lambda tile, env: tuple(x for i in range(0, n, width) for x in fn(i, tile[i : i + width], env))

    @intrinsic
    def run(typing, tile, env):
        neighbours = types.UniTuple(types.float32, width)

        def codegen(ctx, b, sig, args):
            values = []
            for i in range(0, n, width):
                taken = [b.extract_value(args[0], i + j) for j in range(width)]
                given = [const(i), ctx.make_tuple(b, neighbours, taken), args[1]]
                made = emit_call(ctx, b, fn, neighbours, [types.int32, neighbours, env], given)
                values += [b.extract_value(made, j) for j in range(width)]
            return ctx.make_tuple(b, sig.return_type, values)

        return types.UniTuple(types.float32, n)(tile, env), codegen

    return run


@deferred
def mapped_runs(n: int, width: int, kind: str, made: int, fn: Callable[..., Any]) -> Any:
    """`run(tiles, env)`: fn(i, runs, env), of a run of `width` numbers of each of several tiles; `made` numbers of type `kind` that it
    returns, run after run, as a tile. i is the first one's index."""
    if SIMULATED:
        return lambda tiles, env: tuple(
            x for i in range(0, n, width) for x in fn(i, tuple(t[i : i + width] for t in tiles), env)
        )

    @intrinsic
    def run(typing, tiles, env):
        returned = types.UniTuple(getattr(types, kind), made)
        neighbours = types.Tuple([types.UniTuple(t.dtype, width) for t in tiles.types])

        def codegen(ctx, b, sig, args):
            values = []
            for i in range(0, n, width):
                taken = [
                    ctx.make_tuple(b, kind, [b.extract_value(args[0], [t, i + j]) for j in range(width)])
                    for t, kind in enumerate(neighbours.types)
                ]
                given = [const(i), ctx.make_tuple(b, neighbours, taken), args[1]]
                result = emit_call(ctx, b, fn, returned, [types.int32, neighbours, env], given)
                values += [b.extract_value(result, j) for j in range(made)]
            return ctx.make_tuple(b, sig.return_type, values)

        return types.UniTuple(returned.dtype, made * n // width)(tiles, env), codegen

    return run


@deferred
def column_sums(n: int, width: int, columns: tuple[int, ...], count: int, fn: Callable[..., Any]) -> Any:
    """`run(tile, env)`: as `each`, of a fn that returns numbers, as many for each run; the sums of these by column, `count` of
    them.

    Of all numbers, in order, i is of column columns[i]. Each sum is of numbers in their order.
    """
    returned = len(columns) * width // n
    if SIMULATED:

        def add_each(tile, env):
            sums = [None] * count
            for i in range(0, n, width):
                for at, value in zip(columns[i // width * returned :], fn(i, tile[i : i + width], env)):
                    sums[at] = np.float32(value if sums[at] is None else sums[at] + value)
            return tuple(sums)

        return add_each

    @intrinsic
    def run(typing, tile, env):
        neighbours, made_each = types.UniTuple(types.float32, width), types.UniTuple(types.float32, returned)

        def codegen(ctx, b, sig, args):
            sums = [None] * count
            for i in range(0, n, width):
                values = ctx.make_tuple(
                    b, neighbours, [b.extract_value(args[0], i + j) for j in range(width)]
                )
                given = [const(i), values, args[1]]
                made = emit_call(ctx, b, fn, made_each, [types.int32, neighbours, env], given)
                for j in range(returned):
                    at, value = columns[i // width * returned + j], b.extract_value(made, j)
                    sums[at] = value if sums[at] is None else b.fadd(sums[at], value)
            return ctx.make_tuple(b, sig.return_type, sums)

        return types.UniTuple(types.float32, count)(tile, env), codegen

    return run


@deferred
def add_tiles(n: int, first: int = 0) -> Any:
    """`add(a, b)`: a + b, element by element; of a those n from `first` on, which b has, and the others as they are."""
    if SIMULATED:
        return lambda a, b: (*a[:first], *(x + y for x, y in zip(a[first:], b)), *a[first + n :])

    @intrinsic
    def add(typing, a, b):
        def codegen(ctx, builder, sig, args):
            take, made = builder.extract_value, args[0]
            for i in range(first, first + n):
                made = builder.insert_value(made, builder.fadd(take(args[0], i), take(args[1], i - first)), i)
            return made

        return a(a, b), codegen

    return add


def zeros(n: int, whole: bool = False) -> tuple[Any, ...]:
    """A tile of n zeros, of i32 if they are `whole`; a constant to the kernel that closes over it."""
    return (np.int32(0) if whole else np.float32(0),) * n


# Of `multiply_runs`: for each run read from shared memory, the element where it begins, and the multiply-adds that it is in:
# which sum, which element of the register tile, which of the run.
Reads = tuple[tuple[int, tuple[tuple[int, int, int], ...]], ...]


@deferred
def multiply_runs(dtype: DType, count: int, width: int, sums: int, shared_width: int, reads: Reads) -> Any:
    """`multiply(acc, raw, shared, base)`: acc[i] + x[j] * y[e] for each (i, j, e), with one fused multiply-add each, in order.

    raw     x: `count` runs of `width` elements, from `raw_runs`, widened here
    shared  y: f32, in runs of `shared_width` from base + their beginning, one vector load each, just before it is needed
    """
    if SIMULATED:

        def multiply_each(acc, raw, shared, base):
            made = list(acc)
            for begin, products in reads:
                for i, j, e in products:
                    made[i] = np.float32(made[i] + np.float32(raw[j]) * shared[base + begin + e])
            return tuple(made)

        return multiply_each

    @intrinsic
    def multiply(typing, acc, raw, shared, base):
        def codegen(ctx, b, sig, args):
            parts = [b.extract_value(args[1], i) for i in range(len(raw))]
            each = len(parts) // count
            runs = [unpack(ctx, b, dtype, parts[i * each : (i + 1) * each]) for i in range(count)]
            x = [value for run in runs for value in run]
            made = [b.extract_value(args[0], i) for i in range(sums)]
            data = ctx.make_array(shared)(ctx, b, args[2]).data
            vector = ir.VectorType(ir.FloatType(), shared_width).as_pointer(data.type.addrspace)
            for begin, products in reads:
                at = b.gep(data, [b.add(args[3], ir.Constant(args[3].type, begin))])
                y = b.load(b.bitcast(at, vector), align=4 * shared_width)
                for i, j, e in products:
                    made[i] = b.fma(x[j], b.extract_element(y, const(e)), made[i])
            return ctx.make_tuple(b, sig.return_type, made)

        return acc(acc, raw, shared, base), codegen

    return multiply
