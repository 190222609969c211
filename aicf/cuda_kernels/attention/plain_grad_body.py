"""attention_grad in f32 on CUDA cores: dq by tiles of queries, then dk and dv by tiles of keys; and a bias's gradient by tiles of both. No atomics: sums
have one order."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import numpy as np

from ...types import DType, f32
from ..dsl import cuda, device, float32, int32
from ..tiles.element import getter, putter
from ..tiles.fragment import fragment
from ..tiles.register_tile import map_tile, unrolled, zip_tiles
from ..tiles.tile import zeros
from .masks import INFINITY, NOTHING, of_four, sizes_here
from .plain_body import QUARTERS, ZERO, place
from .plain_tiles import (
    ALIGNMENT,
    BLOCKS_PER_SM,
    EACH,
    OWN_COLUMNS,
    OWN_ROWS,
    SIDE,
    STAGE,
    THREADS,
    TILE,
    WEIGHTS,
    PlainForm,
    cap_scores,
    plus_bias,
    reach,
    result_storer,
    row_facts,
    score_product,
    visible,
    weight_storer,
    weighted_sum,
)

ALL = tuple(range(EACH * EACH))
ONE = np.float32(1)


@functools.cache
def weigh(masked: bool, bias: DType | None, queries: tuple[int, ...], keys: tuple[int, ...]) -> Any:
    """`run(scores, lse, row facts, (first key, mask, steps, bias, its steps))`: exp(score + bias - lse), 0 where masked.

    queries, keys  of each of a thread's scores, which of its queries and which of its keys it is of
    """
    seen, plus = visible(masked), plus_bias(bias)

    def one(score, lse, low, high, mask_row, bias_row, key, env):
        if seen(env[0] + key, low, high, mask_row, (env[1], env[2])):
            return float32(math.exp(plus(score, bias_row, env[0] + key, (env[3], env[4])) - lse))
        return ZERO

    run = unrolled(one, (ALL, *[queries] * 5), tuple((key,) for key in keys), "float32")
    return device(lambda scores, lse, f, env: run((scores, lse, f[0], f[1], f[2], f[3]), env))


@functools.cache
def differentiate(capped: bool, queries: tuple[int, ...]) -> Any:
    """`run(weights, scores, products, delta, softcap)`: gradients of scaled scores; products are of dout and v."""

    def slope(weight, score, product, delta, softcap):
        return weight * (product - delta)

    def capped_slope(weight, score, product, delta, softcap):
        share = score / softcap
        return weight * (product - delta) * (ONE - share * share)

    run = unrolled(capped_slope if capped else slope, (ALL, ALL, ALL, queries), (), "")
    return device(lambda weights, scores, products, delta, cap: run((weights, scores, products, delta), cap))


def log_sums() -> Any:
    """`of(row, (lse, first element, rows))`: lse of four rows from this one on; infinity for what is no row, or has no weights."""
    get = getter(f32)

    def one(row, env):
        x = get(env[0], env[1] + row) if row < env[2] else NOTHING
        return x if x != NOTHING else INFINITY

    return of_four(one)


def deltas() -> Any:
    """The same of delta; 0 for what is no row."""
    get = getter(f32)
    return of_four(lambda row, env: get(env[0], env[1] + row) if row < env[2] else ZERO)


@functools.cache
def row_deltas(dtype: DType) -> Any:
    """`sum_up(dout, out, (first row, how many, length), partial, shared, thread)`: sum(dout * out) of a tile's rows in `shared`, behind a
    barrier; of the thread's row, if it has one, as the result."""
    get = getter(dtype)

    def sum_up(dout, out, rows, partial, shared, thread):
        first, left, length = rows
        total, at = ZERO, (first + thread % TILE) * length
        if thread % TILE < left:
            for i in range(thread // TILE, length, QUARTERS):
                total += get(dout, at + i) * get(out, at + i)
        partial[thread] = total
        cuda.syncthreads()
        if thread < TILE:
            for i in range(1, QUARTERS):
                total += partial[thread + i * TILE]
            shared[thread] = total
        cuda.syncthreads()
        return total

    return device(sum_up)


@functools.cache
def query_gradient(form: PlainForm) -> Callable[..., None]:
    """dq: a block per tile of 64 queries and `columns` columns, over the tiles of keys that they attend to. First it leaves
    delta = sum(dout * out) of its queries, for `key_gradients` too.
    """
    dtype, width, columns = form.dtype, form.width, form.columns
    product, sums = score_product(dtype, width), weighted_sum(dtype, width, columns)
    store, finish, cap = weight_storer(), result_storer(dtype, width, columns), cap_scores(form.capped)
    weights_of = weigh(form.masked, form.bias, OWN_ROWS, OWN_COLUMNS)
    slopes = differentiate(form.capped, OWN_ROWS)
    of_head, facts_of, reached = sizes_here(form.ragged), row_facts(form), reach()
    logs_of, read_four, sum_up, put = log_sums(), fragment(1, EACH, 0), row_deltas(form.dtype), putter(f32)
    count = EACH * columns // SIDE
    start, scale = zeros(count), map_tile(count, lambda x, factor: x * factor)

    def kernel(
        dout, q, k, v, out, lse, mask, lengths, bias, delta, dq, sizes, grid, limits, scales, steps, bias_steps
    ):  # fmt: skip
        weights = cuda.shared.array(WEIGHTS, float32, ALIGNMENT)
        stage = cuda.shared.array(STAGE, float32, ALIGNMENT)
        partial = cuda.shared.array(THREADS, float32)
        shared_delta = cuda.shared.array(TILE, float32, ALIGNMENT)
        thread = int32(cuda.threadIdx.x)
        head, tile, part = place(sizes, grid[0], grid[1])
        keys, d, dv = sizes[1], sizes[5], sizes[6]
        rows, first = sizes[0] * sizes[3], tile * TILE
        if head < sizes[4] and first < rows:
            here = of_head(sizes, lengths, head)
            row, left, column = int32(first + thread // SIDE * EACH), int32(rows - first), part * columns
            from_rows, from_keys = np.int64(head) * rows, np.int64(head) * keys
            rows_at = (from_rows + first, left, dv)
            total = sum_up(dout, out, rows_at, partial, shared_delta, thread)
            if part == 0 and thread < min(left, TILE):
                put(delta, from_rows + first + thread, total)
            own_delta = read_four(shared_delta, thread // SIDE * EACH)
            own_lse = logs_of(row, (lse, from_rows, rows))
            facts = facts_of(row, head, here, sizes, limits, steps, bias_steps)
            low, high = reached(first, rows, here, limits)
            acc, key = start, int32(low // TILE * TILE)
            while key <= high:
                key_at, k_left = from_keys + key, int32(here[7] - key)
                s = product(q, k, ((from_rows + first) * d, key_at * d, left, k_left), d, stage, thread)
                g = product(dout, v, ((from_rows + first) * dv, key_at * dv, left, k_left), dv, stage, thread)
                s = cap(s, scales)
                env = (int32(key + thread % SIDE * EACH), mask, steps, bias, bias_steps)
                p = weights_of(s, own_lse, facts, env)
                store(weights, thread, slopes(p, s, g, own_delta, scales[1]))
                acc = sums(acc, weights, k, (key_at * d + column, k_left, d - column), d, stage, thread)
                key += TILE
            to = (from_rows + first) * d + column
            finish(scale(acc, scales[0]), (dq, to, left, d - column, d), thread)

    kernel.__name__ = f"attention_dq{form}"
    kernel.blocks_per_sm = BLOCKS_PER_SM
    return kernel


@functools.cache
def key_gradients(form: PlainForm) -> Callable[..., None]:
    """dk and dv: a block per tile of 64 keys and `columns` columns of both, over the tiles of queries that attend to them.

    Scores are of keys by queries here, so that weights and their gradients multiply the rows of dout and q.
    """
    dtype, width, columns = form.dtype, form.width, form.columns
    product, sums = score_product(dtype, width), weighted_sum(dtype, width, columns)
    store, finish, cap = weight_storer(), result_storer(dtype, width, columns), cap_scores(form.capped)
    weights_of = weigh(form.masked, form.bias, OWN_COLUMNS, OWN_ROWS)
    slopes = differentiate(form.capped, OWN_COLUMNS)
    of_head, facts_of, reached = sizes_here(form.ragged), row_facts(form), reach()
    logs_of, deltas_of = log_sums(), deltas()
    count = EACH * columns // SIDE
    start, scale = zeros(count), map_tile(count, lambda x, factor: x * factor)

    def kernel(
        dout, q, k, v, lse, mask, lengths, bias, delta, dk, dv_, sizes, grid, limits, scales, steps, bias_steps
    ):  # fmt: skip
        weights = cuda.shared.array(WEIGHTS, float32, ALIGNMENT)
        stage = cuda.shared.array(STAGE, float32, ALIGNMENT)
        thread = int32(cuda.threadIdx.x)
        head, tile, part = place(sizes, grid[0], grid[1])
        keys, d, dv = sizes[1], sizes[5], sizes[6]
        # causal masks leave early keys the most queries
        rows, key = sizes[0] * sizes[3], (grid[0] - 1 - tile) * TILE
        if head < sizes[4] and key < keys:
            here = of_head(sizes, lengths, head)
            k_left, column = int32(here[7] - key), part * columns
            from_rows, key_at = np.int64(head) * rows, np.int64(head) * keys + key
            acc_k, acc_v = start, start
            first = int32(0)
            while first < rows:
                low, high = reached(first, rows, here, limits)
                if low < key + TILE and high >= key:
                    row_at, left = from_rows + first, int32(rows - first)
                    row = int32(first + thread % SIDE * EACH)
                    s = product(k, q, (key_at * d, row_at * d, k_left, left), d, stage, thread)
                    g = product(v, dout, (key_at * dv, row_at * dv, k_left, left), dv, stage, thread)
                    s = cap(s, scales)
                    own_lse = logs_of(row, (lse, from_rows, rows))
                    own_delta = deltas_of(row, (delta, from_rows, rows))
                    facts = facts_of(row, head, here, sizes, limits, steps, bias_steps)
                    env = (int32(key + thread // SIDE * EACH), mask, steps, bias, bias_steps)
                    p = weights_of(s, own_lse, facts, env)
                    store(weights, thread, p)
                    acc_v = sums(
                        acc_v, weights, dout, (row_at * dv + column, left, dv - column), dv, stage, thread
                    )
                    store(weights, thread, slopes(p, s, g, own_delta, scales[1]))
                    acc_k = sums(acc_k, weights, q, (row_at * d + column, left, d - column), d, stage, thread)
                first = int32(first + TILE)
            stored = int32(keys - key)
            finish(scale(acc_k, scales[0]), (dk, key_at * d + column, stored, d - column, d), thread)
            finish(acc_v, (dv_, key_at * dv + column, stored, dv - column, dv), thread)

    kernel.__name__ = f"attention_dkv{form}"
    kernel.blocks_per_sm = BLOCKS_PER_SM
    return kernel


@functools.cache
def bias_gradient(form: PlainForm) -> Callable[..., None]:
    """A block per tile of 64 queries and 64 keys of a matrix of the bias; heads are query heads here, one of `sizes`' groups each.

    walk   of query heads that matrix m is of: m // walk[0] * walk[1] + m % walk[0] * walk[2], and for each r below walk[6]
           r // walk[3] * walk[4] + r % walk[3] * walk[5] more; then how many of them share a head of keys
    """
    assert form.bias is not None
    dtype, width = form.dtype, form.width
    product, finish = score_product(dtype, width), result_storer(form.bias, 1, TILE)
    of_head, facts_of, reached = sizes_here(form.ragged), row_facts(form), reach()
    cap = cap_scores(form.capped)
    weights_of, slopes = weigh(form.masked, form.bias, OWN_ROWS, OWN_COLUMNS), differentiate(False, OWN_ROWS)
    logs_of, read_four, sum_up = log_sums(), fragment(1, EACH, 0), row_deltas(dtype)
    start, both = zeros(EACH * EACH), zip_tiles(EACH * EACH, lambda x, y, env: x + y)

    def kernel(
        dout, q, k, v, out, lse, mask, lengths, bias, dbias, sizes, grid, limits, scales, steps, bias_steps, walk
    ):  # fmt: skip
        stage = cuda.shared.array(STAGE, float32, ALIGNMENT)
        partial = cuda.shared.array(THREADS, float32)
        shared_delta = cuda.shared.array(TILE, float32, ALIGNMENT)
        thread = int32(cuda.threadIdx.x)
        matrix, tile, part = place(sizes, grid[0], grid[1])
        rows, keys, d, dv = sizes[0], sizes[1], sizes[5], sizes[6]
        first, key = tile * TILE, int32(part * TILE)
        if matrix < sizes[4] and first < rows and key < keys:
            row, left, acc = int32(first + thread // SIDE * EACH), int32(rows - first), start
            begin = matrix // walk[0] * walk[1] + matrix % walk[0] * walk[2]
            for r in range(walk[6]):
                head = int32(begin + r // walk[3] * walk[4] + r % walk[3] * walk[5])
                here = of_head(sizes, lengths, head)
                low, high = reached(first, rows, here, limits)
                if low < key + TILE and high >= key:
                    k_left, from_rows = int32(here[7] - key), np.int64(head) * rows
                    row_at, key_at = from_rows + first, np.int64(head // walk[7]) * keys + key
                    sum_up(dout, out, (row_at, left, dv), partial, shared_delta, thread)
                    own_delta = read_four(shared_delta, thread // SIDE * EACH)
                    s = product(q, k, (row_at * d, key_at * d, left, k_left), d, stage, thread)
                    g = product(dout, v, (row_at * dv, key_at * dv, left, k_left), dv, stage, thread)
                    own_lse = logs_of(row, (lse, from_rows, rows))
                    facts = facts_of(row, head, here, sizes, limits, steps, bias_steps)
                    env = (int32(key + thread % SIDE * EACH), mask, steps, bias, bias_steps)
                    p = weights_of(cap(s, scales), own_lse, facts, env)
                    acc = both(acc, slopes(p, s, g, own_delta, scales[1]), ())
            to = (np.int64(matrix) * rows + first) * keys + key
            finish(acc, (dbias, to, left, int32(keys - key), keys), thread)

    kernel.__name__ = f"attention_dbias{form}"
    kernel.blocks_per_sm = BLOCKS_PER_SM
    return kernel
