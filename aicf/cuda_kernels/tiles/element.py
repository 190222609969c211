"""One element of memory: loading it, storing it, and maps of scalar functions over it; storage.py has its types.

Everything here is an intrinsic around a plain Python function. numba's simulator has no intrinsics, so beside each
stands the same thing in plain Python, on NumPy arrays.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ...rows.program import Bound, Expression
from ...types import DType, rounded
from ..dsl import SIMULATED, deferred, device_calls, intrinsic, ir, types
from ..llvm import emit_call
from .halves import called
from .storage import (
    decode,
    emit_load,
    emit_load_vector,
    emit_store,
    emit_store_vector,
    encode,
    numba_type,
    unpack,
)

# --- maps -------------------------------------------------------------------------------------------------------------
#
# An Expression holds a map's arithmetic (rows/program.py). Its arguments are, in order, what a core hands over (if
# anything) and the map's loads; `ins` has the dtype of each load, or None where the load is the offset itself, as i64.
# Kernels pass pointers for the other loads only, and an offset in elements for each load. `outs` has the dtype of each
# store. All loads come before any store, so a result may take over an operand's memory.


@dataclass(frozen=True)
class Masked:
    """In `ins`: a load with bounds, by the slots of arguments before it. `dtype` is bool, and `read` false, where it is the mask itself."""

    dtype: DType
    bounds: tuple[Bound, ...]
    read: bool = True


Loads = tuple[DType | Masked | None, ...]
Stores = tuple[DType, ...]


def reads(load: DType | Masked | None) -> bool:
    """Whether there is a pointer for it."""
    return load.read if isinstance(load, Masked) else load is not None


@dataclass(frozen=True)
class Lanes:
    """A map of `width` neighbours at once; loads marked in `moves` walk along, the others are read once for all lanes.

    `width` is a power of two, and offsets of what walks are multiples of it: pointers are aligned for vectors. With lanes
    `apart` elements from each other, more than one, they need not be.
    """

    expr: Expression
    ins: Loads
    outs: Stores
    moves: tuple[bool, ...]
    width: int
    apart: int = 1

    @functools.cached_property
    def emitted(self) -> Expression:
        return rounded_by_store(self.expr, len(self.outs))


def rounded_by_store(expression: Expression, stores: int) -> Expression:
    """Without the rounding of what is among the first so many results and no function reads: storing it rounds it."""
    read = {slot for _, arguments, _ in expression.steps for slot in arguments}
    read.update(expression.results[stores:])
    return replace(expression, rounded=expression.rounded & read)


@deferred
def mapper(expr: Expression, ins: Loads, outs: Stores) -> Any:
    """`apply(ins, outs, offsets, i)`: outs[j][i] = expr(ins[k][offsets[k]] for each k)[j]."""
    return _map(_single(expr, ins, outs))


@deferred
def vector_mapper(
    expr: Expression, ins: Loads, outs: Stores, moves: tuple[bool, ...], width: int, apart: int = 1
) -> Any:
    """The same `apply` for `width` neighbours, or for as many that lie apart: see Lanes."""
    return _map(Lanes(expr, ins, outs, moves, width, apart))


@deferred
def feeder(expr: Expression, ins: Loads, outs: Stores) -> Any:
    """`feed(ins, outs, offsets, i)`: as mapper's apply, with one result more than there are stores: it is returned."""
    lanes = _single(expr, ins, outs)
    if SIMULATED:
        return lambda *args: _run(lanes, [()], *args)[0]

    @intrinsic
    def feed(typing, ins_, outs_, offsets, i):
        def codegen(ctx, b, sig, args):
            return _emit(ctx, b, lanes, [()], *args)[0]

        return numba_type(expr.dtypes[expr.results[-1]])(ins_, outs_, offsets, i), codegen

    return feed


@deferred
def vector_feeder(expr: Expression, ins: Loads, outs: Stores, moves: tuple[bool, ...], width: int) -> Any:
    """The same `feed` for `width` neighbours, of which it returns a tuple: see Lanes."""
    lanes, nothing = Lanes(expr, ins, outs, moves, width), [()] * width
    if SIMULATED:
        return lambda *args: tuple(_run(lanes, nothing, *args))

    @intrinsic
    def feed(typing, ins_, outs_, offsets, i):
        def codegen(ctx, b, sig, args):
            return ctx.make_tuple(b, sig.return_type, _emit(ctx, b, lanes, nothing, *args))

        made = types.UniTuple(numba_type(expr.dtypes[expr.results[-1]]), width)
        return made(ins_, outs_, offsets, i), codegen

    return feed


