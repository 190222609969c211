"""Products with few rows or few columns on tensor cores: mma.sync out of registers that loads from memory fill (sm_80).

Which k is which does not matter to a sum, as long as both operands agree. So a thread loads 16 bytes where mma's fragments have
pairs far apart: of 32 along k, the thread with place c among four takes 8c to 8c + 7, words 0 and 1 as the pairs of a first
product of 16, words 2 and 3 of a second one. Where it is MN-major, it takes neighbouring lines of each of those k, and
puts pairs of k together from two words (PRMT). No number of the wide operand passes through shared memory.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from ...types import DType
from ..dsl import cuda, device, float32
from ..ptx import Words, multiply_words
from ..tiles.tile import put_runs, raw_runs, zeros
from .epilogue import Epilogue
from .small_m_body import place, writer
from .small_m_mma_tiling import CHUNK, STEP, Warps


@functools.cache
def gemv_mma(dtype: DType, warps: Warps, rows: bool, epilogue: Epilogue) -> Callable[..., None]:
    """A block per share of lines, and of k if that is split among blocks. Parameters are those of `gemv`.

    The next loads are on their way while a warp multiplies; warps synchronize only when their sums are added up.
    """
    threads, few, tile_k, per_block, accumulators = (
        warps.threads,
        warps.few,
        warps.tile_k,
        warps.mn_extent,
        warps.accumulators,
    )
    along_warps, mn_per_warp, k_major, own_k = (
        warps.along,
        16 * warps.tiles,
        warps.k_major,
        STEP * warps.unroll,
    )
    shared_size, width, chunk_k = accumulators * threads, warps.width, CHUNK
    start = zeros(accumulators)
    load_wide = raw_runs(dtype, wide_loads(warps), width, place(wide_step(warps)))
    load_small = raw_runs(dtype, warps.columns * warps.unroll, CHUNK, place(small_step(warps)))
    multiply = multiply_words(dtype, wide_words(warps), small_words(warps))
    keep = put_runs(accumulators, 1, threads, 1)
    write = writer(per_block, few, threads, rows, adder(warps), epilogue)

    def kernel(wide, small, operands, sizes, wide_steps, small_steps, scales):
        mn_extent, count, k, chunk = sizes
        shared = cuda.shared.array(shared_size, float32)
        thread = np.int32(cuda.threadIdx.x)
        lane, warp = thread % 32, thread // 32
        row, place_k = lane // 4, lane % 4 * chunk_k
        tiles = np.uint32(max(1, (mn_extent + per_block - 1) // per_block))
        block = np.uint32(cuda.blockIdx.x)
        split = np.int64(block // tiles)
        mn0 = np.int64(block % tiles) * per_block
        k0 = split * chunk
        along = warp % along_warps * own_k + place_k
        mn = mn0 + warp // along_warps * mn_per_warp + (row if k_major else row * width)
        wide_mn, small_mn = wide_steps[0], small_steps[0]
        wide_k = np.int64(1) if k_major else wide_steps[1]
        at = mn * wide_mn + (k0 + along) * wide_k
        small_at = row * small_mn + k0 + along
        mn_left, small_left = np.int32(mn_extent - mn), np.int32(count - row)
        left = np.int32(min(np.int64(k) - k0, np.int64(chunk)))

        acc = start
        wide_next = load_wide(wide, (at, mn_left, np.int32(left - along), wide_mn, wide_k))
        small_next = load_small(small, (small_at, small_left, np.int32(left - along), small_mn, np.int64(1)))
        while left > 0:
            wide_now, small_now = wide_next, small_next
            left = np.int32(left - tile_k)
            at += tile_k * wide_k
            small_at += tile_k
            wide_next = load_wide(wide, (at, mn_left, np.int32(left - along), wide_mn, wide_k))
            small_next = load_small(
                small, (small_at, small_left, np.int32(left - along), small_mn, np.int64(1))
            )
            acc = multiply(acc, wide_now, small_now)

        keep(shared, thread, acc)
        cuda.syncthreads()
        write(shared, thread, mn0, split, mn_extent, count, operands, scales)

    kernel.__name__ = f"gemv_mma_{warps}_{'rows' if rows else 'columns'}{epilogue}"
    kernel.blocks_per_sm = warps.resident
    return kernel


def wide_loads(warps: Warps) -> int:
    """Of a thread, for each step: two lines of each tile, or eight k of all tiles."""
    return (2 * warps.tiles if warps.k_major else CHUNK) * warps.unroll


def wide_step(warps: Warps) -> Any:
    """`step(i)`: how many lines, and of k, load i is from the first."""
    rows = 2 * warps.tiles
    return device((lambda i: (i % rows * 8, i // rows * STEP)) if warps.k_major else (lambda i: (0, i)))


def small_step(warps: Warps) -> Any:
    columns = warps.columns
    return device(lambda i: (i % columns * 8, i // columns * STEP))


def wide_words(warps: Warps) -> Words:
    """Registers of mma's a, out of words of loads: line g and line g + 8 of a tile at one pair of k, then at the other.

    Where it is MN-major, those are lines 2i and 2i + 1 of the thread's, for tile i.
    """
    made: list[Any] = []
    tiles = range(warps.tiles)
    for u in range(warps.unroll):
        for t in range(2):
            if warps.k_major:
                first = [4 * 2 * (u * warps.tiles + i) + 2 * t for i in tiles]
                made.append(tuple((w, w + 4, w + 1, w + 5) for w in first))
            else:
                made.append(tuple(
                    tuple((k * warps.tiles + i, (k + 1) * warps.tiles + i, half) for k in (4 * t, 4 * t + 2) for half in range(2))
                    for i in tiles
                ))  # fmt: skip
    return tuple(made)


def small_words(warps: Warps) -> Words:
    """Registers of mma's b."""
    return tuple(
        tuple((4 * (u * warps.columns + j) + 2 * t, 4 * (u * warps.columns + j) + 2 * t + 1) for j in range(warps.columns))
        for u in range(warps.unroll)
        for t in range(2)
    )  # fmt: skip


def holder(warps: Warps) -> Any:
    """`of(mn, of)`: which sum, and which lane of a warp, has a line of the warp's and one of the small operand."""
    columns, k_major, each = warps.columns, warps.k_major, warps.width

    def of(mn, small):
        if k_major:
            tile, upper, row = mn // 16, mn % 16 // 8, mn % 8
        else:
            tile, upper, row = mn % each // 2, mn % 2, mn // each
        return (tile * columns + small // 8) * 4 + upper * 2 + small % 2, row * 4 + small % 8 // 2

    return device(of)


def adder(warps: Warps) -> Any:
    """`add(shared, mn, of, _)`: the sums of warps that share lines, in their order."""
    threads, along, mn_extent, of = warps.threads, warps.along, 16 * warps.tiles, holder(warps)

    def add(shared, mn, small, _):
        i, lane = of(mn % mn_extent, small)
        first = i * threads + mn // mn_extent * along * 32 + lane
        total = float32(0)
        for warp in range(along):
            total += shared[first + warp * 32]
        return total

    return device(add)
