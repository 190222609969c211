"""One launch over several independent maps that do the same, each with a length of its own: ops side by side.

A block works on one part. Of a few parts, which one, and so its pointers, follows from the first block of each: comparisons and
selects on numbers that are the same for the whole block. An index into a tuple would put the tuple on the stack. Of many parts
a table in device memory says it: first the part of each block, then a row for each part.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from ...rows.program import Expression
from ...types import DType
from ..compiler.compile import in_memory
from ..dsl import SIMULATED, cuda, deferred, device, intrinsic, ir, types
from ..tiles.element import Loads, Stores, mapper, vector_mapper
from ..tiles.index import Walk, offsets
from .elementwise_body import blocks_per_sm


@deferred
def picker() -> Any:
    """`pick(columns, block, firsts)`: of each column, the entry of the part to which the block belongs.

    columns  a tuple of tuples: one entry per part, or one for all
    firsts   the first block of each part, ascending; of parts with the same one the last counts, the others are empty
    """
    if SIMULATED:
        return lambda columns, block, firsts: tuple(
            c[sum(block >= f for f in firsts) - 1 if len(c) > 1 else 0] for c in columns
        )

    @intrinsic
    def pick(typing, columns, block, firsts):
        def codegen(ctx, b, sig, args):
            at = ctx.cast(b, args[1], block, types.int64)
            begun = [
                b.icmp_signed(">=", at, ctx.cast(b, b.extract_value(args[2], part), kind, types.int64))
                for part, kind in enumerate(firsts.types)
            ]
            picked = []
            for c, column in enumerate(columns.types):
                entries = b.extract_value(args[0], c)
                value = b.extract_value(entries, 0)
                for part in range(1, len(column.types)):
                    value = b.select(begun[part], b.extract_value(entries, part), value)
                picked.append(value)
            return ctx.make_tuple(b, sig.return_type, picked)

        entry = tuple(column.types[0] for column in columns.types)
        return types.BaseTuple.from_types(entry)(columns, block, firsts), codegen

    return pick


@functools.cache
def multi(name: str, expr: Expression, ins: Loads, outs: Stores, walks: tuple[Walk, ...],
          width: int) -> Callable[..., None]:  # fmt: skip
    """Each part as in elementwise.vector, by its own blocks `first` to `end` in a loop over its `length` elements.

    ins, outs             of each load and store, the pointers of all parts, or one for all
    lengths, firsts, ends one number for each part
    """
    pick, walk = picker(), walker(expr, ins, outs, walks, width)

    def kernel(ins, outs, lengths, firsts, ends):
        block = np.int64(cuda.blockIdx.x)
        sources, targets = pick(ins, block, firsts), pick(outs, block, firsts)
        n, first, end = pick((lengths, firsts, ends), block, firsts)
        walk(sources, targets, block, n, first, end)

    kernel.blocks_per_sm = max(
        1, blocks_per_sm(ins, outs, walks, width) // 2
    )  # its pointers are in registers
    kernel.__name__ = name
    return kernel


@functools.cache
def multi_table(name: str, expr: Expression, ins: Loads, outs: Stores, walks: tuple[Walk, ...],
                width: int) -> Callable[..., None]:  # fmt: skip
    """The same for any number of parts.

    table  the part of each block; then for each part the pointers of its loads and stores, its length, first and end
    rows   where those begin
    """
    loads = tuple(dtype for dtype in ins if dtype is not None)
    sources_at, targets_at, walk = pointers(loads), pointers(outs), walker(expr, ins, outs, walks, width)
    first_target, numbers = len(loads), len(loads) + len(outs)
    entries = numbers + 3

    def kernel(table, rows):
        block = np.int64(cuda.blockIdx.x)
        row = rows + table[block] * entries
        sources, targets = sources_at(table, row), targets_at(table, row + first_target)
        n, first, end = table[row + numbers], table[row + numbers + 1], table[row + numbers + 2]
        walk(sources, targets, block, n, first, end)

    kernel.blocks_per_sm = max(1, blocks_per_sm(ins, outs, walks, width) // 2)
    kernel.__name__ = name
    return kernel


@deferred
def pointers(dtypes: tuple[DType, ...]) -> Any:
    """`at(table, i)`: entries i and on of a table as pointers to elements of these types."""
    if SIMULATED:
        return lambda table, i: tuple(table[int(i) : int(i) + len(dtypes)])

    @intrinsic
    def at(typing, table, i):
        kinds = [types.CPointer(getattr(types, in_memory(dtype))) for dtype in dtypes]

        def codegen(ctx, b, sig, args):
            first = b.gep(args[0], [ctx.cast(b, args[1], i, types.int64)])
            words = [b.load(b.gep(first, [ir.Constant(ir.IntType(64), n)])) for n in range(len(kinds))]
            made = [b.inttoptr(word, ctx.get_value_type(kind)) for word, kind in zip(words, kinds)]
            return ctx.make_tuple(b, sig.return_type, made)

        return types.BaseTuple.from_types(kinds)(table, i), codegen

    return at


@functools.cache
def walker(expr: Expression, ins: Loads, outs: Stores, walks: tuple[Walk, ...], width: int) -> Any:
    """`walk(sources, targets, block, n, first, end)`: n elements by blocks `first` to `end`, of which this is one."""
    apply_one, of = mapper(expr, ins, outs), offsets(walks)
    apply = vector_mapper(expr, ins, outs, tuple(steps[-1] == 1 for steps, _ in walks), width)

    def walk(sources, targets, block, n, first, end):
        thread = (block - first) * cuda.blockDim.x + cuda.threadIdx.x
        step = (end - first) * cuda.blockDim.x * width
        whole = n - n % width
        i = thread * width
        while i < whole:
            apply(sources, targets, of((i,), ()), i)
            i += step
        i = whole + thread
        if i < n:
            apply_one(sources, targets, of((i,), ()), i)

    return device(walk)
