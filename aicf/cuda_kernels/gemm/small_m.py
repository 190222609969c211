"""Variants for matrix products with few rows or few columns, as one token at a time makes them (decode): reading the other
operand is all that takes time. Operands, epilogues and results are those of problem.py.

The operand with few lines (rows of a, columns of b) is called small, the other one wide. A byte of the wide one meets `few` flops for
halves, half as many for f32. Of 4.8 TB/s and 66.9 TFLOP/s, an H200's, 14 flops a byte are the balance, and half of that after
what widening, addressing and reading the small one from shared memory take. So the prediction is: CUDA cores keep up with memory
to 4 lines of halves, and to 16 of f32. Beyond that halves need tensor cores: the wide operand is mma's 16 lines, the small one its 8. At 64
lines a byte of halves meets 64 flops, where an H200's tensor cores balance at 206: memory is the limit throughout, and beside it the
small one's way through L2, once for each block.

Weights of 8 or 4 bits are read as they are stored. One of 4 bits takes two instructions to be a half, one of 8 four, beside a product on
tensor cores; an H200 has seven for each code of 4 bits that memory brings. So memory is the limit for many lines, and the trip there for few.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

from ...device.calibration import family
from ...device.spec import DeviceSpec, constants
from ...registry.cost import Cost, one_launch, roofline
from ...registry.variant import (
    Checks,
    In,
    Launch,
    Num,
    NumericClass,
    Reject,
    at_least,
    at_most,
    cdiv,
    multiple,
    variant,
)
from ...rows import RegionSpec
from ...types import BASIC, TensorDesc, bf16, f16, f32, i8, i32, u8
from . import numerics, problem
from .problem import GemmOperand
from .schedule import split_k
from .small_m_tiling import (
    CHUNK,
    EIGHT,
    FEW,
    LOADED,
    MMA_FEW,
    WARP,
    WARPS_FEW,
    CodeTile,
    Share,
    Staging,
    Teams,
    Warps,
)
from .tilings import simt

SPLITS = 64
# Of warps: runs of a line that a lane has under way, for one small line and for several, whose runs take registers too
LOADS, MANY_LOADS = 4, 2
WARPS_OF_BLOCK, LONGEST = 4, 8  # or more where a team has more; warps of a team, at most
WIDE_CODES = 4225  # lines from which on a warp takes two tiles of them: 16 for a block would be more blocks than an H200 has at once
LONG_CODES = 48  # steps of a warp along k, from which on there are more warps to share them
CODES_TAKES = "gemm_codes", "gemm_codes+map"
PAIRED = 8192  # lines from which on a warp takes two: then the small operand is read half as often


@family("gemm.small_m")
@dataclass(frozen=True)
class SmallMConstants:
    """Constants of products with few lines, measured on an H200; of codes, predicted from those of warps.

    start_us  until loads are on their way and when they are there: positions, the small operand to shared memory, threads' sums to one
    step_us  along k: a trip to memory, and what comes with it, that no block beside hides
    result_us, result_load_us, result_flop_us  for each result of a thread, one after the other: to add it up, to load an element for it, and
        for each flop of the map
    efficiency  of the f32 rate: reads of shared memory and addressing are beside the multiply-adds
    mma_efficiency  of the tensor cores' rate; it is never the limit
    warps_start_us, warps_step_us  of warps: shuffles, sums of a team, and what is behind them; a trip to memory, that no warp beside hides
    codes_start_us, codes_step_us  of codes: sums of a block, and what is behind them; a trip to memory, two of which are under way
    memory_efficiency  of the bandwidth, that operands are loaded at
    """

    start_us: float = 2.6
    step_us: float = 2.2
    result_us: float = 0.025
    result_load_us: float = 0.28
    result_flop_us: float = 0.01
    efficiency: float = 0.45
    mma_efficiency: float = 0.4
    warps_start_us: float = 0.7
    warps_step_us: float = 0.8
    codes_start_us: float = 1.0
    codes_step_us: float = 0.45
    memory_efficiency: float = 0.8


def k_major(x: GemmOperand) -> bool:
    """Whether neighbours in memory are neighbours along k."""
    return x.mn.extent == 1 or (x.k.extent > 1 and x.k.step <= x.mn.step)


def run(x: GemmOperand, longest: int) -> int:
    """How many neighbours one load may take: every run of them is whole and aligned."""
    fast, slow = (x.k, x.mn) if k_major(x) else (x.mn, x.k)
    width = longest
    while width > 1 and (
        fast.step != 1
        or fast.extent % width
        or (slow.extent > 1 and slow.step % width)
        or x.matrix.alignment < width * x.matrix.dtype.itemsize
    ):
        width //= 2
    return width


class SmallM(NamedTuple):
    """rows: the small operand's lines are rows of the result, the wide one's its columns; else the other way round."""

    wide: GemmOperand
    small: GemmOperand
    k: int
    rows: bool

    @property
    def few(self) -> int:
        """Lines of the small operand, rounded up to a power of two."""
        return 1 << max(0, self.small.mn.extent - 1).bit_length()


def small_m(region: RegionSpec) -> SmallM:
    """A product as its wide and its small operand."""
    a, b = problem.operands(region)
    return SmallM(b, a, a.k.extent, True) if a.mn.extent <= b.mn.extent else SmallM(a, b, a.k.extent, False)


def checks(region: RegionSpec, few: int) -> Checks:
    """What every kernel for few lines takes: one product, whose sums may be added up from splits."""
    yield from problem.checks(region)
    p, _ = problem.read(region)
    if region.strict:
        yield Reject("strict", "sums of parts of k are added up; strict takes one sum, in order")
    yield at_most("axes of the batch", len(p.batch), 0)
    yield at_most("smaller of m and n", min(p.m, p.n), few)


def by_rows(region: RegionSpec, device: DeviceSpec) -> NumericClass | Reject:
    """The numeric class of kernels for few rows: none, as other numbers of rows are added otherwise."""
    return numerics.FEW_LINES


# --- how k is split ---------------------------------------------------------------------------------------------------


class Rate(NamedTuple):
    """How fast a block is: flops for each number of the wide operand, what else is done beside the products included; the device's rate, and
    the share of it."""

    flops: float
    of: str
    efficiency: float


class Plan(NamedTuple):
    """`chunk` of k for each of `splits` blocks that share lines; with several, another kernel adds up what they have."""

    splits: int
    chunk: int
    blocks: int
    cost: Cost


@lru_cache(maxsize=256)
def plan(region: RegionSpec, block: Share | Warps, rate: Rate, device: DeviceSpec) -> Plan:
    """The fastest, as predicted: another launch is worth it where there would be few blocks with long ways to go."""
    (p, _), s = problem.read(region), small_m(region)
    steps, tiles = cdiv(s.k, block.tile_k), max(1, cdiv(s.wide.mn.extent, block.mn_extent))
    most = min(SPLITS, steps // 2) if p.m * p.n < 2**31 else 1
    best = None
    for wanted in (1 << i for i in range(max(1, most).bit_length())):
        chunk = max(1, cdiv(steps, wanted)) * block.tile_k
        splits = max(1, cdiv(s.k, chunk))
        if best is not None and _least(block, device, splits, chunk) > best.cost.us:
            continue
        cost = _cost(region, block, rate, device, splits, chunk)
        if best is None or cost.us < best.cost.us:
            best = Plan(splits, chunk, tiles * splits, cost)
    assert best is not None
    return best


def _results(block: Share | Warps) -> int:
    """That each thread adds up, one after the other, of what threads along k have."""
    return cdiv(block.mn_extent * block.few, block.threads)


def _least(block: Share | Warps, device: DeviceSpec, splits: int, chunk: int) -> float:
    """Of `_cost`, with several splits: two launches, and the steps of both."""
    steps = (cdiv(chunk, block.tile_k) - 1) * constants(SmallMConstants, device).step_us + _results(
        block
    ) * constants(SmallMConstants, device).result_us
    return (
        2 * one_launch(None, device)
        + constants(SmallMConstants, device).start_us
        + steps
        + simt(device).sum_step_us * splits
    )


def _cost(
    region: RegionSpec, block: Share | Warps, rate: Rate, device: DeviceSpec, splits: int, chunk: int
) -> Cost:
    """The wide operand once, the small one from the cache for each block; no step in less than a trip to memory."""
    (p, _), s = problem.read(region), small_m(region)
    tiles, k_extent = max(1, cdiv(s.wide.mn.extent, block.mn_extent)), min(chunk, max(1, s.k))
    through, total = split_k.sum_cost(region, p, splits, device)
    # of what follows the product, a split has nothing
    each = constants(SmallMConstants, device).result_us
    if splits == 1:
        f = problem.epilogue_statistics(region)
        each += (
            constants(SmallMConstants, device).result_load_us * f.matrices
            + constants(SmallMConstants, device).result_flop_us * f.flops
        )
    cost = roofline(
        device, bytes=split_k.operand_bytes(p) + through if splits > 1 else region.nbytes,
        flops=rate.flops * s.wide.mn.extent * s.k, useful=p.flops, rate=rate.of, efficiency=rate.efficiency,
        blocks=tiles * splits, blocks_per_sm=block.resident,
        chain=constants(SmallMConstants, device).start_us + (cdiv(k_extent, block.tile_k) - 1) * constants(SmallMConstants, device).step_us + _results(block) * each, memory_efficiency=constants(SmallMConstants, device).memory_efficiency,
        cached=float(tiles * s.small.mn.extent + s.wide.mn.extent) * s.k * p.dtype.itemsize,
    )  # fmt: skip
    return cost.plus(**{"sum of parts": total.us}) if splits > 1 else cost


def workspace(region: RegionSpec, plan: Plan) -> int:
    p, _ = problem.read(region)
    return p.m * p.n * plan.splits * f32.itemsize if plan.splits > 1 else 0


def launches(
    region: RegionSpec, plan: Plan, threads: int, make: Callable[[Any], Callable[..., None]]
) -> list[Launch]:
    """`make(epilogue)`: the body. It takes (wide, small, operands, sizes, wide_steps, small_steps, scales): see gemm/small_m_body.py."""
    s, split = small_m(region), split_k.KSplit(plan.splits, plan.chunk) if plan.splits > 1 else None
    finish, (_, _, operands, *_, scales) = split_k.parts(region, 1, 1, split)
    sizes = tuple(Num(x, i32) for x in (s.wide.mn.extent, s.small.mn.extent, s.k, plan.chunk))
    walks = tuple((Num(x.mn.step), Num(x.k.step)) for x in (s.wide, s.small))
    args = (In(s.wide.operand), In(s.small.operand), operands, sizes, *walks, scales)
    product = Launch(make(finish), (plan.blocks,), (threads,), args)
    return [product] if split is None else [product, split_k.total(region, plan.splits)]


# --- on CUDA cores ----------------------------------------------------------------------------------------------------


def share(region: RegionSpec) -> tuple[Share, Staging]:
    s, size = small_m(region), problem.read(region)[0].dtype.itemsize
    longest = min(LOADED // size, 8 if s.few <= 4 else 4)
    made = Share(s.few, k_major(s.wide), run(s.wide, longest), size)
    most = min(4, max(1, s.few * made.tile_k // made.threads))
    return made, Staging(k_major(s.small), run(s.small, most) if k_major(s.small) else 1)


def simt_plan(region: RegionSpec, device: DeviceSpec) -> Plan:
    """Widening a half is as much as a multiply-add."""
    part, _ = share(region)
    flops = 2.0 * (part.few + (part.itemsize < f32.itemsize))
    return plan(region, part, Rate(flops, "f32", constants(SmallMConstants, device).efficiency), device)


@variant("gemm", id="cuda.gemv_simt.v2", takes=problem.TAKES)
class GemvSimt:
    """Few rows or columns, up to 16, on the CUDA cores: f32, f16 or bf16, f32 accumulators, any strides.

    Parallel over lines of the wide operand and along k, which is split among blocks where lines are few; what those have is
    added up by a second kernel, in a fixed order. Bytes: the wide operand once, in 16-byte loads where the layout allows;
    the small one once per block, from the cache. Limit: memory; from 8 lines of the small one on, for halves, the f32 rate.
    """

    def accepts(region: RegionSpec) -> Checks:
        yield from checks(region, FEW)

    def least(region: RegionSpec, device: DeviceSpec) -> float:
        return one_launch(region, device) + constants(SmallMConstants, device).start_us

    numerics = by_rows

    def cost(region: RegionSpec, device: DeviceSpec) -> Cost:
        return simt_plan(region, device).cost

    def workspace(region: RegionSpec, device: DeviceSpec) -> int:
        return workspace(region, simt_plan(region, device))

    def build(region: RegionSpec, device: DeviceSpec) -> list[Launch]:
        from .small_m_body import gemv

        s, (part, staging) = small_m(region), share(region)
        dtypes, chosen = (s.wide.matrix.dtype, s.small.matrix.dtype), simt_plan(region, device)
        return launches(region, chosen, part.threads, lambda e: gemv(*dtypes, part, staging, s.rows, e))


# --- on tensor cores --------------------------------------------------------------------------------------------------


def warps(region: RegionSpec) -> Warps:
    s = small_m(region)
    return Warps(max(8, s.few), k_major(s.wide))


def _mma_plan(region: RegionSpec, device: DeviceSpec) -> Plan:
    w, dtype = warps(region), problem.read(region)[0].dtype
    return plan(
        region, w, Rate(2.0 * w.few, dtype.name, constants(SmallMConstants, device).mma_efficiency), device
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
        s, p = small_m(region), problem.read(region)[0]
        if p.dtype not in (f16, bf16):
            yield Reject("dtype", f"the product is in {p.dtype}, needs f16 or bf16")
        yield from checks(region, MMA_FEW)
        if not k_major(s.small) or run(s.small, CHUNK) < CHUNK:
            needed = f"whole aligned runs of {CHUNK} along k"
            yield Reject("small", f"the smaller operand is {s.small.matrix}, needs {needed}")
        width = warps(region).width
        if run(s.wide, width) < width:
            yield Reject(
                "wide", f"the larger operand is {s.wide.matrix}, needs whole aligned runs of {width}"
            )

    numerics = by_rows

    def cost(region: RegionSpec, device: DeviceSpec) -> Cost:
        return _mma_plan(region, device).cost

    def workspace(region: RegionSpec, device: DeviceSpec) -> int:
        return workspace(region, _mma_plan(region, device))

    def build(region: RegionSpec, device: DeviceSpec) -> list[Launch]:
        from .small_m_mma_body import gemv_mma

        s, w, dtype = small_m(region), warps(region), problem.read(region)[0].dtype
        return launches(region, _mma_plan(region, device), w.threads, lambda e: gemv_mma(dtype, w, s.rows, e))


# --- by warps, for one to four lines whose operands both are along k --------------------------------------------------


def teams(region: RegionSpec) -> Teams:
    s, width = small_m(region), LOADED // problem.read(region)[0].dtype.itemsize
    most = LOADS if s.few == 1 else MANY_LOADS
    steps = cdiv(s.k, WARP * width)  # loads of a lane for a line, if one warp takes it
    team = min(LONGEST, 1 << (cdiv(steps, most) - 1).bit_length())
    lines = 2 if s.wide.mn.extent >= PAIRED and s.few == 1 else 1
    return Teams(s.few, width, lines, team, min(most, cdiv(steps, team)), max(1, WARPS_OF_BLOCK // team))


@variant("gemm", id="cuda.gemv_warps.v1", takes=problem.TAKES)
class GemvWarps:
    """One to four rows or columns, on the CUDA cores: f32, f16 or bf16, f32 accumulators, both operands along k in aligned runs of 16 bytes.

    Parallel over lines of the wide operand, a team of one to eight warps for one or two, and along k. Bytes: the wide operand once; the small
    one for each team, from the cache. Limit: the trip to memory, where lines are short; memory, where they are many.
    """

    def accepts(region: RegionSpec) -> Checks:
        yield from checks(region, WARPS_FEW)
        s = small_m(region)
        for name, x in (("larger", s.wide), ("smaller", s.small)):
            width = LOADED // x.matrix.dtype.itemsize
            if not s.k or not s.wide.mn.extent or not s.small.mn.extent:
                yield Reject("empty", "takes products with elements")
            elif not k_major(x) or x.k.step != 1 or run(x, width) < width:
                needed = f"whole aligned runs of {width} along k"
                yield Reject("runs", f"the {name} operand is {x.matrix}, needs {needed}")

    def least(region: RegionSpec, device: DeviceSpec) -> float:
        return (
            one_launch(region, device)
            + constants(SmallMConstants, device).warps_start_us
            + constants(SmallMConstants, device).warps_step_us
        )

    numerics = by_rows

    def cost(region: RegionSpec, device: DeviceSpec) -> Cost:
        (p, _), s, t = problem.read(region), small_m(region), teams(region)
        # what an epilogue reads comes behind the sums
        trips = cdiv(s.k, t.step * t.team) + problem.epilogue_statistics(region).matrices
        return roofline(
            device, bytes=region.nbytes, flops=2.0 * (t.few + 1) * s.wide.mn.extent * s.k, useful=p.flops, efficiency=0.5,
            blocks=cdiv(s.wide.mn.extent, t.mn_extent), blocks_per_sm=2 * t.resident, chain=constants(SmallMConstants, device).warps_start_us + trips * constants(SmallMConstants, device).warps_step_us,
            memory_efficiency=constants(SmallMConstants, device).memory_efficiency, cached=float(cdiv(s.wide.mn.extent, t.lines) * s.small.mn.extent) * s.k * p.dtype.itemsize,
        )  # fmt: skip

    def build(region: RegionSpec, device: DeviceSpec) -> list[Launch]:
        from .small_m_body import gemv_warps

        s, t = small_m(region), teams(region)
        _, _, operands, *_, scales = problem.arguments(region)
        sizes = tuple(Num(x, i32) for x in (s.wide.mn.extent, s.small.mn.extent, s.k))
        apart = Num(s.wide.mn.step), Num(s.small.mn.step)
        args = (In(s.wide.operand), In(s.small.operand), operands, sizes, apart, scales)
        body = gemv_warps(s.wide.matrix.dtype, s.small.matrix.dtype, t, s.rows, problem.epilogue(region, 1))
        return [Launch(body, (cdiv(s.wide.mn.extent, t.mn_extent),), (t.threads,), args)]


# --- weights of 8 and 4 bits ------------------------------------------------------------------------------------------


def scale_of(region: RegionSpec) -> tuple[int, TensorDesc]:
    """Its position in `region.operands`, and what it is."""
    tensor = region.anchor.inputs[2]
    return region.inputs.index(tensor), region.tensors[tensor]


def code_tile(region: RegionSpec) -> CodeTile:
    p, _ = problem.read(region)
    bits, group = region.attrs["bits"], p.k // scale_of(region)[1].shape[1]
    columns, tiles = max(1, cdiv(p.m, EIGHT)), 2 if p.n >= WIDE_CODES else 1
    step = 4 * LOADED * 8 // bits
    along = 16 if tiles == columns == 1 and cdiv(p.k, step) >= LONG_CODES else 8
    return CodeTile(bits, columns, tiles, along, group % step != 0)


@variant("gemm_codes", id="cuda.gemv_codes.v1", takes=CODES_TAKES, needs=("sm_80",), dtypes=BASIC | {i8, u8})
class GemvCodes:
    """Up to 16 rows of f16 or bf16, weights of 8 or 4 bits along k, on tensor cores by mma.sync m16n8k16; f32 accumulators.

    Parallel over lines of codes, 16 or 32 for a block, and along k, which the warps of a block share; what those have is added up in their order.
    Loads of codes are of 16 bytes. Bytes: codes and scales once, the rows once for each block, from the cache. Limit: memory, where
    lines are many; the trip there for few.
    """

    def accepts(region: RegionSpec) -> Checks:
        yield from problem.checks(region)
        p, _ = problem.read(region)
        if p.dtype not in (f16, bf16):
            yield Reject("dtype", f"x is {p.dtype}, needs f16 or bf16")
        if region.strict:
            yield Reject("strict", "sums of parts of k are added up; strict takes one sum, in order")
        yield at_most("axes of the batch", len(p.batch), 0)
        yield at_most("rows", p.m, FEW)
        yield at_least("least extent", min(p.m, p.n, p.k), 1)
        x, w, (_, scale) = region.operands[p.a], region.operands[p.b], scale_of(region)
        chunk = LOADED * 8 // region.attrs["bits"]
        yield multiple("k", p.k, chunk)
        yield multiple("group", p.k // scale.shape[1], chunk)
        *_, x_step, x_k = p.a_steps
        if x_k != 1 or (p.m > 1 and x_step % EIGHT) or x.alignment < LOADED:
            yield Reject("rows", f"x is {x}, needs rows along k that begin at multiples of {LOADED} bytes")
        if w.stride[1] != 1 or w.stride[0] % LOADED or w.alignment < LOADED:
            yield Reject("rows", f"w is {w}, needs rows along k that begin at multiples of {LOADED} bytes")
        if not scale.contiguous:
            yield Reject("contiguous", f"scale is {scale}, needs row-major")

    def least(region: RegionSpec, device: DeviceSpec) -> float:
        return one_launch(region, device) + constants(SmallMConstants, device).codes_start_us

    numerics = by_rows

    def cost(region: RegionSpec, device: DeviceSpec) -> Cost:
        (p, _), t = problem.read(region), code_tile(region)
        blocks, f = cdiv(p.n, t.mn_extent), problem.epilogue_statistics(region)
        trips = cdiv(p.k, t.tile_k) + f.matrices
        return roofline(
            device, bytes=region.nbytes, flops=2.0 * t.few * p.n * p.k, useful=p.flops, rate=p.dtype.name, efficiency=constants(SmallMConstants, device).mma_efficiency,
            blocks=blocks, blocks_per_sm=t.resident, chain=constants(SmallMConstants, device).codes_start_us + trips * constants(SmallMConstants, device).codes_step_us, memory_efficiency=constants(SmallMConstants, device).memory_efficiency,
            cached=float(blocks * p.m) * p.k * p.dtype.itemsize,
        )  # fmt: skip

    def build(region: RegionSpec, device: DeviceSpec) -> list[Launch]:
        from .small_m_mma_body import gemv_codes

        (p, _), t = problem.read(region), code_tile(region)
        at, scale = scale_of(region)
        w = region.operands[p.b]
        _, _, operands, *_, scales = problem.arguments(region)
        groups = scale.shape[1]
        sizes = tuple(Num(x, i32) for x in (p.n, p.m, p.k, p.k // groups, groups))
        steps = Num(w.stride[0]), Num(p.a_steps[-2])
        args = (In(p.b), In(p.a), In(at), operands, sizes, steps, scales)
        body = gemv_codes(p.dtype, w.dtype, scale.dtype, t, problem.epilogue(region, 1))
        return [Launch(body, (cdiv(p.n, t.mn_extent),), (t.threads,), args)]
