"""Index arithmetic over dimensions known when a kernel is made: tuples built by recursion, which numba inlines."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from ..dsl import device


@functools.cache
def coordinates(rank: int, narrow: bool) -> Any:
    """`at(i, shape)`: coordinates of linear index i, row-major. Narrow ones are divided out in 32 bits."""
    index = np.uint32 if narrow else np.int64
    if rank == 1:
        return device(lambda i, shape: (np.int64(i),))
    rest, d = coordinates(rank - 1, narrow), rank - 1

    def split(i, shape):
        q = index(i) // index(shape[d])
        return rest(q, shape) + (np.int64(index(i) - q * index(shape[d])),)

    return device(split)


@functools.cache
def offset(rank: int) -> Any:
    """`of(at, strides)`: coordinates to an offset."""
    d = rank - 1
    if rank == 1:
        return device(lambda at, strides: at[0] * strides[0])
    rest = offset(rank - 1)
    return device(lambda at, strides: rest(at, strides) + at[d] * strides[d])


@functools.cache
def offsets(count: int, rank: int) -> Any:
    """`of(at, strides)`: coordinates to one offset per operand."""
    if count == 0:
        return device(lambda at, strides: ())
    one, rest, k = offset(rank), offsets(count - 1, rank), count - 1
    return device(lambda at, strides: rest(at, strides) + (one(at, strides[k]),))


@functools.cache
def dense_offsets(scalars: tuple[bool, ...]) -> Any:
    """`of(i)`: one offset per operand: i, or 0 for a one-element operand."""
    if not scalars:
        return device(lambda i: ())
    rest = dense_offsets(scalars[:-1])
    if scalars[-1]:
        return device(lambda i: rest(i) + (np.int64(0),))
    return device(lambda i: rest(i) + (i,))
