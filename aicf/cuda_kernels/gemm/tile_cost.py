"""What tiles of matrix products on CUDA cores cost, with every multiprocessor busy or few of them."""

from __future__ import annotations

from dataclasses import dataclass

from ...device.spec import DeviceSpec
from ...registry.cost import CACHE_TRIP_US, L2_PER_SM, Cost, one_launch, roofline
from ...registry.variant import cdiv
from ...rows import RegionSpec
from ...rows.program import Gemm
from . import column_sums, problem
from .problem import Sizes, grid

# What follows was measured on an H200, and so were tiles' efficiencies.
MEMORY_EFFICIENCY = 0.8  # of the bandwidth, that operands are loaded at
# Of a multiprocessor, for an element of the result, one at a time or in pairs: to store it, to load one of another matrix, and
# for each flop of the map. Two thirds of the stores' is where they go.
STORE_US, LOADED_US, FLOP_US = 1.6e-4, 5e-4, 1.8e-5
STEP_US = 0.2  # between K-tiles: barriers, and the next one on its way to shared memory


@dataclass(frozen=True)
class SimtTile:
    """What a block computes, and how fast.

    step           along k, for which a K-tile of both operands is in shared memory; the next one is on its way meanwhile
    efficiency     of the rate, that the inner loop reaches with the chip full
    blocks_per_sm  that registers and shared memory are limited for
    split          whether k is split among blocks: see schedule/split_k.py
    """

    m: int
    n: int
    step: int
    efficiency: float
    blocks_per_sm: int
    rate: str = "f32"
    split: bool = False

    def __str__(self) -> str:
        return f"{self.m}x{self.n}" + "_split" * self.split

    @property
    def takes(self) -> tuple[str, ...]:
        return problem.TAKES if self.split else problem.TAKES_SUMS

    def cost(self, region: RegionSpec, device: DeviceSpec) -> Cost:
        gemm, _ = problem.read(region)
        finish = finish_us(region, self.m * self.n)
        cost = self.product_cost(problem.sizes_of(gemm), region.nbytes, device, gemm.flops, finish)
        return column_sums.with_sums(cost, region, self.m, device)

    def least(self, region: RegionSpec, device: DeviceSpec) -> float:
        """Of `cost`: a launch, and the arithmetic of whole tiles, or one K-tile after the other and results."""
        if not (k := problem.k_of(region)):
            return one_launch(region, device)
        waited = self.waited_us(k, finish_us(region, self.m * self.n))
        return one_launch(region, device) + max(waited, self.even_us(problem.read(region)[0], device))

    def waited_us(self, k: int, finish: float) -> float:
        """Of one block alone, whose arithmetic takes no time."""
        return cdiv(k, self.step) * STEP_US + finish

    def even_us(self, gemm: Gemm | Sizes, device: DeviceSpec) -> float:
        """Of whole tiles, with every multiprocessor as busy as the others; 0 where there is no such unit."""
        speed = device.tflops.get(self.rate, 0.0) * self.efficiency * 1e6
        return 2.0 * grid(gemm, self.m, self.n)[0] * self.m * self.n * gemm.k / speed if speed else 0.0

    def product_cost(
        self, gemm: Sizes, nbytes: float, device: DeviceSpec, useful: float, finish: float
    ) -> Cost:
        """Whole tiles of flops; operands once from memory and once per tile from the cache; a barrier per step.

        A K-tile that arrives later than the arithmetic of the one before it is done is waited for, unless other blocks of
        the multiprocessor have work. nbytes: through device memory; useful: flops that are no padding.
        """
        (blocks,) = grid(gemm, self.m, self.n)
        padded, k_extent = 2.0 * blocks * self.m * self.n * gemm.k, max(1, gemm.k)
        k_bytes = (self.m + self.n) * gemm.dtype.itemsize  # bytes for each of k
        speed = device.tflops.get(self.rate, 0.0) * self.efficiency * 1e6 / device.sms
        # rows and columns of operands, once for each tile
        reads = gemm.count * (cdiv(gemm.n, self.n) * gemm.m + cdiv(gemm.m, self.m) * gemm.n)
        multiply = 2.0 * self.m * self.n * self.step / speed if speed else 0.0
        arrive = CACHE_TRIP_US + k_bytes * self.step / L2_PER_SM * 1e-3
        return roofline(
            device, bytes=nbytes, flops=padded, useful=useful, rate=self.rate, efficiency=self.efficiency,
            memory_efficiency=MEMORY_EFFICIENCY, blocks=blocks, blocks_per_sm=self.blocks_per_sm, cached=float(reads * gemm.k * gemm.dtype.itemsize),
            chain=cdiv(k_extent, self.step) * (STEP_US + max(0.0, arrive - multiply)), finish=finish,
        )  # fmt: skip


def finish_us(region: RegionSpec, elements: int) -> float:
    """Of a multiprocessor, for so many results of its, one at a time or in pairs."""
    f = problem.epilogue_statistics(region)
    return elements * (STORE_US * f.stores + LOADED_US * f.matrices + FLOP_US * f.flops)
