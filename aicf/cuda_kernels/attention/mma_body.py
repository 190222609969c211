"""Attention by mma.sync (sm_80 and newer): a block for each tile of queries goes over tiles of keys with a running softmax in registers."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import numpy as np

from ...types import f32
from ..dsl import cuda, device, float32, int32, uint32
from ..ptx import approximate, larger
from ..tiles.element import putter
from ..tiles.layout import Layout
from ..tiles.register_tile import fold_rows, join_rows, map_tile, pack, reduce_rows, zip_rows, zip_tiles
from ..tiles.tile import each, zeros
from .masks import LOG2E, NOTHING, mask_starts
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
    register_product,
    row_product,
    scale_scores,
    shared_base,
    start_of,
    store_rows,
    weighted_sum,
    whole,
)

ZERO, ONE = np.float32(0), np.float32(1)
KEPT = 32  # registers that may hold a warp's queries


def forward_plan(form: MmaForm) -> MmaPlan:
    """Queries; keys and values."""
    return MmaPlan(form, (form.d,), (form.d, form.dv))


@functools.cache
def forward(form: MmaForm) -> Callable[..., None]:
    """`kernel(q, k, v, mask, lengths, bias, out, lse, sizes, grid, limits, scales, steps, bias_steps, of_q, of_k, of_v, of_out)`.

    mask, lengths, bias  a pointer each, or ()
    grid    tiles of queries of a head, and query heads to a head of keys
    of_q …  elements from one row, head and batch entry to the next

    The next tile of keys and values is on its way while one is multiplied: one barrier a tile.
    """
    dtype, keys, count = form.dtype, form.others, form.rows // (16 * WARPS)
    plan, scores, result = forward_plan(form), form.scores, Layout(16 * count, form.dv)
    (q_tile,), (k_tile, v_tile) = plan.own, plan.over
    steps_of_d = form.d // 16
    in_registers = 4 * count * steps_of_d <= KEPT and not form.looked_at
    if in_registers:
        take_q, product = register_product(form.kind, q_tile, k_tile, count, steps_of_d)
    else:
        take_q, product = device(lambda at: at), row_product(form.kind, q_tile, k_tile, count, steps_of_d)
    add, words_of = weighted_sum(form.kind, v_tile, form.dv), pack(scores.count, dtype, form.turing)
    load_q, store_q = q_tile.loader(form), q_tile.storer(form)
    load, store_kv = pair_loader(k_tile, v_tile, form)
    q_lane, k_lane, v_lane = q_tile.lane(True), k_tile.lane(False), v_tile.lane(False, True)
    base_of, (commit, wait) = shared_base(), copy_groups(form)
    tile_of, start, starts_of = query_tile(form), start_of(), mask_starts(form)
    scaled, hide, all_seen = scale_scores(form, scores.count), hide_scores(form, scores), whole()
    always = form.looked_at
    # weights of NaN are NaN, whichever maximum is subtracted
    exp2, most_of = approximate("exp2"), larger(False) if form.turing else larger()
    own = 2 * count
    peak = reduce_rows(scores, lambda x, y: most_of(x, y))
    most_rows = zip_tiles(own, lambda x, y, env: most_of(x, y))
    shift_of = map_tile(own, lambda most, env: most if most > NOTHING else ZERO)
    shrink_of = zip_tiles(own, lambda most, shift, c: exp2((most - shift) * c))
    weigh = zip_rows(scores, _weigh(form.scaled))
    fold, join = fold_rows(scores, lambda x, y: x + y), join_rows(scores, lambda x, y: x + y)
    sum_up, times = zip_tiles(own, lambda x, y, env: x + y), zip_tiles(own, lambda x, y, env: x * y)
    over = map_tile(own, lambda total, env: ONE / total if total != ZERO else ZERO)
    scale, store = zip_rows(result, lambda x, factor, env: x * factor), store_rows(result, dtype)
    put_lse = _put_lse(own)
    logarithms = zip_tiles(own, _logarithm)
    nothing, none, no_rows = zeros(result.count), (NOTHING,) * own, zeros(own)
    warp_rows, q_bytes, k_bytes, stage_bytes = 16 * count, q_tile.nbytes, k_tile.nbytes, plan.stage

    def kernel(
        q, k, v, mask, lengths, bias, out, lse, sizes, grid, limits, scales, steps, bias_steps, of_q, of_k, of_v, of_out
    ):  # fmt: skip
        base, thread = base_of(), int32(cuda.threadIdx.x)
        lane, warp = thread & 31, thread >> 5
        head, (batch, own_head, key_head), first, here, low, high = tile_of(sizes, grid, limits, lengths)
        queries, d, dv = sizes[0], sizes[5], sizes[6]
        mask_start, bias_start = starts_of(head, sizes, steps, bias_steps)
        from_q = start(batch, own_head, first, of_q), int32(queries - first), d, of_q[0]
        store_q(base, thread, load_q(q, base, thread, from_q))
        from_kv, widths = (start(batch, key_head, 0, of_k), start(batch, key_head, 0, of_v)), (d, dv)
        pitches = (of_k[0], of_v[0])
        ring = uint32(base + uint32(q_bytes))
        key, stage = int32(low // keys * keys), int32(0)
        staged = load(key <= high, (k, v), ring, thread, (key, here[3]), from_kv, widths, pitches)
        store_kv(ring, thread, staged)
        commit()
        wait()
        cuda.syncthreads()
        queries_here = take_q(uint32(base + uint32(warp * warp_rows * ROW_BYTES) + q_lane(lane)))
        k_get = uint32(ring + k_lane(lane))
        v_get = uint32(ring + uint32(k_bytes) + v_lane(lane))
        row, column = int32(first + warp * warp_rows), int32((lane & 3) * 2)
        acc, most, total = nothing, none, no_rows
        while key <= high:
            at = uint32(stage * stage_bytes)
            wait()
            cuda.syncthreads()
            stage = int32(1 - stage)
            following = int32(key + keys)
            to, rows = uint32(ring + uint32(stage * stage_bytes)), (following, here[3])
            staged = load(following <= high, (k, v), to, thread, rows, from_kv, widths, pitches)
            commit()
            s = scaled(product(queries_here, uint32(k_get + at)), scales)
            if always or not all_seen(row, warp_rows, key, keys, here):
                env = here, mask, steps, mask_start, bias, bias_steps, bias_start
                s = hide(s, (int32(row + (lane >> 2)), int32(key + column)), env)
            found = most_rows(peak(s), most, ())
            shift = shift_of(found, ())
            shrink = shrink_of(most, shift, scales[2])
            most = found
            s = weigh(s, shift, scales[2])
            total = sum_up(times(total, shrink, ()), fold(s), ())
            acc = add(scale(acc, shrink, ()), words_of(s), uint32(v_get + at))
            store_kv(to, thread, staged)
            key = following
        wait()
        total = join(total)
        left = int32(queries - row)
        store(
            scale(acc, over(total, ()), ()),
            (out, start(batch, own_head, row, of_out), left, dv, of_out[0]),
            lane,
        )
        if lane & 3 == 0:
            to = np.int64(head) * queries + row + (lane >> 2)
            put_lse(logarithms(most, total, scales[2]), (lse, to, int32(left - (lane >> 2))))

    kernel.__name__ = f"attention_mma{form}"
    kernel.blocks_per_sm = BLOCKS_PER_SM
    return kernel


def _weigh(scaled: bool) -> Any:
    """2^(c (score - shift)): of raw products by one multiply-add; what may be as large as f32 is, such as a bias, is not multiplied before it is small."""
    exp2 = approximate("exp2")
    if scaled:
        return lambda x, shift, c: exp2((x - shift) * c)
    return lambda x, shift, c: exp2(x * c - shift * c)


def _logarithm(most, total, c):
    """Of a row's sum. c: log2(e) times what scores are still to be scaled by."""
    return most * (c / LOG2E) + float32(math.log(total)) if total != ZERO else NOTHING


def _put_lse(own: int) -> Any:
    """`put(lse, (pointer, at, rows))`: of each of a thread's rows, if it is one."""
    put = putter(f32)

    def put_one(i, one, env):
        row = i // 2 * 16 + i % 2 * 8
        if row < env[2]:
            put(env[0], env[1] + row, one[0])

    return each(own, 1, put_one)
