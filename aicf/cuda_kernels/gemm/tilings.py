"""Tiles of matrix products on CUDA cores and by mma.sync: how a block divides its work, and what tiles of CUDA cores cost."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ...device.calibration import family
from ...device.spec import DeviceSpec, constants
from ...registry.cost import Cost, machine, one_launch, roofline
from ...registry.variant import cdiv
from ...rows import RegionSpec
from ...rows.program import Gemm
from ...types import DType, Precision, f32
from . import column_sums, problem
from .problem import Sizes, grid
from .schedule.parts import by_k


@dataclass(frozen=True)
class TileConstants:
    """Constants that all tiles have, whatever multiplies.

    memory_efficiency  of the bandwidth, that operands are loaded at
    store_us, loaded_us, flop_us  microseconds of a multiprocessor for an element of the result: to store it, to load one of another
        matrix, and for each flop of the map
    ragged  times store_us, of results that can't be stored in pairs
    """

    memory_efficiency: float = 0.8
    store_us: float = 1.6e-4
    loaded_us: float = 5e-4
    flop_us: float = 1.8e-5
    ragged: float = 1.8


@family("gemm.simt")
@dataclass(frozen=True)
class SimtConstants(TileConstants):
    """Constants of tiles on CUDA cores, measured on an H200.

    efficiency  of the f32 rate, by tile, that the inner loop reaches with the chip full
    step_us  between K-tiles: barriers, and the next one on its way to shared memory
    naive_load_us  a step of the naive kernel along k
    sum_step_us  of the second launch of split k, for each split
    """

    efficiency: Mapping[str, float] = field(
        default_factory=lambda: {"32x32": 0.235, "64x64": 0.48, "128x128": 0.645}
    )
    step_us: float = 0.2
    naive_load_us: float = 0.08
    sum_step_us: float = 0.07


@family("gemm.fma")
@dataclass(frozen=True)
class FmaConstants:
    """Constants of Hopper's tiles on CUDA cores, whose other constants are those of SimtConstants.

    efficiency  of the f32 rate, by tile
    start_us  until the first K-tile is there
    alone  of a block's arithmetic, that it waits where no other block of its multiprocessor goes on meanwhile
    group_sum_us  for sums of warp groups to be added up in shared memory
    """

    efficiency: Mapping[str, float] = field(
        default_factory=lambda: {"128x128": 0.77, "64x128_sliced4": 0.72, "64x64_sliced4": 0.58}
    )
    start_us: float = 1.5
    alone: float = 0.1
    group_sum_us: float = 1.0


def simt(device: DeviceSpec) -> SimtConstants:
    return constants(SimtConstants, device)


@dataclass(frozen=True)
class SimtTile:
    """What a block computes, and how fast.

    step           along k, for which a K-tile of both operands is in shared memory; the next one is on its way meanwhile
    blocks_per_sm  that registers and shared memory are limited for
    split          whether k is split among blocks: see schedule/split_k.py
    parts          whether a block adds up the same parts of k one after another: see part_sums.py
    """

    m: int
    n: int
    step: int
    blocks_per_sm: int
    split: bool = False
    parts: bool = False

    def __str__(self) -> str:
        return self.shape + "_split" * self.split + "_parts" * self.parts

    @property
    def shape(self) -> str:
        """The tile's name, however k is divided."""
        return f"{self.m}x{self.n}"

    @property
    def takes(self) -> tuple[str, ...]:
        return problem.TAKES if self.split or self.parts else problem.TAKES_SUMS

    def cost(self, region: RegionSpec, device: DeviceSpec) -> Cost:
        gemm, _ = problem.read(region)
        finish = finish_us(simt(device), region, self.m * self.n)
        if self.parts:
            finish += (by_k(gemm.k).number - 1) * self.part_us(device)
        cost = self.product_cost(problem.sizes_of(gemm), region.nbytes, device, gemm.flops, finish)
        return column_sums.with_sums(cost, region, self.m, device)

    def least(self, region: RegionSpec, device: DeviceSpec) -> float:
        """Of `cost`: a launch, and the arithmetic of whole tiles, or one K-tile after the other and results."""
        if not (k := problem.k_of(region)):
            return one_launch(region, device)
        waited = self.waited_us(k, finish_us(simt(device), region, self.m * self.n), device)
        return one_launch(region, device) + max(waited, self.even_us(problem.read(region)[0], device))

    def part_us(self, device: DeviceSpec) -> float:
        """To add a part to those before it: sums of the tile are read from the cache and written there."""
        moved = 2.0 * self.m * self.n * f32.itemsize
        return machine(device).cache_trip_us + moved / machine(device).l2_per_sm * 1e-3

    def waited_us(self, k: int, finish: float, device: DeviceSpec) -> float:
        """Of one block alone, whose arithmetic takes no time."""
        return cdiv(k, self.step) * simt(device).step_us + finish

    def reached(self, device: DeviceSpec) -> float:
        """Of the f32 rate."""
        return simt(device).efficiency[self.shape]

    def even_us(self, gemm: Gemm | Sizes, device: DeviceSpec) -> float:
        """Of whole tiles, with every multiprocessor as busy as the others; 0 where there is no such unit."""
        speed = device.tflops.get("f32", 0.0) * self.reached(device) * 1e6
        return 2.0 * grid(gemm, self.m, self.n)[0] * self.m * self.n * gemm.k / speed if speed else 0.0

    def product_cost(
        self, gemm: Sizes, nbytes: float, device: DeviceSpec, useful: float, finish: float
    ) -> Cost:
        """Whole tiles of flops; operands once from memory and once per tile from the cache. nbytes: through device memory; useful: flops that
        are no padding; finish: of a block's results."""
        (blocks,) = grid(gemm, self.m, self.n)
        speed = device.tflops.get("f32", 0.0) * self.reached(device) * 1e6 / device.sms
        # rows and columns of operands, once for each tile
        reads = gemm.count * (cdiv(gemm.n, self.n) * gemm.m + cdiv(gemm.m, self.m) * gemm.n)
        return roofline(
            device, bytes=nbytes, flops=2.0 * blocks * self.m * self.n * gemm.k, useful=useful, efficiency=self.reached(device),
            memory_efficiency=simt(device).memory_efficiency, blocks=blocks, blocks_per_sm=self.blocks_per_sm,
            cached=float(reads * gemm.k * gemm.dtype.itemsize), **self.waits(gemm, speed, finish, device),
        )  # fmt: skip

    def waits(self, gemm: Sizes, speed: float, finish: float, device: DeviceSpec) -> dict[str, Any]:
        """Terms of one block, of so many flops a microsecond. A K-tile that arrives later than the arithmetic of the one before it is done is
        waited for, unless other blocks of the multiprocessor have work."""
        k_bytes = (self.m + self.n) * gemm.dtype.itemsize  # bytes for each of k
        multiply = 2.0 * self.m * self.n * self.step / speed if speed else 0.0
        arrive = machine(device).cache_trip_us + k_bytes * self.step / machine(device).l2_per_sm * 1e-3
        steps = cdiv(max(1, gemm.k), self.step)
        return {"chain": steps * (simt(device).step_us + max(0.0, arrive - multiply)), "finish": finish}


