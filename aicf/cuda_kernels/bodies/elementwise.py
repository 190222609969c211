"""Maps: one thread per element or per few neighbours, in a grid-stride loop, so that any grid covers any length.

Limit: memory bandwidth. Consecutive threads touch consecutive elements of the results, so their stores coalesce always,
and loads wherever an operand's last stride is 1 (or 0: one broadcast load for the warp).
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import numpy as np

from ...registry.program import Expression
from ..dsl import cuda
from .element import Loads, Stores, mapper, vector_mapper
from .index import Walk, coordinates, offsets


def blocks_per_sm(ins: Loads, outs: Stores, walks: tuple[Walk, ...], width: int) -> int:
    """How many blocks of 256 threads find registers for what one thread holds, and as much again for what is in between."""
    moving = sum(any(steps) for (steps, _), dtype in zip(walks, ins) if dtype is not None)
    values = width * (moving + len(outs)) + (len(ins) - moving) // 2
    return 4 if values <= 32 else 2 if values <= 64 else 1


@functools.cache
def strided(name: str, expr: Expression, ins: Loads, outs: Stores, walks: tuple[Walk, ...], narrow: bool,
            width: int = 1) -> Callable[..., None]:  # fmt: skip
    """Loads walk a row-major domain with strides (0 where broadcast); results are dense.

    walks            of each load, over the domain's dimensions, collapsed, and last over the element's own number
    shape, strides   the domain's, and those strides that the walks leave open, in elements
    narrow           coordinates in 32 bits: a 64-bit division takes some hundred instructions, a 32-bit one twenty
    width            neighbours per thread and step, which the last dimension is a multiple of; all loads aligned to them
    """
    rank = len(walks[0][0]) - 1 if walks else 0
    at, of = coordinates(rank, narrow), offsets(walks)
    if width == 1:
        apply = mapper(expr, ins, outs)
    else:
        apply = vector_mapper(expr, ins, outs, tuple(1 in steps[-2:] for steps, _ in walks), width)

    resident = blocks_per_sm(ins, outs, walks, width)

    def kernel(ins, outs, shape, strides, n):
        i = (np.int64(cuda.blockIdx.x) * cuda.blockDim.x + cuda.threadIdx.x) * width
        step = np.int64(cuda.gridDim.x) * cuda.blockDim.x * width
        while i < n:
            apply(ins, outs, of(at(i, shape) + (i,), strides), i)
            i += step

    kernel.blocks_per_sm = resident
    kernel.__name__ = name
    return kernel


@functools.cache
def flat(name: str, expr: Expression, ins: Loads, outs: Stores, walks: tuple[Walk, ...], width: int,
         threads: int) -> Callable[..., None]:  # fmt: skip
    """A domain of one dimension, `width` elements per thread and step, a block's width apart: wherever tensors begin, loads of
    neighbouring threads are neighbours, and several are under way at once."""
    apply_one, of = mapper(expr, ins, outs), offsets(walks)
    apply = vector_mapper(expr, ins, outs, tuple(steps[-1] == 1 for steps, _ in walks), width, threads)
    per_block, resident = width * threads, blocks_per_sm(ins, outs, walks, width)

    def kernel(ins, outs, n):
        i = np.int64(cuda.blockIdx.x) * per_block + cuda.threadIdx.x
        step = np.int64(cuda.gridDim.x) * per_block
        while i < n:
            if i + (per_block - threads) < n:
                apply(ins, outs, of((i,), ()), i)
            else:
                k = i
                while k < n:
                    apply_one(ins, outs, of((k,), ()), k)
                    k += threads
            i += step

    kernel.blocks_per_sm = resident
    kernel.__name__ = name
    return kernel


@functools.cache
def vector(name: str, expr: Expression, ins: Loads, outs: Stores, walks: tuple[Walk, ...],
           width: int) -> Callable[..., None]:  # fmt: skip
    """A domain of one dimension, `width` neighbours per thread and step: 16-byte loads, so that fewer threads keep memory
    busy. The last n % width elements go one by one."""
    apply_one, of = mapper(expr, ins, outs), offsets(walks)
    apply = vector_mapper(expr, ins, outs, tuple(steps[-1] == 1 for steps, _ in walks), width)

    resident = blocks_per_sm(ins, outs, walks, width)

    def kernel(ins, outs, n):
        thread = np.int64(cuda.blockIdx.x) * cuda.blockDim.x + cuda.threadIdx.x
        step = np.int64(cuda.gridDim.x) * cuda.blockDim.x * width
        whole = n - n % width
        i = thread * width
        while i < whole:
            apply(ins, outs, of((i,), ()), i)
            i += step
        i = whole + thread
        if i < n:
            apply_one(ins, outs, of((i,), ()), i)

    kernel.blocks_per_sm = resident
    kernel.__name__ = name
    return kernel
