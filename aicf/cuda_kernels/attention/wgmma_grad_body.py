"""attention_grad on Hopper's tensor cores: three kernels.

    before   for each query delta = sum(dout * out); -lse log2(e) and -delta, in the order in which threads want them; flags of 0
    main     persistent blocks take tiles of 128 keys, 64 to a consumer warpgroup, over the tiles of queries that attend to them:

                 Sᵀ = K Qᵀ, Gᵀ = V dOᵀ               64 keys x queries, in registers
                 Pᵀ = exp2(S c - lse), dSᵀ = Pᵀ (Gᵀ - delta)
                 dV += Pᵀ dO, dK += dSᵀ Q            their first operands in registers, where they lie
                 dQ = dS K                           dS by way of shared memory; f32 sums in the workspace, of all tiles of keys

    after    the sums of dQ, scaled, as rows of halves

A warp of the producer's warpgroup adds dQ to memory. A tile of queries gets its sums in the order of the keys, by a flag: what each block adds is
added when those of the tiles before are there, so equal calls have equal bits. None waits for good: blocks take tiles in order, all are on the chip at
once, and tiles of keys that come first wait for nobody.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from ...types import i32
from ..dsl import cuda, device, int32, uint32, uint64
from ..hopper.opening import opening
from ..hopper.ring import advancer
from ..hopper.roles import registers
from ..ptx import (
    add_bytes,
    arrive,
    arrive_at,
    commit_stores,
    expect,
    fence_async_all,
    fetch_add,
    global_address,
    launch_dependents,
    load_acquire,
    load_bytes,
    store_bytes,
    store_release,
    store_shared_word,
    sync_at,
    wait_phase,
    wait_stores,
    wait_stores_read,
    warp_uniform,
)
from .wgmma_grad_products import consumer
from .wgmma_grad_tiles import (
    CONSUMERS,
    FREE,
    REGISTERS,
    THERE,
    WITH_ADDER,
    GradientPlan,
    first_key_tile,
    query_tiles,
    taker,
    walk_of,
)
from .wgmma_tiles import KEYS, WgmmaForm, place_of, rows_loader


@functools.cache
def gradient(form: WgmmaForm) -> Callable[..., None]:
    """`kernel(maps, stats, sums, flags, counter, sizes, scales)`, and behind these, of something added to keys, `mask, bias, mask_steps, bias_steps`:
    see wgmma_masks.py.

    maps    of q, k, v, dout, dk, dv
    stats   f32, by query head and tile of queries: as `before` leaves them
    sums    f32, likewise: dQ, in the order of accumulators
    flags   i32, one for each tile of queries of each head: tiles of keys that have been added, the first one's number counted in
    counter i32, 0: of tiles that are taken
    sizes   see wgmma_tiles.py
    scales  scale log2(e), scale
    """
    plan = GradientPlan(form.tile)
    fewer, more = registers(REGISTERS)
    open, uniform, let_next = opening(plan.shared.init()), warp_uniform(), launch_dependents()
    address = global_address()
    produce, add, consume = producer(form, plan), adder(form, plan), consumer(form, plan)

    def run(maps, stats, sums, flags, counter, sizes, scales, added):
        base, thread, warpgroup = open(maps)
        if warpgroup == 0:
            fewer()
            warp = uint32(uniform(uint32(thread // uint32(32))))
            if warp == 0:
                if thread == 0:
                    produce(base, maps, stats, address(counter, np.int64(0)), sizes)
                    let_next()
            elif warp == 1:
                add(base, sums, flags, sizes)
        else:
            more()
            consume(int32(warpgroup - 1), base, maps, sizes, scales, added)

    run_all = device(run)

    def plain(maps, stats, sums, flags, counter, sizes, scales):
        run_all(maps, stats, sums, flags, counter, sizes, scales, ())

    def with_keys(maps, stats, sums, flags, counter, sizes, scales, mask, bias, mask_steps, bias_steps):
        run_all(maps, stats, sums, flags, counter, sizes, scales, (mask, bias, mask_steps, bias_steps))

    kernel: Callable[..., None] = with_keys if form.of_keys else plain
    kernel.__name__ = f"attention_grad_wgmma{form}"
    kernel.blocks_per_sm = 1
    kernel.waits = True
    return kernel


# --- loads ----------------------------------------------------------------------------------------------------------------


def producer(form: WgmmaForm, plan: GradientPlan) -> Any:
    """`produce(base, maps, stats, counter, sizes)`: one thread takes tiles off a counter, and brings K and V of each, Q with its statistics and dO
    of all that attend to it. Behind the last one it says so, in the place of a tile."""
    load_k, load_q = (rows_loader(form.chunks, rows) for rows in (KEYS, plan.queries))
    load_stats, wait, announce, address = load_bytes(), wait_phase(), expect(), global_address()
    walk, place, tiles_of = walk_of(), place_of(), query_tiles(plan.queries)
    next_stage = advancer(plan.stages)
    fetch, leave, tell, numbers = fetch_add(), store_shared_word(), arrive(), plan.numbers
    queries, k_bytes, q_bytes, stats_bytes = plan.queries, plan.k_bytes, plan.q_bytes, plan.stats_bytes
    k_at, v_at, q_at, o_at, stats_at = plan.k, plan.v, plan.q, plan.o, plan.stats
    k_full, k_empty, v_full, v_empty, q_full, q_empty, o_full, o_empty = plan.barriers

    def produce(base, maps, stats, counter, sizes):
        rows, key_heads, together, tiles = walk(sizes)
        of_batch, group = uint32(sizes[13]), sizes[3]
        query_rows = sizes[12]
        stage, phase, parity = uint32(0), uint32(1), uint32(1)
        while True:
            tile = uint32(fetch(counter, int32(1)))
            leave(uint32(base + uint32(numbers) + uint32(4) * uint32(parity ^ uint32(1))), tile)
            if tile >= tiles:
                wait(uint32(base + uint32(k_empty)), parity)
                tell(uint32(base + uint32(k_full)))
                break
            row, head = place(tile, rows, key_heads, together)
            batch = uint32(head // of_batch)
            own, key = int32(head - batch * of_batch), int32(row * uint32(KEYS))
            low, count = tiles_of(key, sizes)
            line, left, first = int32(low * queries), int32(count * group), int32(1)
            end, query_head = int32(line + count * queries), int32(own * group)
            at = int32(int32(head) * group * query_rows + low)
            while left > 0:
                ready = uint32(base + uint32(8) * stage)
                wait(uint32(ready + uint32(q_empty)), phase)
                full = uint32(ready + uint32(q_full))
                announce(full, uint32(q_bytes + stats_bytes))
                to = uint32(base + uint32(q_at) + stage * uint32(q_bytes))
                load_q(to, maps[0], full, line, query_head, int32(batch))
                to = uint32(base + uint32(stats_at) + stage * uint32(stats_bytes))
                load_stats(to, address(stats, np.int64(at) * (2 * queries)), uint32(stats_bytes), full)
                if first != 0:
                    first = int32(0)
                    full = uint32(base + uint32(k_full))
                    wait(uint32(base + uint32(k_empty)), parity)
                    announce(full, uint32(k_bytes))
                    load_k(uint32(base + uint32(k_at)), maps[1], full, key, own, int32(batch))
                    full = uint32(base + uint32(v_full))
                    wait(uint32(base + uint32(v_empty)), parity)
                    announce(full, uint32(k_bytes))
                    load_k(uint32(base + uint32(v_at)), maps[2], full, key, own, int32(batch))
                    parity = uint32(parity ^ uint32(1))
                wait(uint32(ready + uint32(o_empty)), phase)
                full = uint32(ready + uint32(o_full))
                announce(full, uint32(q_bytes))
                to = uint32(base + uint32(o_at) + stage * uint32(q_bytes))
                load_q(to, maps[3], full, line, query_head, int32(batch))
                stage, phase = next_stage(stage, phase)
                line, at, left = int32(line + queries), int32(at + 1), int32(left - 1)
                if line == end:  # the next query head's
                    line, at = int32(line - count * queries), int32(at + query_rows - count)
                    query_head = int32(query_head + 1)

    return device(produce)


# --- dQ to memory -------------------------------------------------------------------------------------------------------


def adder(form: WgmmaForm, plan: GradientPlan) -> Any:
    """`add(base, sums, flags, sizes)`: one warp adds what consumers leave of dQ in shared memory, in the order of the keys."""
    wait_there, let_write, send, put = sync_at(WITH_ADDER), arrive_at(WITH_ADDER), add_bytes(), store_bytes()
    commit, all_done = commit_stores(), wait_stores()
    one_read, all_read = wait_stores_read(1), wait_stores_read(0)
    read, write, ordered, address = load_acquire(i32), store_release(i32), fence_async_all(), global_address()
    walk, place, take, tell, k_empty = walk_of(), place_of(), taker(plan), arrive(), plan.k_ring.empty
    tiles_of, first_of = query_tiles(plan.queries), first_key_tile(plan.queries)
    each_bytes, sums_at = plan.sums_bytes, plan.sums

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
        group, query_rows = sizes[3], sizes[12]
        source = uint32(base + uint32(sums_at))
        let_write(uint32(FREE))
        let_write(uint32(FREE + 1))
        parity = uint32(0)
        while True:
            tile = take(base, parity)
            cuda.syncwarp()  # no lane still waits for this K when the next one may come: it would take that phase for its own
            if lane == 0:
                tell(uint32(base + uint32(k_empty)))
            if tile >= tiles:
                break
            parity = uint32(parity ^ uint32(1))
            row, head = place(tile, rows, key_heads, together)
            number = int32(row)
            low, count = tiles_of(int32(row * uint32(KEYS)), sizes)
            left = int32(count * group)
            query_tile, at = low, int32(int32(head) * group * query_rows + low)
            while left > 0:
                first = first_of(query_tile, sizes) == number
                if lane == 0:
                    if not first:
                        signal = address(flags, np.int64(at))
                        while read(signal) != number:
                            pass
                        ordered()
                cuda.syncwarp()
                to = uint64(address(sums, np.int64(at) * (CONSUMERS * each_bytes // 4)))
                wait_there(uint32(THERE))
                if lane == 0:
                    send_or_put(to, source, first)
                wait_there(uint32(THERE + 1))
                if lane == 0:
                    send_or_put(uint64(to + uint64(each_bytes)), uint32(source + uint32(each_bytes)), first)
                    one_read()
                cuda.syncwarp()
                let_write(uint32(FREE))
                if lane == 0:
                    all_read()
                cuda.syncwarp()
                let_write(uint32(FREE + 1))
                if lane == 0:
                    all_done()
                    write(address(flags, np.int64(at)), int32(number + 1))
                query_tile, at, left = int32(query_tile + 1), int32(at + 1), int32(left - 1)
                if query_tile == low + count:  # the next query head's
                    query_tile, at = low, int32(at + query_rows - count)

    return device(add)
