"""New rows of a KV cache: each thread writes elements of its own, at the places that a counter on the device says."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from ...types import DType, i32
from ..dsl import cuda, device
from ..ptx.memory import same_place
from ..tiles.element import getter, putter


@functools.cache
def row_writer(dtype: DType) -> Any:
    """`write(cache, new, starts, out, sizes, d, i, step)`: elements i, i + step, … of the new rows to where they belong in `out`.

    sizes  heads in all, heads of an entry of the batch, places, new rows of a head; d is the length of a row
    """
    get, put, get_start, same = getter(dtype), putter(dtype), getter(i32), same_place()

    def write(cache, new, starts, out, sizes, d, first, step):
        heads, of_entry, places, rows = sizes[0], sizes[1], sizes[2], sizes[3]
        i = first
        while i < heads * rows * d:
            head, row = i // (rows * d), i // d % rows
            place = np.int64(get_start(starts, head // of_entry)) + row
            if place >= 0 and place < places:
                put(out, (head * places + place) * d + i % d, get(new, i))
            i += step
        if not same(cache, out):
            i = first
            while i < heads * places * d:
                head, place = i // (places * d), i // d % places
                row = place - np.int64(get_start(starts, head // of_entry))
                if row < 0 or row >= rows:
                    put(out, i, get(cache, i))
                i += step

    return device(write)


@functools.cache
def cache_write(dtype: DType) -> Callable[..., None]:
    write = row_writer(dtype)

    def kernel(keys, values, k, v, starts, new_keys, new_values, sizes):
        step = np.int64(cuda.gridDim.x) * cuda.blockDim.x
        first = np.int64(cuda.blockIdx.x) * cuda.blockDim.x + cuda.threadIdx.x
        write(keys, k, starts, new_keys, sizes, sizes[4], first, step)
        write(values, v, starts, new_values, sizes, sizes[5], first, step)

    kernel.__name__ = f"cache_write_{dtype}"
    return kernel
