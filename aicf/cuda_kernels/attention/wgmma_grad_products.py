"""The consumers of attention_grad on Hopper: products, weights and their slopes. See wgmma_grad_body.py."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..dsl import cuda, device, int32, uint32
from ..hopper.ring import advancer, releaser
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
    load_shared,
    opaque,
    pack_halves,
    read_thread,
    store_box,
    store_shared,
    sync_at,
    wait_phase,
    wait_stores_read,
    warp_uniform,
)
from ..ptx.wgmma import multiply_k_tiles
from ..tiles.layout import Layout
from ..tiles.register_tile import map_tile, pack, put_columns, put_words
from ..tiles.tile import each, mapped_runs, permute, zeros
from .masks import NOTHING, by_column, hide_columns
from .wgmma_grad_tiles import (
    BOTH,
    FREE,
    OWN,
    THERE,
    TOGETHER,
    WITH_ADDER,
    GradientPlan,
    query_tiles,
    taker,
    walk_of,
)
from .wgmma_masks import key_starts, of_key
from .wgmma_tiles import KEYS, ROW_BYTES, WgmmaForm, chained, place_of, score_product, weighted_sum

NONE = (np.float32(0),) * 2


def _within(x, low, high, column, env):
    return x if column >= low and column < high else NOTHING


def _from_low(x, low, high, column, env):
    return x if column >= low else NOTHING


def limits_of() -> Any:
    """`of(key, query, sizes)`: for keys `key` and the eighth after it, the first query that attends to them and the one behind the last, counted
    from `query`."""

    def one(key, query, sizes):
        at = int32(key + sizes[0] - sizes[1])
        low = int32(at - sizes[6] - query) if key < sizes[1] else int32(KEYS)
        return low, int32(at + sizes[7] + 1 - query)

    of_one = device(one)

    def of(key, query, sizes):
        low, high = of_one(key, query, sizes)
        next_low, next_high = of_one(int32(key + 8), query, sizes)
        return (low, next_low), (high, next_high)

    return device(of)


def added_to_keys(form: WgmmaForm) -> Any:
    """`of(key, head, sizes, added)`: what is added to the scores of keys `key` and the eighth after it, of a query head."""
    starts_of, read = key_starts(form), of_key(form, True)

    def of(key, head, sizes, added):
        starts = starts_of(head, sizes, added)
        return read(key, sizes[1], starts, added), read(int32(key + 8), sizes[1], starts, added)

    return device(of)


def slopes(count: int, dtype: Any) -> Any:
    """`of(weights, products, stats)`: weights, and weights * (product - delta), as halves: operands of `weighted_sum`."""
    load, halves = load_shared(), pack_halves(dtype)

    def eight(i, runs, stats):
        p, g = runs
        a, b, c, d = load(uint32(stats + uint32(i * 8)))
        return (
            halves(p[0], p[1]), halves(p[2], p[3]), halves(p[4], p[5]), halves(p[6], p[7]),
            halves(p[0] * (g[0] + a), p[1] * (g[1] + b)), halves(p[2] * (g[2] + a), p[3] * (g[3] + b)),
            halves(p[4] * (g[4] + c), p[5] * (g[5] + d)), halves(p[6] * (g[6] + c), p[7] * (g[7] + d)),
        )  # fmt: skip

    run = mapped_runs(count, 8, "uint32", 8, eight)
    places = tuple(8 * i + j for i in range(count // 8) for j in range(4))
    first, second = permute(places), permute(tuple(i + 4 for i in places))

    def of(p, g, stats):
        words = run((p, g), stats)
        return first(words), second(words)

    return device(of)


def sums_writer(count: int) -> Any:
    """`put(sums, to)`: a thread's accumulators, in their order: 16 bytes, and the next 16 behind those of the others."""
    store = store_shared()
    run = each(
        count,
        4,
        lambda i, run, to: store(uint32(to + uint32(i * 4 * WARPGROUP)), run[0], run[1], run[2], run[3]),
    )
    return device(lambda sums, to: run(sums, to))


