"""Attention of few queries by mma.sync: what a kernel is specialised for, and where a block has what in shared memory."""

from __future__ import annotations

from dataclasses import dataclass

from .masks import AttentionForm
from .mma_tiles import ALIGNED, THREADS, WARPS, StoredRows

ROWS, KEYS = 16, 128  # of a block's tile of scores
OWN = KEYS // WARPS  # columns of scores that a warp computes
WORDS = 2 * ROWS * KEYS  # bytes of weights, as halves
PEAKS = 4 * ROWS * WARPS  # bytes of each warp's greatest scores
PARTS = 4 * 2 * 32 * WARPS  # bytes of what each thread adds to the sums of its two rows
SMALLEST = (
    ALIGNED + WORDS + PEAKS + PARTS + 2 * 2 * KEYS * 128
)  # bytes of a block, with one stage of the widest heads
STAGES = 3, 2, 1  # the first of these that shared memory has room for, of one block alone or of TOGETHER
WIDEST_COPY = 16  # bytes
TOGETHER = 3  # blocks on a multiprocessor, where there are more of them than multiprocessors


@dataclass(frozen=True)
class FewForm(AttentionForm):
    """What a kernel is specialised for, with these:

    d, dv   columns of q and k rounded up to 16, and of v rounded up to 64
    width   bytes that are copied at a time: what pointers and rows are aligned to, 4 to 16
    stages  of tiles of keys, and of tiles of values
    copiers whether four more warps copy them, for blocks that are alone on a multiprocessor; otherwise those that compute do
    """

    d: int
    dv: int
    width: int
    stages: int
    copiers: bool
    turing: bool = False  # as `StoredRows` asks its form
    partial: bool = True

    def __str__(self) -> str:
        return (
            f"_{self.dtype}_d{self.d}_{self.dv}_by{self.width}_{self.stages}stages"
            + "_copiers" * self.copiers
            + self.features
        )

    @property
    def columns(self) -> int:
        """Of the result, that a warp computes."""
        return self.dv // WARPS

    @property
    def threads(self) -> int:
        return THREADS * (1 + self.copiers)

    @property
    def blocks_per_sm(self) -> int:
        """Whose registers there are; copies of fewer bytes take more of them."""
        return 1 if self.copiers else TOGETHER if self.width == WIDEST_COPY else TOGETHER - 1


class FewPlan:
    """Where a block has what: weights, peaks and parts of sums that its warps exchange; then stages of keys, and of values."""

    def __init__(self, d: int, dv: int, stages: int) -> None:
        self.k, self.v = StoredRows(KEYS, d), StoredRows(KEYS, dv)
        self.peaks = WORDS
        self.parts = self.peaks + PEAKS
        self.k_at = self.parts + PARTS
        self.v_at = self.k_at + stages * self.k.nbytes
        self.nbytes = ALIGNED + self.v_at + stages * self.v.nbytes
