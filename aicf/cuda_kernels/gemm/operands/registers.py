"""One MN-major operand of a TF32 product on Hopper, a plain b or a transposed a, by way of registers (RS wgmma), so that nothing is copied first.

wgmma reads operands of four bytes K-major from shared memory; from registers it takes a, as threads load it. If that operand is b, the kernel
computes the transposed product, b^T a^T: see registers_body.py.
"""

from __future__ import annotations

from functools import lru_cache

from ....registry.variant import NEEDLESS, Reject
from ....rows import RegionSpec
from ..wgmma_tiling import WgmmaConfig, WgmmaTiling
from .tma import GemmOperands, TmaOperand, operands_of

BOTH = "k of both"  # a condition


@lru_cache(maxsize=256)
def rs_operands(region: RegionSpec) -> tuple[TmaOperand, TmaOperand] | Reject:
    """(the operand that goes through registers, the other one), of a region that is a product."""
    both = operands_of(region, either=True)
    if isinstance(both, Reject):
        return both
    a, b = both
    if a.k_major and b.k_major:
        return Reject(NEEDLESS, "k is contiguous in a and b, which wgmma reads where they are")
    if not (a.k_major or b.k_major):
        return Reject(
            BOTH, "k is contiguous neither in a nor in b, and only one of them goes through registers"
        )
    return (b, a) if a.k_major else (a, b)


def in_registers(region: RegionSpec, config: WgmmaConfig) -> str:
    """ "a" or "b", of a region that a config with this path takes; else ""."""
    if config.path != "rs":
        return ""
    both = rs_operands(region)
    assert not isinstance(both, Reject)
    return both[0].name


def from_registers(tiling: WgmmaTiling, region: RegionSpec) -> GemmOperands:
    """The operand that goes through registers first; the other one is read from shared memory."""
    both = rs_operands(region)
    assert not isinstance(both, Reject)
    first, second = both
    maps, last = (first.map(tiling.m), second.map(tiling.n)), (second.map(tiling.n, last=True),)
    return GemmOperands(maps, first.order, second.order, last, first.name)
