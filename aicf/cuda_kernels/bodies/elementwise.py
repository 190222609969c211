"""Elementwise maps: one thread per element, in a grid-stride loop, so that any grid covers any length.

Limit: memory bandwidth. Consecutive threads touch consecutive elements of the result, so its stores coalesce always, and
loads wherever an operand's last stride is 1 (or 0: one broadcast load for the warp).
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
from numba import cuda

from ...types import DType
from .element import device, mapper


@functools.cache
def flat(name: str, scalar: Callable[..., Any], ins: tuple[DType, ...], outs: tuple[DType, ...],
         scalars: tuple[bool, ...]) -> Callable[..., None]:  # fmt: skip
    """out[i] = scalar(in[i], …) over n elements; operands marked in `scalars` have one element, read at 0."""
    apply = mapper(scalar, ins, outs)
    offsets = _flat_offsets(scalars)

    def kernel(ins, outs, n):
        i = np.int64(cuda.blockIdx.x) * cuda.blockDim.x + cuda.threadIdx.x
        step = np.int64(cuda.gridDim.x) * cuda.blockDim.x
        while i < n:
            apply(ins, outs, offsets(i), i)
            i += step

    return _named(kernel, f"elementwise_flat_{name}")


@functools.cache
def strided(name: str, scalar: Callable[..., Any], ins: tuple[DType, ...], outs: tuple[DType, ...], rank: int,
            narrow: bool) -> Callable[..., None]:  # fmt: skip
    """The same over operands with strides (0 where broadcast); results are dense.

    shape, strides   of the result, and of each operand in elements, collapsed to `rank` dimensions
    narrow           coordinates in 32 bits: a 64-bit division takes some hundred instructions, a 32-bit one twenty
    """
    apply = mapper(scalar, ins, outs)
    coordinates = _coordinates(rank, np.uint32 if narrow else np.int64)
    offsets = _offsets(len(ins), rank)

    def kernel(ins, outs, shape, strides, n):
        i = np.int64(cuda.blockIdx.x) * cuda.blockDim.x + cuda.threadIdx.x
        step = np.int64(cuda.gridDim.x) * cuda.blockDim.x
        while i < n:
            apply(ins, outs, offsets(coordinates(i, shape), strides), i)
            i += step

    return _named(kernel, f"elementwise_strided{rank}{'' if narrow else '_wide'}_{name}")


def _named(kernel: Callable[..., None], name: str) -> Callable[..., None]:
    kernel.__name__ = kernel.__qualname__ = name
    return kernel


# --- index arithmetic: tuples built by recursion, which numba inlines -------------------------------------------------


@functools.cache
def _flat_offsets(scalars: tuple[bool, ...]) -> Any:
    """i -> one offset per operand: i, or 0 for a one-element operand."""
    if not scalars:
        return device(lambda i: ())
    rest = _flat_offsets(scalars[:-1])
    if scalars[-1]:
        return device(lambda i: rest(i) + (np.int64(0),))
    return device(lambda i: rest(i) + (i,))


@functools.cache
def _coordinates(rank: int, index: Any) -> Any:
    """Linear index -> coordinates, row-major; divisions are done in the type `index`."""
    if rank == 1:
        return device(lambda i, shape: (np.int64(i),))
    rest, d = _coordinates(rank - 1, index), rank - 1

    def split(i, shape):
        q = index(i) // index(shape[d])
        return rest(q, shape) + (np.int64(index(i) - q * index(shape[d])),)

    return device(split)


@functools.cache
def _offset(rank: int) -> Any:
    """Coordinates and one operand's strides -> its offset."""
    d = rank - 1
    if rank == 1:
        return device(lambda at, strides: at[0] * strides[0])
    rest = _offset(rank - 1)
    return device(lambda at, strides: rest(at, strides) + at[d] * strides[d])


@functools.cache
def _offsets(count: int, rank: int) -> Any:
    """Coordinates -> one offset per operand."""
    if count == 0:
        return device(lambda at, strides: ())
    one, rest, k = _offset(rank), _offsets(count - 1, rank), count - 1
    return device(lambda at, strides: rest(at, strides) + (one(at, strides[k]),))
