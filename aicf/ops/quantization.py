"""Numbers of 8 bits that stand for others: scales and zero points of a tensor, of its channels, or of blocks of it.

A code q stands for (q - zero) * scale. A graph has maps in the place of these ops, which fuse with what stands around them.
"""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

from ..types import FINITE_MAX, DType, Shape, TensorSpec, f32, rounded
from .arithmetic import unbroadcast
from .constraints import TypeConstraint
from .schema import FloatOwn, elementwise, op, require

CODES = frozenset({DType.i8, DType.u8, DType.f8e4m3, DType.f8e5m2})  # what is stored
Code = TypeConstraint("code", CODES, shared=False)
Zero = TypeConstraint("zero point", frozenset({DType.i8, DType.u8, DType.i32}), shared=False)


def code_range(dtype: DType) -> tuple[float, float]:
    """The least and the greatest number that a code is."""
    if dtype.is_fp8:
        return -FINITE_MAX[dtype], FINITE_MAX[dtype]
    info = np.iinfo(dtype.numpy)
    return float(info.min), float(info.max)


# --- what a scale is of -----------------------------------------------------------------------------------------------


def whole_shape(shape: Shape, given: Shape, axis: int) -> Shape:
    """A scale's shape with as many axes as x: of one number, or of one axis, the others are 1."""
    rank = len(shape)
    if len(given) == rank:
        return given
    return tuple([given[0] if given and n == axis % rank else 1 for n in range(rank)])


def check_parameter(name: str, x: TensorSpec, p: TensorSpec, axis: int, constraint: str) -> None:
    """A scale, or a zero point, of a tensor, of places along an axis, or of blocks."""
    forms = f"expected (), one axis, or rank {x.rank}"
    require(p.rank in (0, 1, x.rank), constraint, f"{name} has shape {p.shape}, {forms}")
    if p.rank == 1 and x.rank != 1:
        require(-x.rank <= axis < x.rank, constraint, f"axis {axis} is outside [-{x.rank}, {x.rank})")
    for n, (extent, count) in enumerate(zip(x.shape, whole_shape(x.shape, p.shape, axis))):
        require(
            count > 0 and extent % count == 0,
            constraint,
            f"{name} has {count} along axis {n} of x, whose extent {extent} is no multiple of that",
        )


def _check(x: TensorSpec, scale: TensorSpec, zero: TensorSpec | None, axis: int, code: DType) -> None:
    check_parameter("scale", x, scale, axis, "C1")
    if zero is not None:
        require(
            zero.shape == scale.shape,
            "C2",
            f"zero has shape {zero.shape}, scale {scale.shape}: needs equal ones",
        )
        require(not code.is_fp8, "C3", f"codes of {code} have no zero point")


