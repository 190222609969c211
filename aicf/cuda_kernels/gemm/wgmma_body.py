"""GEMM as Hopper does it fastest: a producer warpgroup issues TMA loads of K-tiles of the
operands, consumer warpgroups multiply them by wgmma out of shared memory, and blocks stay for tile after tile.

What there is in a block (docs/kernels/gemm.md is the lesson):

    shared memory   `stages` K-tiles of a and b, 128 bytes of k deep, b behind a; subtiles of results for each consumer, if results
                    are stored by TMA; two barriers a stage
    full[stage]     a K-tile has arrived: one arrival by the producer, and the bytes that it announced there (with multicast,
                    the other block requests half of b's)
    empty[stage]    the K-tile has been read: an arrival by each consumer of its tile, of each block that shares it
    ping-pong       two groups of consumers take tiles in turns; the producer knows nothing of them
    clusters        two blocks with tiles one below the other need the same K-tile of b: each loads half of it, for both; or
                    blocks share a tile and divide k: hopper/cluster.py
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from ...types import f8e4m3, f8e5m2, f32, i8, u8
from ..dsl import cuda, device, int32, uint32
from ..hopper import scheduler, stream_k
from ..hopper.accumulators import Accumulators, accumulated, promoted
from ..hopper.cluster import cluster_sync, divider, exchange_barriers, gatherer
from ..hopper.copies import Order, bringer, chosen_box, flat_box, flat_bringer, narrow_box
from ..hopper.mainloop import Mainloop, Stages, flat_rows, from_registers, from_shared, halved, rows_of_tf32
from ..hopper.opening import opening
from ..hopper.ring import advancer, skipper
from ..hopper.roles import ordered_barrier, registers
from ..hopper.scheduler import BatchCoords, WorkTiles, lengths, over
from ..hopper.stream_k import fixup
from ..hopper.units import SWIZZLE_BYTES, WARPGROUP, WARPS
from ..ptx import (
    barrier_init,
    expect,
    fence_async,
    launch_dependents,
    load_box,
    multicast_box,
    publish_barriers,
    wait_phase,
)
from .epilogue import Epilogue
from .operands.registers_body import rs_results
from .wgmma_lines import lines_of_results
from .wgmma_store import boxes_of_results, runs_of_results
from .wgmma_tiling import EIGHTS, FLAT, WgmmaTiling, k_tile, promotes

KINDS = {f32: "tf32", f8e4m3: "e4m3", f8e5m2: "e5m2", i8: "s8", u8: "u8"}  # that wgmma multiplies elements as


@functools.cache
def wgmma(
    tiling: WgmmaTiling,
    a: Order,
    b: Order,
    epilogue: Epilogue,
    staged: int,
    tma_sources: tuple[int, ...] = (),
    register_operand: str = "",
    lines: bool = False,
    producing: Callable[..., Any] | None = None,
    storing: Callable[..., Any] | None = None,
    name: str = "gemm_wgmma",
) -> Callable[..., None]:
    """`kernel(maps, operands, sizes, scales)`: persistent blocks of one producer and `tiling.consumers` consumer warpgroups.

    a, b                whether k is contiguous in memory, otherwise m or n is; and the axes of the batch that it has a matrix for each index
                        of: dimensions of its map after two
    register_operand    "a" or "b": the RS operand; if b, the kernel computes b^T a^T, with m and n swapped; see operands/registers_body.py. FLAT or EIGHTS:
                        few rows of a, which are one piece of memory; see operands/flat.py
    staged              how many results are stored by way of shared memory, a box at a time: all or none; or how many operands
                        of the epilogue are loaded that way, if they are more; see wgmma_store.py
    lines               the one that is staged is stored by warps, not by TMA; see wgmma_lines.py
    maps                of a and b, and of the results if TMA stores them: of a batch, with all of its matrices as a third dimension; and of the
                        sources, likewise; of the results of narrow tiles, and of their b if it is K-major; then of a's last tile,
                        if it is K-major, and of b's
    producing           `producing(tiling, epilogue, stages)`: a producer of another family's, in the place of this one's
    storing             `storing(tiling, epilogue)`: what results are made by, likewise
    sizes               m, n, k; and the batch's; or how much of k makes a split, if the epilogue is of splits: each has m
                        rows of results; or how many tiles of a row are narrow, if the tiling has such
    """
    tile_m, cluster, together = tiling.m, tiling.cluster, tiling.together
    cluster_split, tile_k = tiling.cluster_split, k_tile(epilogue.dtype)
    stages = tiling.stages(staged)
    barriers_at = tiling.barriers_at(staged)
    sync, cluster_join, rank_of = cluster_sync(tiling.together, cluster_split > 1)
    open = opening(barriers_of(tiling, staged, bool(tma_sources), bool(register_operand)), sync)
    dec_registers, inc_registers = registers(tiling.registers)
    griddepcontrol_launch = launch_dependents()
    each, columns_of = coords_of(epilogue).each, counter_of(tiling)
    flat = register_operand in (FLAT, EIGHTS)
    produce = (
        producing(tiling, epilogue, stages) if producing else producer(tiling, a, b, epilogue, stages, flat)
    )
    mainloop = mainloop_of(tiling, epilogue, a[0], b[0], staged, register_operand)
    if storing:
        results = storing(tiling, epilogue)
    elif register_operand and not flat:
        results = rs_results(tiling, epilogue, register_operand == "b")
    elif lines:
        results = lines_of_results(tiling, epilogue, staged)
    elif staged:
        results = boxes_of_results(tiling, epilogue, staged, tma_sources)
    else:
        results = runs_of_results(tiling, epilogue)
    consume = consumer(tiling, epilogue, mainloop, results, staged, flat)
    swap_ab = device(
        (lambda sizes: (sizes[1], sizes[0], *sizes[2:])) if register_operand == "b" else (lambda sizes: sizes)
    )

    def kernel(maps, operands, sizes, scales):
        extents = swap_ab(sizes)
        m, k = extents[0], extents[2]
        base, thread, warpgroup = open(maps)
        full = uint32(base + uint32(barriers_at))
        rows, columns, steps = over(m, cluster * tile_m), columns_of(extents), over(k, tile_k)
        first, apart = uint32(cuda.blockIdx.x) // uint32(together), uint32(cuda.gridDim.x) // uint32(together)
        rank = uint32(rank_of())
        place = uint32(rank // uint32(cluster_split)), uint32(rank % uint32(cluster_split))
        walk = uint32(first), uint32(apart), rows, columns, steps, each(sizes, steps), *place
        if warpgroup == 0:
            dec_registers()
            if thread == 0:
                produce(base, full, maps, walk, extents)
                griddepcontrol_launch()
            cluster_join()
        else:
            inc_registers()
            consume(int32(warpgroup - 1), base, full, maps, walk, sizes, scales, operands)

    order = ("k" if a[0] else "m") + ("k" if b[0] else "n")
    walks = "".join(f"_{of}{''.join(map(str, axes))}" for of, (_, axes) in (("a", a), ("b", b)) if axes)
    kernel.__name__ = (
        f"{name}_{tiling}_{order}{walks}{epilogue}"
        + "_lines" * lines
        + "_staged" * (staged > 0 and not lines)
        + "_tma_sources" * (len(tma_sources) > 0)
        + f"_rs_{register_operand.replace(' ', '_')}" * bool(register_operand)
    )
    kernel.blocks_per_sm = tiling.blocks
    kernel.waits = True
    return kernel


def barriers_of(tiling: WgmmaTiling, staged: int, tma_sources: bool, register_operand: bool) -> Any:
    """`init(base)`: of stages, of blocks that share a tile, of subtiles that sources are loaded to."""
    stages, first = tiling.stages(staged), tiling.barriers_at(staged)
    arrivals, empty = tiling.cooperative * tiling.cluster * (WARPS if register_operand else 1), 8 * stages
    subtiles, arrived = tiling.consumers * tiling.subtiles * tma_sources, tiling.arrived_at(staged) - first
    init, publish, fence = barrier_init(), publish_barriers(), fence_async()
    prepare = exchange_barriers(tiling.exchange, tiling.split_barriers_at(staged))

    def make(base):
        full = uint32(base + uint32(first))
        for stage in range(stages):
            init(uint32(full + uint32(8 * stage)), uint32(1))
            init(uint32(full + uint32(8 * stage + empty)), uint32(arrivals))
        prepare(base)
        for subtile in range(subtiles):
            init(uint32(full + uint32(8 * subtile + arrived)), uint32(1))
        publish()
        fence()

    return device(make)


# --- parts of the kernel, by its tiling and its epilogue ------------------------------------------------------------------


def coords_of(epilogue: Epilogue) -> BatchCoords:
    return scheduler.batch_coords(epilogue.batch, k_tile(epilogue.dtype) if epilogue.split else 0)


def work_tiles_of(tiling: WgmmaTiling, epilogue: Epilogue) -> WorkTiles:
    coords = coords_of(epilogue)
    return stream_k.work_units(coords) if tiling.stream else scheduler.tiles_in_turn(coords)


def placer_of(tiling: WgmmaTiling, batched: bool, flat: bool = False) -> Any:
    place = scheduler.placer(tiling.group_m, tiling.n, batched, tiling.narrow_n)
    return scheduler.with_rows(place) if flat else place


def counter_of(tiling: WgmmaTiling) -> Any:
    return scheduler.counter(tiling.n, tiling.narrow_n, tiling.narrow_group)


def mainloop_of(
    tiling: WgmmaTiling,
    epilogue: Epilogue,
    a_k_major: bool,
    b_k_major: bool,
    staged: int,
    register_operand: str,
) -> Mainloop:
    stages = Stages(tiling.stages(staged), tiling.stage_bytes, tiling.a_bytes, tiling.own_bytes)
    if register_operand in (FLAT, EIGHTS):
        assert tiling.m == 64 and tiling.cluster == 1, f"{tiling}: all rows are of one tile"
        operand = flat_rows(epilogue.dtype.name, register_operand == EIGHTS)
        return from_registers(stages, tiling.n, operand, b_k_major)
    if register_operand:
        assert tiling.row_blocks == tiling.together == 1, f"{tiling}: a thread has two rows"
        return from_registers(stages, tiling.n, rows_of_tf32())
    accumulators = accumulators_of(tiling, epilogue, a_k_major, b_k_major)
    loop = from_shared(stages, accumulators, a_k_major, b_k_major, tiling.cluster, tiling.cluster_split)
    return halved(loop, tiling.accumulators) if tiling.halved else loop


def accumulators_of(
    tiling: WgmmaTiling, epilogue: Epilogue, a_k_major: bool, b_k_major: bool
) -> Accumulators:
    both = tuple(KINDS.get(dtype, dtype.name) for dtype in (epilogue.dtype, epilogue.b_dtype))
    if tiling.promoted or promotes(epilogue.dtype):
        return promoted(both, tiling.n, tiling.row_blocks, a_k_major, b_k_major)
    return accumulated(both, tiling.n, tiling.row_blocks, a_k_major, b_k_major, tiling.narrow_n)


# --- the producer -----------------------------------------------------------------------------------------------------


def producer(
    tiling: WgmmaTiling, a_order: Order, b_order: Order, epilogue: Epilogue, stages: int, flat: bool = False
) -> Any:
    """`produce(base, full, maps, walk, sizes)`: one thread issues loads of K-tile after K-tile, as soon as there is room. `flat`: of a's
    few rows, which are one piece of memory.

    Of a cluster, each block loads its own a, and its share of b for all of them: a stage is empty when all have read it. When the
    last ones are, nobody arrives here any more, and the block's shared memory may go.
    """
    tile_m, cluster = tiling.m, tiling.cluster
    share, tile_k = tiling.n // cluster, k_tile(epilogue.dtype)
    stage_bytes, a_bytes = tiling.stage_bytes, tiling.a_bytes
    share_bytes, empty = tiling.b_bytes // cluster, 8 * stages
    bring_a = flat_bringer(a_order[1], load_box) if flat else bringer(tile_m, a_order, tile_k, load_box)
    bring_b = bringer(
        share, b_order, tile_k, load_box if cluster == 1 else functools.partial(multicast_box, cluster)
    )
    make_plan, tile_of, k_tiles_of, in_k = work_tiles_of(tiling, epilogue)
    point_of, place = coords_of(epilogue).point, placer_of(tiling, epilogue.batch > 0)
    wait, announce, advance, divide = wait_phase(), expect(), advancer(stages), divider(tiling.cluster_split)
    a_box = flat_box(0) if flat else chosen_box(tile_m, a_order[0], 0, -1 - b_order[0])
    b_box = narrow_box(
        tiling.narrow_n, b_order[0], chosen_box(share, b_order[0], 1, -1, cluster == 1), -2 - a_order[0]
    )

    def produce(base, full, maps, walk, sizes):
        _, _, rows, columns, _, _, rank, split = walk
        stage, phase = uint32(0), uint32(1)  # of the phase before the first: all stages are empty
        plan = make_plan(walk, sizes)
        work_tile, apart, end = plan[0], plan[1], plan[2]
        while work_tile < end:
            row, column, batch_coord, narrow_tile = place(tile_of(work_tile, plan), rows, columns, sizes)
            begin, count = divide(k_tiles_of(work_tile, batch_coord, walk, plan), split)
            point = point_of(batch_coord, sizes)
            a_mn, b_mn = int32((row * cluster + rank) * tile_m), int32(column + rank * share)
            a_map, a_extent = a_box(maps, a_mn, sizes[0])
            b_map, b_extent = b_box(maps, b_mn, sizes[1], narrow_tile)
            nbytes = uint32((a_extent + b_extent * uint32(cluster)) * uint32(SWIZZLE_BYTES))
            for step in range(int32(begin), int32(begin + count)):
                ready = uint32(full + uint32(8) * stage)
                wait(uint32(ready + uint32(empty)), phase)
                announce(ready, nbytes)
                a_at = uint32(base + stage * uint32(stage_bytes))
                b_at = uint32(a_at + uint32(a_bytes) + uint32(rank * share_bytes))
                k = int32(in_k(step, walk) * tile_k)
                bring_a(a_at, a_map, ready, a_mn, k, point)
                bring_b(b_at, b_map, ready, b_mn, k, point)
                stage, phase = advance(stage, phase)
            work_tile = uint32(work_tile + apart)
        if cluster > 1:
            for _ in range(stages):
                wait(uint32(full + uint32(8) * stage + uint32(empty)), phase)
                stage, phase = advance(stage, phase)

    return device(produce)


# --- consumers --------------------------------------------------------------------------------------------------------


def consumer(
    tiling: WgmmaTiling, epilogue: Epilogue, mainloop: Mainloop, results: tuple[Any, Any, Any], staged: int, flat: bool = False
) -> Any:  # fmt: skip
    """`consume(group, base, full, maps, walk, sizes, scales, operands)`: a warpgroup multiplies its rows of its turn group's tiles.

    With ping-pong, the next turn group starts once this one has issued its last wgmma. `results`: what they are made by; see
    wgmma_store.py.
    """
    tile_m, cluster, blocks = tiling.m, tiling.cluster, tiling.row_blocks
    turn_groups, cooperative = tiling.turn_groups, tiling.cooperative
    (start, places_of, run, finish), (ask, write, done) = mainloop, results
    skip, place = skipper(tiling.stages(staged)), placer_of(tiling, epilogue.batch > 0, flat)
    wait_turn, pass_turn = ordered_barrier(tiling.consumers, tiling.ping_pong)
    work_tiles, batch_origin_of = work_tiles_of(tiling, epilogue), coords_of(epilogue).origin
    make_plan, tile_of, k_tiles_of, _ = work_tiles
    length = lengths(work_tiles)
    cluster_split, own_columns = tiling.cluster_split, tiling.columns
    divide, gather = (
        divider(cluster_split),
        gatherer(tiling.exchange, tiling.slots_at(staged), tiling.split_barriers_at(staged)),
    )
    asks, gives, give, take = fixup(tiling.accumulators, cooperative, not tiling.stream)
    _, cluster_join, _ = cluster_sync(tiling.together, cluster_split > 1)

    def consume(group, base, full, maps, walk, sizes, scales, operands):
        _, _, rows, columns, _, _, rank, split = walk
        member = int32(int32(cuda.threadIdx.x) % WARPGROUP)
        turn_group, part = int32(group // cooperative), int32(group % cooperative)
        places = places_of(base, full, part, member)
        acc = start
        plan = make_plan(walk, sizes)
        first, apart, end = plan[0], plan[1], plan[2]
        work_tile = uint32(first + uint32(turn_group) * apart)
        stage, phase, parity = uint32(0), uint32(0), uint32(0)
        if turn_group != 0:
            stage, phase = skip(stage, phase, length(first, walk, plan))
        while work_tile < end:
            row, column, batch_coord, narrow_tile = place(tile_of(work_tile, plan), rows, columns, sizes)
            _, count = divide(k_tiles_of(work_tile, batch_coord, walk, plan), split)
            first_row = int32((row * cluster + rank) * tile_m + part * blocks * 64)
            tile_coord = first_row, int32(column + split * own_columns), int32(batch_coord), narrow_tile
            given = *operands, batch_origin_of(batch_coord, sizes)
            words = ask(base, maps, group, asks(work_tile, member), tile_coord, sizes, given)
            if work_tile != first:
                wait_turn(turn_group)
            acc, stage, phase, last = run(acc, stage, phase, count, narrow_tile, places, member)
            following = uint32(work_tile + apart)
            if following < end:
                pass_turn(turn_group)
            acc, accumulators = finish(acc, last, count, places, member)
            cluster_join()
            accumulators = gather(accumulators, base, group, member, split)
            if gives(work_tile):
                give(accumulators, part, member, operands)
            else:
                acc, accumulators = take(acc, accumulators, part, member, work_tile, plan, operands)
                write(
                    accumulators, words, base, maps, group, member, tile_coord, sizes, scales, given, parity
                )
                parity = uint32(parity ^ uint32(1))
            if turn_groups > 1 and following < end:
                stage, phase = skip(stage, phase, length(following, walk, plan))
            work_tile = uint32(work_tile + uint32(turn_groups) * apart)
        done(member)

    return device(consume)
