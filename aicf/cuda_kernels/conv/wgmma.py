"""Convolutions on Hopper: the persistent GEMM of gemm/wgmma_body.py, whose first operand are windows that TMA finds in the tensor: no im2col
in memory. Channels last; epilogues and results are those of a GEMM."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from ...device.spec import DeviceSpec
from ...ops.windows import Windows
from ...registry.cost import Cost
from ...registry.variant import (
    Checks,
    In,
    KernelVariant,
    Launch,
    Reject,
    TensorMap,
    WindowMap,
    at_least,
    at_most,
    cdiv,
    multiple,
    variant,
)
from ...rows import RegionSpec
from ...types import TensorDesc, bf16, f16
from ..gemm import problem as gemm_problem
from ..gemm import wgmma as gemm_wgmma
from ..gemm import wgmma_cost
from ..gemm.operands.tma import Operands
from ..gemm.schedule.persistent import clusters
from ..gemm.wgmma_results import results_of
from ..gemm.wgmma_tiling import TILINGS, WgmmaTiling, k_tile
from ..hopper.units import TMA_ALIGNMENT
from .producer import Geometry

TAKES = "convolution", "convolution+map"
AXES = 2  # spatial ones that windows walk along; a single one is the first of them, beside one of one element
FURTHEST = 255  # elements from a window's first one to its last
STEP = 8


@lru_cache(maxsize=256)
def family(region: RegionSpec) -> Reject | None:
    return next((reject for reject in _checks(region) if reject is not None), None)


def _checks(region: RegionSpec) -> Checks:
    yield from checks(region)


def checks(region: RegionSpec, called: tuple[str, str] = ("x", "w")) -> Checks:
    """Of what windows slide over and a kernel, which are called so."""
    yield from gemm_problem.checks(region)
    p, _ = gemm_problem.read(region)
    if p.dtype not in (f16, bf16):
        yield Reject("dtype", f"{called[0]} is {p.dtype}, needs f16 or bf16")
    x, w, of = region.operands[p.a], region.operands[p.b], windows_in(region)
    yield at_most("groups", region.anchor.attrs["groups"], 1)
    yield at_most("spatial axes", x.rank - 2, AXES)
    yield at_least("least extent of results", min(p.m, p.n, p.k, p.count), 1)
    yield at_most("axes of the batch", len(p.batch), 0)
    yield multiple("channels", x.shape[-1], TMA_ALIGNMENT // p.dtype.itemsize)
    for name, t in zip(called, (x, w)):
        if not t.contiguous:
            yield Reject("contiguous", f"{name} is {t}, needs rows of channels, one after the other")
        if t.alignment < TMA_ALIGNMENT:
            yield Reject("aligned", f"{name} is aligned to {t.alignment} bytes, needs {TMA_ALIGNMENT}")
    if any(of.interior):
        yield Reject("input_dilation", f"input_dilation is {tuple(n + 1 for n in of.interior)}, needs 1")
    yield at_most("stride", max(of.strides), STEP)
    yield at_most("elements from a window's first to its last", max(spans(of)), FURTHEST)
    corner = WindowMap.CORNERS[AXES]
    first, last = corners(of)
    yield at_most("padding", max(*first, *last, *(-n - 1 for n in (*first, *last))), corner - 1)
    yield at_most("greatest extent", max(p.m, p.n, padded_k(region), *x.shape), gemm_wgmma.EXTENT)


def windows_in(region: RegionSpec) -> Windows:
    of = gemm_problem.read(region)[0].windows
    assert of is not None
    return of


def spans(of: Windows) -> list[int]:
    return [(n - 1) * apart for n, apart in zip(of.window, of.dilation)]


def corners(of: Windows) -> tuple[list[int], list[int]]:
    """Along each axis: where the first window begins, and where the last one does, from the last element on."""
    return [-n for n in of.low], [n - span for n, span in zip(of.high, spans(of))]


def padded_k(region: RegionSpec) -> int:
    """Whole K-tiles of channels for each place of the kernel."""
    p, _ = gemm_problem.read(region)
    channels, tile = region.operands[p.a].shape[-1], k_tile(p.dtype)
    return p.k // max(1, channels) * cdiv(channels, tile) * tile


def _wgmma(tiling: WgmmaTiling) -> KernelVariant:
    """A tiling as a config."""

    @variant(
        "convolution_channels_last",
        id="cuda.convolution_wgmma.v1",
        config=(tiling,),
        takes=TAKES,
        needs=("sm_90a",),
        family=family,
    )
    class ConvolutionWgmma:
        __doc__ = f"""Persistent blocks of {tiling.consumers} consumer warpgroups and a producer, {tiling.m} windows x {tiling.n} channels of results at a time.

        Parallel over tiles. TMA brings channels of windows, for one place of the kernel after the other, in its im2col mode, and wgmma
        multiplies them out of shared memory: f16 or bf16, sums in f32. Channels are padded to multiples of 64 on the way. Bytes: both
        operands once per tile that uses them, of which the L2 cache has most. Limit: tensor cores.
        """

        def accepts(region: RegionSpec) -> Checks:
            yield at_most("blocks", clusters(tiling, region), 2**31 - 1)

        def cost(region: RegionSpec, device: DeviceSpec) -> Cost:
            return wgmma_cost.cost(tiling, region, device, k=padded_k(region))

        def build(region: RegionSpec, device: DeviceSpec) -> list[Launch]:
            return [_launch(tiling, region, device)]

    return ConvolutionWgmma  # type: ignore[return-value]  # `variant` has made a record of the class


def window_map(source: In, x: TensorDesc, of: Windows, box: tuple[int, int]) -> WindowMap:
    """For copies of so many channels of so many windows over x."""
    missing, size, channels = AXES - len(of.window), x.dtype.itemsize, x.shape[-1]
    along = (*reversed(x.shape[1:-1]), *(1,) * missing)
    pitches = [channels * size]
    for extent in along:
        pitches.append(pitches[-1] * extent)
    first, last = ((*reversed(corner), *(0,) * missing) for corner in corners(of))
    steps = (*reversed(of.strides), *(1,) * missing)
    extents = channels, *along, x.shape[0]
    return WindowMap(source, x.dtype, extents, tuple(pitches), box, first=first, last=last, steps=steps)


def _maps(tiling: WgmmaTiling, region: RegionSpec) -> tuple[TensorMap, ...]:
    p, _ = gemm_problem.read(region)
    x, w, tile, size = region.operands[p.a], region.operands[p.b], k_tile(p.dtype), p.dtype.itemsize
    channels, windows = x.shape[-1], window_map(In(p.a), x, windows_in(region), (tile, tiling.m))
    places, rows = (channels, p.k // channels, w.shape[0]), (channels * size, p.k * size)
    return windows, TensorMap(In(p.b), p.dtype, places, rows, (tile, 1, tiling.n))


def geometry_of(of: Windows, sizes: tuple[int, ...], chunks: int) -> Geometry:
    """Of windows over an image of such sizes."""
    missing = AXES - len(of.window)

    def xy(numbers: Any, other: int) -> tuple[int, int]:
        near, far = (*reversed(numbers), *(other,) * missing)
        return near, far

    return Geometry(
        *xy(of.made(sizes), 1), *xy(of.strides, 1), *xy(corners(of)[0], 0), xy(of.window, 1)[0],
        *xy(of.dilation, 1), chunks,
    )  # fmt: skip


def geometry_in(region: RegionSpec) -> Geometry:
    p, _ = gemm_problem.read(region)
    x = region.operands[p.a]
    chunks = padded_k(region) // k_tile(p.dtype) // (p.k // x.shape[-1])
    return geometry_of(windows_in(region), x.shape[1:-1], chunks)


def _launch(tiling: WgmmaTiling, region: RegionSpec, device: DeviceSpec) -> Launch:
    from .producer import CONVOLUTION

    p, _ = gemm_problem.read(region)
    sizes = p.m, p.n, padded_k(region), *geometry_in(region)
    return gemm_wgmma.launch(
        tiling, device, Operands(_maps(tiling, region), producing=CONVOLUTION), results_of(tiling, region), sizes,
        clusters(tiling, region), name="convolution_wgmma",
    )  # fmt: skip


WHOLE = tuple(t for t in TILINGS if t.together == 1)
VARIANTS = tuple(map(_wgmma, WHOLE))
