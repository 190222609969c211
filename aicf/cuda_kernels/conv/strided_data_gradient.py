"""Data gradients of strided convolutions on Hopper: a launch for each phase, those elements of x that lie at one place between two windows.

Elements of a phase are reached by the same places of the kernel, a stride apart, and windows over dy without strides. So each phase is a data gradient
as data_gradient.py has them, with fewer places: nothing is multiplied that is zero. Its results go where its elements lie in x.
"""

from __future__ import annotations

from functools import lru_cache
from itertools import product as combinations
from math import prod
from typing import NamedTuple

from ...device.spec import DeviceSpec
from ...ops.schema import schema_of
from ...registry.cost import Cost, early_us
from ...registry.variant import (
    Checks,
    KernelVariant,
    Launch,
    Out,
    Reject,
    TensorMap,
    WindowMap,
    at_least,
    at_most,
    cdiv,
    contiguous,
    multiple,
    one_op,
    variant,
)
from ...rows import RegionSpec
from ...types import TensorDesc, TensorSpec, bf16, f16
from ..gemm import problem as gemm_problem
from ..gemm import wgmma as gemm_wgmma
from ..gemm import wgmma_cost
from ..gemm.operands.tma import Operands
from ..gemm.schedule import split_k as gemm_split
from ..gemm.schedule.persistent import clusters
from ..gemm.wgmma_cost import Leaving
from ..gemm.wgmma_results import Results
from ..gemm.wgmma_tiling import TILINGS, WgmmaTiling, k_tile
from ..hopper.units import ATOM, TMA_ALIGNMENT, WARPS
from .problem import ConvolutionProblem, given, pointers, read
from .producer import Geometry
from .wgmma import AXES, FURTHEST

MOST_PHASES = 16
ROWS_SUBTILE_US = 0.2  # for a consumer to finish 64 x 64 results and store them by warps: a guess


class AxisPhase(NamedTuple):
    """Along one axis. Elements offset, offset + stride, …; the windows over dy that have them, and places of the kernel from the last one on."""

    offset: int
    elements: int
    taps: int
    first: int  # element of dy, where the first window begins
    apart: int  # elements of a window
    place: int  # of the kernel, that its first element meets
    back: int  # places from one to the next


class Phase(NamedTuple):
    """x is the axis whose neighbours are nearer."""

    y: AxisPhase
    x: AxisPhase

    @property
    def taps(self) -> int:
        return self.y.taps * self.x.taps


def axis_phases(size: int, kernel: int, stride: int, low: int, dilation: int) -> list[AxisPhase]:
    """All of an axis that have elements."""
    made = []
    for offset in range(min(stride, size)):
        at, count = offset + low, cdiv(size - offset, stride)
        places = [p for p in range(kernel) if (at - p * dilation) % stride == 0]
        if not places:
            made.append(AxisPhase(offset, count, 0, 0, 1, 0, 0))
            continue
        back = places[1] - places[0] if len(places) > 1 else 0
        first = (at - places[-1] * dilation) // stride
        apart = back * dilation // stride if back else 1
        made.append(AxisPhase(offset, count, len(places), first, apart, places[-1], back))
    return made


@lru_cache(maxsize=256)
def phases(region: RegionSpec) -> tuple[Phase, ...]:
    p = read(region)
    of = p.windows
    axes = [axis_phases(*given) for given in zip(p.sizes, of.window, of.strides, of.low, of.dilation)]
    missing = [[AxisPhase(0, 1, 1, 0, 1, 0, 0)]] * (AXES - len(axes))
    return tuple(Phase(*pair) for pair in combinations(*missing, *axes))


@lru_cache(maxsize=256)
def family(region: RegionSpec) -> Reject | None:
    return next((reject for reject in _checks(region) if reject is not None), None)


