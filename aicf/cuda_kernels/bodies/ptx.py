"""PTX instructions as intrinsics: what numba does not say. The one file with assembly in it.

Beside each stands the same thing in NumPy, for the simulator.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..dsl import SIMULATED, deferred, intrinsic, ir, types


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
