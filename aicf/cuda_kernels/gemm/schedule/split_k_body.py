"""The second half of a product whose k was split: sums of its splits, in order, and what follows the product."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from ....types import f32
from ...dsl import cuda, uint32
from ...tiles.tile import add_tiles, runs, zeros
from ..epilogue import Epilogue, finisher


@functools.cache
def sum_splits(epilogue: Epilogue) -> Callable[..., None]:
    """A thread per run of `epilogue.width` columns; `partial` has the splits' sums as f32 matrices of m x n, one after the other.

    Loads of several splits are under way together; they are added first to last, so that the sum is always the same.
    """
    width, finish, start = epilogue.width, finisher(epilogue), zeros(epilogue.width)
    load, add = runs(f32, 1, width, _place), add_tiles(epilogue.width)

    def kernel(partial, splits, operands, sizes, scales):
        m, n = sizes
        across = uint32(n) // uint32(width)
        run = uint32(cuda.blockIdx.x) * uint32(cuda.blockDim.x) + uint32(cuda.threadIdx.x)
        if run < across * uint32(m):
            r, q = run // across, run % across * uint32(width)
            total, at = start, np.int64(run) * width
            for _ in range(splits):
                total = add(total, load(partial, at))
                at += np.int64(m) * n
            finish(np.int64(r), np.int64(q), total, n, scales, operands + ((),))

    kernel.__name__ = f"gemm_sum_parts{epilogue}"
    return kernel


def _place(i: Any, at: Any) -> Any:
    return at
