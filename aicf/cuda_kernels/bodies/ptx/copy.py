"""Shared memory: where arrays lie in it, and copies to it that a thread does not wait for. PTX ISA, chapter "Data Movement and
Conversion Instructions", section "Non-bulk copy"; sm_80."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ...dsl import deferred, intrinsic, ir, types
from ..element import const, emit_call
from .assemble import assemble, instruction


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
    """`wait()`: until this thread's copies have arrived. `cp.async.wait_all`."""
    return instruction("cp.async.wait_all;")
