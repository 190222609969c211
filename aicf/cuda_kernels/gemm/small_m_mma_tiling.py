"""How blocks of the small-M kernels on tensor cores share the wide operand."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

FEW = 64
CHUNK = 8  # halves in 16 bytes: what a thread takes of k at once
STEP = 32  # of k, by four threads


@dataclass(frozen=True)
class Warps:
    """How a block's warps share the wide operand.

    few     lines of the small operand, rounded up to 8, 16, 32 or 64
    k_major  threads load 8 neighbours along k of each line; else neighbouring lines, of 8 k one after another
    """

    few: int
    k_major: bool

    def __str__(self) -> str:
        return f"{self.few}_{'k' if self.k_major else 'l'}"

    @cached_property
    def tiles(self) -> int:
        """Of 16 lines, that a warp has."""
        return 4 if not self.k_major and self.few <= 32 else 2

    @cached_property
    def columns(self) -> int:
        """Of 8 lines of the small operand."""
        return self.few // 8

    @cached_property
    def accumulators(self) -> int:
        """Of a thread."""
        return 4 * self.tiles * self.columns

    @cached_property
    def warps(self) -> int:
        return 8 if self.accumulators <= 32 else 4

    @cached_property
    def across(self) -> int:
        """Warps with lines of their own; the others share those and are further along k."""
        return 2 if self.k_major and self.few >= 32 else 1

    @cached_property
    def along(self) -> int:
        return self.warps // self.across

    @cached_property
    def unroll(self) -> int:
        """Steps of a warp whose loads are in flight together."""
        return 2 if self.k_major and self.few <= 16 else 1

    @cached_property
    def width(self) -> int:
        """Neighbours in a load of the wide operand."""
        return CHUNK if self.k_major else 2 * self.tiles

    @cached_property
    def mn_extent(self) -> int:
        """Of a block."""
        return 16 * self.tiles * self.across

    @cached_property
    def tile_k(self) -> int:
        """Of k, that a block takes in one step."""
        return STEP * self.unroll * self.along

    @cached_property
    def threads(self) -> int:
        return 32 * self.warps

    @cached_property
    def resident(self) -> int:
        """Blocks on a multiprocessor, that registers are limited for."""
        return 1 if self.few == 16 else 2
