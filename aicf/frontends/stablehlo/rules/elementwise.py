"""Arithmetic, comparison, logic, conversion: element by element. StableHLO repeats operands by ops of their own; here they broadcast."""

from __future__ import annotations

import numpy as np

from ....ir import Value
from ....types import DType
from ..emission import Emission
from ..nodes import Operation
from ..table import UnsupportedForm, rule

_SAME = {
    "abs": "abs", "negate": "neg", "exponential": "exp", "log": "log", "sqrt": "sqrt", "tanh": "tanh", "logistic": "sigmoid",
    "exponential_minus_one": "expm1", "log_plus_one": "log1p", "cosine": "cos", "sine": "sin", "tan": "tan", "floor": "floor", "ceil": "ceil",
    "round_nearest_even": "round", "round_nearest_afz": "round_half_away", "rsqrt": "rsqrt", "cbrt": "cbrt", "sign": "sign", "is_finite": "is_finite",
    "atan2": "atan2", "remainder": "rem", "shift_left": "shift_left",
    "shift_right_logical": "shift_right_logical", "clamp": "clamp",
    "add": "add", "subtract": "sub", "multiply": "mul", "maximum": "maximum", "minimum": "minimum", "power": "power",
}  # fmt: skip
_CHLO = {
    "square": "square", "erf": "erf", "erfc": "erfc", "erf_inv": "erf_inv", "acos": "acos", "acosh": "acosh", "asin": "asin",
    "asinh": "asinh", "atan": "atan", "atanh": "atanh", "sinh": "sinh", "cosh": "cosh", "tan": "tan",
}  # fmt: skip
_COMPARISONS = {
    "EQ": "equal",
    "NE": "not_equal",
    "LT": "less",
    "LE": "less_equal",
    "GT": "greater",
    "GE": "greater_equal",
}


def emitted(e: Emission, node: Operation, kind: str, *operands: Value, **attrs: object) -> Value:
    """An elementwise op of the operands before they were repeated, repeated behind it if all of them were."""
    bare = [e.bare(x) for x in operands]
    return e.spread(e.ctx.op(kind, *bare, **attrs), node.types[0].shape)


def _is_bool(x: Value) -> bool:
    return x.dtype is DType.bool


def _declare(name: str, kind: str) -> None:
    @rule(name)
    def _(e: Emission, node: Operation, *operands: Value) -> Value:
        if kind in ("sigmoid", "tanh") and operands[0].dtype is DType.f64:
            return _in_f64(e, node, kind, operands[0])
        if _is_bool(operands[0]):
            return _of_bools(e, node, kind, *operands)
        return emitted(e, node, kind, *operands)


for _dialect, _table in (("stablehlo", _SAME), ("chlo", _CHLO)):
    for _name, _kind in _table.items():
        _declare(f"{_dialect}.{_name}", _kind)


def _in_f64(e: Emission, node: Operation, kind: str, x: Value) -> Value:
    """sigmoid(x) = (1 + tanh(x / 2)) / 2, and tanh by exp(-2 |x|), whose difference from 1 keeps small x exact."""
    ctx, x = e.ctx, e.bare(x)
    if kind == "sigmoid":
        x = ctx.mul(x, 0.5)
    less = ctx.expm1(ctx.mul(ctx.abs(x), -2.0))
    made = ctx.mul(ctx.sign(x), ctx.div(ctx.neg(less), ctx.add(less, 2.0)))
    if kind == "sigmoid":
        made = ctx.mul(ctx.add(made, 1.0), 0.5)
    return e.spread(made, node.types[0].shape)


def _of_bools(e: Emission, node: Operation, name: str, *operands: Value) -> Value:
    """StableHLO's add and maximum of bools are `or`, its multiply and minimum `and`."""
    joined = {"add": "or", "maximum": "or", "mul": "and", "minimum": "and"}.get(name)
    if joined is None:
        raise UnsupportedForm("of bools")
    return logic(e, node, joined, *operands)


def logic(e: Emission, node: Operation, name: str, *operands: Value) -> Value:
    """and, or, xor, not: of bools, or of the bits of integers."""
    return emitted(e, node, f"{'logical' if _is_bool(operands[0]) else 'bitwise'}_{name}", *operands)


@rule("stablehlo.and", name="and")
@rule("stablehlo.or", name="or")
@rule("stablehlo.xor", name="xor")
@rule("stablehlo.not", name="not")
def _(e: Emission, node: Operation, *operands: Value, name: str) -> Value:
    return logic(e, node, name, *operands)


@rule("stablehlo.divide")
def _(e: Emission, node: Operation, a: Value, b: Value) -> Value:
    """Of integers, cut towards zero."""
    return emitted(e, node, "div" if a.dtype.kind == "float" else "trunc_divide", a, b)


@rule("stablehlo.select")
def _(e: Emission, node: Operation, condition: Value, a: Value, b: Value) -> Value:
    return emitted(e, node, "select", condition, a, b)


@rule("stablehlo.compare")
def _(e: Emission, node: Operation, a: Value, b: Value) -> Value:
    if node.attrs.get("compare_type") == "TOTALORDER":
        raise UnsupportedForm("in the total order of floats")
    direction = node.attrs["comparison_direction"]
    if _is_bool(a) and direction not in ("EQ", "NE"):  # false is less than true
        small, large = (a, b) if direction in ("LT", "LE") else (b, a)
        either = "and" if direction in ("LT", "GT") else "or"
        return logic(e, node, either, e.ctx.logical_not(small), large)
    return emitted(e, node, _COMPARISONS[direction], a, b)


