"""Arithmetic, comparison, logic and activations."""

from __future__ import annotations

import math
from functools import reduce
from typing import Any

import numpy as np

from ....types import DType
from ..operands import Call, Operand
from ..reading import TYPES, type_name
from ..table import rule

BINARY = {
    "Add": "add", "Sub": "sub", "Mul": "mul", "Equal": "equal", "Greater": "greater", "Less": "less",
    "GreaterOrEqual": "greater_equal", "LessOrEqual": "less_equal", "And": "logical_and", "Or": "logical_or",
    "Xor": "logical_xor", "BitwiseAnd": "bitwise_and", "BitwiseOr": "bitwise_or", "BitwiseXor": "bitwise_xor",
}  # fmt: skip
UNARY = {
    "Abs": "abs", "Neg": "neg", "Exp": "exp", "Log": "log", "Sqrt": "sqrt", "Sigmoid": "sigmoid", "Tanh": "tanh",
    "Floor": "floor", "Ceil": "ceil", "Round": "round", "Sign": "sign", "Reciprocal": "reciprocal", "Sin": "sin",
    "Cos": "cos", "Tan": "tan", "Asin": "asin", "Acos": "acos", "Atan": "atan", "Sinh": "sinh", "Cosh": "cosh",
    "Asinh": "asinh", "Acosh": "acosh", "Atanh": "atanh", "Erf": "erf", "Not": "logical_not", "IsNaN": "is_nan",
    "BitwiseNot": "bitwise_not", "Softplus": "softplus", "HardSwish": "hard_swish", "Mish": "mish",
}  # fmt: skip
VARIADIC = {"Max": "maximum", "Min": "minimum", "Sum": "add"}


@rule(*BINARY, since=7)
def _binary(n: Call, a: Operand, b: Operand) -> Any:
    return n.op(BINARY[n.node.op], a, b)


@rule(*UNARY)
def _unary(n: Call, x: Operand) -> Any:
    return n.op(UNARY[n.node.op], x)


@rule(*VARIADIC, since=6)
def _variadic(n: Call, *xs: Operand) -> Any:
    if len(xs) == 1:
        return xs[0]
    return reduce(lambda a, b: n.op(VARIADIC[n.node.op], a, b), xs)


@rule("Mean", since=6)
def _mean(n: Call, *xs: Operand) -> Any:
    total = reduce(lambda a, b: n.op("add", a, b), xs)
    return n.op("scale", total, factor=1 / len(xs))


@rule("Div", since=7)
def _div(n: Call, a: Operand, b: Operand) -> Any:
    _check_divisor(n, b)
    return n.op("div" if a.dtype.kind == "float" else "trunc_divide", a, b)


@rule("Mod", since=10)
def _mod(n: Call, a: Operand, b: Operand) -> Any:
    """Of the sign of the divisor; with fmod, of the dividend."""
    _check_divisor(n, b)
    return n.op("rem" if n.attr("fmod") else "mod", a, b)


def _check_divisor(n: Call, b: Operand) -> None:
    if b.dtype.kind != "float" and b.array is not None and not np.all(b.array):
        raise n.wrong("an integer is divided by 0")


@rule("BitShift", since=11)
def _bit_shift(n: Call, a: Operand, b: Operand) -> Any:
    direction = n.attr("direction")
    if direction not in ("LEFT", "RIGHT"):
        raise n.wrong(f"direction is {direction!r}, expected LEFT or RIGHT")
    right = "shift_right_logical" if a.dtype.numpy.kind == "u" else "shift_right_arithmetic"
    return n.op("shift_left" if direction == "LEFT" else right, a, b)


