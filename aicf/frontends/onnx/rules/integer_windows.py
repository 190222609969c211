"""Convolutions of integers: of f32 where that is exact."""

from __future__ import annotations

from math import prod
from typing import Any

from ....types import DType
from ..operands import Call, Operand
from ..table import rule
from .quantization import EXACT, RANGES
from .windows import _spatial


def _f32(n: Call, x: Operand | Any) -> Any:
    return n.op("convert", x, dtype=DType.f32)


def _channel(n: Call, x: Any, rank: int, axis: int, size: int, name: str) -> Any:
    """A scale or a zero point beside a tensor: one number, or one for each place of an axis."""
    if prod(x.shape) == 1:
        return n.op("reshape", x, shape=())
    if tuple(x.shape) != (size,):
        raise n.wrong(f"{name} has shape {list(x.shape)}, expected one number or {size}")
    return n.op("reshape", x, shape=(*[1] * axis, size, *[1] * (rank - axis - 1)))


def _sums(n: Call, x: Operand, w: Operand, zero_x: Operand | None, zero_w: Operand | None) -> Any:
    """The convolution of x and w less their zero points, in f32: its padding is of zero points."""
    terms = prod(w.shape[1:])
    if terms * 255 * 255 >= EXACT:
        raise n.refuse(f"a sum of {terms} products of integers is not exact in f32")
    s = _spatial(n, x, tuple(n.attr("kernel_shape") or w.shape[2:]))
    if s.window != w.shape[2:]:
        raise n.wrong(f"kernel_shape {list(s.window)} is not that of w, {list(w.shape)}")
    left, right = _f32(n, x), _f32(n, w)
    if zero_x is not None:
        left = n.op("sub", left, n.op("reshape", _f32(n, zero_x), shape=()))
    if zero_w is not None:
        right = n.op("sub", right, _channel(n, _f32(n, zero_w), w.rank, 0, w.shape[0], "w_zero_point"))
    return n.op("convolution", left, right, **s.attrs, groups=n.attr("group", 1))


@rule("ConvInteger", since=10)
def _conv_integer(
    n: Call, x: Operand, w: Operand, zero_x: Operand | None = None, zero_w: Operand | None = None
) -> Any:
    return n.op("convert", _sums(n, x, w, zero_x, zero_w), dtype=DType.i32)


@rule("QLinearConv", since=10)
def _qlinear_conv(
    n: Call, x: Operand, scale_x: Operand, zero_x: Operand, w: Operand, scale_w: Operand, zero_w: Operand, scale_y: Operand, zero_y: Operand,
    bias: Operand | None = None,
) -> Any:  # fmt: skip
    """round(sums * scales) + zero point, of ties to even, within the element type's range."""
    if zero_y.dtype not in RANGES:
        raise n.refuse(f"a result of {zero_y.dtype}")
    total = _sums(n, x, w, zero_x, zero_w)
    rank, channels = x.rank, w.shape[0]
    if bias is not None:
        total = n.op("add", total, _channel(n, _f32(n, bias), rank, 1, channels, "B"))
    one_x, one_y = (n.op("reshape", s, shape=()) for s in (scale_x, scale_y))
    factor = n.op(
        "div", n.op("mul", one_x, _channel(n, n.value(scale_w), rank, 1, channels, "w_scale")), one_y
    )
    y = n.op("add", n.op("round", n.op("mul", total, factor)), n.op("reshape", _f32(n, zero_y), shape=()))
    low, high = RANGES[zero_y.dtype]
    return n.op("convert", n.op("clamp", float(low), y, float(high)), dtype=zero_y.dtype)
