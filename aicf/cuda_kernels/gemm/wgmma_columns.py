"""What the results of a warpgroup have by column: what their map reads by column only, and sums of what it makes.

Such an operand, a bias, is loaded before a tile's main loop, and waits in registers: 32 bits of two neighbours for each
eight columns of the tile. What it holds for 16 columns goes along with the accumulators of these. Eight lanes hold the same: where there
are no registers for that, each has an eighth, and they exchange them by shuffles; see `lane_distributed`.

Sums are by each warp of its rows: a row of the workspace for each.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ...types import DType, bf16, f16
from ..dsl import SIMULATED, cuda, deferred, device, intrinsic, ir, types
from ..hopper.units import ATOM, WARPS
from ..llvm import const
from ..ptx import opaque, optimization_barrier, scatter_sums
from ..tiles.element import putter
from ..tiles.pairs import PAIR
from ..tiles.register_tile import EVERYONE
from ..tiles.tile import column_sums, each, permute
from .epilogue import Epilogue, places
from .wgmma_tiling import ADDRESSES, EIGHT, MOST_WORDS, WgmmaTiling, promotes

OWN = ATOM // 4  # columns that a thread has of a subtile
STEPS = 20  # registers that an axis of a batch takes: indices and steps of 64 bits, and what is made of them

# --- what is read by column -------------------------------------------------------------------------------------------


def preloaded_reads(tiling: WgmmaTiling, epilogue: Epilogue) -> tuple[int, ...]:
    """Reads of halves by column, as many as there are registers for; none beside accumulators of integers."""
    if epilogue.whole:
        return ()
    found = tuple(
        k for k, read in enumerate(epilogue.reads)
        if read.dtype in (f16, bf16) and (read.row, read.column) == (0, 1)
    )  # fmt: skip
    return found[: MOST_WORDS * EIGHT // tiling.columns]


def lane_distributed(tiling: WgmmaTiling, epilogue: Epilogue, preloaded: tuple[int, ...]) -> bool:
    """Whether there are no registers for all words that are preloaded, beside accumulators of a tile and of a K-tile, and steps of a batch."""
    promoted = tiling.n // 2 if tiling.promoted or promotes(epilogue.dtype) else 0
    left = tiling.spare - promoted - len(preloaded) * tiling.columns // EIGHT
    return len(preloaded) > 0 and left < ADDRESSES + STEPS * epilogue.batch


def row_loader(tiling: WgmmaTiling, epilogue: Epilogue, preloaded: tuple[int, ...], distributed: bool) -> Any:
    """`load(tile_coord, member, n, operands)`: all words of the reads that are preloaded, one read's after the other's; or if they are lane-distributed,
    of each 64 columns the lane's pair."""
    pairs = row_pairs if epilogue.width > 1 else unaligned_pairs
    if not distributed:
        return reads_loader(epilogue, preloaded, pairs(tiling.columns // EIGHT))
    load = reads_loader(epilogue, preloaded, subtile_pairs(tiling.columns // ATOM, pairs(1)))

    def load_distributed(tile_coord, member, n, operands):
        column = np.int32(tile_coord[1] + (member >> 2 & 7) * EIGHT)
        return load((tile_coord[0], column), member, n, operands)

    return device(load_distributed)


def reads_loader(epilogue: Epilogue, preloaded: tuple[int, ...], load_words: Any) -> Any:
    """`load(tile_coord, member, n, operands)`: of each read the words from the lane's columns on, as `load_words` has them."""
    if not preloaded:
        return device(lambda tile_coord, member, n, operands: ())
    k, others = preloaded[-1], reads_loader(epilogue, preloaded[:-1], load_words)
    at = places(epilogue.reads)
    pointer = sum(read.dtype is not None for read in epilogue.reads[:k])

    def load(tile_coord, member, n, operands):
        _, ins, strides, _, _, origin = operands
        start = at(np.int64(0), np.int64(0), np.int64(n), strides, origin)[k]
        column = np.int32(tile_coord[1] + (member & 3) * PAIR)
        return others(tile_coord, member, n, operands) + load_words(
            ins[pointer], start, column, np.int32(n - PAIR)
        )

    return device(load)


@deferred
def row_pairs(count: int) -> Any:
    """`load(pointer, start, column, last)`: of halves, pairs from start + column on, eight apart, none behind `last`; each as the
    bits of an f32."""
    if SIMULATED:

        def load_pairs(pointer, start, column, last):
            places = [start + min(column + i * EIGHT, last) for i in range(count)]
            return tuple(tuple(pointer[at : at + PAIR]) for at in places)

        return load_pairs

    @intrinsic
    def load(typing, pointer, start, column, last):
        def codegen(ctx, b, sig, args):
            source, start_at, first, last_at = args
            words = []
            for i in range(count):
                q = b.add(first, const(i * EIGHT))
                q = b.select(b.icmp_signed("<", q, last_at), q, last_at)
                at = b.gep(source, [b.add(start_at, b.sext(q, start_at.type))])
                words.append(b.load(b.bitcast(at, ir.FloatType().as_pointer(at.type.addrspace)), align=4))
            return ctx.make_tuple(b, sig.return_type, words)

        return types.UniTuple(types.float32, count)(pointer, types.int64, types.int32, types.int32), codegen

    return load


@deferred
def unaligned_pairs(count: int) -> Any:
    """The same of rows that begin anywhere, and end at last + 2: each half by itself, none behind that."""
    if SIMULATED:

        def load_halves(pointer, start, column, last):
            places = [column + i * EIGHT for i in range(count)]
            return tuple(
                (pointer[start + min(q, last + 1)], pointer[start + min(q + 1, last + 1)]) for q in places
            )

        return load_halves

    @intrinsic
    def load(typing, pointer, start, column, last):
        def codegen(ctx, b, sig, args):
            source, start_at, first, last_at = args
            end, words = b.add(last_at, const(1)), []
            for i in range(count):
                halves = []
                for side in range(PAIR):
                    q = b.add(first, const(i * EIGHT + side))
                    q = b.select(b.icmp_signed("<", q, end), q, end)
                    raw = b.load(b.gep(source, [b.add(start_at, b.sext(q, start_at.type))]))
                    halves.append(b.zext(b.bitcast(raw, ir.IntType(16)), ir.IntType(32)))
                word = b.or_(halves[0], b.shl(halves[1], const(16)))
                words.append(b.bitcast(word, ir.FloatType()))
            return ctx.make_tuple(b, sig.return_type, words)

        return types.UniTuple(types.float32, count)(pointer, types.int64, types.int32, types.int32), codegen

    return load


def subtile_pairs(count: int, load_last: Any) -> Any:
    """The same, of so many pairs 64 apart."""
    further = (count - 1) * ATOM
    if count == 1:
        return load_last
    load_others = subtile_pairs(count - 1, load_last)

    def load(pointer, start, column, last):
        words = load_others(pointer, start, column, last)
        return words + load_last(pointer, start, np.int32(column + further), last)

    return device(load)


@deferred
def interleaver(order: tuple[int, ...]) -> Any:
    """`interleave(tile, words)`: of both together, in this order."""
    if SIMULATED:
        return lambda tile, words: tuple((*tile, *words)[i] for i in order)

    @intrinsic
    def interleave(typing, tile, words):
        def codegen(ctx, b, sig, args):
            count = len(tile)
            values = [
                b.extract_value(args[0], i) if i < count else b.extract_value(args[1], i - count)
                for i in order
            ]
            return ctx.make_tuple(b, sig.return_type, values)

        return types.UniTuple(tile.dtype, len(order))(tile, words), codegen

    return interleave


def with_words(preloaded: int) -> int:
    """What a thread has of 16 rows and columns: its accumulators, and words for the left and the right eight columns."""
    return EIGHT + 2 * preloaded


def words_for(preloaded: int) -> tuple[Any, Any]:
    """(`left(run)`, `right(run)`): these words."""
    if preloaded == 0:
        nothing = device(lambda run: ())
        return nothing, nothing
    return permute(tuple(range(EIGHT, EIGHT + preloaded))), permute(
        tuple(range(EIGHT + preloaded, with_words(preloaded)))
    )


def shuffled(put: Any, preloaded: int, distributed: bool) -> Any:
    """`put(i, run, env)`, whose words were lane-distributed: each lane gets those that it would have, by shuffles. In env, `member` is second."""
    if not distributed:
        return put
    accumulators_of, words_of = permute(tuple(range(EIGHT))), shuffler(2 * preloaded, preloaded)
    size, apart, put_run = with_words(preloaded), opaque(), device(put)

    def ask_and_put(i, run, env):
        who = np.int32(i // size * 8 + (apart(env[1]) & 3))
        return put_run(i, accumulators_of(run) + words_of(run, who), env)

    return ask_and_put


def shuffler(count: int, preloaded: int) -> Any:
    """`words(run, who)`: `count` words of a run: this lane has what it needs of the left eight columns, of the right ones the fourth
    after it."""
    if count == 0:
        return device(lambda run, who: ())
    others, position, further = (
        shuffler(count - 1, preloaded),
        EIGHT + count - 1,
        4 * ((count - 1) // preloaded),
    )

    def words(run, who):
        return others(run, who) + (cuda.shfl_sync(EVERYONE, run[position], np.int32(who + further)),)

    return device(words)


# --- all that a thread holds ------------------------------------------------------------------------------------------


def subtiles(tiling: WgmmaTiling) -> tuple[int, int]:
    """(Columns of a subtile of 64 rows, accumulators that a thread has of it)"""
    wide = min(ATOM, tiling.columns)
    return wide, wide // 2


def in_columns(
    tiling: WgmmaTiling,
    epilogue: Epilogue,
    width: int,
    columns: tuple[int, ...],
    fn: Any,
    preloaded: int = 0,
    distributed: bool = False,
) -> Any:
    """`write(acc, words, env, member, tile_coord, sizes, operands)`: `fn(i, run, (first, env))` for all that a thread holds, in runs:
    64 columns after the other, and in each, 64 rows after the other. A run is the one from first + i on. If there are sums, fn
    returns numbers to be added up, and each warp writes a row of their sums over its rows.

    columns  which of a subtile's own columns the numbers are of: column i is i % 2 of each 8
    preloaded  reads whose words go along, behind each eight accumulators
    distributed  whether they were lane-distributed
    """
    blocks, rows, (wide, accumulators) = tiling.row_blocks, tiling.rows, subtiles(tiling)
    across, words = tiling.columns // wide, tiling.columns // (wide if distributed else EIGHT)
    order: list[int] = []
    for subtile in range(across):
        for block in range(blocks):
            first = (block * across + subtile) * accumulators
            for i in range(0, accumulators, EIGHT):
                order += range(first + i, first + i + EIGHT)
                pair = (
                    [subtile] * 2
                    if distributed
                    else [subtile * wide // EIGHT + i // 4 + side for side in range(2)]
                )
                order += [tiling.finished + word + k * words for word in pair for k in range(preloaded)]
    interleave, size = interleaver(tuple(order)), accumulators // EIGHT * with_words(preloaded)

    write_column = each_or_sums(epilogue, blocks * size, width, columns * blocks, fn)
    if epilogue.column_sums is None:
        write_all = each(
            across * blocks * size, blocks * size, lambda i, run, env: write_column(run, (i, env))
        )
        return device(
            lambda acc, words, env, member, tile_coord, sizes, operands: write_all(
                interleave(acc, words), env
            )
        )
    assert wide == ATOM
    add, keep = scatter_sums(OWN), putter(epilogue.column_sums)

    def write_and_add(i, run, given):
        env, member, tile_coord, sizes, operands = given
        low, high = add(write_column(run, (i, env)))
        m, n, lane = sizes[0], sizes[1], member & 31
        column = np.int32(tile_coord[1] + i // (blocks * size) * ATOM + (lane >> 2) * 8 + (lane & 3) * PAIR)
        at = np.int64(tile_coord[0] // rows * WARPS + (member >> 5)) * n + column
        if tile_coord[0] < m and column < n:
            keep(operands[4][0], at, low)
            if column + 1 < n:
                keep(operands[4][0], at + 1, high)

    write_each = each(across * blocks * size, blocks * size, write_and_add)

    def write(acc, words, env, member, tile_coord, sizes, operands):
        write_each(interleave(acc, words), (env, member, tile_coord, sizes, operands))

    return device(write)


# --- sums of columns --------------------------------------------------------------------------------------------------


def each_or_sums(epilogue: Epilogue, n: int, width: int, columns: tuple[int, ...], fn: Any) -> Any:
    """`run(tile, env)`: `each`, or if there are sums `column_sums`, by these columns."""
    if epilogue.column_sums is None:
        return each(n, width, fn)
    return column_sums(n, width, columns, max(columns) + 1, fn)


def row_adder(column_sums: DType | None) -> Any:
    """`add(a, b, c, d)`: of pairs of two rows, a above b, and of the same rows further right, sums over both."""
    if column_sums is None:
        return device(lambda a, b, c, d: None)
    now = optimization_barrier()
    return device(lambda a, b, c, d: (now(a[0] + b[0]), now(a[1] + b[1]), now(c[0] + d[0]), now(c[1] + d[1])))
