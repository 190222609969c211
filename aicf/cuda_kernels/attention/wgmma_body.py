"""Attention on Hopper's tensor cores: persistent blocks of a producer and two consumer warpgroups, which have 64 queries each.

    Q           128 queries, two stages: those of the next tile come while this one is computed
    K, V        tiles of 128 keys, `stages` of them; the last ones first, which are the ones that masks cut
    S = Q Kᵀ    64 x 128 in registers; exp2(S c - most), as halves, is the first operand of the next product, where it lies
    O += P V    while S of the next tile is multiplied and its maxima are found; then O is scaled to them
    turns       a consumer issues its products, then lets the other one do so, and has its exponentials meanwhile

The statistics are of base 2: most is the largest S, c = scale log2(e). A row's maximum starts at -1e30, so that rows without keys have weights of 0.
With a bias or a mask of keys S is c S + bias log2(e) as soon as it is there, and c is 1 from then on: see wgmma_masks.py.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from ...types import f32
from ..dsl import cuda, device, int32, uint32
from ..hopper.opening import opening
from ..hopper.ring import advancer, filler, releaser
from ..hopper.roles import registers
from ..hopper.shared_plan import SharedPlan
from ..hopper.units import ATOM, WARPGROUP
from ..ptx import (
    approximate,
    arrive,
    arrive_at,
    commit_products,
    commit_stores,
    describe,
    fence_async,
    fence_products,
    finish_products,
    larger,
    launch_dependents,
    read_thread,
    store_box,
    sync_at,
    tanh_for_halves,
    wait_phase,
    wait_stores_read,
    warp_uniform,
)
from ..tiles.element import putter
from ..tiles.layout import Layout
from ..tiles.register_tile import fold_rows, join_rows, map_tile, pack, put_words, reduce_rows, zip_rows
from ..tiles.tile import zeros
from .masks import NOTHING, by_column, hide_columns
from .wgmma_masks import BYTES as ADDED_BYTES
from .wgmma_masks import LOWEST, SCORES, bringer, limits_of, told
from .wgmma_masks import WARP as ADDING_WARP
from .wgmma_tiles import (
    KEYS,
    QUERIES,
    ROW_BYTES,
    WgmmaForm,
    columns_loader,
    in_turn,
    key_tiles,
    place_of,
    rows_loader,
    score_product,
    weighted_sum,
)

CONSUMERS = QUERIES // 64
THREADS = WARPGROUP * (1 + CONSUMERS)
REGISTERS = 40, 232  # of a producer's thread, of a consumer's: 168 each before
ZERO, ONE = np.float32(0), np.float32(1)
LEAST = np.float32(-1e30)
LN2 = np.float32(np.log(2))
OWN = 8  # the first consumer's barrier of its own; those of turns are 1 and 2


class ForwardPlan:
    """Where a block has what. With something added to the scores of each key, beside K: a warp fills a stage with
    the producer, and each thread tells that it has read it."""

    def __init__(self, form: WgmmaForm) -> None:
        of_keys, self.stages = form.of_keys, form.tile.stages
        self.q_bytes, self.kv_bytes = QUERIES * form.d * 2, KEYS * form.d * 2
        shared = SharedPlan()
        self.q_ring = shared.ring(2, CONSUMERS)
        self.k_ring = shared.ring(self.stages, CONSUMERS * (WARPGROUP if of_keys else 1), 1 + 32 * of_keys)
        self.v_ring = shared.ring(self.stages, CONSUMERS)
        self.added = shared.region(self.stages * ADDED_BYTES, 16) if of_keys else 0
        self.q, self.k, self.v = (
            shared.region(n * size) for n, size in ((2, self.q_bytes), (self.stages, self.kv_bytes), (self.stages, self.kv_bytes))
        )  # fmt: skip
        self.out = shared.region(self.q_bytes)
        self.shared, self.nbytes = shared, shared.nbytes


@functools.cache
def forward(form: WgmmaForm) -> Callable[..., None]:
    """`kernel(maps, lse, sizes, scales)`, and behind these, of something added to keys, `mask, bias, mask_steps, bias_steps`: see `key_starts`.

    maps    of q, k, v and out
    lse     f32, dense
    sizes   see wgmma_tiles.py
    scales  c; and softcap's: what S is multiplied by before tanh. c is softcap log2(e) then
    """
    plan = ForwardPlan(form)
    fewer, more = registers(REGISTERS)
    open, let_next = opening(plan.shared.init()), launch_dependents()
    produce, consume = producer(form, plan), consumer(form, plan)
    bring, uniform = bringer(form, plan, QUERIES, walk_of(), tile_of()), warp_uniform()

    def plain(maps, lse, sizes, scales):
        base, thread, warpgroup = open(maps)
        if warpgroup == 0:
            fewer()
            if thread == 0:
                produce(base, maps, sizes)
                let_next()
        else:
            more()
            consume(int32(warpgroup - 1), base, maps, lse, sizes, scales)

    def with_keys(maps, lse, sizes, scales, mask, bias, mask_steps, bias_steps):
        base, thread, warpgroup = open(maps)
        if warpgroup == 0:
            fewer()
            warp = uint32(uniform(uint32(thread // uint32(32))))
            if warp == 0:
                if thread == 0:
                    produce(base, maps, sizes)
                    let_next()
            elif warp == ADDING_WARP:
                bring(base, sizes, (mask, bias, mask_steps, bias_steps))
        else:
            more()
            consume(int32(warpgroup - 1), base, maps, lse, sizes, scales)

    kernel: Callable[..., None] = with_keys if form.of_keys else plain
    kernel.__name__ = f"attention_wgmma{form}"
    kernel.blocks_per_sm = 1
    kernel.waits = True
    return kernel


def walk_of() -> Any:
    """`of(sizes)`: rows of tiles, and tiles in all."""

    def of(sizes):
        rows = uint32((uint32(sizes[0]) + uint32(QUERIES - 1)) // uint32(QUERIES))
        return rows, uint32(rows * uint32(sizes[4]))

    return device(of)


def tile_of() -> Any:
    """`of(tile, rows, sizes)`: (first query, head): rows of tiles from the last one, which causal masks leave the most keys."""
    place = place_of()

    def of(tile, rows, sizes):
        row, head = place(tile, rows, uint32(sizes[4]), uint32(sizes[5]))
        return int32((rows - uint32(1) - row) * uint32(QUERIES)), head

    return device(of)


def producer(form: WgmmaForm, plan: ForwardPlan) -> Any:
    """`produce(base, maps, sizes)`: one thread brings Q, K and V of tile after tile."""
    chunks = form.chunks
    fill_q = filler(plan.q_ring, plan.q_bytes, rows_loader(chunks, QUERIES))
    fill_k = filler(plan.k_ring, plan.kv_bytes, rows_loader(chunks, KEYS))
    fill_v = filler(plan.v_ring, plan.kv_bytes, columns_loader(chunks, KEYS))
    walk, tile_at, turn, tiles_of_keys = walk_of(), tile_of(), in_turn(), key_tiles(QUERIES)
    next_q, next_kv = advancer(2), advancer(plan.stages)
    q_at, k_at, v_at = plan.q, plan.k, plan.v

    def produce(base, maps, sizes):
        rows, tiles = walk(sizes)
        block, blocks = uint32(cuda.blockIdx.x), uint32(cuda.gridDim.x)
        q_stage, q_phase, stage, phase = uint32(0), uint32(1), uint32(0), uint32(1)
        round, tile = uint32(0), block
        heads, group = uint32(sizes[2]), uint32(sizes[3])
        while tile < tiles:
            first, head = tile_at(tile, rows, sizes)
            batch = uint32(head // heads)
            own = uint32(head - batch * heads)
            of_keys = int32(own // group)
            fill_q(
                base, uint32(base + uint32(q_at)), q_stage, q_phase, maps[0], first, int32(own), int32(batch)
            )
            low, high = tiles_of_keys(first, sizes)
            count = uint32(high - low + uint32(1))
            key = int32(high * uint32(KEYS))
            for _ in range(int32(count)):
                fill_k(base, uint32(base + uint32(k_at)), stage, phase, maps[1], key, of_keys, int32(batch))
                fill_v(base, uint32(base + uint32(v_at)), stage, phase, maps[2], key, of_keys, int32(batch))
                stage, phase = next_kv(stage, phase)
                key = int32(key - KEYS)
            q_stage, q_phase = next_q(q_stage, q_phase)
            round = uint32(round + uint32(1))
            tile = turn(round, block, blocks)

    return device(produce)


def consumer(form: WgmmaForm, plan: ForwardPlan) -> Any:
    """`consume(part, base, maps, lse, sizes, scales)`: a warpgroup's 64 queries of tile after tile."""
    dtype, d, stages = form.dtype, form.d, plan.stages
    result = Layout(64, d, warps=4)
    product = score_product(dtype, d, KEYS, QUERIES, KEYS)
    add, finish_scores = weighted_sum(dtype, d, KEYS), finish_products(SCORES.count)
    finish_behind = finish_products(SCORES.count, 1)
    finish_sums = finish_products(result.count, 0, SCORES.count // 2)
    fence, commit = fence_products(), commit_products()
    of_rows, of_columns = describe(True), describe(False)
    wait, release, sync, hand_on = wait_phase(), releaser(), sync_at(256), arrive_at(256)
    exp2, log2, most_of = approximate("exp2"), approximate("log2"), larger()
    peak = reduce_rows(SCORES, lambda x, y: most_of(x, y))
    fold, join = fold_rows(SCORES, lambda x, y: x + y), join_rows(SCORES, lambda x, y: x + y)
    weigh = zip_rows(SCORES, lambda x, shift, env: exp2(x * env[0] + shift))
    words_of, scale = pack(SCORES.count, dtype), zip_rows(result, lambda x, factor, env: x * factor)
    cap = map_tile(SCORES.count, _cap()) if form.capped else device(lambda s, env: s)
    # what is added to keys makes powers of two of scores, of any size that f32 has
    of_keys, add_of_keys = form.of_keys, by_column(SCORES.count, lambda x, added, c: x * c + added)
    least = LOWEST if form.of_keys else LEAST
    added_at, tell, tell_lse = plan.added, arrive(), told() if form.of_keys else device(lambda x: x)
    hidden, limits = hide_columns(SCORES, _within if form.hidden == "all" else _below_high), limits_of()
    in_first, in_all = bool(form.hidden), form.hidden == "all"
    walk, tile_at, turn, tiles_of_keys = walk_of(), tile_of(), in_turn(), key_tiles(QUERIES)
    next_q, next_kv = advancer(2), advancer(stages)
    send, put, all_read = _sender(form, plan), putter(f32), wait_stores_read(0)
    no_scores, no_sums = zeros(SCORES.count), zeros(result.count)
    q_at, k_at, v_at = plan.q, plan.k, plan.v
    q_full, q_empty, k_full, k_empty, v_full, v_empty = (
        at for ring in (plan.q_ring, plan.k_ring, plan.v_ring) for at in (ring.full, ring.empty)
    )
    q_step, kv_step = plan.q_bytes // 16, plan.kv_bytes // 16

    def consume(part, base, maps, lse, sizes, scales):
        member = int32(int32(cuda.threadIdx.x) % WARPGROUP)
        lane, column = int32(member & 31), int32((member & 3) * 2)
        mine, other = uint32(part + 1), uint32(2 - part)
        rows, tiles = walk(sizes)
        block, blocks = uint32(cuda.blockIdx.x), uint32(cuda.gridDim.x)
        q_first = of_rows(uint32(base + uint32(q_at) + uint32(part) * uint32(64 * ROW_BYTES)))
        k_first, v_first = of_rows(uint32(base + uint32(k_at))), of_columns(uint32(base + uint32(v_at)))
        c = scales[0]
        factor = ONE if of_keys else c
        added = uint32(base + uint32(added_at) + uint32(lane & 3) * uint32(16))
        if part == 1:
            hand_on(uint32(1))
        q_stage, q_phase, stage, phase = uint32(0), uint32(0), uint32(0), uint32(0)
        round, tile = uint32(0), block
        scores, sums = no_scores, no_sums
        while tile < tiles:
            first, head = tile_at(tile, rows, sizes)
            low, high = tiles_of_keys(first, sizes)
            count, key = int32(high - low), int32(high * uint32(KEYS))
            row = int32(first + part * 64 + member // 32 * 16 + lane // 4)
            q = uint32(q_first + q_stage * uint32(q_step))
            ready = uint32(base + uint32(8) * stage)
            wait(uint32(base + uint32(8) * q_stage + uint32(q_full)), q_phase)
            wait(uint32(ready + uint32(k_full)), phase)
            sync(mine)
            fence()
            scores = product(scores, q, uint32(k_first + stage * uint32(kv_step)))
            commit()
            hand_on(other)
            scores = finish_scores(scores)
            if not of_keys:
                release(uint32(ready + uint32(k_empty)), member)
            scores = cap(scores, scales)
            if of_keys:
                scores = add_of_keys(scores, (uint32(added + stage * uint32(ADDED_BYTES)), c))
                tell(uint32(ready + uint32(k_empty)))
            if in_first:
                lows, highs = limits(row, key, column, sizes)
                scores = hidden(scores, lows, highs)
            found = peak(scores)
            most = most_of(found[0], least), most_of(found[1], least)
            scores = weigh(scores, (-(most[0] * factor), -(most[1] * factor)), (factor,))
            total, words = fold(scores), words_of(scores)
            more, v_stage, v_phase = uint32(0), stage, phase
            stage, phase = next_kv(stage, phase)
            for _ in range(count):
                key = int32(key - KEYS)
                ready = uint32(base + uint32(8) * stage)
                wait(uint32(ready + uint32(k_full)), phase)
                sync(mine)
                fence()
                scores = product(scores, q, uint32(k_first + stage * uint32(kv_step)))
                commit()
                v_ready = uint32(base + uint32(8) * v_stage)
                wait(uint32(v_ready + uint32(v_full)), v_phase)
                sums = add(sums, words, uint32(v_first + v_stage * uint32(kv_step)), more)
                commit()
                hand_on(other)
                more = uint32(1)
                scores = finish_behind(scores)
                if not of_keys:
                    release(uint32(ready + uint32(k_empty)), member)
                scores = cap(scores, scales)
                if of_keys:
                    scores = add_of_keys(scores, (uint32(added + stage * uint32(ADDED_BYTES)), c))
                    tell(uint32(ready + uint32(k_empty)))
                if in_all:
                    lows, highs = limits(row, key, column, sizes)
                    scores = hidden(scores, lows, highs)
                found = peak(scores)
                found = most_of(found[0], most[0]), most_of(found[1], most[1])
                shrink = exp2((most[0] - found[0]) * factor), exp2((most[1] - found[1]) * factor)
                most = found
                scores = weigh(scores, (-(most[0] * factor), -(most[1] * factor)), (factor,))
                own = fold(scores)
                total = total[0] * shrink[0] + own[0], total[1] * shrink[1] + own[1]
                sums = finish_sums(sums, words)
                release(uint32(v_ready + uint32(v_empty)), member)
                sums = scale(sums, shrink, ())
                words = words_of(scores)
                v_stage, v_phase = stage, phase
                stage, phase = next_kv(stage, phase)
            release(uint32(base + uint32(8) * q_stage + uint32(q_empty)), member)
            v_ready = uint32(base + uint32(8) * v_stage)
            wait(uint32(v_ready + uint32(v_full)), v_phase)
            fence()
            sums = add(sums, words, uint32(v_first + v_stage * uint32(kv_step)), more)
            commit()
            total = join(total)
            if lane & 3 == 0:
                at = np.int64(head) * sizes[0] + row
                if row < sizes[0]:
                    put(lse, at, tell_lse((most[0] * factor + log2(total[0])) * LN2))
                if row + 8 < sizes[0]:
                    put(lse, at + 8, tell_lse((most[1] * factor + log2(total[1])) * LN2))
            sums = finish_sums(sums, words)
            release(uint32(v_ready + uint32(v_empty)), member)
            over = ZERO if total[0] == ZERO else ONE / total[0], ZERO if total[1] == ZERO else ONE / total[1]
            send(part, base, maps[3], member, scale(sums, over, ()), int32(first + part * 64), head, sizes)
            q_stage, q_phase = next_q(q_stage, q_phase)
            round = uint32(round + uint32(1))
            tile = turn(round, block, blocks)
        if member == 0:
            all_read()

    return device(consume)


def _within(x, low, high, column, env):
    return x if column < high and column >= low else NOTHING


def _below_high(x, low, high, column, env):
    return x if column < high else NOTHING


def _cap() -> Any:
    tanh = tanh_for_halves()
    return lambda x, env: tanh(x * env[1])


def _sender(form: WgmmaForm, plan: ForwardPlan) -> Any:
    """`send(part, base, map, member, sums, row, head, sizes)`: a warpgroup's results to memory, by way of shared memory of its own."""
    layout = Layout(64, form.d, warps=4)
    words_of, put, own, out_at = pack(layout.count, form.dtype), put_words(layout), 64 * form.d * 2, plan.out
    fence, sync, store, commit = fence_async(), sync_at(WARPGROUP), store_box(4), commit_stores()
    wait = wait_stores_read(0)
    chunks, thread_now = form.chunks, read_thread()

    def send(part, base, map, member, sums, row, head, sizes):
        to = uint32(base + uint32(out_at) + uint32(part) * uint32(own))
        barrier = uint32(part + OWN)
        if member == 0:
            wait()
        sync(barrier)
        now = int32(thread_now())
        put(to, now >> 5 & 3, now & 31, words_of(sums))
        fence()
        sync(barrier)
        if member == 0:
            batch = uint32(head // uint32(sizes[2]))
            within = int32(head - batch * uint32(sizes[2]))
            for i in range(chunks):
                store(
                    map, uint32(to + uint32(i * 64 * ROW_BYTES)), int32(i * ATOM), row, within, int32(batch)
                )
            commit()

    return device(send)
