"""How accumulators of a warpgroup become results: alpha, beta and the map that follows, then memory, in one of two ways.

runs    each thread stores the two neighbouring columns that it holds, or one: any results, anywhere
boxes   64 x 64 at a time go through shared memory, by stmatrix, and are stored by TMA, which does not write outside
        of the results: for up to three f16/bf16 results, 16-byte aligned, and so their rows. What the map reads
        of such matrices is loaded the same way: a box of an operand is where those of results will be, and each warp
        puts its results in the place of what it has read there

What it reads by column only, and sums of columns, see wgmma_columns.py.

Accumulators lie as `multiply_k_tiles` says. `tile_coord`: the consumer's first row, the first column of the block's share,
the batch coordinate, and the tile's place among narrow ones or -1 (see `placer`).
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import numpy as np

from ..dsl import device, uint32
from ..hopper.roles import chosen
from ..hopper.scheduler import ender
from ..hopper.store import empty_subtiles, matrix_loader, matrix_storer, result_storer, source_loader
from ..hopper.units import ATOM, SUBTILE_BYTES, WARPGROUP, WARPS
from ..ptx import commit_stores, fence_async, opaque, sync_threads, wait_stores_read
from ..tiles.halves import functions
from ..tiles.layout import Layout
from ..tiles.pairs import PAIR, pair_maker
from .epilogue import Epilogue, finisher, first_row, places, start_of
from .wgmma_columns import (
    EIGHT,
    OWN,
    each_or_sums,
    in_columns,
    lane_distributed,
    preloaded_reads,
    row_adder,
    row_loader,
    shuffled,
    subtiles,
    with_words,
    words_for,
)
from .wgmma_tiling import OF_C, WgmmaTiling

SUBTILE = ATOM * 64 // 128  # accumulators that a thread has of a 64 x 64 subtile


def runs_of_results(tiling: WgmmaTiling, epilogue: Epilogue) -> tuple[Any, Any, Any]:
    """(`ask(base, maps, group, member, tile_coord, sizes, operands)`: before a tile's main loop, loads what its results are made from;
    `write(acc, words, base, maps, group, member, tile_coord, sizes, scales, operands, parity)`: of what `ask` returned; `done(member)`)"""
    blocks, finish, apart, outside = tiling.row_blocks, finisher(epilogue), opaque(), epilogue.outside
    wide, size = subtiles(tiling)
    layout = Layout(64, wide, warps=WARPS)
    place, end_of = layout.place(), ender(tiling.narrow_n)

    def write_run(i, products, given):
        first, (first_row, column, end, m, n, scales, operands) = given
        subtile, (down, across) = (first + i) // size, place(i % size, 0, 0)
        r = apart(first_row) + subtile % blocks * 64 + down
        q = apart(column) + subtile // blocks * wide + across
        if r < m and q < end:
            return finish(r, q, products, n, scales, operands)
        return outside

    write_each = in_columns(tiling, epilogue, epilogue.width, layout.by_column, write_run)

    def write(acc, words, base, maps, group, member, tile_coord, sizes, scales, operands, parity):
        m, n = sizes[0], sizes[1]
        row, column = place(0, member >> 5, member & 31)
        env = (
            np.int32(tile_coord[0] + row),
            np.int32(tile_coord[1] + column),
            end_of(tile_coord, n),
            m,
            n,
            scales,
            operands,
        )
        write_each(acc, words, env, member, tile_coord, sizes, operands)

    nothing = device(lambda base, maps, group, member, tile_coord, sizes, operands: ())
    return nothing, device(write), device(lambda member: None)


class Filling(NamedTuple):
    """How a subtile of results is made from accumulators.

    size       numbers of it in a thread, with words of what is preloaded
    put        `put(run, (at, member, row, column, sizes, scales, operands))`: in shared memory at `at`; returns what is added up
    load_rows  see `row_loader`; of so many reads that are `preloaded`, lane-`distributed` or not
    """

    size: int
    put: Any
    load_rows: Any
    preloaded: int
    distributed: bool


def mapped(tiling: WgmmaTiling, epilogue: Epilogue, tma_sources: tuple[int, ...]) -> Filling:
    """By the epilogue's map."""
    preloaded = preloaded_reads(tiling, epilogue)
    each_put = with_words(len(preloaded))
    size = SUBTILE // EIGHT * each_put
    distributed = lane_distributed(tiling, epilogue, preloaded)
    put = shuffled(matrices(epilogue, tma_sources, preloaded), len(preloaded), distributed)
    put_all = each_or_sums(epilogue, size, each_put, tuple(range(OWN)), put)
    load_rows = row_loader(tiling, epilogue, preloaded, distributed)
    return Filling(size, put_all, load_rows, len(preloaded), distributed)