@deferred
def applier(expr: Expression, ins: Loads, outs: Stores) -> Any:
    """`apply(core_result, ins, outs, offsets, i)`: as mapper's; the first argument is a number that a core made."""
    lanes = _single(expr, ins, outs)
    if SIMULATED:
        return lambda core_result, *args: _run(lanes, [(core_result,)], *args)

    @intrinsic
    def apply(typing, core_result, ins_, outs_, offsets, i):
        def codegen(ctx, b, sig, args):
            number = ctx.cast(b, args[0], core_result, numba_type(expr.dtypes[0]))
            _emit(ctx, b, lanes, [(number,)], *args[1:])
            return ctx.get_dummy_value()

        return types.void(core_result, ins_, outs_, offsets, i), codegen

    return apply


@deferred
def vector_applier(expr: Expression, ins: Loads, outs: Stores, moves: tuple[bool, ...], width: int) -> Any:
    """The same for `width` neighbours: see Lanes. `core_result` is a tuple with a number for each, and so is what is returned if
    there is one result more than stores."""
    lanes, returns = Lanes(expr, ins, outs, moves, width), len(expr.results) > len(outs)
    if SIMULATED:
        return lambda core_result, *args: tuple(_run(lanes, [(c,) for c in core_result], *args))

    @intrinsic
    def apply(typing, core_result, ins_, outs_, offsets, i):
        def codegen(ctx, b, sig, args):
            each, kind = [b.extract_value(args[0], j) for j in range(width)], numba_type(expr.dtypes[0])
            numbers = [(ctx.cast(b, number, core_result.dtype, kind),) for number in each]
            made = _emit(ctx, b, lanes, numbers, *args[1:])
            return ctx.make_tuple(b, sig.return_type, made) if returns else ctx.get_dummy_value()

        made = types.UniTuple(numba_type(expr.dtypes[expr.results[-1]]), width) if returns else types.void
        return made(core_result, ins_, outs_, offsets, i), codegen

    return apply


def _single(expr: Expression, ins: Loads, outs: Stores) -> Lanes:
    return Lanes(expr, ins, outs, (False,) * len(ins), 1)


def _map(lanes: Lanes) -> Any:
    nothing: list[tuple[Any, ...]] = [()] * lanes.width
    if SIMULATED:
        return lambda *args: _run(lanes, nothing, *args)

    @intrinsic
    def apply(typing, ins_, outs_, offsets, i):
        def codegen(ctx, b, sig, args):
            _emit(ctx, b, lanes, nothing, *args)
            return ctx.get_dummy_value()

        return types.void(ins_, outs_, offsets, i), codegen

    return apply


def _emit(ctx: Any, b: Any, lanes: Lanes, core_result: list[tuple[Any, ...]], sources: Any, targets: Any, offsets: Any,
          to: Any) -> list[Any]:  # fmt: skip
    """Loads, steps and stores; returns of each lane the result that is not stored, if there is one."""
    expr, width, apart = lanes.emitted, lanes.width, lanes.apart
    made = _emit_made(ctx, b, lanes, core_result, sources, offsets)
    for k, dtype in enumerate(lanes.outs):
        target, values = b.gep(b.extract_value(targets, k), [to]), [results[k] for results in made]
        exact = expr.results[k] in expr.rounded
        if width > 1 and apart == 1:
            emit_store_vector(ctx, b, dtype, values, target, exact)
            continue
        for j, value in enumerate(values):
            emit_store(ctx, b, dtype, value, b.gep(target, [to.type(j * apart)]), exact)
    return [results[-1] for results in made if len(results) > len(lanes.outs)]


def _emit_made(
    ctx: Any, b: Any, lanes: Lanes, core_result: list[tuple[Any, ...]], sources: Any, offsets: Any
) -> list[list[Any]]:
    """Loads and steps; all results of each lane."""
    arguments = emit_loads(ctx, b, lanes, core_result, sources, offsets)
    return [emit_expression(ctx, b, lanes.emitted, list(values)) for values in arguments]


