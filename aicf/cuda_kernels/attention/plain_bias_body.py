"""The gradient of attention's bias in f32 on CUDA cores: a tile of it is one block's, which adds up what heads have. No atomics."""

from __future__ import annotations

import functools
from collections.abc import Callable

import numpy as np

from ..dsl import cuda, float32, int32
from ..tiles.fragment import fragment
from ..tiles.register_tile import zip_tiles
from ..tiles.tile import zeros
from .plain_body import place
from .plain_grad_body import differentiate, log_sums, row_deltas, weigh
from .tile_products import (
    ALIGNMENT,
    BLOCKS_PER_SM,
    EACH,
    OWN_COLUMNS,
    OWN_ROWS,
    SIDE,
    STAGE,
    THREADS,
    TILE,
    AttentionForm,
    cap_scores,
    key_bounds,
    mask_rows,
    reach,
    result_storer,
    score_product,
    sizes_here,
)


@functools.cache
def bias_gradient(form: AttentionForm) -> Callable[..., None]:
    """A block per tile of 64 queries and 64 keys of a matrix of the bias; heads are query heads here, one of `sizes`' groups each.

    walk   of query heads that matrix m is of: m // walk[0] * walk[1] + m % walk[0] * walk[2], and for each r below walk[6]
           r // walk[3] * walk[4] + r % walk[3] * walk[5] more; then how many of them share a head of keys
    """
    assert form.bias is not None
    dtype, width = form.dtype, form.width
    product, finish = score_product(dtype, width), result_storer(form.bias, 1, TILE)
    cap, bounds, reached = cap_scores(form.capped), key_bounds(), reach()
    rows_of_mask, rows_of_bias, of_head = mask_rows(form.masked), mask_rows(True), sizes_here(form.ragged)
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
                    lows, highs = bounds(row, (here, limits))
                    masks = rows_of_mask(row, (head, sizes, steps))
                    biases = rows_of_bias(row, (head, sizes, bias_steps))
                    env = (int32(key + thread % SIDE * EACH), mask, steps, bias, bias_steps)
                    p = weights_of(cap(s, scales), own_lse, lows, highs, masks, biases, env)
                    acc = both(acc, slopes(p, s, g, own_delta, scales[1]), ())
            to = (np.int64(matrix) * rows + first) * keys + key
            finish(acc, (dbias, to, left, int32(keys - key), keys), thread)

    kernel.__name__ = f"attention_dbias{form}"
    kernel.blocks_per_sm = BLOCKS_PER_SM
    return kernel
