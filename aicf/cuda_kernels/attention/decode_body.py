"""Attention of few queries over many keys: blocks share the keys of a head, and a second launch puts their sums together in order.

A group of lanes takes a key at a time: each has its part of the queries, of the key, of the value and of the sums. Rows are queries of all
heads that share the keys, so each key is read once for all of them.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...types import DType, f32
from ..dsl import cuda, device, float32, int32
from ..tiles.element import getter, putter
from ..tiles.register_tile import _joined, folded, map_tile, unrolled
from ..tiles.tile import each, runs, zeros
from .masks import NOTHING, AttentionForm, sizes_here

THREADS = 128
ZERO = np.float32(0)


@dataclass(frozen=True)
class DecodeTile:
    """A config of the kernel.

    rows       of a block
    keys       of a group of lanes at a time: what registers leave room for
    bandwidth  the share that it reaches, by the loads that are under way at once
    blocks_per_sm  that registers leave room for: 128 of a thread, or up to 255
    """

    rows: int
    keys: int
    bandwidth: float
    blocks_per_sm: int


TILES = (
    DecodeTile(1, 4, 0.8, 4),
    DecodeTile(2, 4, 0.75, 4),
    DecodeTile(4, 2, 0.65, 2),
    DecodeTile(8, 1, 0.45, 2),
)


@dataclass(frozen=True)
class DecodeForm(AttentionForm):
    """What a kernel is specialised for, with a tile.

    lanes   of a warp that share a key, each with `chunks` runs of `width` of its elements
    """

    tile: DecodeTile
    lanes: int
    chunks: int
    width: int

    @property
    def rows(self) -> int:
        return self.tile.rows

    @property
    def keys(self) -> int:
        return self.tile.keys

    @property
    def each(self) -> int:
        """Elements of a lane."""
        return self.chunks * self.width

    @property
    def groups(self) -> int:
        return THREADS // self.lanes

    def __str__(self) -> str:
        return f"_{self.dtype}_{self.rows}x{self.lanes}x{self.each}_by{self.keys}{self.features}"


def _add(x, y):
    return x + y


def _greater(x, y):
    return x if x > y else y


@functools.cache
def row_loader(form: DecodeForm) -> Any:
    """`load(q, (first element, lane, d, rows left))`: a lane's part of each row; 0 beyond."""
    chunks, lanes, width = form.chunks, form.lanes, form.width

    def start(i, env):
        at, lane, d, left = env
        row, column = i // chunks, (i % chunks * lanes + lane) * width
        return at + np.int64(row * d + column) if row < left and column < d else np.int64(-1)

    return runs(form.dtype, form.rows * chunks, width, start)


@functools.cache
def key_loader(form: DecodeForm) -> Any:
    """`load(x, (first element, key, lane, d, last))`: a lane's part of `keys` keys, one group of lanes apart; 0 from `last` on."""
    chunks, lanes, width, groups = form.chunks, form.lanes, form.width, form.groups

    def start(i, env):
        at, key, lane, d, last = env
        key, column = key + i // chunks * groups, (i % chunks * lanes + lane) * width
        return at + np.int64(key) * d + column if key < last and column < d else np.int64(-1)

    return runs(form.dtype, form.keys * chunks, width, start)


def products_in_order(gathers: list[tuple[Any, ...]]) -> Any:
    """`add(sums, x, y)`: for each (numbers of sums, of x, of y) the products are added to the sums, one after the other."""
    if not gathers:
        return device(lambda sums, x, y: sums)
    add = unrolled(lambda s, x, y, env: s + x * y, tuple(map(tuple, gathers[0])), (), "float32")
    rest = products_in_order(gathers[1:])
    return device(lambda sums, x, y: rest(add((sums, x, y), ()), x, y))


@functools.cache
def score_sums(form: DecodeForm) -> Any:
    """`of(rows, keys)`: products of each row and each key, of all lanes of the group."""
    E, pairs = form.each, [(r, u) for r in range(form.rows) for u in range(form.keys)]
    every = range(len(pairs))
    add = products_in_order(
        [(every, [r * E + e for r, _ in pairs], [u * E + e for _, u in pairs]) for e in range(E)]
    )
    start, apart = zeros(len(pairs)), tuple(1 << n for n in range(form.lanes.bit_length() - 1))
    join = _joined(len(pairs), _add, apart)
    return device(lambda rows, keys: join(add(start, rows, keys)))


