"""One element of memory: its storage and compute types, loading, storing, and a scalar function applied to it.

Everything here is an intrinsic around a plain Python function. numba's simulator has no intrinsics, so beside each
stands the same thing in plain Python, on NumPy arrays.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from ...types import DType, bf16, f16, f32, i32, i64
from ..dsl import SIMULATED, deferred, device, intrinsic, ir, types


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
    return ctx.data_model_manager[numba_type(dtype)].from_data(b, raw)


def encode(ctx: Any, b: Any, dtype: DType, value: Any) -> Any:
    """A number of the compute type as what lies in memory, rounded to nearest even."""
    if dtype is f16:
        return b.bitcast(b.fptrunc(value, ir.HalfType()), ir.IntType(16))
    if dtype is bf16:
        bits = b.bitcast(value, ir.IntType(32))
        odd = b.and_(b.lshr(bits, const(16)), const(1))
        rounded = b.lshr(b.add(bits, b.add(odd, const(0x7FFF))), const(16))
        nan = b.fcmp_unordered("uno", value, value)  # it would round to infinity, so it becomes the quiet NaN
        return b.trunc(b.select(nan, const(0x7FC0), rounded), ir.IntType(16))
    return ctx.data_model_manager[numba_type(dtype)].as_data(b, value)


def emit_load(ctx: Any, b: Any, dtype: DType, pointer: Any) -> Any:
    return decode(ctx, b, dtype, b.load(pointer))


def emit_store(ctx: Any, b: Any, dtype: DType, value: Any, pointer: Any) -> None:
    b.store(encode(ctx, b, dtype, value), pointer)


def emit_load_vector(ctx: Any, b: Any, dtype: DType, pointer: Any, width: int) -> list[Any]:
    """`width` neighbours in one load, or in 16-byte loads; the pointer is aligned to all of them, or to 16 bytes."""
    vector, align, paired = _vector(pointer, width, dtype)
    raw = b.load(b.bitcast(pointer, vector.as_pointer()), align=align)
    parts = [b.extract_element(raw, const(i)) for i in range(vector.count)]
    if paired:
        parts = [b.trunc(b.lshr(p, const(16 * half)), ir.IntType(16)) for p in parts for half in range(2)]
    return [decode(ctx, b, dtype, part) for part in parts]


def emit_store_vector(ctx: Any, b: Any, dtype: DType, values: list[Any], pointer: Any) -> None:
    vector, align, paired = _vector(pointer, len(values), dtype)
    parts = [encode(ctx, b, dtype, value) for value in values]
    if paired:
        wide = [b.zext(part, ir.IntType(32)) for part in parts]
        parts = [b.or_(low, b.shl(high, const(16))) for low, high in zip(wide[::2], wide[1::2])]
    raw = vector(ir.Undefined)
    for i, part in enumerate(parts):
        raw = b.insert_element(raw, part, const(i))
    b.store(raw, b.bitcast(pointer, vector.as_pointer()), align=align)


def _vector(pointer: Any, width: int, dtype: DType) -> tuple[Any, int, bool]:
    """(vector type, its alignment, whether an element of it is a pair). Half types go in pairs, as 32-bit words: LLVM
    would split a load of many halves into loads of two."""
    paired = dtype.itemsize == 2 and width % 2 == 0
    vector = (
        ir.VectorType(ir.IntType(32), width // 2) if paired else ir.VectorType(pointer.type.pointee, width)
    )
    return vector, min(16, width * dtype.itemsize), paired


def emit_call(
    ctx: Any, b: Any, fn: Callable[..., Any], result: Any, arg_types: list[Any], args: list[Any]
) -> Any:
    """Call a plain Python function; it is inlined. Its defaults (see `typed_scalar`) are appended as constants."""
    for value in fn.__defaults__ or ():
        kind = types.boolean if isinstance(value, (bool, np.bool_)) else numba_type(DType.of(type(value)))
        arg_types, args = [*arg_types, kind], [*args, ctx.get_constant(kind, value)]
    return ctx.compile_internal(b, fn, result(*arg_types), args)


# --- the elementwise map ----------------------------------------------------------------------------------------------


@deferred
def mapper(scalar: Callable[..., Any], ins: tuple[DType, ...], outs: tuple[DType, ...]) -> Any:
    """`apply(ins, outs, offsets, i)`: outs[j][i] = scalar(ins[k][offsets[k]] for each k)[j].

    ins, outs   tuples of pointers; offsets  one per operand, in elements
    All operands are loaded before any result is stored, so a result may take over an operand's memory.
    """
    if SIMULATED:
        return functools.partial(_apply, scalar, ins)

    @intrinsic
    def apply(typing, ins_, outs_, offsets, i):
        def codegen(ctx, b, sig, args):
            sources, targets, at, to = args
            values = [
                emit_load(ctx, b, d, b.gep(b.extract_value(sources, k), [b.extract_value(at, k)]))
                for k, d in enumerate(ins)
            ]
            for k, (d, value) in enumerate(zip(outs, _emit_scalar(ctx, b, scalar, ins, outs, values))):
                emit_store(ctx, b, d, value, b.gep(b.extract_value(targets, k), [to]))
            return ctx.get_dummy_value()

        return types.void(ins_, outs_, offsets, i), codegen

    return apply


@deferred
def vector_mapper(scalar: Callable[..., Any], ins: tuple[DType, ...], outs: tuple[DType, ...],
                  scalars: tuple[bool, ...], width: int) -> Any:  # fmt: skip
    """`apply(ins, outs, i)`: the same for elements i to i + width of dense operands, with vector loads and stores.

    Operands marked in `scalars` have one element. i is a multiple of width, and pointers are aligned.
    """
    if SIMULATED:

        def apply_each(ins_, outs_, i):
            for j in range(i, i + width):
                _apply(scalar, ins, ins_, outs_, [0 if s else j for s in scalars], j)

        return apply_each

    @intrinsic
    def apply(typing, ins_, outs_, i):
        def codegen(ctx, b, sig, args):
            sources, targets, at = args
            lanes = []
            for k, d in enumerate(ins):
                pointer = b.extract_value(sources, k)
                if scalars[k]:
                    lanes.append([emit_load(ctx, b, d, pointer)] * width)
                else:
                    lanes.append(emit_load_vector(ctx, b, d, b.gep(pointer, [at]), width))
            results = [_emit_scalar(ctx, b, scalar, ins, outs, list(values)) for values in zip(*lanes)]
            for k, d in enumerate(outs):
                pointer = b.gep(b.extract_value(targets, k), [at])
                emit_store_vector(ctx, b, d, [lane[k] for lane in results], pointer)
            return ctx.get_dummy_value()

        return types.void(ins_, outs_, i), codegen

    return apply


def _emit_scalar(ctx: Any, b: Any, scalar: Callable[..., Any], ins: tuple[DType, ...], outs: tuple[DType, ...],
                 values: list[Any]) -> list[Any]:  # fmt: skip
    """scalar(*values), as a list with one value per result, each in its compute type."""
    compute = [numba_type(d) for d in outs]
    result = compute[0] if len(outs) == 1 else types.BaseTuple.from_types(compute)
    r = emit_call(ctx, b, scalar, result, [numba_type(d) for d in ins], values)
    return [r] if len(outs) == 1 else [b.extract_value(r, k) for k in range(len(outs))]


def _apply(
    scalar: Callable[..., Any], ins: tuple[DType, ...], sources: Any, targets: Any, at: Any, to: Any
) -> None:
    """The elementwise map in the simulator."""
    r = scalar(*(d.compute.numpy.type(p[o]) for d, p, o in zip(ins, sources, at)))
    for p, value in zip(targets, r if len(targets) > 1 else (r,)):
        p[to] = value


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


@deferred
def caller(fn: Callable[..., Any] | None) -> Any:
    """`call(x)`: a scalar function of one f32, or the identity for None."""
    if fn is None:
        return device(lambda x: x)
    if SIMULATED:
        return lambda x: np.float32(fn(x))

    @intrinsic
    def call(typing, x):
        def codegen(ctx, b, sig, args):
            return emit_call(ctx, b, fn, types.float32, [types.float32], list(args))

        return types.float32(types.float32), codegen

    return call
