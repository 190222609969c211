"""Quantised tensors: scales and zero points of a tensor, of an axis, or of blocks of it."""

from __future__ import annotations

from typing import Any

import numpy as np

from ....ops.quantization import CODES, whole_shape
from ....types import DType
from ..operands import Call, Operand
from ..reading import TYPES, type_name
from ..table import rule

RANGES = {DType.u8: (0, 255), DType.i8: (-128, 127), DType.u16: (0, 65535), DType.i16: (-32768, 32767)}


def _form(n: Call, parameter: Any, x: Any) -> tuple[Any, int]:
    """A scale or zero point as aicf's ops take it, and its axis: one number, one for each place of an axis, or one for each block along it."""
    rank, shape = len(x.shape), tuple(parameter.shape)
    if shape in ((), (1,)):
        return n.op("reshape", parameter, shape=()), 0
    axis, block = n.axis(n.attr("axis", 1), rank), n.attr("block_size", 0)
    if not block:
        if shape != (x.shape[axis],):
            raise n.wrong(
                f"scales of shape {list(shape)} are not one for each of axis {axis} of {list(x.shape)}"
            )
        return parameter, axis
    count = -(-x.shape[axis] // block)
    if shape != (*x.shape[:axis], count, *x.shape[axis + 1 :]):
        raise n.wrong(
            f"scales of shape {list(shape)} are not one for each block of {block} of {list(x.shape)}"
        )
    if x.shape[axis] % block == 0:
        return parameter, axis
    wide = n.op("repeat", parameter, repeats=tuple([block if a == axis else 1 for a in range(rank)]))
    return n.op("slice", wide, start=(0,) * rank, limit=tuple(x.shape)), axis  # the last block is shorter


def _as(n: Call, x: Any, dtype: DType) -> Any:
    return x if x.dtype is dtype else n.op("convert", x, dtype=dtype)


@rule("DequantizeLinear", since=10)
def _dequantize(n: Call, x: Operand, scale: Operand, zero: Operand | None = None) -> Any:
    number = n.attr("output_dtype", 0)
    made = TYPES.get(number, scale.dtype)
    if x.dtype not in CODES or (zero is not None and x.dtype.is_fp8):
        wide = _as(n, x, DType.f32)
        if zero is not None:
            wide = n.op("sub", wide, _beside(n, _as(n, zero, DType.f32), x))
        return _as(n, n.op("mul", wide, _beside(n, _as(n, scale, DType.f32), x)), made)
    form, axis = _form(n, scale, x)
    offset = None if zero is None else _form(n, zero, x)[0]
    return n.op("dequantize", x, form, offset, dtype=made, axis=axis)


def _beside(n: Call, parameter: Any, x: Any) -> Any:
    """A scale or zero point that broadcasts beside x."""
    form, axis = _form(n, parameter, x)
    shape = whole_shape(tuple(x.shape), tuple(form.shape), axis) if form.shape else ()
    return n.op("reshape", form, shape=shape)


@rule("QuantizeLinear", since=10)
def _quantize(n: Call, x: Operand, scale: Operand, zero: Operand | None = None) -> Any:
    """round(x / scale) + zero, of ties to even, within the element type's range; fp8 rounds by itself."""
    number = n.attr("output_dtype", 0)
    made = zero.dtype if zero is not None else TYPES.get(number, DType.u8)
    if number and number not in TYPES:
        raise n.refuse(f"aicf has no {type_name(number)}")
    if n.attr("precision", 0) not in (0, 1):
        raise n.refuse("a division in another type than f32")
    if made.is_fp8:
        if zero is not None and (zero.array is None or np.any(zero.array)):
            raise n.refuse("a zero point of fp8")
        if not n.attr("saturate", 1):
            raise n.refuse("aicf's fp8 saturates")
        zero = None
    if made in CODES:
        form, axis = _form(n, scale, x)
        offset = None if zero is None else _form(n, zero, x)[0]
        return n.op("quantize", x, form, offset, dtype=made, axis=axis)
    if made not in RANGES:
        raise n.refuse(f"quantising to {made}")
    y = n.op("round", n.op("div", _as(n, x, DType.f32), _beside(n, _as(n, scale, DType.f32), x)))
    if zero is not None:
        y = n.op("add", y, _beside(n, _as(n, zero, DType.f32), x))
    low, high = RANGES[made]
    return n.op("convert", n.op("clamp", float(low), y, float(high)), dtype=made)


EXACT = 1 << 24  # up to here f32 has every integer


@rule("MatMulInteger", since=10)
def _matmul_integer(
    n: Call, a: Operand, b: Operand, zero_a: Operand | None = None, zero_b: Operand | None = None
) -> Any:
    """A product of f32, where that is exact: of terms of 16 bits and a sign, up to 257 of them; of more one of integers."""
    if a.shape[-1] * 255 * 255 >= EXACT:
        return _whole_product(n, a, b, zero_a, zero_b)
    left, right = _as(n, a, DType.f32), _as(n, b, DType.f32)
    if zero_a is not None:
        shape = zero_a.shape if zero_a.rank != 1 or zero_a.shape == (1,) else (*zero_a.shape, 1)
        left = n.op("sub", left, n.op("reshape", _as(n, zero_a, DType.f32), shape=shape))
    if zero_b is not None:
        right = n.op("sub", right, _as(n, zero_b, DType.f32))
    return n.op("convert", n.value(left) @ n.value(right), dtype=DType.i32)


def _whole_product(n: Call, a: Operand, b: Operand, zero_a: Operand | None, zero_b: Operand | None) -> Any:
    """(a - za)(b - zb) of sums in i32: a b, less za times the sums of b's columns, less the sums of a's rows times zb, plus k za zb."""

    def wide(x: Any) -> Any:
        return _as(n, x, DType.i32)

    y = n.value(a) @ n.value(b)
    if zero_a is not None:
        shape = zero_a.shape if zero_a.rank != 1 or zero_a.shape == (1,) else (*zero_a.shape, 1)
        left = n.op("reshape", wide(zero_a), shape=shape)
        columns = n.op("reduce_sum", wide(b), axes=(len(b.shape) - 2,), keepdims=len(b.shape) > 1)
        y = n.op("sub", y, n.op("mul", left, columns))
    if zero_b is not None:
        right = wide(zero_b)
        rows = n.op("reduce_sum", wide(a), axes=(len(a.shape) - 1,), keepdims=len(a.shape) > 1)
        y = n.op("sub", y, n.op("mul", rows, right))
        if zero_a is not None:
            y = n.op("add", y, n.op("mul", n.op("mul", left, right), int(a.shape[-1])))
    return y


@rule("QLinearMatMul", since=10)
def _qlinear_matmul(
    n: Call, a: Operand, scale_a: Operand, zero_a: Operand, b: Operand, scale_b: Operand, zero_b: Operand, scale_y: Operand, zero_y: Operand
) -> Any:  # fmt: skip
    whole = [x.shape in ((), (1,)) for x in (scale_a, scale_b, scale_y, zero_a, zero_b, zero_y)]
    if not all(whole) or zero_y.dtype not in RANGES:
        raise n.refuse("scales of rows or columns, or a result of fp8")
    product = _as(n, _matmul_integer(n, a, b, zero_a, zero_b), DType.f32)
    factors = [n.op("reshape", _as(n, s, DType.f32), shape=()) for s in (scale_a, scale_b, scale_y)]
    y = n.op("round", n.op("mul", product, n.op("div", n.op("mul", factors[0], factors[1]), factors[2])))
    y = n.op("add", y, n.op("reshape", _as(n, zero_y, DType.f32), shape=()))
    low, high = RANGES[zero_y.dtype]
    return n.op("convert", n.op("clamp", float(low), y, float(high)), dtype=zero_y.dtype)
