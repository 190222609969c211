"""Variants for products of half types with up to 64 rows or columns on tensor cores; the rest is that of small_m.py.

The wide operand is mma's 16 lines, the small one its 8: nothing is padded but these 8, to 8, 16, 32 or 64. At 64 lines a byte
of halves meets 64 flops, where an H200's tensor cores balance at 206: memory is the limit throughout, and beside it the small one's
way through L2, once for each block.
"""

from __future__ import annotations

from ...device.spec import DeviceSpec
from ...registry.cost import Cost
from ...registry.variant import Checks, Launch, Reject, cdiv, variant
from ...rows import RegionSpec
from ...types import bf16, f16
from . import problem
from . import small_m as gemv
from .small_m_mma_tiling import CHUNK, FEW, Warps

EFFICIENCY = 0.4  # of the tensor cores' rate; it is never the limit


def warps(region: RegionSpec) -> Warps:
    s = gemv.small_m(region)
    few = next(n for n in (8, 16, 32, FEW) if s.small.mn_extent <= n)
    return Warps(few, gemv.k_major(s.wide, s.k))


def _plan(region: RegionSpec, device: DeviceSpec) -> gemv.Plan:
    w, rate = warps(region), problem.read(region)[0].dtype.name
    results = cdiv(w.mn_extent * w.few, w.threads)
    return gemv.plan(
        region, gemv.Block(w.mn_extent, w.tile_k, w.resident, 2.0 * w.few, rate, EFFICIENCY, results), device
    )


@variant("gemm", id="cuda.gemv_mma.v1", takes=problem.TAKES, needs=("sm_80",))
class GemvMma:
    """Few rows or columns, up to 64, by mma.sync m16n8k16 out of registers that loads fill: f16 or bf16, f32 accumulators.

    Parallel over lines of the wide operand and along k: warps of a block have parts of it, and blocks where lines are few; what
    those have is added up in a fixed order. Loads are of 16 bytes, so contiguous extents and leading dimensions are
    multiples of 8; k is the small operand's contiguous one. Bytes: the wide operand once, the small one once per block.
    Limit: memory.
    """

    def accepts(region: RegionSpec) -> Checks:
        yield from problem.checks(region)
        s, p = gemv.small_m(region), problem.read(region)[0]
        if p.dtype not in (f16, bf16):
            yield Reject("dtype", f"the product is in {p.dtype}, needs f16 or bf16")
        yield from gemv.checks(region, FEW)
        small, wide = (region.operands[x.operand] for x in (s.small, s.wide))
        if not gemv.k_major(s.small, s.k) or gemv.run(s.small, s.k, small, CHUNK) < CHUNK:
            yield Reject(
                "small", f"the smaller operand is {small}, needs whole aligned runs of {CHUNK} along k"
            )
        width = warps(region).width
        if gemv.run(s.wide, s.k, wide, width) < width:
            yield Reject("wide", f"the larger operand is {wide}, needs whole aligned runs of {width}")

    def cost(region: RegionSpec, device: DeviceSpec) -> Cost:
        return _plan(region, device).cost

    def workspace(region: RegionSpec, device: DeviceSpec) -> int:
        return gemv.workspace(region, _plan(region, device))

    def build(region: RegionSpec, device: DeviceSpec) -> list[Launch]:
        from .small_m_mma_body import gemv_mma

        (p, _), s, w = problem.read(region), gemv.small_m(region), warps(region)
        return gemv.launches(
            region, _plan(region, device), w.threads, lambda e: gemv_mma(p.dtype, w, s.rows, e)
        )
