"""Variants for matrix products on Hopper: TMA, wgmma, warp-specialised persistent blocks, clusters.

Epilogues and results are those of problem.py; operands are loaded by TMA, so that rows have to begin at multiples of 16 bytes. Halves
are K-major or MN-major; TF32 and fp8 have to be K-major.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache, partial

from ...device.spec import DeviceSpec
from ...registry.cost import Cost
from ...registry.variant import Checks, KernelVariant, Launch, Num, Reject, at_least, at_most, cdiv, variant
from ...rows import RegionSpec
from ...types import Precision, f32, i32
from ..hopper.units import ATOM, WARPS
from . import column_sums, problem, wgmma_cost
from .operands.tma import Operands, from_shared, operands_of
from .schedule import split_k as gemm_split
from .schedule import stream_k
from .schedule.persistent import clusters, narrow_tiles, resident
from .schedule.split_k import KSplit
from .wgmma_results import Results, partial_sums, results_of
from .wgmma_tiling import MIXED_WIDTHS, SPLIT, STREAM, TILINGS, WgmmaTiling, k_tile, promotes

EXTENT = 2**31 - 1024  # of m, n and k, as i32 coordinates of a tile that hangs over; and of tiles, as u32


def extents(region: RegionSpec) -> tuple[int, int, int]:
    """m, n and k."""
    p, _ = problem.read(region)
    return p.m, p.n, p.k


@lru_cache(maxsize=256)
def family(region: RegionSpec) -> Reject | None:
    """Every tiling takes what tensor cores multiply, in rows that the accelerator can copy."""
    return next((reject for reject in _checks(region) if reject is not None), None)


def _checks(region: RegionSpec) -> Checks:
    yield from checks(region)
    made = operands_of(region)
    yield made if isinstance(made, Reject) else None


def checks(region: RegionSpec) -> Checks:
    """Of all that follows, but for how operands lie."""
    yield from problem.checks(region)
    p, _ = problem.read(region)
    if p.dtype is f32 and p.precision is not Precision.tf32:
        yield Reject("precision", f"the product is to be {p.precision.name}, this one is tf32")
    if promotes(p.dtype) and region.strict:
        yield Reject(
            "strict", "tensor cores keep some 14 bits of a sum of fp8 products; strict takes sums in f32"
        )
    yield at_least("k", p.k, 1)
    yield at_least("least extent of results", min(p.m, p.n, p.count), 1)
    yield at_most("greatest extent", max(p.m, p.n, p.k), EXTENT)
    yield at_most("tiles of 64 x 64", p.count * cdiv(p.m, 64) * cdiv(p.n, 64), EXTENT)


def _summed(tiling: WgmmaTiling, region: RegionSpec) -> Reject | None:
    if promotes(problem.read(region)[0].dtype) and not tiling.can_promote:
        return Reject(
            "accumulators",
            "fp8 accumulators are promoted while tensor cores go on: needs two consumers that multiply at once, and registers for both",
        )
    return None


# --- variants ---------------------------------------------------------------------------------------------------------


def _narrow(tiling: WgmmaTiling, region: RegionSpec) -> Checks:
    """A group of narrow tiles has to find room, in one product."""
    if tiling.narrow_n:
        p, _ = problem.read(region)
        yield at_least("n", p.n, tiling.narrow_n * tiling.narrow_group)
        yield at_most("axes of the batch", len(p.batch), 0)
        made = operands_of(region)
        if not isinstance(made, Reject) and not made[1].k_major:  # 510 TFLOP/s of 8192^3, and 660 where it is
            yield Reject(
                "rows",
                f"b is N-major, of {tiling.narrow_n} columns, which tensor cores read slowly: needs K-major",
            )


def _wgmma(tiling: WgmmaTiling) -> KernelVariant:
    """A tiling as a variant."""
    # column sums are of 64 columns at a time; and divided tiles with these took up to 11 % longer than whole ones
    plain = tiling.columns % ATOM or tiling.narrow_n or tiling.stream
    takes = problem.TAKES if plain else problem.TAKES_SUMS

    @variant("gemm", id="cuda.gemm_wgmma.v1", config=(tiling,), takes=takes, needs=("sm_90a",), family=family)
    class Wgmma:
        __doc__ = f"""Persistent blocks of {tiling.consumers} consumer warpgroups and a producer, a {tiling.m} x {tiling.n} tile at a time.

        Parallel over tiles{" and splits of k" * (tiling.cluster_split > 1)}, {tiling.together} block{"s" * (tiling.together > 1)} to a cluster. TMA brings K-tiles of 128 bytes of k, wgmma multiplies them
        out of shared memory: f16 or bf16, in all four transposes; f32 rounded to tf32, and fp8, of which k is contiguous. Sums
        are f32, of fp8 after 128 of k each. 2MNK flops, edges padded to whole tiles. Bytes: both operands once per tile that
        uses them{", b once per cluster" * (tiling.cluster > 1)}. Limit: tensor cores; at the ends of a tile, its epilogue.
        """

        def accepts(region: RegionSpec) -> Checks:
            yield _summed(tiling, region)
            yield from _narrow(tiling, region)
            if region.strict and tiling.cluster_split > 1:
                yield Reject("strict", gemm_split.STRICT)
            if tiling.stream:
                yield from stream_k.checks(tiling, region)
            yield at_most("blocks", clusters(tiling, region) * tiling.together, 2**31 - 1)

        def cost(region: RegionSpec, device: DeviceSpec) -> Cost:
            return column_sums.with_sums(
                wgmma_cost.cost(tiling, region, device), region, tiling.rows, device, WARPS
            )

        def workspace(region: RegionSpec, device: DeviceSpec) -> int:
            if tiling.stream:
                return stream_k.workspace(tiling, region, device)
            return column_sums.workspace(region, tiling.rows, WARPS)

        def build(region: RegionSpec, device: DeviceSpec) -> list[Launch]:
            return [
                gemm_launch(tiling, region, device),
                *column_sums.launches(region, tiling.rows, device, WARPS),
            ]

    return Wgmma  # type: ignore[return-value]  # `variant` has made a record of the class


def _split(tiling: WgmmaTiling) -> KernelVariant:
    """A tiling as a variant that splits k: split_k.py has the other half."""

    def accepts(region: RegionSpec) -> Checks:
        yield _summed(tiling, region)

    return gemm_split.split(
        "gemm_wgmma", (tiling,), (tiling.m, tiling.n), lambda region: k_tile(problem.read(region)[0].dtype),
        partial(wgmma_cost.best_split, tiling), partial(gemm_launch, tiling), accepts, needs=("sm_90a",), family=family,
    )  # fmt: skip


def launch(
    tiling: WgmmaTiling,
    device: DeviceSpec,
    operands: Operands,
    results: Results,
    sizes: Sequence[int],
    tiles: int,
    name: str = "gemm_wgmma",
) -> Launch:
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
    tiling: WgmmaTiling, region: RegionSpec, device: DeviceSpec, split: KSplit | None = None
) -> Launch:
    """Of a whole product whose operands are read from shared memory, or of splits of k."""
    p, _ = problem.read(region)
    both = operands_of(region)
    assert not isinstance(both, Reject)
    sizes, tiles = (p.m, p.n, p.k, *p.batch), clusters(tiling, region)
    narrow = narrow_tiles(tiling, region, device) if tiling.narrow_n else 0
    if split is not None:
        results, sizes, tiles = partial_sums(region), (*sizes, split.k), tiles * split.number
    else:
        results = results_of(tiling, region, narrow)
    if tiling.narrow_n:
        sizes = *sizes, narrow
        tiles += narrow // tiling.narrow_group * cdiv(p.m, tiling.m)
    if tiling.stream:
        units = stream_k.pointers(tiling, region, device)
        results = replace(results, operands=(*results.operands[:4], units))
    return launch(tiling, device, from_shared(tiling, *both), results, sizes, tiles)


VARIANTS = *map(_wgmma, (*TILINGS, *MIXED_WIDTHS, *STREAM)), *map(_split, SPLIT)
# Of operands that are split first, by tf32x3.py: whose sums are to be as exact as those of f32.
PROMOTED = {
    str(t): _wgmma(replace(t, promoted=True)) for t in TILINGS if t.can_promote and t.cluster_split == 1
}
