"""Variants for products with weights of 8 or 4 bits, of as few rows as making a token at a time has: codes are read as they are stored.

A weight of 4 bits takes two instructions to be a half, one of 8 four, beside a product on tensor cores; an H200 has seven for each code of
4 bits that memory brings. So memory is the limit for many lines, and the trip there for few.
"""

from __future__ import annotations

from ...device.spec import DeviceSpec
from ...registry.cost import Cost, one_launch, roofline
from ...registry.variant import Checks, In, Launch, Num, Reject, at_least, at_most, cdiv, multiple, variant
from ...rows import RegionSpec
from ...types import BASIC, TensorDesc, bf16, f16, i8, i32, u8
from . import problem
from .small_m_tiling import EIGHT, LOADED, CodeTile

TAKES = "gemm_codes", "gemm_codes+map"
FEW = 16  # rows
WIDE = 4225  # lines from which on a warp takes two tiles of them: 16 for a block would be more blocks than an H200 has at once
LONG = 48  # steps of a warp along k, from which on there are more warps to share them
# Predicted, from what small_m.py measured on an H200.
START_US = 1.0  # sums of a block, and what is behind them
STEP_US = 0.45  # a trip to memory, two of which are under way
FRACTION = 0.8  # of the bandwidth, where lines are many
EFFICIENCY = 0.4  # of the tensor cores' rate, with eight rows where there may be one


def scale_of(region: RegionSpec) -> tuple[int, TensorDesc]:
    """Its position in `region.operands`, and what it is."""
    tensor = region.anchor.inputs[2]
    return region.inputs.index(tensor), region.tensors[tensor]


def tile_of(region: RegionSpec) -> CodeTile:
    p, _ = problem.read(region)
    bits, group = region.attrs["bits"], p.k // scale_of(region)[1].shape[1]
    columns, tiles = max(1, cdiv(p.m, EIGHT)), 2 if p.n >= WIDE else 1
    step = 4 * LOADED * 8 // bits
    along = 16 if tiles == columns == 1 and cdiv(p.k, step) >= LONG else 8
    return CodeTile(bits, columns, tiles, along, group % step != 0)


@variant("gemm_codes", id="cuda.gemv_codes.v1", takes=TAKES, needs=("sm_80",), dtypes=BASIC | {i8, u8})
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
        return one_launch(region, device) + START_US

    def cost(region: RegionSpec, device: DeviceSpec) -> Cost:
        (p, _), t = problem.read(region), tile_of(region)
        blocks, f = cdiv(p.n, t.mn_extent), problem.epilogue_statistics(region)
        trips = cdiv(p.k, t.tile_k) + f.matrices
        return roofline(
            device, bytes=region.nbytes, flops=2.0 * t.few * p.n * p.k, useful=p.flops, rate=p.dtype.name, efficiency=EFFICIENCY,
            blocks=blocks, blocks_per_sm=t.resident, chain=START_US + trips * STEP_US, memory_efficiency=FRACTION,
            cached=float(blocks * p.m) * p.k * p.dtype.itemsize,
        )  # fmt: skip

    def build(region: RegionSpec, device: DeviceSpec) -> list[Launch]:
        from .small_m_mma_body import gemv_codes

        (p, _), t = problem.read(region), tile_of(region)
        at, scale = scale_of(region)
        w = region.operands[p.b]
        _, _, operands, *_, scales = problem.arguments(region)
        groups = scale.shape[1]
        sizes = tuple(Num(x, i32) for x in (p.n, p.m, p.k, p.k // groups, groups))
        steps = Num(w.stride[0]), Num(p.a_steps[-2])
        args = (In(p.b), In(p.a), In(at), operands, sizes, steps, scales)
        body = gemv_codes(p.dtype, w.dtype, scale.dtype, t, problem.epilogue(region, 1))
        return [Launch(body, (cdiv(p.n, t.mn_extent),), (t.threads,), args)]
