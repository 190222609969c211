"""Products by a warp with a wide operand of codes of 8 or 4 bits, which become halves in registers. PTX ISA, chapters "Warp Level Matrix
Multiply-Accumulate Instructions" and "Half Precision Floating-Point Instructions"; sm_80.

A half with the right exponent has an integer's bits at the end of its mantissa: 0x4300 | n is 128 + n in bf16, 0x6400 | n is 1024 + n in
f16, for a code of 4 bits that stands 8 above its number. A bf16 has no room for 8 bits; these go by way of f32.
"""

from __future__ import annotations

from typing import Any

from ...types import DType, bf16, f16
from ..dsl import deferred, intrinsic, ir
from ..llvm import const
from .assemble import assemble

ONE = {f16: 0x3C003C00, bf16: 0x3F803F80}
NIBBLE = {
    f16: (0x64006400, 0xE408E408),
    bf16: (0x43004300, 0xC308C308),
}  # the exponent; less 1024 + 8, less 128 + 8
BYTE_OF_F16 = 0xE480E480  # less 1024 + 128
SIGNS = 0x80808080  # i8 plus 128, in each byte
BYTE_OF_F32, EXPONENT_OF_F32 = 2.0**23 + 128, 0x4B000000
SLICES = {4: 8, 8: 4}  # products of 16 along k, for 16 bytes of a lane's line
WORDS = {4: 16, 8: 8}  # of a lane's small line, for as many codes


@deferred
def multiply_codes(bits: int, dtype: DType, tiles: int, columns: int, before: bool) -> Any:
    """`multiply(acc, wide, small, scale)`: acc plus the products of four lanes' 16 bytes of codes a line, 128 of 4 bits or 64 of 8, times a
    scale for each line.

    wide    u32, four for each of the lines g and g + 8 of each of `tiles` tiles of 16 lines, of lane 4 g + c: codes in order, along k
    small   u32, of each of `columns` times 8 small lines the same k: line 8 j + g
    scale   f32, of each of these lines; `before`: the lane's own, which its weights are multiplied with, else it multiplies sums
    acc     four f32 per 16 x 8 tile, tiles row-major
    `mma.sync.m16n8k16`, `fma.rn.bf16x2`; sm_80
    """
    kind = {f16: "f16", bf16: "bf16"}[dtype]
    product = f"mma.sync.aligned.m16n8k16.row.col.f32.{kind}.{kind}.f32"
    text = f"{product} {{$0,$1,$2,$3}}, {{$4,$5,$6,$7}}, {{$8,$9}}, {{$10,$11,$12,$13}};"

    @intrinsic
    def multiply(typing, acc, wide, small, scale):
        def codegen(ctx, b, sig, args):
            word, four = ir.IntType(32), ir.LiteralStructType([ir.FloatType()] * 4)
            take = b.extract_value

            def fma2(x, y, z):
                return assemble(
                    b,
                    f"fma.rn.{kind}x2 $0, $1, $2, $3;",
                    "=r,r,r,r",
                    word,
                    [x, const(y) if isinstance(y, int) else y, const(z)],
                )

            def pack(low, high):
                return assemble(b, f"cvt.rn.{kind}x2.f32 $0, $2, $1;", "=r,f,f", word, [low, high])

            def wide_byte(codes, i):
                """A code of 8 bits as an f32: 2^23 + code + 128, and back."""
                byte = b.and_(b.lshr(codes, const(8 * i)), const(0xFF))
                number = b.bitcast(b.or_(byte, const(EXPONENT_OF_F32)), ir.FloatType())
                return b.fsub(number, ir.Constant(ir.FloatType(), BYTE_OF_F32))

            def pairs(codes):
                """Two numbers each: of 4 bits those at i and i + 4, of 8 bits neighbours."""
                if bits == 4:
                    exponent, down = NIBBLE[dtype]
                    made = []
                    for i in range(4):
                        both = b.and_(b.lshr(codes, const(4 * i)), const(0x000F000F))
                        made.append(fma2(b.or_(both, const(exponent)), ONE[dtype], down))
                    return made
                codes = b.xor(codes, const(SIGNS))
                if dtype is bf16:
                    return [pack(wide_byte(codes, i), wide_byte(codes, i + 1)) for i in (0, 2)]
                made = []
                for i in (0, 2):
                    low = b.and_(b.lshr(codes, const(8 * i)), const(0xFF))
                    high = b.shl(b.and_(b.lshr(codes, const(8 * (i + 1))), const(0xFF)), const(16))
                    made.append(fma2(b.or_(b.or_(low, high), const(0x64006400)), ONE[dtype], BYTE_OF_F16))
                return made

            def lower(x, y):
                return b.or_(b.and_(x, const(0xFFFF)), b.shl(y, const(16)))

            def upper(x, y):
                return b.or_(b.lshr(x, const(16)), b.and_(y, const(0xFFFF0000)))

            def small_slices(j, w):
                """Registers of mma's b, beside the codes of word w."""
                if bits == 8:
                    return [[take(args[2], j * 8 + 2 * w + i) for i in range(2)]]
                x = [take(args[2], j * 16 + 4 * w + i) for i in range(4)]
                return [[lower(x[i], x[i + 2]), upper(x[i], x[i + 2])] for i in range(2)]

            scales = [take(args[3], i) for i in range(2 * tiles)]
            own = [pack(s, s) for s in scales] if before else []
            values = [take(args[0], i) for i in range(4 * tiles * columns)]
            sums = values if before else [ir.Constant(ir.FloatType(), 0.0)] * len(values)
            for w in range(4):
                lines = [pairs(take(args[1], 4 * line + w)) for line in range(2 * tiles)]
                if before:
                    lines = [[fma2(x, own[n], 0x80008000) for x in made] for n, made in enumerate(lines)]
                rights = [small_slices(j, w) for j in range(columns)]
                for s in range(len(rights[0])):
                    for t in range(tiles):
                        upper_line, lower_line = lines[2 * t], lines[2 * t + 1]
                        left = [x for i in (2 * s, 2 * s + 1) for x in (upper_line[i], lower_line[i])]
                        for j in range(columns):
                            first = 4 * (t * columns + j)
                            given = [*left, *rights[j][s], *sums[first : first + 4]]
                            made = assemble(
                                b, text, "=f,=f,=f,=f,r,r,r,r,r,r,f,f,f,f", four, given, together=True
                            )
                            sums[first : first + 4] = [take(made, i) for i in range(4)]
            if not before:
                sums = [
                    b.fma(scales[2 * (i // (4 * columns)) + i % 4 // 2], x, value)
                    for i, (x, value) in enumerate(zip(sums, values))
                ]
            return ctx.make_tuple(b, sig.return_type, sums)

        return acc(acc, wide, small, scale), codegen

    return multiply
