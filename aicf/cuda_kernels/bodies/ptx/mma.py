"""PTX instructions as intrinsics: what numba does not say. The one file with assembly in it.

Beside each stands the same thing in NumPy, for the simulator.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ...types import DType, bf16, f16
from ..dsl import SIMULATED, deferred, intrinsic, ir, types
from .element import const, emit_call

Places = tuple[tuple[int, ...], ...]


def assemble(b: Any, text: str, constraints: str, result: Any, args: list[Any], effects: bool = False) -> Any:
    """One instruction, as LLVM's inline assembly. `effects`: it does more than compute its result."""
    kind = ir.FunctionType(result, [a.type for a in args])
    return b.call(ir.InlineAsm(kind, text, constraints, side_effect=effects), args)


@deferred
def add_half2() -> Any:
    """`add(x, y)`: two halves in 32 bits each, added lane by lane and rounded to nearest even. Needs sm_53."""
    if SIMULATED:

        def add_lanes(x, y):
            lanes = np.array([x, y], np.uint32).view(np.float16)
            return (lanes[:2] + lanes[2:]).view(np.uint32)[0]

        return add_lanes

    @intrinsic
    def add(typing, x, y):
        def codegen(ctx, b, sig, args):
            return assemble(b, "add.rn.f16x2 $0, $1, $2;", "=r,r,r", ir.IntType(32), list(args))

        return types.uint32(types.uint32, types.uint32), codegen

    return add


# --- tensor cores of sm_80: none of these has a twin in the simulator, where a warp's threads can't act as one --------


@deferred
def shared_address() -> Any:
    """`address(array)`: where a shared array lies, in bytes, in the 32-bit window that instructions take."""

    @intrinsic
    def address(typing, array):
        def codegen(ctx, b, sig, args):
            data = ctx.make_array(array)(ctx, b, args[0]).data
            shared = ir.IntType(8).as_pointer(3)
            here = b.bitcast(data, shared) if data.type.addrspace == 3 else b.addrspacecast(data, shared)
            return b.ptrtoint(here, ir.IntType(32))

        return types.uint32(array), codegen

    return address


@deferred
def copy_async(count: int, apart: int, place: Callable[..., Any], itemsize: int) -> Any:
    """`copy(pointer, to, env)`: 16 bytes from element place(i, env) to shared address to + i * apart, for i < count; zeros
    where place is negative. Completes with `wait_copies`."""

    @intrinsic
    def copy(typing, pointer, to, env):
        def codegen(ctx, b, sig, args):
            first = b.ptrtoint(args[0], ir.IntType(64))
            for i in range(count):
                start = emit_call(ctx, b, place, types.int64, [types.int32, env], [const(i), args[2]])
                inside = b.icmp_signed(">=", start, const(0, 64))
                offset = b.select(inside, b.mul(start, const(itemsize, 64)), const(0, 64))
                given = b.select(inside, const(16), const(0))
                target = b.add(args[1], const(i * apart))
                text = "cp.async.cg.shared.global [$0], [$1], 16, $2;"
                assemble(
                    b, text, "r,l,r,~{memory}", ir.VoidType(), [target, b.add(first, offset), given], True
                )
            return ctx.get_dummy_value()

        return types.void(pointer, types.uint32, env), codegen

    return copy


@deferred
def wait_copies() -> Any:
    """`wait()`: until this thread's copies have arrived."""

    @intrinsic
    def wait(typing):
        def codegen(ctx, b, sig, args):
            assemble(b, "cp.async.wait_all;", "~{memory}", ir.VoidType(), [], True)
            return ctx.get_dummy_value()

        return types.void(), codegen

    return wait


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
