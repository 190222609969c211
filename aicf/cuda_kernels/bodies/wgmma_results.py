"""How sums of a warpgroup become results: alpha, beta and the map that follows, then memory, in one of two ways.

runs    each thread stores the two neighbouring columns that it holds, or one: any results, anywhere
boxes   64 x 64 at a time go through shared memory, by stmatrix, and leave by the tensor memory accelerator, which does not
        write outside of the results: for some of half types with 16-byte aligned rows, computed together

Either way columns of what the map hands on may be added up, by each warp of its rows: a line of the workspace for each.

Sums lie as `multiply_slabs` says. `corner`: first row and column of a tile, and its layer (see wgmma_walk.py).
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from ...types import DType
from ..dsl import device, float32, uint32
from ..wgmma_tiling import ATOM, CHUNK_BYTES, WARPGROUP, WARPS, Tiling
from .element import putter, rounded_by_store, vector_maker
from .epilogue import Epilogue, finisher, first_row, places, starter
from .ptx import (
    commit_stores,
    fence_async,
    forget,
    pack_halves,
    scatter_sums,
    settle,
    store_box,
    store_matrices,
    sync_threads,
    wait_stores,
    wait_stores_read,
)
from .tile import column_sums, each, permute
from .wgmma_walk import chosen

CHUNK = ATOM * 64 // 128  # sums that a thread has of a 64 x 64 chunk; of narrower tiles, a chunk is as narrow
PAIR = 2  # neighbouring columns that a thread holds
OWN = ATOM // 4  # columns that it has of a chunk


def runs_of_results(tiling: Tiling, epilogue: Epilogue) -> tuple[Any, Any]:
    """(`write(acc, base, maps, group, member, corner, sizes, scales, operands)`, `done(member)`)"""
    blocks, finish, apart, outside = tiling.row_blocks, finisher(epilogue), forget(), epilogue.outside
    wide, size = chunks(tiling)

    def write_run(i, products, given):
        first, (line, column, m, n, scales, operands) = given
        chunk, within = (first + i) // size, i % size
        r = apart(line) + chunk % blocks * 64 + within // 2 % 2 * 8
        q = apart(column) + chunk // blocks * wide + within // 4 * 8 + i % 2
        if r < m and q < n:
            return finish(r, q, products, n, scales, operands)
        return outside

    columns = tuple(i // 4 * PAIR + i % PAIR for i in range(size))
    write_each = in_columns(tiling, epilogue, epilogue.width, columns, write_run)

    def write(acc, base, maps, group, member, corner, sizes, scales, operands):
        m, n = sizes[0], sizes[1]
        line = np.int32(corner[0] + member // 32 * 16 + member % 32 // 4)
        env = line, np.int32(corner[1] + member % 4 * 2), m, n, scales, operands
        write_each(acc, env, member, corner, sizes, operands)

    return device(write), device(lambda member: None)


def boxes_of_results(tiling: Tiling, epilogue: Epilogue) -> tuple[Any, Any]:
    """The same: two chunks of each result for each warpgroup, so that one is filled while the other leaves; or one, where
    the main loop needs the room."""
    results = len(epilogue.stores)
    blocks, chunks_at, buffers = tiling.row_blocks, tiling.chunks_at(results), tiling.buffers(results)
    turns, box, own = buffers // results, results * CHUNK_BYTES, buffers * CHUNK_BYTES
    put_all = each_or_sums(epilogue, CHUNK, 8, tuple(range(OWN)), matrices(epilogue))
    wait_but_one, wait_read, wait_all = wait_stores_read(turns - 1), wait_stores_read(0), wait_stores()
    fence, store, commit = fence_async(), storer(results, epilogue.batch), commit_stores()
    sync = chosen([sync_threads(1 + group, WARPGROUP) for group in range(tiling.consumers)])

    def write_chunk(i, run, given):
        first, (chunks, group, member, maps, corner, sizes, scales, operands) = given
        chunk = (first + i) // CHUNK
        line, column = np.int32(corner[0] + chunk % blocks * 64), np.int32(corner[1] + chunk // blocks * ATOM)
        at = uint32(chunks + uint32(chunk % turns * box))
        if member == 0:  # what was here has been read: of this tile some chunks ago, or of the one before
            if chunk == 0:
                wait_read()
            else:
                wait_but_one()
        sync(group)
        added = put_all(run, (at, member, line, column, sizes, scales, operands))
        fence()
        sync(group)
        if member == 0:
            store(maps, at, column, line, corner[2])
            commit()
        return added

    write_each = in_columns(tiling, epilogue, CHUNK, tuple(range(OWN)), write_chunk)

    def write(acc, base, maps, group, member, corner, sizes, scales, operands):
        chunks = uint32(base + uint32(chunks_at + group * own))
        env = chunks, group, member, maps, corner, sizes, scales, operands
        write_each(acc, env, member, corner, sizes, operands)

    def done(member):
        if member == 0:
            wait_all()

    return device(write), device(done)


def storer(results: int, batch: int) -> Any:
    """`store(maps, source, column, line, layer)`: a chunk of each result; of one matrix, or of many, so that no box hangs over
    into the next."""
    store, last = store_box(3 if batch else 2), results - 1
    map, behind = 2 + last, last * CHUNK_BYTES  # after those of a and b

    def store_last(maps, source, column, line, layer):
        if batch:
            store(maps[map], uint32(source + uint32(behind)), column, line, layer)
        else:
            store(maps[map], uint32(source + uint32(behind)), column, line)

    if results == 1:
        return device(store_last)
    store_others, store_this = storer(last, batch), device(store_last)

    def store_all(maps, source, column, line, layer):
        store_others(maps, source, column, line, layer)
        store_this(maps, source, column, line, layer)

    return device(store_all)


def matrices(epilogue: Epilogue) -> Any:
    """`put(i, run, env)`: 16 neighbouring columns of each warp's 16 rows of a chunk, as four 8 x 8 matrices of each result.
    Returns what is to be added up, if anything, as sums of its four columns.

    Rows of 128 bytes; in row x the 16 bytes that would be j-th are (j xor x % 8)-th, which the accelerator undoes: no two
    rows of a matrix lie in the same banks. Threads outside of the results compute with the nearest numbers inside.
    """
    finish, store, apart = packer(epilogue), matrix_storer(len(epilogue.stores)), forget()
    add = row_adder(epilogue.sums)

    def put(i, run, env):
        at, member, line, column, sizes, scales, operands = env
        m, n = sizes[0], sizes[1]
        member = apart(member)
        warp, lane = member // 32, member % 32
        r, q = line + warp * 16 + lane // 4, column + i // 4 * 8 + lane % 4 * 2
        upper, lower = np.int32(min(r, m - 1)), np.int32(min(r + 8, m - 1))
        left, right = np.int32(min(q, n - 2)), np.int32(min(q + 8, n - 2))
        x, j = warp * 16 + lane // 8 % 2 * 8 + lane % 8, i // 4 + lane // 16
        a = finish(apart(upper), apart(left), (run[0], run[1]), n, scales, operands)
        b = finish(apart(lower), apart(left), (run[2], run[3]), n, scales, operands)
        c = finish(apart(upper), apart(right), (run[4], run[5]), n, scales, operands)
        d = finish(apart(lower), apart(right), (run[6], run[7]), n, scales, operands)
        store(uint32(at + uint32(x * 2 * ATOM + (j ^ lane % 8) * 16)), a[0], b[0], c[0], d[0])
        return add(a[1], b[1], c[1], d[1], r, m)

    return put


def matrix_storer(results: int) -> Any:
    """`store(at, a, b, c, d)`: of each result four matrices, the words of one behind those of the other."""
    store, last = store_matrices(), results - 1
    behind = last * CHUNK_BYTES

    def store_last(at, a, b, c, d):
        store(uint32(at + uint32(behind)), a[last], b[last], c[last], d[last])

    if results == 1:
        return device(store_last)
    store_others, store_this = matrix_storer(last), device(store_last)

    def store_all(at, a, b, c, d):
        store_others(at, a, b, c, d)
        store_this(at, a, b, c, d)

    return device(store_all)


@functools.cache
def packer(epilogue: Epilogue) -> Any:
    """`finish(r, q, products, n, scales, operands)`: as `finisher`'s, but results are returned, the two neighbours of each in
    32 bits; then what is to be added up, or ()."""
    reads, expression = epilogue.reads, rounded_by_store(epilogue.expression, len(epilogue.stores))
    start, at, pack = starter(epilogue.c, PAIR), places(reads), pair_packer(epilogue.stores)
    first, added = first_row(epilogue.batch), last_of(len(epilogue.stores), epilogue.sums)
    moves, dtypes = tuple(read.column != 0 for read in reads), tuple(read.dtype for read in reads)
    compute = vector_maker(expression, dtypes, moves, PAIR)

    def finish(r, q, products, n, scales, operands):
        c, ins, strides, _, _, corner = operands
        to = (first(corner) + r) * n + q
        values = start(products, scales, c, to)
        made = compute(values, ins, at(np.int64(r), np.int64(q), np.int64(n), strides, corner))
        return pack(made), added(made)

    return device(finish)


def pair_packer(dtypes: tuple[DType, ...]) -> Any:
    """`pack(pairs)`: of each dtype a pair in 32 bits, as a tuple."""
    pack, last = pack_halves(dtypes[-1]), len(dtypes) - 1
    if last == 0:
        return device(lambda pairs: (pack(pairs[0][0], pairs[0][1]),))
    others = pair_packer(dtypes[:-1])
    return device(lambda pairs: others(pairs) + (pack(pairs[last][0], pairs[last][1]),))


# --- sums of columns --------------------------------------------------------------------------------------------------


def last_of(results: int, sums: DType | None) -> Any:
    """`added(pairs)`: the pair behind those of the results, or ()."""
    return device((lambda pairs: ()) if sums is None else (lambda pairs: pairs[results]))


def row_adder(sums: DType | None) -> Any:
    """`add(a, b, c, d, r, m)`: of pairs of row r, of r + 8, and of the same rows further right, sums over rows inside."""
    if sums is None:
        return device(lambda a, b, c, d, r, m: None)

    now = settle()

    def add(a, b, c, d, r, m):
        upper, lower = r < m, r + 8 < m
        return (
            now(choose(upper, a[0]) + choose(lower, b[0])),
            now(choose(upper, a[1]) + choose(lower, b[1])),
            now(choose(upper, c[0]) + choose(lower, d[0])),
            now(choose(upper, c[1]) + choose(lower, d[1])),
        )

    return device(add)


@device
def choose(inside, x):
    """x, or 0 outside, whatever x is."""
    return x if inside else float32(0)


def each_or_sums(epilogue: Epilogue, n: int, width: int, columns: tuple[int, ...], fn: Any) -> Any:
    """`run(tile, env)`: `each`, or if there are sums `column_sums`, by these columns."""
    if epilogue.sums is None:
        return each(n, width, fn)
    return column_sums(n, width, columns, max(columns) + 1, fn)


def chunks(tiling: Tiling) -> tuple[int, int]:
    """(Columns of a chunk of 64 rows, sums that a thread has of it)"""
    wide = min(ATOM, tiling.columns)
    return wide, CHUNK * wide // ATOM


def in_columns(tiling: Tiling, epilogue: Epilogue, width: int, columns: tuple[int, ...], fn: Any) -> Any:
    """`write(acc, env, member, corner, sizes, operands)`: `fn(i, run, (first, env))` for all that a thread holds, in runs: 64
    columns after the other, and in each, 64 rows after the other. A run is the one from first + i on. If there are sums, fn
    returns numbers to be added up, and each warp writes a line of their sums over its rows.

    columns  which of a chunk's own columns the numbers are of: column i is i % 2 of each 8
    """
    blocks, rows, (wide, size) = tiling.row_blocks, tiling.rows, chunks(tiling)
    across = tiling.columns // wide
    order = [(block * across + chunk) * size for chunk in range(across) for block in range(blocks)]
    turn = permute(tuple(first + i for first in order for i in range(size)))

    write_column = each_or_sums(epilogue, blocks * size, width, columns * blocks, fn)
    if epilogue.sums is None:
        write_all = each(tiling.finished, blocks * size, lambda i, run, env: write_column(run, (i, env)))
        return device(lambda acc, env, member, corner, sizes, operands: write_all(turn(acc), env))
    assert wide == ATOM
    add, keep = scatter_sums(OWN), putter(epilogue.sums)

    def write_and_add(i, run, given):
        env, member, corner, sizes, operands = given
        low, high = add(write_column(run, (i, env)))
        m, n, lane = sizes[0], sizes[1], member % 32
        column = np.int32(corner[1] + i // (blocks * CHUNK) * ATOM + lane // 4 * 8 + lane % 4 * PAIR)
        at = np.int64(corner[0] // rows * WARPS + member // 32) * n + column
        if corner[0] < m and column < n:
            keep(operands[4][0], at, low)
            if column + 1 < n:
                keep(operands[4][0], at + 1, high)

    write_each = each(tiling.finished, blocks * CHUNK, write_and_add)

    def write(acc, env, member, corner, sizes, operands):
        write_each(turn(acc), (env, member, corner, sizes, operands))

    return device(write)
