"""LLVM's constants, calls of Python functions, and the target: what intrinsics are written with."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from .dsl import Name, ir, types

_flags = Name("numba.cuda.core.targetconfig", "ConfigStack")


def capability() -> tuple[int, int]:
    """The compute capability that the kernel is being compiled for; while code of it is made."""
    major, minor, *_ = _flags.resolve()().top().compute_capability
    return major, minor


def const(value: int, bits: int = 32) -> Any:
    """An integer constant of LLVM's."""
    return ir.Constant(ir.IntType(bits), value)


def emit_call(
    ctx: Any, b: Any, fn: Callable[..., Any], result: Any, arg_types: list[Any], args: list[Any]
) -> Any:
    """Call a plain Python function; it is inlined. Its defaults (see ops/scalar.py) are appended as constants."""
    for value in fn.__defaults__ or ():
        kind = (
            types.boolean
            if isinstance(value, (bool, np.bool_))
            else getattr(types, np.dtype(type(value)).name)
        )
        arg_types, args = [*arg_types, kind], [*args, ctx.get_constant(kind, value)]
    return ctx.compile_internal(b, fn, result(*arg_types), args)
