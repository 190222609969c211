"""Persistent blocks on Hopper: how many clusters run at once, and the tiles of a matrix product that are distributed over them."""

from __future__ import annotations

from functools import lru_cache

from ....device.spec import DeviceSpec
from ....registry.variant import cdiv
from ....rows import RegionSpec
from .. import problem
from ..wgmma_tiling import WgmmaTiling

QUARTETS = 10 / 11  # of the multiprocessors, that clusters of four may have: each lies in a GPC of 14 to 18


def usable(tiling: WgmmaTiling, device: DeviceSpec) -> int:
    """Multiprocessors that clusters can be on."""
    return int(device.sms * (QUARTETS if tiling.together > 2 else 1)) // tiling.together * tiling.together


def resident(tiling: WgmmaTiling, device: DeviceSpec) -> int:
    """Clusters that run at once."""
    return usable(tiling, device) * tiling.blocks // tiling.together


def clusters(tiling: WgmmaTiling, region: RegionSpec, register_operand: str = "") -> int:
    """Clusters' worth of tiles: one if there is nothing to do."""
    m, n = mn_extents(region, register_operand)
    return max(1, problem.read(region)[0].count * cdiv(m, tiling.m * tiling.cluster) * cdiv(n, tiling.n))


def mn_extents(region: RegionSpec, register_operand: str = "") -> tuple[int, int]:
    """Of the operands, the one in registers first: m and n."""
    p, _ = problem.read(region)
    return (p.n, p.m) if register_operand == "b" else (p.m, p.n)


@lru_cache(maxsize=1024)
def narrow_tiles(tiling: WgmmaTiling, region: RegionSpec, device: DeviceSpec) -> int:
    """Narrow tiles in a row of tiles: as many as leave least to the busiest multiprocessor, in whole groups."""
    p, _ = problem.read(region)
    may = range(
        0, p.n // tiling.n * tiling.narrow_group // (tiling.narrow_group - 1) + 1, tiling.narrow_group
    )
    return min(may, key=lambda count: busiest_columns(tiling, region, device, count))


def busiest_columns(tiling: WgmmaTiling, region: RegionSpec, device: DeviceSpec, narrow_tiles: int) -> int:
    """Columns of all tiles together of the busiest multiprocessor, with so many narrow tiles in a row, which are the last."""
    p, _ = problem.read(region)
    rows, columns, at_once = cdiv(p.m, tiling.m), cdiv(p.n, tiling.n), resident(tiling, device)
    others = columns - narrow_tiles // tiling.narrow_group * (tiling.narrow_group - 1)
    wide, every = cdiv(rows * others, at_once), cdiv(rows * (others + narrow_tiles), at_once)
    return wide * tiling.n + (every - wide) * tiling.narrow_n
