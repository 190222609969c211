"""Sums of columns beside a product, such as a bias's gradient: what they add to its kernel, and the launch behind it.

Each block adds up its tile's rows of what the map hands on, while they are in registers. Where there is one row of tiles that
is the result; else each writes a row of f32 to the workspace, or a few, and a small launch adds up these rows. The order is
fixed, so results repeat exactly.
"""

from __future__ import annotations

from typing import NamedTuple

from ...device.spec import DeviceSpec
from ...registry.cost import Cost, early_us, machine, roofline
from ...registry.variant import Launch, Num, Out, Work, cdiv
from ...rows import RegionSpec
from ...rows.program import ColumnSums, Expression, Gemm, RegionProgram
from ...rows.read import read
from ...types import DType, f32
from ..maps.elementwise import THREADS, grid_for
from ..rows.reduce import EFFICIENCY, RESIDENT, TREE_US, chain_us, lanes_for, partial_side

TAKES = "gemm+reduce", "gemm+map+reduce"


class _Partial(NamedTuple):
    """Rows of sums that tiles leave, and the reduction that they are of."""

    rows: int
    columns: int
    reduction: ColumnSums


def _partial(region: RegionSpec, tile_m: int, each: int) -> _Partial | None:
    """Of tiles of tile_m rows that leave `each` rows of sums; None if there are no sums."""
    program = read(region)
    assert isinstance(program, RegionProgram) and isinstance(program.core, Gemm)
    if (reduction := program.epilogue_reduction) is None:
        return None
    return _Partial(max(1, cdiv(program.core.m, tile_m)) * each, program.core.n, reduction)


def workspace(region: RegionSpec, tile_m: int, each: int = 1) -> int:
    sums = _partial(region, tile_m, each)
    return 0 if sums is None or sums.rows == 1 else sums.rows * sums.columns * f32.itemsize


def with_sums(cost: Cost, region: RegionSpec, tile_m: int, device: DeviceSpec, each: int = 1) -> Cost:
    """The cost of a product, and of sums beside it: two barriers of a block, and a launch over rows, if there are several, which
    are in the L2 cache still."""
    if (sums := _partial(region, tile_m, each)) is None:
        return cost
    rows, columns, _ = sums
    if rows == 1:
        return cost.plus(**{"column sums": 2 * machine(device).barrier_us})
    width = _width(columns)
    again = roofline(
        device, bytes=0, cached=rows * columns * f32.itemsize, flops=rows * columns, efficiency=EFFICIENCY,
        blocks=cdiv(columns, width), blocks_per_sm=RESIDENT, finish=TREE_US,
        chain=chain_us(cdiv(rows, THREADS // width), machine(device).cache_trip_us),
    )  # fmt: skip
    return cost.plus(**{"column sums": again.us - early_us(device) + 2 * machine(device).barrier_us})


def launches(region: RegionSpec, tile_m: int, device: DeviceSpec, each: int = 1) -> list[Launch]:
    """What follows the product's: one that adds up the rows, if there are several."""
    if (sums := _partial(region, tile_m, each)) is None or sums.rows == 1:
        return []
    from ..rows.reduce_body import Side, columns

    (rows, count, reduction), width = sums, _width(sums.columns)
    given, read_rows = partial_side(f32, (rows * count, count, 1))
    copy = Expression("copy", (), (reduction.dtype,), frozenset(), 1, (0,))
    kernel = columns("sum", f32, given, Side(copy, (), (reduction.dtype,), ()), width, False)
    numbers = Num(rows), Num(count), Num(1), Num(rows), Num(rows, f32)
    arguments = (*read_rows, (), (Out(reduction.result),), (), *numbers)
    return [Launch(kernel, grid_for(cdiv(count, width) * THREADS), (THREADS,), arguments)]


def pointers(region: RegionSpec, tile_m: int, each: int = 1) -> tuple[Out | Work, ...]:
    """Where a product's kernel writes its sums."""
    sums = _partial(region, tile_m, each)
    return () if sums is None else (Out(sums.reduction.result) if sums.rows == 1 else Work(),)


def written(region: RegionSpec, tile_m: int, each: int = 1) -> DType | None:
    """And in which type."""
    sums = _partial(region, tile_m, each)
    return None if sums is None else sums.reduction.dtype if sums.rows == 1 else f32


def _width(columns: int) -> int:
    """Neighbouring columns that a block of the second launch reads side by side."""
    return min(32, lanes_for(columns))