@functools.cache
def value_sums(form: DecodeForm) -> Any:
    """`add(acc, weights, values)`: acc + weight * value, a key after the other."""
    U, E, sums = form.keys, form.each, [(r, e) for r in range(form.rows) for e in range(form.each)]
    every = range(len(sums))
    return products_in_order(
        [(every, [r * U + u for r, _ in sums], [u * E + e for _, e in sums]) for u in range(U)]
    )


@functools.cache
def row_limits(form: DecodeForm, upper: bool) -> Any:
    """`of((first row, rows left, here, limits))`: the first key that each row may attend to, or the last."""
    picks = (tuple(range(form.rows)),)

    def one(x, row, env):
        first, left, here, limits = env
        place = int32((first + row) % here[0] + here[1] - here[0])
        if upper:
            return int32(min(place + limits[0], here[7] - 1)) if row < left else int32(-1)
        return int32(max(place - limits[1], 0))

    run, none = unrolled(one, picks, tuple((r,) for r in range(form.rows)), "int32"), zeros(form.rows)
    return device(lambda env: run((none,), env))


@functools.cache
def hide_scores(form: DecodeForm) -> Any:
    """`of(scores, lows, highs, (first key, softcap, last))`: -inf of keys that a row may not attend to, and from `last` on."""
    groups, capped = form.groups, form.capped
    by_row = tuple(r for r in range(form.rows) for _ in range(form.keys))

    def one(score, low, high, number, env):
        key = env[0] + number * groups
        if capped:
            score = env[1] * float32(math.tanh(score / env[1]))
        return score if low <= key and key <= high and key < env[2] else NOTHING

    picks = (tuple(range(len(by_row))), by_row, by_row)
    numbers = tuple((u,) for _ in range(form.rows) for u in range(form.keys))
    run = unrolled(one, picks, numbers, "float32")
    return device(lambda scores, lows, highs, env: run((scores, lows, highs), env))


def _weight(score, most, env):
    return float32(math.exp(score - (most if most > NOTHING else ZERO)))


