"""One element of memory: its storage and compute types, loading, storing, and maps of scalar functions over it.

Everything here is an intrinsic around a plain Python function. numba's simulator has no intrinsics, so beside each
stands the same thing in plain Python, on NumPy arrays.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ...registry.program import Expression
from ...types import GREATEST, DType, bf16, f8e4m3, f8e5m2, f16, f32, i32, i64, rounded
from ..dsl import SIMULATED, deferred, device_calls, intrinsic, ir, types


@functools.cache
def numba_type(dtype: DType) -> Any:
    """The type that arithmetic on this dtype is done in."""
    names = {f32: types.float32, i32: types.int32, i64: types.int64, DType.bool: types.boolean}
    return names[dtype.compute]


def const(value: int, bits: int = 32) -> Any:
    """An integer constant of LLVM's."""
    return ir.Constant(ir.IntType(bits), value)


# --- loads and stores, at the level of LLVM ---------------------------------------------------------------------------


def decode(ctx: Any, b: Any, dtype: DType, raw: Any) -> Any:
    """What lies in memory, as a number of the compute type."""
    if dtype is f16:
        return b.fpext(b.bitcast(raw, ir.HalfType()), ir.FloatType())
    if dtype is bf16:  # the upper half of an f32
        return b.bitcast(b.shl(b.zext(raw, ir.IntType(32)), const(16)), ir.FloatType())
    if dtype in GREATEST:
        return _decode_fp8(b, dtype, raw)
    return ctx.data_model_manager[numba_type(dtype)].from_data(b, raw)


def encode(ctx: Any, b: Any, dtype: DType, value: Any, exact: bool = False) -> Any:
    """A number of the compute type as what lies in memory, rounded to nearest even; `exact`: it was rounded before."""
    if dtype is f16:
        return b.bitcast(b.fptrunc(value, ir.HalfType()), ir.IntType(16))
    if dtype is bf16:
        bits = b.bitcast(value, ir.IntType(32))
        if exact:
            return b.trunc(b.lshr(bits, const(16)), ir.IntType(16))
        odd = b.and_(b.lshr(bits, const(16)), const(1))
        even = b.lshr(b.add(bits, b.add(odd, const(0x7FFF))), const(16))
        nan = b.fcmp_unordered("uno", value, value)  # it would round to infinity, so it becomes the quiet NaN
        return b.trunc(b.select(nan, const(0x7FC0), even), ir.IntType(16))
    if dtype in GREATEST:
        return _encode_fp8(b, dtype, value)
    return ctx.data_model_manager[numba_type(dtype)].as_data(b, value)


# fp8 in integers, on every architecture alike: 5 instructions to read one, 14 to write one; sm_89 has some of its own.
MANTISSA = {f8e4m3: 3, f8e5m2: 2}
BIAS = {f8e4m3: 7, f8e5m2: 15}


def _decode_fp8(b: Any, dtype: DType, raw: Any) -> Any:
    """By way of f16: its upper byte is an f8e5m2; an f8e4m3 has its exponent one bit lower, and another bias."""
    half, byte = ir.IntType(16), b.zext(raw, ir.IntType(16))
    if dtype is f8e5m2:
        return b.fpext(b.bitcast(b.shl(byte, const(8, 16)), ir.HalfType()), ir.FloatType())
    rest = b.and_(byte, const(0x7F, 16))
    sign = b.shl(b.and_(byte, const(0x80, 16)), const(8, 16))
    number = b.fpext(b.bitcast(b.or_(sign, b.shl(rest, const(7, 16))), ir.HalfType()), ir.FloatType())
    scaled = b.fmul(number, ir.Constant(ir.FloatType(), 256.0))
    nan = b.icmp_unsigned("==", rest, ir.Constant(half, 0x7F))
    return b.select(nan, ir.Constant(ir.FloatType(), float("nan")), scaled)


def _encode_fp8(b: Any, dtype: DType, value: Any) -> Any:
    """As aicf/cpu_kernels/halves.py does it."""
    real, shift, over = ir.FloatType(), 23 - MANTISSA[dtype], 127 - BIAS[dtype]
    bits = b.bitcast(value, ir.IntType(32))
    rest, most = b.and_(bits, const(0x7FFFFFFF)), const(int(np.float32(GREATEST[dtype]).view(np.uint32)))
    bounded = b.select(b.icmp_unsigned("<", rest, most), rest, most)
    magic = const(
        (over + shift + 1) << 23
    )  # adding it as a float leaves a subnormal's digits at the right end
    tiny = b.sub(b.bitcast(b.fadd(b.bitcast(bounded, real), magic.bitcast(real)), ir.IntType(32)), magic)
    odd = b.and_(b.lshr(bounded, const(shift)), const(1))
    half = const((1 << (shift - 1)) - 1 - (over << 23))
    even = b.lshr(b.add(b.add(bounded, half), odd), const(shift))
    code = b.select(b.icmp_unsigned("<", bounded, const((over + 1) << 23)), tiny, even)
    infinite = const(0x7F800000)
    if dtype is f8e5m2:
        code = b.select(b.icmp_unsigned("==", rest, infinite), const(0x7C), code)
    code = b.select(b.icmp_unsigned(">", rest, infinite), const(0x7F), code)
    return b.trunc(b.or_(code, b.and_(b.lshr(bits, const(24)), const(0x80))), ir.IntType(8))


