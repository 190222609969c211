"""Softmax cross-entropy over rows of logits: `lanes` threads per row, several rows per block. Memory bound.

Both kernels first find a row's maximum and the sum of exp(x - maximum). The row is read two or three times, from cache
after the first when it fits.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import numpy as np

from ...types import DType, f32
from ..dsl import SIMULATED, cuda, device, float32
from .element import getter, putter
from .reduce import BLOCK, reducer, tree

_exp = (lambda x: np.exp(x)) if SIMULATED else (lambda x: math.exp(x))
NAN, NOTHING = np.float32(np.nan), np.float32(0)


@functools.cache
def _row_statistics(dtype: DType, lanes: int) -> Any:
    """`of(partial, logits, start, classes, thread, lane, valid)`: the row's maximum and its sum of exponentials."""
    greater, lowest = reducer("max", dtype)
    add, zero = reducer("sum", dtype)
    fold_max, fold_sum, get, exp = tree(greater, lanes, 1), tree(add, lanes, 1), getter(dtype), device(_exp)

    def of(partial, logits, start, classes, thread, lane, valid):
        top = lowest
        if valid:
            i = np.int64(lane)
            while i < classes:
                top = greater(top, get(logits, start + i))
                i += lanes
        partial[thread] = top
        fold_max(partial, thread, lane)
        top = partial[thread - lane]
        cuda.syncthreads()  # everyone has read the maximum before its place is taken again
        total = zero
        if valid:
            i = np.int64(lane)
            while i < classes:
                total += exp(get(logits, start + i) - top)
                i += lanes
        partial[thread] = total
        fold_sum(partial, thread, lane)
        total = partial[thread - lane]
        cuda.syncthreads()
        return top, total

    return device(of)


@functools.cache
def softmax_xent(dtype: DType, labels: DType, lanes: int) -> Callable[..., None]:
    """loss[n] = log(sum exp(x - max)) + max - x[label]; 0 for the label `ignored`, NaN for another outside [0, classes)."""
    statistics, get, get_label, put = (
        _row_statistics(dtype, lanes),
        getter(dtype),
        getter(labels),
        putter(f32),
    )
    per_block = BLOCK // lanes

    def kernel(logits, labels, loss, rows, classes, ignored):
        partial = cuda.shared.array(BLOCK, float32)
        thread = cuda.threadIdx.x
        lane, slot = thread % lanes, thread // lanes
        row = np.int64(cuda.blockIdx.x) * per_block + slot
        top, total = statistics(partial, logits, row * classes, classes, thread, lane, row < rows)
        if row < rows and lane == 0:
            label = np.int64(get_label(labels, row))
            value = NOTHING if label == ignored else NAN
            if label != ignored and 0 <= label < classes:
                value = math.log(total) + (top - get(logits, row * classes + label))
            put(loss, row, value)

    kernel.__name__ = f"softmax_xent_rows{lanes}_{dtype}"
    return kernel


@functools.cache
def softmax_xent_grad(dtype: DType, labels: DType, lanes: int) -> Callable[..., None]:
    """dlogits[n, j] = (exp(x[j] - max) / sum - (j == label)) * dloss[n]; a row of 0 for the label `ignored`, of NaN for another
    that is no class."""
    statistics, get, get_label = _row_statistics(dtype, lanes), getter(dtype), getter(labels)
    put, exp, per_block = putter(dtype), device(_exp), BLOCK // lanes
    one, zero = np.float32(1), np.float32(0)

    def kernel(logits, labels, dloss, dlogits, rows, classes, ignored):
        partial = cuda.shared.array(BLOCK, float32)
        thread = cuda.threadIdx.x
        lane, slot = thread % lanes, thread // lanes
        row = np.int64(cuda.blockIdx.x) * per_block + slot
        start = row * classes
        top, total = statistics(partial, logits, start, classes, thread, lane, row < rows)
        if row < rows:
            label = np.int64(get_label(labels, row))
            scale = dloss[row] if 0 <= label < classes else NAN
            i = np.int64(lane)
            while i < classes:
                hot = one if i == label else zero
                slope = (exp(get(logits, start + i) - top) / total - hot) * scale
                put(dlogits, start + i, NOTHING if label == ignored else slope)
                i += lanes

    kernel.__name__ = f"softmax_xent_grad_rows{lanes}_{dtype}"
    return kernel
