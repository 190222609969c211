"""What attention's kernels on CUDA cores are made of: products of tiles through shared memory, and where queries stand.

A block has SIDE x SIDE threads and computes scores of TILE x TILE, of which a thread has 4 x 4: rows 4 ty to 4 ty + 3, columns 4 tx to
4 tx + 3. Scores become weights, which lie in shared memory with a line for each column of scores, and multiply the rows of a
second matrix. Column 4 tx + j has line 16 j + tx: so a warp's vector stores of lines hit all banks.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...types import DType, bool_
from ..dsl import SIMULATED, cuda, device, float32, int32
from ..tiles.element import getter
from ..tiles.fragment import Fragment, outer
from ..tiles.register_tile import map_tile, unrolled
from ..tiles.tile import each, permute, put_run, put_runs, runs, zeros
from .masks import AttentionForm, mask_rows, of_four, query_of

TILE = 64  # queries, or keys
SIDE, EACH = 16, 4
THREADS = SIDE * SIDE
DEPTH = 32  # of d, in shared memory at a time
LINE = TILE + EACH  # neighbouring lines lie 4 banks apart, and are aligned to 16 bytes
WEIGHTS, HALF = TILE * LINE, DEPTH * LINE  # f32 in shared memory
STAGE = 2 * HALF
UNROLLED = 128  # multiply-adds of a thread between two branches
ALIGNMENT = None if SIMULATED else 16
BLOCKS_PER_SM = 1  # 130 to 220 registers of a thread; with 128 some forms spill
COLUMNS = 64, 128  # configs: columns of a block's accumulators

OWN_ROWS = tuple(
    i // EACH for i in range(EACH * EACH)
)  # of a thread's scores, the row and the column of each
OWN_COLUMNS = tuple(i % EACH for i in range(EACH * EACH))


@dataclass(frozen=True)
class PlainForm(AttentionForm):
    """columns  of the accumulators of a block: 64 or 128; wider results are several blocks'
    width    neighbours in a load or a store: 4 where every row is a multiple of them
    """

    columns: int
    width: int

    def __str__(self) -> str:
        return f"_{self.dtype}_{self.columns}_by{self.width}{self.features}"


# --- products -----------------------------------------------------------------------------------------------------------


@functools.cache
def score_product(dtype: DType, width: int) -> Any:
    """`product(a, b, rows, length, stage, thread)`: a thread's 4 x 4 of A Bᵀ, for TILE rows of both matrices, whose rows have this
    length and lie one behind the other.

    rows   (first element of A's tile, of B's, how many rows each has from there on): what is beyond reads as 0
    stage  STAGE f32 of shared memory, in which DEPTH columns of both are transposed at a time
    """
    across = DEPTH // width
    count, apart = DEPTH * TILE // (THREADS * width), THREADS // across

    def start(i, env):
        at, left, inside, length = env
        return at + np.int64(i * apart * length) if inside and i * apart < left else np.int64(-1)

    load, store = runs(dtype, count, width, start), put_runs(count, width, apart, LINE)
    part, together = Fragment(1, EACH, 0), UNROLLED // (EACH * EACH)
    multiply, nothing = outer(part, part, together, LINE, LINE), zeros(EACH * EACH)

    def product(a, b, rows, length, stage, thread):
        a_at, b_at, a_rows, b_rows = rows
        line, depth = thread // across, thread % across * width
        from_a, from_b = thread // SIDE * EACH, HALF + thread % SIDE * EACH
        put, offset = depth * LINE + line, np.int64(line * length + depth)
        scores, done = nothing, int32(0)
        while done < length:
            inside = done + depth < length
            x = load(a, (a_at + offset + done, a_rows - line, inside, length))
            y = load(b, (b_at + offset + done, b_rows - line, inside, length))
            cuda.syncthreads()
            store(stage, put, x)
            store(stage, HALF + put, y)
            cuda.syncthreads()
            for i in range(0, DEPTH, together):
                scores = multiply(scores, stage, stage, i * LINE + from_a, i * LINE + from_b)
            done += DEPTH
        return scores

    return device(product)


@functools.cache
def weight_storer() -> Any:
    """`store(weights, thread, tile)`: a thread's 4 x 4 as weights, between two barriers."""
    turn = permute(tuple(EACH * r + c for c in range(EACH) for r in range(EACH)))
    put = put_runs(EACH, EACH, SIDE * LINE, 1)

    def store(weights, thread, tile):
        cuda.syncthreads()
        put(weights, thread % SIDE * LINE + thread // SIDE * EACH, turn(tile))
        cuda.syncthreads()

    return device(store)


@functools.cache
def weighted_sum(dtype: DType, width: int, columns: int) -> Any:
    """`add(acc, weights, x, tile, length, stage, thread)`: acc + Wᵀ X, for the weights of a tile and `columns` columns of the rows of X
    that they are of. A thread has 4 rows and groups of 4 columns, 64 apart.

    tile   (X's first element in those columns, how many rows it has from there on, how many columns): what is beyond reads as 0
    length  of a row of X
    """
    lines, pitch, per_line = TILE * 64 // columns, columns + EACH, columns // width
    count, apart = lines * columns // (THREADS * width), THREADS // per_line

    def start(i, env):
        at, line, rows, inside, length = env
        line = line + i * apart
        row = line % SIDE * EACH + line // SIDE
        return at + np.int64(row) * length if inside and row < rows else np.int64(-1)

    load, store = runs(dtype, count, width, start), put_runs(count, width, apart * pitch, 1)
    ours, theirs = Fragment(1, EACH, 0), Fragment(columns // TILE, EACH, TILE)
    together = UNROLLED // (EACH * theirs.count)
    multiply = outer(ours, theirs, together, LINE, pitch)

    def add(acc, weights, x, tile, length, stage, thread):
        at, rows, across = tile
        line, column = thread // per_line, thread % per_line * width
        done = int32(0)
        while done < TILE:
            taken = load(x, (at + column, done + line, rows, column < across, length))
            cuda.syncthreads()
            store(stage, line * pitch + column, taken)
            cuda.syncthreads()
            from_weights, from_stage = done * LINE + thread // SIDE * EACH, thread % SIDE * EACH
            for i in range(0, lines, together):
                acc = multiply(acc, weights, stage, from_weights + i * LINE, from_stage + i * pitch)
            done += lines
        return acc

    return device(add)


@functools.cache
def result_storer(dtype: DType, width: int, columns: int) -> Any:
    """`store(acc, (pointer, at, rows, across, length), thread)`: accumulators to a matrix in memory, as `weighted_sum` has them."""
    put, each_row = put_run(dtype, width), columns // SIDE

    def store_run(i, run, env):
        pointer, at, rows, across, length = env
        row, column = i // each_row, i % each_row // EACH * TILE + i % EACH
        if row < rows and column < across:
            put(pointer, at + np.int64(row) * length + column, run)

    put_all = each(EACH * each_row, width, store_run)

    def store(acc, tile, thread):
        pointer, at, rows, across, length = tile
        row, column = thread // SIDE * EACH, thread % SIDE * EACH
        put_all(acc, (pointer, at + np.int64(row) * length + column, rows - row, across - column, length))

    return device(store)


def scale_rows(columns: int) -> Any:
    """`scale(acc, factors)`: each of a thread's rows times a factor."""
    count = EACH * columns // SIDE
    places = tuple(range(count)), tuple(i * SIDE // columns for i in range(count))
    scale = unrolled(lambda x, factor, env: x * factor, places, (), "")
    return device(lambda acc, factors: scale((acc, factors), ()))


# --- masks: `sizes`, `limits` and `here` are those of masks.py -----------------------------------------------------------


def _lowest(row, env):
    here, limits = env
    return int32(max(query_of(row, here) + here[1] - here[0] - limits[1], 0))


def _highest(row, env):
    here, limits = env
    return int32(min(query_of(row, here) + here[1] - here[0] + limits[0], here[7] - 1))


def row_facts(form: PlainForm) -> Any:
    """`of(row, head, here, sizes, limits, steps, bias_steps)`: of four rows from this one on: the first keys that they may attend to, the last
    ones, and where their elements of the mask and of the bias begin."""
    lowest, highest = of_four(_lowest), of_four(_highest)
    rows_of_mask, rows_of_bias = mask_rows(form.masked), mask_rows(form.bias is not None)

    def of(row, head, here, sizes, limits, steps, bias_steps):
        lows, highs = lowest(row, (here, limits)), highest(row, (here, limits))
        return (
            lows,
            highs,
            rows_of_mask(row, (head, sizes, steps)),
            rows_of_bias(row, (head, sizes, bias_steps)),
        )

    return device(of)


def reach() -> Any:
    """`of(first, rows, here, limits)`: the first key that some row of a tile may attend to, and the last one."""
    lowest, highest = device(_lowest), device(_highest)

    def of(first, rows, here, limits):
        last = min(first + TILE, rows) - 1
        if first // here[0] != last // here[0]:  # of several heads: a query of any place
            first, last = here[0] * 0, here[0] - 1
        return lowest(first, (here, limits)), highest(last, (here, limits))

    return device(of)


def visible(masked: bool) -> Any:
    """`seen(key, low, high, mask_row, (mask, steps))`: whether a row attends to a key."""
    if not masked:
        return device(lambda key, low, high, mask_row, env: low <= key and key <= high)
    get = getter(bool_)

    def seen(key, low, high, mask_row, env):
        if key < low or key > high:
            return False
        return get(env[0][0], mask_row + key * env[1][7]) != 0

    return device(seen)


def plus_bias(dtype: DType | None) -> Any:
    """`plus(score, bias_row, key, (bias, steps))`."""
    if dtype is None:
        return device(lambda score, bias_row, key, env: score)
    get = getter(dtype)
    return device(lambda score, bias_row, key, env: score + get(env[0][0], bias_row + key * env[1][7]))


def cap_scores(capped: bool) -> Any:
    """`cap(scores, (scale, softcap))`: products as scores."""
    if capped:
        return map_tile(EACH * EACH, lambda x, env: env[1] * float32(math.tanh(x * env[0] / env[1])))
    return map_tile(EACH * EACH, lambda x, env: x * env[0])