def emit_load(ctx: Any, b: Any, dtype: DType, pointer: Any) -> Any:
    return decode(ctx, b, dtype, b.load(pointer))


def emit_store(ctx: Any, b: Any, dtype: DType, value: Any, pointer: Any, exact: bool = False) -> None:
    b.store(encode(ctx, b, dtype, value, exact), pointer)


def emit_load_vector(ctx: Any, b: Any, dtype: DType, pointer: Any, width: int) -> list[Any]:
    """`width` neighbours in one load, or in 16-byte loads; the pointer is aligned to all of them, or to 16 bytes."""
    return unpack(ctx, b, dtype, emit_load_parts(b, dtype, pointer, width))


def emit_load_parts(b: Any, dtype: DType, pointer: Any, width: int) -> list[Any]:
    """The same as they lie in memory, in words of 32 bits where `per_word` says so."""
    vector, align = _vector(pointer, width, dtype)
    raw = b.load(b.bitcast(pointer, vector.as_pointer()), align=align)
    return [b.extract_element(raw, const(i)) for i in range(vector.count)]


def unpack(ctx: Any, b: Any, dtype: DType, parts: list[Any]) -> list[Any]:
    """What `emit_load_parts` brought, as numbers."""
    bits = 8 * dtype.itemsize
    if bits < 32 and parts[0].type == ir.IntType(32):
        shifts = range(0, 32, bits)
        parts = [b.trunc(b.lshr(p, const(shift)), ir.IntType(bits)) for p in parts for shift in shifts]
    return [decode(ctx, b, dtype, part) for part in parts]


def emit_store_vector(
    ctx: Any, b: Any, dtype: DType, values: list[Any], pointer: Any, exact: bool = False
) -> None:
    vector, align = _vector(pointer, len(values), dtype)
    parts = [encode(ctx, b, dtype, value, exact) for value in values]
    if (count := per_word(dtype, len(values))) > 1:
        wide = [b.zext(part, ir.IntType(32)) for part in parts]
        for k in range(1, count):
            low, shift = wide[0::count], const(8 * dtype.itemsize * k)
            wide[0::count] = [b.or_(x, b.shl(y, shift)) for x, y in zip(low, wide[k::count])]
        parts = wide[::count]
    raw = vector(ir.Undefined)
    for i, part in enumerate(parts):
        raw = b.insert_element(raw, part, const(i))
    b.store(raw, b.bitcast(pointer, vector.as_pointer()), align=align)


