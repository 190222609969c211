"""Variants for matrix products in exact f32 on Hopper's CUDA cores: TMA, a ring of K-tiles, 128 accumulators to a thread.

Epilogues and results are those of simt.py, descriptors of operands those of wgmma.py: rows, K-major or MN-major, begin at multiples of
16 bytes.
"""

from __future__ import annotations

from dataclasses import dataclass

from ...device.spec import DeviceSpec
from ...registry.cost import Cost, one_launch, roofline
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
from . import column_sums
from . import simt as gemm
from . import split_k as gemm_split
from . import wgmma as gemm_wgmma
from .simt import Sizes
from .wgmma import EXTENT, Operand

WARP_TILE = 64  # rows and columns of a warp's tile: 16 x 8 for each thread
RUN = 4  # neighbouring columns of a thread
PAD = 32
NOTES = 8  # words: where a block works
SLACK = 1024  # to begin at a multiple of 1024
# What follows was measured on an H200, and so were tilings' efficiencies.
START_US = 1.5  # until the first K-tile is there
ALONE = (
    0.1  # of a block's arithmetic, that it waits where no other block of its multiprocessor goes on meanwhile
)
GROUP_SUM_US = 1.0  # for sums of warp groups to be added up in shared memory


@dataclass(frozen=True)
class Tiling(gemm.Tile):
    """A tile for a block, 64 x 64 of it for each of its warps, in K-tiles `step` deep.

    raws    K-major stages, that a warp group has in shared memory beside two MN-major ones
    warp_groups  that each have the whole tile and every so many slices of k (sliced-K)
    """

    raws: int = 1
    warp_groups: int = 1

    def __str__(self) -> str:
        return f"{self.m}x{self.n}" + f"_sliced{self.warp_groups}" * (self.warp_groups > 1)

    def least(self, region: RegionSpec, device: DeviceSpec) -> float:
        """Of `cost`: a launch, and the arithmetic of whole tiles."""
        even = self.even_us(gemm.problem(region)[0], device) if gemm.k_of(region) else 0.0
        return one_launch(region, device) + max(START_US, even)

    def product_cost(
        self, gemm_: Sizes, nbytes: float, device: DeviceSpec, useful: float, finish: float
    ) -> Cost:
        """As a Tile's; but K-tiles are there in time."""
        (blocks,) = gemm.grid(gemm_, self.m, self.n)
        speed = device.tflops.get(self.rate, 0.0) * self.efficiency * 1e6 / device.sms
        multiply = 2.0 * self.m * self.n * gemm_.k / speed if speed else 0.0
        reads = gemm_.count * (cdiv(gemm_.n, self.n) * gemm_.m + cdiv(gemm_.m, self.m) * gemm_.n)
        return roofline(
            device, bytes=nbytes, flops=2.0 * blocks * self.m * self.n * gemm_.k, useful=useful, efficiency=self.efficiency,
            memory_efficiency=gemm.MEMORY_EFFICIENCY, blocks=blocks, blocks_per_sm=self.blocks_per_sm,
            cached=float(reads * gemm_.k * f32.itemsize), finish=finish + GROUP_SUM_US * (self.warp_groups > 1), in_step=True,
            chain=START_US + ALONE * multiply * (self.blocks_per_sm > 1 and self.warp_groups == 1),
        )  # fmt: skip

    @property
    def warps_m(self) -> int:
        return self.m // WARP_TILE

    @property
    def warps_n(self) -> int:
        return self.n // WARP_TILE

    @property
    def warps_threads(self) -> int:
        """Threads of a warp group."""
        return 32 * self.warps_m * self.warps_n

    @property
    def threads(self) -> int:
        return self.warps_threads * self.warp_groups

    @property
    def stages(self) -> int:
        return 2 + self.raws

    @property
    def ahead(self) -> int:
        """K-tiles that are loaded before the first is multiplied."""
        return 1 + self.raws

    @property
    def stage_bytes(self) -> int:
        """That come for a K-tile."""
        return (self.m + self.n) * self.step * f32.itemsize

    def transposed_bytes(self, tile_mn: int) -> int:
        """Of a K-tile of such an extent that was transposed: each k has a row, and PAD bytes, so that four k lie in banks of their own."""
        return cdiv(self.step * (tile_mn * f32.itemsize + PAD), 1024) * 1024

    def ring_bytes(self, tile_mn: int) -> int:
        """Of the stages of an operand: two for transposed K-tiles, and others."""
        return 2 * self.transposed_bytes(tile_mn) + self.raws * self.step * tile_mn * f32.itemsize

    @property
    def warp_group_bytes(self) -> int:
        return self.ring_bytes(self.m) + self.ring_bytes(self.n)

    # shared memory: for each warp group stages of a, then of b, from the first multiple of 1024 on; barriers: full, empty, transposed; notes at the end

    @property
    def barriers_at(self) -> int:
        return self.warp_groups * self.warp_group_bytes

    @property
    def notes_at(self) -> int:
        """In words, from where shared memory begins."""
        return (SLACK + self.barriers_at + 24 * self.warp_groups * self.stages) // 4

    @property
    def shared(self) -> int:
        return 4 * (self.notes_at + NOTES)


