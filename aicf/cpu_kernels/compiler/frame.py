"""How compiled loops get at memory: pointers out of their frame, and elements on the stack."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numba
from numba.core import cgutils, types
from numba.extending import intrinsic

# error_model="numpy": division by zero gives Inf or NaN, as on the GPU; no fastmath: NaN and Inf mean something, and
# nothing is contracted
_OPTIONS = {"error_model": "numpy", "nogil": True, "no_cfunc_wrapper": True}

helper = numba.njit(**_OPTIONS, no_cpython_wrapper=True)  # from other loops only

inner = numba.njit(
    **_OPTIONS, no_cpython_wrapper=True, forceinline=True
)  # for each element: a call would end vectors

FRAME = types.CPointer(types.int64)


def numba_type(name: str) -> Any:
    return types.boolean if name == "bool" else getattr(types, name)


def pointers(first: int, names: Sequence[str]) -> Callable[..., Any]:
    """of(frame): the numbers from `first` on as a tuple of pointers at elements of these types."""
    kinds = [types.CPointer(numba_type(name)) for name in names]

    @intrinsic
    def of(typing, frame):
        made = types.Tuple(kinds)

        def generate(context, builder, signature, args):
            places = [
                builder.gep(args[0], [context.get_constant(types.intp, first + i)]) for i in range(len(kinds))
            ]
            found = [
                builder.inttoptr(builder.load(p), context.get_value_type(k)) for p, k in zip(places, kinds)
            ]
            return context.make_tuple(builder, made, found)

        return made(frame), generate

    return of


def offset(count: int) -> Callable[..., Any]:
    """of(frame): the pointer to its number `count`."""

    @intrinsic
    def of(typing, frame):
        def generate(context, builder, signature, args):
            return builder.gep(args[0], [context.get_constant(types.intp, count)])

        return frame(frame), generate

    return of


def retyped(name: str, first: int = 0) -> Callable[..., Any]:
    """of(memory): a pointer at elements of a type, from byte `first` of some memory on; it is a multiple of 8."""
    kind = types.CPointer(numba_type(name))

    @intrinsic
    def of(typing, memory):
        def generate(context, builder, signature, args):
            place = builder.gep(args[0], [context.get_constant(types.intp, first // 8)])
            return builder.bitcast(place, context.get_value_type(kind))

        return kind(memory), generate

    return of


def local(count: int, name: str = "int64") -> Callable[..., Any]:
    """make(): a pointer at so many elements on the stack."""
    kind = numba_type(name)

    @intrinsic
    def make(typing):
        def generate(context, builder, signature, args):
            return cgutils.alloca_once(builder, context.get_data_type(kind), count)

        return types.CPointer(kind)(), generate

    return make
