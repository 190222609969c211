"""A variant for products with one to four rows, as decoding a token at a time makes them, of weights that lie along k."""

from __future__ import annotations

from ...device.spec import DeviceSpec
from ...registry.cost import Cost, one_launch, roofline
from ...registry.variant import Checks, In, Launch, Num, Reject, cdiv, variant
from ...rows import RegionSpec
from ...types import i32
from . import problem
from .small_m import LOADED, checks, k_major, run, small_m
from .small_m_warps_body import WARP, Teams

FEW = 4  # lines of the small operand
WARPS = 4  # of a block, or more where a team has more
LOADS, MANY = (
    4,
    2,
)  # runs of a line that a lane has under way; with several small lines, whose runs take registers too
LONGEST = 8  # warps of a team
PAIRED = 8192  # lines from which on a warp takes two: then the small operand is read half as often
# What follows was measured on an H200.
START_US = 0.7  # shuffles, sums of a team, and what is behind them
STEP_US = 0.8  # a trip to memory, that no warp beside hides
FRACTION = 0.8  # of the bandwidth, where lines are many


def teams(region: RegionSpec) -> Teams:
    s, dtype = small_m(region), problem.read(region)[0].dtype
    few, width = 1 << max(0, s.small.mn_extent - 1).bit_length(), LOADED // dtype.itemsize
    most = LOADS if few == 1 else MANY
    steps = cdiv(s.k, WARP * width)  # loads of a lane for a line, if one warp takes it
    team = min(LONGEST, 1 << (cdiv(steps, most) - 1).bit_length())
    loads = min(most, cdiv(steps, team))
    lines = 2 if s.wide.mn_extent >= PAIRED and few == 1 else 1
    return Teams(few, width, lines, team, loads, max(1, WARPS // team))


@variant("gemm", id="cuda.gemv_warps.v1", takes=problem.TAKES)
class GemvWarps:
    """One to four rows or columns, on the CUDA cores: f32, f16 or bf16, f32 accumulators, both operands along k in aligned runs of 16 bytes.

    Parallel over lines of the wide operand, a team of one to eight warps for one or two, and along k. Bytes: the wide operand once; the small
    one for each team, from the cache. Limit: the trip to memory, where lines are short; memory, where they are many.
    """

    def accepts(region: RegionSpec) -> Checks:
        yield from checks(region, FEW)
        s = small_m(region)
        for name, x in (("larger", s.wide), ("smaller", s.small)):
            matrix = region.operands[x.operand]
            width = LOADED // matrix.dtype.itemsize
            if not s.k or not s.wide.mn_extent or not s.small.mn_extent:
                yield Reject("empty", "takes products with elements")
            elif not k_major(x, s.k) or x.k_step != 1 or run(x, s.k, matrix, width) < width:
                yield Reject(
                    "runs", f"the {name} operand is {matrix}, needs whole aligned runs of {width} along k"
                )

    def least(region: RegionSpec, device: DeviceSpec) -> float:
        return one_launch(region, device) + START_US + STEP_US

    def cost(region: RegionSpec, device: DeviceSpec) -> Cost:
        (p, _), s, t = problem.read(region), small_m(region), teams(region)
        blocks = cdiv(s.wide.mn_extent, t.mn_extent)
        f = problem.epilogue_statistics(region)
        trips = cdiv(s.k, t.step * t.team) + f.matrices  # what an epilogue reads comes behind the sums
        return roofline(
            device, bytes=region.nbytes, flops=2.0 * (t.few + 1) * s.wide.mn_extent * s.k, useful=p.flops, efficiency=0.5,
            blocks=blocks, blocks_per_sm=2 * t.resident, chain=START_US + trips * STEP_US, memory_efficiency=FRACTION,
            cached=float(cdiv(s.wide.mn_extent, t.lines) * s.small.mn_extent) * s.k * p.dtype.itemsize,
        )  # fmt: skip

    def build(region: RegionSpec, device: DeviceSpec) -> list[Launch]:
        from .small_m_warps_body import gemv_warps

        s, t = small_m(region), teams(region)
        wide, small = (region.operands[x.operand].dtype for x in (s.wide, s.small))
        _, _, operands, *_, scales = problem.arguments(region)
        sizes = tuple(Num(x, i32) for x in (s.wide.mn_extent, s.small.mn_extent, s.k))
        apart = Num(s.wide.mn_step), Num(s.small.mn_step)
        args = (In(s.wide.operand), In(s.small.operand), operands, sizes, apart, scales)
        body = gemv_warps(wide, small, t, s.rows, problem.epilogue(region, 1))
        return [Launch(body, (cdiv(s.wide.mn_extent, t.mn_extent),), (t.threads,), args)]
