"""Reductions: partial results per thread, then a tree in shared memory. The order is fixed, so results repeat exactly.

A reducer is (combine, identity); floats accumulate in f32, integers in their own type, wrapping. A long reduction that
gives few results is split: segments of it are reduced side by side into a workspace, and that is reduced again.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...registry.program import Expression
from ...types import DType
from ..dsl import SIMULATED, cuda, deferred, device
from .element import Loads, Stores, applier, feeder
from .index import Walk, coordinates, offsets
from .storage import numba_type

BLOCK = 256  # threads; also the number of partial results in shared memory


def _sum(a, b):
    return a + b


def _max(a, b):
    """The greater; NaN if either is NaN."""
    return a if a > b or a != a else b


def reducer(op: str, dtype: DType) -> tuple[Any, Any]:
    """combine and identity of `sum`, `mean` or `max` in the compute type."""
    number = dtype.compute.numpy.type
    if op == "max":
        return device(_max), number(-np.inf) if dtype.kind == "float" else number(np.iinfo(number).min)
    return device(_sum), number(0)


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


@dataclass(frozen=True)
class Side:
    """A map on one side of a reduction, and how its loads walk the coordinates that the kernel has there."""

    expr: Expression
    ins: Loads
    outs: Stores
    walks: tuple[Walk, ...]


def _named(kernel: Callable[..., None], kind: str, op: str, before: Side, after: Side) -> Callable[..., None]:
    names = [before.expr.name, op, after.expr.name]
    dtype = before.expr.dtypes[before.expr.results[-1]]
    kernel.__name__ = "_".join(["reduce", kind, *(name for name in names if name != "copy"), str(dtype)])
    return kernel


@functools.cache
def rows(op: str, dtype: DType, before: Side, after: Side, lanes: int) -> Callable[..., None]:
    """`lanes` threads per segment of a row; its elements are neighbours, and neighbouring threads read them.

    The reduction of before(r, s * chunk : (s + 1) * chunk) is number r * splits + s; a mean is divided by `count`. The map
    before it walks (row, column) and stores at row * columns + column; that after it walks and stores (number,).
    """
    combine, identity = reducer(op, dtype)
    fold, feed, apply = tree(combine, lanes, 1), _feeder(before), _applier(after)
    of, after_of = offsets(before.walks), offsets(after.walks)
    shared_type, per_block, divide = _shared_type(dtype), BLOCK // lanes, op == "mean"

    def kernel(
        ins, outs, strides, after_ins, after_outs, after_strides, segments, columns, splits, chunk, count
    ):
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
                    total = combine(total, feed(ins, outs, of((row, i), strides), row * columns + i))
                    i += lanes
            partial[thread] = total
            fold(partial, thread, lane)
            if lane == 0 and segment < segments:
                total = partial[thread]
                if divide:
                    total = total / count
                apply(total, after_ins, after_outs, after_of((segment,), after_strides), segment)
            cuda.syncthreads()
            first += np.int64(cuda.gridDim.x) * per_block

    return _named(kernel, f"rows{lanes}", op, before, after)


@functools.cache
def columns(op: str, dtype: DType, before: Side, after: Side, width: int) -> Callable[..., None]:
    """`width` neighbouring threads per line read neighbouring columns; 256 / width lines are read side by side.

    The domain is (outer, length, inner). Number (o * splits + s, c) is the reduction of
    before(o, s * chunk : (s + 1) * chunk, c); the map after it walks (o * splits + s, c).
    """
    combine, identity = reducer(op, dtype)
    height = BLOCK // width
    fold, feed, apply = tree(combine, height, width), _feeder(before), _applier(after)
    of, after_of = offsets(before.walks), offsets(after.walks)
    shared_type, divide = _shared_type(dtype), op == "mean"

    def kernel(
        ins, outs, strides, after_ins, after_outs, after_strides, tiles, length, inner, splits, chunk, count
    ):
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
                    place = (o * length + i) * inner + column
                    total = combine(total, feed(ins, outs, of((o, i, column), strides), place))
                    i += height
            partial[thread] = total
            fold(partial, thread, line)
            if line == 0 and column < inner:
                total = partial[thread]
                if divide:
                    total = total / count
                at = after_of((segment, column), after_strides)
                apply(total, after_ins, after_outs, at, segment * inner + column)
            cuda.syncthreads()
            tile += cuda.gridDim.x

    return _named(kernel, f"columns{width}", op, before, after)


@functools.cache
def naive(op: str, dtype: DType, before: Side, after: Side, kept: int, reduced: int) -> Callable[..., None]:
    """One thread per result, walking `reduced` dimensions one element after another: any axes, any strides.

    The map before the reduction walks (*kept, *reduced); its last walk is that of its stores. The one after it walks kept.
    """
    combine, identity = reducer(op, dtype)
    feed, apply, divide, last = _feeder(before), _applier(after), op == "mean", len(before.ins)
    kept_at, reduced_at = coordinates(kept, False), coordinates(reduced, False)
    of, after_of = offsets(before.walks), offsets(after.walks)

    def kernel(ins, outs, strides, after_ins, after_outs, after_strides, kept_shape, reduced_shape, results, length,
               count):  # fmt: skip
        r = np.int64(cuda.blockIdx.x) * cuda.blockDim.x + cuda.threadIdx.x
        while r < results:
            at = kept_at(r, kept_shape)
            total = identity
            for i in range(length):
                places = of(at + reduced_at(i, reduced_shape), strides)
                total = combine(total, feed(ins, outs, places, places[last]))
            if divide:
                total = total / count
            apply(total, after_ins, after_outs, after_of(at, after_strides), r)
            r += np.int64(cuda.gridDim.x) * cuda.blockDim.x

    return _named(kernel, f"naive{kept}_{reduced}", op, before, after)


def _feeder(side: Side) -> Any:
    return feeder(side.expr, side.ins, side.outs)


def _applier(side: Side) -> Any:
    return applier(side.expr, side.ins, side.outs)
