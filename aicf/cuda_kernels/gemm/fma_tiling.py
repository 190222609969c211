"""How the exact f32 matrix products of Hopper divide their work, and what is where in shared memory."""

from __future__ import annotations

from dataclasses import dataclass

from ...device.spec import DeviceSpec
from ...registry.cost import Cost, roofline
from ...registry.variant import cdiv
from ...types import f32
from . import problem
from .problem import Sizes
from .tile_cost import MEMORY_EFFICIENCY, SimtTile

WARP_TILE = 64  # rows and columns of a warp's tile: 16 x 8 for each thread
RUN = 4  # neighbouring columns of a thread
PAD = 32
NOTES = 8  # words: where a block works
SLACK = 1024  # to begin at a multiple of 1024
START_US = 1.5  # until the first K-tile is there
ALONE = (
    0.1  # of a block's arithmetic, that it waits where no other block of its multiprocessor goes on meanwhile
)
GROUP_SUM_US = 1.0  # for sums of warp groups to be added up in shared memory


@dataclass(frozen=True)
class FmaTiling(SimtTile):
    """A tile for a block, 64 x 64 of it for each of its warps, in K-tiles `step` deep.

    raws    K-major stages, that a warp group has in shared memory beside two MN-major ones
    warp_groups  that each have the whole tile and every so many slices of k (sliced-K)
    """

    raws: int = 1
    warp_groups: int = 1

    def __str__(self) -> str:
        return (
            f"{self.m}x{self.n}"
            + f"_sliced{self.warp_groups}" * (self.warp_groups > 1)
            + "_split" * self.split
        )

    def waited_us(self, k: int, finish: float) -> float:
        """K-tiles are there in time."""
        return START_US

    def product_cost(
        self, gemm_: Sizes, nbytes: float, device: DeviceSpec, useful: float, finish: float
    ) -> Cost:
        """As a Tile's; but K-tiles are there in time."""
        (blocks,) = problem.grid(gemm_, self.m, self.n)
        speed = device.tflops.get(self.rate, 0.0) * self.efficiency * 1e6 / device.sms
        multiply = 2.0 * self.m * self.n * gemm_.k / speed if speed else 0.0
        reads = gemm_.count * (cdiv(gemm_.n, self.n) * gemm_.m + cdiv(gemm_.m, self.m) * gemm_.n)
        return roofline(
            device, bytes=nbytes, flops=2.0 * blocks * self.m * self.n * gemm_.k, useful=useful, efficiency=self.efficiency,
            memory_efficiency=MEMORY_EFFICIENCY, blocks=blocks, blocks_per_sm=self.blocks_per_sm,
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
