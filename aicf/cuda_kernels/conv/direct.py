"""Convolutions of channels last in groups, or each channel by itself, on the CUDA cores of any GPU: no product is large enough for tiles there."""

from __future__ import annotations

from functools import lru_cache

from ...device.spec import DeviceSpec
from ...registry.cost import Cost, one_launch, roofline
from ...registry.variant import Checks, In, Launch, Num, at_most, cdiv, variant
from ...rows import RegionSpec
from ...types import f32, i32, numel
from ..gemm import problem as gemm_problem
from ..gemm.tile_cost import finish_us
from . import positions
from .positions import WindowProblem, checks, problem
from .tiling import BLOCKS, ROWS, THREADS, DirectTiling

TAKES = "convolution", "convolution+map"
RUNS = 8, 4, 2, 1
LOAD_BYTES, GROUPED = (
    16,
    4,
)  # of what a thread reads at once; elements of it that a grouped convolution has registers for
WIDEST = 32  # threads along channels
# Instructions, estimated from the code: for a place of a window, for a load of a run, for an element of a half type that is widened, and for
# a 16-byte read of weights. The rate at which they are issued is half that of flops, less what loads wait for. Not yet measured.
PLACE, LOAD, WIDEN, WEIGHT = 14.0, 5.0, 1.0, 1.0
ISSUE = 0.6
MEMORY_EFFICIENCY = 0.8


def tiling_of(c: WindowProblem) -> DirectTiling:
    """How a block sums up. Runs are of one group, and aligned."""
    of_group, size = c.product.n // c.groups, c.x.dtype.itemsize
    depth_of_group = c.w.shape[-1]
    depthwise = depth_of_group == of_group == 1 and c.groups > 1

    def whole(of: int, most: int) -> int:
        return next(
            n
            for n in RUNS
            if n <= most and not of % n and n * size <= LOAD_BYTES and c.x.alignment >= n * size
        )

    if depthwise:
        run = depth = whole(c.product.n, RUNS[0])
    else:
        run = next(n for n in (GROUPED, 2, 1) if not of_group % n)
        depth = whole(depth_of_group, GROUPED) if depth_of_group else 1
    wanted = cdiv(c.product.n, run)
    lanes = min(WIDEST, 1 << max(0, (wanted - 1).bit_length()))
    return DirectTiling(depthwise, run, depth, lanes)


def blocks_of(c: WindowProblem) -> int:
    t = tiling_of(c)
    return max(1, cdiv(c.rows, t.windows) * cdiv(c.product.n, t.channels))


@lru_cache(maxsize=256)
def instructions(c: WindowProblem) -> float:
    """Of all threads."""
    t = tiling_of(c)
    loads = max(1, c.w.shape[-1] // (1 if t.depthwise else t.depth))
    each = ROWS * LOAD + (t.run * (1 if t.depthwise else t.depth) / 4) * WEIGHT
    each += ROWS * t.run * (1 if t.depthwise else t.depth)
    if c.x.dtype is not f32:
        each += ROWS * (t.run if t.depthwise else t.depth) * WIDEN
    threads = cdiv(c.rows, t.windows) * t.across * cdiv(c.product.n, t.channels) * t.lanes
    return threads * c.places * (ROWS * PLACE * (2 if c.spread else 1) + loads * each)


@lru_cache(maxsize=256)
def _staged(c: WindowProblem) -> tuple[int, int]:
    """Of weights in shared memory at once: places, and channels of each."""
    t, depth = tiling_of(c), max(1, c.w.shape[-1])
    if depth >= t.steps:
        return 1, t.steps
    return max(1, min(max(1, c.places), t.steps // depth)), depth


def _is_empty(region: RegionSpec) -> bool:
    """Whether there is nothing to compute."""
    return all(t.numel == 0 for t in region.results)


@variant("convolution_channels_last", id="cuda.convolution_direct.v1", takes=TAKES)
class ConvolutionDirect:
    """A block of 256 threads per tile of windows x channels of results; weights in shared memory, a thread four windows of a run of channels.

    Parallel over windows and channels of results. f32 sums, in the order of places and channels. Bytes: x and weights once from memory, x
    again from the caches for each place. Limit: memory where each channel is by itself; instructions where groups have several.
    """

    def accepts(region: RegionSpec) -> Checks:
        if _is_empty(region):
            return
        yield from checks(region)
        c = problem(region)
        yield at_most("channels of results", c.product.n, positions.LIMIT)
        yield at_most("weights of a channel", numel(c.w.shape[1:]), positions.LIMIT)
        yield at_most("blocks", blocks_of(c), positions.LIMIT)

    least = one_launch

    def cost(region: RegionSpec, device: DeviceSpec) -> Cost:
        if _is_empty(region):
            return roofline(device, bytes=region.nbytes)
        c, t = problem(region), tiling_of(problem(region))
        return roofline(
            device, bytes=region.nbytes, flops=2.0 * instructions(c), efficiency=ISSUE, memory_efficiency=MEMORY_EFFICIENCY,
            blocks=blocks_of(c), blocks_per_sm=BLOCKS, finish=finish_us(region, t.windows * t.channels),
        )  # fmt: skip

    def build(region: RegionSpec, device: DeviceSpec) -> list[Launch]:
        from .direct_body import direct

        if _is_empty(region):
            return []
        c, t, p = problem(region), tiling_of(problem(region)), problem(region).product
        operands, scales = gemm_problem.arguments(region)[2], (Num(p.alpha, f32), Num(p.beta, f32))
        of_group = max(1, p.n // c.groups)
        sizes = (
            c.rows,
            p.n,
            max(1, cdiv(p.n, t.channels)),
            c.x.shape[-1],
            c.w.shape[-1],
            of_group,
            *_staged(c),
        )
        body = direct(t, gemm_problem.epilogue(region, t.run), c.spread)
        args = In(p.a), In(p.b), operands, tuple(Num(s, i32) for s in sizes), scales, *c.positions.arguments
        return [Launch(body, (blocks_of(c),), (THREADS,), args)]