def consumer(form: WgmmaForm, plan: GradientPlan) -> Any:
    """`consume(part, base, maps, sizes, scales, added)`: a warpgroup's 64 keys of tile after tile."""
    dtype, d, queries, wide = form.dtype, form.d, plan.queries, plan.wide
    scores_of, result = Layout(64, queries, warps=4), Layout(64, d, warps=4)
    count, dq_count = scores_of.count, 32
    product = score_product(dtype, d, queries, KEYS, queries)
    add = weighted_sum(dtype, d, queries)
    of_queries = chained(multiply_k_tiles(dtype, ATOM, 1, True, False), 2, queries, ATOM)
    finish_first, finish_second = finish_products(count, 1), finish_products(count)
    finish_v, finish_q, finish_k = (
        finish_products(result.count, 1, count // 2), finish_products(dq_count, 1), finish_products(result.count, 0, count // 2),
    )  # fmt: skip
    fence, commit, of_rows, of_columns = fence_products(), commit_products(), describe(True), describe(False)
    wait, release, sync_both, sync_own = wait_phase(), releaser(), sync_at(BOTH), sync_at(WARPGROUP)
    wait_free, say_there, fence_shared = sync_at(WITH_ADDER), arrive_at(WITH_ADDER), fence_async()
    exp2, slopes_of = approximate("exp2"), slopes(count, dtype)
    weigh = by_column(count, lambda x, stat, c: exp2(x * c + stat))
    # what is added meets the lse first: large numbers that all keys of a query have are gone then
    weigh_keys = by_column(
        count,
        lambda x, stat, env: exp2(x * env[0] + (stat + env[1][0])),
        lambda x, stat, env: exp2(x * env[0] + (stat + env[1][1])),
    )
    of_keys, of_own_keys = form.of_keys, added_to_keys(form)
    thread_now, again, uniform = read_thread(), opaque(), warp_uniform()
    hidden, limits, cuts = (
        hide_columns(scores_of, _within if form.hidden == "all" else _from_low),
        limits_of(),
        bool(form.hidden),
    )
    put_slopes, put_sums, all_read = put_columns(scores_of), sums_writer(dq_count), wait_stores_read(0)
    walk, place, take, tiles_of = walk_of(), place_of(), taker(plan), query_tiles(queries)
    next_stage, send = advancer(plan.stages), _sender(form, plan)
    no_scores, no_results, no_dq = zeros(count), zeros(result.count), zeros(dq_count)
    scale_all = map_tile(result.count, lambda x, factor: x * factor)
    k_at, v_at, q_at, o_at = plan.k, plan.v, plan.q, plan.o
    ds_at, sums_at, stats_at = plan.ds, plan.sums, plan.stats
    _, k_empty, v_full, v_empty, q_full, q_empty, o_full, o_empty = plan.barriers
    q_step, ds_step, stats_bytes = plan.q_bytes // 16, plan.ds_bytes // 16, plan.stats_bytes
    ds_half = queries * ROW_BYTES
    own_keys, delta_at, sums_bytes = 64 * ROW_BYTES, 4 * queries, plan.sums_bytes
    # of dQ, a consumer has 64 queries, or, of as many, 64 columns
    ds_part, k_part = (0, KEYS * ROW_BYTES) if wide else (64 * ROW_BYTES, 0)
    both_limits = form.hidden == "all"

    def consume(part, base, maps, sizes, scales, added):
        member = int32(int32(cuda.threadIdx.x) % WARPGROUP)
        lane, warp = int32(member & 31), int32(member >> 5)
        rows, key_heads, together, tiles = walk(sizes)
        of_batch, group, who = uint32(sizes[13]), sizes[3], uint32(part)
        k = of_rows(uint32(base + uint32(k_at) + who * uint32(own_keys)))
        v = of_rows(uint32(base + uint32(v_at) + who * uint32(own_keys)))
        k_columns = of_columns(uint32(base + uint32(k_at) + who * uint32(k_part)))
        q_first, o_first = of_rows(uint32(base + uint32(q_at))), of_rows(uint32(base + uint32(o_at)))
        q_columns = of_columns(uint32(base + uint32(q_at)))
        o_columns = of_columns(uint32(base + uint32(o_at)))
        ds_first = of_rows(uint32(base + uint32(ds_at) + who * uint32(ds_part)))
        ds_own = uint32(base + uint32(ds_at) + who * uint32(ds_half))
        stats_own = uint32(base + uint32(stats_at) + uint32(lane & 3) * uint32(16))
        sums_own = uint32(base + uint32(sums_at) + who * uint32(sums_bytes) + uint32(member) * uint32(16))
        stage, phase, parity = uint32(0), uint32(0), uint32(0)
        scores, products, dq = no_scores, no_scores, no_dq
        while True:
            tile = uniform(take(base, parity))
            if tile >= tiles:
                break
            row, head = place(tile, rows, key_heads, together)
            key = int32(row * uint32(KEYS))
            low, count = tiles_of(key, sizes)
            own = NONE
            if of_keys:
                now = int32(thread_now())
                own_key = int32(key + (now - WARPGROUP >> 5) * 16 + (now >> 2 & 7))
                own = of_own_keys(own_key, int32(head * uint32(group)), sizes, added)
            dk, dv = no_results, no_results
            query = int32(low * queries)
            end, left, first = int32(query + count * queries), int32(count * group), int32(1)
            while left > 0:
                ready = uint32(base + uint32(8) * stage)
                wait(uint32(ready + uint32(q_full)), phase)
                fence()
                scores = product(scores, k, uint32(q_first + stage * uint32(q_step)))
                commit()
                if first != 0:
                    wait(uint32(base + uint32(v_full)), parity)
                wait(uint32(ready + uint32(o_full)), phase)
                fence()
                products = product(products, v, uint32(o_first + stage * uint32(q_step)))
                commit()
                scores = finish_first(scores)
                if cuts:
                    cut = (
                        int32(query + sizes[1] - sizes[0] + sizes[6]) < key + KEYS - 1
                        or key + KEYS > sizes[1]
                    )
                    if both_limits:
                        cut = cut or int32(query + queries - 1 + sizes[1] - sizes[0] - sizes[7]) > key
                    if cut:
                        now = int32(thread_now())
                        own_key = int32(key + (now - WARPGROUP >> 5) * 16 + (now >> 2 & 7))
                        lows, highs = limits(own_key, int32(query + (now & 3) * 2), sizes)
                        scores = hidden(scores, lows, highs)
                stats = uint32(stats_own + stage * uint32(stats_bytes))
                if of_keys:
                    scores = weigh_keys(scores, (stats, (scales[0], own)))
                else:
                    scores = weigh(scores, (stats, scales[0]))
                products = finish_second(products)
                if first != 0:
                    if member == 0:
                        all_read()  # results of the tile before leave from here
                    sync_own(uint32(OWN + who))
                halves, slopes_now = slopes_of(scores, products, uint32(stats + uint32(delta_at)))
                put_slopes(uint32(ds_own + stage * uint32(16 * ds_step)), warp, lane, slopes_now)
                dv = add(dv, halves, uint32(o_columns + stage * uint32(q_step)), uint32(1))
                commit()
                fence_shared()
                sync_both(uint32(TOGETHER))
                fence()
                dq = of_queries(dq, uint32(ds_first + stage * uint32(ds_step)), k_columns)
                commit()
                dv = finish_v(dv, halves)
                release(uint32(ready + uint32(o_empty)), member)
                dk = add(dk, slopes_now, uint32(q_columns + stage * uint32(q_step)), uint32(1))
                commit()
                dq = finish_q(dq)
                if not wide:
                    if left == 1:
                        release(uint32(base + uint32(k_empty)), member)
                        release(uint32(base + uint32(v_empty)), member)
                wait_free(uint32(FREE + who))
                put_sums(dq, sums_own)
                fence_shared()
                say_there(uint32(THERE + who))
                dk = finish_k(dk, slopes_now)
                release(uint32(ready + uint32(q_empty)), member)
                stage, phase = next_stage(stage, phase)
                first, left = int32(0), int32(left - 1)
                query = int32(query + queries)
                if query == end:  # the next query head's
                    query = int32(low * queries)
            # again, rather than in registers all the while
            row, head = place(uint32(again(int32(tile))), rows, key_heads, together)
            batch = uint32(head // of_batch)
            place_now = (
                int32(int32(row * uint32(KEYS)) + part * 64),
                int32(head - batch * of_batch),
                int32(batch),
            )
            send(part, base, maps, member, stage, scale_all(dk, scales[1]), dv, place_now)
            parity = uint32(parity ^ uint32(1))
        if member == 0:
            all_read()

    return device(consume)


def _sender(form: WgmmaForm, plan: GradientPlan) -> Any:
    """`send(part, base, maps, member, stage, dk, dv, (row, head, batch))`: a warpgroup's dk and dv to memory."""
    layout, wide, chunks = Layout(64, form.d, warps=4), plan.wide, form.chunks
    words_of, put, own = pack(layout.count, form.dtype), put_words(layout), 64 * form.d * 2
    fence, sync_own, sync_both, store = fence_async(), sync_at(WARPGROUP), sync_at(BOTH), store_box(4)
    commit, all_read, tell = commit_stores(), wait_stores_read(0), arrive()
    ds_at, ds_bytes, ds_half, k_at, v_at = plan.ds, plan.ds_bytes, plan.queries * ROW_BYTES, plan.k, plan.v
    k_empty, v_empty, thread_now = plan.k_ring.empty, plan.v_ring.empty, read_thread()

    def send(part, base, maps, member, stage, dk, dv, place):
        now = int32(thread_now())
        warp, lane, who = now >> 5 & 3, now & 31, uint32(part)
        if wide:
            sync_both(uint32(TOGETHER))  # both have read K and V
            to_k = uint32(base + uint32(k_at) + who * uint32(own))
            to_v = uint32(base + uint32(v_at) + who * uint32(own))
        else:
            # of the dS that the next tile writes first
            to_k = uint32(base + uint32(ds_at) + stage * uint32(ds_bytes) + who * uint32(ds_half))
            to_v = uint32(to_k + uint32(own))
        put(to_v, warp, lane, words_of(dv))
        put(to_k, warp, lane, words_of(dk))
        fence()
        sync_own(uint32(OWN + who))
        if member == 0:
            for i in range(chunks):
                further, column = uint32(i * 64 * ROW_BYTES), int32(i * ATOM)
                store(maps[4], uint32(to_k + further), column, place[0], place[1], place[2])
                store(maps[5], uint32(to_v + further), column, place[0], place[1], place[2])
            commit()
            if wide:
                all_read()
                tell(uint32(base + uint32(k_empty)))
                tell(uint32(base + uint32(v_empty)))

    return device(send)
