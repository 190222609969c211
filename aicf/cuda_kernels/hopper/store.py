"""Subtiles of 64 x 64 halves between registers, shared memory and matrices in memory: by which map, where in it, and when there is room.

Boxes, as `do(map, at, ready, column, row, batch_coord)`: of one matrix; results also of many, so that none hangs over into the next.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..dsl import device, uint32
from ..ptx import (
    expect,
    load_box,
    load_matrices,
    prefetch_box,
    store_box,
    store_matrices,
    wait_phase,
    wait_stores_read,
)
from .units import ATOM, SUBTILE_BYTES


def result_storer(first: int, stores: int, batched: bool, narrow_n: int = 0, first_narrow: int = 0) -> Any:
    """`store(maps, at, column, row, tile_coord)`: a subtile of each of so many results, whose maps are from the first one on. Narrow tiles
    are stored by maps of their own, in which a row is cut into theirs, so that what hangs over is outside and not written."""
    store_wide = of_maps(box_storer(batched), first, stores)
    if not narrow_n:
        return device(
            lambda maps, at, column, row, tile_coord: store_wide(maps, at, at, column, row, tile_coord[2])
        )
    store_one_narrow = store_box(3)

    def store_one(map, at, ready, column, row, narrow_tile):
        store_one_narrow(map, at, np.int32(column - narrow_tile * narrow_n), narrow_tile, row)

    store_narrow = of_maps(device(store_one), first_narrow, stores)

    def store(maps, at, column, row, tile_coord):
        if tile_coord[3] < 0:
            store_wide(maps, at, at, column, row, tile_coord[2])
        else:
            store_narrow(maps, at, at, column, row, tile_coord[3])

    return device(store)


def box_storer(batched: bool) -> Any:
    store = store_box(3 if batched else 2)
    if batched:
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


def empty_subtiles(slots: int, sync: Any) -> tuple[Any, Any, Any]:
    """(`ask(base, subtiles, maps, group, tile_coord)`, `wait(subtile, base, group, member, parity)`, `go_on(subtile, base, subtiles, maps,
    group, tile_coord)`): a subtile is free when what was there has been read, of this tile some subtiles ago, or of the one before."""
    wait_but_one, wait_read = wait_stores_read(slots - 1), wait_stores_read(0)

    def wait(subtile, base, group, member, parity):
        if member == 0:
            if subtile == 0:
                wait_read()
            else:
                wait_but_one()
        sync(group)

    nothing = device(lambda base, subtiles, maps, group, tile_coord: None)
    return nothing, device(wait), device(lambda subtile, base, subtiles, maps, group, tile_coord: None)


def source_loader(
    first: int, operands: int, blocks: int, count: int, slots: int, box: int, arrived_at: int
) -> tuple[Any, Any, Any]:
    """The same, where subtiles of so many operands, whose maps are from the first one on, are loaded to where those of results will be: a
    subtile is free when they are there.

    blocks      subtiles of a tile that lie below each other, of `count` in all
    slots       subtiles that there is room for, `box` bytes apart
    arrived_at  where their barriers begin

    Loads of as many as there is room for are issued before the main loop, and the others prefetched into L2; each of these is
    loaded when what is in its place has been read. Each subtile of a tile has a barrier, of which each tile is a phase.
    """
    announce, wait_read, wait_arrived = expect(), wait_stores_read(0), wait_phase()
    load_one, prefetch_one = box_loader(), box_prefetcher()
    load, prefetch = of_maps(load_one, first, operands), of_maps(prefetch_one, first, operands)
    nbytes = operands * SUBTILE_BYTES
    at_once = min(slots, count)

    def barrier(subtile, base, group):
        return uint32(base + uint32(arrived_at + (group * count + subtile) * 8))

    barrier_of = device(barrier)

    def bring(subtile, base, subtiles, maps, group, tile_coord):
        row = np.int32(tile_coord[0] + subtile % blocks * 64)
        column = np.int32(tile_coord[1] + subtile // blocks * ATOM)
        ready = barrier_of(subtile, base, group)
        announce(ready, uint32(nbytes))
        load(maps, uint32(subtiles + uint32(subtile % slots * box)), ready, column, row, tile_coord[2])

    bring_one = device(bring)

    def ask(base, subtiles, maps, group, tile_coord):
        wait_read()
        for subtile in range(at_once):
            bring_one(subtile, base, subtiles, maps, group, tile_coord)
        for subtile in range(at_once, count):
            row = np.int32(tile_coord[0] + subtile % blocks * 64)
            column = np.int32(tile_coord[1] + subtile // blocks * ATOM)
            prefetch(maps, subtiles, subtiles, column, row, tile_coord[2])

    def wait(subtile, base, group, member, parity):
        wait_arrived(barrier_of(subtile, base, group), parity)

    def go_on(subtile, base, subtiles, maps, group, tile_coord):
        if subtile + slots < count:
            wait_read()
            bring_one(subtile + slots, base, subtiles, maps, group, tile_coord)

    return device(ask), device(wait), device(go_on)


def matrix_loader(operands: int) -> Any:
    """`load(at)`: for each of four matrices the words of all operands, which lie as `matrix_storer` puts results."""
    if operands == 0:
        return device(lambda at: ((), (), (), ()))
    load_others, load_this, behind = (
        matrix_loader(operands - 1),
        load_matrices(),
        (operands - 1) * SUBTILE_BYTES,
    )

    def load(at):
        others, words = load_others(at), load_this(uint32(at + uint32(behind)))
        return (
            others[0] + (words[0],),
            others[1] + (words[1],),
            others[2] + (words[2],),
            others[3] + (words[3],),
        )

    return device(load)


def matrix_storer(results: int) -> Any:
    """`store(at, a, b, c, d)`: of each result four matrices, the words of one behind those of the other."""
    store, last = store_matrices(), results - 1
    behind = last * SUBTILE_BYTES

    def store_last(at, a, b, c, d):
        store(uint32(at + uint32(behind)), a[last], b[last], c[last], d[last])

    if results == 1:
        return device(store_last)
    store_others, store_this = matrix_storer(last), device(store_last)

    def store_all(at, a, b, c, d):
        store_others(at, a, b, c, d)
        store_this(at, a, b, c, d)

    return device(store_all)
