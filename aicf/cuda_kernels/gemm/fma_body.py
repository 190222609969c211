"""GEMM in exact f32 for Hopper: TMA loads K-tiles of the operands, threads multiply them out
of shared memory by fused multiply-adds, 128 accumulators each.

    shared memory   for each warp group a ring of stages, K-tiles of a with those of b behind them; three barriers a stage
    full[stage]     a K-tile has arrived: one arrival by the warp group's first thread, and the bytes that it announced
    transposed[stage]   K-major rows of a K-tile have become MN-major rows: an arrival by each thread of the warp group
    empty[stage]    a K-tile has been multiplied: an arrival by each thread of the warp group
    warp groups     take K-tiles in turns (sliced-K); in the end their accumulators are added up, in the order of the groups

There is no producer: its registers would be missed. The first thread of a warp group issues a K-tile's loads when the warp group has read what lies there.

K-tiles are multiplied as MN-major rows. An operand that lies so in memory is loaded so, into any stage. Of one that has K-major rows these are loaded
into stages behind the first two, and halfway through a K-tile the warp group's threads transpose the next one, 4 x 4 numbers at a time, into one of
the first two: of 16 loads and stores for 4096 multiply-adds. On both sides 16 bytes change places, so that eight lanes find all banks.
Lanes of a product are numbered so that pairs of them read the same run: two pairs of quarters of a warp then go together.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from ..dsl import cuda, device, float32, int32, types, uint32
from ..hopper.entry import begin
from ..ptx import (
    arrive,
    barrier_init,
    fence_async,
    load_front,
    load_shared,
    multiply_quad,
    opaque,
    prefetch_map,
    publish_barriers,
    shared_address,
    store_shared,
    wait_phase,
)
from ..ptx.quads import RUN, quad_of
from ..tiles.tile import each, mapped, zeros
from .blocks import block_place
from .column_sums_body import ThreadTile, writer
from .epilogue import Epilogue, finisher
from .fma_stages import (
    barriers_of,
    batch_origins_of,
    bringer,
    lanes_of,
    locator,
    pitch_of,
    places,
    transposer,
)
from .part_sums import part_sums
from .tilings import WARP_TILE, FmaTiling, Order

LANES_M, LANES_N = 4, 8  # of a warp
ROWS, COLUMNS = WARP_TILE // LANES_M, WARP_TILE // LANES_N  # of a thread
NO_STEPS = np.int64(0), np.int64(0), np.int64(0), np.int64(0)  # of a batch: descriptors know them


@functools.cache
def fma(tiling: FmaTiling, a_order: Order, b_order: Order, epilogue: Epilogue) -> Callable[..., None]:
    """`kernel(maps, operands, sizes, scales)`: a block per tile of the result; maps of a and b."""
    tile_m, tile_n, stages = tiling.m, tiling.n, tiling.stages
    warp_groups, warps_threads = tiling.warp_groups, tiling.warps_threads
    barriers_at, notes_at, warps_m = tiling.barriers_at, tiling.notes_at, tiling.warps_m
    slots, tile_k, eights, ahead = warp_groups * stages, tiling.step, tiling.step // 8, tiling.ahead
    empty = 8 * slots
    a_eight, b_eight = 8 * pitch_of(a_order, tile_m), 8 * pitch_of(b_order, tile_n)
    reads = quad_of(ROWS, COLUMNS, places(a_order, tile_m, LANES_M), places(b_order, tile_n, LANES_N))
    load, multiply, start = load_front(reads), multiply_quad(reads), zeros(ROWS * COLUMNS)
    address, init, publish, fence = shared_address(), barrier_init(), publish_barriers(), fence_async()
    prefetch, griddepcontrol_wait, wait, tell = prefetch_map(), begin(), wait_phase(), arrive()
    apart, lane_of = opaque(), lanes_of(tiling)
    place = block_place(tile_m, tile_n, epilogue.batch, epilogue.split)
    keep_origin, _, origin_of = batch_origins_of(tiling, epilogue)
    locate, bring = locator(tiling, a_order, b_order), bringer(tiling, a_order, b_order, epilogue)
    barrier_of, (transpose, ready, room) = barriers_of(tiling), transposer(tiling, a_order, b_order)
    reduce_groups, rows_each = _group_reduction(tiling), ROWS // warp_groups
    next_part, total = part_sums(ROWS * COLUMNS, tiling.threads, epilogue.width, tiling.parts)
    finish, outside, no_steps = finisher(epilogue), epilogue.outside, NO_STEPS

    def write_run(i, products, env):
        row, column, warp_group, m, n, scales, operands = env
        x, y = warp_group * rows_each + i // COLUMNS, i % COLUMNS
        r = row + x // RUN * (RUN * LANES_M) + x % RUN
        q = column + y // RUN * (RUN * LANES_N) + y % RUN
        if r < m and q < n:
            return finish(r, q, total(i, products, operands), n, scales, operands)
        return outside

    own = tuple(range(COLUMNS)) * rows_each
    column_threads = warps_m * LANES_M * warp_groups
    thread_tile = ThreadTile(tile_m, tile_n, own, RUN, RUN * LANES_N, column_threads, tiling.threads)
    write = writer(epilogue, thread_tile, write_run)

    def kernel(maps, operands, sizes, scales):
        m, n = sizes[0], sizes[1]
        # swizzles repeat every 1024 bytes, and shared memory begins where it likes
        base = uint32((address(cuda.shared.array(0, types.uint8)) + uint32(1023)) & uint32(0xFFFFFC00))
        notes = cuda.shared.array(0, int32)
        thread = uint32(cuda.threadIdx.x)
        if thread == 0:
            for slot in range(slots):
                full = uint32(base + uint32(barriers_at + 8 * slot))
                init(full, uint32(1))
                init(uint32(full + uint32(empty)), uint32(warps_threads))
                init(uint32(full + uint32(2 * empty)), uint32(warps_threads))
            publish()
            fence()
            for map in maps:
                prefetch(map)
            row, column, _, _, k, origin = place(np.int64(cuda.blockIdx.x), sizes, no_steps, no_steps)
            notes[notes_at], notes[notes_at + 1], notes[notes_at + 2] = int32(row), int32(column), int32(k)
            keep_origin(notes, origin)
        cuda.syncthreads()
        griddepcontrol_wait()
        # K-tiles that this warp group takes, every `warp_groups`th from its own number on; and eights of k in them
        warp_group, k = uint32(thread // uint32(warps_threads)), uint32(notes[notes_at + 2])
        k_tiles = uint32(uint32(k + uint32(tile_k - 1)) // uint32(tile_k))
        count = uint32(uint32(k_tiles + uint32(warp_groups - 1) - warp_group) // uint32(warp_groups))
        total = uint32(count * uint32(eights))
        if uint32(warp_group + count * uint32(warp_groups)) == uint32(k_tiles + uint32(warp_groups - 1)):
            total = uint32(total - (k_tiles * uint32(eights) - uint32(k + uint32(7)) // uint32(8)))
        acc = start
        if count > 0:
            if thread % uint32(warps_threads) == 0:
                for number in range(min(uint32(ahead), count)):
                    bring(base, warp_group, uint32(number), maps, sizes, notes)
            transpose(base, thread, uint32(0))
            full, phase = barrier_of(base, warp_group, uint32(0))
            wait(uint32(full + uint32(ready)), phase)
            a_here, b_here = locate(base, thread, uint32(0))
            front, eighth = load(a_here, b_here), uint32(0)
            while eighth < total:
                a_odd, b_odd = uint32(a_here + uint32(a_eight // 2)), uint32(b_here + uint32(b_eight // 2))
                acc, front = multiply(acc, front, a_here, a_odd, b_odd)
                a_here, b_here = uint32(a_here + uint32(a_eight)), uint32(b_here + uint32(b_eight))
                eighth = uint32(eighth + uint32(1))
                over, number = eighth % uint32(eights) == 0, uint32(eighth // uint32(eights))
                if over:
                    own = uint32(apart(thread))
                    warp_group = uint32(own // uint32(warps_threads))
                    if eighth < total:
                        full, phase = barrier_of(base, warp_group, number)
                        wait(uint32(full + uint32(ready)), phase)
                    a_here, b_here = locate(base, own, number)
                    following = uint32(number + uint32(ahead - 1))
                    if own % uint32(warps_threads) == 0 and uint32(following * uint32(eights)) < total:
                        room(base, warp_group, number)
                        bring(base, warp_group, following, maps, sizes, notes)
                elif (
                    eighth % uint32(eights) == eights // 2
                    and uint32((number + uint32(1)) * uint32(eights)) < total
                ):
                    transpose(base, uint32(apart(thread)), uint32(number + uint32(1)))
                acc, front = multiply(acc, front, a_odd, a_here, b_here)
                if over:
                    own = uint32(apart(thread))
                    full, phase = barrier_of(
                        base, uint32(own // uint32(warps_threads)), uint32(number - uint32(1))
                    )
                    tell(uint32(full + uint32(empty)))
                    if eighth < total:
                        acc = next_part(acc, int32(number * uint32(tile_k)), operands)
        thread = uint32(apart(thread))
        warp_group, member = uint32(thread // uint32(warps_threads)), uint32(thread % uint32(warps_threads))
        reduced = reduce_groups(acc, base, warp_group, member)
        row0, column0 = np.int64(notes[notes_at]), np.int64(notes[notes_at + 1])
        warp_row, warp_column, lane_row, lane_column = lane_of(member)
        row = row0 + int32(warp_row * uint32(WARP_TILE) + lane_row * uint32(RUN))
        first = int32(warp_column * uint32(WARP_TILE) + lane_column * uint32(RUN))
        env = (row, column0 + first, int32(warp_group), m, n, scales, operands + (origin_of(notes, sizes),))
        which = int32(uint32(warp_group * uint32(warps_m) + warp_row) * uint32(LANES_M) + lane_row)
        words = cuda.shared.array(0, float32)  # the same memory
        write(reduced, env, words, thread, which * tile_n + first, (row0, column0), n, operands)

    kernel.__name__ = f"gemm_fma_{tiling}_{a_order}{b_order}{epilogue}"
    kernel.blocks_per_sm = tiling.blocks_per_sm
    kernel.waits = True
    return kernel


# --- the end of a tile ------------------------------------------------------------------------------------------------


def _group_reduction(tiling: FmaTiling) -> Any:
    """`reduce_groups(acc, base, warp_group, member)`: of the accumulators of all warp groups, added up in order, those that this one finishes: rows of its threads
    that follow those of the one before.

    Of a single warp group as well: accumulators that leave as runs of four would be given neighbouring registers, in the banks that their
    columns are in. As runs whose neighbours have changed places, they are given the others.
    """
    warp_groups, warps_threads = tiling.warp_groups, tiling.warps_threads
    apart, warp_group_bytes = 16 * warps_threads, 4 * ROWS * COLUMNS * warps_threads
    count = ROWS * COLUMNS // warp_groups
    load, store = load_shared(), store_shared()

    def put_run(i, run, at):
        store(uint32(at + uint32(i // RUN * apart)), run[1], run[0], run[3], run[2])

    def get_run(i, run, at):
        found = load(uint32(at + uint32(i // RUN * apart)))
        return found[1], found[0], found[3], found[2]

    def add_run(i, run, at):
        more = load(uint32(at + uint32(i // RUN * apart)))
        return run[0] + more[1], run[1] + more[0], run[2] + more[3], run[3] + more[2]

    put, nothing = each(ROWS * COLUMNS, RUN, put_run), zeros(count)
    get, add = mapped(count, RUN, get_run), mapped(count, RUN, add_run)

    def reduce_groups(acc, base, warp_group, member):
        here = uint32(base + uint32(16) * member)
        cuda.syncthreads()  # nobody reads K-tiles any more
        put(acc, uint32(here + warp_group * uint32(warp_group_bytes)))
        cuda.syncthreads()
        own = uint32(here + warp_group * uint32(count // RUN * apart))
        total = get(nothing, own)
        for other in range(1, warp_groups):
            total = add(total, uint32(own + uint32(other * warp_group_bytes)))
        return total

    return device(reduce_groups)
