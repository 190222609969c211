"""Reductions: partial results per thread, then a tree in shared memory. The order is fixed, so results repeat exactly.

A reducer is (combine, identity); floats accumulate in f32, integers in their own type, wrapping. A long reduction that
gives few results is split: segments of it are reduced side by side into a workspace, and that is reduced again.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from ...types import DType
from ..dsl import SIMULATED, cuda, deferred, device
from .element import getter, numba_type, putter
from .index import GIVEN, coordinates, offsets

BLOCK = 256  # threads; also the number of partial results in shared memory


def _sum(a, b):
    return a + b


def _max(a, b):
    """The greater; NaN if either is NaN."""
    return a if a > b or a != a else b


def reducer(op: str, dtype: DType) -> tuple[Any, Any]:
    """combine and identity of `sum` or `max` in the compute type."""
    number = dtype.compute.numpy.type
    if op == "sum":
        return device(_sum), number(0)
    return device(_max), number(-np.inf) if dtype.kind == "float" else number(np.iinfo(number).min)


@functools.cache
def tree(combine: Any, extent: int, stride: int) -> Any:
    """`fold(partial, place)`: shared partial[place] of the thread at place 0 becomes the combination of `extent` places.

    Threads of one tree are `stride` apart. Ends with a barrier before each halving: whoever stored, must not be read by
    another before that. `extent` is a power of two.
    """
    half = extent // 2

    def fold(partial, thread, place):
        width = half
        cuda.syncthreads()
        while width > 0:
            if place < width:
                partial[thread] = combine(partial[thread], partial[thread + width * stride])
            cuda.syncthreads()
            width //= 2

    return device(fold)


@deferred
def _shared_type(dtype: DType) -> Any:
    return dtype.compute.numpy.type if SIMULATED else numba_type(dtype)


@functools.cache
def rows(op: str, dtype: DType, out: DType, lanes: int, divide: bool) -> Callable[..., None]:
    """`lanes` threads per segment of a row; its elements are contiguous, so neighbouring threads read neighbours.

    y[r * splits + s] = reduction of x[r, s * chunk : (s + 1) * chunk], divided by `count` if asked (a mean).
    """
    combine, identity = reducer(op, dtype)
    fold, get, put = tree(combine, lanes, 1), getter(dtype), putter(out)
    shared_type, per_block = _shared_type(dtype), BLOCK // lanes

    def kernel(x, y, segments, columns, splits, chunk, count):
        partial = cuda.shared.array(BLOCK, shared_type)
        thread = cuda.threadIdx.x
        lane, slot = thread % lanes, thread // lanes
        first = np.int64(cuda.blockIdx.x) * per_block
        while first < segments:  # the same for all threads of the block: there are barriers inside
            segment = first + slot
            total = identity
            if segment < segments:
                row, split = segment // splits, segment % splits
                i = split * chunk + lane
                end = min(columns, (split + 1) * chunk)
                while i < end:
                    total = combine(total, get(x, row * columns + i))
                    i += lanes
            partial[thread] = total
            fold(partial, thread, lane)
            if lane == 0 and segment < segments:
                if divide:
                    put(y, segment, partial[thread] / count)
                else:
                    put(y, segment, partial[thread])
            cuda.syncthreads()
            first += np.int64(cuda.gridDim.x) * per_block

    kernel.__name__ = f"reduce_rows{lanes}_{'mean' if divide else op}_{dtype}"
    return kernel


@functools.cache
def columns(op: str, dtype: DType, out: DType, width: int, divide: bool) -> Callable[..., None]:
    """`width` neighbouring threads per line read neighbouring columns; 256 / width lines are read side by side.

    x is (outer, length, inner). y[(o * splits + s) * inner + c] = reduction of x[o, s * chunk : (s + 1) * chunk, c].
    """
    combine, identity = reducer(op, dtype)
    height = BLOCK // width
    fold, get, put = tree(combine, height, width), getter(dtype), putter(out)
    shared_type = _shared_type(dtype)

    def kernel(x, y, tiles, length, inner, splits, chunk, count):
        partial = cuda.shared.array(BLOCK, shared_type)
        thread = cuda.threadIdx.x
        lane, line = thread % width, thread // width
        across = (inner + width - 1) // width
        tile = np.int64(cuda.blockIdx.x)
        while tile < tiles:
            segment, column = tile // across, tile % across * width + lane
            total = identity
            if column < inner:
                o, split = segment // splits, segment % splits
                i = split * chunk + line
                end = min(length, (split + 1) * chunk)
                while i < end:
                    total = combine(total, get(x, (o * length + i) * inner + column))
                    i += height
            partial[thread] = total
            fold(partial, thread, line)
            if line == 0 and column < inner:
                if divide:
                    put(y, segment * inner + column, partial[thread] / count)
                else:
                    put(y, segment * inner + column, partial[thread])
            cuda.syncthreads()
            tile += cuda.gridDim.x

    kernel.__name__ = f"reduce_columns{width}_{'mean' if divide else op}_{dtype}"
    return kernel


@functools.cache
def naive(op: str, dtype: DType, out: DType, kept: int, reduced: int, divide: bool) -> Callable[..., None]:
    """One thread per result, walking `reduced` dimensions one element after another: any axes, any strides."""
    combine, identity = reducer(op, dtype)
    get, put = getter(dtype), putter(out)
    kept_at, kept_of = coordinates(kept, False), offsets((((GIVEN,) * kept, 0),))
    reduced_at, reduced_of = coordinates(reduced, False), offsets((((GIVEN,) * reduced, 0),))

    def kernel(x, y, kept_shape, kept_strides, reduced_shape, reduced_strides, results, length, count):
        r = np.int64(cuda.blockIdx.x) * cuda.blockDim.x + cuda.threadIdx.x
        while r < results:
            start = kept_of(kept_at(r, kept_shape), kept_strides)[0]
            total = identity
            for i in range(length):
                total = combine(
                    total, get(x, start + reduced_of(reduced_at(i, reduced_shape), reduced_strides)[0])
                )
            if divide:
                put(y, r, total / count)
            else:
                put(y, r, total)
            r += np.int64(cuda.gridDim.x) * cuda.blockDim.x

    kernel.__name__ = f"reduce_naive_{'mean' if divide else op}_{dtype}_{kept}_{reduced}"
    return kernel