def _blocks(emit: Any, x: Any, parameters: list[Any], axis: int) -> tuple[Any, list[Any]]:
    """x with each axis that is cut into blocks as two, and scales and zero points that broadcast beside it."""
    given = [p if p is None else whole_shape(x.shape, p.shape, axis) for p in parameters]
    shapes = [g for g in given if g is not None]
    cut = [any(1 < g[n] < d for g in shapes) for n, d in enumerate(x.shape)]
    counts = [max(g[n] for g in shapes) for n in range(x.rank)]
    split = [(c, d // c) if s else (d,) for d, c, s in zip(x.shape, counts, cut)]
    made: list[Any] = []
    for p, g in zip(parameters, given):
        if p is not None and g is not None:
            wide = tuple([e for n, s in enumerate(cut) for e in ((g[n], 1) if s else (g[n],))])
            p = _in_shape(emit, p, () if prod(wide) == 1 else wide)
        made.append(p)
    return _in_shape(emit, x, tuple([e for part in split for e in part])), made


def _in_shape(emit: Any, x: Any, shape: Shape) -> Any:
    return x if tuple(x.shape) == shape else emit.reshape(x, shape=shape)


def _wide(emit: Any, x: Any) -> Any:
    return x if x is None or x.dtype is f32 else emit.convert(x, dtype=f32)


def _spread(parameter: np.ndarray, shape: Shape, axis: int) -> np.ndarray:
    """Of each element of x, the scale or zero point: in NumPy, by repeating."""
    made = parameter.reshape(whole_shape(shape, parameter.shape, axis))
    for n, (extent, count) in enumerate(zip(shape, made.shape)):
        made = np.repeat(made, extent // count if count else 1, n)
    return made


# --- the ops ----------------------------------------------------------------------------------------------------------


@op("quantize")
def quantize(x: FloatOwn, scale: FloatOwn, zero: Zero = None, *, dtype: DType = DType.i8, axis: int = 0):
    """x / scale, rounded to nearest even, plus zero, as a code; the nearest one where there is none.

    NaN becomes some code, as in StableHLO's uniform_quantize; of fp8 it stays NaN.

    Shapes: y has x's. scale is (), for all of x; (c,) for blocks along `axis`, one for each place if c is its extent; or has x's rank, with
    a divisor of x's extent along each axis: a block has one scale.

    C1  along each axis scale has 1 element, or a divisor of the extent of x     (axis counts from the end if it is negative)
    C2  zero has the shape of scale
    C3  fp8 has no zero point
    C4  dtype is i8, u8, f8e4m3 or f8e5m2
    """
    require(dtype in CODES, "C4", f"dtype is {dtype}, expected i8, u8, f8e4m3 or f8e5m2")
    _check(x, scale, zero, axis, dtype)
    return TensorSpec(x.shape, dtype, x.device)


@quantize.replaced_by
def _(emit, x, scale, zero=None, *, dtype, axis):
    shape = x.shape
    x, (scale, zero) = _blocks(emit, x, [scale, zero], axis)
    y = emit.div(_wide(emit, x), _wide(emit, scale))
    if not dtype.is_fp8:
        low, high = code_range(dtype)
        y = emit.round(y)
        y = y if zero is None else emit.add(y, _wide(emit, zero))
        y = emit.clamp(low, y, high)
    return _in_shape(emit, emit.convert(y, dtype=dtype), shape)


@quantize.reference
def _(x, scale, zero=None, *, dtype, axis):
    y = x / _spread(scale.astype(x.dtype), x.shape, axis)
    if dtype.is_fp8:
        return rounded(y, dtype)
    y = np.rint(y)
    if zero is not None:
        y = y + _spread(zero, x.shape, axis)
    return np.clip(y, *code_range(dtype)).astype(dtype.numpy)


@op("dequantize")
def dequantize(x: Code, scale: FloatOwn, zero: Zero = None, *, dtype: DType = DType.f32, axis: int = 0):
    """(x - zero) * scale, of codes: computed in f32 and rounded once. scale and zero are as quantize has them.

    C1  along each axis scale has 1 element, or a divisor of the extent of x     (axis counts from the end if it is negative)
    C2  zero has the shape of scale
    C3  fp8 has no zero point
    C4  dtype is f32, f16 or bf16
    """
    require(dtype in FloatOwn.dtypes, "C4", f"dtype is {dtype}, expected f32, f16 or bf16")
    _check(x, scale, zero, axis, x.dtype)
    return TensorSpec(x.shape, dtype, x.device)


@dequantize.replaced_by
def _(emit, x, scale, zero=None, *, dtype, axis):
    shape = x.shape
    x, (scale, zero) = _blocks(emit, x, [scale, zero], axis)
    y = emit.convert(x, dtype=f32)
    y = y if zero is None else emit.sub(y, _wide(emit, zero))
    y = emit.mul(y, _wide(emit, scale))
    return _in_shape(emit, y if dtype is f32 else emit.convert(y, dtype=dtype), shape)


@dequantize.reference
def _(x, scale, zero=None, *, dtype, axis):
    wide = x.astype(np.promote_types(scale.dtype, np.float32))
    if zero is not None:
        wide = wide - _spread(zero, x.shape, axis)
    return wide * _spread(scale.astype(wide.dtype), x.shape, axis)


@op("fake_quantize")
def fake_quantize(
    x: FloatOwn, scale: FloatOwn, zero: FloatOwn = None, *, dtype: DType = DType.i8, axis: int = 0
):
    """What quantize and dequantize make of x, in its own type, with a gradient as if nothing was rounded.

    It is for training a model that will be quantised.

    The gradient of x passes where x / scale + zero is in the range of codes and is 0 elsewhere; that of scale is code - zero - x / scale,
    and that of zero 0, inside of the range, and those of a constant code outside. zero is a number of a float type here.

    C1  along each axis scale has 1 element, or a divisor of the extent of x     (axis counts from the end if it is negative)
    C2  zero has the shape of scale
    C3  fp8 has no zero point
    C4  dtype is i8, u8, f8e4m3 or f8e5m2
    """
    require(dtype in CODES, "C4", f"dtype is {dtype}, expected i8, u8, f8e4m3 or f8e5m2")
    _check(x, scale, zero, axis, dtype)
    return x


@fake_quantize.replaced_by
def _(emit, x, scale, zero=None, *, dtype, axis):
    shape, made = x.shape, x.dtype
    x, (scale, zero) = _blocks(emit, x, [scale, zero], axis)
    scale, zero = _wide(emit, scale), _wide(emit, zero)
    y = emit.div(_wide(emit, x), scale)
    y = y if zero is None else emit.add(y, zero)
    low, high = code_range(dtype)
    y = emit.clamp(low, y, high)
    code = emit.convert(emit.convert(y, dtype=dtype), dtype=f32) if dtype.is_fp8 else emit.round(y)
    code = emit.straight_through(y, code)
    code = code if zero is None else emit.sub(code, zero)
    y = emit.mul(code, scale)
    return _in_shape(emit, y if made is f32 else emit.convert(y, dtype=made), shape)


@fake_quantize.reference
def _(x, scale, zero=None, *, dtype, axis):
    scale = _spread(scale.astype(x.dtype), x.shape, axis)
    offset = 0 if zero is None else _spread(zero.astype(x.dtype), x.shape, axis)
    y = np.clip(x / scale + offset, *code_range(dtype))
    code = rounded(y, dtype).astype(x.dtype) if dtype.is_fp8 else np.rint(y)
    return (code - offset) * scale


@elementwise("straight_through", continuous=True)
def straight_through(x, value):
    """value, with the gradient of x: for what has none of its own, such as a rounding."""
    return value


@straight_through.reference
def _(x, value):
    return np.broadcast_to(value, np.broadcast_shapes(x.shape, value.shape)).copy()


@straight_through.gradient
def _(emit, dy, x):
    return unbroadcast(emit, dy, x), None


def _scales(rng, shape, shapes):
    return rng.uniform(0.02, 0.1, shape)


for _schema in (quantize, dequantize, fake_quantize):
    _schema.draws(scale=_scales)
    _schema.samples((4, 6), ())
    _schema.samples((4, 6), (1,), (1,))
    _schema.samples((4, 6), (6,), (6,), axis=-1)
    _schema.samples((4, 6), (4, 1), (4, 1))
    _schema.samples((4, 6), (2, 3), (2, 3))
    _schema.samples((2, 3, 8), (4,), axis=2)
    _schema.samples((0, 6), (6,), axis=1)
    _schema.samples((), ())
for _type in sorted(CODES, key=lambda t: t.id):
    quantize.samples((5, 8), (5, 2), dtype=_type)
    fake_quantize.samples((5, 8), (5, 2), dtype=_type)
straight_through.samples((4, 7), (4, 7))
straight_through.samples((4, 1), (3, 1, 7))
straight_through.samples((), ())
straight_through.samples((0, 3), (0, 3))
