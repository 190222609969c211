"""Writing memory without reading any."""

from __future__ import annotations

import functools
from collections.abc import Callable

import numpy as np

from ...types import DType
from ..dsl import cuda
from .element import putter


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
