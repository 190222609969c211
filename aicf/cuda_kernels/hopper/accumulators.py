"""How a consumer accumulates K-tile after K-tile out of shared memory: all of k in the tensor cores' accumulators, or each K-tile in some of
its own, which are promoted to f32, where tensor cores keep less than that."""

from __future__ import annotations

from typing import Any, NamedTuple

from ..dsl import device, uint32
from ..ptx import commit_products, fence_products, finish_products, multiply_k_tiles, wait_products
from ..ptx.wgmma import ROWS, WHOLE, k_tile_bytes
from ..tiles.tile import add_tiles, zeros


class Accumulators(NamedTuple):
    """start     before the first tile
    begin     `begin(acc)`: of a tile
    multiply  `multiply(acc, a, b, more, narrow_tile)`: the products of a K-tile, by its descriptors, are added if `more`
    finish    `finish(acc)`: all are done: (accumulators for the next tile, those of this one, as `multiply_k_tiles` says)
    late      K-tiles whose products may still be under way after `multiply`
    """

    start: tuple[Any, ...]
    begin: Any
    multiply: Any
    finish: Any
    late: int


def accumulated(
    kinds: tuple[str, str], n: int, row_blocks: int, a_k_major: bool, b_k_major: bool, narrow: int = 0
) -> Accumulators:
    """All of k in the accumulators of a tile of n columns, or of `narrow`; what these hold before the first product is not read."""
    half, count = n // 2, row_blocks * n // 2
    wait = finish_products(count)

    def finish(acc):  # nobody has the registers that products go to but who goes on
        acc = wait(acc)
        return acc, acc

    def asker(n: int) -> Any:
        fence, commit, wait_but_one = fence_products(), commit_products(), wait_products(1)
        ask = multiply_k_tiles(kinds, n, row_blocks, a_k_major, b_k_major, half)

        def multiply(acc, a, b, more):
            fence()
            acc = ask(acc, a, b, more)
            commit()
            wait_but_one()
            return acc

        return device(multiply)

    wide = asker(n)
    multiply = device(lambda acc, a, b, more, narrow_tile: wide(acc, a, b, more))
    if narrow:
        narrow_n = asker(narrow)

        def either(acc, a, b, more, narrow_tile):
            # Each commits its products: where both ways meet, ptxas would not know of which products a group is, commit none, and
            # wait for all of them.
            if narrow_tile < 0:
                return wide(acc, a, b, more)
            return narrow_n(acc, a, b, more)

        multiply = device(either)
    start = zeros(count, kinds[0] in WHOLE)
    return Accumulators(start, device(lambda acc: acc), multiply, device(finish), 1)


def promoted(
    kinds: tuple[str, str], n: int, row_blocks: int, a_k_major: bool, b_k_major: bool
) -> Accumulators:
    """Each K-tile in accumulators of its own, 64 rows at a time: (accumulators of the tile, room for those of a K-tile). Who shares the tensor cores multiplies while this
    one adds."""
    count, nothing = n // 2, zeros(row_blocks * n // 2)

    def begin(acc):
        return nothing, acc[1]

    promote = _promoted_rows(row_blocks, count, multiply_k_tiles(kinds, n, 1, a_k_major, b_k_major))
    multiply = device(lambda acc, a, b, more, narrow_tile: promote(acc, a, b, more))
    return Accumulators(
        (nothing, zeros(count)), device(begin), multiply, device(lambda acc: (acc, acc[0])), 0
    )


def _promoted_rows(blocks: int, count: int, ask: Any, block: int = 0) -> Any:
    """`multiply(acc, a, b, more)` of this block of 64 rows and those below it."""
    fence, commit, finish = fence_products(), commit_products(), finish_products(count)
    add, below = add_tiles(count, block * count), k_tile_bytes(ROWS) // 16

    def multiply(acc, a, b, more):
        fence()
        part = ask(acc[1], a, b, uint32(0))
        commit()
        part = finish(part)
        return add(acc[0], part), part

    if block == blocks - 1:
        return device(multiply)
    first, others = device(multiply), _promoted_rows(blocks, count, ask, block + 1)

    def multiply_all(acc, a, b, more):
        return others(first(acc, a, b, more), uint32(a + uint32(below)), b, more)

    return device(multiply_all)
