"""What a Hopper matrix product is predicted to take: blocks that stay, with a ring of K-tiles that never runs dry between tiles.

A block's main loop goes at the rate of the tensor cores, of its way to the L2 cache, or of a trip there for each filling of the
ring. Between main loops is the epilogue, unless another turn group or another block of the multiprocessor multiplies meanwhile.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

from ...device.calibration import family
from ...device.spec import DeviceSpec, constants
from ...registry.cost import Cost, machine
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

SECTOR = 32  # bytes: the least that a memory access moves
RATES = {
    f32: "tf32",
    f8e4m3: "f8",
    f8e5m2: "f8",
    i8: "f8",
    u8: "f8",
}  # of tensor cores, if not called as the elements


@family("gemm.wgmma")
@dataclass(frozen=True)
class WgmmaConstants:
    """Constants of products by wgmma. Defaults are an H200's with cold caches; shares are of a peak rate.

    alone, all, all_tf32, all_f8, all_promoted  of the tensor cores, that a main loop reaches for which K-tiles are there in time: with few
        multiprocessors at work, and with all of them, when clocks fall: halves, TF32, fp8, promoted accumulators
    small_n  of these, for tiles of 64 columns: both operands are read from shared memory, whose bandwidth is the limit
    crowded_*  the power of how much longer shared memory takes than tensor cores, by which a main loop is slower: of TF32 with promoted
        accumulators these wait for it altogether; halves, which power limits, only have a lower clock the more is moved
    port  GB/s into one multiprocessor, while the L2 cache has few others to serve
    flight_us, cluster_flight_us  from a K-tile's request to its arrival, as many in flight as the ring has stages; longer in clusters,
        since a stage is free when both blocks have read it
    drain_us  from a tile's last request to its last product
    under_way_us  from a K-tile's request to the next one's in its stage, while memory is busy; least_us: of a K-tile of 64 columns, for each 64
        rows, which tensor cores read from shared memory as well; outside: how much longer boxes take that lie outside of a
    memory  of its bandwidth, that operands are loaded and results stored at; short_rows: of that, where boxes have 128 bytes of each row of b;
        again: times the bytes, where blocks that begin together miss the same lines
    short_box_us  for each K-tile of an operand with so many rows, times what one of them is more than one of 64: where k is not contiguous, each
        k is a request, and all blocks make those of the same lines. 8x4096x14336 TN took 9 us longer than NN, 16x8192x8192 TT 2 us
    way, shared_way  GB/s from memory to one multiprocessor, and to both of a pair, where more than half of all multiprocessors have blocks: 66
        blocks of `64x128_cluster_split2` took 10.5 us, 68 took 13.0
    written  times the bytes of results, which memory takes more slowly than it gives operands
    smooth  power of the mean of limits of memory that overlap
    stored_us, stored_pairs_us, stored_ones_us, lines_stored_us  of a multiprocessor, at least, for 64 x 64 results that are stored without boxes:
        by four columns of a thread, by two, one by one; and by whole lines
    direct_load  of that, for a matrix of an epilogue that is loaded likewise
    beside  of what multiprocessors take to read their tiles, that their memory does not hide
    straddle, within_sector  times the bytes through the L2 cache, where rows of 128 bytes lie in two lines, and begin within a sector
    start_us, cluster_us  of barriers, descriptors and registers divided anew; for blocks of a cluster to synchronize, and the last to be done
    mixed_widths_us  of each tile of a product of mixed widths
    exchange_us, remote  for each other block that shares a tile, to synchronize and wait for its sums; GB/s of these between multiprocessors
    next_subtile_us  of each 64 x 64 results of such a block, before the next one is at work in its place
    fixup_us, out_of_step, divided  of divided tiles: for a part's sums to go to another block, and be added; how much longer tails take, whose
        K-tiles are not those of the other blocks; times all main loops
    subtile_us, apart_us, lines_us  for a consumer to finish 64 x 64 results and send them off; where they are stored one by one; by whole lines
    load_subtile_us, source_subtile_us, row_subtile_us  for each operand of the map; one that is loaded in boxes; one with an element a column
    sum_subtile_us, subtile_flop_us  to add up columns; for each flop of the map for each element, and each consumer that is at it
    flat_us, flat_pairs_us  of a K-tile of few rows of a that are one piece of memory, to be transposed: whole eights of rows, and others
    split_flop_us  of each flop of the map, where blocks share a tile and results are stored without boxes
    moved  of what the bytes of a longer epilogue take, that no main loop hides
    slowed  of what a turn group takes to finish results, that the one which multiplies meanwhile loses
    """

    alone: float = 0.83
    all: float = 0.79
    all_tf32: float = 0.85
    all_f8: float = 0.78
    all_promoted: float = 0.79
    small_n: float = 0.86
    crowded_halves: float = 0.11
    crowded_tf32: float = 0.5
    crowded_f8: float = 0.3
    crowded_promoted: float = 1.0
    port: float = 110.0
    flight_us: float = 1.1
    drain_us: float = 0.3
    memory: float = 0.92
    under_way_us: float = 0.88
    least_us: float = 0.13
    outside: float = 3.0
    short_rows: float = 0.65
    mixed_widths_us: float = 0.3
    short_box_us: float = 0.8
    way: float = 80.0
    shared_way: float = 110.0
    written: float = 1.25
    smooth: float = 2.5
    stored_us: float = 0.8
    stored_pairs_us: float = 2.5
    stored_ones_us: float = 4.0
    lines_stored_us: float = 1.8
    direct_load: float = 0.8
    beside: float = 0.1
    straddle: float = 1.2
    within_sector: float = 1.9
    start_us: float = 0.05
    cluster_us: float = 0.25
    exchange_us: float = 0.2
    remote: float = 40.0
    next_subtile_us: float = 0.8
    fixup_us: float = 3.0
    out_of_step: float = 0.25
    divided: float = 1.02
    again: float = 1.2
    cluster_flight_us: float = 0.25
    subtile_us: float = 0.055
    apart_us: float = 0.4
    ragged: float = 3.0
    load_subtile_us: float = 0.75
    source_subtile_us: float = 0.1
    row_subtile_us: float = 0.05
    sum_subtile_us: float = 0.13
    lines_us: float = 0.35
    subtile_flop_us: float = 0.025
    moved: float = 0.8
    flat_us: float = 0.155
    flat_pairs_us: float = 0.26
    split_flop_us: float = 0.03
    slowed: float = 0.12


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
    record: type[WgmmaConstants] = WgmmaConstants,
) -> Cost:
    """Microseconds by their causes, as roofline's; of splits of k, which a second launch sums, if that is said. register_operand: the RS
    operand, "a" or "b", see operands/registers.py. leaving: with another epilogue than the region's. k: with what K-tiles are padded by.
    operand_bytes: of a and b in memory, where they are not as large as they are read. crowded: another power of `crowding`. flat: few rows of a
    are one piece of memory. record: the constants of another family."""
    c = constants(record, device)
    p, _ = problem.read(region)
    step = k_tile(p.dtype)
    whole = cdiv(cdiv(k or p.k, step), tiling.cluster_split) * step
    length, count = (whole, 1) if split is None else (split.k, split.number)
    tiles = clusters(tiling, region, register_operand) * tiling.together * count
    share = min(1.0, tiles / device.sms)
    rate = _rate(c, tiling, p.dtype, share, crowded)
    speed = device.tflops[RATES.get(p.dtype, p.dtype.name)] * rate * 1e6 / device.sms
    k_tiles, size = length // step, length * p.dtype.itemsize
    multiply = 2.0 * tiling.m * tiling.n * length / speed
    if tiling.n == ATOM:
        multiply = max(multiply, c.least_us * k_tiles * tiling.row_blocks)
    (m, n), boxes = (
        mn_extents(region, register_operand),
        split is None and not register_operand and staged(tiling, region),
    )
    if flat:
        multiply = max(multiply, k_tiles * (c.flat_pairs_us if m % 8 else c.flat_us))
    boxes = boxes if leaving is None else leaving.boxes
    a_extent, b_extent = float(boxed(tiling.m, m)), boxed(tiling.n, n)
    if not flat and m < tiling.m and p.dtype.itemsize == f16.itemsize and p.a_steps[-2] == 1 and m > 1:
        a_extent += c.outside * (tiling.m - cdiv(m, ATOM) * ATOM)  # boxes of 64 that lie outside altogether
    fetch = max(
        (a_extent + b_extent) * size / c.port,
        (a_extent + b_extent / tiling.cluster) * size * _straddling(c, region, flat) * share / machine(device).l2_per_sm,
    ) * 1e-3  # fmt: skip
    flight = c.flight_us + (c.cluster_flight_us if tiling.cluster > 1 else 0.0)
    wait = flight * (k_tiles - 1) / tiling.stages(boxes)
    loop, alone = max(multiply, fetch), max(multiply, fetch, wait)
    subtiles = tiling.row_blocks * tiling.columns / ATOM
    if leaving is not None:
        each = leaving.subtile_us
    elif split is None:
        each = _subtile_us(c, tiling, region, boxes)
    else:
        each = c.subtile_us + c.apart_us
    finish = c.drain_us + subtiles * each
    if tiling.halved:  # products of the first half are done before those of the second begin
        alone, loop = alone + c.drain_us, loop + c.drain_us
    if tiling.cluster_split > 1:
        finish += (
            c.exchange_us * (tiling.cluster_split - 1)
            + tiling.consumers * tiling.exchange.sent_bytes / c.remote * 1e-3
        )
        if not boxes:
            finish += c.split_flop_us * problem.epilogue_statistics(region).flops

    # tiles of the busiest multiprocessor
    most = tiles / usable(tiling, device) if tiling.stream else cdiv(tiles, usable(tiling, device))
    if tiling.narrow_n:
        most = busiest_columns(tiling, region, device, narrow_tiles(tiling, region, device)) / tiling.n
        alone, loop = alone + c.mixed_widths_us, loop + c.mixed_widths_us
    at_once = tiling.turn_groups * tiling.blocks
    loops = c.divided * most if tiling.stream else most
    in_turn = loops * (alone if tiling.blocks == 1 or tiles <= usable(tiling, device) else loop)
    if tiling.ping_pong and split is None:
        # stores one by one are all in its way, and so is what warps tell each other
        column_sums = _column_sums_us(c, region)
        stored = boxes or leaving is not None
        beside = (
            c.slowed * (each - c.subtile_us - column_sums) + column_sums if stored else _apart_us(c, region)
        )
        in_turn += most * subtiles * beside
    # the last results of all multiprocessors are stored at once
    at_end = min(tiles, usable(tiling, device) * tiling.blocks) * tiling.m * tiling.columns
    each_bytes = _result_bytes(region) if leaving is None else leaving.nbytes / (p.count * p.m * p.n)
    last_of_all = 0.0 if split else at_end * each_bytes / device.bandwidth * 1e-3
    late = max(0.0, last_of_all - finish)
    results_us = (
        0.0
        if split or leaving is not None
        else _stored_us(c, region, boxes) * p.count * p.m * cdiv(p.n, ATOM) / ATOM / device.sms
    )
    # one after the other, as long as there is a tile; of divided ones, a part of one
    rounds = math.ceil(most / at_once)
    multiplied = loops / at_once if tiling.stream else rounds
    together = max(in_turn + finish, multiplied * alone + rounds * finish) + late
    if tiling.stream:
        together += c.fixup_us + c.out_of_step * (most % 1.0) * loop
    useful = p.flops / speed / device.sms
    given = operand_bytes or gemm_split.operand_bytes(p)
    nbytes = region.nbytes if leaving is None else given + leaving.nbytes
    if split is not None:
        through, total = gemm_split.sum_cost(region, p, split.number, device)
        nbytes = given + through
    reached = c.memory
    if tiling.n == ATOM and tiling.blocks > 1 and tiling.cluster_split == 1 and n >= m and p.b_steps[-1] == 1:
        reached *= c.short_rows
    if tiling.cluster_split > 1 and m > tiling.m and n > tiling.n:
        reached /= c.again
    if split is None and leaving is None:
        nbytes += (c.written - 1) * sum(t.nbytes for t in region.results)
    memory = nbytes / (device.bandwidth * reached) * 1e-3
    again = tiles * fetch / device.sms
    # memory is not kept busy by few bytes under way: there is no edge between that and its bandwidth
    under_way = loops / min(tiling.blocks, most) * c.under_way_us * k_tiles / tiling.stages(boxes)
    # two multiprocessors share a way to memory: blocks on less than half of them have it for themselves
    each_way = loops * given / tiles * 1e-3
    way = max(each_way / c.way, 2 * each_way / c.shared_way if 2 * tiles > device.sms else 0.0)
    memory = (memory**c.smooth + max(under_way, way) ** c.smooth + results_us**c.smooth) ** (1 / c.smooth)
    limits = {"memory": memory + c.beside * again, "L2": again, "compute": useful}
    limit = max(limits, key=limits.__getitem__)
    if tiling.cluster_split > 1:
        # one tile each: nothing is on its way while sums are exchanged, or before the next block begins
        begin = c.start_us + machine(device).trip_us + c.next_subtile_us * tiling.consumers * subtiles
        slots = usable(tiling, device) * tiling.blocks
        between = (rounds - 1) * (finish + begin) + finish
        full, rest = divmod(tiles, slots)
        whole_us, last_us = (max(limits[limit] * n / tiles, alone) for n in (slots, rest))
        together = max(full * whole_us + (last_us if rest else 0.0) + between, in_turn + finish)
    if split is None and leaving is None and limit != "memory":  # which has no time to spare, or takes power
        together += c.moved * _moved_bytes(region) / device.bandwidth * 1e-3
    first = tiling.stage_bytes / c.port * 1e-3
    latency = machine(device).trip_us + c.start_us + first + c.cluster_us * (tiling.cluster > 1)
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
    if short := 0.0 if flat else c.short_box_us * _short_boxes(region):
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
        more += 0.0 if whole or x.k.step == 1 else 1 / max(8, x.mn.extent) - 1 / ATOM
    return more


def _rate(
    c: WgmmaConstants, tiling: WgmmaTiling, dtype: DType, share: float, power: float | None = None
) -> float:
    """Of the tensor cores' peak, with this share of the multiprocessors at work."""
    halves = dtype in (f16, bf16) and not tiling.promoted
    if tiling.promoted:
        most, crowded = c.all_promoted, c.crowded_promoted
    elif halves:
        most, crowded = c.all, c.crowded_halves
    else:
        most, crowded = (c.all_tf32, c.crowded_tf32) if dtype is f32 else (c.all_f8, c.crowded_f8)
    rate = (c.alone + (most - c.alone) * share) / tiling.crowding ** (crowded if power is None else power)
    return rate * c.small_n if tiling.n == ATOM and halves else rate


