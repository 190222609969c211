"""Index arithmetic over dimensions known when a kernel is made."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from ..dsl import SIMULATED, deferred, device, intrinsic, ir, types

# How a load walks some dimensions, when a kernel is made: for each dimension 0 (stays), 1 (neighbours) or GIVEN (a stride
# that is an argument of the kernel); and the element where it starts, None if that is an argument behind the strides.
GIVEN = -1
Steps = tuple[int, ...]
Walk = tuple[Steps, int | None]


def walk_of(strides: tuple[int, ...]) -> Steps:
    """Strides, as far as a kernel is made for them."""
    return tuple(s if s in (0, 1) else GIVEN for s in strides)


@functools.cache
def coordinates(rank: int, narrow: bool) -> Any:
    """`at(i, shape)`: coordinates of linear index i, row-major. Narrow ones are divided out in 32 bits."""
    index = np.uint32 if narrow else np.int64
    if rank == 0:
        return device(lambda i, shape: ())
    if rank == 1:
        return device(lambda i, shape: (np.int64(i),))
    rest, d = coordinates(rank - 1, narrow), rank - 1

    def split(i, shape):
        q = index(i) // index(shape[d])
        return rest(q, shape) + (np.int64(index(i) - q * index(shape[d])),)

    return device(split)


@deferred
def offsets(walks: tuple[Walk, ...]) -> Any:
    """`of(at, strides)`: coordinates to one offset for each walk, in elements.

    strides  those of all walks that are GIVEN, and starts, in order; what stays or goes on by one costs no multiplication
    """
    if SIMULATED:
        return functools.partial(_offsets, walks)

    @intrinsic
    def of(typing, at, strides):
        def codegen(ctx, b, sig, args):
            wide, given, made = ir.IntType(64), 0, []
            for steps, start in walks:
                total = wide(start or 0)
                for d, step in enumerate(steps):
                    if step == 0:
                        continue
                    term = ctx.cast(b, b.extract_value(args[0], d), at.types[d], types.int64)
                    if step == GIVEN:
                        term = b.mul(term, b.extract_value(args[1], given))
                        given += 1
                    total = b.add(total, term)
                if start is None:
                    total, given = b.add(total, b.extract_value(args[1], given)), given + 1
                made.append(total)
            return ctx.make_tuple(b, sig.return_type, made)

        return types.UniTuple(types.int64, len(walks))(at, strides), codegen

    return of


def _offsets(walks: tuple[Walk, ...], at: Any, strides: Any) -> tuple[Any, ...]:
    given = iter(strides)
    made = []
    for steps, start in walks:
        moved = sum(x * (next(given) if step == GIVEN else step) for x, step in zip(at, steps) if step)
        made.append(np.int64(moved + (next(given) if start is None else start)))
    return tuple(made)
