"""Products with few rows or few columns on tensor cores: mma.sync out of registers that loads from memory fill (sm_80).

Which k is which does not matter to a sum, as long as both operands agree. So a thread loads 16 bytes where mma's fragments have
pairs far apart: of 32 along k, the thread with place c among four takes 8c to 8c + 7, words 0 and 1 as the pairs of a first
product of 16, words 2 and 3 of a second one. Where it is MN-major, it takes neighbouring lines of each of those k, and
puts pairs of k together from two words (PRMT). No number of the wide operand passes through shared memory.

Weights of 8 or 4 bits are read as they are stored, 16 bytes of each line to a lane, and become halves in registers; those 16 bytes are mma's
k, however far apart they are, and the small operand's halves are paired as codes are. Two loads of a warp are under way while it
multiplies a third.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from ...types import DType
from ..dsl import cuda, device, float32
from ..ptx import Words, multiply_codes, multiply_words
from ..tiles.tile import put_runs, raw_runs, runs, zeros
from .epilogue import Epilogue
from .small_m_body import place, writer
from .small_m_tiling import CHUNK, EIGHT, LOADED, STEP, CodeTile, Warps


@functools.cache
def gemv_mma(dtype: DType, warps: Warps, rows: bool, epilogue: Epilogue) -> Callable[..., None]:
    """A block per share of lines, and of k if that is split among blocks. Parameters are those of `gemv`.

    The next loads are on their way while a warp multiplies; warps synchronize only when their sums are added up.
    """
    threads, few, tile_k, per_block = warps.threads, warps.few, warps.tile_k, warps.mn_extent
    along_warps, mn_per_warp, k_major, own_k = (
        warps.along,
        16 * warps.tiles,
        warps.k_major,
        STEP * warps.unroll,
    )
    accumulators = warps.accumulators
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


# --- weights of 8 and 4 bits --------------------------------------------------------------------------------------------


@functools.cache
def gemv_codes(
    dtype: DType, code: DType, scale_dtype: DType, tile: CodeTile, epilogue: Epilogue
) -> Callable[..., None]:
    """A block for `tile.mn_extent` lines of codes, whose warps take turns along k.

    codes, small, scale  a line's codes are `steps[0]` bytes from the next one's, the small operand's lines `steps[1]` elements
    sizes                lines of codes, of the small operand, k, codes of a group, and groups of a line
    """
    threads, few, per_block, step_k, bits = tile.threads, tile.few, tile.mn_extent, tile.tile_k, tile.bits
    chunk, step, accumulators = tile.chunk, tile.step, tile.accumulators
    shared_size, step_bytes, per_byte = accumulators * threads, step_k * bits // 8, 8 // bits
    loads, start = tile.small_loads, zeros(accumulators)
    lines = device(lambda i: (i * EIGHT, 0))
    load_codes = raw_runs(code, 2 * tile.tiles, LOADED, place(lines))
    load_scale = runs(scale_dtype, 2 * tile.tiles, 1, place(lines))
    load_small = raw_runs(
        dtype, tile.columns * loads, EIGHT, place(device(lambda i: (i // loads * EIGHT, i % loads * EIGHT)))
    )
    multiply = multiply_codes(bits, dtype, tile.tiles, tile.columns, tile.before)
    keep = put_runs(accumulators, 1, threads, 1)
    write = writer(per_block, few, threads, True, code_adder(tile), epilogue)

    def kernel(codes, small, scale, operands, sizes, steps, scales):
        mn_extent, count, k, group, groups = sizes
        shared = cuda.shared.array(shared_size, float32)
        thread = np.int32(cuda.threadIdx.x)
        lane, warp = thread % 32, thread // 32
        row, along = lane // 4, np.int32(warp * step + lane % 4 * chunk)
        mn0 = np.int64(cuda.blockIdx.x) * per_block
        mn = mn0 + row
        apart, small_apart, one = steps[0], steps[1], np.int64(1)
        at, small_at, scale_at = mn * apart + along // per_byte, row * small_apart + along, mn * groups
        mn_left, small_left = np.int32(mn_extent - mn), np.int32(count - row)
        left = np.int32(k - along)

        acc = start
        now = load_codes(codes, (at, mn_left, left, apart, one))
        at += step_bytes
        following = load_codes(codes, (at, mn_left, np.int32(left - step_k), apart, one))
        small_next = load_small(small, (small_at, small_left, left, small_apart, one))
        scale_next = load_scale(scale, (scale_at + along // group, mn_left, left, np.int64(groups), one))
        while left > np.int32(-chunk) * 4 and along - lane % 4 * chunk < k:
            at += step_bytes
            small_at += step_k
            along = np.int32(along + step_k)
            left = np.int32(left - step_k)
            later = load_codes(codes, (at, mn_left, np.int32(left - step_k), apart, one))
            small_now, scale_now = small_next, scale_next
            small_next = load_small(small, (small_at, small_left, left, small_apart, one))
            scale_next = load_scale(scale, (scale_at + along // group, mn_left, left, np.int64(groups), one))
            acc = multiply(acc, now, small_now, scale_now)
            now, following = following, later

        keep(shared, thread, acc)
        cuda.syncthreads()
        write(shared, thread, mn0, np.int64(0), mn_extent, count, operands, scales)

    kernel.__name__ = f"gemv_codes_{tile}_{scale_dtype}{epilogue}"
    kernel.blocks_per_sm = tile.resident
    return kernel


def code_adder(tile: CodeTile) -> Any:
    """`add(shared, mn, of, _)`: the sums of a block's warps, in their order, of a line of codes and a small one: which of a lane's
    accumulators that is, and which lane's."""
    threads, along, columns = tile.threads, tile.along, tile.columns

    def add(shared, mn, small, _):
        i = (mn // 16 * columns + small // 8) * 4 + mn % 16 // 8 * 2 + small % 2
        first = i * threads + (mn % 8 * 4 + small % 8 // 2)
        total = float32(0)
        for warp in range(along):
            total += shared[first + warp * 32]
        return total

    return device(add)
