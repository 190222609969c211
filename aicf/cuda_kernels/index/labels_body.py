"""A look at labels: how many count, whether each of those is a class, and a record of the first that is none. Or at indices: whether
each is one of [-classes, classes), or of [0, classes) where `ignored` is INDEX_FROM_ZERO; all of them count.

One block, or, for many labels, several whose findings a last one puts together. Limit: latency; four loads of a thread are
under way at once.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from ...device.faults import INDEX_FROM_ZERO
from ...types import DType, bool_, f32, i64
from ..dsl import cuda, device, int64
from ..rows.reduce_body import BLOCK, reducer, tree
from ..tiles.element import getter, putter

NO_ROW = np.int64(2**62)  # behind all
NONE, ONE = np.int64(0), np.int64(1)
FROM_ZERO = np.int64(INDEX_FROM_ZERO)


def _lesser(a, b):
    return a if a < b else b


def _no_class(label, i, rows, classes, ignored):
    return label != ignored and (label < 0 or label >= classes)


def _no_index(label, i, rows, classes, ignored):
    return i < rows and (label < (NONE if ignored == FROM_ZERO else -classes) or label >= classes)


@functools.cache
def _looker(labels: DType, indices: bool) -> Any:
    """`look(labels, i, step, rows, classes, ignored)`: of every step-th label from i on, the first row whose is no class, and
    how many are not `ignored`."""
    get, wrong = getter(labels), device(_no_index if indices else _no_class)

    def one(labels, i, rows, ignored):
        return np.int64(get(labels, i)) if i < rows else ignored

    def counted(label, ignored):
        return NONE if label == ignored else ONE

    one, counted = device(one), device(counted)

    def look(labels, i, step, rows, classes, ignored):
        first, count = NO_ROW, NONE
        while i < rows:
            j, k, m = i + step, i + 2 * step, i + 3 * step
            a, b = one(labels, i, rows, ignored), one(labels, j, rows, ignored)
            c, d = one(labels, k, rows, ignored), one(labels, m, rows, ignored)
            count += counted(a, ignored) + counted(b, ignored) + counted(c, ignored) + counted(d, ignored)
            if first == NO_ROW:
                if wrong(a, i, rows, classes, ignored):
                    first = i
                elif wrong(b, j, rows, classes, ignored):
                    first = j
                elif wrong(c, k, rows, classes, ignored):
                    first = k
                elif wrong(d, m, rows, classes, ignored):
                    first = m
            i += 4 * step
        return first, count

    return device(look)


@functools.cache
def _gatherer() -> Any:
    """`gather(firsts, counts, thread, first, count)`: for thread 0, the least `first` of the block and the sum of `count`."""
    fold_first, fold_count = tree(device(_lesser), BLOCK, 1), tree(reducer("sum", i64)[0], BLOCK, 1)

    def gather(firsts, counts, thread, first, count):
        firsts[thread], counts[thread] = first, count
        fold_first(firsts, thread, thread)
        fold_count(counts, thread, thread)
        return firsts[0], counts[0]

    return device(gather)


@functools.cache
def _teller(labels: DType, indices: bool) -> Any:
    """`tell(labels, fault, outs, first, count, classes, ignored)`: one thread writes the results, a count of labels among them; told
    may be fault."""
    get, known, put, put_count, put_flag = (
        getter(labels),
        getter(i64),
        putter(i64),
        putter(f32),
        putter(bool_),
    )

    flag_at, told_at = (0, 1) if indices else (1, 2)

    def tell(labels, fault, outs, first, count, classes, ignored):
        if not indices:
            put_count(outs[0], 0, np.float32(count))
        put_flag(outs[flag_at], 0, first == NO_ROW)
        runs, row, label = known(fault, 0), known(fault, 1), known(fault, 2)
        of, beside = known(fault, 3), known(fault, 4)
        if first != NO_ROW:
            if runs == NONE:
                row, label, of, beside = first, np.int64(get(labels, first)), classes, ignored
            runs += ONE
        told = outs[told_at]
        put(told, 0, runs)
        put(told, 1, row)
        put(told, 2, label)
        put(told, 3, of)
        put(told, 4, beside)

    return device(tell)


def _name(indices: bool) -> str:
    return "check_indices" if indices else "check_labels"


@functools.cache
def check(labels: DType, indices: bool) -> Callable[..., None]:
    """outs: count, valid, told; of indices no count."""
    look, gather, tell = _looker(labels, indices), _gatherer(), _teller(labels, indices)

    def kernel(labels, fault, outs, rows, classes, ignored):
        firsts = cuda.shared.array(BLOCK, int64)
        counts = cuda.shared.array(BLOCK, int64)  # not in one line: the simulator knows arrays by their lines
        thread = cuda.threadIdx.x
        first, count = look(labels, np.int64(thread), np.int64(BLOCK), rows, classes, ignored)
        first, count = gather(firsts, counts, thread, first, count)
        if thread == 0:
            tell(labels, fault, outs, first, count, classes, ignored)

    kernel.__name__ = _name(indices)
    return kernel


@functools.cache
def check_part(labels: DType, indices: bool) -> Callable[..., None]:
    """found[2 * block] and the next: what a block finds."""
    look, gather, put = _looker(labels, indices), _gatherer(), putter(i64)

    def kernel(labels, found, rows, classes, ignored):
        firsts = cuda.shared.array(BLOCK, int64)
        counts = cuda.shared.array(BLOCK, int64)  # not in one line: the simulator knows arrays by their lines
        thread, block = cuda.threadIdx.x, np.int64(cuda.blockIdx.x)
        begin, step = block * BLOCK + thread, np.int64(cuda.gridDim.x) * BLOCK
        first, count = look(labels, begin, step, rows, classes, ignored)
        first, count = gather(firsts, counts, thread, first, count)
        if thread == 0:
            put(found, 2 * block, first)
            put(found, 2 * block + 1, count)

    kernel.__name__ = _name(indices) + "_part"
    return kernel


@functools.cache
def check_end(labels: DType, indices: bool) -> Callable[..., None]:
    """What so many blocks found, at most one for each thread, put together."""
    gather, tell, get = _gatherer(), _teller(labels, indices), getter(i64)

    def kernel(labels, fault, found, outs, parts, classes, ignored):
        firsts = cuda.shared.array(BLOCK, int64)
        counts = cuda.shared.array(BLOCK, int64)  # not in one line: the simulator knows arrays by their lines
        thread = cuda.threadIdx.x
        first, count = NO_ROW, NONE
        if thread < parts:
            first, count = get(found, 2 * thread), get(found, 2 * thread + 1)
        first, count = gather(firsts, counts, thread, first, count)
        if thread == 0:
            tell(labels, fault, outs, first, count, classes, ignored)

    kernel.__name__ = _name(indices) + "_end"
    return kernel
