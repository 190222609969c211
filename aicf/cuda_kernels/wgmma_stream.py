"""Stream-K products on Hopper: what their blocks need of the workspace, and which products they are for."""

from __future__ import annotations

from ..device.spec import DeviceSpec
from ..registry.variant import Checks, Reject, Work, at_least, at_most, cdiv
from ..rows import RegionSpec
from ..types import f32, i64
from . import column_sums, gemm, gemm_split, wgmma_cost
from .wgmma_tiling import SMS, WARPS, Tiling, depth

ALIGNMENT = 256


def checks(tiling: Tiling, region: RegionSpec) -> Checks:
    """More tiles than multiprocessors; and numbers of slices, times blocks, that are u32."""
    if region.strict:
        yield Reject("strict", gemm_split.STRICT)
    p, _ = gemm.parts(region)
    yield at_least("tiles", wgmma_cost.clusters(tiling, region), SMS + 1)
    yield at_most("k", p.k, 2**31 // SMS**2 * depth(p.dtype))


def blocks(tiling: Tiling, region: RegionSpec, device: DeviceSpec) -> int:
    return min(wgmma_cost.clusters(tiling, region), wgmma_cost.resident(tiling, device))


def _places(tiling: Tiling, region: RegionSpec, device: DeviceSpec) -> tuple[int, int, int]:
    """Where slots for each block's sums begin in the workspace, behind sums of columns; their flags; and where these end."""
    count = blocks(tiling, region, device)
    slots = cdiv(column_sums.workspace(region, tiling.rows, WARPS), ALIGNMENT) * ALIGNMENT
    flags = slots + count * tiling.m * tiling.n * f32.itemsize
    return slots, flags, flags + count * tiling.members * WARPS * i64.itemsize


def workspace(tiling: Tiling, region: RegionSpec, device: DeviceSpec) -> int:
    return _places(tiling, region, device)[2]


def pointers(tiling: Tiling, region: RegionSpec, device: DeviceSpec) -> tuple[Work, Work]:
    slots, flags, _ = _places(tiling, region, device)
    return Work(slots, f32), Work(flags, i64)
