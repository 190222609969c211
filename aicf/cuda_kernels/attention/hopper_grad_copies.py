"""What comes and goes while attention_grad multiplies on Hopper: one thread loads tiles, one warp adds dQ to memory. See hopper_grad_body.py."""

from __future__ import annotations

from typing import Any

import numpy as np

from ...types import i32
from ..dsl import cuda, device, int32, uint32, uint64
from ..hopper.ring import next_stage
from ..ptx import (
    add_bytes,
    arrive_at,
    commit_stores,
    expect,
    fence_async_all,
    global_address,
    load_acquire,
    load_bytes,
    store_bytes,
    store_release,
    sync_at,
    wait_phase,
    wait_stores,
    wait_stores_read,
)
from .hopper_grad_tiles import (
    CONSUMERS,
    FREE,
    THERE,
    WITH_ADDER,
    GradientPlan,
    first_key_tile,
    query_tiles,
    walk_of,
)
from .hopper_tiles import KEYS, HopperForm, in_turn, place_of, rows_loader


def producer(form: HopperForm, plan: GradientPlan) -> Any:
    """`produce(base, maps, stats, sizes)`: one thread brings K and V of a tile, Q with its statistics and dO of all that attend to it."""
    load_k, load_q, load_stats = (
        rows_loader(form.chunks, KEYS),
        rows_loader(form.chunks, plan.queries),
        load_bytes(),
    )
    wait, announce, address = wait_phase(), expect(), global_address()
    walk, place, turn, tiles_of = walk_of(), place_of(), in_turn(), query_tiles(plan.queries)
    next_of_two = next_stage(2)
    queries, k_bytes, q_bytes, stats_bytes = plan.queries, plan.k_bytes, plan.q_bytes, plan.stats_bytes
    k_at, v_at, q_at, o_at, stats_at = plan.k, plan.v, plan.q, plan.o, plan.stats
    k_full, k_empty, v_full, v_empty = (
        plan.k_ring.full,
        plan.k_ring.empty,
        plan.v_ring.full,
        plan.v_ring.empty,
    )
    q_full, q_empty, o_full, o_empty = (
        plan.q_ring.full,
        plan.q_ring.empty,
        plan.o_ring.full,
        plan.o_ring.empty,
    )

    def produce(base, maps, stats, sizes):
        rows, key_heads, together, tiles = walk(sizes)
        block, blocks = uint32(cuda.blockIdx.x), uint32(cuda.gridDim.x)
        of_batch, group = uint32(uint32(sizes[2]) // uint32(sizes[3])), sizes[3]
        query_rows = int32(uint32(sizes[0] + queries - 1) // uint32(queries))
        round, tile = uint32(0), block
        stage, phase, parity = uint32(0), uint32(1), uint32(1)
        while tile < tiles:
            row, head = place(tile, rows, key_heads, together)
            batch = uint32(head // of_batch)
            own, key = int32(head - batch * of_batch), int32(row * uint32(KEYS))
            low, count = tiles_of(key, sizes)
            first = int32(1)
            for member in range(group):
                query_head = int32(own * group + member)
                at = np.int64(int32(head) * group + member) * query_rows + low
                for i in range(count):
                    line, ready = int32((low + i) * queries), uint32(base + uint32(8) * stage)
                    wait(uint32(ready + uint32(q_empty)), phase)
                    full = uint32(ready + uint32(q_full))
                    announce(full, uint32(q_bytes + stats_bytes))
                    load_q(
                        uint32(base + uint32(q_at) + stage * uint32(q_bytes)),
                        maps[0],
                        full,
                        line,
                        query_head,
                        int32(batch),
                    )
                    load_stats(
                        uint32(base + uint32(stats_at) + stage * uint32(stats_bytes)),
                        address(stats, (at + i) * (2 * queries)), uint32(stats_bytes), full,
                    )  # fmt: skip
                    if first != 0:
                        first = int32(0)
                        wait(uint32(base + uint32(k_empty)), parity)
                        announce(uint32(base + uint32(k_full)), uint32(k_bytes))
                        load_k(
                            uint32(base + uint32(k_at)),
                            maps[1],
                            uint32(base + uint32(k_full)),
                            key,
                            own,
                            int32(batch),
                        )
                        wait(uint32(base + uint32(v_empty)), parity)
                        announce(uint32(base + uint32(v_full)), uint32(k_bytes))
                        load_k(
                            uint32(base + uint32(v_at)),
                            maps[2],
                            uint32(base + uint32(v_full)),
                            key,
                            own,
                            int32(batch),
                        )
                        parity = uint32(parity ^ uint32(1))
                    wait(uint32(ready + uint32(o_empty)), phase)
                    full = uint32(ready + uint32(o_full))
                    announce(full, uint32(q_bytes))
                    load_q(
                        uint32(base + uint32(o_at) + stage * uint32(q_bytes)),
                        maps[3],
                        full,
                        line,
                        query_head,
                        int32(batch),
                    )
                    stage, phase = next_of_two(stage, phase)
            round = uint32(round + uint32(1))
            tile = turn(round, block, blocks)

    return device(produce)


# --- dQ to memory -------------------------------------------------------------------------------------------------------


def adder(form: HopperForm, plan: GradientPlan) -> Any:
    """`add(base, sums, flags, sizes)`: one warp adds what consumers leave of dQ in shared memory, in the order of the keys."""
    wait_there, let_write, send, put = sync_at(WITH_ADDER), arrive_at(WITH_ADDER), add_bytes(), store_bytes()
    commit, one_read, all_read, before_two, all_done = (
        commit_stores(), wait_stores_read(1), wait_stores_read(0), wait_stores(2), wait_stores(0),
    )  # fmt: skip
    read, write, ordered, address = load_acquire(i32), store_release(i32), fence_async_all(), global_address()
    walk, place, turn = walk_of(), place_of(), in_turn()
    tiles_of, first_of = query_tiles(plan.queries), first_key_tile(plan.queries)
    queries, each_bytes, sums_at = plan.queries, plan.sums_bytes, plan.sums

    def send_half(to, source, first):
        if first:
            put(to, source, uint32(each_bytes))
        else:
            send(to, source, uint32(each_bytes))
        commit()

    send_or_put = device(send_half)

    def add(base, sums, flags, sizes):
        lane = int32(int32(cuda.threadIdx.x) & 31)
        rows, key_heads, together, tiles = walk(sizes)
        block, blocks = uint32(cuda.blockIdx.x), uint32(cuda.gridDim.x)
        group, query_rows = sizes[3], int32((sizes[0] + queries - 1) // queries)
        source = uint32(base + uint32(sums_at))
        let_write(uint32(FREE))
        let_write(uint32(FREE + 1))
        round, tile = uint32(0), block
        while tile < tiles:
            row, head = place(tile, rows, key_heads, together)
            number = int32(row)
            low, count = tiles_of(int32(row * uint32(KEYS)), sizes)
            before = np.int64(-1)
            for member in range(group):
                at = np.int64(int32(head) * group + member) * query_rows + low
                for i in range(count):
                    flag, first = at + i, first_of(int32(low + i), sizes) == number
                    if lane == 0:
                        if not first:
                            signal = address(flags, flag)
                            while read(signal) != number:
                                pass
                            ordered()
                    cuda.syncwarp()
                    to = uint64(address(sums, flag * (CONSUMERS * each_bytes // 4)))
                    wait_there(uint32(THERE))
                    if lane == 0:
                        send_or_put(to, source, first)
                    wait_there(uint32(THERE + 1))
                    if lane == 0:
                        send_or_put(
                            uint64(to + uint64(each_bytes)), uint32(source + uint32(each_bytes)), first
                        )
                        one_read()
                    cuda.syncwarp()
                    let_write(uint32(FREE))
                    if lane == 0:
                        all_read()
                    cuda.syncwarp()
                    let_write(uint32(FREE + 1))
                    if lane == 0:
                        if before >= 0:
                            before_two()
                            write(address(flags, before), int32(number + 1))
                    before = flag
            if lane == 0:
                if before >= 0:
                    all_done()
                    write(address(flags, before), int32(number + 1))
            round = uint32(round + uint32(1))
            tile = turn(round, block, blocks)

    return device(add)
