"""A stable radix sort of indices, with where each of them was: passes over 8 bits, each a launch that counts and one that moves.

Counts are integers, added in shared memory: they are the same in whatever order threads come. Where an index goes is its digit's first
place, and behind it those of the same digit that stand before: of tiles and warps before its own, which were counted, of its warp in
earlier steps, and of lanes before its own, which read one another's digits. So nothing depends on time.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from ...types import DType, bool_, i32
from ..dsl import cuda, device, int32
from ..tiles.element import getter, putter

BITS = 8
DIGITS = BLOCK = 256  # a thread for each digit
LANES, WARPS = 32, 8
PLACES = WARPS * DIGITS
NONE, NOTHING, ONE = np.int32(-1), np.int32(0), np.int32(1)
BEYOND = np.int32(DIGITS)  # no digit
NEAR = 4  # loads under way at once


@functools.cache
def _keys(indices: DType | None) -> Any:
    """`key(source, i, size, end)`: the i-th index, from the start; `size` for what is none; below 0 from `end` on. None: of an earlier pass."""
    get = getter(indices or i32)

    def key(source, i, size, end):
        if i >= end:
            return NONE
        index = np.int64(get(source, i))
        if index < 0:
            index += size
        return int32(index if index >= 0 and index < size else size)

    return device(key)


@functools.cache
def _counter() -> Any:
    """`count(found, first, key, shift)`: one more of the key's digit, from found[first] on."""

    def count(found, first, key, shift):
        if key >= 0:
            cuda.atomic.add(found, first + ((key >> shift) & np.int32(DIGITS - 1)), ONE)

    return device(count)


@functools.cache
def count_digits(indices: DType | None) -> Callable[..., None]:
    """counts[tile * 256 + digit] of each tile's keys. The first pass also clears `flags`, a byte for each row of the result, by as many
    blocks as there are, of which those behind the last tile do nothing else."""
    key, count, put, clear, first_pass = (
        _keys(indices),
        _counter(),
        putter(i32),
        putter(bool_),
        indices is not None,
    )

    def kernel(source, counts, flags, many, size, shift, tile, tiles):
        found = cuda.shared.array(DIGITS, int32)
        thread, block = np.int64(cuda.threadIdx.x), np.int64(cuda.blockIdx.x)
        if first_pass:
            i = block * BLOCK + thread
            while i < size:
                clear(flags, i, False)
                i += np.int64(cuda.gridDim.x) * BLOCK
        if block < tiles:
            found[thread] = NOTHING
            cuda.syncthreads()
            i, end = block * tile + thread, min(many, (block + 1) * tile)
            while i < end:
                a, b = key(source, i, size, end), key(source, i + BLOCK, size, end)
                c, d = key(source, i + 2 * BLOCK, size, end), key(source, i + 3 * BLOCK, size, end)
                count(found, 0, a, shift)
                count(found, 0, b, shift)
                count(found, 0, c, shift)
                count(found, 0, d, shift)
                i += NEAR * BLOCK
            cuda.syncthreads()
            put(counts, block * DIGITS + thread, found[thread])

    kernel.__name__ = "count_digits" + "_first" * first_pass
    return kernel


@functools.cache
def _places(indices: DType | None) -> Any:
    """`find(source, counts, shared, sums, first, end, size, shift, tiles)`: shared[warp * 256 + digit] becomes the place of the first of
    this digit that the warp has, whose keys are `first` to `end`."""
    key, count, get = _keys(indices), _counter(), getter(i32)

    def counted(counts, t, tiles, digit):
        return get(counts, t * DIGITS + digit) if t < tiles else NOTHING

    counted = device(counted)

    def find(source, counts, shared, sums, first, end, size, shift, tiles):
        thread, block = np.int64(cuda.threadIdx.x), np.int64(cuda.blockIdx.x)
        lane, warp = thread % LANES, thread // LANES
        for w in range(WARPS):
            shared[w * DIGITS + thread] = NOTHING
        cuda.syncthreads()
        i = first + lane
        while i < end:
            a, b = key(source, i, size, end), key(source, i + LANES, size, end)
            c, d = key(source, i + 2 * LANES, size, end), key(source, i + 3 * LANES, size, end)
            count(shared, warp * DIGITS, a, shift)
            count(shared, warp * DIGITS, b, shift)
            count(shared, warp * DIGITS, c, shift)
            count(shared, warp * DIGITS, d, shift)
            i += NEAR * LANES
        total, below, t = NOTHING, NOTHING, np.int64(0)
        while t < tiles:  # this thread's digit
            a, b = counted(counts, t, tiles, thread), counted(counts, t + 1, tiles, thread)
            c, d = counted(counts, t + 2, tiles, thread), counted(counts, t + 3, tiles, thread)
            below = int32(below + (a if t < block else NOTHING) + (b if t + 1 < block else NOTHING))
            below = int32(below + (c if t + 2 < block else NOTHING) + (d if t + 3 < block else NOTHING))
            total = int32(total + a + b + c + d)
            t += NEAR
        sums[thread] = total
        apart = 1
        cuda.syncthreads()
        while apart < DIGITS:  # what stands before, digits' sums included
            lesser = sums[thread - apart] if thread >= apart else NOTHING
            cuda.syncthreads()
            sums[thread] = int32(sums[thread] + lesser)
            cuda.syncthreads()
            apart *= 2
        at = int32(sums[thread] - total + below)
        for w in range(WARPS):
            own = shared[w * DIGITS + thread]
            shared[w * DIGITS + thread] = at
            at = int32(at + own)
        cuda.syncthreads()

    return device(find)


@functools.cache
def move_by_digit(indices: DType | None) -> Callable[..., None]:
    """Keys and where they were (`positions`; in the first pass their own number) to their places by this digit. The first pass also
    sets the flags of rows that get something: whoever sets one writes the same."""
    key, find, get, put, mark = _keys(indices), _places(indices), getter(i32), putter(i32), putter(bool_)
    first_pass = indices is not None

    def kernel(source, positions, counts, keys, moved, flags, many, size, shift, tile, tiles):
        shared = cuda.shared.array(PLACES, int32)
        sums = cuda.shared.array(BLOCK, int32)  # not in one line: the simulator knows arrays by their lines
        thread = np.int64(cuda.threadIdx.x)
        lane, warp = thread % LANES, thread // LANES
        share = tile // WARPS
        first = np.int64(cuda.blockIdx.x) * tile + warp * share
        end = min(many, first + share)
        find(source, counts, shared, sums, first, end, size, shift, tiles)
        i = first + lane
        upcoming = key(source, i, size, end)
        for _ in range(share // LANES):
            this, upcoming = upcoming, key(source, i + LANES, size, end)
            digit = int32((this >> shift) & np.int32(DIGITS - 1)) if this >= 0 else BEYOND
            sums[thread] = digit
            cuda.syncthreads()
            before, same = NOTHING, NOTHING
            for other in range(LANES):
                if sums[warp * LANES + other] == digit:
                    same = int32(same + ONE)
                    if other < lane:
                        before = int32(before + ONE)
            at = shared[warp * DIGITS + digit] if this >= 0 else NOTHING
            cuda.syncthreads()
            if this >= 0:
                if before == same - 1:  # the last of them
                    shared[warp * DIGITS + digit] = int32(at + same)
                put(keys, at + before, this)
                if first_pass:
                    put(moved, at + before, int32(i))
                    if this < size:
                        mark(flags, this, True)
                else:
                    put(moved, at + before, get(positions, i))
            i += LANES

    kernel.__name__ = "move_by_digit" + "_first" * first_pass
    return kernel