def emit_loads(ctx: Any, b: Any, lanes: Lanes, core_result: list[tuple[Any, ...]], sources: Any, offsets: Any,
               words: dict[int, Any] | None = None) -> list[tuple[Any, ...]]:  # fmt: skip
    """All arguments of each lane. `words`: of loads that came by another way."""
    width, apart = lanes.width, lanes.apart
    arguments, pointer = core_result, 0
    for k, (dtype, moves) in enumerate(zip(lanes.ins, lanes.moves)):
        at = b.extract_value(offsets, k)
        if isinstance(dtype, Masked):
            source, count = (
                b.extract_value(sources, pointer) if dtype.read else None,
                width if moves and dtype.read else 1,
            )
            pointer += dtype.read
            column = _emit_masked(ctx, b, dtype, arguments[0], source, at, count) * (width // count)
        elif words and k in words:
            pointer += 1
            column = unpack(ctx, b, dtype, [b.bitcast(words[k], ir.IntType(32))])
        elif dtype is None:
            # a multiple of the width: said so, lanes share what depends on its upper bits only, such as Philox's counter
            start = b.and_(at, at.type(-width)) if moves and apart == 1 else at
            further = b.or_ if apart == 1 else b.add
            column = [further(start, at.type(j * apart)) if moves else at for j in range(width)]
        else:
            source = b.gep(b.extract_value(sources, pointer), [at])
            pointer += 1
            if moves and apart > 1:
                column = [emit_load(ctx, b, dtype, b.gep(source, [at.type(j * apart)])) for j in range(width)]
            elif moves and width > 1:
                column = emit_load_vector(ctx, b, dtype, source, width)
            else:
                column = [emit_load(ctx, b, dtype, source)] * width
        arguments = [(*given, value) for given, value in zip(arguments, column)]
    return arguments


def _emit_masked(
    ctx: Any, b: Any, load: Masked, values: tuple[Any, ...], source: Any, at: Any, width: int
) -> list[Any]:
    """`width` neighbours from `at` on, which are all inside of the bounds or all outside, where they are 0 and not read.

    values  of the arguments before it, in the first lane
    """
    wide, inside = ir.IntType(64), None
    for bound in load.bounds:
        index, size = (
            b.sext(values[slot], wide) if values[slot].type != wide else values[slot]
            for slot in (bound.slot, bound.size)
        )
        if bound.wraps:
            index = b.select(b.icmp_signed("<", index, wide(0)), b.add(index, size), index)
        holds, whole = None, index
        if bound.every > 1:
            whole = b.udiv(index, wide(bound.every))
            holds = b.icmp_unsigned("==", b.mul(whole, wide(bound.every)), index)
        within = b.icmp_unsigned("<", whole, size)
        holds = within if holds is None else b.and_(holds, within)
        inside = holds if inside is None else b.and_(inside, holds)
        if bound.stride is not None:
            at = b.add(at, b.mul(whole, values[bound.stride]))
    if not load.read:
        return [inside]
    before = b.block
    with b.if_then(inside):
        pointer = b.gep(source, [at])
        if width > 1:
            loaded = emit_load_vector(ctx, b, load.dtype, pointer, width)
        else:
            loaded = [emit_load(ctx, b, load.dtype, pointer)]
        made = b.block
    column = []
    for value in loaded:
        chosen = b.phi(value.type)
        chosen.add_incoming(value, made)
        chosen.add_incoming(value.type(None), before)
        column.append(chosen)
    return column


def _run_masked(load: Masked, values: tuple[Any, ...], source: Any, at: Any, width: int) -> list[Any]:
    """As _emit_masked, in the simulator."""
    inside = True
    for bound in load.bounds:
        index, size = int(values[bound.slot]), int(values[bound.size])
        index += size if bound.wraps and index < 0 else 0
        whole, rest = divmod(index, bound.every)
        inside = inside and rest == 0 and 0 <= whole < size
        if bound.stride is not None:
            at += whole * int(values[bound.stride])
    if not load.read:
        return [np.bool_(inside)]
    nothing = load.dtype.numpy.type(0)
    return [source[at + j] if inside else nothing for j in range(width)]


def emit_expression(ctx: Any, b: Any, expr: Expression, values: list[Any]) -> list[Any]:
    """Arguments to results, each in its slot's compute type."""
    slots: dict[int, Any] = {}

    def put(slot: int, value: Any) -> None:
        dtype = expr.dtypes[slot]
        if slot in expr.rounded:
            value = decode(ctx, b, dtype, encode(ctx, b, dtype, value))
        slots[slot] = value

    for slot, value in enumerate(values):
        put(slot, value)
    for fn, arguments, made in expr.steps:
        kinds = [numba_type(expr.dtypes[s]) for s in made]
        result = kinds[0] if len(made) == 1 else types.BaseTuple.from_types(kinds)
        given = [numba_type(expr.dtypes[s]) for s in arguments]
        call = device_calls(called(expr, fn, made))
        r = emit_call(ctx, b, call, result, given, [slots[s] for s in arguments])
        for k, slot in enumerate(made):
            put(slot, r if len(made) == 1 else b.extract_value(r, k))
    return [slots[s] for s in expr.results]


def _run(lanes: Lanes, core_result: list[tuple[Any, ...]], sources: Any, targets: Any, offsets: Any,
         to: Any) -> list[Any]:  # fmt: skip
    """As _emit, in the simulator."""
    made = run_made(lanes, core_result, sources, offsets)
    for j, results in enumerate(made):
        for target, value in zip(targets, results):
            target[to + j * lanes.apart] = value
    return [results[-1] for results in made if len(results) > len(lanes.outs)]


def run_made(lanes: Lanes, core_result: list[tuple[Any, ...]], sources: Any, offsets: Any,
              words: dict[int, Any] | None = None) -> list[list[Any]]:  # fmt: skip
    """As _emit_made; `words`: of loads that came by another way."""
    arguments, pointers = core_result, iter(sources)
    for k, (dtype, moves, at) in enumerate(zip(lanes.ins, lanes.moves, offsets)):
        if isinstance(dtype, Masked):
            source, width = next(pointers) if dtype.read else None, lanes.width if moves and dtype.read else 1
            column = _run_masked(dtype, arguments[0], source, at, width) * (lanes.width // width)
            arguments = [(*given, value) for given, value in zip(arguments, column)]
            continue
        places = [at + j * lanes.apart if moves else at for j in range(lanes.width)]
        column = places if dtype is None else [*map(next(pointers).__getitem__, places)]
        column = (words or {}).get(k, column)
        arguments = [(*given, value) for given, value in zip(arguments, column)]
    return [run_expression(lanes.expr, list(values)) for values in arguments]


def run_expression(expr: Expression, values: list[Any]) -> list[Any]:
    """As emit_expression, in Python."""
    from ...ops.scalar import in_python  # here, as no kernel's key should depend on it

    slots: dict[int, Any] = {}

    def put(slot: int, value: Any) -> None:
        dtype = expr.dtypes[slot]
        value = rounded(np.asarray(value), dtype)[()] if slot in expr.rounded else value
        slots[slot] = dtype.compute.numpy.type(value)

    for slot, value in enumerate(values):
        put(slot, value)
    for fn, arguments, made in expr.steps:
        r = in_python(fn, fn.__globals__.get("float", float))(*(slots[s] for s in arguments))
        for slot, value in zip(made, r if len(made) > 1 else (r,)):
            put(slot, value)
    return [slots[s] for s in expr.results]


@deferred
def getter(dtype: DType) -> Any:
    """`get(pointer, i)`: load one number, in the compute type."""
    if SIMULATED:
        return lambda pointer, i: dtype.compute.numpy.type(pointer[i])

    @intrinsic
    def get(typing, pointer, i):
        def codegen(ctx, b, sig, args):
            return emit_load(ctx, b, dtype, b.gep(args[0], [args[1]]))

        return numba_type(dtype)(pointer, i), codegen

    return get


@deferred
def vector_getter(dtype: DType, width: int) -> Any:
    """`get(pointer, i)`: a tuple of `width` neighbours, which lie aligned, in the compute type."""
    if SIMULATED:
        return lambda pointer, i: tuple(dtype.compute.numpy.type(pointer[i + j]) for j in range(width))

    @intrinsic
    def get(typing, pointer, i):
        def codegen(ctx, b, sig, args):
            made = emit_load_vector(ctx, b, dtype, b.gep(args[0], [args[1]]), width)
            return ctx.make_tuple(b, sig.return_type, made)

        return types.UniTuple(numba_type(dtype), width)(pointer, i), codegen

    return get


@deferred
def putter(dtype: DType) -> Any:
    """`put(pointer, i, value)`: store one number, converted to the storage type."""
    if SIMULATED:

        def put(pointer, i, value):
            pointer[i] = value

        return put

    @intrinsic
    def put(typing, pointer, i, value):
        def codegen(ctx, b, sig, args):
            converted = ctx.cast(b, args[2], value, numba_type(dtype))
            emit_store(ctx, b, dtype, converted, b.gep(args[0], [args[1]]))
            return ctx.get_dummy_value()

        return types.void(pointer, i, value), codegen

    return put


@deferred
def word_getter() -> Any:
    """`get(pointer, i)`: 32 bits of a tensor of halves, the i-th pair. Aligned to 4 bytes."""
    if SIMULATED:
        return lambda pointer, i: pointer.view(np.uint32)[i]

    @intrinsic
    def get(typing, pointer, i):
        def codegen(ctx, b, sig, args):
            return b.load(b.gep(b.bitcast(args[0], ir.IntType(32).as_pointer()), [args[1]]))

        return types.uint32(pointer, i), codegen

    return get


@deferred
def word_putter() -> Any:
    """`put(pointer, i, bits)`: the other way round."""
    if SIMULATED:

        def put_word(pointer, i, bits):
            pointer.view(np.uint32)[i] = bits

        return put_word

    @intrinsic
    def put(typing, pointer, i, bits):
        def codegen(ctx, b, sig, args):
            b.store(args[2], b.gep(b.bitcast(args[0], ir.IntType(32).as_pointer()), [args[1]]))
            return ctx.get_dummy_value()

        return types.void(pointer, i, types.uint32), codegen

    return put