def finish_us(c: TileConstants, region: RegionSpec, elements: int) -> float:
    """Of a multiprocessor, for so many results of its, one at a time or in pairs."""
    f = problem.epilogue_statistics(region)
    each = c.store_us * (1.0 if problem.in_runs(region, 2) else c.ragged)
    return elements * (each * f.stores + c.loaded_us * f.matrices + c.flop_us * f.flops)


@dataclass(frozen=True)
class OperandLoad:
    """How K-tiles of an operand are loaded: which index neighbouring threads walk, m or n, or k: the contiguous one; and
    how many neighbours one load takes."""

    mn_major: bool
    width: int = 1


# --- Hopper's CUDA cores -----------------------------------------------------------------------------------------------

WARP_TILE = 64  # rows and columns of a warp's tile: 16 x 8 for each thread
RUN = 4  # neighbouring columns of a thread
PAD = 32
NOTES = 8  # words: where a block works
SLACK = 1024  # to begin at a multiple of 1024


@dataclass(frozen=True)
class FmaTiling(SimtTile):
    """A tile for a block, 64 x 64 of it for each of its warps, in K-tiles `step` deep.

    raws    K-major stages, that a warp group has in shared memory beside two MN-major ones
    warp_groups  that each have the whole tile and every so many slices of k (sliced-K)
    """

    raws: int = 1
    warp_groups: int = 1

    @property
    def shape(self) -> str:
        return f"{self.m}x{self.n}" + f"_sliced{self.warp_groups}" * (self.warp_groups > 1)

    def reached(self, device: DeviceSpec) -> float:
        """Of the f32 rate."""
        return constants(FmaConstants, device).efficiency[self.shape]

    def waited_us(self, k: int, finish: float, device: DeviceSpec) -> float:
        """K-tiles are there in time."""
        return constants(FmaConstants, device).start_us

    def waits(self, gemm: Sizes, speed: float, finish: float, device: DeviceSpec) -> dict[str, Any]:
        """K-tiles are there in time."""
        multiply = 2.0 * self.m * self.n * gemm.k / speed if speed else 0.0
        chain = constants(FmaConstants, device).start_us + constants(
            FmaConstants, device
        ).alone * multiply * (self.blocks_per_sm > 1 and self.warp_groups == 1)
        return {
            "chain": chain,
            "finish": finish + constants(FmaConstants, device).group_sum_us * (self.warp_groups > 1),
            "in_step": True,
        }

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
        """That are loaded for a K-tile."""
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


