"""Reductions: partial results per thread, then a tree in shared memory. The order is fixed, so results repeat exactly.

A reducer is (combine, identity); floats accumulate in f32, integers in their own type, wrapping. A long reduction that
gives few results is split: segments of it are reduced side by side into a workspace, and that is reduced again.

Grids cover all segments, of which there are fewer than 2^31 where there are divisions: those of 32 bits take 20 instructions,
those of 64 bits a hundred, which is most of what a small reduction would take.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...rows.program import Expression, worst
from ...types import DType
from ..dsl import SIMULATED, cuda, deferred, device, uint32
from ..tiles.element import Loads, Stores, applier, feeder
from ..tiles.index import Walk, coordinates, offsets
from ..tiles.storage import numba_type

BLOCK = 256  # threads; also the number of partial results in shared memory


def _sum(a, b):
    return a + b


def _product(a, b):
    return a * b


def _max(a, b):
    """The greater; NaN if either is NaN."""
    return a if a > b or a != a else b


def _min(a, b):
    """The less; NaN if either is NaN."""
    return a if a < b or a != a else b


def reducer(op: str, dtype: DType) -> tuple[Any, Any]:
    """combine and identity of `sum`, `mean`, `prod`, `max` or `min` in the compute type."""
    if op in ("max", "min"):
        return device(_max if op == "max" else _min), worst(op, dtype)
    if op == "prod":
        return device(_product), dtype.compute.numpy.type(1)
    return device(_sum), dtype.compute.numpy.type(0)


def wide_total(op: str, dtype: DType, identity: Any) -> tuple[Any, Any]:
    """(`narrow(total)`, the total of nothing) of a thread that has very many elements: in f64 where that is more precise."""
    compute = dtype.compute.numpy.type
    wide = dtype.kind == "float" and op not in ("max", "min")
    return device(lambda total: compute(total)), np.float64(identity) if wide else identity


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


def ender(combine: Any, after: Side, extent: int, stride: int, divide: bool) -> Any:
    """`finish(partial, thread, place, total, inside, at, number, outputs, count)`: the totals of a `tree`'s threads, combined; the
    map after the reduction at these coordinates, if they are inside. `outputs`: its operands, results and strides."""
    fold, apply, of = tree(combine, extent, stride), _applier(after), offsets(after.walks)

    def finish(partial, thread, place, total, inside, at, number, outputs, count):
        partial[thread] = total
        fold(partial, thread, place)
        if place == 0 and inside:
            total = partial[thread]
            if divide:
                total = total / count
            apply(total, outputs[0], outputs[1], of(at, outputs[2]), number)

    return device(finish)


@functools.cache
def rows(op: str, dtype: DType, before: Side, after: Side, lanes: int, split: bool) -> Callable[..., None]:
    """`lanes` threads per segment of a row; its elements are neighbours, and neighbouring threads read them.

    The reduction of before(r, s * chunk : (s + 1) * chunk) is number r * splits + s; a mean is divided by `count`. The map
    before it walks (row, column) and stores at row * columns + column; that after it walks and stores (number,).
    split   there are several segments to a row
    """
    combine, identity = reducer(op, dtype)
    feed, part, of = _feeder(before), _parter(split), offsets(before.walks)
    finish = ender(combine, after, lanes, 1, op == "mean")
    shared_type, per_block = _shared_type(dtype), BLOCK // lanes

    def kernel(
        ins, outs, strides, after_ins, after_outs, after_strides, segments, columns, splits, chunk, count
    ):
        partial = cuda.shared.array(BLOCK, shared_type)
        thread = cuda.threadIdx.x
        lane, slot = thread % lanes, thread // lanes
        segment = np.int64(cuda.blockIdx.x) * per_block + slot
        total = identity
        if segment < segments:
            row, begin = part(segment, splits, chunk)
            i, end = begin + lane, min(columns, begin + chunk)
            while i < end:
                total = combine(total, feed(ins, outs, of((row, i), strides), row * columns + i))
                i += lanes
        outputs = after_ins, after_outs, after_strides
        finish(partial, thread, lane, total, segment < segments, (segment,), segment, outputs, count)

    return _named(kernel, f"rows{lanes}" + "_split" * split, op, before, after)


@functools.cache
def columns(op: str, dtype: DType, before: Side, after: Side, width: int, split: bool) -> Callable[..., None]:
    """`width` neighbouring threads per line read neighbouring columns; 256 / width lines are read side by side.

    The domain is (outer, length, inner). Number (o * splits + s, c) is the reduction of
    before(o, s * chunk : (s + 1) * chunk, c); the map after it walks (o * splits + s, c).
    split   there are several of s
    """
    combine, identity = reducer(op, dtype)
    height = BLOCK // width
    feed, part, of = _feeder(before), _parter(split), offsets(before.walks)
    finish, shared_type = ender(combine, after, height, width, op == "mean"), _shared_type(dtype)

    def kernel(ins, outs, strides, after_ins, after_outs, after_strides, length, inner, splits, chunk, count):
        partial = cuda.shared.array(BLOCK, shared_type)
        thread = cuda.threadIdx.x
        lane, line = thread % width, thread // width
        tile, across = uint32(cuda.blockIdx.x), uint32((inner + width - 1) // width)
        segment = np.int64(tile // across)
        column = np.int64(tile - uint32(segment) * across) * width + lane
        total = identity
        if column < inner:
            o, begin = part(segment, splits, chunk)
            i, end = begin + line, min(length, begin + chunk)
            while i < end:
                place = (o * length + i) * inner + column
                total = combine(total, feed(ins, outs, of((o, i, column), strides), place))
                i += height
        outputs, number = (after_ins, after_outs, after_strides), segment * inner + column
        finish(partial, thread, line, total, column < inner, (segment, column), number, outputs, count)

    return _named(kernel, f"columns{width}" + "_split" * split, op, before, after)


def _parter(split: bool) -> Any:
    """`part(segment, splits, chunk)`: which row, or line of rows, a segment is of, and where in it the segment begins."""
    if not split:
        return device(lambda segment, splits, chunk: (segment, np.int64(0)))

    def part(segment, splits, chunk):
        row = uint32(segment) // uint32(splits)
        return np.int64(row), (segment - np.int64(row) * splits) * chunk

    return device(part)


@functools.cache
def naive(op: str, dtype: DType, before: Side, after: Side, kept: int, reduced: int) -> Callable[..., None]:
    """One thread per result, walking `reduced` dimensions one element after another: any axes, any strides.

    The map before the reduction walks (*kept, *reduced); its last walk is that of its stores. The one after it walks kept.
    Sums and products of floats are f64: one thread has all of a result's elements.
    """
    combine, identity = reducer(op, dtype)
    narrow, identity = wide_total(op, dtype, identity)
    feed, apply, divide, last = _feeder(before), _applier(after), op == "mean", len(before.ins)
    kept_at, reduced_at = coordinates(kept, False), coordinates(reduced, False)
    of, after_of = offsets(before.walks), offsets(after.walks)

    def kernel(ins, outs, strides, after_ins, after_outs, after_strides, kept_shape, reduced_shape, results, length,
               count):  # fmt: skip
        r = np.int64(cuda.blockIdx.x) * cuda.blockDim.x + cuda.threadIdx.x
        if r < results:
            at = kept_at(r, kept_shape)
            total = identity
            for i in range(length):
                places = of(at + reduced_at(i, reduced_shape), strides)
                total = combine(total, feed(ins, outs, places, places[last]))
            if divide:
                total = total / count
            apply(narrow(total), after_ins, after_outs, after_of(at, after_strides), r)

    return _named(kernel, f"naive{kept}_{reduced}", op, before, after)


def _feeder(side: Side) -> Any:
    return feeder(side.expr, side.ins, side.outs)


def _applier(side: Side) -> Any:
    return applier(side.expr, side.ins, side.outs)
