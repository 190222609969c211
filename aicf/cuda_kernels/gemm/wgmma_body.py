"""Matrix products as Hopper does them fastest: a producer warpgroup asks the tensor memory accelerator for slices
of the operands, consumer warpgroups multiply them by wgmma out of shared memory, and blocks stay for tile after tile.

What there is in a block (docs/kernels/gemm.md tells it slowly):

    shared memory   `stages` slices of a and b, 128 bytes of k deep, b behind a; chunks of results for each consumer, if results
                    leave that way; two barriers a stage
    full[stage]     a slice has arrived: one arrival by the producer, and as many bytes as it asked for
    empty[stage]    the slice has been read: an arrival by each consumer of its tile, of each block that shares it
    teams           of consumers take tiles in turns; the producer knows nothing of them
    clusters        two blocks with tiles one below the other need the same slice of b: each brings half of it, for both; or
                    blocks share a tile and divide k: cluster_split_k.py
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from ..dsl import cuda, device, int32, types, uint32
from ..hopper.entry import begin
from ..ptx import (
    arrive,
    arrive_remote,
    barrier_init,
    cluster_arrive_only,
    cluster_rank,
    cluster_wait,
    describe,
    expect,
    fence_async,
    in_block,
    keep_registers,
    launch_next,
    load_box,
    multicast_box,
    of_warp,
    prefetch_map,
    publish_barriers,
    shared_address,
    take_registers,
    wait_phase,
)
from .cluster_split_k import barriers_of_parts, divider, gatherer
from .epilogue import Epilogue
from .rs_wgmma_body import held_consumer
from .stream_k_body import contributor, items_of
from .wgmma_mainloop import sums_of
from .wgmma_scheduler import counter, layers, lengths, over, placer, places_of_stages, skipper, turner, turns
from .wgmma_store import boxes_of_results, runs_of_results
from .wgmma_tiling import LINE_BYTES, WARPGROUP, WARPS, Tiling, boxed, depth, left


@functools.cache
def wgmma(
    tiling: Tiling,
    a_k_fast: bool,
    b_k_fast: bool,
    epilogue: Epilogue,
    staged: int,
    a_axes: tuple[int, ...] = (),
    b_axes: tuple[int, ...] = (),
    brought: tuple[int, ...] = (),
    held: str = "",
) -> Callable[..., None]:
    """`kernel(maps, operands, sizes, scales)`: persistent blocks of one producer and `tiling.consumers` consumer warpgroups.

    a_k_fast, b_k_fast  k is contiguous in memory; otherwise m or n is
    held                "a" or "b", the operand that goes through registers, which is then the first of two, and m and n are its lines and
                        those of the other one; see rs_wgmma_body.py
    staged              results that leave by way of shared memory, a box at a time: all or none; or operands that come that
                        way, if they are more; see wgmma_store.py
    a_axes, b_axes      axes of the batch that a and b have a matrix for each index of: dimensions of their maps after two
    maps                of a and b, and of the results if staged: of a batch, with all of its matrices as a third dimension; and of what is
                        brought, likewise; of the results of narrow tiles, and of their b if its k is fast; then of a's last tile,
                        if its k is fast, and of b's
    sizes               m, n, k; and the batch's; or how much of k makes a split, if the epilogue is of splits: each has m
                        rows of results; or how many tiles of a row are narrow, if the tiling has such
    """
    tile_m, cluster, together = tiling.m, tiling.cluster, tiling.together
    parts, slice_of_k = tiling.parts, depth(epilogue.dtype)
    stages, arrivals = tiling.stages(staged), tiling.members * cluster * (WARPS if held else 1)
    barriers_at, empty = tiling.barriers_at(staged), 8 * tiling.stages(staged)
    arrived, chunks = (
        tiling.arrived_at(staged) - barriers_at,
        tiling.consumers * tiling.chunks * bool(brought),
    )
    address, init, publish = shared_address(), barrier_init(), publish_barriers()
    prefetch, fence = prefetch_map(), fence_async()
    meet, met, rank_of = _together(tiling)
    prepare = barriers_of_parts(tiling, staged)
    keep, take = _registers(tiling)
    follow, let_go, of_all = begin(), launch_next(), of_warp()
    each, columns_of = layers(epilogue).each, counter(tiling)
    produce = producer(tiling, (a_k_fast, a_axes), (b_k_fast, b_axes), epilogue, stages)
    if held:
        consume = held_consumer(tiling, epilogue, held == "b")
    else:
        consume = consumer(tiling, a_k_fast, b_k_fast, epilogue, staged, brought)
    turned = device(
        (lambda sizes: (sizes[1], sizes[0], *sizes[2:])) if held == "b" else (lambda sizes: sizes)
    )

    def kernel(maps, operands, sizes, scales):
        lines = turned(sizes)
        m, k = lines[0], lines[2]
        # swizzles repeat every 1024 bytes, and shared memory begins where it likes
        base = uint32((address(cuda.shared.array(0, types.uint8)) + uint32(1023)) & uint32(0xFFFFFC00))
        full = uint32(base + uint32(barriers_at))
        thread = uint32(cuda.threadIdx.x)
        # once the compiler knows that a warp is of one warpgroup, main loops are in registers of the warp, and half as long
        warpgroup = uint32(of_all(uint32(thread // uint32(WARPGROUP))))
        if thread == WARPGROUP:  # while the producer asks for descriptors
            for stage in range(stages):
                init(uint32(full + uint32(8 * stage)), uint32(1))
                init(uint32(full + uint32(8 * stage + empty)), uint32(arrivals))
            prepare(base)
            for chunk in range(chunks):
                init(uint32(full + uint32(8 * chunk + arrived)), uint32(1))
            publish()
            fence()
        if thread == 0:
            for map in maps:
                prefetch(map)
        meet()
        follow()
        rows, columns, steps = over(m, cluster * tile_m), columns_of(lines), over(k, slice_of_k)
        first, apart = uint32(cuda.blockIdx.x) // uint32(together), uint32(cuda.gridDim.x) // uint32(together)
        rank = uint32(rank_of())
        place = uint32(rank // uint32(parts)), uint32(rank % uint32(parts))
        walk = uint32(first), uint32(apart), rows, columns, steps, each(sizes, steps), *place
        if warpgroup == 0:
            keep()
            if thread == 0:
                produce(base, full, maps, walk, lines)
                let_go()
            met()
        else:
            take()
            consume(int32(warpgroup - 1), base, full, maps, walk, sizes, scales, operands)

    order = ("k" if a_k_fast else "m") + ("k" if b_k_fast else "n")
    walks = "".join(
        f"_{name}{''.join(map(str, axes))}" for name, axes in (("a", a_axes), ("b", b_axes)) if axes
    )
    kernel.__name__ = (
        f"gemm_wgmma_{tiling}_{order}{walks}{epilogue}"
        + "_staged" * (staged > 0)
        + "_brought" * (len(brought) > 0)
        + f"_held_{held}" * bool(held)
    )
    kernel.blocks_per_sm = tiling.blocks
    kernel.waits = True
    return kernel


def _together(tiling: Tiling) -> tuple[Any, Any, Any]:
    """(`meet()`: barriers are made, and all who use them know; `met()`: other blocks too, of those that share a tile, who need
    each other at the end only; `rank()`): alone, or in a cluster.

    Arriving releases nothing: barriers are published already, and a release waits for all that the chip has under way.
    """
    nothing, arrive, wait = device(lambda: None), cluster_arrive_only(), cluster_wait()
    if tiling.together == 1:
        return device(lambda: cuda.syncthreads()), nothing, device(lambda: uint32(0))
    if tiling.parts > 1:

        def meet_here():
            arrive()
            cuda.syncthreads()

        return device(meet_here), wait, cluster_rank()

    def meet():
        arrive()
        wait()

    return device(meet), nothing, cluster_rank()


def _registers(tiling: Tiling) -> tuple[Any, Any]:
    """(`keep()` for the producer, `take()` for consumers)."""
    if tiling.registers is None:
        nothing = device(lambda: None)
        return nothing, nothing
    return keep_registers(tiling.registers[0]), take_registers(tiling.registers[1])


# --- the producer -----------------------------------------------------------------------------------------------------


# of an operand: whether k is contiguous; the axes of the batch that it has
Order = tuple[bool, tuple[int, ...]]


def producer(tiling: Tiling, a_order: Order, b_order: Order, epilogue: Epilogue, stages: int) -> Any:
    """`produce(base, full, maps, walk, sizes)`: one thread asks for slice after slice, as soon as there is room.

    Of a cluster, each block brings its own a, and its share of b to all of them: a stage is empty when all have read it. When the
    last ones are, nobody arrives here any more, and the block's shared memory may go.
    """
    tile_m, cluster = tiling.m, tiling.cluster
    share, slice_of_k = tiling.n // cluster, depth(epilogue.dtype)
    stage_bytes, a_bytes, share_bytes, empty = (
        tiling.stage_bytes,
        tiling.a_bytes,
        tiling.b_bytes // cluster,
        8 * stages,
    )
    bring_a = bringer(tile_m, a_order, slice_of_k, load_box)
    bring_b = bringer(
        share, b_order, slice_of_k, load_box if cluster == 1 else functools.partial(multicast_box, cluster)
    )
    (make_plan, tile_of, slices_of, in_k), point_of = items_of(tiling, epilogue), layers(epilogue).point
    wait, announce, turn, place = (wait_phase(), expect(), turner(stages), placer(tiling, epilogue.batch > 0))
    divide = divider(tiling.parts)
    a_box = chosen_box(tile_m, a_order[0], 0, -1 - b_order[0])
    b_box = narrow_box(
        tiling, b_order[0], chosen_box(share, b_order[0], 1, -1, cluster == 1), -2 - a_order[0]
    )

    def produce(base, full, maps, walk, sizes):
        _, _, rows, columns, _, _, rank, part = walk
        stage, phase = uint32(0), uint32(1)  # of the phase before the first: all stages are empty
        plan = make_plan(walk, sizes)
        item, apart, end = plan[0], plan[1], plan[2]
        while item < end:
            row, column, layer, strip = place(tile_of(item, plan), rows, columns, sizes)
            begin, count = divide(slices_of(item, layer, walk, plan), part)
            point = point_of(layer, sizes)
            a_line, b_line = int32((row * cluster + rank) * tile_m), int32(column + rank * share)
            a_map, a_lines = a_box(maps, a_line, sizes[0])
            b_map, b_lines = b_box(maps, b_line, sizes[1], strip)
            nbytes = uint32((a_lines + b_lines * uint32(cluster)) * uint32(LINE_BYTES))
            for step in range(int32(begin), int32(begin + count)):
                ready = uint32(full + uint32(8) * stage)
                wait(uint32(ready + uint32(empty)), phase)
                announce(ready, nbytes)
                a_at = uint32(base + stage * uint32(stage_bytes))
                b_at = uint32(a_at + uint32(a_bytes) + uint32(rank * share_bytes))
                k = int32(in_k(step, walk) * slice_of_k)
                bring_a(a_at, a_map, ready, a_line, k, point)
                bring_b(b_at, b_map, ready, b_line, k, point)
                stage, phase = turn(stage, phase)
            item = uint32(item + apart)
        if cluster > 1:
            for _ in range(stages):
                wait(uint32(full + uint32(8) * stage + uint32(empty)), phase)
                stage, phase = turn(stage, phase)

    return device(produce)


def chosen_box(lines: int, k_fast: bool, map: int, last_map: int, may_be_last: bool = True) -> Any:
    """`choose(maps, line, extent)`: the map that a tile from this line on is brought by, and how many lines that brings. A share of
    a tile in a cluster brings as many lines as the others."""
    if not k_fast:
        return device(lambda maps, line, extent: (maps[map], uint32(lines)))
    count, count_left = device(boxed), device(left)

    def choose(maps, line, extent):
        if may_be_last and int32(line + lines) > int32(extent):
            return maps[last_map], uint32(count_left(lines, extent))
        return maps[map], uint32(count(lines, extent))

    return device(choose)


def narrow_box(tiling: Tiling, k_fast: bool, choose: Any, map: int) -> Any:
    """`choose(maps, line, extent, strip)`: the same of b, of which narrow tiles may take fewer lines."""
    if not (tiling.narrow and k_fast):
        return device(lambda maps, line, extent, strip: choose(maps, line, extent))
    lines = tiling.narrow

    def choose_either(maps, line, extent, strip):
        if strip < 0:
            return choose(maps, line, extent)
        return maps[map], uint32(lines)

    return device(choose_either)


def bringer(lines: int, order: Order, wide: int, load_box: Callable[..., Any]) -> Any:
    """`bring(to, map, ready, line, k, point)`: `lines` x 128 bytes of k, or as many lines as there are; as rows of k, or 128 bytes
    of lines at a time, `wide` of them, as as many rows of lines."""
    (k_fast, axes), boxes = order, lines // wide
    assert k_fast or lines % wide == 0, f"{lines} lines are no boxes of {wide}"
    load = loader(load_box, axes)

    def rows_of_k(to, map, ready, line, k, point):
        load(to, map, ready, k, line, point)

    def rows_of_lines(to, map, ready, line, k, point):
        for i in range(boxes):
            load(uint32(to + uint32(i * wide * LINE_BYTES)), map, ready, int32(line + i * wide), k, point)

    return device(rows_of_k if k_fast else rows_of_lines)


def loader(load_box: Callable[..., Any], axes: tuple[int, ...]) -> Any:
    """`load(to, map, ready, x, y, point)`: a box of the matrix at this point of the batch, of an operand with such axes."""
    load = load_box(2 + len(axes))
    if not axes:
        return device(lambda to, map, ready, x, y, point: load(to, map, ready, x, y))
    first, last = axes[0], axes[-1]
    if len(axes) == 1:
        return device(lambda to, map, ready, x, y, point: load(to, map, ready, x, y, point[first]))
    return device(lambda to, map, ready, x, y, point: load(to, map, ready, x, y, point[first], point[last]))


# --- consumers --------------------------------------------------------------------------------------------------------


def consumer(
    tiling: Tiling, a_k_fast: bool, b_k_fast: bool, epilogue: Epilogue, staged: int, brought: tuple[int, ...]
) -> Any:
    """`consume(group, base, full, maps, walk, sizes, scales, operands)`: a warpgroup multiplies its rows of its team's tiles.

    While it asks for the products of one slice, those of the one before are done: then that one's stage is let go, or the
    slice's own if they do not go on (`late`). Of two teams the other one goes on where this one has asked for its tile's last
    products.
    """
    tile_m, cluster, blocks = tiling.m, tiling.cluster, tiling.row_blocks
    teams, members = tiling.teams, tiling.members
    stages = tiling.stages(staged)
    stage_bytes, a_bytes, empty, own_bytes = tiling.stage_bytes, tiling.a_bytes, 8 * stages, tiling.own_bytes
    start, begin, multiply, finish, late = sums_of(tiling, epilogue, a_k_fast, b_k_fast)
    a_of, b_of, wait, release = describe(a_k_fast), describe(b_k_fast), wait_phase(), releaser(cluster)
    skip, place = skipper(stages), placer(tiling, epilogue.batch > 0)
    wait_turn, pass_turn = turns(tiling)
    items, corner_of = items_of(tiling, epilogue), layers(epilogue).corner
    make_plan, tile_of, slices_of, _ = items
    length = lengths(items)
    ask, write, done = (
        boxes_of_results(tiling, epilogue, staged, brought) if staged else runs_of_results(tiling, epilogue)
    )
    parts, divide, gather, own_columns = (
        tiling.parts,
        divider(tiling.parts),
        gatherer(tiling, staged),
        tiling.columns,
    )
    asks, gives, give, take = contributor(tiling)
    _, met, _ = _together(tiling)
    here, go_on = places_of_stages(stages, stage_bytes)

    def consume(group, base, full, maps, walk, sizes, scales, operands):
        _, _, rows, columns, _, _, rank, part_of_k = walk
        member = int32(int32(cuda.threadIdx.x) % WARPGROUP)
        team, part = int32(group // members), int32(group % members)
        places = full, a_of(uint32(base + uint32(part * own_bytes))), b_of(uint32(base + uint32(a_bytes)))
        acc = start
        plan = make_plan(walk, sizes)
        first, apart, end = plan[0], plan[1], plan[2]
        item = uint32(first + uint32(team) * apart)
        stage, phase, parity = uint32(0), uint32(0), uint32(0)
        if team != 0:
            stage, phase = skip(stage, phase, length(first, walk, plan))
        while item < end:
            row, column, layer, strip = place(tile_of(item, plan), rows, columns, sizes)
            _, count = divide(slices_of(item, layer, walk, plan), part_of_k)
            before, acc = uint32(0), begin(acc)
            line = int32((row * cluster + rank) * tile_m + part * blocks * 64)
            corner = line, int32(column + part_of_k * own_columns), int32(layer), strip
            given = *operands, corner_of(layer, sizes)
            words = ask(base, maps, group, asks(item, member), corner, sizes, given)
            if item != first:
                wait_turn(team)
            ready, a, b = here(stage, places)
            step = uint32(0)
            while step < count:
                wait(ready, phase)
                acc = multiply(acc, a, b, step, strip)
                read = uint32(ready + uint32(empty))
                if step >= late:
                    release(before if late else read, member)
                before = read
                stage, phase, ready, a, b = go_on(stage, phase, ready, a, b)
                step = uint32(step + uint32(1))
            following = uint32(item + apart)
            if following < end:
                pass_turn(team)
            acc, sums = finish(acc)
            if late and (parts == 1 or count > 0):
                release(before, member)
            met()
            sums = gather(sums, base, group, member, part_of_k)
            if gives(item):
                give(sums, part, member, operands)
            else:
                acc, sums = take(acc, sums, part, member, item, plan, operands)
                write(sums, words, base, maps, group, member, corner, sizes, scales, given, parity)
                parity = uint32(parity ^ uint32(1))
            if teams > 1 and following < end:
                stage, phase = skip(stage, phase, length(following, walk, plan))
            item = uint32(item + uint32(teams) * apart)
        done(member)

    return device(consume)


def releaser(cluster: int) -> Any:
    """`release(empty, member)`: this warpgroup has read the slice; every block that brought a part of it is told."""
    if cluster == 1:
        tell = arrive()

        def release(empty, member):
            if member == 0:
                tell(empty)

        return device(release)
    tell_remote, there = arrive_remote(), in_block()

    def release_all(empty, member):
        if member < cluster:
            tell_remote(there(empty, uint32(member)))

    return device(release_all)
