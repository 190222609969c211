"""What the results of a warpgroup have by column: what their map reads by column only, and sums of what it makes.

Such an operand, a bias, is asked for before a tile's main loop, and waits in registers: 32 bits of two neighbours for each
eight columns of the tile. What it holds for 16 columns goes along with the sums of these. Eight lanes hold the same: where there
are no registers for that, each has an eighth, and they ask each other; see `dealt`.

Sums are by each warp of its rows: a line of the workspace for each.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ...types import DType, bf16, f16
from ..dsl import SIMULATED, cuda, deferred, device, intrinsic, ir, types
from ..llvm import const
from ..ptx import forget, scatter_sums, settle
from ..tiles.element import putter
from ..tiles.pairs import PAIR
from ..tiles.register_tile import EVERYONE
from ..tiles.tile import column_sums, each, permute
from .epilogue import Epilogue, places
from .wgmma_tiling import ADDRESSES, ATOM, WARPS, Tiling, by_slices

EIGHT = 8  # columns that four threads hold together; and a thread's sums of 16 columns and 16 rows
OWN = ATOM // 4  # columns that a thread has of a chunk
MOST_WORDS = 32  # that wait in registers
STEPS = 20  # registers that an axis of a batch takes: indices and steps of 64 bits, and what is made of them

# --- what is read by column -------------------------------------------------------------------------------------------


def held_reads(tiling: Tiling, epilogue: Epilogue) -> tuple[int, ...]:
    """Reads of halves by column, as many as there are registers for."""
    found = tuple(
        k for k, read in enumerate(epilogue.reads)
        if read.dtype in (f16, bf16) and (read.row, read.column) == (0, 1)
    )  # fmt: skip
    return found[: MOST_WORDS * EIGHT // tiling.columns]


def dealt(tiling: Tiling, epilogue: Epilogue, held: tuple[int, ...]) -> bool:
    """Whether there are no registers for all words that are held, beside sums of a tile and of a slice, and steps of a batch."""
    of_slice = tiling.n // 2 if tiling.slices or by_slices(epilogue.dtype) else 0
    left = tiling.spare - of_slice - len(held) * tiling.columns // EIGHT
    return len(held) > 0 and left < ADDRESSES + STEPS * epilogue.batch


def row_loader(tiling: Tiling, epilogue: Epilogue, held: tuple[int, ...], deal: bool) -> Any:
    """`load(corner, member, n, operands)`: all words of the reads that are held, one read's after the other's; or if they are dealt,
    of each 64 columns the lane's pair."""
    if not deal:
        return reads_loader(epilogue, held, words_of_row(tiling.columns // EIGHT))
    load = reads_loader(epilogue, held, words_of_chunks(tiling.columns // ATOM))

    def load_dealt(corner, member, n, operands):
        column = np.int32(corner[1] + (member >> 2 & 7) * EIGHT)
        return load((corner[0], column), member, n, operands)

    return device(load_dealt)


def reads_loader(epilogue: Epilogue, held: tuple[int, ...], load_words: Any) -> Any:
    """`load(corner, member, n, operands)`: of each read the words from the lane's columns on, as `load_words` has them."""
    if not held:
        return device(lambda corner, member, n, operands: ())
    k, others = held[-1], reads_loader(epilogue, held[:-1], load_words)
    at = places(epilogue.reads)
    pointer = sum(read.dtype is not None for read in epilogue.reads[:k])

    def load(corner, member, n, operands):
        _, ins, strides, _, _, layer = operands
        start = at(np.int64(0), np.int64(0), np.int64(n), strides, layer)[k]
        column = np.int32(corner[1] + (member & 3) * PAIR)
        return others(corner, member, n, operands) + load_words(
            ins[pointer], start, column, np.int32(n - PAIR)
        )

    return device(load)


@deferred
def words_of_row(count: int) -> Any:
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


def words_of_chunks(count: int) -> Any:
    """The same, of so many pairs 64 apart."""
    load_last, further = words_of_row(1), (count - 1) * ATOM
    if count == 1:
        return load_last
    load_others = words_of_chunks(count - 1)

    def load(pointer, start, column, last):
        words = load_others(pointer, start, column, last)
        return words + load_last(pointer, start, np.int32(column + further), last)

    return device(load)


@deferred
def weave(order: tuple[int, ...]) -> Any:
    """`turn(tile, words)`: of both together, in this order."""
    if SIMULATED:
        return lambda tile, words: tuple((*tile, *words)[i] for i in order)

    @intrinsic
    def turn(typing, tile, words):
        def codegen(ctx, b, sig, args):
            count = len(tile)
            values = [
                b.extract_value(args[0], i) if i < count else b.extract_value(args[1], i - count)
                for i in order
            ]
            return ctx.make_tuple(b, sig.return_type, values)

        return types.UniTuple(types.float32, len(order))(tile, words), codegen

    return turn


def with_words(held: int) -> int:
    """What a thread has of 16 rows and columns: its sums, and words for the left and the right eight columns."""
    return EIGHT + 2 * held


def words_for(held: int) -> tuple[Any, Any]:
    """(`left(run)`, `right(run)`): these words."""
    if held == 0:
        nothing = device(lambda run: ())
        return nothing, nothing
    return permute(tuple(range(EIGHT, EIGHT + held))), permute(tuple(range(EIGHT + held, with_words(held))))


def asked(put: Any, held: int, deal: bool) -> Any:
    """`put(i, run, env)`, whose words were dealt: each lane gets those that it would hold. In env, `member` is second."""
    if not deal:
        return put
    sums_of, words_of = permute(tuple(range(EIGHT))), asker(2 * held, held)
    size, apart, put_run = with_words(held), forget(), device(put)

    def ask_and_put(i, run, env):
        who = np.int32(i // size * 8 + (apart(env[1]) & 3))
        return put_run(i, sums_of(run) + words_of(run, who), env)

    return ask_and_put


def asker(count: int, held: int) -> Any:
    """`words(run, who)`: `count` words of a run: this lane has what it needs of the left eight columns, of the right ones the fourth
    after it."""
    if count == 0:
        return device(lambda run, who: ())
    others, position, further = asker(count - 1, held), EIGHT + count - 1, 4 * ((count - 1) // held)

    def words(run, who):
        return others(run, who) + (cuda.shfl_sync(EVERYONE, run[position], np.int32(who + further)),)

    return device(words)


# --- all that a thread holds ------------------------------------------------------------------------------------------


def chunks(tiling: Tiling) -> tuple[int, int]:
    """(Columns of a chunk of 64 rows, sums that a thread has of it)"""
    wide = min(ATOM, tiling.columns)
    return wide, wide // 2


def in_columns(
    tiling: Tiling,
    epilogue: Epilogue,
    width: int,
    columns: tuple[int, ...],
    fn: Any,
    held: int = 0,
    deal: bool = False,
) -> Any:
    """`write(acc, words, env, member, corner, sizes, operands)`: `fn(i, run, (first, env))` for all that a thread holds, in runs:
    64 columns after the other, and in each, 64 rows after the other. A run is the one from first + i on. If there are sums, fn
    returns numbers to be added up, and each warp writes a line of their sums over its rows.

    columns  which of a chunk's own columns the numbers are of: column i is i % 2 of each 8
    held     reads whose words go along, behind each eight sums
    deal     whether they were dealt
    """
    blocks, rows, (wide, sums) = tiling.row_blocks, tiling.rows, chunks(tiling)
    across, words = tiling.columns // wide, tiling.columns // (wide if deal else EIGHT)
    order: list[int] = []
    for chunk in range(across):
        for block in range(blocks):
            first = (block * across + chunk) * sums
            for i in range(0, sums, EIGHT):
                order += range(first + i, first + i + EIGHT)
                pair = [chunk] * 2 if deal else [chunk * wide // EIGHT + i // 4 + side for side in range(2)]
                order += [tiling.finished + word + k * words for word in pair for k in range(held)]
    turn, size = weave(tuple(order)), sums // EIGHT * with_words(held)

    write_column = each_or_sums(epilogue, blocks * size, width, columns * blocks, fn)
    if epilogue.sums is None:
        write_all = each(
            across * blocks * size, blocks * size, lambda i, run, env: write_column(run, (i, env))
        )
        return device(
            lambda acc, words, env, member, corner, sizes, operands: write_all(turn(acc, words), env)
        )
    assert wide == ATOM
    add, keep = scatter_sums(OWN), putter(epilogue.sums)

    def write_and_add(i, run, given):
        env, member, corner, sizes, operands = given
        low, high = add(write_column(run, (i, env)))
        m, n, lane = sizes[0], sizes[1], member & 31
        column = np.int32(corner[1] + i // (blocks * size) * ATOM + (lane >> 2) * 8 + (lane & 3) * PAIR)
        at = np.int64(corner[0] // rows * WARPS + (member >> 5)) * n + column
        if corner[0] < m and column < n:
            keep(operands[4][0], at, low)
            if column + 1 < n:
                keep(operands[4][0], at + 1, high)

    write_each = each(across * blocks * size, blocks * size, write_and_add)

    def write(acc, words, env, member, corner, sizes, operands):
        write_each(turn(acc, words), (env, member, corner, sizes, operands))

    return device(write)


# --- sums of columns --------------------------------------------------------------------------------------------------


def each_or_sums(epilogue: Epilogue, n: int, width: int, columns: tuple[int, ...], fn: Any) -> Any:
    """`run(tile, env)`: `each`, or if there are sums `column_sums`, by these columns."""
    if epilogue.sums is None:
        return each(n, width, fn)
    return column_sums(n, width, columns, max(columns) + 1, fn)


def row_adder(sums: DType | None) -> Any:
    """`add(a, b, c, d)`: of pairs of two rows, a above b, and of the same rows further right, sums over both."""
    if sums is None:
        return device(lambda a, b, c, d: None)
    now = settle()
    return device(lambda a, b, c, d: (now(a[0] + b[0]), now(a[1] + b[1]), now(c[0] + d[0]), now(c[1] + d[1])))
