"""Two-byte elements between shared memory and rows in global memory that begin anywhere: whole words of whole 128-byte lines, and
the halves at their ends. PTX ISA, chapter "Data Movement and Conversion Instructions"; sm_70.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..dsl import SIMULATED, deferred, intrinsic, ir, types
from ..llvm import const
from .assemble import instruction

LINE_HALVES = 64  # of the 128 bytes that a warp stores at once


@deferred
def line_offset() -> Any:
    """`of(pointer, i)`: how many halves lie between a multiple of 128 bytes and element i, 0 to 63. No instruction but arithmetic."""
    if SIMULATED:
        return lambda pointer, i: (pointer.ctypes.data // 2 + int(i)) % LINE_HALVES

    @intrinsic
    def of(typing, pointer, i):
        def codegen(ctx, b, sig, args):
            address = b.trunc(b.ptrtoint(b.gep(args[0], [args[1]]), ir.IntType(64)), ir.IntType(32))
            return b.and_(b.lshr(address, const(1)), const(LINE_HALVES - 1))

        return types.int32(pointer, types.int64), codegen

    return of


@deferred
def load_shared_pair() -> Any:
    """`load(low, high)`: the halves of shared memory at two addresses, as a word. `ld.shared.b16`."""
    text = "{\n.reg .b16 low, high;\nld.shared.b16 low, [$1];\nld.shared.b16 high, [$2];\nmov.b32 $0, {low, high};\n}"
    return instruction(text, types.uint32, types.uint32, result=types.uint32)


@deferred
def store_pair_below() -> Any:
    """`store(address, word, place, limit)`: a word to a multiple of 4 bytes, if the place is neither negative nor at the limit or
    over it. `st.global.b32`."""
    if SIMULATED:

        def store(address, word, place, limit):
            if 0 <= place < limit:
                address.view(np.uint8)[:4].view(np.uint32)[0] = word

        return store
    text = "{\n.reg .pred inside;\nsetp.lt.u32 inside, $2, $3;\n@inside st.global.b32 [$0], $1;\n}"
    return instruction(text, types.uint64, types.uint32, types.int32, types.int32)


@deferred
def store_half_below() -> Any:
    """`store(address, word, place, limit)`: the same of the word's lower half, to a multiple of 2 bytes. `st.global.b16`."""
    if SIMULATED:

        def store(address, word, place, limit):
            if 0 <= place < limit:
                address.view(np.uint16)[0] = word & 0xFFFF

        return store
    text = (
        "{\n.reg .pred inside;\n.reg .b16 low, high;\nsetp.lt.u32 inside, $2, $3;\nmov.b32 {low, high}, $1;\n"
        "@inside st.global.b16 [$0], low;\n}"
    )
    return instruction(text, types.uint64, types.uint32, types.int32, types.int32)


@deferred
def copy_run_below() -> Any:
    """`copy(address, source, place, limit)`: 16 bytes of shared memory to global memory, both at multiples of as many, if the place is neither
    negative nor at the limit or over it. `ld.shared.v4`, `st.global.v4`."""
    text = (
        "{\n.reg .pred inside;\n.reg .b32 a, b, c, d;\nsetp.lt.u32 inside, $2, $3;\n"
        "ld.shared.v4.b32 {a, b, c, d}, [$1];\n@inside st.global.v4.b32 [$0], {a, b, c, d};\n}"
    )
    return instruction(text, types.uint64, types.uint32, types.int32, types.int32)