@functools.cache
def partial_attention(form: DecodeForm) -> Callable[..., None]:
    """A block for each head of keys, tile of rows and share of the keys: sums that are not divided yet, the greatest score of each row and
    the sum of its weights."""
    R, U, E, lanes, groups = form.rows, form.keys, form.each, form.lanes, form.groups
    width, wide, room, numbers = form.width, form.lanes * form.each, THREADS * R * E, groups * R
    load_rows, load_keys, products = row_loader(form), key_loader(form), score_sums(form)
    lows_of, highs_of, hide = row_limits(form, False), row_limits(form, True), hide_scores(form)
    add_values = value_sums(form)
    of_head, put = sizes_here(form.ragged), putter(f32)
    scale_rows = map_tile(R * E, lambda x, env: x * env)
    of_row = tuple(tuple(range(r * U, (r + 1) * U)) for r in range(R))
    greatest, summed = folded(_greater, of_row), folded(_add, of_row)
    own, spread = tuple(range(R)), tuple(r for r in range(R) for _ in range(U))
    raised = unrolled(lambda x, y, env: x if x > y else y, (own, own), (), "float32")
    factors_of = unrolled(_weight, (own, own), (), "float32")
    weights_of = unrolled(_weight, (tuple(range(R * U)), spread), (), "float32")
    grown = unrolled(lambda total, factor, more, env: total * factor + more, (own, own, own), (), "float32")
    shrunk = unrolled(
        lambda a, factor, env: a * factor,
        (tuple(range(R * E)), tuple(r for r in range(R) for _ in range(E))),
        (),
        "float32",
    )
    nothing, none, start = (NOTHING,) * R, zeros(R), zeros(R * E)

    def keep_sum(i, run, env):
        shared, at, lane = env
        row, e = i // E, i % E
        shared[at + row * wide + (e // width * lanes + lane) * width + e % width] = run[0]

    def keep_number(i, run, env):
        if env[2] == 0:
            env[0][env[1] + i] = run[0]

    keep_sums, keep_numbers = each(R * E, 1, keep_sum), each(R, 1, keep_number)

    def kernel(q, k, v, lengths, sums, stats, sizes, grid, limits, scales):
        shared = cuda.shared.array(room, float32)
        peaks = cuda.shared.array(numbers, float32)
        totals = cuda.shared.array(numbers, float32)
        thread, block = int32(cuda.threadIdx.x), int32(cuda.blockIdx.x)
        tiles, splits = grid[0], grid[1]
        split, tile = int32(block % splits), int32(block // splits % tiles)
        head = int32(block // (splits * tiles))
        keys, d, rows = sizes[1], sizes[5], sizes[0] * sizes[3]
        if head < sizes[4]:
            here = of_head(sizes, lengths, head)
            lane, group = thread % lanes, thread // lanes
            first_row = int32(tile * R)
            left = int32(min(rows - first_row, R))
            begin = int32(max(here[1] - here[0] - limits[1], 0))
            exist = int32(here[7])
            share = int32((max(exist - begin, 0) + splits - 1) // splits)
            first = int32(begin + split * share)
            last = int32(min(first + share, exist))
            at_row = np.int64(head) * rows + first_row
            tile_of_q = scale_rows(load_rows(q, (at_row * d, lane, d, left)), scales[0])
            env = first_row, left, here, limits
            lows, highs = lows_of(env), highs_of(env)
            most, total, acc = nothing, none, start
            of_keys, key = np.int64(head) * keys * d, int32(first + group)
            done = first
            while done < last:
                one = load_keys(k, (of_keys, key, lane, d, last))
                other = load_keys(v, (of_keys, key, lane, d, last))
                scores = hide(products(tile_of_q, one), lows, highs, (key, scales[1], last))
                high = raised((most, greatest(scores)), ())
                factors, weights = factors_of((most, high), ()), weights_of((scores, high), ())
                total = grown((total, factors, summed(weights)), ())
                acc = add_values(shrunk((acc, factors), ()), weights, other)
                most = high
                key += groups * U
                done += groups * U
            keep_sums(acc, (shared, group * (R * wide), lane))
            keep_numbers(most, (peaks, group * R, lane))
            keep_numbers(total, (totals, group * R, lane))
            cuda.syncthreads()
            i = thread
            while i < left * d:
                row, column = i // d, i % d
                peak = NOTHING
                for g in range(groups):
                    x = peaks[g * R + row]
                    peak = x if x > peak else peak
                shift = peak if peak > NOTHING else ZERO
                made, weight = ZERO, ZERO
                for g in range(groups):
                    factor = float32(math.exp(peaks[g * R + row] - shift))
                    made += factor * shared[(g * R + row) * wide + column]
                    weight += factor * totals[g * R + row]
                to = (at_row + row) * splits + split
                put(sums, to * d + column, made)
                if column == 0:
                    put(stats, to * 2, peak)
                    put(stats, to * 2 + 1, weight)
                i += THREADS

    kernel.__name__ = f"attention_decode{form}"
    kernel.blocks_per_sm = form.tile.blocks_per_sm
    return kernel


@functools.cache
def joined_attention(dtype: DType) -> Callable[..., None]:
    """A block for each row: the sums of all its shares, in their order, divided; and its lse."""
    get, put, put_number = getter(f32), putter(dtype), putter(f32)

    def kernel(sums, stats, out, lse, rows, splits, d):
        row, thread = np.int64(cuda.blockIdx.x), int32(cuda.threadIdx.x)
        if row < rows:
            first, peak = row * splits, NOTHING
            for n in range(splits):
                x = get(stats, (first + n) * 2)
                peak = x if x > peak else peak
            shift = peak if peak > NOTHING else ZERO
            column = np.int64(thread)
            while column < d:
                made, weight = ZERO, ZERO
                for n in range(splits):
                    factor = float32(math.exp(get(stats, (first + n) * 2) - shift))
                    made += factor * get(sums, (first + n) * d + column)
                    weight += factor * get(stats, (first + n) * 2 + 1)
                put(out, row * d + column, made / weight if weight != ZERO else ZERO)
                if column == 0:
                    put_number(lse, row, peak + float32(math.log(weight)) if weight != ZERO else NOTHING)
                column += THREADS

    kernel.__name__ = f"attention_join_{dtype}"
    return kernel
