"""The squares of several tensors side by side, added up: each tensor of a length of its own.

A block works on one tensor, as in multi_body.py, and leaves its sum in the workspace; one block adds those up. Each sum has one order.
Limit: memory.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from ...types import DType, f32
from ..dsl import cuda, device
from ..rows.reduce_body import BLOCK, reducer, tree
from ..tiles.element import getter, putter, vector_getter
from .multi_body import picker


@functools.cache
def _squares(width: int) -> Any:
    """`add(total, values)`: with the squares of so many values."""
    if width == 0:
        return device(lambda total, values: total)
    rest = _squares(width - 1)
    return device(lambda total, values: rest(total + values[0] * values[0], values[1:]))


@functools.cache
def squares(count: int, dtype: DType, width: int) -> Callable[..., None]:
    """sums[base + block] = the squares of the block's share of one of `count` tensors, `width` elements a load, added up.

    lengths, firsts, ends   of each tensor, its elements and its blocks
    """
    combine, zero = reducer("sum", f32)
    pick, get, get_vector, put = picker(), getter(dtype), vector_getter(dtype, width), putter(f32)
    fold, add = tree(combine, BLOCK, 1), _squares(width)

    def kernel(ins, sums, base, lengths, firsts, ends):
        partial = cuda.shared.array(BLOCK, np.float32)
        block, thread = np.int64(cuda.blockIdx.x), cuda.threadIdx.x
        (source,) = pick((ins,), block, firsts)
        n, first, end = pick((lengths, firsts, ends), block, firsts)
        begin, step = (block - first) * BLOCK + thread, (end - first) * BLOCK
        total, whole = zero, n // width
        i = begin
        while i < whole:
            total = add(total, get_vector(source, i * width))
            i += step
        i = whole * width + begin
        while i < n:
            x = get(source, i)
            total += x * x
            i += step
        partial[thread] = total
        fold(partial, thread, thread)
        if thread == 0:
            put(sums, base + block, partial[0])

    kernel.__name__ = f"squares{count}_{dtype}_by{width}"
    return kernel


@functools.cache
def total() -> Callable[..., None]:
    """result[0] = the `count` sums added up, by one block."""
    combine, zero = reducer("sum", f32)
    get, put, fold = getter(f32), putter(f32), tree(combine, BLOCK, 1)

    def kernel(sums, result, count):
        partial = cuda.shared.array(BLOCK, np.float32)
        thread = cuda.threadIdx.x
        found, i = zero, np.int64(thread)
        while i < count:
            found += get(sums, i)
            i += BLOCK
        partial[thread] = found
        fold(partial, thread, thread)
        if thread == 0:
            put(result, np.int64(0), partial[0])

    kernel.__name__ = "total_of_squares"
    return kernel