def _straddling(c: WgmmaConstants, region: RegionSpec, flat: bool) -> float:
    p, _ = problem.read(region)
    pitches = 0 if flat else max(p.a_steps[-2:]), max(p.b_steps[-2:])
    apart = math.gcd(128, *(pitch * p.dtype.itemsize for pitch in pitches))
    return 1.0 if apart == 128 else c.straddle if apart >= 32 else c.within_sector


def _subtile_us(c: WgmmaConstants, tiling: WgmmaTiling, region: RegionSpec, boxes: int) -> float:
    """For a consumer to finish 64 x 64 results."""
    f = problem.epilogue_statistics(region)
    come = len(tma_sources(region)) if boxes and not in_lines(region) else 0
    rows = min(1.0, problem.read(region)[0].m / ATOM)
    loads = (
        c.load_subtile_us * rows * (f.matrices - come)
        + c.row_subtile_us * f.rows
        + c.source_subtile_us * come
    )
    beyond = c.lines_us if boxes and in_lines(region) else 0.0 if boxes else _apart_us(c, region)
    leave = c.subtile_us * max(1, f.stores) + beyond * f.stores
    return leave + loads + c.subtile_flop_us * f.flops * tiling.cooperative + _column_sums_us(c, region)


def _apart_us(c: WgmmaConstants, region: RegionSpec) -> float:
    """To store 64 x 64 results one by one: rows that begin within a sector of 32 bytes are written in parts of sectors."""
    _, after = problem.read(region)
    ragged = any(
        region.results[i].shape[-1:]
        and region.results[i].shape[-1] * region.results[i].dtype.itemsize % SECTOR
        for _, i in after.stores
    )
    return c.apart_us * (c.ragged if ragged else 1.0)


@lru_cache(maxsize=256)
def _direct(region: RegionSpec) -> tuple[int, int, int]:
    """Results that are stored without boxes: the number of columns that a thread stores at a time, results, and matrices that are loaded likewise."""
    f = problem.epilogue_statistics(region)
    return next((w for w in (4, 2) if problem.in_runs(region, w)), 1), f.stores, f.matrices


def _stored_us(c: WgmmaConstants, region: RegionSpec, boxes: int) -> float:
    """What a multiprocessor needs at least for each 64 x 64 results, whatever their number of warps."""
    if boxes:
        return c.lines_stored_us if in_lines(region) else 0.0
    width, stores, loads = _direct(region)
    each = {4: c.stored_us, 2: c.stored_pairs_us, 1: c.stored_ones_us}[width]
    return each * (stores + c.direct_load * loads)


def _column_sums_us(c: WgmmaConstants, region: RegionSpec) -> float:
    """To add up columns of these."""
    return c.sum_subtile_us * (problem.read(region)[1].core_input is not None)


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
