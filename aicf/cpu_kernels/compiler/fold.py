"""Reductions on the host: sum, mean, max and min of what a walk feeds, block by block. Imported where a loop is compiled.

The domain is seen as (outer, reduced, inner) axes. What is reduced is formed in a block of memory that stays in the cache,
so the order in which it is added up depends on the domain alone, never on what is fused to the reduction. Floats add up in
f64, in LANES sums side by side along a row, or one for each column.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np

from ...rows.program import worst
from ...types import DType
from .frame import helper, inner, local, retyped
from .linked import optimized_first
from .spec import FOLD_BLOCK as BLOCK
from .spec import FoldSpec

LANES = 32


@cache
def _arithmetic(how: str, dtype: DType) -> tuple[Callable[..., Any], Callable[..., Any], np.generic]:
    """(join of two sums, finish(sum, count), the sum of nothing); a sum's type is that of the last one."""
    number = dtype.compute.numpy.type
    if how in ("max", "min"):
        if how == "max":
            join = inner(lambda best, other: other if other > best or other != other else best)
        else:
            join = inner(lambda best, other: other if other < best or other != other else best)
        return join, inner(lambda best, count: best), worst(how, dtype)
    if how == "prod":
        wide = np.dtype(f"{dtype.numpy.kind}8").type if dtype.kind == "int" else np.float64
        return inner(lambda total, other: total * other), inner(lambda total, count: number(total)), wide(1)
    join = inner(lambda total, other: total + other)
    if how == "mean":
        return join, inner(lambda total, count: number(total / count)), np.float64(0)
    return (
        join,
        inner(lambda total, count: number(total)),
        np.dtype(f"{dtype.numpy.kind}8").type(0) if dtype.kind == "int" else np.float64(0),
    )


@cache
def _row(how: str, dtype: DType) -> tuple[Callable[..., None], Callable[..., Any]]:
    """fold(sums, values, at, length): elements at .. at + length go into LANES sums; total(sums): these as one."""
    join, _, begin = _arithmetic(how, dtype)
    wide = type(begin)

    @helper
    @optimized_first
    def fold(sums, values, at, length):
        """Eight elements are joined before a sum in memory is touched."""
        end = at + length
        while end - at >= 8 * LANES:
            for lane in range(LANES):
                i = at + lane
                a = join(wide(values[i]), wide(values[i + LANES]))
                b = join(wide(values[i + 2 * LANES]), wide(values[i + 3 * LANES]))
                c = join(wide(values[i + 4 * LANES]), wide(values[i + 5 * LANES]))
                d = join(wide(values[i + 6 * LANES]), wide(values[i + 7 * LANES]))
                sums[lane] = join(sums[lane], join(join(a, b), join(c, d)))
            at += 8 * LANES
        while at < end:
            for lane in range(min(LANES, end - at)):
                sums[lane] = join(sums[lane], wide(values[at + lane]))
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
        for i in range(length):
            sum = join(sum, wide(values[at + i]))
        return sum

    return short_row


def folding(spec: FoldSpec, walk: Callable[..., None] | None) -> Callable[..., None]:
    """fold(arrays, targets, plan, columns, out, origin, (outer, reduced, width), scratch): out (outer * width) from a map's values,
    `outer` of them from `origin` on.

    walk  the loop that makes them (see compile.py); None where they are there already: arrays[0], as it lies
    """
    return (_columns if spec.columns else _rows)(spec, walk)


def _rows(spec: FoldSpec, walk: Any) -> Callable[..., None]:
    how, dtype, kept = spec.how, spec.dtype, spec.kept
    _, finish, begin = _arithmetic(how, dtype)
    (fold, total), short_row, narrow = _row(how, dtype), _short_row(how, dtype), dtype.compute.numpy
    makes, feeds = walk is not None, walk is not None and kept is None
    lanes, block_of = local(LANES, begin.dtype.name), retyped(narrow.name)

    @helper
    def fold_rows(arrays, targets, plan, plan_columns, out, origin, sizes, scratch):
        outer, reduced, _ = sizes
        sums, block = lanes(), block_of(scratch)
        blocks = (block,) if feeds else ()
        values = block if feeds else targets[kept] if makes else arrays[0]
        group = max(1, BLOCK // max(reduced, 1))  # short rows are fed many at a time
        end = origin + outer
        for first in range(origin, end, group):
            many = min(group, end - first)
            if makes and reduced <= BLOCK:
                walk(arrays, targets, blocks, plan, plan_columns, first * reduced, many * reduced)
            for row in range(first, first + many):
                at = (row - first if feeds else row) * reduced
                if reduced < LANES:
                    out[row] = finish(short_row(values, at, reduced), reduced)
                    continue
                for lane in range(LANES):
                    sums[lane] = begin
                for done in range(0, reduced, BLOCK):
                    count = min(BLOCK, reduced - done)
                    if makes and reduced > BLOCK:
                        walk(arrays, targets, blocks, plan, plan_columns, row * reduced + done, count)
                        at = 0 if feeds else at
                    fold(sums, values, at, count)
                    at += count
                out[row] = finish(total(sums), reduced)

    return fold_rows


def _columns(spec: FoldSpec, walk: Any) -> Callable[..., None]:
    how, dtype, kept = spec.how, spec.dtype, spec.kept
    join, finish, begin = _arithmetic(how, dtype)
    wide, narrow = type(begin), dtype.compute.numpy
    makes, feeds = walk is not None, walk is not None and kept is None
    block_of, sums_of = retyped(narrow.name), retyped(begin.dtype.name, 8 * BLOCK)

    @helper
    def fold_columns(arrays, targets, plan, plan_columns, out, origin, sizes, scratch):
        outer, reduced, width = sizes
        chunk = min(width, BLOCK)
        block, sums = block_of(scratch), sums_of(scratch)
        blocks = (block,) if feeds else ()
        values = block if feeds else targets[kept] if makes else arrays[0]
        group = max(1, BLOCK // width)  # short rows are fed many at a time
        for o in range(origin, origin + outer):
            for column in range(0, width, chunk):
                n = min(chunk, width - column)
                for j in range(n):
                    sums[j] = begin
                for first in range(0, reduced, group):
                    many = min(group, reduced - first)
                    start = (o * reduced + first) * width + column
                    if makes:
                        walk(arrays, targets, blocks, plan, plan_columns, start, many * n)
                    for row in range(many):
                        at = row * n if feeds else start + row * width
                        for j in range(n):
                            sums[j] = join(sums[j], wide(values[at + j]))
                for j in range(n):
                    out[o * width + column + j] = finish(sums[j], reduced)

    return fold_columns
