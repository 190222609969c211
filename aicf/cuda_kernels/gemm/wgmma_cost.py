"""What a Hopper matrix product is predicted to take: blocks that stay, with a ring of K-tiles that never runs dry between tiles.

A block's main loop goes at the rate of the tensor cores, of its way to the L2 cache, or of a trip there for each filling of the
ring. Between main loops is the epilogue, unless another turn group or another block of the multiprocessor multiplies meanwhile.
Constants were measured on an H200, with cold caches.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import NamedTuple

from ...device.spec import DeviceSpec
from ...registry.cost import L2_PER_SM, TRIP_US, Cost
from ...registry.variant import cdiv
from ...rows import RegionSpec
from ...types import DType, bf16, f8e4m3, f8e5m2, f16, f32, i8, u8
from ..hopper.units import ATOM, boxed
from . import problem
from .schedule import split_k as gemm_split
from .schedule.persistent import busiest_columns, clusters, mn_extents, narrow_tiles, resident, usable
from .schedule.split_k import KSplit
from .wgmma_results import in_lines, staged, tma_sources
from .wgmma_tiling import WgmmaTiling, k_tile

RATES = {
    f32: "tf32",
    f8e4m3: "f8",
    f8e5m2: "f8",
    i8: "f8",
    u8: "f8",
}  # of tensor cores, if not called as the elements
# Of the tensor cores' peak, that a main loop reaches for which K-tiles are there in time: with few multiprocessors at work, and
# with all of them, when clocks fall: halves, TF32, fp8, promoted accumulators.
ALONE, ALL, ALL_TF32, ALL_F8, ALL_PROMOTED = 0.83, 0.79, 0.85, 0.78, 0.79
SMALL_N = 0.86  # of it, for tiles of 64 columns: both operands are read from shared memory, whose bandwidth is the limit
# Where power is not, that bandwidth is for other tiles too: this power of how much longer shared memory takes than tensor cores;
# of TF32 with promoted accumulators, they wait for it altogether. Halves, which power limits, only have a lower clock
# the more is moved.
CROWDED_HALVES, CROWDED_TF32, CROWDED_F8, CROWDED_PROMOTED = 0.11, 0.5, 0.3, 1.0
PORT = 110.0  # GB/s into one multiprocessor, while the L2 cache has few others to serve
FLIGHT_US = 1.1  # from a K-tile's request to its arrival; as many are in flight as the ring has stages
DRAIN_US = 0.3  # from a tile's last request to its last product
MEMORY = 0.86  # of its bandwidth, that operands are loaded and results stored at
SHORT_ROWS = 0.65  # of the bandwidth, where boxes have 128 bytes of each row of b
# For each tile of a product of mixed widths: nothing at clocks that last, as much as 0.5 in one launch with cold caches.
# 4096³ is 4 % faster by it than by 128x256 at such clocks, and 0.5 % slower in one launch
MIXED_WIDTHS_US = 0.3
# For each K-tile of an operand with so many rows, times what one of them is more than one of 64: where k is not contiguous, each k is a request,
# and all blocks make those of the same lines. 8x4096x14336 TN took 9 us longer than NN, 16x8192x8192 TT 2 us longer than NT
SHORT_BOX_US = 0.8
BESIDE = 0.1  # of what multiprocessors take to read their tiles, that their memory does not hide
# times the bytes through the L2 cache, where rows of 128 bytes lie in two lines; and begin within a sector of 32 bytes
STRADDLE, WITHIN_SECTOR = 1.2, 1.9
START_US = 0.05  # of barriers, descriptors on their way, registers divided anew: most of it while the kernel before ends
CLUSTER_US = 0.25  # for blocks of a cluster to synchronize, and for the last to be done
EXCHANGE_US = 0.2  # for each other block that shares a tile: they synchronize meanwhile, and then each waits for the others' sums
REMOTE = 40.0  # GB/s of these from one multiprocessor to another
# For each 64 x 64 results of such a block, before the next one is at work in its place: 47 times of several rounds, 512³ to 4096³, are
# foreseen to 5 %, and without it to 10 %, most of them too short
NEXT_SUBTILE_US = 0.8
# For a work unit's sums of a part of a tile to go to another, and for it to add them; how much longer tails take, as their K-tiles are not
# those of the other blocks, and the L2 cache answers fewer requests at once; and times all main loops, where tiles are divided.
# 14 times of divided tiles over those of whole ones, 2048³ to 8192³, are foreseen to 5 %
FIXUP_US, OUT_OF_STEP, DIVIDED = 3.0, 0.25, 1.02
AGAIN = 1.2  # times the bytes from memory, where blocks that begin together miss the same lines
CLUSTER_FLIGHT_US = 0.25  # longer, since a stage is free when both blocks have read it
# For a consumer to finish 64 x 64 results and send them off; where they are stored one by one; for each operand of the map, for one
# that is loaded in boxes, and for one with an element for each column; to add up their columns
SUBTILE_US, APART_US, LOAD_SUBTILE_US, SOURCE_SUBTILE_US, ROW_SUBTILE_US, SUM_SUBTILE_US = (
    0.055,
    0.4,
    0.75,
    0.1,
    0.05,
    0.13,
)
LINES_US = 0.35  # a guess: for warps to store them in whole lines
SUBTILE_FLOP_US = 0.025  # for each flop that the map takes for each element, and each consumer that is at it
MOVED = 0.8  # of what the bytes of a longer epilogue take, that no main loop hides: Z kept at 4096³ took 5.5 us for 33 MB
SLOWED = 0.12  # of what a turn group takes to finish results, that the one which multiplies meanwhile loses


class Leaving(NamedTuple):
    """What an epilogue of its own makes of a product, in the place of results: for a consumer to finish 64 x 64, how many boxes at a time
    go through shared memory, and bytes written and read beside the factors."""

    subtile_us: float
    boxes: int
    nbytes: float


def cost(
    tiling: WgmmaTiling,
    region: RegionSpec,
    device: DeviceSpec,
    split: KSplit | None = None,
    register_operand: str = "",
    leaving: Leaving | None = None,
    k: int = 0,
    operand_bytes: int = 0,
    crowded: float | None = None,
    flat: bool = False,
) -> Cost:
    """Microseconds by their causes, as roofline's; of splits of k, which a second launch sums, if that is said. register_operand: the RS
    operand, "a" or "b", see operands/registers.py. leaving: with another epilogue than the region's. k: with what K-tiles are padded by.
    operand_bytes: of a and b in memory, where they are not as large as they are read. crowded: another power of `crowding`. flat: few rows of a
    are one piece of memory."""
    p, _ = problem.read(region)
    step = k_tile(p.dtype)
    whole = cdiv(cdiv(k or p.k, step), tiling.cluster_split) * step
    length, count = (whole, 1) if split is None else (split.k, split.number)
    tiles = clusters(tiling, region, register_operand) * tiling.together * count
    share = min(1.0, tiles / device.sms)
    rate = _rate(tiling, p.dtype, share, crowded)
    speed = device.tflops[RATES.get(p.dtype, p.dtype.name)] * rate * 1e6 / device.sms
    multiply = 2.0 * tiling.m * tiling.n * length / speed
    k_tiles, size = length // step, length * p.dtype.itemsize
    (m, n), boxes = (
        mn_extents(region, register_operand),
        split is None and not register_operand and staged(tiling, region),
    )
    boxes = boxes if leaving is None else leaving.boxes
    a_extent, b_extent = boxed(tiling.m, m), boxed(tiling.n, n)
    fetch = max(
        (a_extent + b_extent) * size / PORT,
        (a_extent + b_extent / tiling.cluster) * size * _straddling(region, flat) * share / L2_PER_SM,
    ) * 1e-3  # fmt: skip
    flight = FLIGHT_US + (CLUSTER_FLIGHT_US if tiling.cluster > 1 else 0.0)
    wait = flight * (k_tiles - 1) / tiling.stages(boxes)
    loop, alone = max(multiply, fetch), max(multiply, fetch, wait)
    subtiles = tiling.row_blocks * tiling.columns / ATOM
    if leaving is not None:
        each = leaving.subtile_us
    elif split is None:
        each = _subtile_us(tiling, region, boxes)
    else:
        each = SUBTILE_US + APART_US
    finish = DRAIN_US + subtiles * each
    if tiling.cluster_split > 1:
        finish += (
            EXCHANGE_US * (tiling.cluster_split - 1)
            + tiling.consumers * tiling.exchange.sent_bytes / REMOTE * 1e-3
        )

    # tiles of the busiest multiprocessor
    most = tiles / usable(tiling, device) if tiling.stream else cdiv(tiles, usable(tiling, device))
    if tiling.narrow_n:
        most = busiest_columns(tiling, region, device, narrow_tiles(tiling, region, device)) / tiling.n
        alone, loop = alone + MIXED_WIDTHS_US, loop + MIXED_WIDTHS_US
    at_once = tiling.turn_groups * tiling.blocks
    loops = DIVIDED * most if tiling.stream else most
    in_turn = loops * (alone if tiling.blocks == 1 else loop)
    if tiling.ping_pong and split is None:
        # stores one by one are all in its way, and so is what warps tell each other
        column_sums = _column_sums_us(region)
        stored = boxes or leaving is not None
        beside = SLOWED * (each - SUBTILE_US - column_sums) + column_sums if stored else APART_US
        in_turn += most * subtiles * beside
    # the last results of all multiprocessors are stored at once
    at_end = min(tiles, usable(tiling, device) * tiling.blocks) * tiling.m * tiling.columns
    each_bytes = _result_bytes(region) if leaving is None else leaving.nbytes / (p.count * p.m * p.n)
    last_of_all = 0.0 if split else at_end * each_bytes / device.bandwidth * 1e-3
    late = max(0.0, last_of_all - finish)
    # one after the other, as long as there is a tile; of divided ones, a part of one
    rounds = math.ceil(most / at_once)
    multiplied = loops / at_once if tiling.stream else rounds
    together = max(in_turn + finish, multiplied * alone + rounds * finish) + late
    if tiling.stream:
        together += FIXUP_US + OUT_OF_STEP * (most % 1.0) * loop
    useful = p.flops / speed / device.sms
    given = operand_bytes or gemm_split.operand_bytes(p)
    nbytes = region.nbytes if leaving is None else given + leaving.nbytes
    if split is not None:
        through, total = gemm_split.sum_cost(region, p, split.number, device)
        nbytes = given + through
    reached = MEMORY
    if tiling.n == ATOM and tiling.blocks > 1 and tiling.cluster_split == 1 and n >= m:
        reached *= SHORT_ROWS
    if tiling.cluster_split > 1 and m > tiling.m and n > tiling.n:
        reached /= AGAIN
    memory = nbytes / (device.bandwidth * reached) * 1e-3
    again = tiles * fetch / device.sms
    limits = {"memory": memory + BESIDE * again, "L2": again, "compute": useful}
    limit = max(limits, key=limits.__getitem__)
    if tiling.cluster_split > 1:
        # one tile each: nothing is on its way while sums are exchanged, or before the next block begins
        begin = START_US + TRIP_US + NEXT_SUBTILE_US * tiling.consumers * subtiles
        slots = usable(tiling, device) * tiling.blocks
        between = (rounds - 1) * (finish + begin) + finish
        full, rest = divmod(tiles, slots)
        whole_us, last_us = (max(limits[limit] * n / tiles, alone) for n in (slots, rest))
        together = max(full * whole_us + (last_us if rest else 0.0) + between, in_turn + finish)
    if split is None and leaving is None and limit != "memory":  # which has no time to spare, or takes power
        together += MOVED * _moved_bytes(region) / device.bandwidth * 1e-3
    first = tiling.stage_bytes / PORT * 1e-3
    latency = TRIP_US + START_US + first + CLUSTER_US * (tiling.cluster > 1)
    terms = {"launch": device.launch_us, "latency": latency}
    reached = terms[limit] = limits[limit]
    last = "wave tail" if most > at_once else "idle multiprocessors"
    for name, until in (
        ("tile padding", tiles * loop / device.sms),
        (last, most * loop),
        ("dependent steps", in_turn),
        ("epilogue", together),
    ):
        if until > reached * (1 + 1e-9):
            terms[name] = until - reached
            reached = until
    if short := 0.0 if flat else SHORT_BOX_US * _short_boxes(region):
        terms["short rows"] = most * k_tiles * short
    if split is None:
        return Cost(terms)
    return Cost({**terms, "sum of parts": total.us})


def _result_bytes(region: RegionSpec) -> int:
    """Of results at one place."""
    _, after = problem.read(region)
    return sum(region.results[position].dtype.itemsize for _, position in after.stores)


@lru_cache(maxsize=256)
def _moved_bytes(region: RegionSpec) -> int:
    """By an epilogue, but for a product's own results."""
    p, after = problem.read(region)
    own = max(region.results[position].dtype.itemsize for _, position in after.stores) if after.stores else 0
    factors = region.operands[p.a].nbytes + region.operands[p.b].nbytes
    return max(0, region.nbytes - factors - p.count * p.m * p.n * own)


