"""A look at several tensors side by side, each of a length of its own: whether all elements are finite.

A block works on one tensor, as in multi_body.py. Sixteen bytes a load where all tensors are aligned for that, told by the bits of the
exponents; a thread that finds one that is not finite writes the flag, which was set before. Limit: memory.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import numpy as np

from ...types import DType, bf16, bool_, f16, f32
from ..dsl import cuda, device
from ..ptx import global_address, load_words
from ..tiles.element import getter, putter
from .multi_body import picker

EXPONENTS = {  # the bits of a word that are all set where a number in it is not finite, of each number
    f32: (0x7F800000, 0x7F800000),
    f16: (0x7C00, 0x7C000000),
    bf16: (0x7F80, 0x7F800000),
}
NONE, ONE = np.int64(0), np.int64(1)


@functools.cache
def set_flag() -> Callable[..., None]:
    """flag[0] = true."""
    put = putter(bool_)

    def kernel(flag):
        if cuda.threadIdx.x == 0:
            put(flag, NONE, ONE)

    kernel.__name__ = "set_flag"
    return kernel


@functools.cache
def finite(count: int, dtype: DType, wide: bool) -> Callable[..., None]:
    """flag[0] = false if an element of `count` tensors is NaN or infinite; else it stays.

    lengths, firsts, ends   of each tensor, its elements and its blocks
    wide                    16 bytes a load
    """
    pick, get, put = picker(), getter(dtype), putter(bool_)
    at, load, per = global_address(), load_words(4, "once"), 16 // dtype.itemsize
    low, high = (np.uint32(mask) for mask in EXPONENTS[dtype])

    def wrong(word):
        return (word & low) == low or (word & high) == high

    wrong = device(wrong)

    def look(source, thread, step, n):
        """Whether this thread finds one."""
        found, whole = NONE, (n // per if wide else NONE)
        i = thread
        while i < whole:
            a, b, c, d = load(at(source, i * per))
            if wrong(a) or wrong(b) or wrong(c) or wrong(d):
                found = ONE
            i += step
        i = whole * per + thread
        while i < n:
            x = get(source, i)
            if x - x != 0:  # NaN, of what is not finite
                found = ONE
            i += step
        return found

    look = device(look)

    def kernel(ins, flag, lengths, firsts, ends):
        block = np.int64(cuda.blockIdx.x)
        (source,) = pick((ins,), block, firsts)
        n, first, end = pick((lengths, firsts, ends), block, firsts)
        thread = (block - first) * cuda.blockDim.x + cuda.threadIdx.x
        if look(source, thread, (end - first) * cuda.blockDim.x, n) != NONE:
            put(flag, NONE, NONE)

    kernel.__name__ = f"all_finite{count}_{dtype}{'_wide' * wide}"
    return kernel
