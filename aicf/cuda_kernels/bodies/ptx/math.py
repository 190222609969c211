"""Arithmetic that numba has no names for."""

from __future__ import annotations

from typing import Any

import numpy as np

from ....types import DType, bf16, f16
from ...dsl import SIMULATED, deferred, intrinsic, ir, types
from .assemble import assemble, instruction


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


@deferred
def pack_halves(dtype: DType) -> Any:
    """`pack(low, high)`: two f32 rounded to f16 or bf16, nearest even, in 32 bits. `cvt.rn.f16x2.f32`, PTX ISA, chapter "Data
    Movement and Conversion Instructions"; sm_80."""
    kind = {f16: "f16", bf16: "bf16"}[dtype]
    real = types.float32
    return instruction(f"cvt.rn.{kind}x2.f32 $0, $2, $1;", real, real, result=types.uint32, effects=False)


@deferred
def forget() -> Any:
    """`forget(x)`: x, of which the compiler knows nothing: what is computed of it is computed here, and not kept in registers
    from where the same was computed before. `mov`."""
    return instruction("mov.b32 $0, $1;", types.int32, result=types.int32)