def per_word(dtype: DType, width: int) -> int:
    """How many of `width` neighbours are loaded and stored as one word of 32 bits: LLVM would split a load of many small
    elements into loads of few."""
    count = max(1, 4 // dtype.itemsize)
    return count if width % count == 0 else 1


def _vector(pointer: Any, width: int, dtype: DType) -> tuple[Any, int]:
    """(vector type, its alignment)."""
    count = per_word(dtype, width)
    kind = pointer.type.pointee if count == 1 else ir.IntType(32)
    return ir.VectorType(kind, width // count), min(16, width * dtype.itemsize)


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


# --- maps -------------------------------------------------------------------------------------------------------------
#
# An Expression holds a map's arithmetic (registry/program.py). Its arguments are, in order, what a core hands over (if
# anything) and the map's loads; `ins` has the dtype of each load, or None where the load is the offset itself, as i64.
# Kernels pass pointers for the other loads only, and an offset in elements for each load. `outs` has the dtype of each
# store. All loads come before any store, so a result may take over an operand's memory.

Loads = tuple[DType | None, ...]
Stores = tuple[DType, ...]


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
def applier(expr: Expression, ins: Loads, outs: Stores) -> Any:
    """`apply(carried, ins, outs, offsets, i)`: as mapper's; the first argument is a number that a core made."""
    lanes = _single(expr, ins, outs)
    if SIMULATED:
        return lambda carried, *args: _run(lanes, [(carried,)], *args)

    @intrinsic
    def apply(typing, carried, ins_, outs_, offsets, i):
        def codegen(ctx, b, sig, args):
            number = ctx.cast(b, args[0], carried, numba_type(expr.dtypes[0]))
            _emit(ctx, b, lanes, [(number,)], *args[1:])
            return ctx.get_dummy_value()

        return types.void(carried, ins_, outs_, offsets, i), codegen

    return apply


@deferred
def vector_applier(expr: Expression, ins: Loads, outs: Stores, moves: tuple[bool, ...], width: int) -> Any:
    """The same for `width` neighbours: see Lanes. `carried` is a tuple with a number for each, and so is what is returned if
    there is one result more than stores."""
    lanes, returns = Lanes(expr, ins, outs, moves, width), len(expr.results) > len(outs)
    if SIMULATED:
        return lambda carried, *args: tuple(_run(lanes, [(c,) for c in carried], *args))

    @intrinsic
    def apply(typing, carried, ins_, outs_, offsets, i):
        def codegen(ctx, b, sig, args):
            each, kind = [b.extract_value(args[0], j) for j in range(width)], numba_type(expr.dtypes[0])
            numbers = [(ctx.cast(b, number, carried.dtype, kind),) for number in each]
            made = _emit(ctx, b, lanes, numbers, *args[1:])
            return ctx.make_tuple(b, sig.return_type, made) if returns else ctx.get_dummy_value()

        made = types.UniTuple(numba_type(expr.dtypes[expr.results[-1]]), width) if returns else types.void
        return made(carried, ins_, outs_, offsets, i), codegen

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


def _emit(ctx: Any, b: Any, lanes: Lanes, carried: list[tuple[Any, ...]], sources: Any, targets: Any, offsets: Any,
          to: Any) -> list[Any]:  # fmt: skip
    """Loads, steps and stores; returns of each lane the result that is not stored, if there is one."""
    expr, width, apart = lanes.emitted, lanes.width, lanes.apart
    arguments, pointer = carried, 0
    for k, (dtype, moves) in enumerate(zip(lanes.ins, lanes.moves)):
        at = b.extract_value(offsets, k)
        if dtype is None:
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
    made = [emit_expression(ctx, b, expr, list(values)) for values in arguments]
    for k, dtype in enumerate(lanes.outs):
        target, values = b.gep(b.extract_value(targets, k), [to]), [results[k] for results in made]
        exact = expr.results[k] in expr.rounded
        if width > 1 and apart == 1:
            emit_store_vector(ctx, b, dtype, values, target, exact)
            continue
        for j, value in enumerate(values):
            emit_store(ctx, b, dtype, value, b.gep(target, [to.type(j * apart)]), exact)
    return [results[-1] for results in made if len(results) > len(lanes.outs)]


def emit_expression(ctx: Any, b: Any, expr: Expression, values: list[Any]) -> list[Any]:
    """Arguments to results, each in its slot's compute type."""
    slots: dict[int, Any] = {}

    def put(slot: int, value: Any) -> None:
        dtype = expr.dtypes[slot]
        slots[slot] = decode(ctx, b, dtype, encode(ctx, b, dtype, value)) if slot in expr.rounded else value

    for slot, value in enumerate(values):
        put(slot, value)
    for fn, arguments, made in expr.steps:
        kinds = [numba_type(expr.dtypes[s]) for s in made]
        result = kinds[0] if len(made) == 1 else types.BaseTuple.from_types(kinds)
        given = [numba_type(expr.dtypes[s]) for s in arguments]
        r = emit_call(ctx, b, device_calls(fn), result, given, [slots[s] for s in arguments])
        for k, slot in enumerate(made):
            put(slot, r if len(made) == 1 else b.extract_value(r, k))
    return [slots[s] for s in expr.results]


def _run(lanes: Lanes, carried: list[tuple[Any, ...]], sources: Any, targets: Any, offsets: Any,
         to: Any) -> list[Any]:  # fmt: skip
    """As _emit, in the simulator."""
    arguments, pointers = carried, iter(sources)
    for dtype, moves, at in zip(lanes.ins, lanes.moves, offsets):
        places = [at + j * lanes.apart if moves else at for j in range(lanes.width)]
        column = places if dtype is None else [*map(next(pointers).__getitem__, places)]
        arguments = [(*given, value) for given, value in zip(arguments, column)]
    made = [run_expression(lanes.expr, list(values)) for values in arguments]
    for j, results in enumerate(made):
        for target, value in zip(targets, results):
            target[to + j * lanes.apart] = value
    return [results[-1] for results in made if len(results) > len(lanes.outs)]


def run_expression(expr: Expression, values: list[Any]) -> list[Any]:
    """As emit_expression, in Python."""
    slots: dict[int, Any] = {}

    def put(slot: int, value: Any) -> None:
        dtype = expr.dtypes[slot]
        value = rounded(np.asarray(value), dtype)[()] if slot in expr.rounded else value
        slots[slot] = dtype.compute.numpy.type(value)

    for slot, value in enumerate(values):
        put(slot, value)
    for fn, arguments, made in expr.steps:
        r = fn(*(slots[s] for s in arguments))
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
