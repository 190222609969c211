"""Reductions on the host: sum, mean and max of what a loop feeds, block by block. Imported by `build` only.

The domain is seen as (outer, reduced, inner) axes. What is reduced is formed in a block of memory that stays in the cache,
so the order in which it is added up depends on the domain alone, never on what is fused to the reduction. Floats add up in
f64, in LANES sums side by side along a row, or one for each column.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, lru_cache
from typing import Any

import numpy as np

from ..types import DType
from .compose import inner, jit

BLOCK = 4096  # elements
LANES = 32


@cache
def _arithmetic(how: str, dtype: DType) -> tuple[Callable[..., Any], Callable[..., Any], np.generic]:
    """(combine(sum, value), finish(sum, count), where sums begin)."""
    number = dtype.compute.numpy.type
    if how == "max":
        least = number(-np.inf) if dtype.kind == "float" else np.iinfo(number).min
        combine = inner(lambda best, value: value if value > best or value != value else best)
        return combine, inner(lambda best, count: best), number(least)
    begin = np.float64(0) if dtype.kind == "float" else np.int64(0)
    wide = type(begin)
    add = inner(lambda total, value: total + wide(value))
    if how == "mean":
        return add, inner(lambda total, count: number(total / count)), begin
    return add, inner(lambda total, count: number(total)), begin


@cache
def _rows(how: str, dtype: DType) -> Callable[..., None]:
    """rows(sums, block, at, length): elements at .. at + length of the block go into LANES sums."""
    combine, *_ = _arithmetic(how, dtype)

    @inner
    def rows(sums, block, at, length):
        whole = length // LANES * LANES
        for i in range(at, at + whole, LANES):
            for lane in range(LANES):
                sums[lane] = combine(sums[lane], block[i + lane])
        for lane in range(length - whole):
            sums[lane] = combine(sums[lane], block[at + whole + lane])

    return rows


@lru_cache(maxsize=256)
def reduction(how: str, dtype: DType, walk: Callable[..., None] | None, columns: bool) -> Callable[..., None]:
    """reduce(arrays, targets, plan, out, outer, reduced, width): out (outer * width) from the fed values of a map.

    walk     the loop that feeds (see loops.py); None where the operand, arrays[0], is what is reduced, as it lies
    columns  whether the innermost axis stays; else width is 1
    """
    combine, finish, begin = _arithmetic(how, dtype)
    fold = _rows(how, dtype)
    wide, narrow = np.dtype(type(begin)), dtype.compute.numpy
    feeds = walk is not None

    @jit
    def reduce_rows(arrays, targets, plan, out, outer, reduced, width):
        sums = np.empty(LANES, wide)
        block = np.empty(BLOCK if feeds else 0, narrow)
        group = max(1, BLOCK // max(reduced, 1))  # short rows are fed many at a time
        for first in range(0, outer, group):
            many = min(group, outer - first)
            if feeds and reduced <= BLOCK:
                walk(arrays, targets, (block,), plan, first * reduced, many * reduced)
            for row in range(first, first + many):
                sums[:] = begin
                if not feeds:
                    fold(sums, arrays[0], row * reduced, reduced)
                elif reduced <= BLOCK:
                    fold(sums, block, (row - first) * reduced, reduced)
                else:
                    for at in range(0, reduced, BLOCK):
                        count = min(BLOCK, reduced - at)
                        walk(arrays, targets, (block,), plan, row * reduced + at, count)
                        fold(sums, block, 0, count)
                total = sums[0]
                for lane in range(1, LANES):
                    total = combine(total, sums[lane])
                out[row] = finish(total, reduced)

    @jit
    def reduce_columns(arrays, targets, plan, out, outer, reduced, width):
        chunk = min(width, BLOCK)
        sums = np.empty(chunk, wide)
        block = np.empty(BLOCK if feeds else 0, narrow)
        group = max(1, BLOCK // width)  # short rows are fed many at a time
        for o in range(outer):
            for column in range(0, width, chunk):
                n = min(chunk, width - column)
                sums[:] = begin
                for first in range(0, reduced, group):
                    many = min(group, reduced - first)
                    start = (o * reduced + first) * width + column
                    if feeds:
                        walk(arrays, targets, (block,), plan, start, many * n)
                    for row in range(many):
                        for j in range(n):
                            value = block[row * n + j] if feeds else arrays[0][start + row * width + j]
                            sums[j] = combine(sums[j], value)
                for j in range(n):
                    out[o * width + column + j] = finish(sums[j], reduced)

    return reduce_columns if columns else reduce_rows
