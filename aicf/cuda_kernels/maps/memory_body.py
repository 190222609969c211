"""Writing memory without arithmetic."""

from __future__ import annotations

import functools
from collections.abc import Callable

import numpy as np

from ...rows.program import Expression
from ...types import DType
from ..dsl import cuda
from ..tiles.element import mapper, putter
from ..tiles.index import Walk, coordinates, offsets


@functools.cache
def fill(dtype: DType) -> Callable[..., None]:
    """out[i] = value, in a grid-stride loop. Stores only, so the write bandwidth is the limit."""
    put = putter(dtype)

    def kernel(out, value, n):
        i = np.int64(cuda.blockIdx.x) * cuda.blockDim.x + cuda.threadIdx.x
        step = np.int64(cuda.gridDim.x) * cuda.blockDim.x
        while i < n:
            put(out, i, value)
            i += step

    kernel.__name__ = f"fill_{dtype}"
    return kernel


@functools.cache
def copy_strided(
    expr: Expression, dtype: DType, walks: tuple[Walk, Walk], narrow: bool
) -> Callable[..., None]:
    """out[i] = in[i] where both have strides; `expr` is the identity.

    walks            of operand and result, collapsed
    shape, strides   of both, and those strides that the walks leave open, in elements
    narrow           coordinates in 32 bits, whose division is five times as quick
    """
    rank = len(walks[0][0])
    apply, at, of = mapper(expr, (dtype,), (dtype,)), coordinates(rank, narrow), offsets(walks)

    def kernel(ins, outs, shape, strides, n):
        i = np.int64(cuda.blockIdx.x) * cuda.blockDim.x + cuda.threadIdx.x
        step = np.int64(cuda.gridDim.x) * cuda.blockDim.x
        while i < n:
            both = of(at(i, shape), strides)
            apply(ins, outs, (both[0],), both[1])
            i += step

    kernel.__name__ = f"copy_strided{rank}{'' if narrow else '_wide'}_{dtype}"
    return kernel
