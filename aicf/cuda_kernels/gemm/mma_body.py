"""GEMM on tensor cores, by mma.sync with f32 accumulation: half types, and f32 as TF32 (sm_80 and newer); f16 (sm_75).

Strides, epilogue and what is computed are those of problem.py. K-tiles of operands lie in shared memory as operands/stages.py says,
several of them, of which one is multiplied and the others are on their way. On sm_75 there are two, and the next K-tile waits in registers
while one is multiplied.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from ..dsl import cuda, device, int32, types, uint32
from ..ptx import (
    commit_copies,
    multiply_fragments,
    multiply_steps,
    opaque,
    read_fragments,
    shared_address,
    wait_copies,
)
from ..tiles.layout import Layout
from ..tiles.tile import add_tiles, zeros
from .blocks import block_place
from .column_sums_body import ThreadTile, writer
from .epilogue import Epilogue, finisher
from .operands.stages import Fragments, StageLoad, Stored
from .tilings import ALIGNED, MmaTiling

PAIR = 2  # neighbouring columns that a thread holds of an mma's result
COLUMN_LANES = 8  # lanes of a warp, that hold the same columns


def layout_of(tiling: MmaTiling) -> Layout:
    """Of a warp's accumulators."""
    return Layout(tiling.m // tiling.warps_m, tiling.n // tiling.warps_n, run=PAIR)


def thread_tile_of(tiling: MmaTiling) -> ThreadTile:
    """What the threads of a block hold of its tile: pairs of columns, eight apart."""
    layout = layout_of(tiling)
    column_threads = COLUMN_LANES * tiling.warps_m
    return ThreadTile(tiling.m, tiling.n, layout.by_column, PAIR, 4 * PAIR, column_threads, tiling.threads)


def column_places(tiling: MmaTiling) -> Any:
    """`at(thread)`: i * n + first column of a thread, the i-th of those that have the same columns."""
    across, n, warp_n, place = tiling.warps_n, tiling.n, tiling.n // tiling.warps_n, layout_of(tiling).place()

    def at(thread):
        warp = thread // 32
        row, column = place(0, 0, thread % 32)
        return (warp // across * COLUMN_LANES + row) * n + warp % across * warp_n + column

    return device(at)


def promoter(kind: str, count: int) -> tuple[Any, Any]:
    """(`begin(acc)`: what the products of a K-tile are added to; `end(acc, part)`: the accumulators after it).

    Tensor cores cut their accumulators off, always towards zero: after the 3 x 512 products of k = 4096, 3e-5 of a sum is gone. What is
    to be as exact as f32 is therefore accumulated K-tile by K-tile, and promoted by CUDA cores, which round.
    """
    if kind != "tf32x3":
        return device(lambda acc: acc), device(lambda acc, part: part)
    nothing = zeros(count)
    return device(lambda acc: nothing), add_tiles(count)


def copy_groups(tiling: MmaTiling) -> tuple[Any, Any, Any]:
    """(`commit()`, `wait()`: for the K-tile that is multiplied next, `wait_all()`) of copies by cp.async; nothing where there are none."""
    if tiling.turing:
        return (device(lambda: None),) * 3
    return commit_copies(), wait_copies(tiling.stages - 2), wait_copies(0)


@functools.cache
def mma(
    tiling: MmaTiling,
    kind: str,
    mn_major: tuple[bool, bool],
    widths: tuple[int, int],
    epilogue: Epilogue,
    partial: tuple[bool, bool] = (True, True),
) -> Callable[..., None]:
    """A block per tile of the result.

    kind        of product: see `ptx.multiply_steps`
    mn_major  for a and b: whether it is MN-major
    widths      bytes that are copied at a time, to which pointers and rows are aligned
    partial     whether the last of these in a row may exist in part

    Each K-tile is waited for before the last products of the one before it: its first fragments are read while they run. A
    barrier then tells that it is here for all, and that nobody reads the buffer that the next copies go to.
    """
    m_warps, n_warps, threads = tiling.warps_m, tiling.warps_n, tiling.threads
    tile_m, tile_n, tile_k, itemsize = tiling.m, tiling.n, tiling.tile_k, epilogue.dtype.itemsize
    warp_m, warp_n = tile_m // m_warps, tile_n // n_warps
    a_stored = Stored(tile_m, tile_k, itemsize, mn_major[0])
    b_stored = Stored(tile_n, tile_k, itemsize, mn_major[1])
    a_part, b_part = Fragments(a_stored, warp_m // 16, True), Fragments(b_stored, warp_n // 16, False)
    a_load, b_load = (
        StageLoad(s, width, threads, tiling.turing, some)
        for s, width, some in zip((a_stored, b_stored), widths, partial)
    )
    a_bytes, stage = a_stored.nbytes, a_stored.nbytes + b_stored.nbytes
    ahead_stages, ring = tiling.stages - 1, tiling.stages * stage
    accumulators = layout_of(tiling).count

    a_lane, b_lane, place = a_part.lane(), b_part.lane(), layout_of(tiling).place()
    a_first, a_fetch, a_store = a_load.first(), a_load.fetch(), a_load.store()
    b_first, b_fetch, b_store = b_load.first(), b_load.fetch(), b_load.store()
    a_offset, b_offset = a_stored.offset(), b_stored.offset()
    reads = a_part.places, b_part.places, *mn_major
    first, multiply = read_fragments(*reads), multiply_steps(kind, *reads)
    finish_k_tile, address = multiply_fragments(kind, warp_m // 16), shared_address()
    commit, wait, wait_all = copy_groups(tiling)
    start, finish, outside, apart = zeros(accumulators), finisher(epilogue), epilogue.outside, opaque()
    begin, end = promoter(kind, accumulators)
    place_block = block_place(tile_m, tile_n, epilogue.batch, epilogue.split)
    aligned = ALIGNED

    def write_run(i, products, env):
        row0, column0, lane, m, n, scales, operands = env
        x, y = place(i, 0, apart(lane))
        r, q = row0 + x, column0 + y
        if r < m and q < n:
            return finish(r, q, products, n, scales, operands)
        return outside

    column_at, write = column_places(tiling), writer(epilogue, thread_tile_of(tiling), write_run)

    def kernel(a, b, operands, sizes, a_steps, b_steps, scales):
        m, n = sizes[0], sizes[1]
        base = uint32(address(cuda.shared.array(0, types.uint8)))
        base = uint32((base + uint32(aligned - 1)) // uint32(aligned) * uint32(aligned))
        thread = int32(cuda.threadIdx.x)
        lane, warp = thread % 32, thread // 32
        row0, column0, a_from, b_from, k, origin = place_block(
            np.int64(cuda.blockIdx.x), sizes, a_steps, b_steps
        )

        # what this thread loads of each K-tile: its first unit's m or n, and k
        a_mn, a_k0 = a_first(thread)
        b_mn, b_k0 = b_first(thread)
        a_at = a_from + (row0 + a_mn) * a_steps[-2] + a_k0 * a_steps[-1]
        b_at = b_from + (column0 + b_mn) * b_steps[-1] + b_k0 * b_steps[-2]
        a_put = uint32(base + uint32(a_offset(a_mn, a_k0)))
        b_put = uint32(base + uint32(a_bytes + b_offset(b_mn, b_k0)))
        a_left, b_left = np.int32(m - row0 - a_mn), np.int32(n - column0 - b_mn)

        # where its warp's part begins, and its part of the fragments there
        warp_row, warp_column = warp // n_warps * warp_m, warp % n_warps * warp_n
        a_row, a_k = a_lane(lane)
        b_row, b_k = b_lane(lane)
        a_get = uint32(base + uint32(a_offset(warp_row + a_row, a_k)))
        b_get = uint32(base + uint32(a_bytes + b_offset(warp_column + b_row, b_k)))

        ahead = k  # of k, from the next K-tile to load on
        for s in range(ahead_stages):
            a_to, b_to = uint32(a_put + uint32(s * stage)), uint32(b_put + uint32(s * stage))
            a_staged = a_fetch(a, a_to, (a_at, a_left, np.int32(ahead - a_k0), a_steps[-2], a_steps[-1]))
            b_staged = b_fetch(b, b_to, (b_at, b_left, np.int32(ahead - b_k0), b_steps[-1], b_steps[-2]))
            commit()
            a_store(a_to, a_staged)
            b_store(b_to, b_staged)
            ahead -= tile_k
            a_at += tile_k * a_steps[-1]
            b_at += tile_k * b_steps[-2]

        acc = start
        wait()
        cuda.syncthreads()
        fragments = first(a_get, b_get)
        read, free, left = 0, ahead_stages * stage, k
        while left > 0:
            a_to, b_to = uint32(a_put + uint32(free)), uint32(b_put + uint32(free))
            a_staged = a_fetch(a, a_to, (a_at, a_left, np.int32(ahead - a_k0), a_steps[-2], a_steps[-1]))
            b_staged = b_fetch(b, b_to, (b_at, b_left, np.int32(ahead - b_k0), b_steps[-1], b_steps[-2]))
            commit()
            part, fragments = multiply(
                begin(acc), fragments, uint32(a_get + uint32(read)), uint32(b_get + uint32(read))
            )
            a_store(a_to, a_staged)
            b_store(b_to, b_staged)
            ahead -= tile_k
            left -= tile_k
            a_at += tile_k * a_steps[-1]
            b_at += tile_k * b_steps[-2]
            free, read = read, read + stage
            if read == ring:
                read = 0
            wait()
            cuda.syncthreads()
            following = first(uint32(a_get + uint32(read)), uint32(b_get + uint32(read)))
            acc = end(acc, finish_k_tile(part, fragments))
            fragments = following
        wait_all()
        env = (row0 + warp_row, column0 + warp_column, lane, m, n, scales, operands + (origin,))
        words = cuda.shared.array(0, uint32)  # the same memory
        write(acc, env, words, thread, column_at(thread), (row0, column0), n, operands)

    order = "".join(f"_{('mn'[i]) if f else 'k'}{w}" for i, (f, w) in enumerate(zip(mn_major, widths)))
    kernel.__name__ = f"gemm_mma_{tile_m}x{tile_n}x{tile_k}_{kind}{order}{epilogue}"
    kernel.blocks_per_sm = tiling.blocks
    return kernel
