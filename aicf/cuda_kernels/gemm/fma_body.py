"""Matrix products in exact f32 for Hopper: the tensor memory accelerator brings slices of the operands, threads multiply them out
of shared memory by fused multiply-adds, 128 sums each.

    shared memory   for each part of the warps a ring of stages, slices of a with those of b behind them; three barriers a stage
    full[stage]     a slice has arrived: one arrival by the part's first thread, and as many bytes as it asked for
    turned[stage]   rows of k of a slice have become rows of lines: an arrival by each thread of the part
    empty[stage]    a slice has been multiplied: an arrival by each thread of the part
    parts           of warps take slices in turns; in the end their sums meet, in the order of the parts

There is no producer: its registers would be missed. The first thread of a part asks for a slice when the part has read what lies there.

Slices are multiplied as rows of lines. An operand that lies so in memory comes so, into any stage. Of one that has rows of k these come
into stages behind the first two, and halfway through a slice the part's threads turn the next one, 4 x 4 numbers at a time, into one of
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
    forget,
    load_front,
    load_shared,
    multiply_quad,
    prefetch_map,
    publish_barriers,
    shared_address,
    store_shared,
    wait_phase,
)
from ..ptx.quads import RUN, quad_of
from ..tiles.tile import each, mapped, zeros
from .blocks import block_place
from .column_sums_body import Held, writer
from .epilogue import Epilogue, finisher
from .fma import WARP_TILE, Order, Tiling
from .fma_stages import barriers_of, bringer, lanes_of, layers_of, locator, pitch_of, places, turner

LANES_M, LANES_N = 4, 8  # of a warp
ROWS, COLUMNS = WARP_TILE // LANES_M, WARP_TILE // LANES_N  # of a thread
NO_STEPS = np.int64(0), np.int64(0), np.int64(0), np.int64(0)  # of a batch: descriptors know them


@functools.cache
def fma(tiling: Tiling, a_order: Order, b_order: Order, epilogue: Epilogue) -> Callable[..., None]:
    """`kernel(maps, operands, sizes, scales)`: a block per tile of the result; maps of a and b."""
    tile_m, tile_n, stages, parts, members = tiling.m, tiling.n, tiling.stages, tiling.parts, tiling.members
    barriers_at, notes_at, warps_m = tiling.barriers_at, tiling.notes_at, tiling.warps_m
    slots, depth, eights, ahead = parts * stages, tiling.step, tiling.step // 8, tiling.ahead
    empty = 8 * slots
    a_eight, b_eight = 8 * pitch_of(a_order, tile_m), 8 * pitch_of(b_order, tile_n)
    reads = quad_of(ROWS, COLUMNS, places(a_order, tile_m, LANES_M), places(b_order, tile_n, LANES_N))
    load, multiply, start = load_front(reads), multiply_quad(reads), zeros(ROWS * COLUMNS)
    address, init, publish, fence, prefetch = (
        shared_address(), barrier_init(), publish_barriers(), fence_async(), prefetch_map(),
    )  # fmt: skip
    follow, wait, tell, apart, lane_of = begin(), wait_phase(), arrive(), forget(), lanes_of(tiling)
    place = block_place(tile_m, tile_n, epilogue.batch, epilogue.split)
    keep_layer, _, layer_of = layers_of(tiling, epilogue)
    locate, bring = locator(tiling, a_order, b_order), bringer(tiling, a_order, b_order, epilogue)
    barrier_of, (turn, ready, room) = barriers_of(tiling), turner(tiling, a_order, b_order)
    meet, rows_each = _meeting(tiling), ROWS // parts
    finish, outside, no_steps = finisher(epilogue), epilogue.outside, NO_STEPS

    def write_run(i, products, env):
        row, column, part, m, n, scales, operands = env
        x, y = part * rows_each + i // COLUMNS, i % COLUMNS
        r = row + x // RUN * (RUN * LANES_M) + x % RUN
        q = column + y // RUN * (RUN * LANES_N) + y % RUN
        if r < m and q < n:
            return finish(r, q, products, n, scales, operands)
        return outside

    own = tuple(range(COLUMNS)) * rows_each
    lines = warps_m * LANES_M * parts
    held = Held(tile_m, tile_n, own, RUN, RUN * LANES_N, lines, tiling.threads)
    write = writer(epilogue, held, write_run)

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
                init(uint32(full + uint32(empty)), uint32(members))
                init(uint32(full + uint32(2 * empty)), uint32(members))
            publish()
            fence()
            for map in maps:
                prefetch(map)
            row, column, _, _, k, layer = place(np.int64(cuda.blockIdx.x), sizes, no_steps, no_steps)
            notes[notes_at], notes[notes_at + 1], notes[notes_at + 2] = int32(row), int32(column), int32(k)
            keep_layer(notes, layer)
        cuda.syncthreads()
        follow()
        # slices that this part takes, every `parts`th from its own number on; and eights of k in them
        part, k = uint32(thread // uint32(members)), uint32(notes[notes_at + 2])
        slices = uint32(uint32(k + uint32(depth - 1)) // uint32(depth))
        count = uint32(uint32(slices + uint32(parts - 1) - part) // uint32(parts))
        total = uint32(count * uint32(eights))
        if uint32(part + count * uint32(parts)) == uint32(slices + uint32(parts - 1)):
            total = uint32(total - (slices * uint32(eights) - uint32(k + uint32(7)) // uint32(8)))
        acc = start
        if count > 0:
            if thread % uint32(members) == 0:
                for number in range(min(uint32(ahead), count)):
                    bring(base, part, uint32(number), maps, sizes, notes)
            turn(base, thread, uint32(0))
            full, phase = barrier_of(base, part, uint32(0))
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
                    part = uint32(own // uint32(members))
                    if eighth < total:
                        full, phase = barrier_of(base, part, number)
                        wait(uint32(full + uint32(ready)), phase)
                    a_here, b_here = locate(base, own, number)
                    following = uint32(number + uint32(ahead - 1))
                    if own % uint32(members) == 0 and uint32(following * uint32(eights)) < total:
                        room(base, part, number)
                        bring(base, part, following, maps, sizes, notes)
                elif (
                    eighth % uint32(eights) == eights // 2
                    and uint32((number + uint32(1)) * uint32(eights)) < total
                ):
                    turn(base, uint32(apart(thread)), uint32(number + uint32(1)))
                acc, front = multiply(acc, front, a_odd, a_here, b_here)
                if over:
                    own = uint32(apart(thread))
                    full, phase = barrier_of(base, uint32(own // uint32(members)), uint32(number - uint32(1)))
                    tell(uint32(full + uint32(empty)))
        thread = uint32(apart(thread))
        part, member = uint32(thread // uint32(members)), uint32(thread % uint32(members))
        sums = meet(acc, base, part, member)
        row0, column0 = np.int64(notes[notes_at]), np.int64(notes[notes_at + 1])
        warp_row, warp_column, lane_row, lane_column = lane_of(member)
        row = row0 + int32(warp_row * uint32(WARP_TILE) + lane_row * uint32(RUN))
        first = int32(warp_column * uint32(WARP_TILE) + lane_column * uint32(RUN))
        env = (row, column0 + first, int32(part), m, n, scales, operands + (layer_of(notes, sizes),))
        line = int32(uint32(part * uint32(warps_m) + warp_row) * uint32(LANES_M) + lane_row)
        words = cuda.shared.array(0, float32)  # the same memory
        write(sums, env, words, thread, line * tile_n + first, (row0, column0), n, operands)

    kernel.__name__ = f"gemm_fma_{tiling}_{a_order}{b_order}{epilogue}"
    kernel.blocks_per_sm = tiling.blocks_per_sm
    kernel.waits = True
    return kernel


# --- the end of a tile ------------------------------------------------------------------------------------------------


def _meeting(tiling: Tiling) -> Any:
    """`meet(acc, base, part, member)`: of the sums of all parts, added up in order, those that this one finishes: rows of its threads
    that follow those of the part before.

    Of a single part as well: sums that leave as runs of four would be given neighbouring registers, in the banks that their
    columns are in. As runs whose neighbours have changed places, they are given the others.
    """
    parts, members = tiling.parts, tiling.members
    apart, part_bytes = 16 * members, 4 * ROWS * COLUMNS * members
    count = ROWS * COLUMNS // parts
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

    def meet(acc, base, part, member):
        here = uint32(base + uint32(16) * member)
        cuda.syncthreads()  # nobody reads slices any more
        put(acc, uint32(here + part * uint32(part_bytes)))
        cuda.syncthreads()
        own = uint32(here + part * uint32(count // RUN * apart))
        sums = get(nothing, own)
        for other in range(1, parts):
            sums = add(sums, uint32(own + uint32(other * part_bytes)))
        return sums

    return device(meet)
