"""Elementwise maps: one thread per element, in a grid-stride loop, so that any grid covers any length.

Limit: memory bandwidth. Consecutive threads touch consecutive elements of the result, so its stores coalesce always, and
loads wherever an operand's last stride is 1 (or 0: one broadcast load for the warp).
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from ...types import DType
from ..dsl import cuda
from .element import mapper, vector_mapper
from .index import coordinates, dense_offsets, offsets


@functools.cache
def flat(name: str, scalar: Callable[..., Any], ins: tuple[DType, ...], outs: tuple[DType, ...],
         scalars: tuple[bool, ...]) -> Callable[..., None]:  # fmt: skip
    """out[i] = scalar(in[i], …) over n elements; operands marked in `scalars` have one element, read at 0."""
    apply = mapper(scalar, ins, outs)
    of = dense_offsets(scalars)

    def kernel(ins, outs, n):
        i = np.int64(cuda.blockIdx.x) * cuda.blockDim.x + cuda.threadIdx.x
        step = np.int64(cuda.gridDim.x) * cuda.blockDim.x
        while i < n:
            apply(ins, outs, of(i), i)
            i += step

    return _named(kernel, f"elementwise_flat_{name}")


@functools.cache
def vector(name: str, scalar: Callable[..., Any], ins: tuple[DType, ...], outs: tuple[DType, ...],
           scalars: tuple[bool, ...], width: int) -> Callable[..., None]:  # fmt: skip
    """As flat, `width` neighbours per thread and step: 16-byte loads, so that fewer threads keep memory busy.

    The last n % width elements go one by one.
    """
    apply, apply_one, of = (
        vector_mapper(scalar, ins, outs, scalars, width),
        mapper(scalar, ins, outs),
        dense_offsets(scalars),
    )

    def kernel(ins, outs, n):
        thread = np.int64(cuda.blockIdx.x) * cuda.blockDim.x + cuda.threadIdx.x
        step = np.int64(cuda.gridDim.x) * cuda.blockDim.x * width
        whole = n - n % width
        i = thread * width
        while i < whole:
            apply(ins, outs, i)
            i += step
        i = whole + thread
        if i < n:
            apply_one(ins, outs, of(i), i)

    if width > 4:
        kernel.blocks_per_sm = 2  # seven tensors of eight lanes take more than 64 registers
    return _named(kernel, f"elementwise_vector{width}_{name}")


@functools.cache
def strided(name: str, scalar: Callable[..., Any], ins: tuple[DType, ...], outs: tuple[DType, ...], rank: int,
            narrow: bool) -> Callable[..., None]:  # fmt: skip
    """The same over operands with strides (0 where broadcast); results are dense.

    shape, strides   of the result, and of each operand in elements, collapsed to `rank` dimensions
    narrow           coordinates in 32 bits: a 64-bit division takes some hundred instructions, a 32-bit one twenty
    """
    apply = mapper(scalar, ins, outs)
    at, of = coordinates(rank, narrow), offsets(len(ins), rank)

    def kernel(ins, outs, shape, strides, n):
        i = np.int64(cuda.blockIdx.x) * cuda.blockDim.x + cuda.threadIdx.x
        step = np.int64(cuda.gridDim.x) * cuda.blockDim.x
        while i < n:
            apply(ins, outs, of(at(i, shape), strides), i)
            i += step

    return _named(kernel, f"elementwise_strided{rank}{'' if narrow else '_wide'}_{name}")


def _named(kernel: Callable[..., None], name: str) -> Callable[..., None]:
    kernel.__name__ = kernel.__qualname__ = name
    return kernel
