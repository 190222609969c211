"""Subtiles of 64 x 64 halves between shared memory and matrices in memory: by which map, and where in it.

Boxes, as `do(map, at, ready, column, row, batch_coord)`: of one matrix; results also of many, so that none hangs over into the next.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..dsl import device, uint32
from ..ptx import load_box, prefetch_box, store_box
from .epilogue import Epilogue
from .wgmma_tiling import SUBTILE_BYTES, WgmmaTiling


def result_storer(tiling: WgmmaTiling, epilogue: Epilogue, tma_sources: int) -> Any:
    """`store(maps, at, column, row, tile_coord)`: a subtile of each result. Narrow tiles are stored by maps of their own, in which a row is cut into
    theirs, so that what hangs over is outside and not written."""
    stores, narrow_n = len(epilogue.stores), tiling.narrow_n
    store_wide = of_maps(box_storer(epilogue.batch), 2, stores)
    if not narrow_n:
        return device(
            lambda maps, at, column, row, tile_coord: store_wide(maps, at, at, column, row, tile_coord[2])
        )
    store_one_narrow = store_box(3)

    def store_one(map, at, ready, column, row, narrow_tile):
        store_one_narrow(map, at, np.int32(column - narrow_tile * narrow_n), narrow_tile, row)

    store_narrow = of_maps(device(store_one), 2 + stores + tma_sources, stores)

    def store(maps, at, column, row, tile_coord):
        if tile_coord[3] < 0:
            store_wide(maps, at, at, column, row, tile_coord[2])
        else:
            store_narrow(maps, at, at, column, row, tile_coord[3])

    return device(store)


def box_storer(batch: int) -> Any:
    store = store_box(3 if batch else 2)
    if batch:
        return device(
            lambda map, at, ready, column, row, batch_coord: store(map, at, column, row, batch_coord)
        )
    return device(lambda map, at, ready, column, row, batch_coord: store(map, at, column, row))


def box_loader() -> Any:
    load = load_box()
    return device(lambda map, at, ready, column, row, batch_coord: load(at, map, ready, column, row))


def box_prefetcher() -> Any:
    prefetch = prefetch_box()
    return device(lambda map, at, ready, column, row, batch_coord: prefetch(map, column, row))


def of_maps(do: Any, first: int, count: int) -> Any:
    """`do_each(maps, at, ready, column, row, batch_coord)`: with so many maps from the first one on, their subtiles side by side."""
    map, behind = first + count - 1, (count - 1) * SUBTILE_BYTES

    def do_last(maps, at, ready, column, row, batch_coord):
        do(maps[map], uint32(at + uint32(behind)), ready, column, row, batch_coord)

    if count == 1:
        return device(do_last)
    do_others, do_this = of_maps(do, first, count - 1), device(do_last)

    def do_each(maps, at, ready, column, row, batch_coord):
        do_others(maps, at, ready, column, row, batch_coord)
        do_this(maps, at, ready, column, row, batch_coord)

    return device(do_each)
