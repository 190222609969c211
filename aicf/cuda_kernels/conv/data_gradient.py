"""Data gradients of convolutions without strides on Hopper: the convolution of dy with the kernel's transpose, its places in reverse, as wgmma.py does
convolutions. The kernel lies in memory as it is: its transpose is N-major."""

from __future__ import annotations

from functools import lru_cache
from math import prod

from ...device.spec import DeviceSpec
from ...registry.cost import Cost
from ...registry.variant import (
    Checks,
    In,
    KernelVariant,
    Launch,
    Reject,
    TensorMap,
    at_most,
    multiple,
    variant,
)
from ...rows import RegionSpec
from ..gemm import problem as gemm_problem
from ..gemm import wgmma as gemm_wgmma
from ..gemm import wgmma_cost
from ..gemm.operands.tma import Operands
from ..gemm.schedule.persistent import clusters
from ..gemm.wgmma_results import results_of
from ..gemm.wgmma_tiling import TILINGS, WgmmaTiling, k_tile
from ..hopper.units import ATOM, TMA_ALIGNMENT
from .wgmma import checks, geometry_in, padded_k, window_map, windows_in

TAKES = "convolution_data_gradient", "convolution_data_gradient+map"


@lru_cache(maxsize=256)
def family(region: RegionSpec) -> Reject | None:
    return next((reject for reject in _checks(region) if reject is not None), None)


def _checks(region: RegionSpec) -> Checks:
    strides = tuple(region.anchor.attrs["strides"])
    if max(strides) > 1:
        yield Reject("strides", f"strides is {strides}, needs 1")
    yield from checks(region, ("dy", "w"))
    p, _ = gemm_problem.read(region)
    yield multiple("channels of w", p.n, TMA_ALIGNMENT // p.dtype.itemsize)


def _data_gradient(tiling: WgmmaTiling) -> KernelVariant:
    """A tiling as a config."""

    @variant(
        "convolution_data_gradient_channels_last",
        id="cuda.data_gradient_wgmma.v1",
        config=(tiling,),
        takes=TAKES,
        needs=("sm_90a",),
        family=family,
    )
    class DataGradientWgmma:
        __doc__ = f"""Persistent blocks of {tiling.consumers} consumer warpgroups and a producer, {tiling.m} elements of x x {tiling.n} channels at a time.

        Parallel over tiles. TMA brings channels of dy for the windows that have these elements, for one place of the kernel after the other, in its im2col
        mode, and wgmma multiplies them by the kernel, N-major: f16 or bf16, sums in f32. Channels of dy are padded to multiples of 64 on
        the way. Bytes: both operands once per tile that uses them, of which the L2 cache has most. Limit: tensor cores.
        """

        def accepts(region: RegionSpec) -> Checks:
            yield at_most("blocks", clusters(tiling, region), 2**31 - 1)

        def cost(region: RegionSpec, device: DeviceSpec) -> Cost:
            return wgmma_cost.cost(tiling, region, device, k=padded_k(region))

        def build(region: RegionSpec, device: DeviceSpec) -> list[Launch]:
            return [_launch(tiling, region, device)]

    return DataGradientWgmma  # type: ignore[return-value]  # `variant` has made a record of the class


def _maps(tiling: WgmmaTiling, region: RegionSpec) -> tuple[TensorMap, ...]:
    p, _ = gemm_problem.read(region)
    dy, size, tile = region.operands[p.a], p.dtype.itemsize, k_tile(p.dtype)
    o = dy.shape[-1]
    windows = window_map(In(p.a), dy, windows_in(region), (tile, tiling.m))
    places, rows = (p.n, p.k // o, o), (p.n * size, p.k // o * p.n * size)
    return windows, TensorMap(In(p.b), p.dtype, places, rows, (ATOM, 1, tile))


def _launch(tiling: WgmmaTiling, region: RegionSpec, device: DeviceSpec) -> Launch:
    from .producer import DATA_GRADIENT

    p, _ = gemm_problem.read(region)
    # places of the kernel in reverse
    last, across = prod(windows_in(region).window) - 1, windows_in(region).window[-1]
    sizes = p.m, p.n, padded_k(region), *geometry_in(region), last, -1, -across, 0
    operands = Operands(_maps(tiling, region), b=(False, ()), producing=DATA_GRADIENT)
    return gemm_wgmma.launch(
        tiling, device, operands, results_of(tiling, region), sizes, clusters(tiling, region), name="data_gradient_wgmma"
    )  # fmt: skip


# Those that some layer of ResNet-50 or a UNet is predicted to be fastest with, or near it.
NAMES = (
    "128x256",
    "256x128",
    "128x192",
    "192x128",
    "128x128",
    "128x128_pingpong",
    "64x128_pingpong",
    "128x64",
    "64x64",
)
OF_DATA = tuple(t for t in TILINGS if str(t) in NAMES)
VARIANTS = tuple(map(_data_gradient, OF_DATA))
