"""How a producer loads K-tiles of an operand by TMA: by which map, which boxes, of which matrix of a batch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..dsl import device, int32, uint32
from .units import SWIZZLE_BYTES, boxed, left

# of an operand: whether k is contiguous; the axes of the batch that it has
Order = tuple[bool, tuple[int, ...]]


def chosen_box(tile_mn: int, k_major: bool, map: int, last_map: int, may_be_last: bool = True) -> Any:
    """`choose(maps, mn, extent)`: the map that loads a tile from this m or n on, and how much of it that loads. A share of
    a tile in a cluster loads as much as the others."""
    if not k_major:
        return device(lambda maps, mn, extent: (maps[map], uint32(tile_mn)))
    count, count_left = device(boxed), device(left)

    def choose(maps, mn, extent):
        if may_be_last and int32(mn + tile_mn) > int32(extent):
            return maps[last_map], uint32(count_left(tile_mn, extent))
        return maps[map], uint32(count(tile_mn, extent))

    return device(choose)


def flat_box(map: int) -> Any:
    """`choose(maps, mn, extent)`: the same of a flat operand, which is loaded with the number of its rows: see `flat_bringer`."""

    return device(lambda maps, mn, extent: ((maps[map], int32(extent)), uint32(extent)))


def flat_bringer(axes: tuple[int, ...], load_box: Callable[..., Any]) -> Any:
    """`bring(to, map, ready, mn, k, point)`: 64 of k of a flat operand's rows, which are one piece of memory: as many lines of 64 halves as it has
    rows."""
    load = loader(load_box, axes)

    def bring(to, map, ready, mn, k, point):
        number, rows = map
        load(to, number, ready, int32(0), int32((k >> 6) * rows), point)

    return device(bring)


def narrow_box(tile_mn: int, k_major: bool, choose: Any, map: int) -> Any:
    """`choose(maps, mn, extent, narrow_tile)`: the same of b, of which narrow tiles take `tile_mn`, if there are any."""
    if not (tile_mn and k_major):
        return device(lambda maps, mn, extent, narrow_tile: choose(maps, mn, extent))

    def choose_either(maps, mn, extent, narrow_tile):
        if narrow_tile < 0:
            return choose(maps, mn, extent)
        return maps[map], uint32(tile_mn)

    return device(choose_either)


def bringer(tile_mn: int, order: Order, wide: int, load_box: Callable[..., Any]) -> Any:
    """`bring(to, map, ready, mn, k, point)`: `tile_mn` x 128 bytes of k, or as much as there is; K-major, or MN-major, 128 bytes
    of m or n at a time, `wide` of them."""
    (k_major, axes), boxes = order, tile_mn // wide
    assert k_major or tile_mn % wide == 0, f"{tile_mn} are no boxes of {wide}"
    load = loader(load_box, axes)

    def k_major_rows(to, map, ready, mn, k, point):
        load(to, map, ready, k, mn, point)

    def mn_major_rows(to, map, ready, mn, k, point):
        for i in range(boxes):
            load(uint32(to + uint32(i * wide * SWIZZLE_BYTES)), map, ready, int32(mn + i * wide), k, point)

    return device(k_major_rows if k_major else mn_major_rows)


def loader(load_box: Callable[..., Any], axes: tuple[int, ...]) -> Any:
    """`load(to, map, ready, x, y, point)`: a box of the matrix at this point of the batch, of an operand with such axes."""
    load = load_box(2 + len(axes))
    if not axes:
        return device(lambda to, map, ready, x, y, point: load(to, map, ready, x, y))
    first, last = axes[0], axes[-1]
    if len(axes) == 1:
        return device(lambda to, map, ready, x, y, point: load(to, map, ready, x, y, point[first]))
    return device(lambda to, map, ready, x, y, point: load(to, map, ready, x, y, point[first], point[last]))
