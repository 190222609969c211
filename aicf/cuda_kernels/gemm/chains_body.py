"""Products with few rows whose sums are chains of fused multiply-adds, in the order of k, as the tiles of simt_body.py and fma_body.py
have them: so a row has its bits among thousands too.

Threads that load are more than those that add up: all threads of a block copy runs of b to shared memory, neighbours in memory by neighbours, and
one for each column, part of k and few rows multiplies what is there. The next K-tile is on its way to registers meanwhile. Rows of a
come from the cache, as they are needed.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from ..dsl import cuda, device, float32
from ..tiles.tile import each, multiply_runs, put_runs, raw_runs, runs, zeros
from .epilogue import Epilogue
from .simt_body import ALIGNMENT, Walk
from .small_m_body import writer
from .small_m_tiling import QUAD, THREADS, Chains


@functools.cache
def gemv_chains(chains: Chains, epilogue: Epilogue) -> Callable[..., None]:
    """`kernel(a, b, operands, sizes, a_steps, b_steps, scales)`: a block for each `chains.columns` columns. sizes: m, n, k, and the
    extent of a part."""
    threads, few, columns, parts = THREADS, chains.few, chains.columns, chains.parts
    depth, pitch, rows, at_once = chains.depth, chains.pitch, chains.rows, QUAD * chains.quads
    loaders, groups, sums = threads // parts, few // chains.rows, chains.sums
    shared_size, start = max(sums * pitch, sums * few), zeros(rows)
    walk = Walk(columns, depth, loaders, chains.b)
    across, along = walk.across, walk.along
    fetch = runs(epilogue.b_dtype, walk.count, walk.width, _run_of(walk))
    apart = walk.k_stride + walk.mn_stride * pitch
    store = put_runs(walk.count, walk.width, apart, pitch if chains.b.mn_major else 1)
    load_rows = raw_runs(epilogue.dtype, rows * (at_once // chains.a_width), chains.a_width, _row_of(chains))
    multiply = multiply_runs(
        epilogue.dtype, rows * (at_once // chains.a_width), chains.a_width, rows, QUAD, _products(chains)
    )

    def put(i, run, env):
        shared, row, at = env
        shared[np.int32((row + i) * columns + at)] = run[0]

    def add(shared, column, row, i):
        if parts == 1:
            return shared[i]
        total = float32(0)
        for part in range(parts):
            total += shared[part * (few * columns) + i]
        return total

    keep, write = each(rows, 1, put), writer(columns, few, threads, True, device(add), epilogue)

    def kernel(a, b, operands, sizes, a_steps, b_steps, scales):
        m, n, k, part_k = sizes
        shared = cuda.shared.array(shared_size, float32, ALIGNMENT)
        thread = np.int32(cuda.threadIdx.x)
        column0 = np.int64(cuda.blockIdx.x) * columns
        # what this thread loads: its first column and k in its part
        part, loader = thread // loaders, thread % loaders
        column, k_at = across(loader), along(loader)
        b_at = (column0 + column) * b_steps[1] + (np.int64(part) * part_k + k_at) * b_steps[0]
        to, columns_left = (part * columns + column) * pitch + k_at, np.int32(n - column0 - column)
        load_left = np.int32(min(part_k, k - part * part_k) - k_at)
        # and what it multiplies: its column's part and its rows
        own, group = thread % sums, thread // sums
        own_part, row = own // columns, group * rows
        get, a_at = own * pitch, np.int64(row) * a_steps[0] + np.int64(own_part) * part_k * a_steps[1]
        rows_left = np.int32(m - row) if group < groups else np.int32(0)
        left = np.int32(min(part_k, k - own_part * part_k)) if group < groups else np.int32(0)

        acc, left_of_part = start, np.int32(part_k)
        tile = fetch(b, (b_at, columns_left, load_left, b_steps[1], b_steps[0]))
        while left_of_part > 0:
            cuda.syncthreads()  # nobody reads the K-tile before any more
            store(shared, np.int32(to), tile)
            cuda.syncthreads()
            left_of_part = np.int32(left_of_part - depth)
            load_left = np.int32(load_left - depth)
            b_at += depth * b_steps[0]
            tile = fetch(b, (b_at, columns_left, load_left, b_steps[1], b_steps[0]))
            i, end = np.int32(0), np.int32(min(left, depth))
            x = load_rows(a, (a_at, rows_left, left, a_steps[0], a_steps[1]))
            while i < end:
                now = x
                left = np.int32(left - at_once)
                a_at += at_once * a_steps[1]
                x = load_rows(a, (a_at, rows_left, left, a_steps[0], a_steps[1]))
                acc = multiply(acc, now, shared, np.int32(get + i))
                i = np.int32(i + at_once)

        cuda.syncthreads()
        if group < groups:
            keep(acc, (shared, row, np.int32(own_part * (few * columns) + own % columns)))
        cuda.syncthreads()
        write(shared, thread, column0, np.int64(0), n, m, operands, scales)

    kernel.__name__ = f"gemv_chains_{chains}{epilogue}"
    kernel.blocks_per_sm = chains.resident
    return kernel


def _run_of(walk: Walk) -> Any:
    """`place(i, env)`: where run i of a thread's part of a K-tile begins; -1 outside."""
    mn_stride, k_stride = walk.mn_stride, walk.k_stride

    def place(i, env):
        at, columns_left, left, n_step, k_step = env
        if i * mn_stride < columns_left and i * k_stride < left:
            return at + i * mn_stride * n_step + i * k_stride * k_step
        return np.int64(-1)

    return place


def _row_of(chains: Chains) -> Any:
    """`place(i, env)`: where run i of a thread's rows begins, row by row; -1 outside."""
    width, each_row = chains.a_width, QUAD * chains.quads // chains.a_width

    def place(i, env):
        at, rows_left, left, m_step, k_step = env
        row, along = i // each_row, i % each_row * width
        if row < rows_left and along < left:
            return at + row * m_step + along * k_step
        return np.int64(-1)

    return place


def _products(chains: Chains) -> tuple[Any, ...]:
    """What each quad of b is multiplied with (see multiply_runs)."""
    each_row = QUAD * chains.quads
    return tuple(
        (
            q * QUAD,
            tuple((row, row * each_row + q * QUAD + e, e) for e in range(QUAD) for row in range(chains.rows)),
        )
        for q in range(chains.quads)
    )
