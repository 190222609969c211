"""Which tiles the blocks of a Hopper product compute, and how they pass through the ring of stages.

Indices of tiles are u32 throughout: division that rounds to nothing but zero, in 32 bits, keeps the producer within its
registers. No memory holds the results of more tiles.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from ..dsl import device, int32, uint32
from ..ptx import arrive_threads, sync_threads
from .epilogue import Epilogue
from .wgmma_tiling import WARPGROUP, Tiling, depth


@device
def over(length, tile):
    """Tiles that cover a length."""
    return uint32((uint32(length) + uint32(tile - 1)) // uint32(tile))


def placer(tiling: Tiling, layered: bool) -> Any:
    """`place(tile, rows, columns, sizes)`: a tile's row, the first of its columns, its layer, and its place in a row of narrow ones or
    -1. All tiles of the first layer, if there may be more, then of the next. Narrow ones are the results' left part, and the last to
    be taken, so that no block has more than one of either than another."""
    place, tile_n, narrow = within_bands(tiling.band, layered), tiling.n, tiling.narrow
    if not narrow:

        def place_one(tile, rows, columns, sizes):
            row, column, layer = place(tile, rows, columns)
            return row, int32(column * tile_n), layer, int32(-1)

        return device(place_one)

    def place_either(tile, rows, columns, sizes):
        strips = uint32(sizes[3])
        others = uint32(columns - strips)
        first = uint32(rows * others)
        if tile < first:
            row, column, layer = place(tile, rows, others)
            return row, int32(column * tile_n + strips * narrow), layer, int32(-1)
        row, column, layer = place(uint32(tile - first), rows, strips)
        return row, int32(column * narrow), layer, int32(column)

    return device(place_either)


def counter(tiling: Tiling) -> Any:
    """`columns(sizes)`: of tiles; with as many narrow ones as `sizes` says, one more for each group of these."""
    tile_n = tiling.n
    if not tiling.narrow:
        return device(lambda sizes: over(sizes[1], tile_n))
    group = tiling.group
    return device(lambda sizes: uint32(over(sizes[1], tile_n) + uint32(sizes[3]) // uint32(group)))


def ender(tiling: Tiling) -> Any:
    """`end(corner, n)`: where the columns of a tile end; its corner says whether it is a narrow one."""
    if not tiling.narrow:
        return device(lambda corner, n: n)
    narrow = tiling.narrow

    def end(corner, n):
        if corner[3] < 0:
            return int32(n)
        return int32(corner[1] + narrow)

    return device(end)


def within_bands(band: int, layered: bool) -> Any:
    """`place(tile, rows, columns)`: a tile's row, column and layer. In bands of `band` rows, down each column of a band: what is near
    in time shares operands in the L2 cache."""

    def place(tile, rows, columns):
        layer = uint32(tile // uint32(rows * columns)) if layered else uint32(0)
        tile = uint32(tile - layer * rows * columns)
        above = uint32(tile // uint32(band * columns) * uint32(band))
        height = uint32(min(uint32(rows - above), uint32(band)))
        within = uint32(tile - above * columns)
        column = uint32(within // height)
        return uint32(above + within - column * height), column, layer

    return device(place)


class Layers(NamedTuple):
    """What tiles at one row and column differ by: their part of k, or their place in a batch.

    each     `each(sizes, steps)`: how many slices of k a layer has, the last one maybe fewer
    number   `number(sizes, steps, each)`: of layers
    slices   `slices(layer, steps, each)`: the first slice of a layer, and how many it has
    point    `point(layer, sizes)`: its index along each axis of the batch, i32
    corner   `corner(layer, sizes)`: of its results, as `finisher` takes it
    """

    each: Any
    number: Any
    slices: Any
    point: Any
    corner: Any


def layers(epilogue: Epilogue) -> Layers:
    """One; or parts of k, each of whose results lie below those of the one before; or a batch's products."""
    all_steps, no_point = device(lambda sizes, steps: steps), device(lambda layer, sizes: ())
    parts = device(lambda sizes, steps, each: over(steps, each))
    all_of_k = device(lambda layer, steps, each: (uint32(0), steps))
    if not epilogue.batch:
        one = device(lambda sizes, steps, each: uint32(1))
        return Layers(all_steps, one, all_of_k, no_point, no_point)

    def below(layer, sizes):
        return np.int64(layer) * sizes[0], np.int64(layer)

    if epilogue.split:
        slice_of_k = depth(epilogue.dtype)
        steps_of_part = device(lambda sizes, steps: over(sizes[3], slice_of_k))
        return Layers(steps_of_part, parts, part_of_k, no_point, device(below))
    if epilogue.batch == 1:
        count, point = (
            device(lambda sizes, steps, each: uint32(sizes[3])),
            device(lambda layer, sizes: (int32(layer),)),
        )
        return Layers(all_steps, count, all_of_k, point, device(below))

    def along_two(layer, sizes):
        # never 0, which the compiler can't know: what it would make of it stayed in two registers of each thread
        along = max(uint32(sizes[4]), uint32(1))
        x = uint32(layer // along)
        return int32(x), int32(layer - x * along)

    point = device(along_two)

    def below_two(layer, sizes):
        x, y = point(layer, sizes)
        return np.int64(layer) * sizes[0], np.int64(x), np.int64(y)

    count = device(lambda sizes, steps, each: uint32(uint32(sizes[3]) * uint32(sizes[4])))
    return Layers(all_steps, count, all_of_k, point, device(below_two))


@device
def part_of_k(part, steps, each):
    """The first slice of a part of k, and how many it has: `each`, or in the last one what there is."""
    first = uint32(part * each)
    return first, uint32(min(each, uint32(steps - first)))


class Items(NamedTuple):
    """What a block does one after the other, numbered: tiles, or parts of k of them (see stream_k_body.py). Teams take turns.

    plan     `plan(walk, sizes)`: (the first item, from one to the next, where they end, whatever the others need)
    tile     `tile(item, plan)`: that it is, or is a part of
    slices   `slices(item, layer, walk, plan)`: the first slice of it, and how many it has
    place    `place(step, walk)`: in k, of as many slices as there are, from the first on; they may go round
    """

    plan: Any
    tile: Any
    slices: Any
    place: Any


def tiles_in_turn(epilogue: Epilogue) -> Items:
    """Each block takes whole tiles, as far apart as there are blocks."""
    _, number, slices_of, _, _ = layers(epilogue)

    def plan(walk, sizes):
        first, apart, rows, columns, steps, each, _, _ = walk
        return first, apart, uint32(rows * columns * number(sizes, steps, each))

    def slices(item, layer, walk, plan):
        return slices_of(layer, walk[4], walk[5])

    return Items(
        device(plan), device(lambda item, plan: item), device(slices), device(lambda step, walk: step)
    )


def lengths(items: Items) -> Any:
    """`length(item, walk, plan)`: how many slices it has."""
    tile, slices = items.tile, items.slices

    def length(item, walk, plan):
        layer = uint32(tile(item, plan) // uint32(walk[2] * walk[3]))
        return slices(item, layer, walk, plan)[1]

    return device(length)


def turner(stages: int) -> Any:
    """`turn(stage, phase)`: the next stage of the ring, and the parity of its phase."""

    def turn(stage, phase):
        if stage == stages - 1:
            return uint32(0), uint32(phase ^ uint32(1))
        return uint32(stage + uint32(1)), phase

    return device(turn)


def places_of_stages(stages: int, stage_bytes: int) -> tuple[Any, Any]:
    """(`here(stage, first)`, `go_on(stage, phase, ready, a, b)`): the barrier of a stage and its descriptors, of which those of the
    first are given; and all of the next one, each a sum: products would be an instruction more for each."""
    apart, back = stage_bytes // 16, stages - 1

    def here(stage, first):
        further = uint32(stage * uint32(apart))
        return uint32(first[0] + stage * uint32(8)), uint32(first[1] + further), uint32(first[2] + further)

    def go_on(stage, phase, ready, a, b):
        if stage == stages - 1:
            ready = uint32(ready - uint32(8 * back))
            return (
                uint32(0),
                uint32(phase ^ uint32(1)),
                ready,
                uint32(a - uint32(back * apart)),
                uint32(b - uint32(back * apart)),
            )
        ready = uint32(ready + uint32(8))
        return uint32(stage + uint32(1)), phase, ready, uint32(a + uint32(apart)), uint32(b + uint32(apart))

    return device(here), device(go_on)


def skipper(stages: int) -> Any:
    """`skip(stage, phase, count)`: as `turn`, `count` times."""

    def skip(stage, phase, count):
        passed = uint32(stage + count)
        return uint32(passed % uint32(stages)), uint32((phase ^ passed // uint32(stages)) & uint32(1))

    return device(skip)


def turns(tiling: Tiling) -> tuple[Any, Any]:
    """(`wait(team)`, `pass_on(team)`): of two teams, one after the other asks for the products of its tile.

    It has to: who waits for a stage names the phase by its parity, which is that of the phase before the last as well. And it
    should: the tensor cores are then one team's, and the other's results leave meanwhile. Barriers follow those of results.
    """
    if tiling.teams == 1:
        nothing = device(lambda team: None)
        return nothing, nothing
    barriers, both = (1 + tiling.consumers, 2 + tiling.consumers), WARPGROUP * tiling.consumers
    wait = chosen([sync_threads(barrier, both) for barrier in barriers])
    return wait, chosen([arrive_threads(barrier, both) for barrier in reversed(barriers)])


def chosen(instructions: Sequence[Any]) -> Any:
    """`do(i)`: the i-th of some instructions that differ in a constant."""
    first, *rest = instructions
    if not rest:
        return device(lambda i: first())
    others = chosen(rest)

    def do(i):
        if i == 0:
            first()
        else:
            others(int32(i - 1))

    return device(do)
