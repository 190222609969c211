"""Register tiles: tuples of f32 values that one thread holds, and the few things that are done with them.

A tuple is never indexed by a variable, so it never goes to the stack: each operation here is unrolled by an intrinsic
around a plain Python function. (A Python loop over a local array is not fully unrolled, and spills it.) In the simulator
the same operations are Python loops over tuples.

An `env` is a tuple of whatever the function needs from the kernel: pointers, sizes, indices.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ..dsl import SIMULATED, deferred, intrinsic, ir, types
from .element import const, emit_call


@deferred
def tabulate(n: int, fn: Callable[..., Any]) -> Any:
    """`make(env)`: the tile (fn(0, env), …, fn(n - 1, env))."""
    if SIMULATED:
        return lambda env: tuple(fn(i, env) for i in range(n))

    @intrinsic
    def make(typing, env):
        def codegen(ctx, b, sig, args):
            values = [
                emit_call(ctx, b, fn, types.float32, [types.int32, env], [const(i), args[0]])
                for i in range(n)
            ]
            return ctx.make_tuple(b, sig.return_type, values)

        return types.UniTuple(types.float32, n)(env), codegen

    return make


@deferred
def each(n: int, fn: Callable[..., None]) -> Any:
    """`run(tile, env)`: fn(i, tile[i], env) for each of its n elements."""
    if SIMULATED:

        def run(tile, env):
            for i in range(n):
                fn(i, tile[i], env)

        return run

    @intrinsic
    def run(typing, tile, env):
        def codegen(ctx, b, sig, args):
            for i in range(n):
                value = b.extract_value(args[0], i)
                emit_call(
                    ctx, b, fn, types.none, [types.int32, types.float32, env], [const(i), value, args[1]]
                )
            return ctx.get_dummy_value()

        return types.void(tile, env), codegen

    return run


@deferred
def outer(rows: int, columns: int) -> Any:
    """`add(acc, a, b)`: acc + a bᵀ, row-major, one fused multiply-add per element."""
    n = rows * columns
    if SIMULATED:
        return lambda acc, a, b: tuple(acc[i] + a[i // columns] * b[i % columns] for i in range(n))

    @intrinsic
    def add(typing, acc, a, b):
        def codegen(ctx, builder, sig, args):
            take = builder.extract_value
            values = [
                builder.fma(take(args[1], i // columns), take(args[2], i % columns), take(args[0], i))
                for i in range(n)
            ]
            return ctx.make_tuple(builder, sig.return_type, values)

        return types.UniTuple(types.float32, n)(acc, a, b), codegen

    return add


def zeros(n: int) -> tuple[Any, ...]:
    """A tile of n zeros; a constant to the kernel that closes over it."""
    return (np.float32(0),) * n


@deferred
def fragment(groups: int, width: int, apart: int) -> Any:
    """`read(shared, base)`: `groups` runs of `width` elements, `apart` elements between their starts.

    Each run is one vector load, of up to 16 bytes: base and apart are multiples of width, the array aligned to it.
    """
    if SIMULATED:
        return lambda shared, base: tuple(
            shared[base + g * apart + i] for g in range(groups) for i in range(width)
        )

    @intrinsic
    def read(typing, shared, base):
        def codegen(ctx, b, sig, args):
            data = ctx.make_array(shared)(ctx, b, args[0]).data
            vector = ir.VectorType(ir.FloatType(), width).as_pointer(data.type.addrspace)
            values = []
            for g in range(groups):
                at = b.add(args[1], ir.Constant(args[1].type, g * apart))
                run = b.load(b.bitcast(b.gep(data, [at]), vector), align=4 * width)
                values += [b.extract_element(run, const(i)) for i in range(width)]
            return ctx.make_tuple(b, sig.return_type, values)

        return types.UniTuple(types.float32, groups * width)(shared, base), codegen

    return read