@rule("Pow", since=7)
def _pow(n: Call, a: Operand, b: Operand) -> Any:
    exponent = b.array.item() if b.array is not None and b.array.size == 1 and b.rank <= a.rank else None
    if exponent in (1, 2, 3):  # not 0.5: a root of -inf is NaN, its power inf
        x = n.value(a)
        return x if exponent == 1 else x**exponent
    if a.dtype.kind != "float" and b.dtype.kind == "float" and a.dtype is not DType.bool:
        wide = (n.op("convert", v, dtype=DType.f64) for v in (a, b))
        return n.op("convert", n.op("power", *wide), dtype=a.dtype)
    if a.dtype in (DType.i32, DType.i64) and b.dtype.kind == "int":
        return _whole_power(n, a, b)
    if a.dtype.kind != "float":
        raise n.refuse(f"aicf has no power of {a.dtype}")
    if b.dtype is not a.dtype:
        b = Operand(value=n.op("convert", b, dtype=a.dtype))
    return n.op("power", a, b)


def _whole_power(n: Call, a: Operand, b: Operand) -> Any:
    """By squaring, bit by bit of the exponent, wrapping as products do; to a negative one 0, but of 1 and -1."""
    exponent = n.value(b) if b.dtype is a.dtype else n.op("convert", b, dtype=a.dtype)
    base, y = n.value(a), n.number(1, a.dtype)
    left = n.op("minimum", n.op("maximum", exponent, 0), 63)
    for _ in range(6):
        odd = n.op("not_equal", n.op("bitwise_and", left, 1), 0)
        y, base = n.op("select", odd, n.op("mul", y, base), y), n.op("square", base)
        left = n.op("shift_right_arithmetic", left, 1)
    sign = n.op("select", n.op("not_equal", n.op("bitwise_and", exponent, 1), 0), n.value(a), 1)
    unit = n.op("equal", n.op("abs", a), 1)
    y = n.op("select", unit, sign, y)
    return n.op("select", n.op("logical_and", n.op("less", exponent, 0), n.op("logical_not", unit)), 0, y)


@rule("Where", since=9)
def _where(n: Call, condition: Operand, a: Operand, b: Operand) -> Any:
    return n.op("select", condition, a, b)


@rule("IsInf", since=10)
def _isinf(n: Call, x: Operand) -> Any:
    up, down = n.attr("detect_positive", 1), n.attr("detect_negative", 1)
    if up and down:
        return n.op("is_inf", x)
    if not up and not down:
        return n.op("fill", shape=x.shape, value=0.0, dtype=DType.bool)
    return n.op("equal", x, math.inf if up else -math.inf)


# --- activations ------------------------------------------------------------------------------------------------------


@rule("Relu", since=6)
def _relu(n: Call, x: Operand) -> Any:
    if x.dtype in (DType.f32, DType.f16, DType.bf16):
        return n.op("relu", x)
    return n.op("maximum", x, 0)


@rule("LeakyRelu", since=6)
def _leaky_relu(n: Call, x: Operand) -> Any:
    return n.op("leaky_relu", x, slope=n.attr("alpha"))


@rule("PRelu", since=7)
def _prelu(n: Call, x: Operand, slope: Operand) -> Any:
    return n.op("select", n.op("less", x, 0), n.op("mul", slope, x), x)


@rule("ThresholdedRelu", since=10)
def _thresholded(n: Call, x: Operand) -> Any:
    return n.op("select", n.op("greater", x, n.attr("alpha")), x, 0)


@rule("Elu", since=6)
def _elu(n: Call, x: Operand) -> Any:
    return n.op("elu", x, alpha=n.attr("alpha"))


@rule("Selu", since=6)
def _selu(n: Call, x: Operand) -> Any:
    """With constants of its own, which ONNX lets a model choose."""
    return n.op("scale", n.op("elu", x, alpha=n.attr("alpha")), factor=n.attr("gamma"))


@rule("Celu", since=12)
def _celu(n: Call, x: Operand) -> Any:
    return n.op("celu", x, alpha=n.attr("alpha"))


@rule("HardSigmoid", since=6)
def _hard_sigmoid(n: Call, x: Operand) -> Any:
    return n.op("hard_sigmoid", x, slope=n.attr("alpha"), offset=n.attr("beta"))


@rule("Softsign")
def _softsign(n: Call, x: Operand) -> Any:
    return n.op("div", x, n.op("add", n.op("abs", x), 1))