@lru_cache(maxsize=256)
def _short_boxes(region: RegionSpec) -> float:
    """How much more requests for rows of less than 128 bytes cost, of halves of which k is not contiguous, than those for whole ones."""
    more = 0.0
    for x in problem.operands(region):
        whole = x.mn.extent >= ATOM or x.mn.extent == 1 or x.matrix.dtype.itemsize != f16.itemsize
        more += 0.0 if whole or x.k.step == 1 else 1 / x.mn.extent - 1 / ATOM
    return more


def _rate(tiling: WgmmaTiling, dtype: DType, share: float, power: float | None = None) -> float:
    """Of the tensor cores' peak, with this share of the multiprocessors at work."""
    halves = dtype in (f16, bf16) and not tiling.promoted
    if tiling.promoted:
        most, crowded = ALL_PROMOTED, CROWDED_PROMOTED
    elif halves:
        most, crowded = ALL, CROWDED_HALVES
    else:
        most, crowded = (ALL_TF32, CROWDED_TF32) if dtype is f32 else (ALL_F8, CROWDED_F8)
    rate = (ALONE + (most - ALONE) * share) / tiling.crowding ** (crowded if power is None else power)
    return rate * SMALL_N if tiling.n == ATOM and halves else rate


def _straddling(region: RegionSpec, flat: bool) -> float:
    p, _ = problem.read(region)
    pitches = 0 if flat else max(p.a_steps[-2:]), max(p.b_steps[-2:])
    apart = math.gcd(128, *(pitch * p.dtype.itemsize for pitch in pitches))
    return 1.0 if apart == 128 else STRADDLE if apart >= 32 else WITHIN_SECTOR


