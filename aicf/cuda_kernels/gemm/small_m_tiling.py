"""How blocks of the small-M kernels on CUDA cores share the wide operand, and how the small one is loaded to shared memory."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from ...registry.variant import cdiv
from ..maps.elementwise import THREADS

FEW = 16  # lines of the small operand that a thread has sums for
WARP = 32
PLACES = (
    8,
    4,
)  # steps along k at once, at most, where lanes walk lines and where they walk k: each load has a place to remember
OWN = 4  # lines of a thread, where lanes walk k
SEGMENT = 64  # bytes of a row that a block reads, where lanes walk lines: what memory gives at once


@dataclass(frozen=True)
class Staging:
    """How the small operand is loaded to shared memory: along k or along its lines, in loads of `width` elements."""

    k_major: bool
    width: int

    def __str__(self) -> str:
        return f"{'k' if self.k_major else 'l'}{self.width}"


@dataclass(frozen=True)
class Share:
    """What each thread of a block has of the wide operand, which it loads in runs of `width` elements.

    few     lines of the small operand, rounded up to a power of two
    k_major  lanes of a warp walk k, and each has OWN lines; else a few lanes walk lines, and the others are further along k
    """

    few: int
    k_major: bool
    width: int
    itemsize: int

    def __str__(self) -> str:
        return f"{self.few}_{'k' if self.k_major else 'l'}{self.width}"

    @cached_property
    def accumulators(self) -> int:
        """Of a thread."""
        return self.few * (OWN if self.k_major else self.width)

    @cached_property
    def threads(self) -> int:
        return THREADS if self.few <= 4 else THREADS // 2

    @cached_property
    def lanes(self) -> int:
        """Threads side by side along what is contiguous."""
        return WARP if self.k_major else SEGMENT // (self.width * self.itemsize)

    @cached_property
    def groups(self) -> int:
        return self.threads // self.lanes

    @cached_property
    def unroll(self) -> int:
        """Steps along k at once: up to 128 bytes are on their way for each thread, fewer where accumulators take the registers, and 64 of
        fp8: what is widened takes registers too."""
        words = 32 if self.few <= 2 else 16 if self.few < FEW else 8
        each = max(1, self.width * max(2, self.itemsize) // 4) * (OWN if self.k_major else 1)
        return min(PLACES[self.k_major], max(1, words // each))

    @cached_property
    def loads(self) -> int:
        """Of a thread, in flight together."""
        return self.unroll * (OWN if self.k_major else 1)

    @cached_property
    def tile_k(self) -> int:
        """Of k, that a block takes in one step."""
        return self.unroll * (WARP * self.width if self.k_major else self.groups)

    @cached_property
    def mn_extent(self) -> int:
        """Of a block."""
        return self.groups * OWN if self.k_major else self.lanes * self.width

    @cached_property
    def partials(self) -> int:
        """Threads that have a part of the same sum."""
        return WARP if self.k_major else self.groups

    @cached_property
    def resident(self) -> int:
        """Blocks on a multiprocessor, that registers are limited for."""
        return 2 if self.few <= 4 else 3

    def small_loads(self, staging: Staging) -> int:
        """Of a thread, for each step."""
        return cdiv(self.few * self.tile_k, self.threads * staging.width)