# --- mma.sync ----------------------------------------------------------------------------------------------------------

ALIGNED = 128  # bytes: shared memory begins at a multiple, which it is asked more of for


@dataclass(frozen=True)
class MmaTiling:
    """A block of warps_m x warps_n warps computes an m x n tile.

    tile_k  extent of a K-tile
    stages  K-tiles in shared memory, all but one of them on their way
    blocks  for each multiprocessor: registers are limited for them
    precision  exact: of half types; else of f32
    word    that tells it from another of the same tile
    turing  for sm_75: m16n8k8 of f16 alone, and K-tiles that pass through registers, for want of cp.async
    """

    m: int
    n: int
    warps_m: int
    warps_n: int
    tile_k: int
    stages: int
    blocks: int
    precision: Precision = Precision.exact
    word: str = ""
    turing: bool = False

    def __str__(self) -> str:
        precision = "" if self.precision is Precision.exact else self.precision.name
        return "_".join(filter(None, (f"{self.m}x{self.n}", precision, self.word, "turing" * self.turing)))

    def kind(self, dtype: DType) -> str:
        """Of product, of a and b of this type: see `ptx.multiply_steps`."""
        if self.turing:
            return f"{dtype.name}k8"
        return dtype.name if self.precision is Precision.exact else self.precision.name

    @property
    def itemsize(self) -> int:
        return 2 if self.precision is Precision.exact else 4

    @property
    def threads(self) -> int:
        return 32 * self.warps_m * self.warps_n

    @property
    def accumulators(self) -> int:
        """Of a thread."""
        return self.m * self.n // self.threads

    @property
    def shared(self) -> int:
        return ALIGNED + self.stages * (self.m + self.n) * self.tile_k * self.itemsize

    def resident(self, device: DeviceSpec) -> int:
        """Blocks on a multiprocessor, which from sm_80 on has 1 KB more than a block may have; each block takes 1 KB of its own."""
        system = 1024 if device.arch >= (8, 0) else 0
        return max(1, min(self.blocks, (device.shared_per_block + system) // (self.shared + system)))