@rule("Swish", since=24)
def _swish(n: Call, x: Operand) -> Any:
    alpha = n.attr("alpha", 1.0)
    if alpha == 1:
        return n.op("silu", x)
    return n.op("mul", x, n.op("sigmoid", n.op("scale", x, factor=alpha)))


@rule("Gelu", since=20)
def _gelu(n: Call, x: Operand) -> Any:
    form = n.attr("approximate")
    if form not in ("none", "tanh"):
        raise n.wrong(f"approximate is {form!r}, expected none or tanh")
    return n.op("gelu" if form == "tanh" else "gelu_erf", x)


@rule("Shrink", since=9)
def _shrink(n: Call, x: Operand) -> Any:
    bias, lambd = n.attr("bias"), n.attr("lambd")
    v = x if x.dtype.kind == "float" else n.op("convert", x, dtype=DType.f32)
    above = n.op("select", n.op("greater", v, lambd), n.op("sub", v, bias), 0)
    y = n.op("select", n.op("less", v, -lambd), n.op("add", v, bias), above)
    return y if v is x else n.op("convert", y, dtype=x.dtype)


@rule("Clip", since=6, until=10)
def _clip_to_numbers(n: Call, x: Operand) -> Any:
    """Without bounds they are the least and the greatest f32, which an f16 does not reach."""
    y: Any = x
    for kind, bound in (("maximum", n.attr("min")), ("minimum", n.attr("max"))):
        if abs(bound) < 1e38 or x.dtype is not DType.f16:
            y = n.op(kind, y, bound)
    return y


@rule("Clip", since=11)
def _clip(n: Call, x: Operand, low: Operand | None, high: Operand | None) -> Any:
    y: Any = x
    if low is not None:
        y = n.op("maximum", y, low)
    if high is not None:
        y = n.op("minimum", y, high)
    return y


@rule("Identity")
def _identity(n: Call, x: Operand) -> Any:
    return x


@rule("Dropout", since=7)
def _dropout(n: Call, x: Operand, ratio: Operand | None = None, training: Operand | None = None) -> Any:
    """In inference: x, and a mask that keeps everything."""
    if (
        training is not None
        and n.known(training, "training_mode").any()
        and not (ratio is not None and not n.known(ratio, "ratio").any())
    ):
        raise n.refuse("it is in training mode, whose random numbers ONNX leaves open")
    if len(n.node.outputs) < 2:
        return x
    return x, n.op("fill", shape=x.shape, value=1.0, dtype=DType.bool)


# --- element types ----------------------------------------------------------------------------------------------------


@rule("Cast", since=6)
def _cast(n: Call, x: Operand) -> Any:
    number = n.attr("to")
    if number not in TYPES:
        raise n.refuse(f"aicf has no {type_name(number)}")
    dtype = TYPES[number]
    if dtype is x.dtype:
        return x
    if dtype.is_fp8:
        if not n.attr("saturate", 1):
            return n.op("convert", _beyond(n, x, dtype), dtype=dtype)
        if (
            dtype is DType.f8e5m2 and x.dtype.kind == "float"
        ):  # an infinity becomes the greatest number, here alone
            wide = x if x.dtype is DType.f32 else n.op("convert", x, dtype=DType.f32)
            x = n.op("minimum", n.op("maximum", wide, -57344.0), 57344.0)
    return n.op("convert", x, dtype=dtype)


def _beyond(n: Call, x: Operand, dtype: DType) -> Any:
    """x with what is rounded beyond the greatest number of an fp8 type as NaN, where the type has no infinity, or as one."""
    if x.dtype.kind != "float":
        raise n.refuse("integers as fp8 that does not saturate")
    wide = n.value(x) if x.dtype is DType.f32 else n.op("convert", x, dtype=DType.f32)
    size = n.op("abs", wide)
    if dtype is DType.f8e4m3:
        return n.op("select", n.op("greater", size, 464.0), math.nan, wide)
    endless = n.op("select", n.op("less", wide, 0.0), -math.inf, math.inf)
    return n.op("select", n.op("greater_equal", size, 61440.0), endless, wide)
