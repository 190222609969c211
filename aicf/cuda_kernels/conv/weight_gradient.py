"""Weight gradients of convolutions on Hopper: the persistent GEMM of gemm/wgmma_body.py over all windows, dy^T times what they have of x, on splits of
the windows, and then the sum of these. Channels last; no im2col in memory."""

from __future__ import annotations

from functools import lru_cache

from ...device.spec import DeviceSpec
from ...registry.cost import Cost
from ...registry.variant import (
    Checks,
    Launch,
    Reject,
    TensorMap,
    at_least,
    at_most,
    cdiv,
    contiguous,
    first_refusal,
    one_op,
    variant,
)
from ...rows import RegionSpec
from ...types import f32
from ..gemm import wgmma as gemm_wgmma
from ..gemm import wgmma_cost
from ..gemm.operands.tma import GemmOperands
from ..gemm.schedule import split_k
from ..gemm.schedule.persistent import clusters, resident
from ..gemm.schedule.split_k import KSplit
from ..gemm.wgmma_results import GemmResults
from ..gemm.wgmma_tiling import WgmmaTiling, k_tile
from ..hopper.units import ATOM
from . import operands as windows
from .gradients import sum_cost, sum_launch
from .problem import ConvolutionProblem, pointers, read

SPLITS, WAVES = (1, 2, 4, 8, 16), (1, 2, 3)  # and as many as fill the device so many times
# Rates fall with all that shared memory takes longer than tensor cores, where a is M-major: 715 TFLOP/s of 128x256, 570 of 128x128, 510 of 64x192
CROWDED = 1.0
MOST_BYTES = 2**28  # of all splits' sums
# Those that some layer of ResNet-50 or a UNet is predicted to be fastest with, or nearly.
OF_WEIGHTS = windows.tilings(
    "128x256 256x128 128x192 128x128 128x128_pingpong 64x192_pingpong 64x128_pingpong 64x128 128x64"
)


@first_refusal
def family(region: RegionSpec) -> Checks:
    yield one_op(region)
    yield contiguous(region)
    p = read(region)
    of = p.windows
    yield windows.half("x", p.dtype)
    if region.strict:
        yield Reject("strict", split_k.STRICT)
    yield at_most("groups", p.groups, 1)
    yield at_most("spatial axes", len(p.sizes), windows.AXES)
    yield at_least("least extent", min(p.c, p.o, p.rows), 1)
    yield from windows.channels_and_alignment(x=p.x, dy=p.y)
    yield windows.undilated(of)
    yield from windows.within_reach(windows.axes_of(of, p.sizes))
    yield at_most("greatest extent", max(p.rows, padded_n(p), *p.x.shape, *p.y.shape), gemm_wgmma.EXTENT)
    yield at_most("channels of x", p.c, 2**15 * ATOM)
    yield at_most("bytes of a sum", 4 * p.o * padded_n(p), MOST_BYTES)


def padded_n(p: ConvolutionProblem) -> int:
    """Columns: 64 channels at a time of each place, the last ones filled up."""
    return p.places * cdiv(p.c, ATOM) * ATOM


@lru_cache(maxsize=256)
def product(region: RegionSpec) -> RegionSpec:
    """As if the windows were a matrix in memory, for the cost and the epilogue of a GEMM."""
    p = read(region)
    return windows.gemm_of((p.rows, p.o), (p.rows, padded_n(p)), p.dtype, trans_a=True)


@lru_cache(maxsize=4096)
def best_split(tiling: WgmmaTiling, region: RegionSpec, device: DeviceSpec) -> tuple[Cost, KSplit]:
    """The number of splits of the windows that is predicted to be fastest."""
    p, of = read(region), product(region)
    # of steps longer than windows, not all of x is read
    operand_bytes = min(p.x.nbytes, p.rows * p.k * p.dtype.itemsize) + p.y.nbytes
    partial = 4 * p.o * padded_n(p)
    at_once, tiles = resident(tiling, device), clusters(tiling, of)
    fills = [max(1, waves * at_once // tiles) for waves in WAVES]
    wanted = {n for n in (*SPLITS, *fills) if n == 1 or (n * partial <= MOST_BYTES and n <= fills[-1])}
    costs = []
    for split in sorted({split_k.divide(p.rows, n, k_tile(p.dtype)) for n in wanted}):
        first = wgmma_cost.cost(tiling, of, device, split, operand_bytes=operand_bytes, crowded=CROWDED)
        total = sum_cost(region, device, split.number, partial)
        costs.append((Cost({**first.terms, "sum of parts": total.us}), split))
    return min(costs, key=lambda pair: pair[0].us)


@variant(
    "convolution_weight_gradient_channels_last", id="cuda.weight_gradient_wgmma.v1", configs=OF_WEIGHTS,
    needs=("sm_90a",), family=family,
)  # fmt: skip
class WeightGradientWgmma:
    """Persistent blocks of consumer warpgroups and a producer, a tile of channels of y x columns at a time: channels of x at places of the kernel. Then the
    sum of the splits, in order.

    Parallel over tiles and splits of the windows. TMA loads 64 windows at a time, of dy as rows of a matrix and of x in its im2col mode; both are
    MN-major for wgmma: f16 or bf16, sums in f32. Channels of x are padded to multiples of 64 on the way. Bytes: both operands once per tile
    that uses them, of which the L2 cache has most; splits' sums, written and read. Limit: tensor cores.
    """

    def accepts(region: RegionSpec, config: WgmmaTiling) -> Checks:
        yield at_most("blocks", 64 * clusters(config, product(region)), 2**31 - 1)

    def cost(region: RegionSpec, device: DeviceSpec, config: WgmmaTiling) -> Cost:
        return best_split(config, region, device)[0]

    def workspace(region: RegionSpec, device: DeviceSpec, config: WgmmaTiling) -> int:
        p = read(region)
        return f32.itemsize * best_split(config, region, device)[1].number * p.o * padded_n(p)

    def build(region: RegionSpec, device: DeviceSpec, config: WgmmaTiling) -> list[Launch]:
        p, split = read(region), best_split(config, region, device)[1]
        n = padded_n(p)
        pitches = cdiv(p.c, ATOM) * ATOM, n, p.o * n
        return [launch(config, region, device, split), sum_launch(region, split.number, pitches)]


def launch(tiling: WgmmaTiling, region: RegionSpec, device: DeviceSpec, split: KSplit) -> Launch:
    from .producer import windows_by_rows

    p, of, (x_at, dy_at), tile = read(region), product(region), pointers(region), k_tile(read(region).dtype)
    axes, size = windows.axes_of(p.windows, p.sizes), p.dtype.itemsize
    rows = TensorMap(dy_at, p.dtype, (p.o, p.rows), p.o * size, (ATOM, tile))
    maps = rows, windows.window_map(x_at, p.x, axes, (ATOM, tile))
    sizes = p.o, padded_n(p), p.rows, split.k, *windows.geometry(axes, cdiv(p.c, ATOM))
    operands = GemmOperands(maps, (False, ()), (False, ()), producing=windows_by_rows)
    results = GemmResults(split_k.raw(of, 2), split_k.PARTIAL, split_k.UNSCALED)
    tiles, name = clusters(tiling, of) * split.number, "weight_gradient_wgmma"
    return gemm_wgmma.launch(tiling, device, operands, results, sizes, tiles, name=name)
