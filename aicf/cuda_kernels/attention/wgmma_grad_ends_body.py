"""Before and after attention_grad's main kernel on Hopper: statistics of queries, and sums of dQ as rows of halves. See wgmma_grad_body.py."""

from __future__ import annotations

import functools
from collections.abc import Callable

import numpy as np

from ...types import DType, f32
from ..dsl import cuda, device, int32, uint32
from ..ptx import global_address, pack_halves, store_words
from ..tiles.element import getter, putter
from ..tiles.tile import get_run
from .masks import LOG2E, NOTHING
from .wgmma_grad_tiles import GROUP
from .wgmma_masks import FAINT
from .wgmma_tiles import WgmmaTile

THREADS = 256
EVERYONE = 0xFFFFFFFF
NONE = (np.float32(0),) * 4
ZERO = np.float32(0)


@functools.cache
def before(dtype: DType, tile: WgmmaTile, of_keys: bool) -> Callable[..., None]:
    """`kernel(out, dout, lse, stats, flags, counter, sizes, out_steps, dout_steps)`: d / 8 threads to a query, whole tiles of queries.

    of_keys  something is added to the scores of keys: queries without any that counts may have an lse other than -inf: below FAINT
    stats  by query head and tile of queries: -lse log2(e) of its queries, -inf of one that is not there or has no keys, then -delta. Of 16 queries
           first those that a thread of the main kernel needs together: numbers 0, 1, 8, 9, then 2, 3, 10, 11, …
    flags  0 for each tile; and so the counter
    sizes  queries, query heads of a batch entry, all query heads, dv
    steps  elements from one query, head and batch entry to the next
    """
    d, queries, each = tile.d, tile.queries, tile.d // 8
    read = get_run(dtype, 8)
    get, put = getter(f32), putter(f32)
    is_none = device((lambda log: log < FAINT) if of_keys else (lambda log: log == NOTHING))
    dot = device(
        lambda x, y: x[0] * y[0] + x[1] * y[1] + x[2] * y[2] + x[3] * y[3] + x[4] * y[4] + x[5] * y[5] + x[6] * y[6] + x[7] * y[7]
    )  # fmt: skip

    def kernel(out, dout, lse, stats, flags, counter, sizes, out_steps, dout_steps):
        thread = int32(cuda.threadIdx.x)
        tiles = int32(uint32(sizes[0] + queries - 1) // uint32(queries))
        row = np.int64(cuda.blockIdx.x) * (THREADS // each) + thread // each
        tile, part = row // queries, thread % each * 8
        if tile < np.int64(tiles) * sizes[2]:
            head, i = int32(tile // tiles), int32(row - tile * queries)
            query = int32((tile - np.int64(head) * tiles) * queries + i)
            total = ZERO
            if query < sizes[0] and part < sizes[3]:
                batch = np.int64(head // sizes[1])
                own = np.int64(head) - batch * sizes[1]
                x = read(out, query * out_steps[0] + own * out_steps[1] + batch * out_steps[2] + part)
                y = read(dout, query * dout_steps[0] + own * dout_steps[1] + batch * dout_steps[2] + part)
                total = dot(x, y)
            apart = each // 2
            while apart > 0:
                total += cuda.shfl_xor_sync(EVERYONE, total, apart)
                apart //= 2
            if part == 0:
                log = get(lse, np.int64(head) * sizes[0] + query) if query < sizes[0] else NOTHING
                within = i % GROUP
                to = (
                    tile * (2 * queries)
                    + i
                    - within
                    + (within >> 1 & 3) * 4
                    + (within >> 3) * 2
                    + (within & 1)
                )
                put(stats, to, NOTHING if is_none(log) else -log * LOG2E)
                put(stats, to + queries, -total)
                if i == 0:
                    flags[tile] = 0
                    if tile == 0:
                        counter[0] = 0

    kernel.__name__ = f"attention_grad_before_{dtype}_d{d}" + "_of_keys" * of_keys
    kernel.blocks_per_sm = 4
    return kernel


@functools.cache
def after(dtype: DType, tile: WgmmaTile) -> Callable[..., None]:
    """`kernel(sums, dq, sizes, steps, scale)`: a block of 256 threads to a tile of queries.

    Sums are as a thread of the main kernel has them: 4 at a time, two columns of a row and of the eighth row after it. Neighbouring lanes
    exchange words, so that each writes 8 bytes of a row, and four of them a whole sector.
    sizes  queries, keys, query heads of a batch entry, tiles of queries of a head, columns, keys ahead and behind
    """
    d, queries, wide = tile.d, tile.queries, tile.d > 64
    read, pack, store, at_of = get_run(f32, 4), pack_halves(dtype), store_words(2), global_address()

    def swap(a, b, odd):
        """Of two words of each lane: the even one has both lanes' a, the odd one both lanes' b."""
        got = uint32(cuda.shfl_xor_sync(EVERYONE, int32(a if odd else b), 1))
        return (got, b) if odd else (a, got)

    swapped = device(swap)

    def kernel(sums, dq, sizes, steps, scale):
        thread = int32(cuda.threadIdx.x)
        tile = int32(cuda.blockIdx.x)
        head = int32(uint32(tile) // uint32(sizes[3]))
        first = int32((tile - head * sizes[3]) * queries)
        half, member = thread >> 7, thread & 127
        lane = member & 31
        odd = lane & 1
        row = int32(first + (member >> 5) * 16 + (lane >> 2))
        column = int32(odd * 8 + (lane >> 1 & 1) * 4)
        if wide:
            column = int32(column + half * 64)
        else:
            row = int32(row + half * 64)
        batch = int32(uint32(head) // uint32(sizes[2]))
        base = np.int64(head - batch * sizes[2]) * steps[1] + np.int64(batch) * steps[2]
        # the last query of the tile attends to no key before the first one that there is
        nothing = first + queries - 1 + sizes[1] - sizes[0] + sizes[5] < 0
        at = np.int64(tile) * (queries * d) + half * (queries * d // 2) + member * 4
        for g in range(4):
            x, y = read(sums, at + g * 1024), read(sums, at + g * 1024 + 512)
            if nothing:  # no tile of keys has left sums
                x, y = NONE, NONE
            upper = swapped(pack(x[0] * scale, x[1] * scale), pack(y[0] * scale, y[1] * scale), odd)
            lower = swapped(pack(x[2] * scale, x[3] * scale), pack(y[2] * scale, y[3] * scale), odd)
            if column + g * 16 < sizes[4]:
                to = base + np.int64(row) * steps[0] + column + g * 16
                if row < sizes[0]:
                    store(at_of(dq, to), upper[0], upper[1])
                if row + 8 < sizes[0]:
                    store(at_of(dq, to + 8 * steps[0]), lower[0], lower[1])

    kernel.__name__ = f"attention_grad_after_{dtype}_d{d}"
    kernel.blocks_per_sm = 4
    return kernel
