"""Stream-K: where tiles are no multiple of blocks, the first of them are cut along k, so that every block has as much to do.

Of T = w G + r tiles, for G blocks, the K-tiles of the first G + r are divided evenly: each block has from one to two tiles' worth
of them, in order, and then w - 1 whole tiles of the others. What is divided begins with the *tail* of a tile, its last K-tiles, unless
it is whole, and ends with the *head* of one, its first. The block does it backwards:

    first     the head: its accumulators to the workspace, then a flag for each warp
    then      a whole tile, if there is one, from that K-tile on where the head ended, and round
    then      the tail: to its accumulators are added those of the head, which is the block's before, and the tile is finished
    at last   whole tiles of the others, from that K-tile on where the others are, and round

So blocks read the same slices of k at a time, out of the L2 cache, which answers simultaneous requests for a line at once; but for tails,
which are behind by what blocks have beyond one tile. With the tail first and the head last, each was somewhere else in k from beginning to end: 20 % slower at
4096^3 and 8192^3, by tiles of 128 x 128.

Nobody waits for good: the head that a block waits for is the first work tile of the block before it. That has begun, as blocks begin in
order, and does its first work tile without waiting for anybody.

The workspace is not zeroed. A flag is `TOKEN` when these are there, and the one who waits for it makes it 0 again: after a launch no
flag is, and whatever else may have been there meanwhile is none but by a chance of 1 in 2^64.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ...types import f32, i64
from ..dsl import cuda, device, int32, uint32
from ..ptx import global_address, load_acquire, store_release
from ..tiles.tile import each, get_run, mapped, put_run
from .scheduler import BatchCoords, WorkTiles
from .units import WARPGROUP, WARPS

RUN = 4  # accumulators that are stored together; those of all threads of a warpgroup lie side by side
TOKEN = 0x5B1D_93F7_6E2A_C48D


def work_units(coords: BatchCoords) -> WorkTiles:
    """The plan: (first work tile, 1, end, the head's tile, its K-tiles, the first whole tile, K-tiles before the tail, which work tile the tail is,
    which is the first of the other tiles, that tile, and the K-tile that these begin with). Work tile 0 is the head; without one, they begin at 1."""
    number = coords.number

    def plan(walk, sizes):
        block, blocks, rows, columns, steps, each, _, _ = walk
        tiles = uint32(rows * columns * number(sizes, steps, each))
        rounds = uint32(tiles // blocks)
        divided = uint32(tiles - uint32(rounds - uint32(1)) * blocks)
        k_tiles = uint32(divided * steps)
        begin, end = (
            uint32(uint32(block * k_tiles) // blocks),
            uint32(uint32(block * k_tiles + k_tiles) // blocks),
        )
        tail, head = uint32(begin // steps), uint32(end // steps)
        before, count = uint32(begin - tail * steps), uint32(end - head * steps)
        whole = tail if before == 0 else uint32(tail + uint32(1))
        at = uint32(head - whole + uint32(1))
        others = at if before == 0 else uint32(at + uint32(1))
        first = uint32(1) if count == 0 else uint32(0)
        last = uint32(others + rounds - uint32(1))
        at = uint32(0) if before == 0 else at
        # so that all are at the same K-tile after work units that may differ by one
        late = uint32(end - begin - steps)
        return first, uint32(1), last, head, count, whole, before, at, others, uint32(divided + block), late

    def tile(work_tile, plan):
        head, whole, at, others = plan[3], plan[5], plan[7], plan[8]
        if work_tile == 0:
            return head
        if work_tile == at:
            return uint32(whole - uint32(1))
        if work_tile < others:
            return uint32(whole + work_tile - uint32(1))
        return uint32(plan[9] + uint32(work_tile - others) * uint32(cuda.gridDim.x))

    def k_tiles(work_tile, batch_coord, walk, plan):
        steps, count, before, at, others = walk[4], plan[4], plan[6], plan[7], plan[8]
        if work_tile == 0:
            return uint32(0), count
        if work_tile == at:
            return before, uint32(steps - before)
        return count if work_tile < others else plan[10], steps

    def place(step, walk):
        steps = int32(walk[4])
        return step if step < steps else int32(step - steps)

    return WorkTiles(device(plan), device(tile), device(k_tiles), device(place))


def fixup(count: int, cooperative: int, whole: bool = False) -> tuple[Any, Any, Any, Any]:
    """(`asks`, `gives`, `give`, `take`): what a consumer does otherwise for a part of a tile; nothing, if all are `whole`. `count`: accumulators
    of a thread; `cooperative`: consumers that share a tile.

    asks(work_tile, member)   the thread index for `ask`, whose thread 0 loads the epilogue's sources: `member`; for a head, which is not
                              finished here, `member + WARPGROUP`: no thread is 0, so none loads
    gives(work_tile)          whether the work tile is a head
    give(accumulators, part, member, operands)   stores the head's partial sums to the workspace, and then each warp's flag
    take(acc, accumulators, part, member, work_tile, plan, operands)   if the work tile is a tail, adds the head's partial sums
    """
    if whole:
        return (
            device(lambda work_tile, member: member),
            device(lambda work_tile: False),
            device(lambda accumulators, part, member, operands: None),
            device(lambda acc, accumulators, part, member, work_tile, plan, operands: (acc, accumulators)),
        )
    place, load, release = global_address(), load_acquire(i64), store_release(i64)
    put, get = put_run(f32, RUN), get_run(f32, RUN)

    def put_sums(i, run, env):
        put(env[0], env[1] + i // RUN * (RUN * WARPGROUP), run)

    def add_sums(i, run, env):
        more = get(env[0], env[1] + i // RUN * (RUN * WARPGROUP))
        return run[0] + more[0], run[1] + more[1], run[2] + more[2], run[3] + more[3]

    put_all, add_all = each(count, RUN, put_sums), mapped(count, RUN, add_sums)

    def slot_of(block, part, member):
        """(Where a thread's accumulators begin, and its warp's flag.)"""
        slot = np.int64(block * cooperative + part)
        return slot * (count * WARPGROUP) + member * RUN, slot * WARPS + (member >> 5)

    slot = device(slot_of)

    def give(accumulators, part, member, operands):
        first, flag = slot(np.int64(cuda.blockIdx.x), part, member)
        put_all(accumulators, (operands[4][0], first))
        cuda.syncwarp()
        if member & 31 == 0:
            release(place(operands[4][1], flag), TOKEN)

    def take(acc, accumulators, part, member, work_tile, plan, operands):
        if work_tile == plan[7]:
            first, flag = slot(np.int64(cuda.blockIdx.x) - 1, part, member)
            if member & 31 == 0:
                signal = place(operands[4][1], flag)
                while load(signal) != TOKEN:
                    pass
                operands[4][1][flag] = 0
            cuda.syncwarp()
            accumulators = add_all(accumulators, (operands[4][0], first))
        return accumulators, accumulators  # there are no registers for both

    def asks(work_tile, member):
        return member + WARPGROUP if work_tile == 0 else member

    return device(asks), device(lambda work_tile: work_tile == 0), device(give), device(take)
