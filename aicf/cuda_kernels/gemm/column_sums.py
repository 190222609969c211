"""Sums of columns beside a product, such as a bias's gradient: what they add to its kernel, and the launch behind it.

Each block adds up its tile's rows of what the map hands on, while they are in registers. Where there is one row of tiles that
is the result; else each writes a row of f32 to the workspace, or a few, and a small launch adds up these rows. The order is
fixed, so results repeat exactly.
"""

from __future__ import annotations

from ...device.spec import DeviceSpec
from ...registry.cost import BARRIER_US, CACHE_TRIP_US, Cost, early_us, roofline
from ...registry.variant import Launch, Num, Out, Work, cdiv
from ...rows import RegionSpec
from ...rows.program import Expression, Gemm, RegionProgram
from ...rows.read import read
from ...types import DType, f32
from ..maps.elementwise import THREADS, grid_for
from ..rows.reduce import EFFICIENCY, RESIDENT, TREE_US, chain_us, lanes_for, partial_side

TAKES = "gemm+reduce", "gemm+map+reduce"


def _partial_rows(region: RegionSpec, tile_m: int, each: int) -> tuple[RegionProgram, int, int] | None:
    """(the region, rows, columns), if there are sums. `each`: rows that tiles of tile_m rows leave."""
    program = read(region)
    assert isinstance(program, RegionProgram) and isinstance(program.core, Gemm)
    if program.epilogue_reduction is None:
        return None
    return program, max(1, cdiv(program.core.m, tile_m)) * each, program.core.n


def workspace(region: RegionSpec, tile_m: int, each: int = 1) -> int:
    found = _partial_rows(region, tile_m, each)
    return 0 if found is None or found[1] == 1 else found[1] * found[2] * f32.itemsize


def with_sums(cost: Cost, region: RegionSpec, tile_m: int, device: DeviceSpec, each: int = 1) -> Cost:
    """The cost of a product, and of sums beside it: two barriers of a block, and a launch over rows, if there are several, which
    are in the L2 cache still."""
    if (found := _partial_rows(region, tile_m, each)) is None:
        return cost
    _, rows, columns = found
    if rows == 1:
        return cost.plus(**{"column sums": 2 * BARRIER_US})
    width = _width(columns)
    again = roofline(
        device, bytes=0, cached=rows * columns * f32.itemsize, flops=rows * columns, efficiency=EFFICIENCY,
        blocks=cdiv(columns, width), blocks_per_sm=RESIDENT, finish=TREE_US,
        chain=chain_us(cdiv(rows, THREADS // width), CACHE_TRIP_US),
    )  # fmt: skip
    return cost.plus(**{"column sums": again.us - early_us(device) + 2 * BARRIER_US})


def launches(region: RegionSpec, tile_m: int, device: DeviceSpec, each: int = 1) -> list[Launch]:
    """What follows the product's: one that adds up the rows, if there are several."""
    if (found := _partial_rows(region, tile_m, each)) is None or found[1] == 1:
        return []
    from ..rows.reduce_body import Side, columns

    program, rows, count = found
    assert program.epilogue_reduction is not None
    width = _width(count)
    given, read_rows = partial_side(f32, (rows * count, count, 1))
    sink = Side(_copy(program.epilogue_reduction.dtype), (), (program.epilogue_reduction.dtype,), ())
    kernel = columns("sum", f32, given, sink, width, False)
    tiles = cdiv(count, width)
    numbers = Num(rows), Num(count), Num(1), Num(rows), Num(rows, f32)
    results = (), (Out(program.epilogue_reduction.result),), ()
    return [Launch(kernel, grid_for(tiles * THREADS), (THREADS,), (*read_rows, *results, *numbers))]


def pointers(region: RegionSpec, tile_m: int, each: int = 1) -> tuple[Out | Work, ...]:
    """Where a product's kernel writes its sums."""
    if (found := _partial_rows(region, tile_m, each)) is None:
        return ()
    program, rows, _ = found
    assert program.epilogue_reduction is not None
    return (Out(program.epilogue_reduction.result) if rows == 1 else Work(),)


def written(region: RegionSpec, tile_m: int, each: int = 1) -> DType | None:
    """And in which type."""
    if (found := _partial_rows(region, tile_m, each)) is None:
        return None
    program, rows, _ = found
    assert program.epilogue_reduction is not None
    return program.epilogue_reduction.dtype if rows == 1 else f32


def _width(columns: int) -> int:
    """Neighbouring columns that a block of the second launch reads side by side."""
    return min(32, lanes_for(columns))


def _copy(dtype: DType) -> Expression:
    return Expression("copy", (), (dtype,), frozenset(), 1, (0,))
