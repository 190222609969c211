"""Variants for matrix products in exact f32 on Hopper's CUDA cores: TMA, a ring of K-tiles, 128 accumulators to a thread.

Epilogues and results are those of problem.py, descriptors of operands those of wgmma.py: rows, K-major or MN-major, begin at multiples of
16 bytes.
"""

from __future__ import annotations

from ...device.spec import DeviceSpec
from ...registry.cost import Cost
from ...registry.variant import (
    Checks,
    In,
    KernelVariant,
    Launch,
    Num,
    Reject,
    TensorMap,
    at_least,
    at_most,
    cdiv,
    variant,
)
from ...rows import RegionSpec
from ...rows.by_form import by_form
from ...types import f32, i32
from . import column_sums, problem
from . import split_k as gemm_split
from . import wgmma as gemm_wgmma
from .fma_tiling import RUN, WARP_TILE, FmaTiling, Order
from .wgmma import EXTENT, TmaOperand

# What follows was measured on an H200, and so were tilings' efficiencies.


def k_tile_map(operand: TmaOperand, tile_mn: int, step: int) -> TensorMap:
    """Of `tile_mn` x `step` of k."""
    box = (step, tile_mn) if operand.k_major else (tile_mn, step)
    extents = operand.extents + tuple(extent for extent, _ in operand.batch)
    pitches = operand.pitch, *(pitch for _, pitch in operand.batch)
    swizzle, ones = step * f32.itemsize if operand.k_major else 0, (1,) * len(operand.batch)
    return TensorMap(In(operand.index), f32, extents, pitches, box + ones, swizzle)


def family(region: RegionSpec) -> Reject | None:
    """Every tiling takes f32, in rows that the accelerator can copy."""
    return _unfit(region) or next((reject for reject in _checks(region) if reject is not None), None)


@by_form
def _unfit(region: RegionSpec) -> Reject | None:
    factors = {region.tensors[i].dtype for i in region.anchor.inputs[:2]}
    if factors != {f32}:
        return Reject(
            "dtype", f"the product is in {' and '.join(sorted(t.name for t in factors))}, needs f32"
        )
    return None


def _checks(region: RegionSpec) -> Checks:
    yield problem.refusal(region)
    yield from problem.lean(region)
    p, _ = problem.read(region)
    yield at_least("least extent", min(p.m, p.n, p.k), 1)
    yield at_most("greatest extent", max(p.m, p.n, p.k), EXTENT)
    yield at_most("tiles of 64 x 64", p.count * cdiv(p.m, WARP_TILE) * cdiv(p.n, WARP_TILE), EXTENT)
    made = gemm_wgmma.operands(region, either=True)
    yield made if isinstance(made, Reject) else None


def _fma(tiling: FmaTiling) -> KernelVariant:
    """A tiling as a variant."""
    m, warp_groups = tiling.m, tiling.warp_groups

    @variant(
        "gemm", id="cuda.gemm_fma.v1", config=(tiling,), takes=problem.TAKES_SUMS, needs=("sm_90a",), shared=tiling.shared, family=family
    )  # fmt: skip
    class Fma:
        __doc__ = f"""A block of {tiling.threads} threads per {m} x {tiling.n} tile, {tiling.step} deep K-tiles loaded by TMA.

        Parallel over tiles{" and, within a block, slices of k" * (warp_groups > 1)}; a thread has 16 x 8 accumulators in registers. 2MNK flops, edges padded to whole tiles.
        Bytes: both operands once per tile that uses them. Limit: the f32 rate.
        """

        def accepts(region: RegionSpec) -> Checks:
            if region.strict and warp_groups > 1:
                yield Reject("strict", gemm_split.STRICT)

        def least(region: RegionSpec, device: DeviceSpec) -> float:
            return tiling.least(region, device)

        def cost(region: RegionSpec, device: DeviceSpec) -> Cost:
            return tiling.cost(region, device)

        def workspace(region: RegionSpec, device: DeviceSpec) -> int:
            return column_sums.workspace(region, m)

        def build(region: RegionSpec, device: DeviceSpec) -> list[Launch]:
            return [_launch(tiling, region), *column_sums.launches(region, m, device)]

    return Fma  # type: ignore[return-value]  # `variant` has made a record of the class


def _split(tiling: FmaTiling) -> KernelVariant:
    """A tiling as a variant that splits k: split_k.py has the other half."""

    def first(region: RegionSpec, device: DeviceSpec, split: gemm_split.KSplit) -> Launch:
        return _launch(tiling, region, split)

    return gemm_split.split_tile(
        "gemm_fma", (tiling,), tiling, first, needs=("sm_90a",), shared=tiling.shared, family=family
    )


def _launch(tiling: FmaTiling, region: RegionSpec, split: gemm_split.KSplit | None = None) -> Launch:
    """Of the whole product, or of splits of k."""
    from .fma_body import fma

    p, _ = problem.read(region)
    both = gemm_wgmma.operands(region, either=True)
    assert not isinstance(both, Reject)
    a, b = both
    _, _, operands, sizes, *_, scales = problem.arguments(region, tiling.m)
    (tiles,) = problem.grid(p, tiling.m, tiling.n)
    if split is None:
        finish = problem.epilogue(region, RUN, tiling.m)
    else:
        finish, tiles = gemm_split.raw(region, RUN), tiles * split.number
        operands, sizes, scales = gemm_split.PARTIAL, (*sizes, Num(split.k, i32)), gemm_split.UNSCALED
    maps = k_tile_map(a, tiling.m, tiling.step), k_tile_map(b, tiling.n, tiling.step)
    body = fma(tiling, Order(a.k_major, a.axes), Order(b.k_major, b.axes), finish)
    return Launch(body, (tiles,), (tiling.threads,), (maps, operands, sizes, scales), tiling.shared)


SQUARE = FmaTiling(128, 128, 32, 0.77, 2)
SHARED_K = FmaTiling(64, 128, 16, 0.72, 1, raws=2, warp_groups=4)
SMALL = FmaTiling(64, 64, 16, 0.58, 2, warp_groups=4)
TILINGS = SQUARE, SHARED_K, SMALL
VARIANTS = *map(_fma, TILINGS), _split(SQUARE)
