"""Attention in f32 on CUDA cores: a block for each tile of queries goes over tiles of keys with a running softmax."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import numpy as np

from ...types import DType, f32
from ..dsl import cuda, device, float32, int32
from ..tiles.element import putter
from ..tiles.fragment import fragment
from ..tiles.register_tile import unrolled
from ..tiles.tile import zeros
from .masks import NOTHING, sizes_here
from .plain_tiles import (
    ALIGNMENT,
    BLOCKS_PER_SM,
    EACH,
    LINE,
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
    scale_rows,
    score_product,
    visible,
    weight_storer,
    weighted_sum,
)

QUARTERS = THREADS // TILE  # threads that share a row of weights
ZERO, ONE = np.float32(0), np.float32(1)


def _place(sizes, tiles, parts):
    """Of a block: head of keys, tile, which of the result's columns. Late tiles, which causal masks leave the most keys, come first."""
    block = int32(cuda.blockIdx.x)
    tile = block // parts % tiles
    return int32(block // (parts * tiles)), int32(tiles - 1 - tile), int32(block % parts)


place = device(_place)


@functools.cache
def hide_scores(masked: bool, bias: DType | None) -> Any:
    """`hide(scores, row facts, (first key, mask, steps, bias, its steps))`: what softmax sees, -inf of masked keys."""
    seen, plus = visible(masked), plus_bias(bias)

    def hide(score, low, high, mask_row, bias_row, column, env):
        if seen(env[0] + column, low, high, mask_row, (env[1], env[2])):
            return plus(score, bias_row, env[0] + column, (env[3], env[4]))
        return NOTHING

    picks = (tuple(range(EACH * EACH)), OWN_ROWS, OWN_ROWS, OWN_ROWS, OWN_ROWS)
    run = unrolled(hide, picks, tuple((column,) for column in OWN_COLUMNS), "float32")
    return device(lambda scores, f, env: run((scores, f[0], f[1], f[2], f[3]), env))


@functools.cache
def running_softmax() -> Any:
    """`step(weights, partial, factors, thread, most, total)`: scores in `weights` become exp(score - maximum of all so far).

    most, total  the maximum before, and this thread's part of the sum of weights; what they are now is returned
    factors      for each row, what sums of weights from before are to be multiplied by

    A NaN among the scores is none of the maxima, and makes its row's sum NaN.
    """
    own = TILE // QUARTERS

    def step(weights, partial, factors, thread, most, total):
        row, quarter = thread % TILE, thread // TILE
        begin = quarter * own * LINE + row
        high = most
        for i in range(own):
            x = weights[begin + i * LINE]
            high = x if x > high else high
        partial[thread] = high
        cuda.syncthreads()
        for i in range(QUARTERS):
            x = partial[row + i * TILE]
            high = x if x > high else high
        shift = high if high > NOTHING else ZERO
        factor = float32(math.exp(most - shift))
        total = total * factor
        for i in range(own):
            e = float32(math.exp(weights[begin + i * LINE] - shift))
            weights[begin + i * LINE] = e
            total += e
        if quarter == 0:
            factors[row] = factor
        cuda.syncthreads()
        return high, total

    return device(step)


@functools.cache
def forward(form: PlainForm) -> Callable[..., None]:
    """A block per tile of 64 queries and `columns` columns of the result.

    For each tile of 64 keys: q kᵀ, of slices in shared memory; scores, as weights, in shared memory; and weights times v in registers,
    which are multiplied by what the maximum has grown by. Limit: reads of shared memory beside the multiply-adds.
    """
    dtype, width, columns = form.dtype, form.width, form.columns
    product, sums = score_product(dtype, width), weighted_sum(dtype, width, columns)
    store, finish, put = weight_storer(), result_storer(dtype, width, columns), putter(f32)
    cap, hide, softmax = cap_scores(form.capped), hide_scores(form.masked, form.bias), running_softmax()
    of_head, facts_of, reached = sizes_here(form.ragged), row_facts(form), reach()
    start, scale, read_four = zeros(EACH * columns // SIDE), scale_rows(columns), fragment(1, EACH, 0)

    def kernel(q, k, v, mask, lengths, bias, out, lse, sizes, grid, limits, scales, steps, bias_steps):
        weights = cuda.shared.array(WEIGHTS, float32, ALIGNMENT)
        stage = cuda.shared.array(STAGE, float32, ALIGNMENT)
        partial = cuda.shared.array(THREADS, float32)
        factors = cuda.shared.array(TILE, float32, ALIGNMENT)
        thread = int32(cuda.threadIdx.x)
        head, tile, part = place(sizes, grid[0], grid[1])
        keys, d, dv = sizes[1], sizes[5], sizes[6]
        rows, first = sizes[0] * sizes[3], tile * TILE
        if head < sizes[4] and first < rows:
            here = of_head(sizes, lengths, head)
            row, left = int32(first + thread // SIDE * EACH), int32(rows - first)
            from_q, from_k = (np.int64(head) * rows + first) * d, np.int64(head) * keys
            column = part * columns
            facts = facts_of(row, head, here, sizes, limits, steps, bias_steps)
            low, high = reached(first, rows, here, limits)
            acc, most, total = start, NOTHING, ZERO
            key = int32(low // TILE * TILE)
            while key <= high:
                k_left = int32(here[7] - key)
                scores = product(q, k, (from_q, (from_k + key) * d, left, k_left), d, stage, thread)
                mine = int32(key + thread % SIDE * EACH)
                env = (mine, mask, steps, bias, bias_steps)
                store(weights, thread, hide(cap(scores, scales), facts, env))
                most, total = softmax(weights, partial, factors, thread, most, total)
                acc = scale(acc, read_four(factors, thread // SIDE * EACH))
                values = (from_k + key) * dv + column, k_left, dv - column
                acc = sums(acc, weights, v, values, dv, stage, thread)
                key += TILE
            partial[thread] = total
            cuda.syncthreads()
            if thread < TILE:
                for i in range(1, QUARTERS):
                    total += partial[thread + i * TILE]
                factors[thread] = ONE / total if total != ZERO else ZERO
                if part == 0 and thread < left:
                    logarithm = most + float32(math.log(total)) if total != ZERO else NOTHING
                    put(lse, np.int64(head) * rows + first + thread, logarithm)
            cuda.syncthreads()
            acc = scale(acc, read_four(factors, thread // SIDE * EACH))
            to = (np.int64(head) * rows + first) * dv + column
            finish(acc, (out, to, left, dv - column, dv), thread)

    kernel.__name__ = f"attention{form}"
    kernel.blocks_per_sm = BLOCKS_PER_SM
    return kernel
