"""How sums of a warpgroup become results: alpha, beta and the map that follows, then memory, in one of two ways.

runs    each thread stores the two neighbouring columns that it holds, or one: any result, anywhere
boxes   64 x 64 at a time go through shared memory, by stmatrix, and leave by the tensor memory accelerator, which does not
        write outside of the result: for one result of a half type with 16-byte aligned rows

Sums lie as `multiply_slabs` says. `corner`: first row and column of a tile, and its layer (see wgmma_walk.py).
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from ..dsl import device, uint32
from ..wgmma_tiling import ATOM, CHUNK_BYTES, WARPGROUP, Tiling
from .element import rounded_by_store, vector_applier
from .epilogue import Epilogue, finisher, first_row, places, starter
from .ptx import (
    commit_stores,
    fence_async,
    forget,
    pack_halves,
    store_box,
    store_matrices,
    sync_threads,
    wait_stores,
    wait_stores_read,
)
from .tile import each
from .wgmma_walk import chosen

CHUNK = ATOM * 64 // 128  # sums that a thread has of a 64 x 64 chunk
PAIR = 2  # neighbouring columns that a thread holds


def runs_of_results(tiling: Tiling, epilogue: Epilogue) -> tuple[Any, Any]:
    """(`write(acc, base, maps, group, member, corner, sizes, scales, operands)`, `done(member)`)"""
    sums, finish, apart = tiling.n // 2, finisher(epilogue), forget()

    def write_run(i, products, env):
        line, column, m, n, scales, operands = env
        r = apart(line) + i // sums * 64 + i % sums // 2 % 2 * 8
        q = apart(column) + i % sums // 4 * 8 + i % 2
        if r < m and q < n:
            finish(r, q, products, n, scales, operands)

    write_each = each(tiling.sums, epilogue.width, write_run)

    def write(acc, base, maps, group, member, corner, sizes, scales, operands):
        m, n = sizes[0], sizes[1]
        line = np.int32(corner[0] + member // 32 * 16 + member % 32 // 4)
        write_each(acc, (line, np.int32(corner[1] + member % 4 * 2), m, n, scales, operands))

    return device(write), device(lambda member: None)


def boxes_of_results(tiling: Tiling, epilogue: Epilogue) -> tuple[Any, Any]:
    """The same: two chunks for each warpgroup, so that one is filled while the other leaves."""
    across, chunks_at = tiling.n // ATOM, tiling.chunks_at
    put_all = each(CHUNK, 8, matrices(epilogue))
    wait_but_one, wait_read, wait_all = wait_stores_read(1), wait_stores_read(0), wait_stores()
    fence, store, commit = fence_async(), storer(epilogue.batch), commit_stores()
    sync = chosen([sync_threads(1 + group, WARPGROUP) for group in range(tiling.consumers)])

    def write_chunk(i, run, env):
        chunks, group, member, result, corner, sizes, scales, operands = env
        chunk = i // CHUNK
        line, column = np.int32(corner[0] + chunk // across * 64), np.int32(corner[1] + chunk % across * ATOM)
        at = uint32(chunks + uint32(chunk % 2 * CHUNK_BYTES))
        if member == 0:  # what was here has been read: of this tile two chunks ago, or of the one before
            if chunk == 0:
                wait_read()
            else:
                wait_but_one()
        sync(group)
        put_all(run, (at, member, line, column, sizes, scales, operands))
        fence()
        sync(group)
        if member == 0:
            store(result, at, column, line, corner[2])
            commit()

    write_each = each(tiling.sums, CHUNK, write_chunk)

    def write(acc, base, maps, group, member, corner, sizes, scales, operands):
        chunks = uint32(base + uint32(chunks_at + group * 2 * CHUNK_BYTES))
        write_each(acc, (chunks, group, member, maps[2], corner, sizes, scales, operands))

    def done(member):
        if member == 0:
            wait_all()

    return device(write), device(done)


def storer(batch: int) -> Any:
    """`store(map, source, column, line, layer)`: of one matrix; or of many, so that no box hangs over into the next."""
    if batch:
        return store_box(3)
    store = store_box()
    return device(lambda map, source, column, line, layer: store(map, source, column, line))


def matrices(epilogue: Epilogue) -> Any:
    """`put(i, run, env)`: 16 neighbouring columns of each warp's 16 rows of a chunk, as four 8 x 8 matrices.

    Rows of 128 bytes; in row x the 16 bytes that would be j-th are (j xor x % 8)-th, which the accelerator undoes: no two
    rows of a matrix lie in the same banks. Threads outside of the result compute with the nearest numbers inside.
    """
    finish, store, apart = packer(epilogue), store_matrices(), forget()

    def put(i, run, env):
        at, member, line, column, sizes, scales, operands = env
        m, n = sizes[0], sizes[1]
        member = apart(member)
        warp, lane = member // 32, member % 32
        r, q = line + warp * 16 + lane // 4, column + i // 4 * 8 + lane % 4 * 2
        upper, lower = np.int32(min(r, m - 1)), np.int32(min(r + 8, m - 1))
        left, right = np.int32(min(q, n - 2)), np.int32(min(q + 8, n - 2))
        x, j = warp * 16 + lane // 8 % 2 * 8 + lane % 8, i // 4 + lane // 16
        store(
            uint32(at + uint32(x * 2 * ATOM + (j ^ lane % 8) * 16)),
            finish(apart(upper), apart(left), (run[0], run[1]), n, scales, operands),
            finish(apart(lower), apart(left), (run[2], run[3]), n, scales, operands),
            finish(apart(upper), apart(right), (run[4], run[5]), n, scales, operands),
            finish(apart(lower), apart(right), (run[6], run[7]), n, scales, operands),
        )

    return put


@functools.cache
def packer(epilogue: Epilogue) -> Any:
    """`finish(r, q, products, n, scales, operands)`: as `finisher`'s, but the two neighbours are returned, in 32 bits."""
    reads, expression = epilogue.reads, rounded_by_store(epilogue.expression, len(epilogue.stores))
    start, at, pack = (starter(epilogue.c, PAIR), places(reads), pack_halves(epilogue.stores[0]))
    first = first_row(epilogue.batch)
    moves, dtypes = tuple(read.column != 0 for read in reads), tuple(read.dtype for read in reads)
    compute = vector_applier(expression, dtypes, (), moves, PAIR)

    def finish(r, q, products, n, scales, operands):
        c, ins, strides, _, _, corner = operands
        to = (first(corner) + r) * n + q
        values = start(products, scales, c, to)
        made = compute(values, ins, (), at(np.int64(r), np.int64(q), np.int64(n), strides, corner), to)
        return pack(made[0], made[1])

    return device(finish)
