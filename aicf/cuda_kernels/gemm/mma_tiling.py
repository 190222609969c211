"""How matrix products by mma.sync divide their work."""

from __future__ import annotations

from dataclasses import dataclass

from ...device.spec import DeviceSpec
from ...types import DType, Precision

ALIGNED = 128  # bytes: shared memory begins at a multiple, which it is asked more of for


@dataclass(frozen=True)
class MmaTiling:
    """A block of warps_m x warps_n warps computes an m x n tile.

    tile_k  extent of a K-tile
    stages  K-tiles in shared memory, all but one of them on their way
    blocks  for each multiprocessor: registers are limited for them
    precision  exact: of half types; else of f32
    word    that tells it from another of the same tile
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

    def __str__(self) -> str:
        precision = "" if self.precision is Precision.exact else self.precision.name
        return "_".join(filter(None, (f"{self.m}x{self.n}", precision, self.word)))

    def kind(self, dtype: DType) -> str:
        """Of product, of a and b of this type: see `ptx.multiply_steps`."""
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
        """Blocks on a multiprocessor, which has 1 KB more than a block may have; each block takes 1 KB of its own."""
        return max(1, min(self.blocks, (device.shared_per_block + 1024) // (self.shared + 1024)))
