"""Register tiles: matrices whose numbers lie in the registers of a warp or of a warpgroup, as a `Layout` (layout.py) says, and what
is done with them: maps, reductions of rows and of columns, masks, and the ways into other products and out to memory.

A thread has its numbers as a tuple; and of a vector with a number for each row (or column) those of its own rows (columns), as a
tuple too, which is a tile itself. What is done with numbers is a plain Python function, and operations are unrolled around it:
nothing is indexed by a variable, so all stays in registers.

    peak = reduce_rows(scores, lambda x, y: larger(x, y))  # factories, outside of the kernel
    shift = zip_rows(scores, lambda x, most, env: exp2((x - most) * env[0]))
    …
    weights = shift(s, peak(s), (scale,))                  # in it

A map's function gets an `env` last: a tuple of whatever else it needs from the kernel. Functions may call device functions and
intrinsics.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ...types import DType
from ..dsl import SIMULATED, cuda, deferred, device, int32, intrinsic, types, uint32
from ..llvm import const, emit_call
from ..ptx import (
    commit_stores,
    fence_async,
    load_matrices,
    pack_halves,
    store_box,
    store_matrices,
    sync_threads,
)
from ..ptx.wgmma import SWIZZLE_BYTES
from .fragment import fragment
from .layout import Layout, Places, RowLayout
from .tile import each, put_run, runs

ATOM = SWIZZLE_BYTES // 2  # columns of halves, in a swizzled row
EVERYONE = 0xFFFFFFFF  # of a warp


# --- memory -----------------------------------------------------------------------------------------------------------


def starts(layout: Places) -> Callable[..., Any]:
    """`start(i, (first, sizes, pitch))`, as `tile.runs` takes it: the element that a thread's run i begins at, or -1 where the matrix
    has none: it has sizes[0] x sizes[1], of rows `pitch` apart. `first`: row and column of the thread's first number."""
    place, run = layout.place(), layout.run

    def start(i, env):
        first, sizes, pitch = env
        row, column = place(i * run, 0, 0)
        row, column = int32(first[0] + row), int32(first[1] + column)
        return np.int64(row) * pitch + column if row < sizes[0] and column < sizes[1] else np.int64(-1)

    return start


