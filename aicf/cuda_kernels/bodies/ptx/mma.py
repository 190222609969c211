"""Matrices in a warp's registers: products, loads and stores of 8 x 8 tiles of halves. PTX ISA, chapter "Warp Level Matrix
Multiply-Accumulate Instructions"."""

from __future__ import annotations

from typing import Any

from ....types import DType, bf16, f16
from ...dsl import deferred, intrinsic, ir, types
from ..element import const
from .assemble import assemble, instruction

Places = tuple[tuple[int, ...], ...]


@deferred
def multiply_tiles(dtype: DType, a: Places, b: Places, a_transposed: bool, b_transposed: bool) -> Any:
    """`multiply(acc, a_at, b_at)`: acc + a b over slices of 16 along k, by a warp.

    a, b         where fragments of 16 lines lie, in bytes: a tuple of them for each slice
    a_at, b_at   this thread's addresses for ldmatrix, as `gemm_mma.lane_of` says
    acc          four f32 per 16 x 8 tile; tiles row-major
    """
    kind = {f16: "f16", bf16: "bf16"}[dtype]
    product = f"mma.sync.aligned.m16n8k16.row.col.f32.{kind}.{kind}.f32"
    text = f"{product} {{$0,$1,$2,$3}}, {{$4,$5,$6,$7}}, {{$8,$9}}, {{$10,$11,$12,$13}};"
    rows, columns = len(a[0]), 2 * len(b[0])  # tiles of 16 and of 8, which go two to a fragment

    @intrinsic
    def multiply(typing, acc, a_at, b_at):
        def codegen(ctx, builder, sig, args):
            take, word, real = builder.extract_value, ir.IntType(32), ir.FloatType()

            def load(base, place, transposed):
                at = builder.add(base, const(place))
                text = (
                    f"ldmatrix.sync.aligned.m8n8.x4{'.trans' * transposed}.shared.b16 {{$0,$1,$2,$3}}, [$4];"
                )
                loaded = assemble(
                    builder, text, "=r,=r,=r,=r,r,~{memory}", ir.LiteralStructType([word] * 4), [at], True
                )
                return [take(loaded, i) for i in range(4)]

            values = [take(args[0], i) for i in range(len(sig.args[0]))]
            for a_places, b_places in zip(a, b):
                lefts = [load(args[1], place, a_transposed) for place in a_places]
                rights = [load(args[2], place, b_transposed) for place in b_places]
                for row in range(rows):
                    for column in range(columns):
                        first = 4 * (row * columns + column)
                        half = 2 * (column % 2)
                        given = [
                            *lefts[row],
                            *rights[column // 2][half : half + 2],
                            *values[first : first + 4],
                        ]
                        made = assemble(
                            builder,
                            text,
                            "=f,=f,=f,=f,r,r,r,r,r,r,f,f,f,f",
                            ir.LiteralStructType([real] * 4),
                            given,
                        )
                        values[first : first + 4] = [take(made, i) for i in range(4)]
            return ctx.make_tuple(builder, sig.return_type, values)

        return acc(acc, types.uint32, types.uint32), codegen

    return multiply


# Of `multiply_words`: for each slice of 16 along k, for each tile, the registers of its fragment: a word as it is, or
# (x, y, half): the lower (0) or upper (1) halves of two words.
Words = tuple[tuple[tuple[Any, ...], ...], ...]


@deferred
def multiply_words(dtype: DType, a: Words, b: Words) -> Any:
    """`multiply(acc, a, b)`: acc + a b by a warp, out of words that its threads loaded themselves.

    a    four registers for each 16 x 16 fragment; b: two for each of 16 x 8
    acc  four f32 per 16 x 8 tile; tiles row-major
    `mma.sync.m16n8k16`, sm_80
    """
    kind = {f16: "f16", bf16: "bf16"}[dtype]
    product = f"mma.sync.aligned.m16n8k16.row.col.f32.{kind}.{kind}.f32"
    text = f"{product} {{$0,$1,$2,$3}}, {{$4,$5,$6,$7}}, {{$8,$9}}, {{$10,$11,$12,$13}};"

    @intrinsic
    def multiply(typing, acc, a_words, b_words):
        def codegen(ctx, builder, sig, args):
            take = builder.extract_value

            def word(source, which):
                if isinstance(which, int):
                    return take(source, which)
                low, high = (take(source, i) for i in which[:2])
                if which[2]:
                    return builder.or_(builder.lshr(low, const(16)), builder.and_(high, const(0xFFFF0000)))
                return builder.or_(builder.and_(low, const(0xFFFF)), builder.shl(high, const(16)))

            values = [take(args[0], i) for i in range(len(acc))]
            for a_tiles, b_tiles in zip(a, b):
                lefts = [[word(args[1], which) for which in tile] for tile in a_tiles]
                rights = [[word(args[2], which) for which in tile] for tile in b_tiles]
                for row, left in enumerate(lefts):
                    for column, right in enumerate(rights):
                        first = 4 * (row * len(rights) + column)
                        given = [*left, *right, *values[first : first + 4]]
                        result = ir.LiteralStructType([ir.FloatType()] * 4)
                        made = assemble(
                            builder, text, "=f,=f,=f,=f,r,r,r,r,r,r,f,f,f,f", result, given, together=True
                        )
                        values[first : first + 4] = [take(made, i) for i in range(4)]
            return ctx.make_tuple(builder, sig.return_type, values)

        return acc(acc, a_words, b_words), codegen

    return multiply


@deferred
def store_matrices() -> Any:
    """`store(address, a, b, c, d)`: four 8 x 8 matrices of halves to shared memory; lane 8 j + i gives the address of row i of
    matrix j, 16 bytes, and of each matrix has elements 2 (lane % 4) and the next of row lane // 4. `stmatrix.x4`, sm_90."""
    text = "stmatrix.sync.aligned.m8n8.x4.shared.b16 [$0], {$1, $2, $3, $4};"
    return instruction(text, *[types.uint32] * 5, together=True)
