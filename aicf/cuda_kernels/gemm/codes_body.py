"""Products with up to 16 rows and weights of 8 or 4 bits: a warp reads 16 bytes of each of its lines, a lane at a time, makes halves of them in
registers, and multiplies on tensor cores.

Which k is which does not matter to a sum, as long as both operands agree: so a lane's 16 bytes are mma's k, however far apart those are
(small_m_mma_body.py), and the small operand's halves are paired as codes are. Two loads of a warp are under way while it multiplies a third.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from ...types import DType
from ..dsl import cuda, device, float32
from ..ptx import multiply_codes
from ..tiles.tile import put_runs, raw_runs, runs, zeros
from .codes_tiling import EIGHT, LOADED, CodeTile
from .epilogue import Epilogue
from .small_m_body import place, writer


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
    write = writer(per_block, few, threads, True, adder(tile), epilogue)

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


def holder(tile: CodeTile) -> Any:
    """`of(mn, small)`: which sum, and which lane of a warp, has a line of codes and a small one."""
    columns = tile.columns

    def of(mn, small):
        return (
            mn // 16 * columns + small // 8
        ) * 4 + mn % 16 // 8 * 2 + small % 2, mn % 8 * 4 + small % 8 // 2

    return device(of)


def adder(tile: CodeTile) -> Any:
    """`add(shared, mn, of, _)`: the sums of a block's warps, in their order."""
    threads, along, of = tile.threads, tile.along, holder(tile)

    def add(shared, mn, small, _):
        i, lane = of(mn, small)
        first = i * threads + lane
        total = float32(0)
        for warp in range(along):
            total += shared[first + warp * 32]
        return total

    return device(add)
