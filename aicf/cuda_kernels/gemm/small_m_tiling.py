"""How blocks of the small-M kernels share the wide operand, and how the small one is loaded."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from ...registry.variant import cdiv
from ..maps.elementwise import THREADS
from .tilings import OperandLoad

# Lines of the small operand, at most: on CUDA cores, on tensor cores, by warps
FEW, MMA_FEW, WARPS_FEW = 16, 64, 4
WARP = 32
# steps along k at once, at most, where lanes walk lines and where they walk k: each load has a place to remember
PLACES = 8, 4
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


# --- on tensor cores ----------------------------------------------------------------------------------------------------

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


# --- by warps -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Teams:
    """few: lines of the small operand · team: warps of a team, which share `lines` lines · loads: runs of `width` elements of each line
    that a lane has under way · teams: of a block"""

    few: int
    width: int
    lines: int
    team: int
    loads: int
    teams: int

    def __str__(self) -> str:
        return f"{self.few}x{self.lines}_w{self.width}_{self.teams}x{self.team}x{self.loads}"

    @property
    def threads(self) -> int:
        return WARP * self.team * self.teams

    @property
    def resident(self) -> int:
        """Blocks on a multiprocessor, that registers are limited for: to 128 of a thread."""
        return 512 // self.threads

    @property
    def step(self) -> int:
        """Of k, that a warp takes at once."""
        return WARP * self.width * self.loads

    @property
    def mn_extent(self) -> int:
        """Lines of a block."""
        return self.lines * self.teams


# --- chains in the order of k -------------------------------------------------------------------------------------------

QUAD = 4  # of k, that are read from shared memory together
ELEMENTS = 8192  # of the wide operand, in a K-tile: 32 of each thread


@dataclass(frozen=True)
class Chains:
    """few: rows, rounded up to a power of two · columns: of a block · parts: of k, that have chains of their own · b: how b is loaded ·
    a_width: elements of a row that are loaded at once"""

    few: int
    columns: int
    parts: int
    b: OperandLoad
    a_width: int

    def __str__(self) -> str:
        order = f"{'n' if self.b.mn_major else 'k'}{self.b.width}"
        return f"{self.few}_{self.columns}x{self.parts}_{order}_{self.a_width}"

    @property
    def sums(self) -> int:
        """Of each row."""
        return self.columns * self.parts

    @property
    def loaders(self) -> int:
        """Threads that load a part."""
        return THREADS // self.parts

    @property
    def depth(self) -> int:
        """Of k, of each part, in a K-tile."""
        most = ELEMENTS // (
            self.sums if self.b.width > 1 else 2 * self.sums
        )  # one by one, loads take more registers
        return most if self.b.mn_major else min(most, self.loaders * self.b.width)

    @property
    def pitch(self) -> int:
        """From a column's part to the next one in shared memory: the quads of eight threads are in banks of their own."""
        return self.depth + QUAD

    @property
    def rows(self) -> int:
        """Of a thread."""
        return max(1, self.few * self.sums // THREADS)

    @property
    def quads(self) -> int:
        """Whose rows of a are loaded together."""
        return max(1, 4 // self.rows) if self.a_width > 1 else 1

    @property
    def resident(self) -> int:
        """Blocks on a multiprocessor, that registers are limited for."""
        return 2


# --- weights of 8 and 4 bits --------------------------------------------------------------------------------------------

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
