"""Variants for matrix products in exact f32 on Hopper's CUDA cores: TMA, a ring of K-tiles, 128 accumulators to a thread.

Epilogues and results are those of problem.py, descriptors of operands those of operands/tma.py: rows, K-major or MN-major, begin at multiples of
16 bytes.
"""

from __future__ import annotations

from dataclasses import replace

from ...device.spec import DeviceSpec
from ...registry.checks import first_failure
from ...registry.variant import (
    Checks,
    In,
    Launch,
    NumericClass,
    Reject,
    TensorMap,
    at_least,
    at_most,
    cdiv,
    variant,
)
from ...rows import RegionSpec
from ...rows.by_form import by_form
from ...types import f32
from . import numerics, problem
from .operands.tma import TmaOperand, operands_of
from .schedule import split_k
from .tilings import RUN, WARP_TILE, FmaTiling, Order
from .wgmma import EXTENT

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
    return _unfit(region) or first_failure(_checks(region))


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
    made = operands_of(region, either=True)
    yield made if isinstance(made, Reject) else None


SQUARE = FmaTiling(128, 128, 32, 2)
SHARED_K = FmaTiling(64, 128, 16, 1, raws=2, warp_groups=4)
SMALL = FmaTiling(64, 64, 16, 2, warp_groups=4)
TILINGS = SQUARE, SHARED_K, SMALL, replace(SQUARE, split=True), replace(SQUARE, parts=True)


@variant(
    "gemm", id="cuda.gemm_fma.v1", configs=TILINGS, takes=lambda tile: tile.takes, needs=("sm_90a",), shared=lambda tile: tile.shared,
    family=family,
)  # fmt: skip
class Fma:
    """A block of a warp for each 64 x 64 of its m x n tile, K-tiles loaded by TMA; with `sliced4` four times as many, that share k.

    Parallel over tiles, splits of k and, within a block, slices of k; a thread has 16 x 8 accumulators in registers. 2MNK flops, edges
    padded to whole tiles; with `parts` k is summed in parts, one after another, as `split` sums them side by side. Bytes: both operands once per tile that uses them; with splits, 4 MN for each of them, written and read. Limit:
    the f32 rate.
    """

    cost, least, workspace = split_k.cost, split_k.least, split_k.tile_workspace

    def accepts(region: RegionSpec, tile: FmaTiling) -> Checks:
        if region.one_sum and tile.warp_groups > 1:
            yield Reject("strict", split_k.STRICT)
        if tile.split:
            yield from split_k.checks(region, tile.step, (tile.m, tile.n))
        if tile.parts:
            yield from split_k.fixed_checks(region)

    def numerics(region: RegionSpec, device: DeviceSpec, tile: FmaTiling) -> NumericClass | Reject:
        return numerics.simt(region, tile)

    def build(region: RegionSpec, device: DeviceSpec, tile: FmaTiling) -> list[Launch]:
        split = split_k.best(region, device, tile)[1]
        return split_k.launches(region, device, launch(tile, region, split), tile.m, split)


def launch(tile: FmaTiling, region: RegionSpec, split: split_k.KSplit | None = None) -> Launch:
    """Of the whole product, or of splits of k."""
    from .fma_body import fma

    both = operands_of(region, either=True)
    assert not isinstance(both, Reject)
    a, b = both
    finish, (_, _, operands, sizes, *_, scales) = split_k.parts(
        region, RUN, tile.m, split, in_parts=tile.parts
    )
    (tiles,) = problem.grid(problem.read(region)[0], tile.m, tile.n)
    maps = k_tile_map(a, tile.m, tile.step), k_tile_map(b, tile.n, tile.step)
    body = fma(tile, Order(a.k_major, a.axes), Order(b.k_major, b.axes), finish)
    grid = (tiles * (split.number if split else 1),)
    return Launch(body, grid, (tile.threads,), (maps, operands, sizes, scales), tile.shared)
