"""The first operand of a product by a warpgroup, loaded to registers from MN-major rows: of tf32,
which wgmma does not read from shared memory; and of few rows of halves that are there without padding. PTX ISA, chapters "Asynchronous Warpgroup Level Matrix Multiply-Accumulate Instructions" and
"Data Movement and Conversion Instructions"; sm_90a.

A K-tile of 64 of m or n is two boxes of 32, a row of 128 bytes for each of 32 k, swizzled. Which m is which row of a product does
not matter to it, so that the two rows of a thread, eight apart, are neighbours in memory: one load of 8 bytes for each k. Lanes of half a
warp then find all banks: four k flip two bits of a chunk's number, and two of their rows the third one and the half of the chunk.
"""

from __future__ import annotations

from typing import Any

from ..dsl import deferred, device, int32, intrinsic, ir, types, uint32
from ..llvm import const
from .assemble import assemble
from .copy import moved
from .wgmma import STEPS, SWIZZLE_BYTES, WORDS

HALF = 2  # bytes
BOX_MN = 32  # extent of a box
BOX_BYTES = BOX_MN * SWIZZLE_BYTES
# From a thread's first pair to each of its others, in the order of their words: k in steps of four, of which every other one flips a bit of
# the chunk's number.
PLACES = tuple(((i % 2) * 64, i * 4 * SWIZZLE_BYTES) for i in range(WORDS // 2))
TEXT = "ld.shared.v2.b32 {$0, $1}, [$4];"


def register_operand_mn() -> Any:
    """`mn(warp, lane)`: of 64, the first of the two that a thread has; the other one is its row eight below in the product."""

    def mn(warp, lane):
        g = lane >> 2
        chunk = (g >> 1 & 1) * 4 + (warp & 1) * 2 + (g >> 2)
        return int32((warp >> 1) * 32 + chunk * 4 + (g & 1) * 2)

    return device(mn)


def register_operand_place() -> Any:
    """`place(warp, lane)`: in bytes, where a thread's first pair lies: `load_register_operand` takes it from there."""
    mn_of = register_operand_mn()

    def place(warp, lane):
        mn, k = mn_of(warp, lane), lane & 3
        chunk = (mn >> 2 & 7) ^ k
        return uint32((mn >> 5) * BOX_BYTES + k * SWIZZLE_BYTES + chunk * 16 + (mn & 2) * 4)

    return device(place)


@deferred
def load_register_operand() -> Any:
    """`load(words, address)`: a thread's 16 words of 64 of m or n and 32 k, as `multiply_k_tiles` takes them, into the registers that `words`
    have: no product that reads these may be under way. `ld.shared`."""

    @intrinsic
    def load(typing, words, address):
        def codegen(ctx, b, sig, args):
            kind, made = ir.LiteralStructType([ir.IntType(32)] * 2), []
            for i, place in enumerate(PLACES):
                before = [b.extract_value(args[0], 2 * i + e) for e in range(2)]
                given = [*before, moved(b, args[1], place)]
                pair = assemble(b, TEXT, "=r,=r,0,1,r,~{memory}", kind, given, True)
                made += [b.extract_value(pair, e) for e in range(2)]
            return ctx.make_tuple(b, sig.return_type, made)

        return words(words, types.uint32), codegen

    return load


# --- few rows of halves, without padding --------------------------------------------------------------------------------

MATRICES = "ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {$0, $1, $2, $3}, [$8];"
STEP = 16  # of k, that one instruction sums over


def flat_operand_place(eights: bool) -> Any:
    """`place(rows, warp, lane)`: in bytes, from where on `load_flat_operand` loads a thread's words, of so many rows."""

    def matrix_row(rows, warp, lane):
        k, row = (lane >> 4) * 8 + (lane & 7), warp * 16 + (lane >> 3 & 1) * 8
        return uint32((k * rows + row) * HALF)

    def pair(rows, warp, lane):
        k, row = (lane & 3) * 2, warp * 16 + (lane >> 2)
        return uint32((k * rows + row) * HALF)

    return device(matrix_row if eights else pair)


@deferred
def load_flat_operand(eights: bool) -> Any:
    """`load(words, address, pitch, left)`: a thread's 16 words of 64 rows and 64 k of halves, as `multiply_k_tiles` takes them, into the registers
    that `words` have: no product that reads these may be under way. From a k to the next are `pitch` bytes, in lines of 128 that are swizzled;
    `left` rows there are, from the thread's first one on. `eights`: in matrices of 8 x 8, whose rows begin at multiples of 16 bytes; what is not there may be any number.
    Else half by half; what is not there is 0. `ldmatrix`, `ld.shared`."""

    def matrices(b, words, address, pitch, left):
        kind, made = ir.LiteralStructType([ir.IntType(32)] * 4), []
        for step in range(STEPS):
            at = swizzled(b, b.add(address, b.mul(pitch, const(STEP * step))))
            given = [*words[4 * step : 4 * step + 4], at]
            four = assemble(b, MATRICES, "=r,=r,=r,=r,0,1,2,3,r,~{memory}", kind, given, True, True)
            made += [b.extract_value(four, i) for i in range(4)]
        return made

    def pairs(b, words, address, pitch, left):
        made = []
        for i, word in enumerate(words):
            k, below = i // 4 * STEP + i % 4 // 2 * 8, i % 2 * 8
            low = b.add(address, b.add(b.mul(pitch, const(k)), const(below * HALF)))
            given = [word, swizzled(b, low), swizzled(b, b.add(low, pitch)), left]
            made.append(assemble(b, pair_text(below), "=r,0,r,r,r,~{memory}", ir.IntType(32), given, True))
        return made

    @intrinsic
    def load(typing, words, address, pitch, left):
        def codegen(ctx, b, sig, args):
            given = [b.extract_value(args[0], i) for i in range(WORDS)]
            made = (matrices if eights else pairs)(b, given, *args[1:])
            return ctx.make_tuple(b, sig.return_type, made)

        return words(words, types.uint32, types.uint32, types.int32), codegen

    return load


def swizzled(b: Any, address: Any) -> Any:
    """The LLVM of where a byte of a box is: bits 4 to 6 of its address, exclusive or bits 7 to 9."""
    return b.xor(address, b.and_(b.lshr(address, const(3)), const(SWIZZLE_BYTES - 16)))


def pair_text(below: int) -> str:
    """Two halves, of a k and the next one, of the row that is so many below the thread's first one: $0, where $1 was, from $2 and $3; $4 rows are
    left."""
    lines = (
        ".reg .b16 low, high;", ".reg .pred p;", f"setp.gt.s32 p, $4, {below};", "mov.b16 low, 0;", "mov.b16 high, 0;",
        "@p ld.shared.b16 low, [$2];", "@p ld.shared.b16 high, [$3];", "mov.b32 $0, {low, high};",
    )  # fmt: skip
    return "{\n" + "\n".join(lines) + "\n}"