def _subtile_us(tiling: WgmmaTiling, region: RegionSpec, boxes: int) -> float:
    """For a consumer to finish 64 x 64 results."""
    f = problem.epilogue_statistics(region)
    come = len(tma_sources(region)) if boxes and not in_lines(region) else 0
    loads = LOAD_SUBTILE_US * (f.matrices - come) + ROW_SUBTILE_US * f.rows + SOURCE_SUBTILE_US * come
    beyond = LINES_US if boxes and in_lines(region) else 0.0 if boxes else APART_US
    leave = SUBTILE_US * max(1, f.stores) + beyond * f.stores
    return leave + loads + SUBTILE_FLOP_US * f.flops * tiling.cooperative + _column_sums_us(region)


def _column_sums_us(region: RegionSpec) -> float:
    """To add up columns of these."""
    return SUM_SUBTILE_US * (problem.read(region)[1].core_input is not None)


@lru_cache(maxsize=4096)
def best_split(
    tiling: WgmmaTiling, region: RegionSpec, device: DeviceSpec, register_operand: str = ""
) -> tuple[Cost, KSplit]:
    """The number of splits of k that is predicted to be fastest."""
    p, _ = problem.read(region)
    most = resident(tiling, device) // clusters(tiling, region, register_operand)
    costs = [
        (cost(tiling, region, device, split, register_operand), split)
        for split in gemm_split.choices(p.k, most, k_tile(p.dtype))
    ]
    return min(costs, key=lambda pair: pair[0].us)
