"""How the Hopper matrix products divide their work: tiles, who multiplies them, and what is where in shared memory."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from ...types import DType
from ..hopper.cluster import Exchange
from ..hopper.units import SUBTILE_BYTES, SWIZZLE_BYTES, WARPGROUP

ENOUGH = 4  # stages: a second subtile for each result is not worth one of them
EIGHT = 8  # columns that four threads hold together; and a thread's accumulators of 16 columns and 16 rows
MOST_WORDS = 32  # of operands by column, that wait in registers
FLAT, EIGHTS = (
    "flat",
    "flat_eights",
)  # a few rows of a as one piece of memory, in registers; whole eights of them
OF_C = -1  # c, where loads of an epilogue are counted
ADDRESSES = 40  # registers that a main loop has beside accumulators, at least
SMS = 132  # of an H100 or H200: what `group_m` is made for
SHARED = (
    227 * 1024
)  # bytes that a block may have; a multiprocessor has 1 KB more, and each block takes 1 KB of its own
SLACK = 1024  # to begin at a multiple of 1024


def k_tile(dtype: DType) -> int:
    """Of k in a K-tile: 64 halves, 32 f32, 128 of fp8."""
    return SWIZZLE_BYTES // dtype.itemsize


def promotes(dtype: DType) -> bool:
    """Whether accumulators are promoted: those of each K-tile are added to f32 by CUDA cores. Tensor cores keep some 14 bits of a sum
    of fp8 products, of which a long one would lose all that its last products add."""
    return dtype.is_fp8


@dataclass(frozen=True)
class WgmmaTiling:
    """m x n tiles for blocks of a producer warpgroup and of `consumers` that multiply.

    ping_pong  whether consumers are two groups that take tiles in turns, so that one multiplies while the other writes results;
               else all of them share a tile (cooperative)
    cluster    blocks, one below the other, that share b
    cluster_split  splits of k, each summed by a block of a cluster that shares a tile: then each finishes its part of the columns
    blocks     for each multiprocessor: registers and shared memory are divided among them
    registers  (of a producer's thread, of a consumer's) after they were divided anew; None where there are enough for all
    stream     whether the first G + r of w G + r tiles, for G blocks, are cut along k, so that all blocks have as much to do; see
               hopper/stream_k.py
    promoted   whether each K-tile has accumulators of its own, which are added up in f32, whatever the type; see `promotes`
    narrow_n   columns of the narrower tiles that it may have beside the others; see `narrow_group`
    halved     whether each half of k has a sum of its own, as two blocks that share a tile have them
    """

    m: int
    n: int
    consumers: int
    ping_pong: bool = False
    cluster: int = 1
    blocks: int = 1
    cluster_split: int = 1
    registers: tuple[int, int] | None = (40, 232)
    stream: bool = False
    promoted: bool = False
    narrow_n: int = 0
    halved: bool = False

    def __str__(self) -> str:
        ping_pong, cluster = "_pingpong" * self.ping_pong, f"_cluster{self.cluster}" * (self.cluster > 1)
        split = (
            f"_cluster_split{self.cluster_split}" * (self.cluster_split > 1)
            + "_deep" * (self.consumers == self.blocks == self.together == 1)
            + "_stream" * self.stream
            + "_promoted" * self.promoted
            + "_halved" * self.halved
        )
        narrow_n = f"_{self.narrow_n}" * (self.narrow_n > 0)
        return f"{self.m}x{self.n}{narrow_n}{ping_pong}{cluster}{split}"

    @property
    def together(self) -> int:
        """Blocks of a cluster."""
        return self.cluster * self.cluster_split

    @property
    def threads(self) -> int:
        return WARPGROUP * (1 + self.consumers)

    @property
    def turn_groups(self) -> int:
        """Groups of consumers, each with tiles of its own."""
        return 2 if self.ping_pong else 1

    @property
    def cooperative(self) -> int:
        """Consumers that share a tile."""
        return self.consumers // self.turn_groups

    @property
    def row_blocks(self) -> int:
        """Of 64 rows, that each consumer has."""
        return self.m // (64 * self.cooperative)

    @property
    def rows(self) -> int:
        """That each consumer has."""
        return 64 * self.row_blocks

    @property
    def subtiles(self) -> int:
        """Of 64 x 64 results, that each consumer finishes."""
        return self.row_blocks * self.columns // 64

    @property
    def accumulators(self) -> int:
        """That a consumer's thread has."""
        return self.row_blocks * self.n // 2

    @property
    def columns(self) -> int:
        """Of its tile, that a block finishes."""
        return self.n // self.cluster_split

    @property
    def finished(self) -> int:
        """Of these, sums that a consumer's thread has."""
        return self.exchange.finished

    @property
    def exchange(self) -> Exchange:
        """Of sums over splits of k, among the blocks that share a tile."""
        return Exchange(self.cluster_split, self.consumers, self.row_blocks, self.n)

    @property
    def spare(self) -> int:
        """Registers that it has beside them."""
        taken = 65536 // (self.threads * self.blocks) if self.registers is None else self.registers[1]
        return min(taken, 255) - self.accumulators * (1 + self.halved)

    @property
    def can_promote(self) -> bool:
        """Whether it has registers for a K-tile's accumulators of 64 rows beside its own, and others to multiply while they are added up."""
        return (
            not self.halved and self.cooperative * self.blocks > 1 and self.spare >= self.n // 2 + ADDRESSES
        )

    @property
    def narrow_group(self) -> int:
        """So many narrow tiles side by side are as wide as one less of the others: so there may be one more in a row, where that
        fills a wave of blocks that would else be half empty."""
        return self.n // (self.n - self.narrow_n)

    @property
    def crowding(self) -> float:
        """Cycles that shared memory takes for a K-tile, over those of the tensor cores: 128 bytes at a time, for a and b of each
        64 rows that are multiplied and for those that arrive; 64 x 8 x 32 bytes of k take 4."""
        read, arrive = self.m // 64 * (64 + self.n), self.m + self.n
        return (read + arrive) / (self.m * self.n / 32)

    @property
    def group_m(self) -> int:
        """Rows of clusters' tiles that are walked down together: what runs at once is then about square, and its operands few."""
        return max(1, round(math.sqrt(SMS * self.blocks * self.m * self.columns) / (self.m * self.cluster)))

    @property
    def a_bytes(self) -> int:
        return self.m * SWIZZLE_BYTES

    @property
    def b_bytes(self) -> int:
        return self.n * SWIZZLE_BYTES

    @property
    def own_bytes(self) -> int:
        """From one consumer's part of a to the next one's."""
        return self.a_bytes // self.cooperative

    @property
    def stage_bytes(self) -> int:
        return self.a_bytes + self.b_bytes

    def stages(self, staged: int) -> int:
        """As many as there is room for. `staged`: so many results are stored by way of shared memory, or operands loaded."""
        return self._stages(self.buffers(staged))

    def buffers(self, staged: int) -> int:
        """Subtiles of results for each consumer: two of each result, or of several only one where that saves a stage of few."""
        two, one = (self._stages(count * staged) for count in (2, 1))
        return 2 * staged if staged < 2 or two >= min(one, ENOUGH) else staged

    def _stages(self, buffers: int) -> int:
        exchange = self.consumers * (
            self.exchange.sent_bytes + 8 * (self.cluster_split > 1) + 8 * self.subtiles
        )
        room = (
            (SHARED + 1024) // self.blocks
            - 1024
            - SLACK
            - buffers * self.consumers * SUBTILE_BYTES
            - exchange
        )
        return room // (self.stage_bytes + 16)

    # shared memory: stages, from the first multiple of 1024 on; subtiles of results; accumulators of other blocks; barriers, full and
    # then empty, one for each consumer that gets these, and of subtiles

    def subtiles_at(self, staged: int) -> int:
        return self.stages(staged) * self.stage_bytes

    def slots_at(self, staged: int) -> int:
        return self.subtiles_at(staged) + self.buffers(staged) * self.consumers * SUBTILE_BYTES

    def barriers_at(self, staged: int) -> int:
        return self.slots_at(staged) + self.consumers * self.exchange.sent_bytes

    def split_barriers_at(self, staged: int) -> int:
        return self.barriers_at(staged) + 16 * self.stages(staged)

    def arrived_at(self, staged: int) -> int:
        return self.split_barriers_at(staged) + 8 * self.consumers * (self.cluster_split > 1)

    def shared(self, staged: int) -> int:
        return SLACK + self.arrived_at(staged) + 8 * self.consumers * self.subtiles


