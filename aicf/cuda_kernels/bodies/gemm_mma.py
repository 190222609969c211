"""Matrix products of half types on tensor cores, by mma.sync m16n8k16 with f32 accumulation (sm_80 and newer).

Strides, epilogue and what is computed are those of gemm.py. Operands lie in shared memory as they do in memory, k or lines
contiguous, and ldmatrix transposes the latter on the way to registers.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..dsl import cuda, device, int32, uint32
from ..gemm_mma import CHUNK, DEPTH
from .blocks import block_place
from .column_sums import Held, writer
from .epilogue import Epilogue, finisher
from .gemm import ALIGNMENT
from .ptx import Places, copy_async, multiply_tiles, shared_address, wait_copies
from .tile import zeros

PAIR = 2  # neighbouring columns that a thread holds of an mma's result


@dataclass(frozen=True)
class Stored:
    """A slice of an operand in shared memory: `lines` x DEPTH halves, lines or k contiguous, 16 bytes of padding a row, so
    that the eight rows of an ldmatrix fall on different banks."""

    lines: int
    lines_fast: bool

    @property
    def line_bytes(self) -> int:
        return 2 if self.lines_fast else 2 * (DEPTH + CHUNK)

    @property
    def depth_bytes(self) -> int:
        return 2 * (self.lines + CHUNK) if self.lines_fast else 2

    @property
    def halves(self) -> int:
        return DEPTH * (self.lines + CHUNK) if self.lines_fast else self.lines * (DEPTH + CHUNK)


@dataclass(frozen=True)
class Fragments:
    """A warp's part of an operand: `count` fragments of 16 lines x 16 k each, by ldmatrix.x4.

    The four 8 x 8 matrices of an x4 are those of an mma operand: for a, lines 0-7 and 8-15 at k 0-7, then at k 8-15; for b
    (two column tiles), k 0-7 and 8-15 of lines 0-7, then of lines 8-15.
    """

    stored: Stored
    count: int
    first: bool  # whether it is a

    @property
    def places(self) -> Places:
        """For each slice of 16 along k: bytes from the warp's first fragment to each."""
        steps, lines = range(DEPTH // 16), range(self.count)
        apart = self.stored.line_bytes, self.stored.depth_bytes
        return tuple(tuple(16 * (i * apart[0] + step * apart[1]) for i in lines) for step in steps)


@dataclass(frozen=True)
class Warps:
    """A block of warps_m x warps_n warps computes an m x n tile. Registers are limited for `blocks` per multiprocessor."""

    m: int
    n: int
    warps_m: int
    warps_n: int
    blocks: int

    @property
    def threads(self) -> int:
        return 32 * self.warps_m * self.warps_n

    def __str__(self) -> str:
        return f"{self.m}x{self.n}"


def element_of(columns: int) -> Any:
    """`of(i, lane)`: row and column, within a warp's tile of `columns` 8-wide mma tiles, of accumulator i of a thread."""

    def of(i, lane):
        tile, part = i // 4, i % 4
        return tile // columns * 16 + part // 2 * 8 + lane // 4, tile % columns * 8 + part % 2 + lane % 4 * 2

    return device(of)


def held_of(warps: Warps) -> Held:
    """What the threads of a block hold of its tile: pairs of columns, eight apart."""
    columns = warps.n // warps.warps_n // 8
    own = tuple(i // 4 % columns * PAIR + i % PAIR for i in range(warps.m * warps.n // warps.threads))
    return Held(warps.m, warps.n, own, PAIR, 8, 8 * warps.warps_m, warps.threads)


def sums_of(warps: Warps) -> Any:
    """`at(thread)`: line * n + first column of a thread; those who hold the same columns have a line each."""
    across, n, warp_n = warps.warps_n, warps.n, warps.n // warps.warps_n

    def at(thread):
        lane, warp = thread % 32, thread // 32
        return (warp // across * 8 + lane // 4) * n + warp % across * warp_n + lane % 4 * PAIR

    return device(at)


def lane_of(part: Fragments) -> Any:
    """`of(lane)`: line and k of the matrix row that a thread gives ldmatrix the address of."""
    first, lines_fast = part.first, part.stored.lines_fast

    def of(lane):
        inner, odd, upper = lane % 8, lane // 8 % 2 * 8, lane // 16 * 8
        line, depth = (odd, upper) if first else (upper, odd)
        return (line, depth + inner) if lines_fast else (line + inner, depth)

    return device(of)


@functools.cache
def mma(warps: Warps, a_lines_fast: bool, b_lines_fast: bool, epilogue: Epilogue) -> Callable[..., None]:
    """A block per tile of the result; two slices of each operand in shared memory, the next on its way by cp.async.

    Operands come 16 bytes at a time: leading dimensions and contiguous extents are multiples of 8, pointers aligned.
    Per step and warp: 2 (m / 16 + n / 16) ldmatrix.x4, 2 (m / 16)(n / 8) mma, with its own part's m and n.
    """
    tile_m, tile_n, threads, across = warps.m, warps.n, warps.threads, warps.warps_n
    warp_m, warp_n = tile_m // warps.warps_m, tile_n // warps.warps_n
    a_stored, b_stored = Stored(tile_m, a_lines_fast), Stored(tile_n, b_lines_fast)
    a_part, b_part = Fragments(a_stored, warp_m // 16, True), Fragments(b_stored, warp_n // 16, False)
    a_size, b_size = 2 * a_stored.halves, 2 * b_stored.halves  # bytes of one slice
    a_both, b_both = a_size // 2, b_size // 2  # 32-bit words of two
    a_line_bytes, a_depth_bytes = a_stored.line_bytes, a_stored.depth_bytes
    b_line_bytes, b_depth_bytes = b_stored.line_bytes, b_stored.depth_bytes
    columns, accumulators = warp_n // 8, warp_m * warp_n // 32
    a_lane, b_lane, place = lane_of(a_part), lane_of(b_part), element_of(columns)
    a_first, a_copy = copier(a_stored, threads)
    b_first, b_copy = copier(b_stored, threads)
    address, wait = shared_address(), wait_copies()
    multiply = multiply_tiles(epilogue.dtype, a_part.places, b_part.places, a_lines_fast, b_lines_fast)
    start, finish, outside, depth = zeros(accumulators), finisher(epilogue), epilogue.outside, DEPTH
    place_block = block_place(tile_m, tile_n, epilogue.batch, epilogue.split)

    def write_run(i, products, env):
        row0, column0, lane, m, n, scales, operands = env
        x, y = place(i, lane)
        r, q = row0 + x, column0 + y
        if r < m and q < n:
            return finish(r, q, products, n, scales, operands)
        return outside

    sums_at, write = sums_of(warps), writer(epilogue, held_of(warps), write_run)

    def kernel(a, b, operands, sizes, a_steps, b_steps, scales):
        m, n = sizes[0], sizes[1]
        a_shared = cuda.shared.array(a_both, uint32, ALIGNMENT)
        b_shared = cuda.shared.array(b_both, uint32, ALIGNMENT)
        thread = int32(cuda.threadIdx.x)
        lane, warp = thread % 32, thread // 32
        row0, column0, a_from, b_from, k, corner = place_block(
            np.int64(cuda.blockIdx.x), sizes, a_steps, b_steps
        )

        # what this thread brings of each slice: its first chunk's line and depth
        a_line, a_depth = a_first(thread)
        b_line, b_depth = b_first(thread)
        a_at = a_from + (row0 + a_line) * a_steps[-2] + a_depth * a_steps[-1]
        b_at = b_from + (column0 + b_line) * b_steps[-1] + b_depth * b_steps[-2]
        a_base, b_base = address(a_shared), address(b_shared)
        a_put = uint32(a_base + uint32(a_line * a_line_bytes + a_depth * a_depth_bytes))
        b_put = uint32(b_base + uint32(b_line * b_line_bytes + b_depth * b_depth_bytes))
        a_lines, b_lines = np.int32(m - row0 - a_line), np.int32(n - column0 - b_line)

        # where its warp's part begins, and its row of the matrices that ldmatrix reads
        warp_row, warp_column = warp // across * warp_m, warp % across * warp_n
        a_row, a_k = a_lane(lane)
        b_row, b_k = b_lane(lane)
        a_get = uint32(a_base + uint32((warp_row + a_row) * a_line_bytes + a_k * a_depth_bytes))
        b_get = uint32(b_base + uint32((warp_column + b_row) * b_line_bytes + b_k * b_depth_bytes))

        acc = start
        a_copy(a, a_put, (a_at, a_lines, np.int32(k - a_depth), a_steps[-2], a_steps[-1]))
        b_copy(b, b_put, (b_at, b_lines, np.int32(k - b_depth), b_steps[-1], b_steps[-2]))
        buffer = 0
        left = k
        while left > 0:
            wait()
            cuda.syncthreads()  # the slice is here, and nobody reads the other buffer any more
            left -= depth
            a_at += depth * a_steps[-1]
            b_at += depth * b_steps[-2]
            other = 1 - buffer
            a_copy(a, uint32(a_put + uint32(other * a_size)),
                   (a_at, a_lines, np.int32(left - a_depth), a_steps[-2], a_steps[-1]))  # fmt: skip
            b_copy(b, uint32(b_put + uint32(other * b_size)),
                   (b_at, b_lines, np.int32(left - b_depth), b_steps[-1], b_steps[-2]))  # fmt: skip
            acc = multiply(
                acc, uint32(a_get + uint32(buffer * a_size)), uint32(b_get + uint32(buffer * b_size))
            )
            buffer = other
        wait()
        env = (row0 + warp_row, column0 + warp_column, lane, m, n, scales, operands + (corner,))
        write(acc, env, a_shared, thread, sums_at(thread), (row0, column0), n, operands)

    order = ("m" if a_lines_fast else "k") + ("n" if b_lines_fast else "k")
    kernel.__name__ = f"gemm_mma_{warps}_{order}{epilogue}"
    kernel.blocks_per_sm = warps.blocks
    return kernel


def copier(stored: Stored, threads: int) -> tuple[Any, Any]:
    """(`first(thread)`: line and depth of its first chunk; `copy(pointer, to, env)`: all of its chunks)."""
    fast = (stored.lines if stored.lines_fast else DEPTH) // CHUNK
    apart, lines_fast = threads // fast, stored.lines_fast
    lines, depth = (0, apart) if lines_fast else (apart, 0)

    def first(thread):
        chunk, row = thread % fast * CHUNK, thread // fast
        return (chunk, row) if lines_fast else (row, chunk)

    def place(i, env):
        at, lines_left, depth_left, line_step, k_step = env
        if i * lines < lines_left and i * depth < depth_left:
            return at + i * lines * line_step + i * depth * k_step
        return np.int64(-1)

    bytes_apart = apart * (stored.depth_bytes if lines_fast else stored.line_bytes)
    count = stored.lines * DEPTH // (CHUNK * threads)
    return device(first), copy_async(count, bytes_apart, place, 2)
