"""Numeric classes of GEMM kernels: which instruction adds up K, in which order, in how many parts.

Tiles do not matter: each result is summed by one thread or one instruction's column, in the order of k, and rows and columns beyond the edge of a
tile are zeros of other results. Zeros behind the end of k add nothing. So all tiles of an instruction are one class, and a row has equal
bits in a product with one row and in one with thousands.
"""

from __future__ import annotations

from ...registry.variant import NumericClass, Reject, no_class
from ...rows import RegionSpec
from ...types import Precision, f32
from . import problem
from .schedule.parts import by_k
from .tilings import FmaTiling, MmaTiling, SimtTile
from .wgmma_tiling import WgmmaConfig, k_tile, promotes

IN_ORDER = "in order"
SPLIT = no_class("k is divided into parts by the number of tiles and multiprocessors")
STREAM = no_class(
    "stream-K divides tiles along k: which rows it divides, and where, depends on the number of tiles"
)
FEW_LINES = no_class("how k is divided among lanes, warps and blocks depends on the number of rows")
COPIED_SIDE = no_class("which operand goes through registers depends on the number of rows")


def exact_integers(region: RegionSpec) -> NumericClass:
    """Sums of i32 are the same in every order."""
    return NumericClass("exact in i32", problem.read(region)[0].k, "in any order")


def simt(region: RegionSpec, tile: SimtTile | None = None) -> NumericClass | Reject:
    """A chain of fused multiply-adds for each result; those of `sliced` warp groups, each over its own K-tiles, are added in order."""
    k = problem.read(region)[0].k
    if tile is not None and (tile.split or tile.parts):
        return in_parts(k) if region.invariant else SPLIT
    groups = tile.warp_groups if isinstance(tile, FmaTiling) else 1
    sliced = f", every {groups}th K-tile of {tile.step} apart" if tile is not None and groups > 1 else ""
    return NumericClass("fma in f32", k, IN_ORDER + sliced)


def in_parts(k: int) -> NumericClass:
    """Parts of k by k alone, each a chain, are added in order: by a second launch, by a tile that has one part after another, or by a block."""
    parts = by_k(k)
    return NumericClass(
        "fma in f32", k, f"{IN_ORDER}, {parts.number} parts of {parts.k}" if parts.number > 1 else IN_ORDER
    )


def mma(region: RegionSpec, tiling: MmaTiling) -> NumericClass:
    """mma.sync, whose accumulators go from one step of k to the next; of 3xTF32 they begin at zero with each K-tile."""
    p, kind = problem.read(region)[0], tiling.kind(problem.read(region)[0].dtype)
    promoted = f", promoted every {tiling.tile_k}" if tiling.precision is Precision.tf32x3 else ""
    return NumericClass(_products(kind, "mma"), p.k, IN_ORDER + promoted)


def _products(kinds: str, instruction: str) -> str:
    """What multiplies and adds up. mma.sync.m16n8k16 and wgmma add up the same 16 products of halves in the same bits; of other types they don't."""
    return f"{'tensor cores' if kinds in ('f16', 'bf16') else instruction} {kinds} in f32"


def wgmma(region: RegionSpec, config: WgmmaConfig, in_registers: str) -> NumericClass | Reject:
    """wgmma, whose accumulators go from one K-tile to the next; with `cluster split` blocks have parts of K-tiles, from the floor of an
    even share on, and each result's are added from the part whose block finishes its column on; a block with both halves adds these."""
    p, t = problem.read(region)[0], config.tiling
    if p.dtype.kind == "int":
        return exact_integers(region)
    if config.split:
        return SPLIT
    if t.stream:
        return STREAM
    kinds = "tf32" if p.dtype is f32 else " x ".join(dict.fromkeys((p.dtype.name, p.b_dtype.name)))
    order, depth = IN_ORDER, k_tile(p.dtype)
    if promotes(p.dtype) or t.promoted:
        order += f", promoted every {depth}"
    if (parts := 2 if t.halved else t.cluster_split) > 1:
        order += f", {parts} parts of K-tiles of {depth}"
        if t.cluster_split > 2:  # two have one sum in either order
            order += f", a column's own first, of {t.columns} columns each"
    return NumericClass(
        _products(kinds, "wgmma"), p.k, order, f"{in_registers} from registers" if in_registers else ""
    )
