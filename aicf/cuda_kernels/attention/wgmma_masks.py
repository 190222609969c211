"""What hides scores on Hopper: positions; and what is added to those of keys, the same for all queries: a bias of keys, or a mask of them, of each
batch entry or of each query head.

A warp of the producer's warpgroup, which has nothing to do otherwise, brings the latter beside a tile of keys: f32 in powers of two, -inf where a mask
hides the key. So consumers need not know what types and steps there were. A bias of f32's lowest number stays finite: keys that all have it share a query's
weights. The lse of such a query tells no weights any more: one below FAINT, if it is not -inf, is told as that, which leaves none in the gradient.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ...types import bool_, f32
from ..dsl import cuda, device, int32, uint32
from ..hopper.ring import advancer
from ..ptx import arrive, store_shared, wait_phase
from ..tiles.element import getter
from ..tiles.layout import Layout
from .masks import LOG2E, NOTHING, mask_starts
from .wgmma_tiles import KEYS, WgmmaForm, in_turn, key_tiles

SCORES = Layout(64, KEYS, warps=4)
BYTES = 4 * KEYS  # of a stage
WARP = 1  # of the producer's warpgroup
LOWEST, HIGHEST = np.finfo(np.float32).min, np.finfo(np.float32).max
FAINT = np.float32(-(2.0**17))  # f32 has 1/64 there: in powers of two weights are off by one in a hundred
ZERO = np.float32(0)


# --- positions ----------------------------------------------------------------------------------------------------------


def limits_of() -> Any:
    """`of(row, key, column, sizes)`: for rows `row` and the eighth after it, the first key they may attend to and the one behind the last,
    counted from key `key` and the thread's column."""

    def of(row, key, column, sizes):
        keys, at = sizes[1], int32(row + sizes[1] - sizes[0])
        from_ = int32(key + column)
        low, high = int32(at - sizes[7]), int32(at + sizes[6] + 1)
        lows = int32(low - from_), int32(low + 8 - from_)
        return lows, (int32(min(high, keys) - from_), int32(min(int32(high + 8), keys) - from_))

    return device(of)


# --- keys ---------------------------------------------------------------------------------------------------------------


def key_starts(form: WgmmaForm) -> Any:
    """`of(head, sizes, added)`: the elements of mask and bias that a query head's keys begin at. `added`: pointers to them, none or one each; steps of
    each, as `mask_rows` has them."""
    starts = mask_starts(form)

    def of(head, sizes, added):
        own = sizes[0], sizes[1], sizes[2], int32(1)  # query heads, each by itself
        return starts(int32(head), own, added[2], added[3])

    return device(of)


def of_key(form: WgmmaForm, behind_lse: bool = False) -> Any:
    """`of(key, keys, starts, added)`: what is added to the scores of a key, in powers of two; behind the last key, what that one has.

    behind_lse  a bias that is NaN or +inf is 0 or the greatest number: the lse of queries that meet it is NaN, and others must not
    """
    masked, biased = form.masked, form.bias is not None
    get, get_bias = getter(bool_), getter(form.bias or f32)

    def of(key, keys, starts, added):
        k, x = np.int64(min(key, keys - 1)), ZERO
        if biased:
            natural = get_bias(added[1][0], starts[1] + k * added[3][7])
            x = natural * LOG2E
            if x < LOWEST and natural >= LOWEST:
                x = LOWEST
            if x > HIGHEST and (behind_lse or natural <= HIGHEST):
                x = HIGHEST
            if behind_lse and x != x:
                x = ZERO
        if masked:
            x = x if get(added[0][0], starts[0] + k * added[2][7]) != 0 else NOTHING
        return x

    return device(of)


def bringer(form: WgmmaForm, plan: Any, rows: int, walk: Any, tile_at: Any) -> Any:
    """`bring(base, sizes, added)`: a warp leaves what is added to the keys of each tile, in a stage of the keys' ring, for `rows` queries.

    Each lane tells for itself that its four are there, as each thread does that it has read its own: nothing else orders what threads write and read.
    Of 16 keys first those that a thread's scores are of: numbers 0, 1, 8, 9, then 2, 3, 10, 11, …
    """
    starts_of, read, turn, tiles_of_keys = key_starts(form), of_key(form), in_turn(), key_tiles(rows)
    wait, tell, store, next_stage = wait_phase(), arrive(), store_shared(), advancer(plan.stages)
    full, empty, to = plan.k_ring.full, plan.k_ring.empty, plan.added

    def bring(base, sizes, added):
        lane = int32(int32(cuda.threadIdx.x) & 31)
        of_tile = int32((lane >> 2) * 16 + (lane & 3) * 2)
        own = uint32(base + uint32(to) + uint32(lane) * uint32(16))
        query_tiles, tiles = walk(sizes)
        block, blocks = uint32(cuda.blockIdx.x), uint32(cuda.gridDim.x)
        stage, phase, round, tile = uint32(0), uint32(1), uint32(0), block
        while tile < tiles:
            first, head = tile_at(tile, query_tiles, sizes)
            starts = starts_of(head, sizes, added)
            low, high = tiles_of_keys(first, sizes)
            key = int32(int32(high * uint32(KEYS)) + of_tile)
            for _ in range(int32(high - low + uint32(1))):
                a, b = read(key, sizes[1], starts, added), read(int32(key + 1), sizes[1], starts, added)
                c = read(int32(key + 8), sizes[1], starts, added)
                d = read(int32(key + 9), sizes[1], starts, added)
                ready = uint32(base + uint32(8) * stage)
                wait(uint32(ready + uint32(empty)), phase)
                store(uint32(own + stage * uint32(BYTES)), a, b, c, d)
                tell(uint32(ready + uint32(full)))
                stage, phase = next_stage(stage, phase)
                key = int32(key - KEYS)
            round = uint32(round + uint32(1))
            tile = turn(round, block, blocks)

    return device(bring)


def told() -> Any:
    """`of(lse)`: as it is told: FAINT where it is less, but for -inf."""
    return device(lambda lse: FAINT if lse < FAINT and lse > NOTHING else lse)
