"""Matrix products on Hopper: TMA, wgmma, warp-specialised persistent blocks, clusters. The kernel's body is wgmma_body.py.

A config is a tiling with its schedule, a path of operands (operands/) and whether k is split. Types are f16, bf16, f32 rounded to tf32, fp8, and
with `int8` i8 and u8; `rs`, `packed` and `tf32x3` are paths for operands that wgmma can't read as they are.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from ...device.spec import DeviceSpec
from ...registry.checks import first_refusal
from ...registry.cost import Cost
from ...registry.variant import Checks, Launch, Num, NumericClass, Reject, at_least, at_most, cdiv, variant
from ...rows import RegionSpec
from ...types import BASIC, DType, Precision, bf16, f16, f32, i8, i32, u8
from ..hopper.units import ATOM, WARPS
from . import column_sums, numerics, problem, wgmma_cost
from .operands.flat import flat_operands, from_flat
from .operands.registers import from_registers, in_registers, rs_operands
from .operands.tma import GemmOperands, from_shared, operands_of
from .schedule import split_k, stream_k
from .schedule.persistent import clusters, narrow_tiles, resident
from .schedule.split_k import KSplit
from .wgmma_results import GemmResults, direct_results, partial_sums, results_of
from .wgmma_tiling import (
    CONFIGS,
    FEW_ROWS,
    FLAT_CONFIGS,
    INT8_CONFIGS,
    RS_CONFIGS,
    WgmmaConfig,
    WgmmaTiling,
    k_tile,
    promotes,
)

EXTENT = 2**31 - 1024  # of m, n and k, as i32 coordinates of a tile that hangs over; and of tiles, as u32


# --- which problems ---------------------------------------------------------------------------------------------------


def checks(region: RegionSpec) -> Checks:
    """Of all paths, but for where operands are."""
    yield from problem.checks(region)
    p, _ = problem.read(region)
    if p.dtype is f32 and p.precision is not Precision.tf32:
        yield Reject("precision", f"the product is to be {p.precision.name}, this one is tf32")
    if promotes(p.dtype) and region.one_sum:
        yield Reject(
            "strict", "tensor cores keep some 14 bits of a sum of fp8 products; strict takes sums in f32"
        )
    yield at_least("k", p.k, 1)
    yield at_least("least extent of results", min(p.m, p.n, p.count), 1)
    yield at_most("greatest extent", max(p.m, p.n, p.k), EXTENT)
    yield at_most("tiles of 64 x 64", p.count * cdiv(p.m, 64) * cdiv(p.n, 64), EXTENT)


def _family(operands: Callable[[RegionSpec], Any], *types: DType) -> Callable[[RegionSpec], Reject | None]:
    """What all configs of a path refuse: `operands` says whether it can read a and b, of these types if any are said."""

    def path_checks(region: RegionSpec) -> Checks:
        yield from checks(region)
        p, _ = problem.read(region)
        if types and p.dtype not in types:
            yield Reject("dtype", f"a is {p.dtype}, this one is for {' and '.join(t.name for t in types)}")
        found = operands(region)
        yield found if isinstance(found, Reject) else None

    return first_refusal(path_checks)


family, int8_family, rs_family = _family(operands_of), _family(operands_of, i8, u8), _family(rs_operands, f32)
flat_family = _family(flat_operands, f16, bf16)


def _narrow_checks(tiling: WgmmaTiling, region: RegionSpec) -> Checks:
    """A group of narrow tiles has to find room, in one product."""
    p, _ = problem.read(region)
    yield at_least("n", p.n, tiling.narrow_n * tiling.narrow_group)
    yield at_most("axes of the batch", len(p.batch), 0)
    found = operands_of(region)
    if not isinstance(found, Reject) and not found[1].k_major:  # 510 TFLOP/s of 8192^3, and 660 where it is
        yield Reject(
            "rows", f"b is N-major, of {tiling.narrow_n} columns, which tensor cores read slowly: needs K-major"
        )  # fmt: skip


# --- launches ---------------------------------------------------------------------------------------------------------


def launch(
    tiling: WgmmaTiling, device: DeviceSpec, operands: GemmOperands, results: GemmResults, sizes: Sequence[int], tiles: int,
    name: str = "gemm_wgmma",
) -> Launch:  # fmt: skip
    """A launch of persistent blocks: of a matrix product, of splits of one, of a convolution or of a gradient of one.

    operands  maps of a and b, and what loads them
    results   the epilogue with its arguments, and what stores them
    sizes     m, n and k; then those of the batch, or k of a split; then what a producer or `results.storing` of a family reads
    tiles     clusters' tiles, of all splits: as many clusters as run at once, or fewer
    """
    from .wgmma_body import wgmma

    body = wgmma(
        tiling, operands.a, operands.b, results.finish, results.staged, results.sources, operands.in_registers,
        results.lines, operands.producing, results.storing, name,
    )  # fmt: skip
    if tiling.cluster_split == 1:  # else a block has slots for one tile
        tiles = min(tiles, resident(tiling, device))
    maps = *operands.maps, *results.maps, *operands.last
    arguments = maps, results.operands, tuple(Num(size, i32) for size in sizes), results.scales
    grid, block = (tiles * tiling.together,), (tiling.threads,)
    return Launch(body, grid, block, arguments, tiling.shared(results.staged), tiling.together)


def gemm_launch(
    config: WgmmaConfig, region: RegionSpec, device: DeviceSpec, split: KSplit | None = None
) -> Launch:
    """Of the whole product, or of splits of k."""
    p, _ = problem.read(region)
    tiling, rs, narrow = config.tiling, config.path == "rs", 0
    if config.path == "flat":
        operands = from_flat(tiling, region)
    else:
        operands = from_registers(tiling, region) if rs else from_shared(tiling, operands_of(region))
    sizes, tiles = (p.m, p.n, p.k, *p.batch), clusters(tiling, region, operands.in_registers)
    if tiling.narrow_n:
        narrow = narrow_tiles(tiling, region, device)
        sizes, tiles = (*sizes, narrow), tiles + narrow // tiling.narrow_group * cdiv(p.m, tiling.m)
    if split is not None:
        sizes, tiles = (*sizes, split.k), tiles * split.number
        return launch(tiling, device, operands, partial_sums(region), sizes, tiles)
    results = direct_results(tiling, region) if rs else results_of(tiling, region, narrow)
    if tiling.stream:
        units = stream_k.pointers(tiling, region, device)
        results = replace(results, operands=(*results.operands[:4], units))
    return launch(tiling, device, operands, results, sizes, tiles)


# --- the kernel -------------------------------------------------------------------------------------------------------


class GemmWgmma:
    """Persistent blocks of consumer warpgroups and a producer, a tile at a time: `128x256`, rows and columns of results.

    Parallel over tiles. TMA loads K-tiles of 128 bytes of k, wgmma multiplies them out of shared memory: f16 or bf16, in all four transposes;
    f32 rounded to tf32, fp8 and integers, of which k is contiguous. Sums are f32, of fp8 after 128 of k each, and i32 of integers. 2MNK flops,
    edges padded to whole tiles. Bytes: both operands once per tile that uses them. Limit: tensor cores; at the ends of a tile, its epilogue.

    pingpong  two groups of consumers take tiles in turns, else all of them share one
    cluster2  two blocks share b; cluster split2, split4: blocks share a tile, and divide k
    120       with tiles of so many columns beside the others, where these fill the last wave
    halved    each half of k has a sum of its own, as with cluster split2, whose bits a row then has among thousands
    deep      a block of one consumer has all of a multiprocessor's shared memory
    stream    stream-K: tiles are divided evenly among blocks
    split     splits of k, and a second launch for their sum and what follows the product
    int8      of i8 and u8, at twice the rate of halves
    rs        of tf32 whose k is not contiguous in one operand, which threads load into registers
    flat      of few rows of a transposed a, likewise: operands/flat.py
    """

    def accepts(region: RegionSpec, config: WgmmaConfig) -> Checks:
        t, (p, _) = config.tiling, problem.read(region)
        if promotes(p.dtype) and not t.can_promote:
            yield Reject(
                "accumulators",
                "fp8 accumulators are promoted while tensor cores go on: needs two consumers that multiply at once, and registers for both",
            )
        if config.split:
            yield from split_k.checks(region, k_tile(p.dtype), (t.m, t.n))
            return
        if t in FEW_ROWS:
            yield at_most("m", p.m, t.m)
        if t.narrow_n:
            yield from _narrow_checks(t, region)
        if region.one_sum and t.cluster_split > 1:
            yield Reject("strict", split_k.STRICT)
        if config.path == "flat":  # whose main loop begins with a K-tile
            yield at_least("K-tiles", cdiv(p.k, k_tile(p.dtype)), t.cluster_split)
        if t.halved:
            if not region.invariant:
                yield Reject(
                    "invariant",
                    "sums each half of k by itself, which rows of equal bits in any batch take, and nothing else",
                )
            yield at_least("K-tiles", cdiv(p.k, k_tile(p.dtype)), 2)
        if t.stream:
            yield from stream_k.checks(t, region)
        yield at_most("blocks", clusters(t, region, in_registers(region, config)) * t.together, 2**31 - 1)

    def cost(region: RegionSpec, device: DeviceSpec, config: WgmmaConfig) -> Cost:
        t, operand = config.tiling, in_registers(region, config)
        if config.split:
            return wgmma_cost.best_split(t, region, device, operand)[0]
        flat = config.path == "flat"
        cost = wgmma_cost.cost(t, region, device, register_operand=operand, flat=flat)
        return column_sums.with_sums(cost, region, t.rows, device, WARPS)

    def workspace(region: RegionSpec, device: DeviceSpec, config: WgmmaConfig) -> int:
        if config.tiling.stream:
            return stream_k.workspace(config.tiling, region, device)
        return split_k.workspace(region, config.tiling.rows, _split(region, device, config), WARPS)

    def numerics(region: RegionSpec, device: DeviceSpec, config: WgmmaConfig) -> NumericClass | Reject:
        operand = "a" if config.path == "flat" else in_registers(region, config)
        return numerics.wgmma(region, config, operand)

    def build(region: RegionSpec, device: DeviceSpec, config: WgmmaConfig) -> list[Launch]:
        split = _split(region, device, config)
        product = gemm_launch(config, region, device, split)
        return split_k.launches(region, device, product, config.tiling.rows, split, WARPS)


def _split(region: RegionSpec, device: DeviceSpec, config: WgmmaConfig) -> KSplit | None:
    if not config.split:
        return None
    return wgmma_cost.best_split(config.tiling, region, device, in_registers(region, config))[1]


def _takes(config: WgmmaConfig) -> tuple[str, ...]:
    """Column sums are of 64 columns at a time; and divided tiles with these took up to 11 % longer than whole ones."""
    t = config.tiling
    alone = t.columns % ATOM or t.narrow_n or t.stream or t.halved or config.split or config.path
    return problem.TAKES if alone else problem.TAKES_SUMS


def kernel(
    configs: Sequence[WgmmaConfig], family: Callable[[RegionSpec], Reject | None], **flags: Any
) -> Any:
    """The kernel in configs of one path."""
    return variant(
        "gemm", id="cuda.gemm_wgmma.v1", configs=configs, takes=_takes, needs=("sm_90a",), family=family, **flags
    )(GemmWgmma)  # fmt: skip


WGMMA = kernel(CONFIGS, family)
INT8 = kernel(INT8_CONFIGS, int8_family, dtypes=BASIC | {i8, u8})
RS = kernel(RS_CONFIGS, rs_family)
FLAT = kernel(FLAT_CONFIGS, flat_family)
