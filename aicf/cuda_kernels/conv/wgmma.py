"""Convolutions of channels last on Hopper, and their gradients: the persistent GEMM of gemm/wgmma_body.py, one of whose operands are windows that TMA
finds in the tensor: no im2col in memory.

forward           windows over x, times the kernel; epilogues and results are those of a GEMM
data gradient     windows over dy, times the kernel as it is in memory: its transpose is N-major, its places in reverse
of strides        a launch for each phase, those elements of x at one position between two windows. Elements of a phase are reached by the same
                  places of the kernel, a stride apart, and windows over dy without strides. So each is a data gradient with fewer places: nothing
                  is multiplied that is zero. Results are stored where the elements are in x
weight gradient   dy^T times windows over x, on splits of the windows, and then the sum of these
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from math import prod

from ...device.calibration import family
from ...device.spec import DeviceSpec
from ...registry.cost import Cost, early_us
from ...registry.variant import (
    Checks,
    In,
    Launch,
    NumericClass,
    Out,
    Reject,
    TensorMap,
    at_least,
    at_most,
    cdiv,
    contiguous,
    first_refusal,
    multiple,
    one_op,
    variant,
)
from ...rows import RegionSpec
from ...types import TensorDesc, f32
from ..gemm import problem as gemm_problem
from ..gemm import wgmma as gemm_wgmma
from ..gemm import wgmma_cost
from ..gemm.operands.tma import GemmOperands
from ..gemm.schedule import split_k
from ..gemm.schedule.persistent import clusters, resident
from ..gemm.schedule.split_k import KSplit
from ..gemm.wgmma_cost import Leaving, WgmmaConstants
from ..gemm.wgmma_results import GemmResults, results_of
from ..gemm.wgmma_tiling import TILINGS, WgmmaTiling, k_tile, tilings
from ..hopper.units import ATOM, TMA_ALIGNMENT, WARPS
from . import operands as windows
from .gradients import sum_cost, sum_launch
from .problem import TAKES, ConvolutionProblem, pointers, read

Source = tuple[In, TensorDesc]
MOST_BLOCKS = 2**31 - 1
MOST_PHASES = 16
ROWS_SUBTILE_US = 0.2  # for a consumer to finish 64 x 64 results and store them by warps: a guess


def checks(region: RegionSpec, called: tuple[str, str] = ("x", "w")) -> Checks:
    """Of what windows slide over and a kernel, which are called so."""
    yield from gemm_problem.checks(region)
    p, _ = gemm_problem.read(region)
    yield windows.half(called[0], p.dtype)
    x, w, of = region.operands[p.a], region.operands[p.b], p.windows
    yield at_most("groups", region.anchor.attrs["groups"], 1)
    yield at_most("spatial axes", x.rank - 2, windows.AXES)
    yield at_least("least extent of results", min(p.m, p.n, p.k, p.count), 1)
    yield at_most("axes of the batch", len(p.batch), 0)
    yield windows.whole_units("channels", x)
    for name, t in zip(called, (x, w)):
        if not t.contiguous:
            yield Reject("contiguous", f"{name} is {t}, needs rows of channels, one after the other")
        yield windows.aligned(name, t)
    assert of is not None
    yield windows.undilated(of)
    yield from windows.within_reach(windows.axes_of(of, x.shape[1:-1]))
    yield at_most("greatest extent", max(p.m, p.n, padded_k(region), *x.shape), gemm_wgmma.EXTENT)


def padded_k(region: RegionSpec) -> int:
    """K-tiles of channels, the last one filled up, for each place of the kernel."""
    p, _ = gemm_problem.read(region)
    channels, tile = region.operands[p.a].shape[-1], k_tile(p.dtype)
    return p.k // max(1, channels) * cdiv(channels, tile) * tile


@family("convolution.wgmma")
@dataclass(frozen=True)
class ConvolutionConstants(WgmmaConstants):
    """As products have them, but for terms that were fitted to products alone: bytes of results count once, ways to memory and direct stores
    are no limits."""

    written: float = 1.0
    way: float = 1e9
    shared_way: float = 1e9
    stored_us: float = 0.0
    stored_pairs_us: float = 0.0
    stored_ones_us: float = 0.0
    lines_stored_us: float = 0.0


def _accepts(region: RegionSpec, config: WgmmaTiling) -> Checks:
    yield at_most("blocks", clusters(config, region), MOST_BLOCKS)


def _cost(region: RegionSpec, device: DeviceSpec, config: WgmmaTiling) -> Cost:
    return wgmma_cost.cost(config, region, device, k=padded_k(region), record=ConvolutionConstants)


# --- convolutions -----------------------------------------------------------------------------------------------------

WHOLE = tuple(t for t in TILINGS if t.together == 1)


@variant(
    "convolution_channels_last", id="cuda.convolution_wgmma.v1", configs=WHOLE, takes=TAKES, needs=("sm_90a",),
    family=first_refusal(checks),
)  # fmt: skip
class ConvolutionWgmma:
    """Persistent blocks of consumer warpgroups and a producer, a tile of windows x channels of results at a time.

    Parallel over tiles. TMA loads channels of windows, for one place of the kernel after the other, in its im2col mode, and wgmma
    multiplies them out of shared memory: f16 or bf16, sums in f32. Channels are padded to multiples of 64 on the way. Bytes: both
    operands once per tile that uses them, of which the L2 cache has most. Limit: tensor cores.
    """

    accepts, cost = _accepts, _cost

    def numerics(region: RegionSpec, device: DeviceSpec, config: WgmmaTiling) -> NumericClass | Reject:
        """K-tiles of channels, of one place after another, whatever the tile: no config divides them."""
        p, _ = gemm_problem.read(region)
        return NumericClass(f"wgmma {p.dtype} in f32", p.k, "by places and K-tiles of channels")

    def build(region: RegionSpec, device: DeviceSpec, config: WgmmaTiling) -> list[Launch]:
        return [launch(config, region, device)]


def launch(tiling: WgmmaTiling, region: RegionSpec, device: DeviceSpec, transposed: bool = False) -> Launch:
    """A launch of a convolution; or transposed, of a data gradient without strides, as a convolution of dy."""
    p, _ = gemm_problem.read(region)
    assert p.windows is not None
    x, w, window = region.operands[p.a], region.operands[p.b], p.windows.window
    axes = windows.axes_of(p.windows, x.shape[1:-1])
    chunks = cdiv(x.shape[-1], k_tile(p.dtype))
    reverse = (prod(window) - 1, -1, -window[-1], 0) if transposed else ()  # places of the kernel
    sizes = p.m, p.n, padded_k(region), *windows.geometry(axes, chunks), *reverse
    return gemm_wgmma.launch(
        tiling, device, _operands(tiling, axes, (In(p.a), x), (In(p.b), w), transposed), results_of(tiling, region), sizes,
        clusters(tiling, region), name="data_gradient_wgmma" if transposed else "convolution_wgmma",
    )  # fmt: skip


def _operands(
    tiling: WgmmaTiling, axes: windows.Axes, x: Source, w: Source, transposed: bool
) -> GemmOperands:
    """Windows over x and the kernel w, each as where it is and what."""
    from .producer import CONVOLUTION, DATA_GRADIENT

    tile = k_tile(x[1].dtype)
    channels, results = (ATOM, tile) if transposed else (tile, tiling.n)
    maps = windows.window_map(*x, axes, (tile, tiling.m)), windows.kernel_map(*w, channels, results)
    return GemmOperands(maps, b=(not transposed, ()), producing=DATA_GRADIENT if transposed else CONVOLUTION)


# --- data gradients ---------------------------------------------------------------------------------------------------

# Those that some layer of ResNet-50 or a UNet is predicted to be fastest with, or nearly.
OF_DATA = tilings("128x256 256x128 128x192 192x128 128x128 128x128_pingpong 64x128_pingpong 128x64 64x64")
OF_STRIDES = tilings("128x256 128x192 128x128 128x128_pingpong 128x64")


@first_refusal
def data_family(region: RegionSpec) -> Checks:
    strides = tuple(region.anchor.attrs["strides"])
    if max(strides) > 1:
        yield Reject("strides", f"strides is {strides}, needs 1")
    yield from checks(region, ("dy", "w"))
    p, _ = gemm_problem.read(region)
    yield multiple("channels of w", p.n, TMA_ALIGNMENT // p.dtype.itemsize)


@variant(
    "convolution_data_gradient_channels_last", id="cuda.data_gradient_wgmma.v1", configs=OF_DATA,
    takes=("convolution_data_gradient", "convolution_data_gradient+map"), needs=("sm_90a",), family=data_family,
)  # fmt: skip
class DataGradientWgmma:
    """Persistent blocks of consumer warpgroups and a producer, a tile of elements of x x channels at a time.

    Parallel over tiles. TMA loads channels of dy for the windows that have these elements, for one place of the kernel after the other, in its im2col
    mode, and wgmma multiplies them by the kernel, N-major: f16 or bf16, sums in f32. Channels of dy are padded to multiples of 64 on
    the way. Bytes: both operands once per tile that uses them, of which the L2 cache has most. Limit: tensor cores.
    """

    accepts, cost = _accepts, _cost

    def build(region: RegionSpec, device: DeviceSpec, config: WgmmaTiling) -> list[Launch]:
        return [launch(config, region, device, transposed=True)]


# --- of strides -------------------------------------------------------------------------------------------------------


@first_refusal
def strided_family(region: RegionSpec) -> Checks:
    yield one_op(region)
    yield contiguous(region)
    p = read(region)
    of = p.windows
    yield windows.half("dy", p.dtype)
    yield at_most("groups", p.groups, 1)
    yield at_most("spatial axes", len(p.sizes), windows.AXES)
    yield at_least("greatest stride", max(of.strides), 2)
    yield at_most("phases", prod(of.strides), MOST_PHASES)
    yield windows.undilated(of)
    yield at_least("least extent", min(p.c, p.o, p.rows, p.elements), 1)
    yield from windows.channels_and_alignment(dy=p.y, w=p.w, dx=p.x)
    yield from windows.within_reach(axis for phase in windows.phases(region) for axis in phase.axes)
    yield at_most("elements of an image", prod(p.sizes) * p.c * max(of.strides), 2**31 - 1)
    yield at_most("greatest extent", max(p.elements, *p.y.shape, *p.w.shape), gemm_wgmma.EXTENT)


@lru_cache(maxsize=1024)
def phase_product(region: RegionSpec, phase: windows.Phase) -> RegionSpec:
    """As if the windows were a matrix in memory, for the cost and the epilogue of a GEMM: whole K-tiles of channels for each place; one, if there is no
    place."""
    p = read(region)
    k = max(1, phase.taps * cdiv(p.o, k_tile(p.dtype))) * k_tile(p.dtype)
    return windows.gemm_of((p.images * phase.elements, k), (k, p.c), p.dtype)


@lru_cache(maxsize=1024)
def phases_cost(tiling: WgmmaTiling, region: RegionSpec, device: DeviceSpec) -> Cost:
    p, terms = read(region), dict[str, float]()
    for number, phase in enumerate(windows.phases(region)):
        of = phase_product(region, phase)
        leaving = Leaving(ROWS_SUBTILE_US, 1, of.results[0].nbytes)
        nbytes = p.y.nbytes + p.w.nbytes if phase.taps else p.dtype.itemsize
        cost = wgmma_cost.cost(
            tiling, of, device, leaving=leaving, operand_bytes=nbytes, record=ConvolutionConstants
        )
        for term, us in cost.terms.items():
            terms[term] = terms.get(term, 0.0) + us
        terms["latency"] -= early_us(device) * (number > 0)
    return Cost(terms)


@variant(
    "convolution_data_gradient_channels_last", id="cuda.data_gradient_strided_wgmma.v1", configs=OF_STRIDES,
    needs=("sm_90a",), family=strided_family,
)  # fmt: skip
class StridedDataGradientWgmma:
    """A launch for each phase of the strides, of persistent blocks of consumer warpgroups and a producer: a tile of elements of x x channels at a time.

    Parallel over tiles of a phase. TMA loads channels of dy in its im2col mode, for one place of the kernel after the other that reaches these
    elements, and wgmma multiplies them by the kernel, N-major: f16 or bf16, sums in f32. Warps store rows of channels. Bytes: dy once
    for each phase and tile that uses it, of which the L2 cache has most; dx once. Limit: tensor cores, and launches of small problems.
    """

    def accepts(region: RegionSpec, config: WgmmaTiling) -> Checks:
        blocks = max(clusters(config, phase_product(region, phase)) for phase in windows.phases(region))
        yield at_most("blocks", blocks, MOST_BLOCKS)

    def cost(region: RegionSpec, device: DeviceSpec, config: WgmmaTiling) -> Cost:
        return phases_cost(config, region, device)

    def build(region: RegionSpec, device: DeviceSpec, config: WgmmaTiling) -> list[Launch]:
        return [launch_phase(config, region, phase, device) for phase in windows.phases(region)]


def launch_phase(tiling: WgmmaTiling, region: RegionSpec, phase: windows.Phase, device: DeviceSpec) -> Launch:
    """Those elements of dx that are in a phase."""
    from .strided_results import strided_results

    p, of, (x, y), (dy_at, w_at) = read(region), phase_product(region, phase), phase, pointers(region)
    (m, k), (_, n) = (t.shape for t in of.operands)
    chunks, across = cdiv(p.o, k_tile(p.dtype)), p.windows.window[-1]
    begin, end = (0, chunks) if phase.taps else (chunks, chunks + 1)
    places = y.place * across + x.place, -x.back, -y.back * across, begin
    (steps_y, steps_x), wide = ((1,) * windows.AXES + p.windows.strides)[-windows.AXES :], p.sizes[-1] * p.c
    pitches = prod(p.sizes) * p.c, steps_y * wide, steps_x * p.c
    sizes = m, n, k, *windows.geometry(phase.axes, end), *places, *pitches
    out = Out(0, (y.offset * wide + x.offset * p.c) * p.dtype.itemsize)
    finish = gemm_problem.epilogue(of, 2, tiling.rows, WARPS)
    results = GemmResults(
        finish, ((), (), (), (out,), ()), split_k.UNSCALED, staged=1, storing=strided_results
    )
    operands = _operands(tiling, phase.axes, (dy_at, p.y), (w_at, p.w), transposed=True)
    name = "data_gradient_strided_wgmma"
    return gemm_wgmma.launch(tiling, device, operands, results, sizes, clusters(tiling, of), name=name)


# --- weight gradients -------------------------------------------------------------------------------------------------

SPLITS, WAVES = (1, 2, 4, 8, 16), (1, 2, 3)  # and as many as fill the device so many times
# Rates fall with all that shared memory takes longer than tensor cores, where a is M-major: 715 TFLOP/s of 128x256, 570 of 128x128, 510 of 64x192
CROWDED = 1.0
MOST_BYTES = 2**28  # of all splits' sums
# Those that some layer of ResNet-50 or a UNet is predicted to be fastest with, or nearly.
OF_WEIGHTS = tilings(
    "128x256 256x128 128x192 128x128 128x128_pingpong 64x192_pingpong 64x128_pingpong 64x128 128x64"
)


@first_refusal
def weight_family(region: RegionSpec) -> Checks:
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
def weight_product(region: RegionSpec) -> RegionSpec:
    """As if the windows were a matrix in memory, for the cost and the epilogue of a GEMM."""
    p = read(region)
    return windows.gemm_of((p.rows, p.o), (p.rows, padded_n(p)), p.dtype, trans_a=True)


@lru_cache(maxsize=4096)
def best_split(tiling: WgmmaTiling, region: RegionSpec, device: DeviceSpec) -> tuple[Cost, KSplit]:
    """The number of splits of the windows that is predicted to be fastest."""
    p, of = read(region), weight_product(region)
    # of steps longer than windows, not all of x is read
    operand_bytes = min(p.x.nbytes, p.rows * p.k * p.dtype.itemsize) + p.y.nbytes
    partial = 4 * p.o * padded_n(p)
    at_once, tiles = resident(tiling, device), clusters(tiling, of)
    fills = [max(1, waves * at_once // tiles) for waves in WAVES]
    wanted = {n for n in (*SPLITS, *fills) if n == 1 or (n * partial <= MOST_BYTES and n <= fills[-1])}
    costs = []
    for split in sorted({split_k.divide(p.rows, n, k_tile(p.dtype)) for n in wanted}):
        first = wgmma_cost.cost(
            tiling,
            of,
            device,
            split,
            operand_bytes=operand_bytes,
            crowded=CROWDED,
            record=ConvolutionConstants,
        )
        total = sum_cost(region, device, split.number, partial)
        costs.append((Cost({**first.terms, "sum of parts": total.us}), split))
    return min(costs, key=lambda pair: pair[0].us)


@variant(
    "convolution_weight_gradient_channels_last", id="cuda.weight_gradient_wgmma.v1", configs=OF_WEIGHTS,
    needs=("sm_90a",), family=weight_family,
)  # fmt: skip
class WeightGradientWgmma:
    """Persistent blocks of consumer warpgroups and a producer, a tile of channels of y x columns at a time: channels of x at places of the kernel. Then the
    sum of the splits, in order.

    Parallel over tiles and splits of the windows. TMA loads 64 windows at a time, of dy as rows of a matrix and of x in its im2col mode; both are
    MN-major for wgmma: f16 or bf16, sums in f32. Channels of x are padded to multiples of 64 on the way. Bytes: both operands once per tile
    that uses them, of which the L2 cache has most; splits' sums, written and read. Limit: tensor cores.
    """

    def accepts(region: RegionSpec, config: WgmmaTiling) -> Checks:
        yield at_most("blocks", 64 * clusters(config, weight_product(region)), MOST_BLOCKS)

    def cost(region: RegionSpec, device: DeviceSpec, config: WgmmaTiling) -> Cost:
        return best_split(config, region, device)[0]

    def workspace(region: RegionSpec, device: DeviceSpec, config: WgmmaTiling) -> int:
        p = read(region)
        return f32.itemsize * best_split(config, region, device)[1].number * p.o * padded_n(p)

    def build(region: RegionSpec, device: DeviceSpec, config: WgmmaTiling) -> list[Launch]:
        p, split = read(region), best_split(config, region, device)[1]
        n = padded_n(p)
        pitches = cdiv(p.c, ATOM) * ATOM, n, p.o * n
        return [launch_weight(config, region, device, split), sum_launch(region, split.number, pitches)]


def launch_weight(tiling: WgmmaTiling, region: RegionSpec, device: DeviceSpec, split: KSplit) -> Launch:
    """The partial sums of dw, of these splits."""
    from .producer import windows_by_rows

    p, of, (x_at, dy_at) = read(region), weight_product(region), pointers(region)
    axes, tile = windows.axes_of(p.windows, p.sizes), k_tile(p.dtype)
    rows = TensorMap(dy_at, p.dtype, (p.o, p.rows), p.o * p.dtype.itemsize, (ATOM, tile))
    maps = rows, windows.window_map(x_at, p.x, axes, (ATOM, tile))
    sizes = p.o, padded_n(p), p.rows, split.k, *windows.geometry(axes, cdiv(p.c, ATOM))
    operands = GemmOperands(maps, (False, ()), (False, ()), producing=windows_by_rows)
    results = GemmResults(split_k.raw(of, 2), split_k.PARTIAL, split_k.UNSCALED)
    tiles, name = clusters(tiling, of) * split.number, "weight_gradient_wgmma"
    return gemm_wgmma.launch(tiling, device, operands, results, sizes, tiles, name=name)
