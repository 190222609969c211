"""Reductions of columns in vectors: a thread has several neighbouring columns, and loads all of a row's at once.

As `columns` in reduce_body.py, with partial results of each column in registers; in shared memory they meet line by line. The order
is fixed.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from ...types import DType
from ..dsl import cuda, device, uint32
from ..tiles.element import applier, vector_feeder
from ..tiles.index import offsets
from .reduce_body import BLOCK, Side, _parter, _shared_type, reducer

APART = BLOCK + 4  # places of a column's partial results: so neighbours lie in banks of their own


@functools.cache
def _zipped(combine: Any, count: int) -> Any:
    """`zipped(a, b)`: of two tuples, element by element."""
    if count == 1:
        return device(lambda a, b: (combine(a[0], b[0]),))
    rest = _zipped(combine, count - 1)
    return device(lambda a, b: (combine(a[0], b[0]),) + rest(a[1:], b[1:]))


@functools.cache
def _spread(count: int) -> Any:
    """`spread(partial, place, values)`: one after another, APART."""
    if count == 0:
        return device(lambda partial, place, values: None)
    rest = _spread(count - 1)

    def spread(partial, place, values):
        partial[place] = values[0]
        rest(partial, place + APART, values[1:])

    return device(spread)


@functools.cache
def column_vectors(
    op: str, dtype: DType, before: Side, after: Side, moves: tuple[bool, ...], width: int, vector: int, split: bool
) -> Callable[..., None]:  # fmt: skip
    """`width` threads per line read `vector` neighbouring columns each; 256 / width lines are read side by side.

    The domain is (outer, length, inner), inner a multiple of `vector`. Number (o * splits + s, c) is the reduction of
    before(o, s * chunk : (s + 1) * chunk, c); the map after it walks (o * splits + s, c).
    moves   which loads before the reduction go on along columns
    split   there are several of s
    """
    combine, identity = reducer(op, dtype)
    height, places, nothing = BLOCK // width, vector * APART, (identity,) * vector
    feed = vector_feeder(before.expr, before.ins, before.outs, moves, vector)
    apply, zipped, spread = (
        applier(after.expr, after.ins, after.outs),
        _zipped(combine, vector),
        _spread(vector),
    )
    part, of, after_of = _parter(split), offsets(before.walks), offsets(after.walks)
    kind, divide, across_block = _shared_type(dtype), op == "mean", width * vector

    def kernel(ins, outs, strides, after_ins, after_outs, after_strides, length, inner, splits, chunk, count):
        partial = cuda.shared.array(places, kind)
        thread = cuda.threadIdx.x
        lane, line = thread % width, thread // width
        tile, across = uint32(cuda.blockIdx.x), uint32((inner + across_block - 1) // across_block)
        segment = np.int64(tile // across)
        first = np.int64(tile - uint32(segment) * across) * across_block
        column, totals = first + lane * vector, nothing
        if column < inner:
            o, begin = part(segment, splits, chunk)
            i, end = begin + line, min(length, begin + chunk)
            while i < end:
                place = (o * length + i) * inner + column
                totals = zipped(totals, feed(ins, outs, of((o, i, column), strides), place))
                i += height
        spread(partial, thread, totals)
        cuda.syncthreads()
        if thread < across_block and first + thread < inner:
            at = (thread % vector) * APART + thread // vector
            total = partial[at]
            for n in range(1, height):
                total = combine(total, partial[at + n * width])
            if divide:
                total = total / count
            column, number = first + thread, segment * inner + first + thread
            apply(total, after_ins, after_outs, after_of((segment, column), after_strides), number)

    names = [before.expr.name, op, after.expr.name]
    kept = before.expr.dtypes[before.expr.results[-1]]
    kernel.__name__ = "_".join([
        f"reduce_columns{width}x{vector}" + "_split" * split, *(name for name in names if name != "copy"), str(kept)
    ])  # fmt: skip
    return kernel
