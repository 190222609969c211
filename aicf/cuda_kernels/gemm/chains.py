"""Products with few rows on CUDA cores whose sums have the order of tiles: a chain for each result, or one for each part of k by k alone.

Strict numerics and invariant rows need them, where the other kernels for few rows divide k among lanes. Of these the wide operand is
loaded as fast as memory gives it, so they are for regions that are neither.

Prediction, for an H200: 32 KB of b are under way for each block, two of which a multiprocessor has: 8 MB in all, where 4 TB/s and a trip of
0.65 us need 2.6 MB. A K-tile costs a block a trip and its chain: 8 cycles for each of k, of which a part has 32 to 1024. So
768 x 3072 takes three K-tiles and 5.6 us, where `gemv_warps` takes 4.9, and 2048 x 8192 is limited by memory.
"""

from __future__ import annotations

from typing import Any

from ...device.spec import DeviceSpec
from ...registry.cost import Cost, one_launch, roofline
from ...registry.variant import Checks, Launch, Num, NumericClass, Reject, at_least, at_most, cdiv, variant
from ...rows import RegionSpec
from ...types import i32
from . import numerics, problem
from .schedule import split_k
from .schedule.parts import KSplit, by_k
from .simt import load_of
from .small_m_tiling import FEW, THREADS, Chains

MANY_COLUMNS = 8192  # from which on a block has more of them
START_US = 0.8  # until loads are on their way; chains to shared memory, and their sums
TRIP_US = 0.75  # from one K-tile to the next, for a block alone
CHAIN_US = 0.0045  # for each of k
LOAD_US = 0.5  # an element that the epilogue reads
EFFICIENCY, MEMORY_EFFICIENCY = 0.25, 0.8


def _split(region: RegionSpec, in_parts: bool) -> KSplit:
    k = problem.k_of(region)
    return by_k(k) if in_parts else KSplit(1, max(1, k))


def chains_of(region: RegionSpec, in_parts: bool) -> Chains:
    """How a block shares its columns: 8 of them where there are few, or 64 bytes of a row; 32 in parts of one where there are many."""
    a, b = problem.operands(region)
    few, row, load = 1 << max(0, a.mn.extent - 1).bit_length(), load_of(a), load_of(b)
    parts = 1 << (_split(region, in_parts).number - 1).bit_length()
    columns = max(8, min(32, 64 // parts)) if b.mn.extent >= MANY_COLUMNS else 8
    return Chains(
        few, max(16, columns) if load.mn_major else columns, parts, load, 1 if row.mn_major else row.width
    )


class FewRows:
    """Up to 16 rows on CUDA cores: f32, f16 or bf16, any strides; a chain of fused multiply-adds for each result, or for each part of k.

    Parallel over columns and parts of k; rows where there are threads left. Bytes: b once, in loads of 16 bytes where the layout allows; a once
    for each block, from the cache. Limit: memory; for short k the trip there, and the chain.
    """

    def accepts(region: RegionSpec, in_parts: bool) -> Checks:
        yield from problem.checks(region)
        p, _ = problem.read(region)
        if not region.strict:
            yield Reject(
                "strict", "sums k in order, which strict numerics and invariant rows need, and nothing else"
            )
        if in_parts:
            yield from split_k.fixed_checks(region)
        yield at_most("axes of the batch", len(p.batch), 0)
        yield at_most("rows", p.m, FEW)
        yield at_least("least extent", min(p.m, p.n, p.k), 1)

    def least(region: RegionSpec, device: DeviceSpec, in_parts: bool) -> float:
        return one_launch(region, device) + START_US

    def numerics(region: RegionSpec, device: DeviceSpec, in_parts: bool) -> NumericClass | Reject:
        return numerics.in_parts(problem.k_of(region)) if in_parts else numerics.simt(region)

    def cost(region: RegionSpec, device: DeviceSpec, in_parts: bool) -> Cost:
        (p, _), c, part_k = problem.read(region), chains_of(region, in_parts), _split(region, in_parts).k
        blocks, f = cdiv(p.n, c.columns), problem.epilogue_statistics(region)
        chain = START_US + (cdiv(part_k, c.depth) - 1) * TRIP_US + part_k * CHAIN_US + f.matrices * LOAD_US
        return roofline(
            device, bytes=region.nbytes, flops=2.0 * c.few * p.n * p.k, useful=p.flops, efficiency=EFFICIENCY, memory_efficiency=MEMORY_EFFICIENCY,
            blocks=blocks, blocks_per_sm=c.resident, chain=chain, cached=float(blocks * p.m) * p.k * p.dtype.itemsize,
        )  # fmt: skip

    def build(region: RegionSpec, device: DeviceSpec, in_parts: bool) -> list[Launch]:
        from .chains_body import gemv_chains

        p, _ = problem.read(region)
        c, part_k = chains_of(region, in_parts), _split(region, in_parts).k
        a, b, operands, sizes, *steps, scales = problem.arguments(region)
        body = gemv_chains(c, problem.epilogue(region, 1))
        args = (a, b, operands, (*sizes, Num(part_k, i32)), *steps, scales)
        return [Launch(body, (cdiv(p.n, c.columns),), (THREADS,), args)]


def _kernel(id: str, in_parts: bool) -> Any:
    """The kernel with a chain for each result, or for each part of k."""
    return variant("gemm", id=id, configs={"": in_parts}, takes=problem.TAKES)(FewRows)


IN_ORDER, IN_PARTS = _kernel("cuda.gemv_in_order.v1", False), _kernel("cuda.gemv_in_parts.v1", True)
