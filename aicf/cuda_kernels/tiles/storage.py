"""One element of memory at the level of LLVM: what its storage and compute types are, loads, stores, and vectors of them."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from ...types import FINITE_MAX, DType, bf16, f8e4m3, f8e5m2, f16, f32, i8, i32, i64, u8
from ..dsl import ir, types
from ..llvm import capability, const
from ..ptx.fp8 import SINCE, narrow_pair, widen_pair


@functools.cache
def numba_type(dtype: DType) -> Any:
    """The type that arithmetic on this dtype is done in."""
    names = {f32: types.float32, i32: types.int32, i64: types.int64, DType.bool: types.boolean}
    names |= {i8: types.int8, u8: types.uint8}
    return names[dtype.compute]


# --- loads and stores, at the level of LLVM ---------------------------------------------------------------------------


def decode(ctx: Any, b: Any, dtype: DType, raw: Any) -> Any:
    """What lies in memory, as a number of the compute type."""
    if dtype is f16:
        return b.fpext(b.bitcast(raw, ir.HalfType()), ir.FloatType())
    if dtype is bf16:  # the upper half of an f32
        return b.bitcast(b.shl(b.zext(raw, ir.IntType(32)), const(16)), ir.FloatType())
    if dtype.is_fp8:
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
    if dtype.is_fp8:
        return _encode_fp8(b, dtype, value)
    return ctx.data_model_manager[numba_type(dtype)].as_data(b, value)


# fp8: by an instruction for two, or in integers, some 9 to read a number and 14 to write one. The numbers are the same.
MANTISSA = {f8e4m3: 3, f8e5m2: 2}
BIAS = {f8e4m3: 7, f8e5m2: 15}


def _decode_fp8(b: Any, dtype: DType, raw: Any) -> Any:
    """By way of f16: its upper byte is an f8e5m2; an f8e4m3 has its exponent one bit lower, and another bias."""
    half, byte = ir.IntType(16), b.zext(raw, ir.IntType(16))
    if capability() >= SINCE:
        return b.fpext(widen_pair(b, dtype, byte)[0], ir.FloatType())
    if dtype is f8e5m2:
        return b.fpext(b.bitcast(b.shl(byte, const(8, 16)), ir.HalfType()), ir.FloatType())
    rest = b.and_(byte, const(0x7F, 16))
    sign = b.shl(b.and_(byte, const(0x80, 16)), const(8, 16))
    number = b.fpext(b.bitcast(b.or_(sign, b.shl(rest, const(7, 16))), ir.HalfType()), ir.FloatType())
    scaled = b.fmul(number, ir.Constant(ir.FloatType(), 256.0))
    nan = b.icmp_unsigned("==", rest, ir.Constant(half, 0x7F))
    return b.select(nan, ir.Constant(ir.FloatType(), float("nan")), scaled)


def _encode_fp8(b: Any, dtype: DType, value: Any) -> Any:
    """As aicf/cpu_kernels/compiler/halves.py does it."""
    if capability() >= SINCE:
        return b.trunc(_encode_pair(b, dtype, value, ir.Constant(ir.FloatType(), 0.0)), ir.IntType(8))
    real, shift, over = ir.FloatType(), 23 - MANTISSA[dtype], 127 - BIAS[dtype]
    bits = b.bitcast(value, ir.IntType(32))
    rest, most = b.and_(bits, const(0x7FFFFFFF)), const(int(np.float32(FINITE_MAX[dtype]).view(np.uint32)))
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


def _encode_pair(b: Any, dtype: DType, low: Any, high: Any) -> Any:
    """As 16 bits. The instruction makes the greatest number of infinity, whose code in f8e5m2 is the next one."""
    pair = narrow_pair(b, dtype, low, high)
    if dtype is f8e5m2:
        for value, one in ((low, 1), (high, 0x100)):
            rest = b.and_(b.bitcast(value, ir.IntType(32)), const(0x7FFFFFFF))
            infinite = b.icmp_unsigned("==", rest, const(0x7F800000))
            pair = b.add(pair, b.select(infinite, const(one, 16), const(0, 16)))
    return pair


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
    """What `emit_load_parts` loaded, as numbers."""
    bits = 8 * dtype.itemsize
    if bits < 32 and parts[0].type == ir.IntType(32):
        pairs = dtype.is_fp8 and capability() >= SINCE
        shifts, kind = (range(0, 32, 16), ir.IntType(16)) if pairs else (range(0, 32, bits), ir.IntType(bits))
        parts = [b.trunc(b.lshr(p, const(shift)), kind) for p in parts for shift in shifts]
        if pairs:
            return [b.fpext(half, ir.FloatType()) for p in parts for half in widen_pair(b, dtype, p)]
    return [decode(ctx, b, dtype, part) for part in parts]


def emit_store_vector(
    ctx: Any, b: Any, dtype: DType, values: list[Any], pointer: Any, exact: bool = False
) -> None:
    vector, align = _vector(pointer, len(values), dtype)
    count = per_word(dtype, len(values))
    if count > 1 and dtype.is_fp8 and capability() >= SINCE:
        parts = [_encode_pair(b, dtype, low, high) for low, high in zip(values[::2], values[1::2])]
        count = 2
    else:
        parts = [encode(ctx, b, dtype, value, exact) for value in values]
    if count > 1:
        wide = [b.zext(part, ir.IntType(32)) for part in parts]
        for k in range(1, count):
            low, shift = wide[0::count], const(32 // count * k)
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
