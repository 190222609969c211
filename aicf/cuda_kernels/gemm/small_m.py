"""Variants for matrix products with few rows or few columns, as one token at a time makes them (decode): reading the other
operand is all that takes time. Operands, epilogues and results are those of problem.py.

The operand with few lines (rows of a, columns of b) is called small, the other one wide. A byte of the wide one meets `few` flops for
halves, half as many for f32. Of 4.8 TB/s and 66.9 TFLOP/s, an H200's, 14 flops a byte are the balance, and half of that after
what widening, addressing and reading the small one from shared memory take. So the prediction is: CUDA cores keep up with memory
to 4 lines of halves, and to 16 of f32; beyond that halves need tensor cores.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any, NamedTuple

from ...device.spec import DeviceSpec
from ...registry.cost import Cost, one_launch, roofline
from ...registry.variant import Checks, In, Launch, Num, Reject, at_most, cdiv, variant
from ...rows import RegionSpec
from ...types import TensorDesc, f32, i32
from . import problem
from .schedule import split_k as gemm_split
from .small_m_tiling import FEW, Share, Staging
from .tile_cost import MEMORY_EFFICIENCY

LOADED = 16  # bytes that a thread loads at once
SPLITS = 64
# What follows was measured on an H200.
START_US = 2.6  # until loads are on their way and when they are there: places, the small operand to shared memory, threads' sums to one
STEP_US = 2.2  # along k: a trip to memory, and what comes with it, that no block beside hides
# For each result of a thread, one after the other: to add it up, to load an element for it, and for each flop of the map
RESULT_US, RESULT_LOAD_US, RESULT_FLOP_US = 0.025, 0.28, 0.01
EFFICIENCY = 0.45  # of the f32 rate: reads of shared memory and places are beside the multiply-adds


class MnOperand(NamedTuple):
    """An operand of an m x n product: its extent along m or n, and its steps."""

    operand: int
    mn_extent: int
    mn_step: int
    k_step: int


class SmallM(NamedTuple):
    """rows: the small operand's lines are rows of the result, the wide one's its columns; else the other way round."""

    wide: MnOperand
    small: MnOperand
    k: int
    rows: bool


def small_m(region: RegionSpec) -> SmallM:
    """A product as its wide and its small operand."""
    p, _ = problem.read(region)
    (*_, a_m, a_k), (*_, b_k, b_n) = p.a_steps, p.b_steps
    a, b = MnOperand(p.a, p.m, a_m, a_k), MnOperand(p.b, p.n, b_n, b_k)
    return SmallM(b, a, p.k, True) if p.m <= p.n else SmallM(a, b, p.k, False)


def k_major(x: MnOperand, k: int) -> bool:
    """Whether neighbours in memory are neighbours along k."""
    return x.mn_extent == 1 or (k > 1 and x.k_step <= x.mn_step)


def run(x: MnOperand, k: int, matrix: TensorDesc, longest: int) -> int:
    """How many neighbours one load may take: every run of them is whole and aligned."""
    fast, slow = (k, x.k_step), (x.mn_extent, x.mn_step)
    if not k_major(x, k):
        fast, slow = slow, fast
    width = longest
    while width > 1 and (
        fast[1] != 1
        or fast[0] % width
        or (slow[0] > 1 and slow[1] % width)
        or matrix.alignment < width * matrix.dtype.itemsize
    ):
        width //= 2
    return width


def share(region: RegionSpec) -> tuple[Share, Staging]:
    s, dtype = small_m(region), problem.read(region)[0].dtype
    few, fast = 1 << max(0, s.small.mn_extent - 1).bit_length(), k_major(s.wide, s.k)
    longest = min(LOADED // dtype.itemsize, 8 if few <= 4 else 4)
    made = Share(few, fast, run(s.wide, s.k, region.operands[s.wide.operand], longest), dtype.itemsize)
    along = k_major(s.small, s.k)
    most = min(4, max(1, few * made.tile_k // made.threads))
    return made, Staging(along, run(s.small, s.k, region.operands[s.small.operand], most) if along else 1)


# --- how k is split ---------------------------------------------------------------------------------------------------


class Block(NamedTuple):
    """What a block has of the wide operand, and how fast it is.

    depth     of k in one step, whose loads are on their way during the one before
    flops     for each of its numbers, what else is done beside the products included
    resident  blocks on a multiprocessor
    results   that each thread adds up, one after the other, of what threads along k have
    """

    mn_extent: int
    tile_k: int
    resident: int
    flops: float
    rate: str
    efficiency: float
    results: int


class Plan(NamedTuple):
    """`chunk` of k for each of `splits` blocks that share lines; with several, another kernel adds up what they have."""

    splits: int
    chunk: int
    blocks: int
    cost: Cost


@lru_cache(maxsize=256)
def plan(region: RegionSpec, block: Block, device: DeviceSpec) -> Plan:
    """The fastest, as predicted: another launch is worth it where there would be few blocks with long ways to go."""
    (p, _), s = problem.read(region), small_m(region)
    steps, tiles = cdiv(s.k, block.tile_k), max(1, cdiv(s.wide.mn_extent, block.mn_extent))
    most = min(SPLITS, steps // 2) if p.m * p.n < 2**31 else 1
    best = None
    for wanted in (1 << i for i in range(max(1, most).bit_length())):
        chunk = max(1, cdiv(steps, wanted)) * block.tile_k
        splits = max(1, cdiv(s.k, chunk))
        if best is not None and _least(block, device, splits, chunk) > best.cost.us:
            continue
        cost = _cost(region, block, device, splits, chunk)
        if best is None or cost.us < best.cost.us:
            best = Plan(splits, chunk, tiles * splits, cost)
    assert best is not None
    return best


def _least(block: Block, device: DeviceSpec, splits: int, chunk: int) -> float:
    """Of `_cost`, with several splits: two launches, and the steps of both."""
    steps = (cdiv(chunk, block.tile_k) - 1) * STEP_US + block.results * RESULT_US
    return 2 * one_launch(None, device) + START_US + steps + gemm_split.SUM_STEP_US * splits


def _cost(region: RegionSpec, block: Block, device: DeviceSpec, splits: int, chunk: int) -> Cost:
    """The wide operand once, the small one from the cache for each block; no step in less than a trip to memory."""
    (p, _), s = problem.read(region), small_m(region)
    tiles, k_extent = max(1, cdiv(s.wide.mn_extent, block.mn_extent)), min(chunk, max(1, s.k))
    size = p.dtype.itemsize
    through, total = gemm_split.sum_cost(region, p, splits, device)
    # of what follows the product, a split has nothing
    each = RESULT_US
    if splits == 1:
        f = problem.epilogue_statistics(region)
        each += RESULT_LOAD_US * f.matrices + RESULT_FLOP_US * f.flops
    cost = roofline(
        device, bytes=gemm_split.operand_bytes(p) + through if splits > 1 else region.nbytes,
        flops=block.flops * s.wide.mn_extent * s.k, useful=p.flops, rate=block.rate, efficiency=block.efficiency,
        blocks=tiles * splits, blocks_per_sm=block.resident,
        chain=START_US + (cdiv(k_extent, block.tile_k) - 1) * STEP_US + block.results * each, memory_efficiency=MEMORY_EFFICIENCY,
        cached=float(tiles * s.small.mn_extent + s.wide.mn_extent) * s.k * size,
    )  # fmt: skip
    if splits > 1:
        cost = cost.plus(**{"sum of parts": total.us})
    return cost


def checks(region: RegionSpec, few: int) -> Checks:
    """What every kernel for few lines takes: one product, whose sums may be added up from splits."""
    yield from problem.checks(region)
    p, _ = problem.read(region)
    if region.strict:
        yield Reject("strict", "sums of parts of k are added up; strict takes one sum, in order")
    yield at_most("axes of the batch", len(p.batch), 0)
    yield at_most("smaller of m and n", min(p.m, p.n), few)


def workspace(region: RegionSpec, plan: Plan) -> int:
    p, _ = problem.read(region)
    return p.m * p.n * plan.splits * f32.itemsize if plan.splits > 1 else 0


def launches(
    region: RegionSpec, plan: Plan, threads: int, make: Callable[[Any], Callable[..., None]]
) -> list[Launch]:
    """`make(epilogue)`: the body. It takes (wide, small, operands, sizes, wide_steps, small_steps, scales): see gemm/small_m_body.py."""
    s = small_m(region)
    _, _, operands, *_, scales = problem.arguments(region)
    sizes = tuple(Num(x, i32) for x in (s.wide.mn_extent, s.small.mn_extent, s.k, plan.chunk))
    walks = tuple((Num(x.mn_step), Num(x.k_step)) for x in (s.wide, s.small))

    def products(epilogue: Any, operands: Any, scales: Any) -> Launch:
        args = (In(s.wide.operand), In(s.small.operand), operands, sizes, *walks, scales)
        return Launch(make(epilogue), (plan.blocks,), (threads,), args)

    if plan.splits == 1:
        return [products(problem.epilogue(region, 1), operands, scales)]
    first = products(gemm_split.raw(region, 1), gemm_split.PARTIAL, gemm_split.UNSCALED)
    return [first, gemm_split.total(region, plan.splits)]


def simt_plan(region: RegionSpec, device: DeviceSpec) -> Plan:
    """Widening a half is as much as a multiply-add."""
    part, _ = share(region)
    flops = 2.0 * (part.few + (part.itemsize < f32.itemsize))
    results = cdiv(part.mn_extent * part.few, part.threads)
    return plan(
        region, Block(part.mn_extent, part.tile_k, part.resident, flops, "f32", EFFICIENCY, results), device
    )


@variant("gemm", id="cuda.gemv_simt.v1", takes=problem.TAKES)
class GemvSimt:
    """Few rows or columns, up to 16, on the CUDA cores: f32, f16 or bf16, f32 accumulators, any strides.

    Parallel over lines of the wide operand and along k, which is split among blocks where lines are few; what those have is
    added up by a second kernel, in a fixed order. Bytes: the wide operand once, in 16-byte loads where the layout allows;
    the small one once per block, from the cache. Limit: memory; from 8 lines of the small one on, for halves, the f32 rate.
    """

    def accepts(region: RegionSpec) -> Checks:
        yield from checks(region, FEW)

    def least(region: RegionSpec, device: DeviceSpec) -> float:
        return one_launch(region, device) + START_US

    def cost(region: RegionSpec, device: DeviceSpec) -> Cost:
        return simt_plan(region, device).cost

    def workspace(region: RegionSpec, device: DeviceSpec) -> int:
        return workspace(region, simt_plan(region, device))

    def build(region: RegionSpec, device: DeviceSpec) -> list[Launch]:
        from .small_m_body import gemv

        s, (part, staging) = small_m(region), share(region)
        wide, small = (region.operands[x.operand].dtype for x in (s.wide, s.small))
        return launches(
            region,
            simt_plan(region, device),
            part.threads,
            lambda e: gemv(wide, small, part, staging, s.rows, e),
        )