def boxes_of_results(
    tiling: WgmmaTiling,
    epilogue: Epilogue,
    staged: int,
    tma_sources: tuple[int, ...],
    filling: Filling | None = None,
) -> tuple[Any, Any, Any]:
    """The same: two subtiles of each result for each warpgroup, so that one is filled while the other is stored; or one, where
    the main loop needs the room. `tma_sources`: reads of the epilogue that are loaded in boxes; see `source_loader`. filling: other
    than by the epilogue's map."""
    blocks, subtiles_at, buffers = tiling.row_blocks, tiling.subtiles_at(staged), tiling.buffers(staged)
    slots, box, own = buffers // staged, staged * SUBTILE_BYTES, buffers * SUBTILE_BYTES
    size, put_all, load_rows, preloaded, distributed = filling or mapped(tiling, epilogue, tma_sources)
    wait_read, fence, commit = wait_stores_read(0), fence_async(), commit_stores()
    first, results = 2, len(epilogue.stores)  # among maps
    first_narrow = first + results + len(tma_sources)
    store = result_storer(first, results, bool(epilogue.batch), tiling.narrow_n, first_narrow)
    sync = chosen([sync_threads(1 + group, WARPGROUP) for group in range(tiling.consumers)])
    ask_for, wait_for_room, go_on = (
        source_loader(
            first + results, len(tma_sources), blocks, tiling.subtiles, slots, box, tiling.arrived_at(staged)
        )
        if tma_sources
        else empty_subtiles(slots, sync)
    )

    def write_subtile(i, run, given):
        first, (base, subtiles, group, member, maps, tile_coord, sizes, scales, operands, parity) = given
        subtile = (first + i) // size
        row = np.int32(tile_coord[0] + subtile % blocks * 64)
        column = np.int32(tile_coord[1] + subtile // blocks * ATOM)
        at = uint32(subtiles + uint32(subtile % slots * box))
        wait_for_room(subtile, base, group, member, parity)
        added = put_all(run, (at, member, row, column, sizes, scales, operands))
        fence()
        sync(group)
        if member == 0:
            store(maps, at, column, row, tile_coord)
            commit()
            go_on(subtile, base, subtiles, maps, group, tile_coord)
        return added

    write_each = in_columns(tiling, epilogue, size, tuple(range(OWN)), write_subtile, preloaded, distributed)

    def write(acc, words, base, maps, group, member, tile_coord, sizes, scales, operands, parity):
        subtiles = uint32(base + uint32(subtiles_at + group * own))
        env = base, subtiles, group, member, maps, tile_coord, sizes, scales, operands, parity
        write_each(acc, words, env, member, tile_coord, sizes, operands)

    def ask(base, maps, group, member, tile_coord, sizes, operands):
        if member == 0:
            ask_for(base, uint32(base + uint32(subtiles_at + group * own)), maps, group, tile_coord)
        return load_rows(tile_coord, member, sizes[1], operands)

    def done(member):
        if member == 0:
            wait_read()  # shared memory goes with the block; what is on its way from there arrives

    return device(ask), device(write), device(done)


def matrices(epilogue: Epilogue, tma_sources: tuple[int, ...], preloaded: tuple[int, ...]) -> Any:
    """`put(i, run, env)`: 16 neighbouring columns of each warp's 16 rows of a subtile, as four 8 x 8 matrices of each result.
    Returns what is to be added up, if anything, as sums of its four columns. A run: eight accumulators, then words that are `preloaded`.

    Rows of 128 bytes; in row x the 16 bytes that would be j-th are (j xor x % 8)-th, which the accelerator undoes: no two
    rows of a matrix lie in the same banks. Threads outside of the results compute with the nearest numbers inside.
    """
    finish, store, apart = (
        packer(epilogue, tma_sources, preloaded),
        matrix_storer(len(epilogue.stores)),
        opaque(),
    )
    load, add = matrix_loader(len(tma_sources)), row_adder(epilogue.column_sums)
    each_put, (left_of, right_of) = with_words(len(preloaded)), words_for(len(preloaded))
    place_of = Layout(64, ATOM, warps=WARPS).place()

    def put(i, run, env):
        at, member, first_row, column, sizes, scales, operands = env
        m, n = sizes[0], sizes[1]
        member, j = apart(member), i // each_put
        lane, x = member & 31, (member >> 5) * 16 + (member & 15)
        row, across = place_of(j * 8, member >> 5, lane)
        r, q = np.int32(first_row + row), np.int32(column + across)
        last_r, last_q = np.int32(m - 1), np.int32(n - 2)
        upper, lower = min(r, last_r), min(np.int32(r + 8), last_r)
        left, right = min(q, last_q), min(np.int32(q + 8), last_q)
        place = uint32((at + uint32(x * 2 * ATOM + ((lane >> 4) ^ (lane & 7)) * 16)) ^ uint32(j * 32))
        read, by_left, by_right = load(place), left_of(run), right_of(run)
        a = finish(apart(upper), apart(left), (run[0], run[1]), n, scales, operands, read[0] + by_left, r < m)
        b = finish(
            apart(lower), apart(left), (run[2], run[3]), n, scales, operands, read[1] + by_left, r + 8 < m
        )
        c = finish(
            apart(upper), apart(right), (run[4], run[5]), n, scales, operands, read[2] + by_right, r < m
        )
        d = finish(
            apart(lower), apart(right), (run[6], run[7]), n, scales, operands, read[3] + by_right, r + 8 < m
        )
        store(place, a[0], b[0], c[0], d[0])
        return add(a[1], b[1], c[1], d[1])

    return put


@functools.cache
def packer(epilogue: Epilogue, tma_sources: tuple[int, ...], preloaded: tuple[int, ...]) -> Any:
    """`finish(r, q, products, n, scales, operands, words, inside)`: as `finisher`'s, but results are returned, the two neighbours
    of each in 32 bits; then what is to be added up, or (). `words`: of each of `tma_sources`, c's first, and of those `preloaded`."""
    reads = epilogue.reads
    of_reads, c_by_tma = (*(k for k in tma_sources if k != OF_C), *preloaded), OF_C in tma_sources
    start, at, first = (start_of(epilogue, PAIR, c_by_tma), places(reads), first_row(epilogue.batch))
    moves, dtypes = tuple(read.column != 0 for read in reads), tuple(read.dtype for read in reads)
    make = pair_maker(epilogue.expression, dtypes, epilogue.stores, moves, of_reads, functions())
    c_of = device((lambda c, words: words[:1]) if c_by_tma else (lambda c, words: c))
    others = device((lambda words: words[1:]) if c_by_tma else (lambda words: words))

    def finish(r, q, products, n, scales, operands, words, inside):
        c, ins, strides, _, _, origin = operands
        to = (first(origin) + r) * n + q
        values = start(products, scales, c_of(c, words), to)
        offsets = at(np.int64(r), np.int64(q), np.int64(n), strides, origin)
        return make(values, others(words), ins, offsets, inside)

    return device(finish)
