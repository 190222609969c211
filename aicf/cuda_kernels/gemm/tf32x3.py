"""Variants for products of f32 as three products of TF32 each (3xTF32), on Hopper's engines.

An f32 number is what TF32 holds of it and what that leaves, of which TF32 holds enough. A kernel writes a as rows of
[lo | hi | hi] and b as [hi | lo | hi]: their product, of thrice the k, is the one that was asked for, but for that of the
rests. Its sums begin with the small ones, and are added up in f32 every 32 of k.
"""

from __future__ import annotations

from functools import lru_cache

from ...registry.variant import KernelVariant, Reject
from ...rows import RegionSpec
from ...rows.program import Gemm, RegionProgram
from ...rows.read import read
from ...types import AttrPack, Precision
from . import mma as gemm_mma
from . import pack
from . import packed as gemm_packed
from . import wgmma as gemm_wgmma
from .packed import Packed

HI, LO = 0, 1
A_HI_LO, B_HI_LO = (LO, HI, HI), (HI, LO, HI)
TILINGS = "256x128_cluster2", "128x128_cluster2"


@lru_cache(maxsize=256)
def split(region: RegionSpec) -> Packed | Reject:
    """The product of both terms, of a region that is one of f32 numbers."""
    program = read(region)
    assert isinstance(program, RegionProgram) and isinstance(program.core, Gemm)
    p, after = program.core, program.after
    if p.a == p.b:
        return Reject("read again", "a and b are the same, and are split in two ways")
    if not p.m * p.n * p.k * p.count:
        return Reject("empty", f"nothing to copy of {p.count} products {p.m}x{p.n}x{p.k}")
    copies = []
    for index, hi_lo in ((p.a, A_HI_LO), (p.b, B_HI_LO)):
        t = region.operands[index]
        copies.append(pack.copy_of(index, t, gemm_packed.k_axis(p, index, t), hi_lo))
    product = region.ops[0]._replace(attrs=AttrPack(region.attrs, precision=Precision.tf32))
    made = gemm_packed.replaced(region, copies, (product, *region.ops[1:]))
    return gemm_packed.refusal_of(made, p, after) or made


@lru_cache(maxsize=256)
def family(region: RegionSpec) -> Reject | None:
    """What every tiling refuses."""
    if refused := gemm_mma.FAMILIES[Precision.tf32x3](region):
        return refused
    made = split(region)
    return made if isinstance(made, Reject) else gemm_wgmma.family(made.region)


def _variant(tiling: str, plain: KernelVariant) -> KernelVariant:
    return gemm_packed.copying(
        plain, (tiling, "tf32x3"), split, family,
        "of f32, each split in two of TF32 first, for three products of k", "both operands once more, read, and written thrice",
    )  # fmt: skip


VARIANTS = tuple(_variant(t, gemm_wgmma.PROMOTED[t]) for t in TILINGS)
