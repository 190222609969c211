"""What the 32 threads of a warp do together. PTX ISA, chapter "Parallel Synchronization and Communication Instructions".

Shuffles are numba's: `cuda.shfl_xor_sync` and its kin are one instruction each, of i32 and f32.
"""

from __future__ import annotations

from typing import Any

from ...dsl import deferred, types
from .assemble import instruction


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
