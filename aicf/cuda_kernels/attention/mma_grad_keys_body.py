"""attention_grad's dk and dv by mma.sync, by tiles of keys. See mma_grad_body.py."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from ...types import f32
from ..dsl import cuda, device, int32, uint32
from ..ptx import copy_async, load_shared, load_unit_words, store_unit_words
from ..tiles.layout import Layout
from ..tiles.register_tile import map_tile, pack
from ..tiles.tile import mapped_runs, zeros
from .masks import by_column, mask_starts, sizes_here
from .mma_grad_body import GROUP, slope_of, weigh_of
from .mma_tiles import (
    BLOCKS_PER_SM,
    CHUNK,
    ROW_BYTES,
    WARPS,
    MmaForm,
    MmaPlan,
    copy_groups,
    head_places,
    hide_scores,
    pair_loader,
    row_product,
    scale_scores,
    shared_base,
    start_of,
    store_rows,
    weighted_sum,
    whole,
)

GROUP_BYTES = 2 * GROUP * f32.itemsize
PART = 128  # columns of dk and of dv that a block adds up


def parts_of(form: MmaForm) -> int:
    """Blocks that share the columns of dk and dv of a tile of keys."""
    return -(-max(form.d, form.dv) // PART)


def key_plan(form: MmaForm) -> MmaPlan:
    """Keys and values; queries, their gradients and their statistics. Of a part of the columns tiles have whole parts."""
    parts = parts_of(form)
    over = form.d, form.dv
    if parts > 1:
        over = max(form.d, parts * PART), max(form.dv, parts * PART)
    return MmaPlan(form, (form.d, form.dv), over, form.others // GROUP * GROUP_BYTES)


def _slopes(form: MmaForm, count: int) -> Any:
    """`run((weights, gradients, scores), (stats, softcap))`."""
    load, slope = load_shared(), device(slope_of(form.capped))

    def eight(i, tiles, env):
        p, g, x = tiles
        a, b, c, d = load(uint32(env[0] + uint32(i * (GROUP_BYTES // 8) + GROUP_BYTES // 2)))
        f = env[1]
        return (
            slope(p[0], g[0], a, x[0], f), slope(p[1], g[1], b, x[1], f), slope(p[2], g[2], a, x[2], f), slope(p[3], g[3], b, x[3], f),
            slope(p[4], g[4], c, x[4], f), slope(p[5], g[5], d, x[5], f), slope(p[6], g[6], c, x[6], f), slope(p[7], g[7], d, x[7], f),
        )  # fmt: skip

    return mapped_runs(count, 8, "float32", 8, eight)


def _stats_loader(form: MmaForm) -> tuple[Any, Any]:
    """(`load(wanted, stats, to, thread, at)`: the statistics of a tile of queries to shared memory; `store(to, thread, staged)`: what it left in
    registers), as `pair_loader`."""
    units = form.others // GROUP * GROUP_BYTES // 16
    if not form.turing:
        copy = copy_async(
            ((0, 0),), 1, lambda at: (at, np.int64(4), np.int64(16), np.int64(1)), 16, f32.itemsize
        )

        def load(wanted, stats, to, thread, at):
            if wanted and thread < units:
                copy(stats, uint32(to + uint32(thread * 16)), np.int64(at + thread * 4))

        return device(load), device(lambda to, thread, staged: None)
    fetch = load_unit_words(
        1, 1, lambda env: (env[0], np.int64(4), env[1], np.int64(1)), 16, f32.itemsize, False
    )
    put = store_unit_words(((0, 0),), 16)

    def stage(wanted, stats, to, thread, at):
        nbytes = np.int64(16) if wanted and thread < units else np.int64(0)
        return fetch(stats, to, (np.int64(at + thread * 4), nbytes))

    def store(to, thread, staged):
        if thread < units:
            put(uint32(to + uint32(thread * 16)), staged)

    return device(stage), device(store)


@functools.cache
def key_gradients(form: MmaForm) -> Callable[..., None]:
    """`kernel(dout, q, k, v, stats, mask, lengths, bias, dk, dv, sizes, grid, limits, scales, steps, bias_steps, padded, of_dout, …)`: a block per tile of
    keys of a head, and 128 columns of both, over the tiles of queries that attend to them, of all heads that share the keys.

    Scores have a row for each key here, so that weights and their gradients multiply the rows of dout and q out of registers.

    grid    tiles of keys of a head, and query heads to a head of keys
    """
    dtype, rows, others, count = form.dtype, form.rows, form.others, form.rows // (16 * WARPS)
    plan, scores, parts = key_plan(form), form.scores, parts_of(form)
    (k_tile, v_tile), (q_tile, o_tile) = plan.own, plan.over
    k_columns, v_columns = (PART, PART) if parts > 1 else (form.d, form.dv)
    of_k, of_v = Layout(16 * count, k_columns), Layout(16 * count, v_columns)
    products = row_product(form.kind, k_tile, q_tile, count, form.d // 16)
    gradients = row_product(form.kind, v_tile, o_tile, count, form.dv // 16)
    add_k, add_v = weighted_sum(form.kind, q_tile, k_columns), weighted_sum(form.kind, o_tile, v_columns)
    words_of, (load_stats, store_stats) = pack(scores.count, dtype, form.turing), _stats_loader(form)
    load_keys, store_keys = pair_loader(k_tile, v_tile, form)
    load, store_queries = pair_loader(q_tile, o_tile, form)
    k_lane, q_lane, q_down = k_tile.lane(True), q_tile.lane(False), q_tile.lane(False, True)
    base_of, (commit, wait) = shared_base(), copy_groups(form)
    place, start, of_head, starts_of = head_places(), start_of(), sizes_here(form.ragged), mask_starts(form)
    scaled, hide = scale_scores(form, scores.count), hide_scores(form, scores, by_keys=True)
    all_seen = whole()
    weigh = by_column(scores.count, weigh_of(form.scaled), apart=GROUP_BYTES // 8)
    slopes, always = _slopes(form, scores.count), form.looked_at
    store_k, store_v = store_rows(of_k, dtype), store_rows(of_v, dtype)
    scale = map_tile(of_k.count, lambda x, factor: x * factor)
    no_k, no_v, warp_rows = zeros(of_k.count), zeros(of_v.count), 16 * count
    k_bytes, ring_at, q_bytes, stage_bytes = k_tile.nbytes, plan.ring, q_tile.nbytes, plan.stage
    pair_bytes = q_tile.nbytes + o_tile.nbytes
    part_bytes, part_columns = PART // CHUNK * q_tile.chunk_bytes, PART

    def kernel(
        dout, q, k, v, stats, mask, lengths, bias, dk, dv_, sizes, grid, limits, scales, steps, bias_steps, padded,
        of_dout, of_q, of_k, of_v, of_dk, of_dv,
    ):  # fmt: skip
        base, thread = base_of(), int32(cuda.threadIdx.x)
        lane, warp = thread & 31, thread >> 5
        block, part = int32(cuda.blockIdx.x) // parts, int32(cuda.blockIdx.x) % parts
        group = int32(uint32(block) // uint32(grid[0]))
        key = int32((block - group * grid[0]) * rows)  # causal masks leave early keys the most queries
        share, head = grid[1], int32(group * grid[1])
        batch, own_head, key_head = place(head, sizes, share)
        queries, d, dv = sizes[0], sizes[5], sizes[6]
        sized = of_head(sizes, lengths, head)
        here = int32(sized[1] - queries), limits[0], limits[1], sized[7], queries
        low = int32(max(int32(key - here[0] - here[1]), 0) // others * others)
        high = min(int32(min(key + rows, here[3]) - 1 - here[0] + here[2]), queries - 1)
        if key >= here[3]:
            high = int32(low - 1)
        widths, from_kv = (d, dv), (start(batch, key_head, 0, of_k), start(batch, key_head, 0, of_v))
        own_pitches = of_k[0], of_v[0]
        staged = load_keys(True, (k, v), base, thread, (key, here[3]), from_kv, widths, own_pitches)
        store_keys(base, thread, staged)
        from_q = (start(batch, own_head, 0, of_q), start(batch, own_head, 0, of_dout))
        pitches = (of_q[0], of_dout[0])
        from_stats = np.int64(head) * padded
        ring = uint32(base + uint32(ring_at))
        query, stage, member = low, int32(0), int32(0)
        wanted, to_stats = query <= high, uint32(ring + uint32(pair_bytes))
        staged_q = load(wanted, (q, dout), ring, thread, (query, queries), from_q, widths, pitches)
        staged_stats = load_stats(wanted, stats, to_stats, thread, (from_stats + query) * 2)
        store_queries(ring, thread, staged_q)
        store_stats(to_stats, thread, staged_stats)
        commit()
        own = uint32(uint32(warp * warp_rows * ROW_BYTES) + k_lane(lane))
        k_get, v_get = uint32(base + own), uint32(base + uint32(k_bytes) + own)
        q_get, o_get = uint32(ring + q_lane(lane)), uint32(ring + uint32(q_bytes) + q_lane(lane))
        down = uint32(ring + uint32(part * part_bytes) + q_down(lane))
        stats_get = uint32(ring + uint32(pair_bytes) + uint32((lane & 3) * 16))
        row, column = int32(key + warp * warp_rows), int32((lane & 3) * 2)
        acc_k, acc_v = no_k, no_v
        while query <= high and member < share:
            at = uint32(stage * stage_bytes)
            wait()
            cuda.syncthreads()
            stage = int32(1 - stage)
            following, next_member = int32(query + others), member
            if following > high:
                following, next_member = low, int32(member + 1)
            to, more = uint32(ring + uint32(stage * stage_bytes)), np.int64(next_member)
            moved = from_q[0] + more * of_q[1], from_q[1] + more * of_dout[1]
            wanted, to_stats = next_member < share, uint32(to + uint32(pair_bytes))
            staged_q = load(wanted, (q, dout), to, thread, (following, queries), moved, widths, pitches)
            stats_at = (from_stats + more * padded + following) * 2
            staged_stats = load_stats(wanted, stats, to_stats, thread, stats_at)
            commit()
            x = scaled(products(k_get, uint32(q_get + at)), scales)
            s = x
            if always or not all_seen(query, others, row, warp_rows, here):
                mask_start, bias_start = starts_of(int32(head + member), sizes, steps, bias_steps)
                env = here, mask, steps, mask_start, bias, bias_steps, bias_start
                s = hide(x, (int32(row + (lane >> 2)), int32(query + column)), env)
            p = weigh(s, (uint32(stats_get + at), scales[2]))
            acc_v = add_v(acc_v, words_of(p), uint32(down + uint32(q_bytes) + at))
            g = gradients(v_get, uint32(o_get + at))
            ds = slopes((p, g, x), (uint32(stats_get + at), scales[1]))
            acc_k = add_k(acc_k, words_of(ds), uint32(down + at))
            store_queries(to, thread, staged_q)
            store_stats(to_stats, thread, staged_stats)
            query, member = following, next_member
        wait()
        first, left = int32(part * part_columns), int32(sizes[1] - row)
        store_k(
            scale(acc_k, scales[0]),
            (dk, start(batch, key_head, row, of_dk) + first, left, int32(d - first), of_dk[0]),
            lane,
        )
        store_v(
            acc_v, (dv_, start(batch, key_head, row, of_dv) + first, left, int32(dv - first), of_dv[0]), lane
        )

    kernel.__name__ = f"attention_dkv_mma{form}"
    kernel.blocks_per_sm = BLOCKS_PER_SM
    return kernel
