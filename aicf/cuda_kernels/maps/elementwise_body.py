"""Maps: one thread per element or per few neighbours, and a grid that covers them all. There is no loop, nor code for an end that
a length does not have: on an H200 small tensors take as long as their kernel's code takes to come from memory.

Limit: memory bandwidth. Consecutive threads touch consecutive elements of the results, so their stores coalesce always,
and loads wherever an operand's last stride is 1 (or 0: one broadcast load for the warp).
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import numpy as np

from ...rows.program import Expression
from ..dsl import cuda
from ..tiles.element import Loads, Stores, mapper, reads, vector_mapper
from ..tiles.index import Walk, coordinates, offsets


def blocks_per_sm(ins: Loads, outs: Stores, walks: tuple[Walk, ...], width: int) -> int:
    """How many blocks of 256 threads find registers for what one thread holds, and as much again for what is in between."""
    moving = sum(any(steps) for (steps, _), load in zip(walks, ins) if reads(load))
    values = width * (moving + len(outs)) + (len(ins) - moving) // 2
    return 4 if values <= 32 else 2 if values <= 64 else 1


@functools.cache
def strided(name: str, expr: Expression, ins: Loads, outs: Stores, walks: tuple[Walk, ...], narrow: bool,
            width: int = 1, ragged: bool = False) -> Callable[..., None]:  # fmt: skip
    """Loads walk a row-major domain with strides (0 where broadcast); results are dense.

    walks            of each load, over the domain's dimensions, collapsed, and last over the element's own number
    shape, strides   the domain's, and those strides that the walks leave open, in elements
    narrow           coordinates in 32 bits: a 64-bit division takes some hundred instructions, a 32-bit one twenty
    width            neighbours per thread and step, which the last dimension is a multiple of; all loads aligned to them
    ragged           it is no multiple: what crosses from a row to the next goes one by one. What moves along rows lies as the results do
    """
    rank = len(walks[0][0]) - 1 if walks else 0
    at, of, apply_one = coordinates(rank, narrow), offsets(walks), mapper(expr, ins, outs)
    apply = apply_one
    if width > 1:
        apply = vector_mapper(expr, ins, outs, tuple(1 in steps[-2:] for steps, _ in walks), width)

    def kernel(ins, outs, shape, strides, n):
        i = (np.int64(cuda.blockIdx.x) * cuda.blockDim.x + cuda.threadIdx.x) * width
        if i < n:
            apply(ins, outs, of(at(i, shape) + (i,), strides), i)

    def crossing(ins, outs, shape, strides, n):
        i = (np.int64(cuda.blockIdx.x) * cuda.blockDim.x + cuda.threadIdx.x) * width
        if i < n:
            here = at(i, shape)
            if here[rank - 1] + width <= shape[rank - 1]:
                apply(ins, outs, of(here + (i,), strides), i)
            else:
                for j in range(i, min(i + width, n)):
                    apply_one(ins, outs, of(at(j, shape) + (j,), strides), j)

    return _named(crossing if ragged else kernel, name, ragged, blocks_per_sm(ins, outs, walks, width))


@functools.cache
def flat(name: str, expr: Expression, ins: Loads, outs: Stores, walks: tuple[Walk, ...], width: int, threads: int,
         ragged: bool) -> Callable[..., None]:  # fmt: skip
    """A domain of one dimension, `width` elements per thread, a block's width apart: wherever tensors begin, loads of
    neighbouring threads are neighbours, and several are under way at once.

    ragged  the last block has fewer elements than the others
    """
    apply_one, of, per_block = mapper(expr, ins, outs), offsets(walks), width * threads
    resident = blocks_per_sm(ins, outs, walks, width)

    def single(ins, outs, n):
        i = np.int64(cuda.blockIdx.x) * threads + cuda.threadIdx.x
        if i < n:
            apply_one(ins, outs, of((i,), ()), i)

    if width == 1:
        return _named(single, name, False, resident)
    apply = vector_mapper(expr, ins, outs, tuple(steps[-1] == 1 for steps, _ in walks), width, threads)

    def whole(ins, outs, n):
        i = np.int64(cuda.blockIdx.x) * per_block + cuda.threadIdx.x
        apply(ins, outs, of((i,), ()), i)

    def kernel(ins, outs, n):
        i = np.int64(cuda.blockIdx.x) * per_block + cuda.threadIdx.x
        if i + (per_block - threads) < n:
            apply(ins, outs, of((i,), ()), i)
        else:
            for _ in range(width):
                if i < n:
                    apply_one(ins, outs, of((i,), ()), i)
                i += threads

    return _named(kernel if ragged else whole, name, ragged, resident)


@functools.cache
def vector(name: str, expr: Expression, ins: Loads, outs: Stores, walks: tuple[Walk, ...], width: int,
           ragged: bool) -> Callable[..., None]:  # fmt: skip
    """A domain of one dimension, `width` neighbours per thread: 16-byte loads, so that fewer threads keep memory busy.

    ragged  the last n % width elements go one by one
    """
    apply_one, of = mapper(expr, ins, outs), offsets(walks)
    apply = vector_mapper(expr, ins, outs, tuple(steps[-1] == 1 for steps, _ in walks), width)

    def whole(ins, outs, n):
        i = (np.int64(cuda.blockIdx.x) * cuda.blockDim.x + cuda.threadIdx.x) * width
        if i < n:
            apply(ins, outs, of((i,), ()), i)

    def kernel(ins, outs, n):
        thread = np.int64(cuda.blockIdx.x) * cuda.blockDim.x + cuda.threadIdx.x
        end = n - n % width
        i = thread * width
        if i < end:
            apply(ins, outs, of((i,), ()), i)
        i = end + thread
        if i < n:
            apply_one(ins, outs, of((i,), ()), i)

    return _named(kernel if ragged else whole, name, ragged, blocks_per_sm(ins, outs, walks, width))


def _named(kernel: Callable[..., None], name: str, ragged: bool, resident: int) -> Callable[..., None]:
    kernel.__name__ = name + "_ragged" * ragged
    kernel.blocks_per_sm = resident
    return kernel
