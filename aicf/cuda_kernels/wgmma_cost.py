"""What a Hopper matrix product is predicted to take: blocks that stay, with a ring of slices that never runs dry between tiles.

A block's main loop goes at the rate of the tensor cores, or of the L2 cache that its slices come from. Between main loops is the
epilogue, unless another team or another block of the multiprocessor multiplies meanwhile.
"""

from __future__ import annotations

from functools import lru_cache

from ..device.spec import DeviceSpec
from ..registry.cost import L2_PER_SM, TRIP_US, Cost
from ..registry.variant import cdiv
from ..rows import RegionSpec
from . import gemm, gemm_split
from .gemm_split import Parts
from .wgmma_tiling import ATOM, DEPTH, Tiling

# All guesses until measured, but for the first, which is the prototype's at 4096³, and fits its 704 TFLOP/s without clusters,
# where the cache is the limit.
RATE = 0.8  # of the tensor cores' peak, that a main loop reaches for which slices are there in time
START_US = 1.0  # barriers, descriptors on their way, registers divided anew
CLUSTER_US = 0.3  # for blocks of a cluster to meet at its start and its end
DRAIN_US = 0.15  # from a tile's last request to its last product
CHUNK_US = 0.2  # for a consumer to finish 64 x 64 results and send them off


def cost(tiling: Tiling, region: RegionSpec, device: DeviceSpec, parts: Parts | None = None) -> Cost:
    """Microseconds by their causes, as roofline's; of parts of k, which a second launch sums, if that is said."""
    p, after = gemm.parts(region)
    depth, count = (cdiv(p.k, DEPTH) * DEPTH, 1) if parts is None else (parts.depth, parts.number)
    tiles = clusters(tiling, region) * tiling.cluster * count
    speed = device.tflops[p.dtype.name] * RATE * 1e6 / device.sms
    multiply = 2.0 * tiling.m * tiling.n * depth / speed
    fetch = (tiling.m + tiling.n / tiling.cluster) * depth * p.dtype.itemsize / L2_PER_SM * 1e-3
    loop = max(multiply, fetch)
    arithmetic = after.flops / tiles / (device.tflops["f32"] * gemm.EPILOGUE_EFFICIENCY * 1e6 / device.sms)
    chunks = tiling.row_blocks * cdiv(tiling.n, ATOM)
    finish = DRAIN_US + chunks * CHUNK_US + (arithmetic if parts is None else 0.0)

    usable = device.sms - device.sms % tiling.cluster
    most = cdiv(tiles, usable)  # tiles of the busiest multiprocessor
    at_once = tiling.teams * tiling.blocks
    together = max(most * loop + finish, cdiv(most, at_once) * (loop + finish))
    useful = p.flops / speed / device.sms
    nbytes = region.nbytes
    if parts is not None:
        through, total = gemm_split.sum_cost(region, p, parts.number, device)
        nbytes = gemm_split.operand_bytes(p) + through
    limits = {"memory": nbytes / device.bandwidth * 1e-3, "L2": tiles * fetch / device.sms, "compute": useful}
    limit = max(limits, key=limits.__getitem__)
    terms = {"launch": device.launch_us, "latency": TRIP_US + START_US + CLUSTER_US * (tiling.cluster > 1)}
    reached = terms[limit] = limits[limit]
    last = "wave tail" if most > at_once else "idle multiprocessors"
    for name, until in (
        ("tile padding", tiles * loop / device.sms),
        (last, most * loop),
        ("epilogue", together),
    ):
        if until > reached * (1 + 1e-9):
            terms[name] = until - reached
            reached = until
    if parts is None:
        return Cost(terms)
    return gemm.with_epilogue(Cost({**terms, "sum of parts": total.us}), region, device)


@lru_cache(maxsize=4096)
def best_parts(tiling: Tiling, region: RegionSpec, device: DeviceSpec) -> tuple[Cost, Parts]:
    """The number of parts of k that is predicted to be fastest."""
    p, _ = gemm.parts(region)
    most = resident(tiling, device) // clusters(tiling, region)
    costs = [(cost(tiling, region, device, parts), parts) for parts in gemm_split.choices(p.k, most, DEPTH)]
    return min(costs, key=lambda pair: pair[0].us)


def resident(tiling: Tiling, device: DeviceSpec) -> int:
    """Clusters that run at once."""
    return device.sms * tiling.blocks // tiling.cluster


def clusters(tiling: Tiling, region: RegionSpec) -> int:
    """Clusters' worth of tiles: one if there is nothing to do."""
    p, _ = gemm.parts(region)
    return max(1, p.count * cdiv(p.m, tiling.m * tiling.cluster) * cdiv(p.n, tiling.n))
