"""attention_grad by mma.sync (sm_80 and newer): statistics of queries, and dq by tiles of queries. dk and dv are in mma_grad_keys_body.py. No atomics:
sums have one order."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from ...types import DType, f32
from ..dsl import cuda, device, int32, uint32
from ..ptx import approximate, opaque
from ..tiles.element import getter, putter
from ..tiles.layout import Layout
from ..tiles.register_tile import map_tile, pack, unrolled, zip_rows
from ..tiles.tile import get_run, zeros
from .masks import NOTHING, mask_starts
from .mma_tiles import (
    BLOCKS_PER_SM,
    ROW_BYTES,
    WARPS,
    MmaForm,
    MmaPlan,
    copy_groups,
    hide_scores,
    pair_loader,
    query_tile,
    row_product,
    scale_scores,
    shared_base,
    start_of,
    store_rows,
    weighted_sum,
    whole,
)

GROUP = 16  # queries whose statistics lie together: 16 of lse, 16 of delta
EACH = 4  # queries of a warp of `before`
EVERYONE = 0xFFFFFFFF
ZERO, ONE = np.float32(0), np.float32(1)


def statistic() -> Any:
    """`at(head, query, padded)`: where a query's -lse is; -delta is GROUP behind it. `padded`: queries of a head, rounded up to whole tiles.

    Of 16 queries those that a thread of `key_gradients` needs together follow each other: 0, 1, 8, 9, then 2, 3, 10, 11, …
    """

    def at(head, query, padded):
        within = (query >> 1 & 3) * 4 + (query >> 3 & 1) * 2 + (query & 1)
        return (np.int64(head) * padded + (query - (query & 15))) * 2 + within

    return device(at)


@functools.cache
def before(dtype: DType) -> Callable[..., None]:
    """`kernel(dout, out, lse, stats, sizes, of_dout, of_out, factor)`: of each query -lse times `factor`, -inf of one that is not there or attends to
    nothing, and -delta = -sum(dout * out). A warp takes four queries.

    sizes  queries of a head, these rounded up to whole tiles, query heads of a batch entry, all of them, dv
    """
    read, get, put, at, start = get_run(dtype, 2), getter(f32), putter(f32), statistic(), start_of()

    def kernel(dout, out, lse, stats, sizes, of_dout, of_out, factor):
        thread = int32(cuda.threadIdx.x)
        lane = thread & 31
        first = (np.int64(cuda.blockIdx.x) * WARPS + (thread >> 5)) * EACH
        head = int32(first // sizes[1])
        batch = head // sizes[2]
        own = head - batch * sizes[2]
        if head < sizes[3]:
            for i in range(EACH):
                query = int32(first - np.int64(head) * sizes[1] + i)
                total, log = ZERO, NOTHING
                if query < sizes[0]:
                    from_out, from_dout = start(batch, own, query, of_out), start(batch, own, query, of_dout)
                    column = lane * 2
                    while column < sizes[4]:
                        x, y = read(out, from_out + column), read(dout, from_dout + column)
                        total += x[0] * y[0] + x[1] * y[1]
                        column += 64
                    log = get(lse, np.int64(head) * sizes[0] + query)
                apart = 16
                while apart > 0:
                    total += cuda.shfl_xor_sync(EVERYONE, total, apart)
                    apart //= 2
                if lane == 0:
                    to = at(head, query, sizes[1])
                    put(stats, to, NOTHING if log == NOTHING else -log * factor)
                    put(stats, to + GROUP, -total)

    kernel.__name__ = f"attention_mma_before_{dtype}"
    kernel.blocks_per_sm = 8
    return kernel


def weigh_of(scaled: bool) -> Any:
    """exp(score - lse), of -lse: see mma_body.py."""
    exp2 = approximate("exp2")
    if scaled:
        return lambda x, log, c: exp2((x + log) * c)
    return lambda x, log, c: exp2(x * c + log)


def slope_of(capped: bool) -> Any:
    """The gradient of a score before softcap; x: after it."""
    if capped:
        return lambda p, g, delta, x, cap: p * (g + delta) * (ONE - (x / cap) * (x / cap))
    return lambda p, g, delta, x, cap: p * (g + delta)


# --- dq -----------------------------------------------------------------------------------------------------------------


def query_plan(form: MmaForm) -> MmaPlan:
    """Queries and their gradients; keys and values."""
    return MmaPlan(form, (form.d, form.dv), (form.d, form.dv))


@functools.cache
def query_gradient(form: MmaForm) -> Callable[..., None]:
    """`kernel(dout, q, k, v, stats, mask, lengths, bias, dq, sizes, grid, limits, scales, steps, bias_steps, padded, of_dout, …)`: a block per tile of
    queries of a head, over the tiles of keys that they attend to. Parameters are those of mma_body.py's `forward`.
    """
    dtype, keys, count = form.dtype, form.others, form.rows // (16 * WARPS)
    plan, scores, result = query_plan(form), form.scores, Layout(16 * count, form.d)
    (q_tile, o_tile), (k_tile, v_tile) = plan.own, plan.over
    products = row_product(form.kind, q_tile, k_tile, count, form.d // 16)
    gradients = row_product(form.kind, o_tile, v_tile, count, form.dv // 16)
    add, words_of = weighted_sum(form.kind, k_tile, form.d), pack(scores.count, dtype, form.turing)
    load_queries, store_queries = pair_loader(q_tile, o_tile, form)
    load_keys, store_keys = pair_loader(k_tile, v_tile, form)
    q_lane, k_lane, k_down = q_tile.lane(True), k_tile.lane(False), k_tile.lane(False, True)
    base_of, (commit, wait) = shared_base(), copy_groups(form)
    tile_of, start, starts_of, again = query_tile(form), start_of(), mask_starts(form), opaque()
    scaled, hide, all_seen = scale_scores(form, scores.count), hide_scores(form, scores), whole()
    always = form.looked_at
    weigh, everyone = zip_rows(scores, weigh_of(form.scaled)), tuple(range(scores.count))
    by_row = scores.by_row
    slopes = unrolled(slope_of(form.capped), (everyone, everyone, by_row, everyone), (), "")
    statistics = _row_statistics(tuple((row,) for row in scores.own_rows))
    store, scale = store_rows(result, dtype), map_tile(result.count, lambda x, factor: x * factor)
    nothing, warp_rows = zeros(result.count), 16 * count
    q_bytes, ring_at, k_bytes, stage_bytes = q_tile.nbytes, plan.ring, k_tile.nbytes, plan.stage

    def kernel(
        dout, q, k, v, stats, mask, lengths, bias, dq, sizes, grid, limits, scales, steps, bias_steps, padded, of_dout, of_q, of_k, of_v, of_dq
    ):  # fmt: skip
        base, thread = base_of(), int32(cuda.threadIdx.x)
        lane, warp = thread & 31, thread >> 5
        head, (batch, own_head, key_head), first, here, low, high = tile_of(sizes, grid, limits, lengths)
        queries, d = sizes[0], sizes[5]
        mask_start, bias_start = starts_of(head, sizes, steps, bias_steps)
        widths, from_q = (d, sizes[6]), (start(batch, own_head, 0, of_q), start(batch, own_head, 0, of_dout))
        own_pitches = of_q[0], of_dout[0]
        staged = load_queries(True, (q, dout), base, thread, (first, queries), from_q, widths, own_pitches)
        store_queries(base, thread, staged)
        from_kv = (start(batch, key_head, 0, of_k), start(batch, key_head, 0, of_v))
        pitches = (of_k[0], of_v[0])
        ring = uint32(base + uint32(ring_at))
        key, stage = int32(low // keys * keys), int32(0)
        staged = load_keys(key <= high, (k, v), ring, thread, (key, here[3]), from_kv, widths, pitches)
        store_keys(ring, thread, staged)
        commit()
        own = uint32(uint32(warp * warp_rows * ROW_BYTES) + q_lane(lane))
        q_get, o_get = uint32(base + own), uint32(base + uint32(q_bytes) + own)
        k_get, v_get = uint32(ring + k_lane(lane)), uint32(ring + uint32(k_bytes) + k_lane(lane))
        k_sum = uint32(ring + k_down(lane))
        row, column = int32(first + warp * warp_rows), int32((lane & 3) * 2)
        logs, deltas = statistics(int32(row + (lane >> 2)), (stats, head, padded))
        acc = nothing
        while key <= high:
            at = uint32(stage * stage_bytes)
            wait()
            cuda.syncthreads()
            stage = int32(1 - stage)
            following = int32(key + keys)
            to, rows = uint32(ring + uint32(stage * stage_bytes)), (following, here[3])
            now = int32(again(thread))  # what copies are computed from is not kept in registers
            staged = load_keys(following <= high, (k, v), to, now, rows, from_kv, widths, pitches)
            commit()
            x = scaled(products(q_get, uint32(k_get + at)), scales)
            s = x
            if always or not all_seen(row, warp_rows, key, keys, here):
                env = here, mask, steps, mask_start, bias, bias_steps, bias_start
                s = hide(x, (int32(row + (lane >> 2)), int32(key + column)), env)
            p = weigh(s, logs, scales[2])
            g = gradients(o_get, uint32(v_get + at))
            acc = add(acc, words_of(slopes((p, g, deltas, x), scales[1])), uint32(k_sum + at))
            store_keys(to, now, staged)
            key = following
        wait()
        to = dq, start(batch, own_head, row, of_dq), int32(queries - row), d, of_dq[0]
        store(scale(acc, scales[0]), to, lane)

    kernel.__name__ = f"attention_dq_mma{form}"
    kernel.blocks_per_sm = BLOCKS_PER_SM
    return kernel


def _row_statistics(own_rows: tuple[tuple[int, ...], ...]) -> Any:
    """`of(query, (stats, head, padded))`: -lse, and -delta, of each of a thread's rows."""
    at, get, places = statistic(), getter(f32), (tuple(0 for _ in own_rows),)
    logs = unrolled(
        lambda query, row, env: get(env[0], at(env[1], int32(query + row), env[2])),
        places,
        own_rows,
        "float32",
    )
    deltas = unrolled(
        lambda query, row, env: get(env[0], at(env[1], int32(query + row), env[2]) + GROUP),
        places,
        own_rows,
        "float32",
    )
    return device(lambda query, env: (logs(((query,),), env), deltas(((query,),), env)))
