"""How blocks of the small-M kernel for weights of 8 and 4 bits share them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

LOADED = 16  # bytes of a line, that a lane loads at once
LANES = 4  # of a line
EIGHT = 8  # lines of the small operand, that mma has at once


@dataclass(frozen=True)
class CodeTile:
    """bits    of a code
    columns of 8 small lines
    tiles   of 16 lines, that a warp has
    along   warps of a block, which take turns along k
    before  whether weights are scaled before they are multiplied: groups are shorter than a step of a warp
    """

    bits: int
    columns: int
    tiles: int
    along: int
    before: bool

    def __str__(self) -> str:
        return f"{self.bits}_{EIGHT * self.columns}x{16 * self.tiles}x{self.along}{'_before' * self.before}"

    @property
    def chunk(self) -> int:
        """Codes of a lane's load."""
        return LOADED * 8 // self.bits

    @property
    def step(self) -> int:
        """Of k, that a warp takes at once."""
        return LANES * self.chunk

    @property
    def small_loads(self) -> int:
        """Of 8 halves, beside a load of codes."""
        return self.chunk // 8

    @cached_property
    def accumulators(self) -> int:
        return 4 * self.tiles * self.columns

    @property
    def threads(self) -> int:
        return 32 * self.along

    @property
    def few(self) -> int:
        return EIGHT * self.columns

    @property
    def mn_extent(self) -> int:
        """Lines of a block."""
        return 16 * self.tiles

    @property
    def tile_k(self) -> int:
        """Of k, that a block takes in one step."""
        return self.step * self.along

    @property
    def resident(self) -> int:
        """Blocks on a multiprocessor, that registers are limited for."""
        return 1 if self.columns > 1 or self.along > 8 else 2
