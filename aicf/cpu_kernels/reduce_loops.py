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
from .compose import helper, inner, jit

BLOCK = 16384  # elements: small enough for the cache, large enough that where a walk begins costs nothing
LANES = 32


@cache
def _arithmetic(how: str, dtype: DType) -> tuple[Callable[..., Any], Callable[..., Any], np.generic]:
    """(join of two sums, finish(sum, count), the sum of nothing); a sum's type is that of the last one."""
    number = dtype.compute.numpy.type
    if how == "max":
        least = number(-np.inf) if dtype.kind == "float" else number(np.iinfo(number).min)
        join = inner(lambda best, other: other if other > best or other != other else best)
        return join, inner(lambda best, count: best), least
    join = inner(lambda total, other: total + other)
    if how == "mean":
        return join, inner(lambda total, count: number(total / count)), np.float64(0)
    return join, inner(lambda total, count: number(total)), np.dtype(dtype.kind + "64").type(0)


@cache
def _row(how: str, dtype: DType) -> tuple[Callable[..., None], Callable[..., Any]]:
    """fold(sums, values, at, length): elements at .. at + length go into LANES sums; total(sums): these as one."""
    join, _, begin = _arithmetic(how, dtype)
    wide = type(begin)

    @helper
    def fold(sums, values, at, length):
        """Eight elements are joined before a sum in memory is touched."""
        end = at + length
        while end - at >= 8 * LANES:
            part = values[at : at + 8 * LANES]
            for lane in range(LANES):
                a = join(wide(part[lane]), wide(part[lane + LANES]))
                b = join(wide(part[lane + 2 * LANES]), wide(part[lane + 3 * LANES]))
                c = join(wide(part[lane + 4 * LANES]), wide(part[lane + 5 * LANES]))
                d = join(wide(part[lane + 6 * LANES]), wide(part[lane + 7 * LANES]))
                sums[lane] = join(sums[lane], join(join(a, b), join(c, d)))
            at += 8 * LANES
        while at < end:
            part = values[at : min(at + LANES, end)]
            for lane in range(part.size):
                sums[lane] = join(sums[lane], wide(part[lane]))
            at += LANES

    @helper
    def total(sums):
        step = LANES // 2
        while step:
            for lane in range(step):
                sums[lane] = join(sums[lane], sums[lane + step])
            step //= 2
        return sums[0]

    return fold, total


@cache
def _short_row(how: str, dtype: DType) -> Callable[..., Any]:
    join, _, begin = _arithmetic(how, dtype)
    wide = type(begin)

    @helper
    def short_row(values, at, length):
        sum = begin
        part = values[at : at + length]
        for i in range(length):
            sum = join(sum, wide(part[i]))
        return sum

    return short_row


@lru_cache(maxsize=256)
def reduction(
    how: str, dtype: DType, walk: Callable[..., None] | None, kept: int | None, columns: bool
) -> Callable[..., None]:
    """reduce(arrays, targets, plan, out, outer, reduced, width): out (outer * width) from the values of a map.

    walk     the loop that makes them (see loops.py); None where they are there already: arrays[0], as it lies
    kept     which of the targets they are stored in; None where they are fed, to a block
    columns  whether the innermost axis stays; else width is 1
    """
    return (_columns if columns else _rows)(how, dtype, walk, kept)


def _rows(how: str, dtype: DType, walk: Any, kept: int | None) -> Callable[..., None]:
    _, finish, begin = _arithmetic(how, dtype)
    (fold, total), short_row, narrow = _row(how, dtype), _short_row(how, dtype), dtype.compute.numpy
    makes, feeds = walk is not None, walk is not None and kept is None

    @jit
    def reduce_rows(arrays, targets, plan, out, outer, reduced, width):
        sums = np.full(LANES, begin)
        block = np.empty(BLOCK if feeds else 0, narrow)
        fed = (block,) if feeds else ()
        values = block if feeds else targets[kept] if makes else arrays[0]
        group = max(1, BLOCK // max(reduced, 1))  # short rows are fed many at a time
        for first in range(0, outer, group):
            many = min(group, outer - first)
            if makes and reduced <= BLOCK:
                walk(arrays, targets, fed, plan, first * reduced, many * reduced)
            for row in range(first, first + many):
                at = (row - first if feeds else row) * reduced
                if reduced < LANES:
                    out[row] = finish(short_row(values, at, reduced), reduced)
                    continue
                sums[:] = begin
                for done in range(0, reduced, BLOCK):
                    count = min(BLOCK, reduced - done)
                    if makes and reduced > BLOCK:
                        walk(arrays, targets, fed, plan, row * reduced + done, count)
                        at = 0 if feeds else at
                    fold(sums, values, at, count)
                    at += count
                out[row] = finish(total(sums), reduced)

    return reduce_rows


def _columns(how: str, dtype: DType, walk: Any, kept: int | None) -> Callable[..., None]:
    join, finish, begin = _arithmetic(how, dtype)
    wide, narrow = type(begin), dtype.compute.numpy
    makes, feeds = walk is not None, walk is not None and kept is None

    @jit
    def reduce_columns(arrays, targets, plan, out, outer, reduced, width):
        chunk = min(width, BLOCK)
        sums = np.full(chunk, begin)
        block = np.empty(BLOCK if feeds else 0, narrow)
        fed = (block,) if feeds else ()
        values = block if feeds else targets[kept] if makes else arrays[0]
        group = max(1, BLOCK // width)  # short rows are fed many at a time
        for o in range(outer):
            for column in range(0, width, chunk):
                n = min(chunk, width - column)
                sums[:] = begin
                for first in range(0, reduced, group):
                    many = min(group, reduced - first)
                    start = (o * reduced + first) * width + column
                    if makes:
                        walk(arrays, targets, fed, plan, start, many * n)
                    for row in range(many):
                        at = row * n if feeds else start + row * width
                        part = values[at : at + n]
                        for j in range(n):
                            sums[j] = join(sums[j], wide(part[j]))
                for j in range(n):
                    out[o * width + column + j] = finish(sums[j], reduced)

    return reduce_columns
