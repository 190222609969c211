"""What follows a product before it is written: any map over (m, n), for a run of neighbouring columns at a time.

The map's arithmetic and its loads and stores are element.py's; here it gets the product to start from and the places to
read at.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...rows.program import Expression
from ...types import DType, f32
from ..dsl import SIMULATED, deferred, device, intrinsic, types
from ..tiles.element import vector_applier
from ..tiles.storage import emit_load, emit_load_vector, unpack

GIVEN, LEADING = "given", "n"  # strides that a kernel is told when it starts, or that are the results' own


@dataclass(frozen=True)
class Read:
    """A load at element (*z, r, q) of the results: element offset + z * batch + r * row + q * column.

    dtype               None for that number itself
    batch, row, column  0 or 1 where a stride is that; LEADING where it is n; else GIVEN
    """

    dtype: DType | None
    row: int | str
    column: int | str
    offset: int = 0
    batch: tuple[int | str, ...] = ()

    @property
    def steps(self) -> tuple[int | str, ...]:
        return (*self.batch, self.row, self.column)


@dataclass(frozen=True)
class Epilogue:
    """alpha * product + beta * c, and a map over that, which a kernel does to `width` neighbours of a row together.

    dtype, b_dtype  of a and b
    c      its element type, if there is one
    width  over 1: runs are whole, what walks along them is aligned, and no column stride is GIVEN
    batch  axes of the batch, at most 2
    split  the batch is of splits of k
    column_sums  where the expression has one result more than there are stores: columns of that are added up, and written so
    scaled alpha is not 1
    """

    expression: Expression
    dtype: DType
    b_dtype: DType
    c: DType | None
    reads: tuple[Read, ...]
    stores: tuple[DType, ...]
    width: int = 1
    batch: int = 0
    split: bool = False
    column_sums: DType | None = None
    scaled: bool = True

    @property
    def whole(self) -> bool:
        """Whether accumulators are i32: of products of 8-bit integers."""
        return self.dtype.kind == "int"

    @property
    def outside(self) -> tuple[Any, ...] | None:
        """What a run outside of the results adds to sums."""
        return None if self.column_sums is None else (np.float32(0),) * self.width

    def __str__(self) -> str:
        suffixes = (
            ("split" if self.split else f"batch{self.batch}", self.batch > 0),
            (self.dtype.name, self.dtype is not f32),
            (self.b_dtype.name, self.b_dtype is not self.dtype),
            ("c", self.c),
            (self.expression.name, self.expression.steps),
            (str(len(self.stores)), len(self.stores) > 1),
            (f"sums_{self.column_sums}", self.column_sums is not None),
        )
        return "".join(f"_{name}" for name, on in suffixes if on)


@functools.cache
def finisher(epilogue: Epilogue) -> Any:
    """`finish(r, q, products, n, scales, operands)`: from accumulators of row r, columns q and on, to stored results.

    products  `width` f32, or i32 of integers
    scales    (alpha, beta)
    operands  ((c,) or (), pointers of loads, strides that are GIVEN, pointers of results, (where sums go,) or (), origin)
    origin    of a batch: the row that this product begins at in the results, and its index along each axis; else ()

    Returns what is to be added up, if anything.
    """
    reads = epilogue.reads
    start = start_of(epilogue, epilogue.width)
    at, first = places(reads), first_row(epilogue.batch)
    moves = tuple(read.column != 0 for read in reads)
    dtypes = tuple(read.dtype for read in reads)
    apply = vector_applier(epilogue.expression, dtypes, epilogue.stores, moves, epilogue.width)

    def finish(r, q, products, n, scales, operands):
        c, ins, strides, outs, _, origin = operands
        to = (first(origin) + r) * n + q
        values = start(products, scales, c, to)
        return apply(values, ins, outs, at(np.int64(r), np.int64(q), np.int64(n), strides, origin), to)

    return device(finish)


@functools.cache
def first_row(batch: int) -> Any:
    """`first(origin)`: the row that a product begins at in the results, as 64 bits."""
    return device((lambda origin: origin[0]) if batch else (lambda origin: np.int64(0)))


@functools.cache
def places(reads: tuple[Read, ...]) -> Any:
    """`at(r, q, n, strides, origin)`: for each read, its element."""
    if not reads:
        return device(lambda r, q, n, strides, origin: ())
    others, read = places(reads[:-1]), reads[-1]
    before = sum(other.steps.count(GIVEN) for other in reads[:-1])
    *batch, row, column = (
        stride(step, before + read.steps[:axis].count(GIVEN)) for axis, step in enumerate(read.steps)
    )
    start = batch_start(tuple(batch))
    offset = np.int64(read.offset)

    def at(r, q, n, strides, origin):
        from_ = offset + start(n, strides, origin)
        return others(r, q, n, strides, origin) + (from_ + r * row(n, strides) + q * column(n, strides),)

    return device(at)


@functools.cache
def batch_start(steps: tuple[Any, ...]) -> Any:
    """`start(n, strides, origin)`: where a read of this point of the batch begins."""
    if not steps:
        return device(lambda n, strides, origin: np.int64(0))
    others, step, axis = batch_start(steps[:-1]), steps[-1], len(steps)
    return device(lambda n, strides, origin: others(n, strides, origin) + origin[axis] * step(n, strides))


@functools.cache
def stride(known: int | str, position: int) -> Any:
    """`of(n, strides)`: a stride of a read; `position` is among those that are GIVEN."""
    if known == LEADING:
        return device(lambda n, strides: n)
    if known == GIVEN:
        return device(lambda n, strides: strides[position])
    constant = np.int64(known)
    return device(lambda n, strides: constant)


def start_of(epilogue: Epilogue, width: int, preloaded: bool = False) -> Any:
    """`starter` of an epilogue's; integers are neither scaled nor added to."""
    if epilogue.whole:
        return device(lambda products, scales, c, i: products)
    return starter(epilogue.c, width, epilogue.scaled, preloaded)


