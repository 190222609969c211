"""The first operand of a product by a warpgroup, loaded to registers from MN-major rows: of tf32,
which wgmma does not read from shared memory. PTX ISA, chapters "Asynchronous Warpgroup Level Matrix Multiply-Accumulate Instructions" and
"Data Movement and Conversion Instructions"; sm_90a.

A K-tile of 64 of m or n is two boxes of 32, a row of 128 bytes for each of 32 k, swizzled. Which m is which row of a product does
not matter to it, so that the two rows of a thread, eight apart, are neighbours in memory: one load of 8 bytes for each k. Lanes of half a
warp then find all banks: four k flip two bits of a chunk's number, and two of their rows the third one and the half of the chunk.
"""

from __future__ import annotations

from typing import Any

from ..dsl import deferred, device, int32, intrinsic, ir, types, uint32
from .assemble import assemble
from .copy import moved
from .wgmma import SWIZZLE_BYTES, WORDS

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
