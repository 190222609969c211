"""Global memory: where a pointer points. PTX ISA, chapter "Data Movement and Conversion Instructions"."""

from __future__ import annotations

from typing import Any

from ...dsl import deferred, intrinsic, ir, types


@deferred
def global_address() -> Any:
    """`at(pointer, i)`: where element i lies, `u64`, as instructions take it. No instruction."""

    @intrinsic
    def at(typing, pointer, i):
        def codegen(ctx, b, sig, args):
            return b.ptrtoint(b.gep(args[0], [args[1]]), ir.IntType(64))

        return types.uint64(pointer, types.int64), codegen

    return at
