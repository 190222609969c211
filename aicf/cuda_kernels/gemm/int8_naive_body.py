"""A product of 8-bit integers with a thread for each element of the result: sums in i32, which wrap around."""

from __future__ import annotations

import functools
from collections.abc import Callable

import numpy as np

from ..dsl import cuda, int32
from ..tiles.element import getter
from .blocks import block_place
from .epilogue import Epilogue, finisher
from .simt_body import NAIVE


@functools.cache
def naive_int8(epilogue: Epilogue) -> Callable[..., None]:
    """Blocks of NAIVE x NAIVE. Parameters are those of `naive`."""
    finish = finisher(epilogue)
    get_a, get_b = getter(epilogue.dtype), getter(epilogue.b_dtype)
    place = block_place(NAIVE, NAIVE, epilogue.batch, epilogue.split)

    def kernel(a, b, operands, sizes, a_steps, b_steps, scales):
        m, n = sizes[0], sizes[1]
        row, column, a_at, b_at, k, origin = place(np.int64(cuda.blockIdx.x), sizes, a_steps, b_steps)
        r, q = row + cuda.threadIdx.y, column + cuda.threadIdx.x
        if r < m and q < n:
            total = int32(0)
            for i in range(k):
                x = get_a(a, a_at + r * a_steps[-2] + i * a_steps[-1])
                y = get_b(b, b_at + i * b_steps[-2] + q * b_steps[-1])
                total = int32(total + int32(x) * int32(y))
            finish(r, q, (total,), n, scales, operands + (origin,))

    kernel.__name__ = f"gemm_naive_int8{epilogue}"
    return kernel
