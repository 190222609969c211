"""Which tiles persistent blocks compute, in which order: rows and columns of tiles, of each batch coordinate.

Indices of tiles are u32 throughout: unsigned 32-bit division needs no floor correction, so the producer fits its registers.
No memory holds the results of more than 2^32 tiles.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from ..dsl import device, int32, uint32


@device
def over(length, tile):
    """Tiles that cover a length."""
    return uint32((uint32(length) + uint32(tile - 1)) // uint32(tile))


def placer(group_m: int, tile_n: int, batched: bool, narrow_n: int = 0) -> Any:
    """`place(tile, rows, columns, sizes)`: a tile's row, the first of its columns, its batch coordinate, and its place in a row of narrow ones or
    -1. All tiles of the first matrix, if there may be more, then of the next. Narrow ones are the results' left part, and the last to
    be taken, so that no block has more than one of either than another."""
    place = grouped_raster(group_m, batched)
    if not narrow_n:

        def place_one(tile, rows, columns, sizes):
            row, column, batch_coord = place(tile, rows, columns)
            return row, int32(column * tile_n), batch_coord, int32(-1)

        return device(place_one)

    def place_either(tile, rows, columns, sizes):
        narrow_tiles = uint32(sizes[3])
        others = uint32(columns - narrow_tiles)
        first = uint32(rows * others)
        if tile < first:
            row, column, batch_coord = place(tile, rows, others)
            return row, int32(column * tile_n + narrow_tiles * narrow_n), batch_coord, int32(-1)
        row, column, batch_coord = place(uint32(tile - first), rows, narrow_tiles)
        return row, int32(column * narrow_n), batch_coord, int32(column)

    return device(place_either)


def with_rows(place: Any) -> Any:
    """`place`, with the number of rows of results in the place of that among narrow tiles: what a main loop wants of a flat operand."""

    def place_rows(tile, rows, columns, sizes):
        row, column, batch_coord, _ = place(tile, rows, columns, sizes)
        return row, column, batch_coord, int32(sizes[0])

    return device(place_rows)


def counter(tile_n: int, narrow_n: int = 0, narrow_group: int = 0) -> Any:
    """`columns(sizes)`: of tiles; with as many narrow ones as `sizes` says, one more for each group of these."""
    if not narrow_n:
        return device(lambda sizes: over(sizes[1], tile_n))
    return device(lambda sizes: uint32(over(sizes[1], tile_n) + uint32(sizes[3]) // uint32(narrow_group)))


def ender(narrow_n: int = 0) -> Any:
    """`end(tile_coord, n)`: where the columns of a tile end; its coordinate says whether it is a narrow one."""
    if not narrow_n:
        return device(lambda tile_coord, n: n)

    def end(tile_coord, n):
        if tile_coord[3] < 0:
            return int32(n)
        return int32(tile_coord[1] + narrow_n)

    return device(end)


def grouped_raster(group_m: int, batched: bool) -> Any:
    """`place(tile, rows, columns)`: a tile's row, column and batch coordinate. In groups of `group_m` rows, down each column of a group: what is near
    in time shares operands in the L2 cache."""

    def place(tile, rows, columns):
        batch_coord = uint32(tile // uint32(rows * columns)) if batched else uint32(0)
        tile = uint32(tile - batch_coord * rows * columns)
        above = uint32(tile // uint32(group_m * columns) * uint32(group_m))
        height = uint32(min(uint32(rows - above), uint32(group_m)))
        within = uint32(tile - above * columns)
        column = uint32(within // height)
        return uint32(above + within - column * height), column, batch_coord

    return device(place)


class BatchCoords(NamedTuple):
    """What tiles at one row and column differ by: their split of k, or their place in a batch.

    each     `each(sizes, steps)`: how many K-tiles each has, the last one maybe fewer
    number   `number(sizes, steps, each)`: how many there are
    k_tiles  `k_tiles(batch_coord, steps, each)`: the first K-tile of one, and how many it has
    point    `point(batch_coord, sizes)`: its index along each axis of the batch, i32
    origin   `origin(batch_coord, sizes)`: of its results, as `finisher` takes it
    """

    each: Any
    number: Any
    k_tiles: Any
    point: Any
    origin: Any


def batch_coords(axes: int, tile_k: int = 0) -> BatchCoords:
    """One; or, of one axis, splits of k in K-tiles of `tile_k`, each of whose results lie below those of the one before; or products of a
    batch of one axis or two."""
    all_steps, no_point = device(lambda sizes, steps: steps), device(lambda batch_coord, sizes: ())
    splits = device(lambda sizes, steps, each: over(steps, each))
    all_of_k = device(lambda batch_coord, steps, each: (uint32(0), steps))
    if not axes:
        one = device(lambda sizes, steps, each: uint32(1))
        return BatchCoords(all_steps, one, all_of_k, no_point, no_point)

    def below(batch_coord, sizes):
        return np.int64(batch_coord) * sizes[0], np.int64(batch_coord)

    if tile_k:
        steps_of_split = device(lambda sizes, steps: over(sizes[3], tile_k))
        return BatchCoords(steps_of_split, splits, split_of_k, no_point, device(below))
    if axes == 1:
        count, point = (
            device(lambda sizes, steps, each: uint32(sizes[3])),
            device(lambda batch_coord, sizes: (int32(batch_coord),)),
        )
        return BatchCoords(all_steps, count, all_of_k, point, device(below))

    def along_two(batch_coord, sizes):
        # never 0, which the compiler can't know: what it would make of it stayed in two registers of each thread
        along = max(uint32(sizes[4]), uint32(1))
        x = uint32(batch_coord // along)
        return int32(x), int32(batch_coord - x * along)

    point = device(along_two)

    def below_two(batch_coord, sizes):
        x, y = point(batch_coord, sizes)
        return np.int64(batch_coord) * sizes[0], np.int64(x), np.int64(y)

    count = device(lambda sizes, steps, each: uint32(uint32(sizes[3]) * uint32(sizes[4])))
    return BatchCoords(all_steps, count, all_of_k, point, device(below_two))


@device
def split_of_k(split, steps, each):
    """The first K-tile of a split of k, and how many it has: `each`, or in the last one what there is."""
    first = uint32(split * each)
    return first, uint32(min(each, uint32(steps - first)))


class WorkTiles(NamedTuple):
    """What a block does one after the other, numbered: tiles, or slices of k of them (see stream_k.py). Turn groups take turns.

    plan     `plan(walk, sizes)`: (the first work tile, from one to the next, where they end, whatever the others need)
    tile     `tile(work_tile, plan)`: that it is, or is a part of
    k_tiles  `k_tiles(work_tile, batch_coord, walk, plan)`: the first K-tile of it, and how many it has
    place    `place(step, walk)`: in k, of as many K-tiles as there are, from the first on; they may go round
    """

    plan: Any
    tile: Any
    k_tiles: Any
    place: Any


def tiles_in_turn(coords: BatchCoords) -> WorkTiles:
    """Each block takes whole tiles, as far apart as there are blocks."""
    _, number, k_tiles_of, _, _ = coords

    def plan(walk, sizes):
        first, apart, rows, columns, steps, each, _, _ = walk
        return first, apart, uint32(rows * columns * number(sizes, steps, each))

    def k_tiles(work_tile, batch_coord, walk, plan):
        return k_tiles_of(batch_coord, walk[4], walk[5])

    return WorkTiles(
        device(plan),
        device(lambda work_tile, plan: work_tile),
        device(k_tiles),
        device(lambda step, walk: step),
    )


def lengths(work_tiles: WorkTiles) -> Any:
    """`length(work_tile, walk, plan)`: how many K-tiles it has."""
    tile, k_tiles = work_tiles.tile, work_tiles.k_tiles

    def length(work_tile, walk, plan):
        batch_coord = uint32(tile(work_tile, plan) // uint32(walk[2] * walk[3]))
        return k_tiles(work_tile, batch_coord, walk, plan)[1]

    return device(length)
