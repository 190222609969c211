"""Adding at indices without atomics: each sum belongs to one thread, which adds what is for it in order, so equal runs give equal bits."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from ...types import DType, f64
from ..dsl import SIMULATED, cuda, deferred, device, int32, types, uint32
from ..rows.reduce_body import BLOCK, _shared_type
from ..tiles.element import getter, putter

SUMS = 2**15  # bytes of a block's sums
NONE = np.int32(-1)
HIT, MISS = np.int32(1), np.int32(0)


def sum_type(dtype: DType) -> DType:
    """What updates add up in, one after the other: f64 for floats."""
    return f64 if dtype.kind == "float" else dtype.compute


@deferred
def _double() -> Any:
    return np.float64 if SIMULATED else types.float64


def rows_of(dtype: DType, width: int) -> int:
    """Rows of the result whose sums a block holds, `width` columns of each."""
    return SUMS // (width * sum_type(dtype).itemsize)


@functools.cache
def scatter_add(updates: DType, indices: DType, width: int) -> Callable[..., None]:
    """A block per some rows of the result and `width` of its columns: it goes over all indices, 256 at a time, and adds the
    updates that are for its rows, floats in f64.

    Domains are (outer, count, inner) for the updates and (outer, size, inner) for the result.
    """
    get, get_index, put = getter(updates), getter(indices), putter(updates)
    kind, compute = sum_type(updates), updates.compute.numpy.type
    groups, rows, shared_type = (
        BLOCK // width,
        rows_of(updates, width),
        _double() if kind is f64 else _shared_type(updates),
    )
    zero, nothing, length = kind.numpy.type(0), compute(0), SUMS // kind.itemsize

    def mine(local, k, group):
        """The row of the k-th index, if it is for this thread."""
        row = local[k]
        return row if row >= 0 and row % groups == group else NONE

    mine = device(mine)

    def taken(source, row, place):
        return get(source, place) if row >= 0 else nothing

    taken = device(taken)

    def add(sums, row, lane, value):
        if row >= 0:
            sums[row * width + lane] += value

    add = device(add)

    def kernel(source, indices, out, count, size, inner, blocks, tiles):
        sums = cuda.shared.array(length, shared_type)
        local = cuda.shared.array(BLOCK, int32)  # not in one line: the simulator knows arrays by their lines
        thread = cuda.threadIdx.x
        lane, group = thread % width, thread // width
        block = uint32(cuda.blockIdx.x)
        tile, rest = block % uint32(tiles), block // uint32(tiles)
        first = np.int64(rest % uint32(blocks)) * rows
        outer, column = np.int64(rest // uint32(blocks)), np.int64(tile) * width + lane
        row = group
        while row < rows:
            sums[row * width + lane] = zero
            row += groups
        base = np.int64(0)
        while base < count:
            found = NONE
            if base + thread < count:
                index = np.int64(get_index(indices, base + thread))
                if index < 0:
                    index += size
                if index >= first and index < first + rows and index >= 0 and index < size:
                    found = np.int32(index - first)
            local[thread] = found
            if cuda.syncthreads_or(HIT if found >= 0 else MISS) != 0:
                if column < inner:
                    place = (outer * count + base) * inner + column
                    for k in range(0, BLOCK, 4):  # four loads are under way at once
                        a, b = mine(local, k, group), mine(local, k + 1, group)
                        c, d = mine(local, k + 2, group), mine(local, k + 3, group)
                        p, q = taken(source, a, place), taken(source, b, place + inner)
                        r, s = taken(source, c, place + 2 * inner), taken(source, d, place + 3 * inner)
                        add(sums, a, lane, p)
                        add(sums, b, lane, q)
                        add(sums, c, lane, r)
                        add(sums, d, lane, s)
                        place += 4 * inner
                cuda.syncthreads()
            base += BLOCK
        row = group
        while row < rows:
            if column < inner and first + row < size:
                put(out, (outer * size + first + row) * inner + column, compute(sums[row * width + lane]))
            row += groups

    kernel.__name__ = f"scatter_add{width}_{updates}"
    return kernel


@functools.cache
def scatter_add_along(updates: DType, indices: DType) -> Callable[..., None]:
    """A thread per element of the result, which goes over the indices of its line; floats add up in f64."""
    get, get_index, put = getter(updates), getter(indices), putter(updates)
    zero, compute = sum_type(updates).numpy.type(0), updates.compute.numpy.type

    def kernel(source, indices, out, count, size, inner, results):
        i = np.int64(cuda.blockIdx.x) * cuda.blockDim.x + cuda.threadIdx.x
        if i < results:
            column, rest = i % inner, i // inner
            row, outer = rest % size, rest // size
            place = outer * count * inner + column
            total = zero
            for _ in range(count):
                index = np.int64(get_index(indices, place))
                if index == row or index + size == row:
                    total += get(source, place)
                place += inner
            put(out, i, compute(total))

    kernel.__name__ = f"scatter_add_along_{updates}"
    return kernel
