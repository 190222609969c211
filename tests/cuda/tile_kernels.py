"""Kernels around register tiles: a tile of attention on wgmma, a softmax of products on mma.sync, a norm of whole rows, and every
operation at once.

They show that a few lines over tiles/register_tile.py do what flash attention and row-wise kernels need.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from ptx_kernels import aligned, matrix

from aicf.cuda_kernels import ptx
from aicf.cuda_kernels.dsl import cuda, device, int32, types, uint32
from aicf.cuda_kernels.ptx.wgmma import WORDS
from aicf.cuda_kernels.tiles.layout import Layout, RowLayout
from aicf.cuda_kernels.tiles.register_tile import (
    fold_rows,
    join_rows,
    join_warps,
    load_tile,
    map_tile,
    mask,
    pack,
    reduce_columns,
    reduce_rows,
    send_tile,
    starts,
    store_tile,
    take_words,
    zip_columns,
    zip_rows,
    zip_tiles,
)
from aicf.cuda_kernels.tiles.tile import permute, raw_runs, zeros
from aicf.registry.variant import In, Launch, Num, Out
from aicf.types import DType, f32, i32

QUERIES = KEYS = 64  # of a tile, and of a step
BOX = 64 * 128  # bytes: 64 rows of 64 halves
FAR = np.float32(-np.inf)


def attention(dtype: DType, queries: int, keys: int, d: int, shift: int, in_registers: bool) -> Launch:
    """Result 0: softmax(q kᵀ / √d) v, of which query i sees keys 0 to i + shift, `KEYS` at a time: a step has the scores, the
    greatest so far, by which older sums shrink, and weights, which are the first operand of the product with the values. That one
    runs during the next step's softmax.

    Up to 64 queries a block; operands are rows of d halves. q comes from shared memory, or is in registers.
    """
    chunks, steps = d // 64, -(-keys // KEYS)
    scores, sums = Layout(QUERIES, KEYS, 4), Layout(QUERIES, d, 4)
    part, bar_at = chunks * BOX, (1 + 2 * steps) * chunks * BOX
    address, init, publish, fence_copies = (
        ptx.shared_address(), ptx.barrier_init(), ptx.publish_barriers(), ptx.fence_async()
    )  # fmt: skip
    expect, arrived, wait_all = ptx.expect(), ptx.wait_phase(), ptx.wait_stores()
    load_rows, place, start, no_scores = (
        rows_loader(chunks),
        scores.place(),
        zeros(sums.count),
        zeros(scores.count),
    )
    fence, commit, values_of = ptx.fence_products(), ptx.commit_products(), ptx.describe(False)
    score, first_of = scorer(dtype, chunks, in_registers), queries_of(d, in_registers)
    weigh_values = ptx.multiply_k_tiles(dtype, d, 1, None, False)
    end_first, end_scores, end_sums = (
        ptx.finish_products(scores.count), ptx.finish_products(scores.count, 1), ptx.finish_products(sums.count)
    )  # fmt: skip

    own_rows, soften = len(sums.own_rows), softener(scores)
    no_peaks, no_totals = (FAR,) * own_rows, zeros(own_rows)
    reciprocal, whole_of = ptx.approximate("reciprocal"), join_rows(scores, lambda x, y: x + y)
    scale_rows = zip_rows(sums, lambda x, y, env: x * y)
    invert = map_tile(own_rows, lambda x, env: reciprocal(x))
    halves, results, send = pack(scores.count, dtype), pack(sums.count, dtype), send_tile(sums, 1)

    def kernel(q, k, v, out, keys, shift, scale):
        base = aligned(address(cuda.shared.array(0, types.uint8)))
        bar, thread = uint32(base + uint32(bar_at)), int32(cuda.threadIdx.x)
        line = int32(cuda.blockIdx.x * QUERIES)
        if thread == 0:
            init(bar, uint32(1))
            publish()
            fence_copies()
        cuda.syncthreads()
        if thread == 0:
            expect(bar, uint32(bar_at))
            load_rows(base, q, bar, line)
            for i in range(steps):
                load_rows(uint32(base + uint32(part * (2 * i + 1))), k, bar, int32(i * KEYS))
                load_rows(uint32(base + uint32(part * (2 * i + 2))), v, bar, int32(i * KEYS))
        if thread >= 128:
            member = int32(thread - 128)
            warp, lane = member >> 5, member & 31
            arrived(bar, uint32(0))
            own, (row, column) = first_of(base, warp, lane), place(0, warp, lane)
            keys_at, row = uint32(base + uint32(part)), int32(line + row)
            fence()
            s = score(no_scores, own, keys_at)
            commit()
            first = (row, int32(column)), (keys, shift), scale
            most, _, p, total = soften(end_first(s), no_peaks, no_totals, first)
            acc, words = start, halves(p)
            for i in range(1, steps):
                values_at = uint32(keys_at + uint32(part))
                keys_at = uint32(values_at + uint32(part))
                fence()
                s = score(no_scores, own, keys_at)
                commit()
                acc = weigh_values(acc, words, values_of(values_at), uint32(1))
                commit()
                where = (row, int32(column + i * KEYS)), (keys, shift), scale
                most, faded, p, total = soften(end_scores(s), most, total, where)
                acc = scale_rows(end_sums(acc), faded, ())
                words = halves(p)
            fence()
            acc = weigh_values(acc, words, values_of(uint32(keys_at + uint32(part))), uint32(1))
            commit()
            acc = scale_rows(end_sums(acc), invert(whole_of(total), ()), ())
            send(out, base, member, results(acc), int32(0), line)
            if member == 0:
                wait_all()

    kernel.blocks_per_sm = 1
    maps = [
        matrix(In(0), dtype, queries, d),
        *(matrix(In(i), dtype, keys, d) for i in (1, 2)),
        matrix(Out(0), dtype, queries, d),
    ]
    numbers = Num(keys, i32), Num(shift, i32), Num(math.log2(math.e) / math.sqrt(d), f32)
    grid = -(-queries // QUERIES)
    return Launch(kernel, (grid,), (256,), (*maps, *numbers), bar_at + 1024 + 64)


def softener(scores: Layout) -> Any:
    """`soften(s, most, total, (first, seen, scale))`: (the greatest of each row so far, what older sums are to be multiplied by, the
    weights, this thread's part of their sums so far)."""
    own_rows, exp2, larger = len(scores.own_rows), ptx.approximate("exp2"), ptx.larger()
    seen = mask(scores, lambda row, column, env: column <= int32(row + env[1]) and column < env[0], FAR)
    peak_of = reduce_rows(scores, lambda x, y: larger(x, y))
    part_of = fold_rows(scores, lambda x, y: x + y)
    grow = zip_tiles(own_rows, lambda most, peak, env: larger(most, peak * env[0]))
    fade = zip_tiles(own_rows, lambda old, new, env: exp2(old - new))
    weigh = zip_rows(scores, lambda x, most, env: exp2(x * env[0] - most))
    scale, add = (zip_tiles(own_rows, fn) for fn in (lambda x, y, env: x * y, lambda x, y, env: x + y))

    def soften(s, most, total, env):
        s = seen(s, env[0], env[1])
        now = grow(most, peak_of(s), (env[2],))
        faded, p = fade(most, now, ()), weigh(s, now, (env[2],))
        return now, faded, p, add(scale(total, faded, ()), part_of(p), ())

    return device(soften)


def rows_loader(chunks: int) -> Any:
    """`load(to, map, barrier, line)`: 64 rows, 64 columns after the other."""
    load = ptx.load_box()

    def load_all(to, map, barrier, line):
        for i in range(chunks):
            load(uint32(to + uint32(i * BOX)), map, barrier, int32(i * 64), line)

    return device(load_all)


def queries_of(d: int, in_registers: bool) -> Any:
    """`of(base, warp, lane)`: what `scorer` takes: words, or the address."""
    return take_words(Layout(QUERIES, d, 4)) if in_registers else device(lambda base, warp, lane: base)


def scorer(dtype: DType, chunks: int, in_registers: bool, chunk: int = 0) -> Any:
    """`score(acc, q, k)`: the products of 64 columns of q and of k, at shared address k, from this chunk on."""
    multiply = ptx.multiply_k_tiles(dtype, KEYS, 1, None if in_registers else True, True)
    rows_of, at, more = ptx.describe(True), chunk * BOX, int(chunk > 0)
    words = permute(tuple(range(chunk * WORDS, (chunk + 1) * WORDS)))
    own = words if in_registers else device(lambda q: rows_of(uint32(q + uint32(at))))

    def score(acc, q, k):
        return multiply(acc, own(q), rows_of(uint32(k + uint32(at))), uint32(more))

    if chunk == chunks - 1:
        return device(score)
    this, others = device(score), scorer(dtype, chunks, in_registers, chunk + 1)
    return device(lambda acc, q, k: others(this(acc, q, k), q, k))


def softmax(dtype: DType, rows: int, n: int, k: int, shift: int) -> Launch:
    """Result 0, rows x n of f32: softmax(a bᵀ) of a, rows x k, and b, n x k, over columns up to row + shift: a warp's 16 rows at a
    time. Fragments come from memory as they are."""
    warps = rows // 16
    left, right, sums = Layout(rows, k, warps), Layout(n, k, height=8), Layout(rows, n, warps)
    a_place, b_place, place = left.place(), right.place(), sums.place()
    load_a, load_b = (raw_runs(dtype, x.count // 2, 2, starts(x)) for x in (left, right))
    a_words = tuple((tuple(range(i, i + 4)),) for i in range(0, left.count // 2, 4))
    b_words = tuple(
        tuple((j * k // 8 + i, j * k // 8 + i + 1) for j in range(n // 8)) for i in range(0, k // 8, 2)
    )
    multiply, start = ptx.multiply_words(dtype, a_words, b_words), zeros(sums.count)
    seen = mask(sums, lambda row, column, env: column <= int32(row + env[0]), FAR)
    peak_of = reduce_rows(sums, lambda x, y: x if x > y else y)
    total_of = reduce_rows(sums, lambda x, y: x + y)
    weigh = zip_rows(sums, lambda x, most, env: math.exp(x - most))
    share = zip_rows(sums, lambda x, total, env: x / total)
    store = store_tile(sums, f32)

    def kernel(a, b, out, shift):
        warp, lane = int32(cuda.threadIdx.x) >> 5, int32(cuda.threadIdx.x) & 31
        given = load_a(a, (a_place(0, warp, lane), (rows, k), k)), load_b(b, (b_place(0, 0, lane), (n, k), k))
        first = place(0, warp, lane)
        s = seen(multiply(start, given[0], given[1]), first, (shift,))
        p = weigh(s, peak_of(s), ())
        store(share(p, total_of(p), ()), (out, (first, (rows, n), n)))

    kernel.blocks_per_sm = 1
    return Launch(kernel, (1,), (32 * warps,), (In(0), In(1), Out(0), Num(shift, i32)))


def layer_norm(dtype: DType, rows: int, columns: int, threads: int) -> Launch:
    """Result 0: each row of operand 0 less its mean, by its deviation, times operand 1 and plus operand 2, which are f32. Its numbers
    stay in registers between the three passes. Columns are a multiple of 4."""
    run, block = 4, max(threads, 64)
    layout = RowLayout(-(-columns // (threads * run)) * threads * run, threads, run)
    place, count, per_block = layout.place(), layout.count, block // threads
    load, load_vector, store = load_tile(layout, dtype), load_tile(layout, f32), store_tile(layout, dtype)

    total, whole = (make(layout, lambda x, y: x + y) for make in (reduce_rows, join_warps))
    square, share = map_tile(count, lambda x, env: x * x), map_tile(1, lambda x, env: x / np.float32(columns))
    less, times = (zip_rows(layout, fn) for fn in (lambda x, y, env: x - y, lambda x, y, env: x * y))
    inside = mask(layout, lambda row, column, env: column < columns, np.float32(0))
    scale, shift = (zip_columns(layout, fn) for fn in (lambda x, y, env: x * y, lambda x, y, env: x + y))
    one, invert = np.float32(1), map_tile(1, lambda x, env: one / math.sqrt(x + np.float32(1e-5)))
    warps = layout.warps

    def kernel(x, gamma, beta, out):
        sums = cuda.shared.array(warps, types.float32)
        squares = cuda.shared.array(warps, types.float32)
        warp, lane = int32(cuda.threadIdx.x) >> 5, int32(cuda.threadIdx.x) & 31
        row, column = place(0, warp, lane)
        own = (int32(cuda.blockIdx.x * per_block + row), int32(column)), (rows, columns), columns
        vector = (int32(0), int32(column)), (1, columns), columns
        tile = load(x, own)
        mean = share(whole(total(tile), sums, warp, lane), ())
        tile = inside(less(tile, mean, ()), own[0], ())
        variance = share(whole(total(square(tile, ())), squares, warp, lane), ())
        tile = scale(times(tile, invert(variance, ()), ()), load_vector(gamma, vector), ())
        store(shift(tile, load_vector(beta, vector), ()), (out, own))

    kernel.blocks_per_sm = 1
    return Launch(kernel, (-(-rows // per_block),), (block,), (In(0), In(1), In(2), Out(0)))


def everything(layout: Layout, shift: int) -> Launch:
    """Result 0 of operand 0, both of the layout's shape, of f32; see `expected_of_everything`."""
    place, rows, columns = layout.place(), layout.rows, layout.columns
    load, store = load_tile(layout, f32), store_tile(layout, f32)
    double = map_tile(layout.count, lambda x, env: x * env[0])
    peak_of, total_of = (
        reduce_rows(layout, lambda x, y: x if x > y else y), reduce_columns(layout, lambda x, y: x + y)
    )  # fmt: skip
    below, scale = zip_rows(layout, lambda x, y, env: x - y), zip_columns(layout, lambda x, y, env: x * y)
    add = zip_tiles(layout.count, lambda x, y, env: x + y)
    seen = mask(layout, lambda row, column, env: column != row + env[0], np.float32(-7))

    def kernel(x, out, shift, factor):
        first = place(0, int32(cuda.threadIdx.x) >> 5, int32(cuda.threadIdx.x) & 31)
        matrix = first, (rows, columns), columns
        given = load(x, matrix)
        tile = double(given, (factor,))
        tile = scale(below(tile, peak_of(tile), ()), total_of(given), ())
        store(seen(add(tile, given, ()), first, (shift,)), (out, matrix))

    kernel.blocks_per_sm = 1
    args = In(0), Out(0), Num(shift, i32), Num(2.0, f32)
    return Launch(kernel, (1,), (32 * layout.warps,), args)


def expected_of_everything(layout: Layout, x: np.ndarray, shift: int) -> np.ndarray:
    """Of 2 x: below the greatest of its row, times the sum of x in its column over the rows of a warp; and x; -7 on a diagonal."""
    warp = np.arange(layout.rows) // layout.height % layout.warps
    sums = np.stack([x[warp == w].sum(0) for w in range(layout.warps)])[warp]
    made = (2 * x - 2 * x.max(1, keepdims=True)) * sums + x
    row, column = np.indices(x.shape)
    return np.where(column == row + shift, -7, made)
