"""Split-K GEMM: splits of k side by side on multiprocessors that one of them would leave idle, and then their sum.

For few results of long sums, where there are fewer tiles than multiprocessors. Sums are written to the workspace as f32 and
summed in order by a second launch, which does what follows the product: the same numbers in every run.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from ....device.spec import DeviceSpec
from ....registry.cost import Cost, early_us, one_launch, roofline
from ....registry.variant import Checks, Launch, Num, Reject, Work, at_least, at_most, cdiv
from ....rows import RegionSpec
from ....rows.program import Expression, Gemm
from ....types import f32, i32
from ...maps.elementwise import THREADS
from .. import column_sums, problem
from ..problem import Sizes
from ..tilings import SimtTile, finish_us, simt
from .parts import LEAST_FIXED, KSplit, by_k

LEAST_STEPS = 2  # of a tile's step along k, in each split
SUM_RUN = 4  # columns of a thread of the second launch, at most
MOST_SPLITS = 64
STRICT = "sums of parts are rounded where one sum is not; strict takes one sum"
MOST_TILES = 512  # more than that fill any device, three blocks to a multiprocessor, without being split
COPY = Expression("copy", (), (f32,), frozenset(), 1, (0,))
# operands of a split's epilogue, which writes its sums to the workspace
PARTIAL = (), (), (), (Work(0, f32),), ()
UNSCALED = Num(1.0, f32), Num(0.0, f32)


def divide(k: int, wanted: int, step: int) -> KSplit:
    """About so many splits, of whole steps each."""
    each = max(LEAST_STEPS, cdiv(cdiv(k, step), wanted)) * step
    return KSplit(cdiv(k, each), each)


def fixed_checks(region: RegionSpec) -> Checks:
    """Of kernels that add up parts by k alone: an invariant region whose k has several."""
    if not region.invariant:
        yield Reject(
            "invariant",
            "sums parts of k by themselves, which rows of equal bits in any batch take, and nothing else",
        )
    yield at_least("k", problem.k_of(region), 2 * LEAST_FIXED)


def checks(region: RegionSpec, step: int, tile: tuple[int, int]) -> Checks:
    """Beside what the tile takes: one product of few tiles, long enough to be split, and not the order of sums that strictness
    asks for."""
    p, _ = problem.read(region)
    if region.one_sum:
        yield Reject("strict", STRICT)
    if region.invariant:
        yield from fixed_checks(region)
    yield at_most("axes of the batch", len(p.batch), 0)
    yield at_least("k", p.k, LEAST_STEPS * step + 1)
    yield at_most("tiles", cdiv(p.m, tile[0]) * cdiv(p.n, tile[1]), MOST_TILES)
    yield at_most("elements of the product", p.m * p.n, 2**31 - 1)


def choices(k: int, most: int, step: int) -> list[KSplit]:
    """Splits to choose among: powers of two, and as many as `most`, which fill the device once."""
    most = min(MOST_SPLITS, max(2, most))
    return sorted({divide(k, n, step) for n in {most, *(2**i for i in range(1, most.bit_length()))}})


# --- the cost, which kernels of CUDA cores share ------------------------------------------------------------------------


def best(region: RegionSpec, device: DeviceSpec, tile: SimtTile) -> tuple[Cost, KSplit | None]:
    """The cost, and, of a tile that splits k, the number of splits that is predicted to be fastest for the product alone, whatever follows
    it."""
    if not tile.split:
        return tile.cost(region, device), None
    p, _ = problem.read(region)
    sizes = problem.sizes_of(p)
    split = by_k(p.k) if region.invariant else _fastest(sizes, tile, device)
    through, total = sum_cost(region, p, split.number, device)
    return _cost(sizes, tile, split, device, through, total), split


def cost(region: RegionSpec, device: DeviceSpec, tile: SimtTile) -> Cost:
    return best(region, device, tile)[0]


def least(region: RegionSpec, device: DeviceSpec, tile: SimtTile) -> float:
    """Of `cost`: with splits, two launches, of which the second begins early, and the least steps of both."""
    if not tile.split:
        return tile.least(region, device)
    waited = tile.waited_us(LEAST_STEPS * tile.step, simt(device).store_us * tile.m * tile.n, device)
    even = tile.even_us(problem.read(region)[0], device) if problem.k_of(region) else 0.0
    return (
        2 * one_launch(region, device) - early_us(device) + max(waited, even) + 2 * simt(device).sum_step_us
    )


def tile_workspace(region: RegionSpec, device: DeviceSpec, tile: SimtTile) -> int:
    """Of the splits' sums, of those of a tile's parts so far, or of rows of column sums."""
    if tile.parts:
        return f32.itemsize * tile.m * tile.n * problem.grid(problem.read(region)[0], tile.m, tile.n)[0]
    return workspace(region, tile.m, best(region, device, tile)[1])


@lru_cache(maxsize=4096)
def _fastest(sizes: Sizes, tile: SimtTile, device: DeviceSpec) -> KSplit:
    (tiles,) = problem.grid(sizes, tile.m, tile.n)
    result, finish = sizes.m * sizes.n * f32.itemsize, simt(device).store_us * SUM_RUN * THREADS

    def us(split: KSplit) -> float:
        through, total = _sum(sizes, split.number, result, finish, device)
        return _cost(sizes, tile, split, device, through, total).us

    return min(choices(sizes.k, device.sms * tile.blocks_per_sm // tiles, tile.step), key=us)


def _cost(sizes: Sizes, tile: SimtTile, split: KSplit, device: DeviceSpec, through: int, total: Cost) -> Cost:
    """The splits as a batch that is written in f32, then a pass over them. Between the two they stay in the L2 cache, if
    they fit."""
    partial = Sizes(sizes.m, sizes.n, split.k, split.number, sizes.dtype)
    first = tile.product_cost(
        partial, operand_bytes(sizes) + through, device, sizes.flops, simt(device).store_us * tile.m * tile.n
    )
    return first.plus(**{"sum of parts": total.us})


def operand_bytes(p: Gemm | Sizes) -> int:
    return (p.m + p.n) * p.k * p.dtype.itemsize


def sum_cost(region: RegionSpec, p: Gemm, number: int, device: DeviceSpec) -> tuple[int, Cost]:
    """(bytes of so many splits that go through memory when they are written, the second launch)."""
    rest = max(0, region.nbytes - operand_bytes(p))
    return _sum(problem.sizes_of(p), number, rest, finish_us(simt(device), region, SUM_RUN * THREADS), device)


def _sum(sizes: Sizes, number: int, rest: int, finish: float, device: DeviceSpec) -> tuple[int, Cost]:
    """`rest`: bytes beside the splits' sums; `finish`: of a block's results."""
    partial = f32.itemsize * number * sizes.m * sizes.n
    kept = partial if partial <= device.l2_bytes // 2 else 0
    total = roofline(
        device, bytes=rest + partial - kept, cached=kept, blocks=cdiv(sizes.m * sizes.n, SUM_RUN * THREADS),
        blocks_per_sm=8, chain=simt(device).sum_step_us * number, finish=finish,
    )  # fmt: skip
    return partial - kept, total.plus(latency=-early_us(device))


# --- launches ---------------------------------------------------------------------------------------------------------


def raw(region: RegionSpec, run: int) -> Any:
    """The epilogue of a split: sums as they are, into the workspace, by runs of at most so many columns."""
    from ..epilogue import Epilogue

    p, _ = problem.read(region)
    width = next(w for w in (4, 2, 1) if w <= run and p.n % w == 0)
    return Epilogue(COPY, p.dtype, p.b_dtype, None, (), (f32,), width, batch=1, split=True)


def parts(
    region: RegionSpec,
    run: int,
    tile_m: int,
    split: KSplit | None = None,
    each: int = 1,
    in_parts: bool = False,
) -> tuple[Any, tuple]:
    """The epilogue and the arguments of a kernel, for the product or for splits of k, whose extent follows the sizes; `in_parts`: of one
    that adds up parts by itself, and reads their extent after the pointers of results."""
    a, b, operands, sizes, *steps, scales = problem.arguments(region, tile_m, each)
    if in_parts:
        sums = Work(0, f32), Num(by_k(problem.k_of(region)).k, i32)
        return problem.epilogue(region, run), (a, b, (*operands[:4], sums), sizes, *steps, scales)
    if split is None:
        return problem.epilogue(region, run, tile_m, each), (a, b, operands, sizes, *steps, scales)
    return raw(region, run), (a, b, PARTIAL, (*sizes, Num(split.k, i32)), *steps, UNSCALED)


def workspace(region: RegionSpec, tile_m: int, split: KSplit | None, each: int = 1) -> int:
    """Of the splits' sums, or of rows of column sums."""
    if split is None:
        return column_sums.workspace(region, tile_m, each)
    p, _ = problem.read(region)
    return f32.itemsize * split.number * p.m * p.n


def launches(
    region: RegionSpec, device: DeviceSpec, product: Launch, tile_m: int, split: KSplit | None, each: int = 1
) -> list[Launch]:
    """A kernel's launch, and the one that adds up the splits' sums, or rows of column sums, if there is one."""
    if split is None:
        return [product, *column_sums.launches(region, tile_m, device, each)]
    return [product, total(region, split.number)]


def total(region: RegionSpec, number: int) -> Launch:
    """The second launch: so many splits are summed, and what follows the product is done."""
    from .split_k_body import sum_splits

    p, _ = problem.read(region)
    _, _, operands, sizes, *_, scales = problem.arguments(region)
    finish = problem.epilogue(region, SUM_RUN)
    blocks = max(1, cdiv(p.m * p.n // finish.width, THREADS))
    args = Work(0, f32), Num(number, i32), operands, sizes[:2], scales
    return Launch(sum_splits(finish), (blocks,), (THREADS,), args)
