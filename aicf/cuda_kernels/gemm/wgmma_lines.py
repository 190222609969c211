"""Results whose rows TMA can't store, since they begin at no multiples of 16 bytes: the third way from accumulators to memory.

lines   each warp puts 64 columns of its 16 rows in shared memory, by stmatrix, and stores rows from there in whole 128-byte lines: a line
        an instruction, a word a lane. A word's two halves are read one by one, since a row may begin at an odd one. Of one
        f16 or bf16 result, of any alignment

A line straddles two runs of 64 columns, so both are there, side by side in rows of 256 bytes; column c of the tile lies at byte 2 c % 256
of its row, but that its 16 bytes are exclusive-ored with the row's number, as `matrices` of wgmma_store.py puts them. `window` w of a row is
the line that begins at or before column 64 w: it takes the last columns of run w - 1 and the first ones of run w, and the last window what
is left. So within a tile a line is written once, and L2 need not merge parts of its sectors; at its ends are parts of
a line, and perhaps half of a word. Nothing is shared between warps, and nobody waits for others.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..dsl import cuda, device, int32, uint32
from ..hopper.scheduler import ender
from ..hopper.units import ATOM
from ..ptx import global_address, line_offset, load_shared_pair, opaque, store_half_below, store_pair_below
from ..tiles.tile import each
from .epilogue import Epilogue, first_row
from .wgmma_columns import EIGHT, interleaver, with_words
from .wgmma_store import SUBTILE, mapped
from .wgmma_tiling import WgmmaTiling

ROWS, ROW_BYTES = 16, 4 * ATOM  # of a warp's part of 64 rows, with room for two runs
GROUP = 8  # rows whose words are read together; their 16 bytes are in different places


def lines_of_results(tiling: WgmmaTiling, epilogue: Epilogue, staged: int) -> tuple[Any, Any, Any]:
    """(`ask`, `write`, `done`), as `runs_of_results` of wgmma_store.py."""
    assert (
        staged == 1 == len(epilogue.stores) and tiling.buffers(staged) == 2 and epilogue.column_sums is None
    )
    across = tiling.columns // ATOM
    subtiles_at, own = tiling.subtiles_at(staged), 64 * ROW_BYTES
    size, put_all, load_rows, preloaded, distributed = mapped(tiling, epilogue, ())
    first, end_of, store_window = first_row(epilogue.batch), ender(tiling.narrow_n), window()

    def write_run(i, run, given):
        rows_at, member, tile_coord, count, start, left, sizes, scales, operands = given
        step = int32(i) // size
        block, sub = step // across, step % across
        row, column = np.int32(tile_coord[0] + block * 64), np.int32(tile_coord[1] + sub * ATOM)
        x = (member >> 5) * ROWS + (member & 15)
        # `put` goes 128 bytes further with each row, which is half of what lies between these
        at = uint32(rows_at + uint32(sub % 2 * (ROW_BYTES // 2) + x * (ROW_BYTES // 2)))
        cuda.syncwarp()
        put_all(run, (at, member, row, column, sizes, scales, operands))
        cuda.syncwarp()
        n, out = int32(sizes[1]), operands[3][0]
        warp_at = uint32(rows_at + uint32((member >> 5) * (ROWS * ROW_BYTES)))
        env = (
            warp_at,
            int32(member & 31),
            out,
            start + block * 64 * np.int64(n),
            n,
            count,
            int32(left - block * 64),
        )
        last = sub + 2 if sub == across - 1 else sub + 1
        for w in range(sub, last):
            store_window(int32(w), env)

    order = run_order(tiling, preloaded, distributed)
    interleave, write_each = interleaver(order), each(len(order), size, write_run)

    def write(acc, words, base, maps, group, member, tile_coord, sizes, scales, operands, parity):
        rows_at = uint32(base + uint32(subtiles_at + group * own))
        m, n = sizes[0], sizes[1]
        count = min(int32(end_of(tile_coord, n) - tile_coord[1]), int32(across * ATOM))
        row = np.int32(tile_coord[0] + (member >> 5) * ROWS)
        start = (first(operands[5]) + row) * np.int64(n) + tile_coord[1]
        env = rows_at, member, tile_coord, count, start, int32(m - row), sizes, scales, operands
        write_each(interleave(acc, words), env)

    def ask(base, maps, group, member, tile_coord, sizes, operands):
        return load_rows(tile_coord, member, sizes[1], operands)

    return device(ask), device(write), device(lambda member: None)


def run_order(tiling: WgmmaTiling, preloaded: int, distributed: bool) -> tuple[int, ...]:
    """Of accumulators, and words behind them, in runs of 64 rows and columns: all columns of 64 rows, and then the next rows'. What is
    preloaded goes along as for `in_columns`."""
    across, words = tiling.columns // ATOM, tiling.columns // (ATOM if distributed else EIGHT)
    order: list[int] = []
    for first in range(0, tiling.finished, EIGHT):
        sub = first // SUBTILE % across
        left = sub if distributed else sub * EIGHT + first % SUBTILE // 4
        order += range(first, first + EIGHT)
        for word in (left, left if distributed else left + 1):
            order += [tiling.finished + word + k * words for k in range(preloaded)]
    assert len(order) == tiling.finished // EIGHT * with_words(preloaded)
    return tuple(order)


def window() -> Any:
    """`store(w, (warp_at, lane, out, start, n, count, left))`: line w of the warp's rows, and what lies alone in a word at their ends, once its
    run is there.

    warp_at  where the warp's rows lie in shared memory
    start    element of the result that the first of them begins at in this tile; n, from row to row
    count    columns of the tile, left: rows from the first one on, that are inside; or less than one
    """
    load, store_pair, store_half = load_shared_pair(), store_pair_below(), store_half_below()
    past, address, apart = line_offset(), global_address(), opaque()

    def load_row(y, g, w, env):
        warp_at, lane, out, start, n, _, _ = env
        c = int32(w * ATOM + lane * 2 - past(out, start + (g * GROUP + y) * n))
        row_at = uint32(warp_at + uint32((g * GROUP + y) * ROW_BYTES))
        low = uint32(row_at + uint32((c * 2 & (ROW_BYTES - 1)) ^ y * 16))
        high = uint32(row_at + uint32((c * 2 + 2 & (ROW_BYTES - 1)) ^ y * 16))
        return load(low, high)

    def store_row(y, word, g, w, env):
        _, lane, out, start, n, count, left = env
        first = start + (g * GROUP + y) * n
        c = int32(w * ATOM + lane * 2 - past(out, first))
        limit = int32(count - 1) if g * GROUP + y < left and count > 0 else int32(0)
        store_pair(address(out, first + c), word, c, limit)

    load_rows, store_rows = rows_up_to(GROUP, device(load_row)), words_up_to(GROUP, device(store_row))

    def store_ends(w, env):
        """Lanes 0 to 15 have the first column of each row, the others the last one."""
        warp_at, lane, out, start, n, count, left = env
        x, last = int32(lane & 15), int32(count - 1)
        first = start + x * np.int64(n)
        odd = past(out, first) & 1
        at_end = lane >= ROWS
        c = last if at_end else int32(0)
        alone = (last >> 6 == w and (odd + count) & 1 == 1) if at_end else (w == 0 and odd == 1)
        at = uint32(warp_at + uint32(x * ROW_BYTES + ((c * 2 & (ROW_BYTES - 1)) ^ (x & 7) * 16)))
        limit = left if alone and left > 0 else int32(0)
        store_half(address(out, first + c), load(at, at), x, limit)

    ends = device(store_ends)

    def store(w, env):
        warp_at, lane, out, start, n, count, left = env
        for g in range(ROWS // GROUP):
            # made here: there are no registers for what depends on rows alone from one window to the next
            here = warp_at, apart(lane), out, start, np.int64(apart(n)), count, left
            store_rows(load_rows(int32(g), w, here), int32(g), w, here)
        if count > 0 and (w == 0 or (count - 1) >> 6 == w):
            ends(w, env)

    return device(store)


def rows_up_to(count: int, load: Any) -> Any:
    """`load_all(g, w, env)`: a word of each row."""
    y = count - 1
    if count == 1:
        return device(lambda g, w, env: (load(int32(y), g, w, env),))
    others = rows_up_to(y, load)
    return device(lambda g, w, env: others(g, w, env) + (load(int32(y), g, w, env),))


def words_up_to(count: int, store: Any) -> Any:
    """`store_all(words, g, w, env)`."""
    y = count - 1
    if count == 1:
        return device(lambda words, g, w, env: store(int32(y), words[y], g, w, env))
    others = words_up_to(y, store)

    def store_all(words, g, w, env):
        others(words, g, w, env)
        store(int32(y), words[y], g, w, env)

    return device(store_all)
