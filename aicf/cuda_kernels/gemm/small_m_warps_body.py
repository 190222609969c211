"""Matrix products with one to four rows whose operands both lie along k: warps take lines of the wide operand, and sum in registers.

A line's k is shared by the warps of a team, each of which has all its loads under way before it multiplies; the small operand comes from
the cache, as each warp reads it. Lanes add up by shuffles, warps of a team through shared memory, in an order that never changes.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...types import DType
from ..dsl import cuda, device, float32
from ..tiles.register_tile import _joined, unrolled
from ..tiles.tile import each, runs, zeros
from .epilogue import Epilogue
from .small_m_body import writer

WARP = 32
LANES = tuple(1 << n for n in range(5))


@dataclass(frozen=True)
class Teams:
    """few: lines of the small operand · team: warps of a team, which share `lines` lines · loads: runs of `width` elements of each line
    that a lane has under way · teams: of a block"""

    few: int
    width: int
    lines: int
    team: int
    loads: int
    teams: int

    def __str__(self) -> str:
        return f"{self.few}x{self.lines}_w{self.width}_{self.teams}x{self.team}x{self.loads}"

    @property
    def threads(self) -> int:
        return WARP * self.team * self.teams

    @property
    def resident(self) -> int:
        """Blocks on a multiprocessor, that registers are limited for: to 128 of a thread."""
        return 512 // self.threads

    @property
    def step(self) -> int:
        """Of k, that a warp takes at once."""
        return WARP * self.width * self.loads

    @property
    def mn_extent(self) -> int:
        """Lines of a block."""
        return self.lines * self.teams


def line_loader(dtype: DType, lines: int, loads: int, width: int) -> Any:
    """`load(pointer, (line, along, left, k, apart))`: of `lines` lines, `apart` elements from each other, the runs of a lane; 0 where no
    line is left, or from k on."""

    def start(i, env):
        line, along, left, k, apart = env
        number, at = i // loads, along + i % loads * (WARP * width)
        return (line + number) * apart + at if number < left and at < k else np.int64(-1)

    return runs(dtype, lines * loads, width, start)


@functools.cache
def line_products(t: Teams) -> Any:
    """`add(acc, wide, small)`: acc of each line and each small one, and the products of their runs."""
    pairs = [(line, of) for line in range(t.lines) for of in range(t.few)]
    deep = t.loads * t.width

    def chain(e: int) -> Any:
        if e == deep:
            return device(lambda acc, wide, small: acc)
        picks = (
            tuple(range(len(pairs))),
            tuple(line * deep + e for line, _ in pairs),
            tuple(of * deep + e for _, of in pairs),
        )
        add, rest = unrolled(lambda s, x, y, env: s + x * y, picks, (), "float32"), chain(e + 1)
        return device(lambda acc, wide, small: rest(add((acc, wide, small), ()), wide, small))

    return chain(0)


@functools.cache
def gemv_warps(
    wide_dtype: DType, small_dtype: DType, t: Teams, rows: bool, epilogue: Epilogue
) -> Callable[..., None]:
    """A block for `t.mn_extent` lines. Element (line, k) of an operand lies at line * apart + k.

    sizes  lines of the wide operand, of the small one, and k, whole runs of both
    rows   the small operand's lines are rows of the result, not columns
    """
    few, lines, team, step, extent = t.few, t.lines, t.team, t.step, t.mn_extent
    threads, sums, whole = t.threads, t.lines * t.few, t.team * t.step
    room = threads // WARP * sums
    load_wide = line_loader(wide_dtype, lines, t.loads, t.width)
    load_small = line_loader(small_dtype, few, t.loads, t.width)
    multiply, join = line_products(t), _joined(sums, lambda x, y: x + y, LANES)
    start, width = zeros(sums), t.width

    def put(i, run, env):
        env[0][env[1] + i] = run[0]

    def add(shared, mn, of, i):
        at = mn // lines * (team * sums) + mn % lines * few + of
        total = shared[at]
        for part in range(1, team):
            total += shared[at + part * sums]
        return total

    keep, write = each(sums, 1, put), writer(extent, few, threads, rows, device(add), epilogue)

    def kernel(wide, small, operands, sizes, apart, scales):
        mn_extent, count, k = sizes
        shared = cuda.shared.array(room, float32)
        thread = np.int32(cuda.threadIdx.x)
        lane, warp = thread % WARP, thread // WARP
        first = np.int64(cuda.blockIdx.x) * extent
        line = first + warp // team * lines
        left, along = np.int32(min(mn_extent - line, lines)), np.int32(warp % team * step + lane * width)
        acc = start
        while along < k:
            part = load_wide(wide, (line, along, left, k, apart[0]))
            acc = multiply(acc, part, load_small(small, (np.int64(0), along, count, k, apart[1])))
            along = np.int32(along + whole)
        total = join(acc)
        if lane == 0:
            keep(total, (shared, warp * sums))
        cuda.syncthreads()
        write(shared, thread, first, np.int64(0), mn_extent, count, operands, scales)

    kernel.__name__ = f"gemv_warps_{wide_dtype}_{t}_{'rows' if rows else 'columns'}{epilogue}"
    kernel.blocks_per_sm = t.resident
    return kernel