def load_tile(layout: Places, dtype: DType) -> Any:
    """`load(pointer, (first, sizes, pitch))`: f32 of a matrix in memory, 0 where it has none; see `starts`. A run of neighbours is
    one load: columns, pitch and pointer are aligned to it."""
    return runs(dtype, layout.count // layout.run, layout.run, starts(layout))


def store_tile(layout: Places, dtype: DType) -> Any:
    """`store(tile, (pointer, (first, sizes, pitch)))`: the other way."""
    start, put, run = device(starts(layout)), put_run(dtype, layout.run), layout.run

    def put_one(i, numbers, env):
        at = start(i // run, env[1])
        if at >= 0:
            put(env[0], at, numbers)

    return each(layout.count, run, put_one)


# --- maps -------------------------------------------------------------------------------------------------------------


@deferred
def unrolled(
    fn: Callable[..., Any],
    picks: tuple[tuple[int, ...], ...],
    numbers: tuple[tuple[int, ...], ...],
    kind: str,
) -> Any:
    """`run(tiles, env)`: for each k, fn(tiles[0][picks[0][k]], tiles[1][picks[1][k]], …, *numbers[k], env), as a tuple.

    numbers  i32; none, or a tuple of them for each k
    kind     numba's name for what fn returns; "": as in the first tile
    """
    count = len(picks[0])
    numbers = numbers or ((),) * count
    if SIMULATED:
        return lambda tiles, env: tuple(
            fn(*(tile[pick[k]] for tile, pick in zip(tiles, picks)), *numbers[k], env) for k in range(count)
        )

    @intrinsic
    def run(typing, tiles, env):
        given = [*(tiles[t].dtype for t in range(len(picks))), *[types.int32] * len(numbers[0]), env]
        result = getattr(types, kind) if kind else tiles[0].dtype

        def codegen(ctx, b, sig, args):
            made = []
            for k in range(count):
                values = [b.extract_value(args[0], [t, pick[k]]) for t, pick in enumerate(picks)]
                values += [*map(const, numbers[k]), args[1]]
                made.append(emit_call(ctx, b, fn, result, given, values))
            return ctx.make_tuple(b, sig.return_type, made)

        return types.UniTuple(result, count)(tiles, env), codegen

    return run


def map_tile(count: int, fn: Callable[..., Any]) -> Any:
    """`run(tile, env)`: fn(x, env) of each of `count` numbers."""
    run = unrolled(fn, (tuple(range(count)),), (), "")
    return device(lambda tile, env: run((tile,), env))


def zip_tiles(count: int, fn: Callable[..., Any]) -> Any:
    """`run(a, b, env)`: fn(x, y, env) of numbers in the same places."""
    return _zipped(count, tuple(range(count)), fn)


def zip_rows(layout: Places, fn: Callable[..., Any]) -> Any:
    """`run(tile, vector, env)`: fn(x, y, env), y of the vector with a number for each row."""
    return _zipped(layout.count, layout.by_row, fn)


def zip_columns(layout: Places, fn: Callable[..., Any]) -> Any:
    """`run(tile, vector, env)`: fn(x, y, env), y of the vector with a number for each column."""
    return _zipped(layout.count, layout.by_column, fn)


def _zipped(count: int, others: tuple[int, ...], fn: Callable[..., Any]) -> Any:
    run = unrolled(fn, (tuple(range(count)), others), (), "")
    return device(lambda tile, other, env: run((tile, other), env))


def map_places(layout: Places, fn: Callable[..., Any]) -> Any:
    """`run(tile, first, env)`: fn(x, row, column, env), counted from where the thread's first number is: `first`, two i32."""
    do = device(fn)

    def place(x, down, across, env):
        return do(x, int32(env[0][0] + down), int32(env[0][1] + across), env[1])

    run = unrolled(place, (tuple(range(layout.count)),), layout.offsets, "")
    return device(lambda tile, first, env: run((tile,), (first, env)))


def mask(layout: Places, keep: Callable[..., Any], fill: Any) -> Any:
    """`run(tile, first, env)`: numbers where keep(row, column, env), elsewhere `fill`; `first` as for `map_places`."""
    inside = device(keep)
    return map_places(layout, lambda x, row, column, env: x if inside(row, column, env) else fill)


# --- reductions -------------------------------------------------------------------------------------------------------


@deferred
def folded(fn: Callable[..., Any], groups: tuple[tuple[int, ...], ...]) -> Any:
    """`run(tile)`: for each group of places fn of its numbers, neighbours first: as a tree, always the same."""

    def fold(values: list[Any], call: Callable[..., Any]) -> Any:
        while len(values) > 1:
            pairs = zip(values[::2], values[1::2])
            values = [call(x, y) for x, y in pairs] + values[len(values) // 2 * 2 :]
        return values[0]

    if SIMULATED:
        return lambda tile: tuple(fold([tile[i] for i in group], fn) for group in groups)

    @intrinsic
    def run(typing, tile):
        def codegen(ctx, b, sig, args):
            def call(x, y):
                return emit_call(ctx, b, fn, tile.dtype, [tile.dtype] * 2, [x, y])

            made = [fold([b.extract_value(args[0], i) for i in group], call) for group in groups]
            return ctx.make_tuple(b, sig.return_type, made)

        return types.UniTuple(tile.dtype, len(groups))(tile), codegen

    return run


def _groups(of: tuple[int, ...]) -> tuple[tuple[int, ...], ...]:
    return tuple(tuple(i for i, group in enumerate(of) if group == which) for which in range(max(of) + 1))


def fold_rows(layout: Places, fn: Callable[..., Any]) -> Any:
    """`run(tile)`: of each row fn(x, y) over what this thread has of it. Associative and commutative."""
    return folded(fn, _groups(layout.by_row))


def fold_columns(layout: Places, fn: Callable[..., Any]) -> Any:
    """`run(tile)`: of each column fn(x, y) over what this thread has of it. Associative and commutative."""
    return folded(fn, _groups(layout.by_column))


@deferred
def accumulated(
    fn: Callable[..., Any], by_row: tuple[int, ...], columns: tuple[int, ...], order: tuple[int, ...]
) -> Any:
    """`run(tile, vector, start, env)`: of each row, from its number of `start` on, state = fn(state, x, y, column, env) for the numbers of
    the tile in this order; y of the vector, column from the thread's first one. Beside the tile, a number for each row is all that
    is held."""
    if SIMULATED:

        def run_each(tile, vector, start, env):
            states = list(start)
            for i in order:
                row = by_row[i]
                states[row] = fn(states[row], tile[i], vector[row], columns[i], env)
            return tuple(states)

        return run_each

    @intrinsic
    def run(typing, tile, vector, start, env):
        given = [start.dtype, tile.dtype, vector.dtype, types.int32, env]

        def codegen(ctx, b, sig, args):
            states = [b.extract_value(args[2], row) for row in range(len(start))]
            for i in order:
                row = by_row[i]
                x, y = b.extract_value(args[0], i), b.extract_value(args[1], row)
                values = [states[row], x, y, const(columns[i]), args[3]]
                states[row] = emit_call(ctx, b, fn, start.dtype, given, values)
            return ctx.make_tuple(b, sig.return_type, states)

        return start(tile, vector, start, env), codegen

    return run


def accumulate_rows(layout: Places, fn: Callable[..., Any]) -> Any:
    """`accumulated` by rows, neighbours first: fn(state, x, y, column, env), column counted from the thread's first number."""
    columns, by_row = tuple(column for _, column in layout.offsets), layout.by_row
    order = sorted(range(layout.count), key=lambda i: (columns[i], by_row[i]))
    return accumulated(fn, by_row, columns, tuple(order))


def join_rows(layout: Places, fn: Callable[..., Any]) -> Any:
    """`run(vector)`: of each row fn(x, y) over the lanes of a warp that share it, each of which gets the same. Whole warps."""
    return _joined(len(layout.own_rows), fn, layout.same_rows)


def join_columns(layout: Places, fn: Callable[..., Any]) -> Any:
    """`run(vector)`: of each column fn(x, y) over the lanes of a warp that share it. Other warps' rows are not in it."""
    return _joined(len(layout.own_columns), fn, layout.same_columns)


def _joined(count: int, fn: Callable[..., Any], lanes: tuple[int, ...]) -> Any:
    if not lanes:
        return device(lambda vector: vector)
    do, apart, others = device(fn), lanes[0], _joined(count, fn, lanes[1:])
    swap = map_tile(count, lambda x, env: do(x, cuda.shfl_xor_sync(EVERYONE, x, apart)))
    return device(lambda vector: others(swap(vector, ())))


def join_warps(layout: RowLayout, fn: Callable[..., Any]) -> Any:
    """`run(vector, shared, warp, lane)`: of a row fn(x, y) over the warps that hold it, all of the block's; `vector` has what each of
    them has.

    shared  an f32 for each warp, which no thread reads or writes meanwhile; the block's threads synchronize, if there are several warps
    """
    warps, fold = layout.warps, folded(fn, (tuple(range(layout.warps)),))
    read = fragment(warps, 1, 1)
    if warps == 1:
        return device(lambda vector, shared, warp, lane: vector)

    def run(vector, shared, warp, lane):
        if lane == 0:
            shared[warp] = vector[0]
        cuda.syncthreads()
        return fold(read(shared, int32(0)))

    return device(run)


def reduce_rows(layout: Places, fn: Callable[..., Any]) -> Any:
    """`run(tile)`: of each row fn(x, y) over what a warp has of it: 2 shuffles a row, of fragments, which is all. Associative and
    commutative."""
    fold, join = fold_rows(layout, fn), join_rows(layout, fn)
    return device(lambda tile: join(fold(tile)))


def reduce_columns(layout: Places, fn: Callable[..., Any]) -> Any:
    """`run(tile)`: of each column fn(x, y) over the rows of a warp: 3 shuffles a column, of fragments. Associative and
    commutative."""
    fold, join = fold_columns(layout, fn), join_columns(layout, fn)
    return device(lambda tile: join(fold(tile)))


# --- halves -----------------------------------------------------------------------------------------------------------


def pack(count: int, dtype: DType, single: bool = False) -> Any:
    """`run(tile)`: `count` f32 as f16 or bf16, two neighbours in each word: what `put_words` stores, and, since sums of a product
    lie as its first operand does, an operand for `multiply_k_tiles` or `multiply_fragments` of the next. `single`: see `pack_halves`."""
    halves = pack_halves(dtype, True) if single else pack_halves(dtype)
    evens, odds = tuple(range(0, count, 2)), tuple(range(1, count, 2))
    run = unrolled(lambda low, high, env: halves(low, high), (evens, odds), (), "uint32")
    return device(lambda tile: run((tile, tile), ()))


def _rows_of_words(layout: Layout) -> Any:
    """`at(i, to, x, j)`: where a lane's row lies for words i to i + 3: `to` is the start of a matrix in shared memory with a
    128-byte swizzle, x a row, j which 16 bytes of the first 32 in it.

    Chunks of 64 columns lie one behind the other. In row x the 16 bytes that would be j-th are (j xor x % 8)-th, so that no two
    rows of an 8 x 8 matrix lie in the same banks.
    """
    block, down = layout.columns // 4, layout.height * layout.warps * SWIZZLE_BYTES
    chunk, rows = ATOM // 4, layout.rows * SWIZZLE_BYTES

    def at(i, to, x, j):
        within = i % block
        place = i // block * down + within // chunk * rows + x * SWIZZLE_BYTES
        return uint32(to + uint32(place + (within % chunk // 2 + j ^ x & 7) * 16))

    return device(at)


def put_words(layout: Layout) -> Any:
    """`put(to, warp, lane, words)`: halves to shared memory at a multiple of 1024 bytes, as a tensor map with 128-byte swizzle has
    boxes of 64 columns and all rows, box after box. Of 16, 32 or a multiple of 64 columns. `stmatrix`; whole warps; sm_90."""
    at, matrix, store, height = _rows_of_words(layout), layout.matrix(), store_matrices(), layout.height

    def put_four(i, run, env):
        store(at(i, env[0], env[1], env[2]), run[0], run[1], run[2], run[3])

    put_all = each(layout.count // 2, 4, put_four)

    def put(to, warp, lane, words):
        row, column = matrix(lane)
        put_all(words, (to, warp * height + row + (lane & 7), column >> 3))

    return device(put)


def put_columns(layout: Layout) -> Any:
    """`put(to, warp, lane, words)`: the transposed matrix, halves of 64 rows: each column is a row of 128 bytes there, swizzled as a tensor map
    has boxes. `stmatrix.trans`; whole warps; sm_90."""
    assert layout.rows == ATOM and layout.height == 16 and layout.warps == 4, layout
    store = store_matrices(True)

    def put_four(i, run, to):
        store(uint32(to + uint32(i // 4 * 16 * SWIZZLE_BYTES)), run[0], run[1], run[2], run[3])

    put_all = each(layout.count // 2, 4, put_four)

    def put(to, warp, lane, words):
        row = (lane >> 4) * 8 + (lane & 7)
        put_all(
            words, uint32(to + uint32(row * SWIZZLE_BYTES + ((warp * 2 + (lane >> 3 & 1) ^ lane & 7) << 4)))
        )

    return device(put)


def take_words(layout: Layout, first: int = 0) -> Any:
    """`take(to, warp, lane)`: what `put_words` puts there, from word `first` on: an operand for `multiply_k_tiles` too. `ldmatrix`;
    whole warps; sm_75."""
    at, matrix, load, height = _rows_of_words(layout), layout.matrix(), load_matrices(), layout.height

    def take_four(to, warp, lane):
        row, column = matrix(lane)
        return load(at(first, to, warp * height + row + (lane & 7), column >> 3))

    if first + 4 == layout.count // 2:
        return device(take_four)
    four, others = device(take_four), take_words(layout, first + 4)
    return device(lambda to, warp, lane: four(to, warp, lane) + others(to, warp, lane))


def send_tile(layout: Layout, barrier: int) -> Any:
    """`send(map, to, member, words, column, line)`: halves to a matrix in global memory, at this column and line, by way of shared
    memory at a multiple of 1024 bytes, whose last stores have been read (`wait_stores_read`).

    map      boxes of 64 columns and all rows, 128-byte swizzle; nothing is written outside of the matrix
    member   of the 32 `warps` threads, which synchronize at this barrier
    A group of stores of the first thread's, that it commits. Whole columns of 64. sm_90
    """
    assert layout.columns % ATOM == 0, layout
    boxes, chunk = layout.columns // ATOM, layout.rows * SWIZZLE_BYTES
    put, fence, sync = put_words(layout), fence_async(), sync_threads(barrier, 32 * layout.warps)
    store, commit = store_box(), commit_stores()

    def send(map, to, member, words, column, line):
        put(to, member >> 5, member & 31, words)
        fence()
        sync()
        if member == 0:
            for i in range(boxes):
                store(map, uint32(to + uint32(i * chunk)), int32(column + i * ATOM), int32(line))
            commit()

    return device(send)
