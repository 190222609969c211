"""Convolutions of channels last in groups, or each channel by itself, on the CUDA cores of any GPU: no product is large enough for tiles there."""

from __future__ import annotations

from functools import lru_cache

from ...device.spec import DeviceSpec
from ...registry.cost import Cost, one_launch, roofline
from ...registry.variant import Checks, Launch, NumericClass, Reject, at_most, cdiv, variant
from ...rows import RegionSpec
from ...types import f32, numel
from ..gemm import problem as gemm_problem
from ..gemm.tilings import finish_us, simt
from .problem import LIMIT, TAKES, ConvolutionProblem, checks, numbers, read
from .tiling import BLOCKS, ROWS, THREADS, DirectTiling

RUNS = 8, 4, 2, 1
LOAD_BYTES = 16  # of what a thread reads at once
GROUPED = 4  # elements of it that a grouped convolution has registers for
WIDEST = 32  # threads along channels
# Instructions, estimated from the code: for a place of a window, for a load of a run, for an element of a half type that is widened, and for
# a 16-byte read of weights. The rate at which they are issued is half that of flops, less what loads wait for. Not yet measured.
PLACE, LOAD, WIDEN, WEIGHT = 14.0, 5.0, 1.0, 1.0
ISSUE = 0.6
MEMORY_EFFICIENCY = 0.8


def tiling_of(p: ConvolutionProblem) -> DirectTiling:
    """How a block sums up. Runs are of one group, and aligned."""
    size, depthwise = p.dtype.itemsize, p.c == p.o == 1 and p.groups > 1

    def longest(of: int, most: int) -> int:
        fits = (n for n in RUNS if n <= most and not of % n and n * size <= LOAD_BYTES)
        return next(n for n in fits if p.x.alignment >= n * size)

    if depthwise:
        run = depth = longest(p.n, RUNS[0])
    else:
        run = next(n for n in (GROUPED, 2, 1) if not p.o % n)
        depth = longest(p.c, GROUPED) if p.c else 1
    wanted = cdiv(p.n, run)
    lanes = min(WIDEST, 1 << max(0, (wanted - 1).bit_length()))
    return DirectTiling(depthwise, run, depth, lanes)


def blocks_of(p: ConvolutionProblem) -> int:
    t = tiling_of(p)
    return max(1, cdiv(p.rows, t.windows) * cdiv(p.n, t.channels))


@lru_cache(maxsize=256)
def instructions(p: ConvolutionProblem) -> float:
    """Of all threads."""
    t = tiling_of(p)
    deep = 1 if t.depthwise else t.depth
    loads = max(1, p.c // deep)
    each = ROWS * LOAD + (t.run * deep / 4) * WEIGHT
    each += ROWS * t.run * deep
    if p.dtype is not f32:
        each += ROWS * (t.run if t.depthwise else t.depth) * WIDEN
    threads = cdiv(p.rows, t.windows) * t.across * cdiv(p.n, t.channels) * t.lanes
    return threads * p.places * (ROWS * PLACE * (2 if p.spread else 1) + loads * each)


def weights_at_once(p: ConvolutionProblem) -> tuple[int, int]:
    """Of weights in shared memory: places, and channels of each."""
    t, depth = tiling_of(p), max(1, p.c)
    if depth >= t.steps:
        return 1, t.steps
    return max(1, min(max(1, p.places), t.steps // depth)), depth


def _is_empty(region: RegionSpec) -> bool:
    """Whether there is nothing to compute."""
    return all(t.numel == 0 for t in region.results)


@variant("convolution_channels_last", id="cuda.convolution_direct.v1", takes=TAKES)
class ConvolutionDirect:
    """A block of 256 threads per tile of windows x channels of results; weights in shared memory, a thread four windows of a run of channels.

    Parallel over windows and channels of results. f32 sums, in the order of places and channels. Bytes: x and weights once from memory, x
    again from the caches for each place. Limit: memory where each channel is by itself; instructions where groups have several.
    """

    least = one_launch

    def accepts(region: RegionSpec) -> Checks:
        if _is_empty(region):
            return
        yield from checks(region)
        p = read(region)
        yield at_most("channels of results", p.n, LIMIT)
        yield at_most("weights of a channel", numel(p.w.shape[1:]), LIMIT)
        yield at_most("blocks", blocks_of(p), LIMIT)

    def numerics(region: RegionSpec, device: DeviceSpec) -> NumericClass | Reject:
        """A chain of fused multiply-adds for each result, whatever the tile: places outside of x add zeros."""
        return NumericClass(
            "fma in f32", max(1, read(region).places * read(region).c), "by places and channels"
        )

    def cost(region: RegionSpec, device: DeviceSpec) -> Cost:
        if _is_empty(region):
            return roofline(device, bytes=region.nbytes)
        p, t = read(region), tiling_of(read(region))
        return roofline(
            device, bytes=region.nbytes, flops=2.0 * instructions(p), efficiency=ISSUE, memory_efficiency=MEMORY_EFFICIENCY,
            blocks=blocks_of(p), blocks_per_sm=BLOCKS, finish=finish_us(simt(device), region, t.windows * t.channels),
        )  # fmt: skip

    def build(region: RegionSpec, device: DeviceSpec) -> list[Launch]:
        from .direct_body import direct

        if _is_empty(region):
            return []
        p, t = read(region), tiling_of(read(region))
        x, w, operands, *_, scales = gemm_problem.arguments(region)
        tiles, channels = max(1, cdiv(p.n, t.channels)), (p.x.shape[-1], p.c, max(1, p.o))
        sizes = numbers((p.rows, p.n, tiles, *channels, *weights_at_once(p)))
        body = direct(t, gemm_problem.epilogue(region, t.run), p.spread)
        return [
            Launch(body, (blocks_of(p),), (THREADS,), (x, w, operands, sizes, scales, *numbers(p.geometry)))
        ]
