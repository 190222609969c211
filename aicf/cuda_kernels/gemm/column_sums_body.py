"""How the accumulators of a tile become results, and, if they are asked for, sums of the columns of these: a row per tile."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..dsl import cuda, device, float32
from ..tiles.element import putter
from ..tiles.fragment import fragment
from ..tiles.tile import column_sums, each, put_runs
from .epilogue import Epilogue


@dataclass(frozen=True)
class ThreadTile:
    """What the threads of a block hold of its m x n tile.

    columns  of each element that a thread holds: which of its own columns that is
    width    own columns that are neighbours; runs of them are `apart` columns apart
    column_threads  that have the same columns
    """

    m: int
    n: int
    columns: tuple[int, ...]
    width: int
    apart: int
    column_threads: int
    threads: int


def writer(epilogue: Epilogue, thread_tile: ThreadTile, write_run: Callable[..., Any]) -> Any:
    """`write(acc, env, shared, thread, place, tile_coord, n, operands)`: `write_run(i, products, env)` for all that a thread
    holds, and sums of columns of what that returns.

    shared    32-bit words that nobody reads any more once all threads are here, `column_threads * n` or more, aligned to 16 bytes
    place     i * n + this thread's first column, in the tile, for the i-th thread of those that have the same columns
    tile_coord    the tile's first row and column
    operands  of the epilogue

    Row i of tiles writes to row i of the workspace, or, the only one, to the result.
    A column is added up by its threads' rows, then over threads: always in the same order.
    """
    if epilogue.column_sums is None:
        write_each = each(len(thread_tile.columns), epilogue.width, write_run)
        return device(lambda acc, env, shared, thread, place, tile_coord, n, operands: write_each(acc, env))
    own = max(thread_tile.columns) + 1
    add = column_sums(len(thread_tile.columns), epilogue.width, thread_tile.columns, own, write_run)
    put = put_runs(own // thread_tile.width, thread_tile.width, thread_tile.apart, 1)
    get, keep = fragment(1, 1, 1), putter(epilogue.column_sums)
    tile_m, tile_n = thread_tile.m, thread_tile.n
    column_threads, threads = thread_tile.column_threads, thread_tile.threads

    def write(acc, env, shared, thread, place, tile_coord, n, operands):
        sums = add(acc, env)
        cuda.syncthreads()  # nobody reads operands there any more
        put(shared, place, sums)
        cuda.syncthreads()
        column = np.int32(thread)
        while column < tile_n:
            total = float32(0)
            for i in range(column_threads):
                total += get(shared, np.int32(i * tile_n + column))[0]
            if tile_coord[1] + column < n:
                keep(operands[4][0], tile_coord[0] // tile_m * n + tile_coord[1] + column, total)
            column += threads

    return device(write)
