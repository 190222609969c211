"""Convolutions of channels last on Hopper, and gradients of what they read: the persistent GEMM of gemm/wgmma_body.py, whose first operand are
windows that TMA finds in the tensor: no im2col in memory.

forward         windows over x, times the kernel; epilogues and results are those of a GEMM
data gradient   windows over dy, times the kernel as it is in memory: its transpose is N-major, its places in reverse
of strides      a launch for each phase, those elements of x at one position between two windows. Elements of a phase are reached by the same
                places of the kernel, a stride apart, and windows over dy without strides. So each is a data gradient with fewer places: nothing
                is multiplied that is zero. Results are stored where the elements are in x
"""

from __future__ import annotations

from functools import lru_cache
from itertools import product as combinations
from math import prod
from typing import NamedTuple

from ...device.spec import DeviceSpec
from ...registry.cost import Cost, early_us
from ...registry.variant import (
    Checks,
    In,
    Launch,
    Out,
    Reject,
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
from ...types import TensorDesc
from ..gemm import problem as gemm_problem
from ..gemm import wgmma as gemm_wgmma
from ..gemm import wgmma_cost
from ..gemm.operands.tma import GemmOperands
from ..gemm.schedule import split_k
from ..gemm.schedule.persistent import clusters
from ..gemm.wgmma_cost import Leaving
from ..gemm.wgmma_results import GemmResults, results_of
from ..gemm.wgmma_tiling import TILINGS, WgmmaTiling, k_tile
from ..hopper.units import ATOM, TMA_ALIGNMENT, WARPS
from . import operands as windows
from .problem import TAKES, pointers, read

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


def _accepts(region: RegionSpec, config: WgmmaTiling) -> Checks:
    yield at_most("blocks", clusters(config, region), MOST_BLOCKS)


def _cost(region: RegionSpec, device: DeviceSpec, config: WgmmaTiling) -> Cost:
    return wgmma_cost.cost(config, region, device, k=padded_k(region))


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
OF_DATA = windows.tilings(
    "128x256 256x128 128x192 192x128 128x128 128x128_pingpong 64x128_pingpong 128x64 64x64"
)
OF_STRIDES = windows.tilings("128x256 128x192 128x128 128x128_pingpong 128x64")


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


class AxisPhase(NamedTuple):
    """Along one axis: elements offset, offset + stride, …; the windows over dy that have them, with places of the kernel from the last one on."""

    offset: int
    over_dy: windows.WindowAxis
    place: int  # of the kernel, that a window's first element meets
    back: int  # places from one to the next


class Phase(NamedTuple):
    """x is the axis whose neighbours are nearer."""

    x: AxisPhase
    y: AxisPhase

    @property
    def axes(self) -> windows.Axes:
        return self.x.over_dy, self.y.over_dy

    @property
    def taps(self) -> int:
        """Places of the kernel that reach these elements."""
        return prod(a.places for a in self.axes)

    @property
    def elements(self) -> int:
        """Of an image."""
        return prod(a.windows for a in self.axes)


def axis_phases(size: int, made: int, kernel: int, stride: int, low: int, dilation: int) -> list[AxisPhase]:
    """All of an axis that have elements; `made`: elements of dy."""
    phases = []
    for offset in range(min(stride, size)):
        at, count = offset + low, cdiv(size - offset, stride)
        places = [p for p in range(kernel) if (at - p * dilation) % stride == 0]
        back = places[1] - places[0] if len(places) > 1 else 0
        first = (at - places[-1] * dilation) // stride if places else 0
        apart = back * dilation // stride if back else 1
        over_dy = windows.WindowAxis(made, count, 1, first, first + count - made, len(places), apart)
        phases.append(AxisPhase(offset, over_dy, places[-1] if places else 0, back))
    return phases


@lru_cache(maxsize=256)
def phases(region: RegionSpec) -> tuple[Phase, ...]:
    p = read(region)
    of = p.windows
    numbers = zip(p.sizes, p.made, of.window, of.strides, of.low, of.dilation)
    missing = [[AxisPhase(0, windows.WindowAxis(), 0, 0)]] * (windows.AXES - len(p.sizes))
    return tuple(Phase(x, y) for y, x in combinations(*missing, *(axis_phases(*n) for n in numbers)))


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
    yield from windows.within_reach(axis for phase in phases(region) for axis in phase.axes)
    yield at_most("elements of an image", prod(p.sizes) * p.c * max(of.strides), 2**31 - 1)
    yield at_most("greatest extent", max(p.elements, *p.y.shape, *p.w.shape), gemm_wgmma.EXTENT)


@lru_cache(maxsize=1024)
def product(region: RegionSpec, phase: Phase) -> RegionSpec:
    """As if the windows were a matrix in memory, for the cost and the epilogue of a GEMM: whole K-tiles of channels for each place; one, if there is no
    place."""
    p = read(region)
    k = max(1, phase.taps * cdiv(p.o, k_tile(p.dtype))) * k_tile(p.dtype)
    return windows.gemm_of((p.images * phase.elements, k), (k, p.c), p.dtype)


@lru_cache(maxsize=1024)
def phases_cost(tiling: WgmmaTiling, region: RegionSpec, device: DeviceSpec) -> Cost:
    p, terms = read(region), dict[str, float]()
    for number, phase in enumerate(phases(region)):
        of = product(region, phase)
        leaving = Leaving(ROWS_SUBTILE_US, 1, of.results[0].nbytes)
        nbytes = p.y.nbytes + p.w.nbytes if phase.taps else p.dtype.itemsize
        cost = wgmma_cost.cost(tiling, of, device, leaving=leaving, operand_bytes=nbytes)
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
        blocks = max(clusters(config, product(region, phase)) for phase in phases(region))
        yield at_most("blocks", blocks, MOST_BLOCKS)

    def cost(region: RegionSpec, device: DeviceSpec, config: WgmmaTiling) -> Cost:
        return phases_cost(config, region, device)

    def build(region: RegionSpec, device: DeviceSpec, config: WgmmaTiling) -> list[Launch]:
        return [launch_phase(config, region, phase, device) for phase in phases(region)]


def launch_phase(tiling: WgmmaTiling, region: RegionSpec, phase: Phase, device: DeviceSpec) -> Launch:
    from .strided_results import strided_results

    p, of, (x, y), (dy_at, w_at) = read(region), product(region, phase), phase, pointers(region)
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
