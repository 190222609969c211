"""A map by tiles: one operand comes by way of shared memory, so that it is read along its rows and used along the results'.

Limit: memory bandwidth. A tile's lines are one element longer than the tile is wide, so that neither way do lanes meet in a bank.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import numpy as np

from ...rows.program import Expression
from ...types import DType
from ..dsl import cuda, device, int32
from ..rows.reduce_body import _shared_type
from ..tiles.element import Loads, Stores, applier, getter
from ..tiles.index import Walk, coordinates, offsets


@functools.cache
def transposed(expr: Expression, dtype: DType, ins: Loads, outs: Stores, walks: tuple[Walk, ...], origin: tuple[Walk, ...],
               rank: int, axis: int, tile: int, threads: int) -> Callable[..., None]:  # fmt: skip
    """`kernel(ins, outs, source, shape, strides, source_strides, along, rows, columns)`.

    expr           its first argument is the source's element, the others are the loads of `ins`
    walks, origin  of the loads, and last of the results; of the source, over the domain's axes
    along          from one of the source's elements to the next of the results' rows
    axis           along which the source's elements are neighbours; the results' are along the last
    rows, columns  tiles along these two
    """
    of, of_source = offsets(walks), offsets(origin)
    apply, kind = applier(expr, ins, outs), _shared_type(dtype)
    batch_at, place = coordinates(rank - 2, False), _placed(rank, axis)
    others, last = _others(rank, axis), rank - 1
    line, per_pass, passes, count = tile + 1, threads // tile, tile * tile // threads, len(walks) - 1
    size, fetch = tile * line, _fetched(dtype, passes, per_pass)

    def kernel(ins, outs, source, shape, strides, source_strides, along, rows, columns):
        staged = cuda.shared.array(size, kind)
        block = np.int64(cuda.blockIdx.x)
        column = (block % columns) * tile
        above = block // columns
        row = (above % rows) * tile
        batch = batch_at(above // rows, others(shape))
        lane, first = int32(cuda.threadIdx.x % tile), int32(cuda.threadIdx.x // tile)
        # beyond the last rows and columns a tile has copies of them, so that no load waits for a condition
        deep, wide = int32(min(shape[axis] - row, tile)), int32(min(shape[last] - column, tile))
        begin = of_source(place(batch, row + min(lane, int32(deep - 1)), column), source_strides)
        values = fetch(source, begin[0], along, first, int32(wide - 1))
        for n in range(passes):
            staged[int32(int32(first + n * per_pass) * line) + lane] = values[n]
        cuda.syncthreads()
        if lane < wide:
            for n in range(passes):
                r = int32(first + n * per_pass)
                if r < deep:
                    at = of(place(batch, row + r, column + lane), strides)
                    apply(staged[int32(lane * line) + r], ins, outs, at[:count], at[count])

    kernel.__name__ = f"elementwise_transposed{rank}_{axis}_{expr.name}"
    kernel.blocks_per_sm = 4
    return kernel


@functools.cache
def _fetched(dtype: DType, passes: int, per_pass: int):
    """`fetch(source, begin, along, first, last)`: the elements of a thread's columns, `along` apart, all under way before any is used."""
    if passes == 0:
        return device(lambda source, begin, along, first, last: ())
    before, get, ahead = _fetched(dtype, passes - 1, per_pass), getter(dtype), (passes - 1) * per_pass

    def fetch(source, begin, along, first, last):
        value = get(source, begin + np.int64(min(int32(first + ahead), last)) * along)
        return before(source, begin, along, first, last) + (value,)  # numba unpacks no tuples

    return device(fetch)


@functools.cache
def _placed(rank: int, axis: int):
    """`place(batch, row, column)`: all coordinates, of those of the other axes and of the two."""
    return device(lambda batch, row, column: batch[:axis] + (row,) + batch[axis:] + (column,))


@functools.cache
def _others(rank: int, axis: int):
    """`others(shape)`: the sizes of all axes but the two."""
    end, behind = rank - 1, axis + 1
    return device(lambda shape: shape[:axis] + shape[behind:end])