@deferred
def starter(dtype: DType | None, width: int, by_alpha: bool, preloaded: bool = False) -> Any:
    """`start(products, scales, c, i)`: alpha * product + beta * c for `width` neighbours, in f32 and with one fused
    multiply-add for c whether or not contraction is allowed elsewhere: fused or not, a product is the same number.

    dtype    of c; None: there is none
    by_alpha otherwise alpha is 1
    preloaded  in the place of c's pointer there is a word of 32 bits with its neighbours
    """
    if SIMULATED:

        def start_each(products, scales, c, i):
            scaled = [np.float32(scales[0] * x) if by_alpha else np.float32(x) for x in products]
            if dtype is None:
                return tuple(scaled)
            at = 0 if preloaded else i
            return tuple(np.float32(scales[1] * np.float32(c[0][at + j]) + x) for j, x in enumerate(scaled))

        return start_each

    @intrinsic
    def start(typing, products, scales, c, i):
        def codegen(ctx, b, sig, args):
            alpha, beta = (b.extract_value(args[1], j) for j in range(2))
            values = [b.extract_value(args[0], j) for j in range(width)]
            values = [b.fmul(alpha, x) for x in values] if by_alpha else values
            if dtype is not None:
                given = b.extract_value(args[2], 0)
                if preloaded:
                    added = unpack(ctx, b, dtype, [given])
                elif width > 1:
                    added = emit_load_vector(ctx, b, dtype, b.gep(given, [args[3]]), width)
                else:
                    added = [emit_load(ctx, b, dtype, b.gep(given, [args[3]]))]
                values = [b.fma(beta, x, value) for x, value in zip(added, values)]
            return ctx.make_tuple(b, sig.return_type, values)

        return types.UniTuple(types.float32, width)(products, scales, c, i), codegen

    return start