@rule("stablehlo.convert")
def _(e: Emission, node: Operation, x: Value) -> Value:
    dtype = node.types[0].dtype
    assert dtype is not None
    if dtype.is_fp8 and x.dtype is not dtype:
        raise UnsupportedForm(f"to {dtype}: aicf saturates where StableHLO makes NaN or infinity")
    if x.dtype is dtype:
        return x
    if x.dtype.kind == "float" and dtype.kind == "int":
        return e.spread(_saturated(e, e.bare(x), dtype), node.types[0].shape)
    return emitted(e, node, "convert", x, dtype=dtype)


def _saturated(e: Emission, x: Value, dtype: DType) -> Value:
    """Floats as integers the way XLA has them: what is beyond becomes the nearest integer of the type, NaN 0. StableHLO leaves both to
    implementations, and so does a plain `convert`."""
    ctx, limits = e.ctx, np.iinfo(dtype.numpy)
    least, beyond = (
        float(limits.min),
        float(int(limits.max) + 1),
    )  # powers of two, which floats have; the greatest integer they may not
    known = e.known(x)
    if known is not None and np.all((known >= least) & (known < beyond)):
        return ctx.convert(x, dtype=dtype)
    if x.dtype.itemsize < 4:
        x = ctx.convert(x, dtype=DType.f32)  # f16 ends before 2^16
    under, over = ctx.less(x, e.number(least, x.dtype)), ctx.greater_equal(x, e.number(beyond, x.dtype))
    outside = ctx.logical_or(ctx.logical_or(under, over), ctx.is_nan(x))
    y = ctx.convert(ctx.select(outside, e.number(0, x.dtype), x), dtype=dtype)
    y = ctx.select(over, e.number(int(limits.max), dtype), y)
    return ctx.select(under, e.number(int(limits.min), dtype), y)


@rule("stablehlo.shift_right_arithmetic")
def _(e: Emission, node: Operation, a: Value, b: Value) -> Value:
    """The highest bit counts as a sign in unsigned types, too, as XLA has it; the specification gives them no rule of their own."""
    dtype = a.dtype
    if dtype.numpy.kind == "u":  # an amount that becomes negative is none below the width, as before
        signed = DType.of(np.dtype(f"i{dtype.itemsize}"))
        a, b = (e.ctx.convert(e.bare(v), dtype=signed) for v in (a, b))
        return e.spread(e.ctx.convert(e.ctx.shift_right_arithmetic(a, b), dtype=dtype), node.types[0].shape)
    return emitted(e, node, "shift_right_arithmetic", a, b)


@rule("stablehlo.optimization_barrier", "sdy.sharding_constraint")
def _(e: Emission, node: Operation, *operands: Value) -> tuple[Value, ...]:
    """Says what a compiler may not move, or on which device it lies, of one; the values are the same."""
    return operands


@rule("stablehlo.constant")
def _(e: Emission, node: Operation) -> Value:
    value, kind = node.attrs["value"], node.types[0]
    if isinstance(value, str):
        raise UnsupportedForm(f"given as {value[:60]}")
    if isinstance(value, np.ndarray):
        return e.table(value)
    assert kind.dtype is not None
    return e.spread(e.number(value.value, kind.dtype), kind.shape)


@rule("stablehlo.iota")
def _(e: Emission, node: Operation) -> Value:
    kind, axis = node.types[0], node.attrs["iota_dimension"]
    assert kind.dtype is not None
    if kind.dtype.kind != "float" or kind.dtype is DType.f32:
        return e.ctx.iota(shape=kind.shape, axis=axis, dtype=kind.dtype)
    wide = DType.i64 if kind.dtype is DType.f64 else DType.f32
    return e.ctx.convert(e.ctx.iota(shape=kind.shape, axis=axis, dtype=wide), dtype=kind.dtype)


@rule("stablehlo.bitcast_convert")
def _(e: Emission, node: Operation, x: Value) -> Value:
    """Between integers of one width; and of the bits of a float in [1, 2), which is how JAX draws its uniform numbers: 1 + mantissa / 2^23."""
    dtype = node.types[0].dtype
    if dtype is x.dtype:
        return x
    if dtype is not None and dtype.kind == x.dtype.kind == "int" and dtype.itemsize == x.dtype.itemsize:
        return emitted(e, node, "convert", x, dtype=dtype)
    mantissa = _of_one_to_two(e, x) if dtype is DType.f32 and x.dtype is DType.u32 else None
    if mantissa is None:
        raise UnsupportedForm(f"of {x.dtype} to {dtype}")
    share = e.ctx.mul(e.ctx.convert(mantissa, dtype=DType.f32), 2.0**-23)
    return e.spread(e.ctx.add(share, 1.0), node.types[0].shape)


def _of_one_to_two(e: Emission, x: Value) -> Value | None:
    """The 23 bits that are joined with those of 1.0; None where x is no such thing."""
    values, op = e.ctx.builder.graph.values, e.bare(x).producer
    if op is None or op.kind != "bitwise_or":
        return None
    pair = [values[vid] for vid in op.inputs]
    known = [e.known(e.bare(v)) for v in pair]
    for n, (bits, one) in enumerate(zip(pair, reversed(known))):
        shifted = bits.producer
        if (
            one is None
            or not np.all(one == 0x3F800000)
            or shifted is None
            or shifted.kind != "shift_right_logical"
        ):
            continue
        by = e.known(e.bare(values[shifted.inputs[1]]))
        if by is not None and np.all(by >= 9) and np.all(by < 32):
            return pair[n]
    return None
