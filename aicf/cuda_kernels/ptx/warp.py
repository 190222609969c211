"""What the 32 threads of a warp do together. PTX ISA, chapter "Parallel Synchronization and Communication Instructions".

Shuffles are numba's: `cuda.shfl_xor_sync` and its kin are one instruction each, of i32 and f32.
"""

from __future__ import annotations

from typing import Any

from ..dsl import deferred, intrinsic, ir, types
from ..llvm import const
from .assemble import assemble, instruction


@deferred
def reduce_warp(op: str) -> Any:
    """`reduce(x)`: add, min, max, and, or, xor of all lanes' i32, in each of them. `redux.sync`, sm_80."""
    kind = {"add": "s32", "min": "s32", "max": "s32", "and": "b32", "or": "b32", "xor": "b32"}[op]
    text = f"redux.sync.{op}.{kind} $0, $1, 0xffffffff;"
    return instruction(text, types.int32, result=types.int32, together=True)


@deferred
def elect() -> Any:
    """`elected()`: 1 in one lane of the warp, 0 in the others; always the same one. `elect.sync`, sm_90."""
    text = "{\n.reg .pred chosen;\nelect.sync _|chosen, 0xffffffff;\nselp.b32 $0, 1, 0, chosen;\n}"
    return instruction(text, result=types.int32, together=True)


@deferred
def read_thread() -> Any:
    """`thread()`: this thread's number in its block, read here: nothing that is made of it is kept in registers from before.
    `mov.u32`, sm_70."""
    return instruction("mov.u32 $0, %tid.x;", result=types.uint32)


@deferred
def warp_uniform() -> Any:
    """`of(x)`: the first lane's u32, in all of them: then the compiler may keep what is made of it in registers of the warp.
    `shfl.sync.idx`, sm_70."""
    text = "shfl.sync.idx.b32 $0, $1, 0, 31, 0xffffffff;"
    return instruction(text, types.uint32, result=types.uint32, together=True)


LINES = 16, 8, 4  # lanes apart, of the 8 that hold the same columns of a product


@deferred
def scatter_sums(count: int) -> Any:
    """`add(tile)`: of `count` f32, a multiple of 8, sums over the lanes that are equal modulo 4; lane 4 i + j returns the i-th
    eighth of them. Always added up in the same order. `shfl.sync.bfly`, sm_70."""

    @intrinsic
    def add(typing, tile):
        def codegen(ctx, b, sig, args):
            lane = assemble(b, "mov.u32 $0, %laneid;", "=r", ir.IntType(32), [])
            values = [b.extract_value(args[0], i) for i in range(count)]
            for apart in LINES:  # of two lanes, each keeps half of the sums
                upper = b.icmp_unsigned("!=", b.and_(lane, const(apart)), const(0))
                halves = list(zip(values[: len(values) // 2], values[len(values) // 2 :]))
                text = f"shfl.sync.bfly.b32 $0, $1, {apart}, 31, 0xffffffff;"
                values = []
                for first, second in halves:
                    given = [b.select(upper, first, second)]
                    other = assemble(b, text, "=f,f", ir.FloatType(), given, True, True)
                    values.append(b.fadd(b.select(upper, second, first), other))
            return ctx.make_tuple(b, sig.return_type, values)

        return types.UniTuple(types.float32, count // 8)(tile), codegen

    return add