# Tilings with one width and whole tiles; mixed widths and stream-K follow, promoted ones are in copied.py. Two consumers: 168 registers
# for each of 384 threads to begin with, 64512 of 65536, as many as 40 and twice 232 for 128 each. Three: 128 for each of 512 threads, of which 40 and thrice 152 are taken.
TILINGS = (
    WgmmaTiling(128, 256, 2),
    WgmmaTiling(128, 256, 2, cluster=2),
    WgmmaTiling(256, 128, 2),
    WgmmaTiling(256, 128, 2, cluster=2),
    WgmmaTiling(128, 192, 2),
    WgmmaTiling(192, 128, 3, registers=(40, 152)),
    WgmmaTiling(128, 128, 2),
    WgmmaTiling(128, 128, 2, cluster=2),
    WgmmaTiling(128, 64, 2),
    WgmmaTiling(128, 128, 2, ping_pong=True),
    WgmmaTiling(128, 128, 2, ping_pong=True, cluster=2),
    WgmmaTiling(64, 192, 2, ping_pong=True),
    WgmmaTiling(64, 128, 2, ping_pong=True),
    WgmmaTiling(64, 128, 2, ping_pong=True, cluster=2),
    WgmmaTiling(64, 128, 1, blocks=2, registers=(40, 216)),
    WgmmaTiling(64, 64, 1, blocks=2, registers=None),
    WgmmaTiling(128, 128, 2, cluster_split=2, registers=(56, 224)),
    WgmmaTiling(128, 64, 2, cluster_split=2, registers=(56, 224)),
    WgmmaTiling(64, 128, 1, cluster_split=2, registers=None),
    WgmmaTiling(64, 64, 1, cluster_split=2, registers=None),
    WgmmaTiling(64, 64, 1, cluster_split=4, registers=None),
)

