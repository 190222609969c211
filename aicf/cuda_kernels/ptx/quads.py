"""Register tiles of f32 multiplied out of shared memory, four k at a time: a quad. PTX ISA, chapters "Data Movement and Conversion
Instructions" and "Floating Point Instructions"; sm_70.

Shared memory is MN-major, k below k. A run is four neighbours of a k, one load of 16 bytes. Of each quad a thread holds
all runs of its columns; those of its rows stream by, three of them ahead of their arithmetic.

Registers are read from two banks, an even and an odd one, a number of each at a time, so of a multiply-add's three numbers one has to be
there from the one before: rows are walked to and fro, so that either the row stays or the column does. Numbers of a column have the
same place in each of their runs, and accumulators get registers of the other bank. Runs of four k of a row would alternate: that took a
fifth of the speed on an H200.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ..dsl import deferred, intrinsic, ir, types
from .assemble import assemble
from .copy import Place, moved

RUN = 4  # elements of a run
AHEAD = 3  # runs of rows that are on their way, or there, before they are multiplied
# With effects, so that they stay in order and where they are: LLVM would bring loads to the front and sink accumulators to their next use.
LOAD, FMA = "ld.shared.v4.f32 {$0, $1, $2, $3}, [$4];", "fma.rn.f32 $0, $1, $2, $3;"
MATRICES = "ldmatrix.sync.aligned.m8n8.x4.shared.b16 {$0, $1, $2, $3}, [$4];"
STORE = "st.shared.v4.b32 [$0], {$1, $2, $3, $4};"
TOGETHER = 4  # loads that are on their way


@dataclass(frozen=True)
class Quad:
    """What a thread reads of a quad, and what it does with it.

    rows, columns   where their runs lie, from an address on
    products        of each run of rows: (sum, element of it, element of all of the columns' runs), in order
    accumulators    that a thread has
    """

    rows: tuple[Place, ...]
    columns: tuple[Place, ...]
    products: tuple[tuple[tuple[int, int, int], ...], ...]
    accumulators: int

    @property
    def front(self) -> int:
        """Elements that are there before a quad is multiplied."""
        return RUN * (len(self.columns) + AHEAD)


def quad_of(rows: int, columns: int, a: Callable[[int, int], Place], b: Callable[[int, int], Place]) -> Quad:
    """For so many rows and columns. a, b: the Place of a run, by its first row or column and k. Accumulators are row-major."""
    firsts = [(first, k) for k in range(RUN) for first in range(0, rows, RUN)]
    there, back = range(columns), range(columns)[::-1]
    products = tuple(
        tuple(
            ((first + e) * columns + column, e, k * columns + column)
            for e in range(RUN)
            for column in (back if e % 2 else there)
        )
        for first, k in firsts
    )
    column_runs = tuple(b(first, k) for k in range(RUN) for first in range(0, columns, RUN))
    return Quad(tuple(a(*run) for run in firsts), column_runs, products, rows * columns)


def _load(b: Any, address: Any, place: Place) -> list[Any]:
    kind = ir.LiteralStructType([ir.FloatType()] * RUN)
    run = assemble(b, LOAD, "=f,=f,=f,=f,r", kind, [moved(b, address, place)], True)
    return [b.extract_value(run, i) for i in range(RUN)]


@deferred
def load_front(quad: Quad) -> Any:
    """`load(a, b)`: what has to be there of a quad before it is multiplied, from these addresses on. `ld.shared`."""

    @intrinsic
    def load(typing, a, b):
        def codegen(ctx, builder, sig, args):
            places = [(args[1], place) for place in quad.columns]
            places += [(args[0], place) for place in quad.rows[:AHEAD]]
            values = [x for at, place in places for x in _load(builder, at, place)]
            return ctx.make_tuple(builder, sig.return_type, values)

        return types.UniTuple(types.float32, quad.front)(types.uint32, types.uint32), codegen

    return load


@deferred
def multiply_quad(quad: Quad) -> Any:
    """`multiply(acc, front, a, next_a, next_b)`: (acc with a quad's products, the next one's front), one fused multiply-add for each
    product, in the order of k. `fma.rn`, `ld.shared`.

    a               where this quad's rows begin; its front is there
    next_a, next_b  where the next one begins
    """
    count, late = len(quad.rows), len(quad.rows) - len(quad.columns)

    @intrinsic
    def multiply(typing, acc, front, a, next_a, next_b):
        def codegen(ctx, b, sig, args):
            made = [b.extract_value(args[0], i) for i in range(quad.accumulators)]
            given = [b.extract_value(args[1], i) for i in range(quad.front)]
            columns, rows = given[: RUN * len(quad.columns)], given[RUN * len(quad.columns) :]
            runs = [rows[i : i + RUN] for i in range(0, len(rows), RUN)]
            following: list[Any] = []
            for i, products in enumerate(quad.products):
                to = i + AHEAD
                runs.append(_load(b, args[2] if to < count else args[3], quad.rows[to % count]))
                if i >= late:
                    following += _load(b, args[4], quad.columns[i - late])
                for at, e, h in products:
                    factors = [runs[i][e], columns[h], made[at]]
                    made[at] = assemble(b, FMA, "=f,f,f,f", ir.FloatType(), factors, True)
            following += [x for run in runs[count:] for x in run]
            made_and_front = [
                ctx.make_tuple(b, kind, x) for kind, x in zip(sig.return_type, (made, following))
            ]
            return ctx.make_tuple(b, sig.return_type, made_and_front)

        return types.Tuple((acc, front))(acc, front, types.uint32, types.uint32, types.uint32), codegen

    return multiply


@deferred
def transpose_runs(sources: tuple[Place, ...], targets: tuple[Place, ...]) -> Any:
    """`transpose(source, target)`: a lane of a warp reads a word of each of four matrices and stores them side by side; again and again for as
    many as there are places. Of addresses, lanes give those of rows, as `ldmatrix.x4` takes them, and their own to store to.
    `ldmatrix`, sm_75, `st.shared`."""

    @intrinsic
    def transpose(typing, source, target):
        def codegen(ctx, b, sig, args):
            kind = ir.LiteralStructType([ir.IntType(32)] * RUN)
            for i in range(0, len(sources), TOGETHER):
                runs = [
                    assemble(
                        b, MATRICES, "=r,=r,=r,=r,r,~{memory}", kind, [moved(b, args[0], place)], True, True
                    )
                    for place in sources[i : i + TOGETHER]
                ]
                for run, place in zip(runs, targets[i : i + TOGETHER]):
                    given = [moved(b, args[1], place), *(b.extract_value(run, e) for e in range(RUN))]
                    assemble(b, STORE, "r,r,r,r,r,~{memory}", ir.VoidType(), given, True)
            return ctx.get_dummy_value()

        return types.void(types.uint32, types.uint32), codegen

    return transpose
