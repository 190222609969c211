"""GEMM with f32 arithmetic: naive first, then tiled through shared memory and registers.

Both compute alpha * op(a) @ op(b) + beta * c and end in the same epilogue (epilogue.py), which takes any map from there to
the results. a, b and c may have any float types: they are widened to f32 when they are loaded. Sums are of
explicit fused multiply-adds, so that they are the same numbers where contraction is forbidden. Transposes are strides:
element (r, k) of op(a) is a[r * a_steps[-2] + k * a_steps[-1]], element (k, q) of op(b) is
b[k * b_steps[-2] + q * b_steps[-1]]; the steps before these are those of a batch. c and results are row-major.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from ...types import DType, i32
from ..dsl import SIMULATED, cuda, device, float32, int32
from ..tiles.element import getter
from ..tiles.fragment import Fragment, outer
from ..tiles.tile import put_runs, runs, zeros
from .blocks import block_place
from .column_sums_body import ThreadTile, writer
from .epilogue import Epilogue, finisher
from .part_sums import part_sums
from .tilings import OperandLoad, SimtTile

THREADS = 16  # rows and columns of a block's threads
UNROLLED = 128  # multiply-adds of a thread between two branches
NAIVE = 16  # rows and columns of a block of the naive kernel


@functools.cache
def naive(epilogue: Epilogue, sums: DType) -> Callable[..., None]:
    """One thread per element of the result, blocks of NAIVE x NAIVE. Reads each operand 16 times less than it uses it. `sums`: f32,
    or i32, which wrap around."""
    finish = finisher(epilogue)
    get_a, get_b = getter(epilogue.dtype), getter(epilogue.b_dtype)
    place = block_place(NAIVE, NAIVE, epilogue.batch, epilogue.split)
    if sums is i32:
        number, add = int32, device(lambda x, y, total: int32(total + int32(x) * int32(y)))
    else:
        number, add = float32, device(lambda x, y, total: cuda.fma(x, y, total))

    def kernel(a, b, operands, sizes, a_steps, b_steps, scales):
        m, n = sizes[0], sizes[1]
        row, column, a_at, b_at, k, origin = place(np.int64(cuda.blockIdx.x), sizes, a_steps, b_steps)
        r, q = row + cuda.threadIdx.y, column + cuda.threadIdx.x
        if r < m and q < n:
            total = number(0)
            for i in range(k):
                x = get_a(a, a_at + r * a_steps[-2] + i * a_steps[-1])
                y = get_b(b, b_at + i * b_steps[-2] + q * b_steps[-1])
                total = add(x, y, total)
            finish(r, q, (total,), n, scales, operands + (origin,))

    kernel.__name__ = f"gemm_naive{epilogue}"
    return kernel


# bytes, of shared memory that is read in vectors; the simulator knows none
ALIGNMENT = None if SIMULATED else 16


@functools.cache
def tiled(
    tile: SimtTile, a_load: OperandLoad, b_load: OperandLoad, epilogue: Epilogue
) -> Callable[..., None]:
    """A block of THREADS x THREADS threads per tile of the result, of which each has m / THREADS x n / THREADS.

    Each step along k loads a K-tile of both operands to shared memory, k-major, so that a thread reads its rows and
    columns as 16-byte vectors; the next K-tile is on its way to registers meanwhile. There are two buffers, so one barrier
    per step is enough. A thread's tile is split into groups of four rows and columns, threads side by side, so that the
    vector reads of a warp hit all banks once. Edges: what is outside is read as 0 and not written.

    a_load, b_load   how an operand is loaded: a by rows and k, b by columns and k
    Per step and thread: (m/16 + n/16) k / 4 vector reads, m n k / 256 multiply-adds.
    """
    threads = THREADS
    block, step = threads * threads, tile.step
    rows, columns = tile.m // threads, tile.n // threads
    row_width, column_width = min(rows, 4), min(columns, 4)
    # 4 more floats per k: neighbouring k then lie 4 banks apart, and stay aligned to 16 bytes
    a_pitch, b_pitch = tile.m + 4, tile.n + 4
    a_size, b_size = step * a_pitch, step * b_pitch
    a_buffers, b_buffers = 2 * a_size, 2 * b_size
    place = block_place(tile.m, tile.n, epilogue.batch, epilogue.split)
    start = zeros(rows * columns)
    next_part, total = part_sums(rows * columns, block, epilogue.width, tile.parts)
    finish, outside = finisher(epilogue), epilogue.outside
    own = tuple(range(columns)) * rows
    thread_tile = ThreadTile(tile.m, tile.n, own, column_width, column_width * threads, threads, block)

    a_walk, b_walk = Walk(tile.m, step, block, a_load), Walk(tile.n, step, block, b_load)
    fetch_a, fetch_b = _loader(a_walk, epilogue.dtype), _loader(b_walk, epilogue.b_dtype)
    store_a, store_b = _storer(a_walk, a_pitch), _storer(b_walk, b_pitch)
    a_across, a_along, b_across, b_along = a_walk.across, a_walk.along, b_walk.across, b_walk.along
    read_a = Fragment(rows // row_width, row_width, row_width * threads)
    read_b = Fragment(columns // column_width, column_width, column_width * threads)
    together = min(step, UNROLLED // (rows * columns))
    multiply = outer(read_a, read_b, together, a_pitch, b_pitch)

    def write_run(i, products, env):
        row, column, m, n, scales, operands = env
        x, y = i // columns, i % columns
        r = row + (x // row_width) * (row_width * threads) + x % row_width
        q = column + (y // column_width) * (column_width * threads) + y % column_width
        if r < m and q < n:
            return finish(r, q, total(i, products, operands), n, scales, operands)
        return outside

    write, tile_n = writer(epilogue, thread_tile, write_run), tile.n

    def kernel(a, b, operands, sizes, a_steps, b_steps, scales):
        m, n = sizes[0], sizes[1]
        a_shared = cuda.shared.array(a_buffers, float32, ALIGNMENT)
        b_shared = cuda.shared.array(b_buffers, float32, ALIGNMENT)
        thread = cuda.threadIdx.x
        tx, ty = thread % threads, thread // threads
        row0, column0, a_from, b_from, k, origin = place(np.int64(cuda.blockIdx.x), sizes, a_steps, b_steps)

        # this thread's first element of a K-tile: its m or n within the tile, its k, its offset in memory
        a_mn, a_k = a_across(thread), a_along(thread)
        b_mn, b_k = b_across(thread), b_along(thread)
        a_at = a_from + (row0 + a_mn) * a_steps[-2] + a_k * a_steps[-1]
        b_at = b_from + (column0 + b_mn) * b_steps[-1] + b_k * b_steps[-2]
        a_put, b_put = a_k * a_pitch + a_mn, b_k * b_pitch + b_mn
        a_mn_left, b_mn_left = np.int32(m - row0 - a_mn), np.int32(n - column0 - b_mn)

        acc = start
        a_next = fetch_a(a, (a_at, a_mn_left, np.int32(k - a_k), a_steps[-2], a_steps[-1]))
        b_next = fetch_b(b, (b_at, b_mn_left, np.int32(k - b_k), b_steps[-1], b_steps[-2]))
        buffer = 0
        left = k
        while left > 0:
            store_a(a_shared, buffer * a_size + a_put, a_next)
            store_b(b_shared, buffer * b_size + b_put, b_next)
            cuda.syncthreads()
            left -= step
            a_at += step * a_steps[-1]
            b_at += step * b_steps[-2]
            a_next = fetch_a(a, (a_at, a_mn_left, np.int32(left - a_k), a_steps[-2], a_steps[-1]))
            b_next = fetch_b(b, (b_at, b_mn_left, np.int32(left - b_k), b_steps[-1], b_steps[-2]))
            a_get, b_get = buffer * a_size + ty * row_width, buffer * b_size + tx * column_width
            for i in range(0, step, together):
                acc = multiply(acc, a_shared, b_shared, a_get + i * a_pitch, b_get + i * b_pitch)
            buffer = 1 - buffer
            if left > 0:
                acc = next_part(acc, k - left, operands)
        env = (row0 + ty * row_width, column0 + tx * column_width, m, n, scales, operands + (origin,))
        at = ty * tile_n + tx * column_width
        write(acc, env, a_shared, thread, at, (row0, column0), n, operands)

    order = "_".join(
        f"{'k' if not s.mn_major else name}{s.width}" for s, name in ((a_load, "m"), (b_load, "n"))
    )
    kernel.__name__ = f"gemm_tiled_{tile.m}x{tile.n}x{tile.step}_{order}{'_parts' * tile.parts}{epilogue}"
    kernel.blocks_per_sm = tile.blocks_per_sm
    return kernel


class Walk:
    """How a block loads a K-tile of `mn_extent` x `step` elements, in runs of neighbours: run i of a thread lies i strides from
    its first."""

    def __init__(self, mn_extent: int, step: int, block: int, load: OperandLoad) -> None:
        self.width, self.count = load.width, mn_extent * step // (block * load.width)
        self.mn_major, width = load.mn_major, load.width
        fast = (mn_extent if load.mn_major else step) // width
        apart = block // fast
        self.mn_stride, self.k_stride = (0, apart) if load.mn_major else (apart, 0)
        fast_index = device(lambda thread: thread % fast * width)
        slow_index = device(lambda thread: thread // fast)
        self.across, self.along = (fast_index, slow_index) if load.mn_major else (slow_index, fast_index)


def _loader(walk: Walk, dtype: DType) -> Any:
    """`load(pointer, env)`: a thread's elements of the next K-tile; 0 for those outside the operand.

    A run is inside or outside as a whole: extents that are walked in runs are multiples of them.
    """
    mn_extent, k_stride = walk.mn_stride, walk.k_stride

    def place(i, env):
        at, mn_left, k_left, mn_step, k_step = env
        if i * mn_extent < mn_left and i * k_stride < k_left:
            return at + i * mn_extent * mn_step + i * k_stride * k_step
        return np.int64(-1)

    return runs(dtype, walk.count, walk.width, place)


def _storer(walk: Walk, tile_n: int) -> Any:
    """`store(shared, base, tile)`: those elements into shared memory, k-major."""
    apart = walk.k_stride * tile_n + walk.mn_stride
    return put_runs(walk.count, walk.width, apart, 1 if walk.mn_major else tile_n)
