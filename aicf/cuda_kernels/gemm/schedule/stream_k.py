"""Stream-K products on Hopper: what their blocks need of the workspace, and which products they are for."""

from __future__ import annotations

from ....device.spec import DeviceSpec
from ....registry.variant import Checks, Reject, Work, at_least, at_most
from ....rows import RegionSpec
from ....types import f32, i64
from ...hopper.units import WARPS
from .. import problem
from ..wgmma_results import staged
from ..wgmma_tiling import SMS, WgmmaTiling, k_tile
from . import split_k as gemm_split
from .persistent import clusters, resident


def checks(tiling: WgmmaTiling, region: RegionSpec) -> Checks:
    """More tiles than multiprocessors; and numbers of K-tiles, times blocks, that are u32."""
    if region.strict:
        yield Reject("strict", gemm_split.STRICT)
    p, after = problem.read(region)
    if len(p.batch) > 1 and len(after.loads) > 1 and staged(tiling, region):
        yield Reject(
            "registers",
            "two axes of a batch and two operands of the map leave none for results in boxes beside work units",
        )
    yield at_least("tiles", clusters(tiling, region), SMS + 1)
    yield at_most("k", p.k, 2**31 // SMS**2 * k_tile(p.dtype))


def blocks(tiling: WgmmaTiling, region: RegionSpec, device: DeviceSpec) -> int:
    return min(clusters(tiling, region), resident(tiling, device))


def _slots(tiling: WgmmaTiling, region: RegionSpec, device: DeviceSpec) -> int:
    """Bytes of the workspace for each block's accumulators, with which it begins; their flags are behind them."""
    return blocks(tiling, region, device) * tiling.m * tiling.n * f32.itemsize


def workspace(tiling: WgmmaTiling, region: RegionSpec, device: DeviceSpec) -> int:
    flags = blocks(tiling, region, device) * tiling.cooperative * WARPS * i64.itemsize
    return _slots(tiling, region, device) + flags


def pointers(tiling: WgmmaTiling, region: RegionSpec, device: DeviceSpec) -> tuple[Work, Work]:
    return Work(0, f32), Work(_slots(tiling, region, device), i64)
