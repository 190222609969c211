"""Where a block of a product works: its tile, its batch coordinate, its split of k."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from ..dsl import device

GROUP_M = 8  # block rows that are worked column by column together, so that their operands meet in L2


@functools.cache
def tile_origin(tile_m: int, tile_n: int) -> Any:
    """`origin(block, m, n)`: first row and column of a block's tile; groups of GROUP_M rows of tiles, column by column."""
    group_m = GROUP_M

    def origin(block, m, n):
        tiles_m, tiles_n = max(1, (m + tile_m - 1) // tile_m), max(1, (n + tile_n - 1) // tile_n)
        above = block // (group_m * tiles_n) * group_m
        height = min(tiles_m - above, group_m)
        within = block - above * tiles_n
        return (above + within % height) * tile_m, within // height * tile_n

    return device(origin)


@functools.cache
def block_place(tile_m: int, tile_n: int, batch: int, split: bool = False) -> Any:
    """`place(block, sizes, a_steps, b_steps)`: (first row, first column, first elements of a and of b, k, origin); `origin`: of the matrix in its batch,
    see `finisher`.

    Blocks of one product follow each other. sizes is (m, n, k, *batch), or (m, n, k, k of a split) of split-K, whose last split
    may be shorter; steps are along (*batch, m, k) and (*batch, k, n). Elements and rows are 64 bits wide.
    """
    origin = tile_origin(tile_m, tile_n)

    def alone(block, sizes, a_steps, b_steps):
        row, column = origin(block, sizes[0], sizes[1])
        return row, column, np.int64(0), np.int64(0), sizes[2], ()

    def of(block, m, n):
        tiles = max(1, (m + tile_m - 1) // tile_m) * np.int64(max(1, (n + tile_n - 1) // tile_n))
        z = block // tiles
        row, column = origin(block - z * tiles, m, n)
        return z, row, column

    within = device(of)

    def split_k(block, sizes, a_steps, b_steps):
        z, row, column = within(block, sizes[0], sizes[1])
        start = z * sizes[3]
        k = np.int32(min(np.int64(sizes[3]), sizes[2] - start))
        return row, column, start * a_steps[1], start * b_steps[0], k, (z * sizes[0], z)

    def one_axis(block, sizes, a_steps, b_steps):
        z, row, column = within(block, sizes[0], sizes[1])
        return row, column, z * a_steps[0], z * b_steps[0], sizes[2], (z * sizes[0], z)

    def two_axes(block, sizes, a_steps, b_steps):
        z, row, column = within(block, sizes[0], sizes[1])
        x, y = z // sizes[4], z % sizes[4]
        a_at, b_at = x * a_steps[0] + y * a_steps[1], x * b_steps[0] + y * b_steps[1]
        return row, column, a_at, b_at, sizes[2], (z * sizes[0], x, y)

    return device(split_k if split else (alone, one_axis, two_axes)[batch])
