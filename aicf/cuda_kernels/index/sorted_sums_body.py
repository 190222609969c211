"""Sums of rows of updates that are sorted by the row of the result they are for.

Chunks of the sorted order are as long as each other, whatever is in them, and are added up by as many threads: a row that a chunk has
whole is written at once. Of a row that goes on in the next chunk each chunk leaves a partial sum, and a second launch adds these. All
is added in the order of positions within a chunk, and chunk after chunk; which chunks there are depends on sizes alone.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from ...types import DType, bool_, i32
from ..dsl import cuda, device
from ..rows.reduce_body import _shared_type
from ..tiles.element import getter, putter
from ..tiles.register_tile import zip_tiles
from ..tiles.tile import get_run, put_run

BLOCK = 256
NONE = np.int32(-1)
COLUMNS, LINES, LANES = 128, 8, 32  # of a block that adds partial sums; threads of it that share long rows
FEW = 16  # partial sums that one thread adds


def _load(dtype: DType, width: int) -> Any:
    if width > 1:
        return get_run(dtype, width)
    get = getter(dtype)
    return device(lambda pointer, i: (get(pointer, i),))


def _store(dtype: DType, width: int) -> Any:
    if width > 1:
        return put_run(dtype, width)
    put = putter(dtype)
    return device(lambda pointer, i, tile: put(pointer, i, tile[0]))


@functools.cache
def _known(read: Any) -> Any:
    """`key(keys, k, many)`: the k-th, or one that no row has."""

    def key(keys, k, many):
        return read(keys, k) if k >= 0 and k < many else NONE

    return device(key)


def _add(x, y, env):
    return x + y


@functools.cache
def chunk_sums(dtype: DType, width: int) -> Callable[..., None]:
    """A thread per chunk and `width` columns; blocks behind `summing` fill rows of the result that get nothing with zeros.

    source   (outers, many, inner); out: (outers, size, inner); partial: (outers, chunks, 2, inner), of each chunk the sum for a row that
             began before it, and that for a row that begins in it and goes on
    filled   rows of the result that a block fills
    """
    load, store, store_partial = _load(dtype, width), _store(dtype, width), _store(dtype.compute, width)
    key, get_key, flag, add = _known(getter(i32)), getter(i32), getter(bool_), zip_tiles(width, _add)
    zeros = (dtype.compute.numpy.type(0),) * width

    def value(source, positions, k, key, size, first, inner):
        return (
            load(source, first + np.int64(get_key(positions, k)) * inner)
            if key >= 0 and key < size
            else zeros
        )

    value = device(value)

    def write(out, partial, row, continued, total, size, to, inner, slot):
        if row < size:
            if continued:
                store_partial(partial, slot, total)
            else:
                store(out, to + np.int64(row) * inner, total)

    write = device(write)

    def turn(out, partial, now, key, value, size, to, inner, slot):
        """One more key, and its value: `now` is a row, whether it began before the chunk, and its sum so far."""
        row, continued, total = now
        if key >= 0 and key != row:
            write(out, partial, row, continued, total, size, to, inner, slot)
            row, continued, total = key, False, zeros
        return row, continued, add(total, value, 0)

    turn = device(turn)

    def walk(source, keys, positions, out, partial, many, size, inner, begin, end, first, to, slot):
        row = get_key(keys, begin)
        now, k = (row, key(keys, begin - 1, many) == row, zeros), begin
        while k < end:
            a, b = key(keys, k, end), key(keys, k + 1, end)
            c, d = key(keys, k + 2, end), key(keys, k + 3, end)
            p, q = (
                value(source, positions, k, a, size, first, inner),
                value(source, positions, k + 1, b, size, first, inner),
            )
            r, s = (
                value(source, positions, k + 2, c, size, first, inner),
                value(source, positions, k + 3, d, size, first, inner),
            )
            now = turn(out, partial, now, a, p, size, to, inner, slot)
            now = turn(out, partial, now, b, q, size, to, inner, slot)
            now = turn(out, partial, now, c, r, size, to, inner, slot)
            now = turn(out, partial, now, d, s, size, to, inner, slot)
            k += 4
        row, continued, total = now
        if not continued and key(keys, end, many) == row:
            if row < size:
                store_partial(partial, slot + inner, total)
        else:
            write(out, partial, row, continued, total, size, to, inner, slot)

    walk = device(walk)

    def kernel(
        source,
        keys,
        positions,
        flags,
        out,
        partial,
        outers,
        many,
        size,
        inner,
        chunk,
        chunks,
        summing,
        filled,
    ):
        block, thread = np.int64(cuda.blockIdx.x), np.int64(cuda.threadIdx.x)
        vectors = inner // width
        if block < summing:
            number = block * BLOCK + thread
            rest = number // vectors
            column, outer = (number - rest * vectors) * width, rest // chunks
            c = rest - outer * chunks
            if outer < outers:
                begin, slot = c * chunk, rest * 2 * inner + column
                first, to = outer * many * inner + column, outer * size * inner + column
                end = min(many, begin + chunk)
                walk(source, keys, positions, out, partial, many, size, inner, begin, end, first, to, slot)
        else:
            first = (block - summing) * filled
            end = min(outers * size, first + filled)
            i = thread
            while i < (end - first) * vectors:
                row = i // vectors
                if not flag(flags, (first + row) % size):
                    store(out, (first + row) * inner + (i - row * vectors) * width, zeros)
                i += BLOCK

    kernel.blocks_per_sm = 2 if width > 4 else 3  # registers for four loads and a sum of so many columns
    kernel.__name__ = f"chunk_sums{width}_{dtype}"
    return kernel


@functools.cache
def join_sums(dtype: DType) -> Callable[..., None]:
    """A block per chunk and 128 columns: the sum of a row that begins in the chunk and goes on. Of few chunks, a thread per column adds
    one partial sum after the other; of more, eight threads a part each, and these are added in order."""
    compute = dtype.compute
    get, put, get_key = getter(compute), putter(dtype), getter(i32)
    key, zero, shared_type = _known(getter(i32)), compute.numpy.type(0), _shared_type(dtype)

    def one(partial, n, count, first, inner):
        """The n-th of a row's partial sums, the first of which is its chunk's second."""
        return get(partial, first + (n * 2 - (1 if n > 0 else 0)) * inner) if n < count else zero

    one = device(one)

    def part(partial, n, end, first, inner):
        total = zero
        while n < end:
            a, b = one(partial, n, end, first, inner), one(partial, n + 1, end, first, inner)
            c, d = one(partial, n + 2, end, first, inner), one(partial, n + 3, end, first, inner)
            total = compute_type(total + a)
            total = compute_type(total + b)
            total = compute_type(total + c)
            total = compute_type(total + d)
            n += 4
        return total

    compute_type = compute.numpy.type
    part = device(part)

    def kernel(keys, partial, out, many, size, inner, chunk, chunks, across):
        sums = cuda.shared.array(BLOCK, shared_type)
        block, thread = np.int64(cuda.blockIdx.x), np.int64(cuda.threadIdx.x)
        rest = block // across
        tile, outer = block - rest * across, rest // chunks
        c = rest - outer * chunks
        begin, end = c * chunk, min(many, (c + 1) * chunk)
        row = get_key(keys, end - 1)
        if key(keys, end, many) == row and key(keys, begin - 1, many) != row and row < size:
            last, beyond = c + 1, chunks
            while beyond - last > 1:
                middle = (last + beyond) // 2
                if get_key(keys, middle * chunk) == row:
                    last = middle
                else:
                    beyond = middle
            count, first = last - c + 1, (rest * 2 + 1) * inner
            to, stop = (outer * size + row) * inner, min(inner, (tile + 1) * COLUMNS)
            if count <= FEW:
                column = tile * COLUMNS + thread
                if column < stop:
                    put(out, to + column, part(partial, np.int64(0), count, first + column, inner))
            else:
                lane, line = thread % LANES, thread // LANES
                share = (count + LINES - 1) // LINES
                column = tile * COLUMNS + lane
                for _ in range(COLUMNS // LANES):
                    total = zero
                    if column < stop:
                        total = part(
                            partial, line * share, min(count, (line + 1) * share), first + column, inner
                        )
                    sums[thread] = total
                    cuda.syncthreads()
                    if line == 0 and column < stop:
                        for other in range(1, LINES):
                            total = compute_type(total + sums[other * LANES + lane])
                        put(out, to + column, total)
                    cuda.syncthreads()
                    column += LANES

    kernel.blocks_per_sm = 2
    kernel.__name__ = f"join_sums_{dtype}"
    return kernel