def _checks(region: RegionSpec) -> Checks:
    yield one_op(region)
    yield contiguous(region)
    dy, w = given(region)
    if dy.dtype not in (f16, bf16):
        yield Reject("dtype", f"dy is {dy.dtype}, needs f16 or bf16")
    p = read(region)
    of = p.windows
    yield at_most("groups", p.groups, 1)
    yield at_most("spatial axes", len(p.sizes), AXES)
    yield at_least("greatest stride", max(of.strides), 2)
    yield at_most("phases", prod(of.strides), MOST_PHASES)
    if any(of.interior):
        yield Reject("input_dilation", f"input_dilation is {tuple(n + 1 for n in of.interior)}, needs 1")
    yield at_least("least extent", min(p.c, p.o, p.rows, p.elements), 1)
    for name, t in (("dy", dy), ("w", w), ("dx", region.results[0])):
        yield multiple(f"channels of {name}", t.shape[-1], TMA_ALIGNMENT // t.dtype.itemsize)
        if t.alignment < TMA_ALIGNMENT:
            yield Reject("aligned", f"{name} is aligned to {t.alignment} bytes, needs {TMA_ALIGNMENT}")
    each = [(axis, n) for phase in phases(region) for axis, n in zip(reversed(phase), _made(p))]
    yield at_most(
        "elements from a window's first to its last", max((a.taps - 1) * a.apart for a, _ in each), FURTHEST
    )
    corners = [n for axis, made in each for n in _corner(axis, made)]
    yield at_most("padding", max(*corners, *(-n - 1 for n in corners)), WindowMap.CORNERS[AXES] - 1)
    yield at_most("elements of an image", prod(p.sizes) * p.c * max(of.strides), 2**31 - 1)
    yield at_most("greatest extent", max(p.elements, *dy.shape, *w.shape), gemm_wgmma.EXTENT)


def _made(p: ConvolutionProblem) -> tuple[int, ...]:
    """Of dy, along x and y."""
    return (*reversed(p.made), *(1,) * (AXES - len(p.made)))


def _corner(axis: AxisPhase, made: int) -> tuple[int, int]:
    """Where the first window begins, and where the last one does, from the last element on."""
    return axis.first, axis.first + axis.elements - made


def padded_k(p: ConvolutionProblem, phase: Phase) -> int:
    """Whole K-tiles of channels for each place; one, if there is no place."""
    return max(1, phase.taps * cdiv(p.o, k_tile(p.dtype))) * k_tile(p.dtype)


@lru_cache(maxsize=1024)
def product(region: RegionSpec, phase: Phase) -> RegionSpec:
    """As if the windows were a matrix in memory: what the cost of a GEMM, and its epilogue, are asked of."""
    p = read(region)
    m, k = p.images * phase.y.elements * phase.x.elements, padded_k(p, phase)
    specs: list[TensorSpec | None] = [
        *(TensorSpec(s, p.dtype, "cuda") for s in ((m, k), (k, p.c))),
        None,
        None,
    ]
    schema = schema_of("gemm")
    packed = schema.pack(schema.normalized(specs, {}))
    results = [TensorDesc.dense(spec) for spec in schema.infer(specs, packed)]
    return RegionSpec.single(schema.kind, packed, [s and TensorDesc.dense(s) for s in specs], results)


@lru_cache(maxsize=1024)
def _cost(tiling: WgmmaTiling, region: RegionSpec, device: DeviceSpec) -> Cost:
    p, operand_bytes = read(region), sum(t.nbytes for t in given(region))
    terms = dict[str, float]()
    for number, phase in enumerate(phases(region)):
        of = product(region, phase)
        leaving = Leaving(ROWS_SUBTILE_US, 1, of.results[0].nbytes)
        nbytes = operand_bytes if phase.taps else p.dtype.itemsize
        cost = wgmma_cost.cost(tiling, of, device, leaving=leaving, operand_bytes=nbytes)
        for term, us in cost.terms.items():
            terms[term] = terms.get(term, 0.0) + us
        terms["latency"] -= early_us(device) * (number > 0)
    return Cost(terms)


def _strided(tiling: WgmmaTiling) -> KernelVariant:
    """A tiling as a config."""

    @variant(
        "convolution_data_gradient_channels_last",
        id="cuda.data_gradient_strided_wgmma.v1",
        config=(tiling,),
        needs=("sm_90a",),
        family=family,
    )
    class StridedDataGradientWgmma:
        __doc__ = f"""A launch for each phase of the strides, of persistent blocks of {tiling.consumers} consumer warpgroups and a producer: {tiling.m} elements of x x {tiling.n} channels at a time.

        Parallel over tiles of a phase. TMA brings channels of dy in its im2col mode, for one place of the kernel after the other that reaches these
        elements, and wgmma multiplies them by the kernel, N-major: f16 or bf16, sums in f32. Warps store rows of channels. Bytes: dy once
        for each phase and tile that uses it, of which the L2 cache has most; dx once. Limit: tensor cores, and launches of small problems.
        """

        def accepts(region: RegionSpec) -> Checks:
            blocks = max(clusters(tiling, product(region, phase)) for phase in phases(region))
            yield at_most("blocks", blocks, 2**31 - 1)

        def cost(region: RegionSpec, device: DeviceSpec) -> Cost:
            return _cost(tiling, region, device)

        def build(region: RegionSpec, device: DeviceSpec) -> list[Launch]:
            return [_launch(tiling, region, phase, device) for phase in phases(region)]

    return StridedDataGradientWgmma  # type: ignore[return-value]  # `variant` has made a record of the class


def _maps(tiling: WgmmaTiling, region: RegionSpec, phase: Phase) -> tuple[TensorMap, ...]:
    p, (dy_at, w_at), size = read(region), pointers(region), read(region).dtype.itemsize
    tile, extents = k_tile(p.dtype), (p.o, *_made(p), p.images)
    pitches = [p.o * size]
    for extent in extents[1:-1]:
        pitches.append(pitches[-1] * extent)
    first, last = zip(*(_corner(axis, made) for axis, made in zip((phase.x, phase.y), _made(p))))
    windows = WindowMap(
        dy_at, p.dtype, extents, tuple(pitches), (tile, tiling.m), first=first, last=last, steps=(1,) * AXES
    )  # fmt: skip
    places, rows = (p.c, p.places, p.o), (p.c * size, p.places * p.c * size)
    return windows, TensorMap(w_at, p.dtype, places, rows, (ATOM, 1, tile))


def _launch(tiling: WgmmaTiling, region: RegionSpec, phase: Phase, device: DeviceSpec) -> Launch:
    from .producer import DATA_GRADIENT
    from .strided_results import strided_results

    p, of, (y, x) = read(region), product(region, phase), phase
    chunks, across = cdiv(p.o, k_tile(p.dtype)), p.windows.window[-1]
    begin, end = (0, chunks) if phase.taps else (chunks, chunks + 1)
    geometry = Geometry(x.elements, y.elements, 1, 1, x.first, y.first, max(1, x.taps), x.apart, y.apart, end)
    (steps_y, steps_x), wide = ((1,) * AXES + p.windows.strides)[-AXES:], p.sizes[-1] * p.c
    places = y.place * across + x.place, -x.back, -y.back * across, begin
    pitches = prod(p.sizes) * p.c, steps_y * wide, steps_x * p.c
    m, k = p.images * y.elements * x.elements, padded_k(p, phase)
    finish = gemm_problem.epilogue(of, 2, tiling.rows, WARPS)
    outs = (), (), (), (Out(0, (y.offset * wide + x.offset * p.c) * p.dtype.itemsize),), ()
    results = Results(finish, outs, gemm_split.UNSCALED, staged=1, storing=strided_results)
    operands = Operands(_maps(tiling, region, phase), b=(False, ()), producing=DATA_GRADIENT)
    return gemm_wgmma.launch(
        tiling, device, operands, results, (m, p.c, k, *geometry, *places, *pitches), clusters(tiling, of),
        name="data_gradient_strided_wgmma",
    )  # fmt: skip


# Those that some layer of ResNet-50 or a UNet is predicted to be fastest with, or near it.
NAMES = "128x256", "128x192", "128x128", "128x128_pingpong", "128x64"
OF_STRIDES = tuple(t for t in TILINGS if str(t) in NAMES)
VARIANTS = tuple(map(_strided, OF_STRIDES))