# For few rows, whose time is the memory's: a block of one consumer has 12 K-tiles under way. 72 need 6 MB of these, for 4.2 TB/s and a trip of 1.2 us.
FEW_ROWS = (WgmmaTiling(64, 64, 1, registers=None),)


def tilings(names: str) -> tuple[WgmmaTiling, ...]:
    """Those of these names, in the order of TILINGS and FEW_ROWS; KeyError if one of them has no tiling."""
    wanted, known = names.split(), (*TILINGS, *FEW_ROWS)
    if unknown := set(wanted) - set(map(str, known)):
        raise KeyError(f"no tiling of TILINGS is called {', '.join(sorted(unknown))}")
    return tuple(t for t in known if str(t) in wanted)


# Those that may have narrower tiles too: large products whose last wave is not full.
MIXED_WIDTHS = (WgmmaTiling(128, 128, 2, ping_pong=True, narrow_n=120),)

# Those whose results have the bits of `cluster split2`, for many rows: registers have room for twice the accumulators.
HALVED = tuple(replace(t, halved=True) for t in tilings("128x192 128x128"))

# Those that divide tiles evenly among blocks as well.
STREAM = tuple(replace(t, stream=True) for t in tilings("128x128_pingpong 128x256"))


@dataclass(frozen=True)
class WgmmaConfig:
    """A tiling, how operands get to tensor cores, and what for.

    path   "": wgmma reads both from shared memory; "int8": likewise, bytes; "rs": one of f32 goes through registers; "flat": few rows of a
           transposed a of halves do
    split  whether k is split, and a second launch adds up: for few results and long k
    """

    tiling: WgmmaTiling
    path: str = ""
    split: bool = False

    def __str__(self) -> str:
        return f"{self.tiling}" + f"_{self.path}" * bool(self.path) + "_split" * self.split


def _configs(names: str, path: str = "", split: bool = False) -> tuple[WgmmaConfig, ...]:
    return tuple(WgmmaConfig(t, path, split) for t in tilings(names))


CONFIGS = (
    *map(WgmmaConfig, (*TILINGS, *FEW_ROWS, *MIXED_WIDTHS, *STREAM, *HALVED)),
    *_configs("64x64 64x128 128x128", split=True),
)
INT8_CONFIGS = tuple(WgmmaConfig(t, "int8") for t in TILINGS if t.cluster_split == 1)
FLAT_CONFIGS = _configs(
    "64x64_cluster_split4 64x64_cluster_split2 64x128_cluster_split2 64x128_pingpong 64x64_deep", "flat"
)
# Of which a thread has two rows of the operand in registers, and no block shares anything with another.
RS_CONFIGS = *_configs("128x256 128x128 64x128_pingpong 64x64", "rs"), *_configs("128x128", "rs", split=True)
