"""How a consumer of a Hopper product sums slice after slice of its tile: all of k in the tensor cores' registers, or each slice
by itself and their sums in f32, where tensor cores keep less than that."""

from __future__ import annotations

from typing import Any, NamedTuple

from ...types import DType, f8e4m3, f8e5m2, f32
from ..dsl import device, uint32
from ..ptx import commit_products, fence_products, finish_products, multiply_k_tiles, wait_products
from ..ptx.wgmma import ROWS, k_tile_bytes
from ..tiles.tile import add_tiles, zeros
from .epilogue import Epilogue
from .wgmma_tiling import Tiling, by_slices

KINDS = {f32: "tf32", f8e4m3: "e4m3", f8e5m2: "e5m2"}  # that wgmma multiplies elements as


class Sums(NamedTuple):
    """start     before the first tile
    begin     `begin(sums)`: of a tile
    multiply  `multiply(sums, a, b, more, strip)`: the products of a slice, by its descriptors, are added if `more`
    finish    `finish(sums)`: all are done: (sums for the next tile, those of this one, as `multiply_k_tiles` says)
    late      slices whose products may still be under way after `multiply`
    """

    start: tuple[Any, ...]
    begin: Any
    multiply: Any
    finish: Any
    late: int


def sums_of(tiling: Tiling, epilogue: Epilogue, a_k_major: bool, b_k_major: bool) -> Sums:
    both = kind(epilogue.dtype), kind(epilogue.b_dtype)
    how = _slice_by_slice if tiling.slices or by_slices(epilogue.dtype) else _together
    return how(tiling, both, a_k_major, b_k_major)


def kind(dtype: DType) -> str:
    return KINDS.get(dtype, dtype.name)


def _together(tiling: Tiling, kinds: tuple[str, str], a_k_major: bool, b_k_major: bool) -> Sums:
    """What sums hold before the first product of a tile is not read."""
    wait = finish_products(tiling.sums)

    def finish(sums):  # nobody has the registers that products go to but who goes on
        sums = wait(sums)
        return sums, sums

    def asker(n: int) -> Any:
        fence, commit, wait_but_one = fence_products(), commit_products(), wait_products(1)
        ask = multiply_k_tiles(kinds, n, tiling.row_blocks, a_k_major, b_k_major, tiling.n // 2)

        def multiply(sums, a, b, more):
            fence()
            sums = ask(sums, a, b, more)
            commit()
            wait_but_one()
            return sums

        return device(multiply)

    wide = asker(tiling.n)
    multiply = device(lambda sums, a, b, more, strip: wide(sums, a, b, more))
    if tiling.narrow:
        narrow = asker(tiling.narrow)

        def either(sums, a, b, more, strip):
            # Each commits its products: where both ways meet, ptxas would not know of which products a group is, commit none, and
            # wait for all of them.
            if strip < 0:
                return wide(sums, a, b, more)
            return narrow(sums, a, b, more)

        multiply = device(either)
    return Sums(zeros(tiling.sums), device(lambda sums: sums), multiply, device(finish), 1)


def _slice_by_slice(tiling: Tiling, kinds: tuple[str, str], a_k_major: bool, b_k_major: bool) -> Sums:
    """64 rows at a time: (sums of the tile, room for those of a slice). Who shares the tensor cores multiplies while this
    one adds."""
    count, nothing = tiling.n // 2, zeros(tiling.sums)

    def begin(sums):
        return nothing, sums[1]

    of_slice = _rows_of_slice(
        tiling.row_blocks, count, multiply_k_tiles(kinds, tiling.n, 1, a_k_major, b_k_major)
    )
    multiply = device(lambda sums, a, b, more, strip: of_slice(sums, a, b, more))
    return Sums((nothing, zeros(count)), device(begin), multiply, device(lambda sums: (sums, sums[0])), 0)


def _rows_of_slice(blocks: int, count: int, ask: Any, block: int = 0) -> Any:
    """`multiply(sums, a, b, more)` of this block of 64 rows and those below it."""
    fence, commit, finish = fence_products(), commit_products(), finish_products(count)
    add, below = add_tiles(count, block * count), k_tile_bytes(ROWS) // 16

    def multiply(sums, a, b, more):
        fence()
        part = ask(sums[1], a, b, uint32(0))
        commit()
        part = finish(part)
        return add(sums[0], part), part

    if block == blocks - 1:
        return device(multiply)
    first, others = device(multiply), _rows_of_slice(blocks, count, ask, block + 1)

    def multiply_all(sums, a, b, more):
        return others(first(sums, a, b, more), uint32(a + uint32(below)), b, more)

    return device(multiply_all)