@dataclass(frozen=True)
class Order:
    """How an operand lies.

    k_major  otherwise MN-major
    axes    of the batch, that it has a matrix for each index of
    """

    k_major: bool
    axes: tuple[int, ...]

    def __str__(self) -> str:
        return ("k" if self.k_major else "l") + "".join(map(str, self.axes))


def k_tile_map(operand: Operand, tile_mn: int, step: int) -> TensorMap:
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
    yield gemm.refusal(region)
    yield from gemm.lean(region)
    p, _ = gemm.problem(region)
    yield at_least("least extent", min(p.m, p.n, p.k), 1)
    yield at_most("greatest extent", max(p.m, p.n, p.k), EXTENT)
    yield at_most("tiles of 64 x 64", p.count * cdiv(p.m, WARP_TILE) * cdiv(p.n, WARP_TILE), EXTENT)
    made = gemm_wgmma.operands(region, either=True)
    yield made if isinstance(made, Reject) else None


def _fma(tiling: Tiling) -> KernelVariant:
    """A tiling as a variant."""
    m, warp_groups = tiling.m, tiling.warp_groups

    @variant(
        "gemm", id=f"cuda.gemm_fma_{tiling}.v1", takes=gemm.TAKES_SUMS, needs=("sm_90a",), shared=tiling.shared, family=family
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


def _split(tiling: Tiling) -> KernelVariant:
    """A tiling as a variant that splits k: split_k.py has the other half."""

    def first(region: RegionSpec, device: DeviceSpec, split: gemm_split.KSplit) -> Launch:
        return _launch(tiling, region, split)

    return gemm_split.split_tile(
        f"gemm_fma_{tiling}", tiling, first, needs=("sm_90a",), shared=tiling.shared, family=family
    )


def _launch(tiling: Tiling, region: RegionSpec, split: gemm_split.KSplit | None = None) -> Launch:
    """Of the whole product, or of splits of k."""
    from .fma_body import fma

    p, _ = gemm.problem(region)
    both = gemm_wgmma.operands(region, either=True)
    assert not isinstance(both, Reject)
    a, b = both
    _, _, operands, sizes, *_, scales = gemm.arguments(region, tiling.m)
    (tiles,) = gemm.grid(p, tiling.m, tiling.n)
    if split is None:
        finish = gemm.epilogue(region, RUN, tiling.m)
    else:
        finish, tiles = gemm_split.raw(region, RUN), tiles * split.number
        operands, sizes, scales = gemm_split.PARTIAL, (*sizes, Num(split.k, i32)), gemm_split.UNSCALED
    maps = k_tile_map(a, tiling.m, tiling.step), k_tile_map(b, tiling.n, tiling.step)
    body = fma(tiling, Order(a.k_major, a.axes), Order(b.k_major, b.axes), finish)
    return Launch(body, (tiles,), (tiling.threads,), (maps, operands, sizes, scales), tiling.shared)


SQUARE = Tiling(128, 128, 32, 0.77, 2)
SHARED_K = Tiling(64, 128, 16, 0.72, 1, raws=2, warp_groups=4)
SMALL = Tiling(64, 64, 16, 0.58, 2, warp_groups=4)
TILINGS = SQUARE, SHARED_K, SMALL
gemm_fma_128x128, gemm_fma_128x128_split = _fma(SQUARE), _split(SQUARE)
gemm_fma_64x128_sliced4, gemm_fma_64x64_sliced4 = _fma(SHARED_K), _fma(SMALL)
