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
def row_writer(dtype: DType, narrow: bool) -> Any:
    """`write(cache, new, starts, out, sizes, d, read, i, step)`: elements i, i + step, … of the new rows to where they belong in `out`.

    sizes  heads in all, heads of an entry of the batch, places, new rows of a head; d is the length of a row
    read   from one entry of the new rows to the next, from one head, one row, one element
    narrow  32 bits count the new elements: dividing 64 takes most of a microsecond
    """
    get, put, get_start, same = getter(dtype), putter(dtype), getter(i32), same_place()
    number = np.uint32 if narrow else np.uint64

    def write(cache, new, starts, out, sizes, d, read, first, step):
        heads, of_entry, places, rows = sizes[0], sizes[1], sizes[2], sizes[3]
        i, each, width, count = first, number(rows), number(d), number(of_entry)
        while i < heads * rows * d:
            number_of_row = number(number(i) // width)
            whole = number(number_of_row // each)
            row, column = np.int64(number(number_of_row % each)), np.int64(number(number(i) % width))
            entry, of = np.int64(number(whole // count)), np.int64(number(whole % count))
            head = np.int64(whole)
            place = np.int64(get_start(starts, entry)) + row
            if place >= 0 and place < places:
                at = entry * read[0] + of * read[1] + row * read[2] + column * read[3]
                put(out, (head * places + place) * d + column, get(new, at))
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
def cache_write(dtype: DType, narrow: bool) -> Callable[..., None]:
    write = row_writer(dtype, narrow)

    def kernel(keys, values, k, v, starts, new_keys, new_values, sizes, of_k, of_v):
        step = np.int64(cuda.gridDim.x // 2) * cuda.blockDim.x
        first = np.int64(cuda.blockIdx.x // 2) * cuda.blockDim.x + cuda.threadIdx.x
        if cuda.blockIdx.x % 2 == 0:  # side by side: neither waits for the other's trips to memory
            write(keys, k, starts, new_keys, sizes, sizes[4], of_k, first, step)
        else:
            write(values, v, starts, new_values, sizes, sizes[5], of_v, first, step)

    kernel.__name__ = f"cache_write_{dtype}{'' if narrow else '_wide'}"
    return kernel
