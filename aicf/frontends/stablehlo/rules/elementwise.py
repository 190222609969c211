"""Arithmetic, comparison, logic, conversion: element by element. StableHLO repeats operands by ops of their own; here they broadcast."""

from __future__ import annotations

import math

import numpy as np

from ....ir import Value
from ....types import DType
from ..emission import Emission
from ..nodes import Operation
from ..table import UnsupportedForm, rule

_SAME = {
    "abs": "abs", "negate": "neg", "exponential": "exp", "log": "log", "sqrt": "sqrt", "tanh": "tanh", "logistic": "sigmoid",
    "add": "add", "subtract": "sub", "multiply": "mul", "maximum": "maximum", "minimum": "minimum", "power": "power",
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
    @rule(f"stablehlo.{name}")
    def _(e: Emission, node: Operation, *operands: Value) -> Value:
        if _is_bool(operands[0]):
            return _of_bools(e, node, name, *operands)
        return emitted(e, node, kind, *operands)


for _name, _kind in _SAME.items():
    _declare(_name, _kind)


def _of_bools(e: Emission, node: Operation, name: str, *operands: Value) -> Value:
    """StableHLO's add and maximum of bools are `or`, its multiply and minimum `and`."""
    joined = {"add": "or", "maximum": "or", "multiply": "and", "minimum": "and"}.get(name)
    if joined is None:
        raise UnsupportedForm("of bools")
    return logic(e, node, joined, *operands)


def logic(e: Emission, node: Operation, name: str, a: Value, b: Value) -> Value:
    if name == "and":
        return emitted(e, node, "select", a, b, e.number(False, DType.bool))
    if name == "or":
        return emitted(e, node, "select", a, e.number(True, DType.bool), b)
    return emitted(e, node, "not_equal", a, b)


@rule("stablehlo.and", name="and")
@rule("stablehlo.or", name="or")
@rule("stablehlo.xor", name="xor")
def _(e: Emission, node: Operation, a: Value, b: Value, *, name: str) -> Value:
    if not _is_bool(a):
        raise UnsupportedForm(f"of {a.dtype}")
    return logic(e, node, name, a, b)


@rule("stablehlo.not")
def _(e: Emission, node: Operation, x: Value) -> Value:
    if not _is_bool(x):
        raise UnsupportedForm(f"of {x.dtype}")
    return emitted(e, node, "equal", x, e.number(False, DType.bool))


@rule("stablehlo.divide")
def _(e: Emission, node: Operation, a: Value, b: Value) -> Value:
    if a.dtype.kind != "float":
        raise UnsupportedForm(f"of {a.dtype}")
    return emitted(e, node, "div", a, b)


@rule("stablehlo.rsqrt")
def _(e: Emission, node: Operation, x: Value) -> Value:
    return emitted(e, node, "div", e.number(1, x.dtype), e.ctx.sqrt(e.bare(x)))


@rule("stablehlo.sign")
def _(e: Emission, node: Operation, x: Value) -> Value:
    """x itself where it is 0 or NaN: -0.0 keeps its sign."""
    x, one = e.bare(x), e.number(1, x.dtype)
    ctx = e.ctx
    if x.dtype.numpy.kind == "u":
        return emitted(e, node, "minimum", x, one)
    below = ctx.select(ctx.less(x, 0), ctx.neg(one), x)
    return emitted(e, node, "select", ctx.greater(x, 0), one, below)


@rule("stablehlo.is_finite")
def _(e: Emission, node: Operation, x: Value) -> Value:
    return emitted(e, node, "less", e.ctx.abs(e.bare(x)), e.number(math.inf, x.dtype))


@rule("stablehlo.clamp")
def _(e: Emission, node: Operation, low: Value, x: Value, high: Value) -> Value:
    return emitted(e, node, "minimum", e.ctx.maximum(e.bare(x), e.bare(low)), e.bare(high))


@rule("stablehlo.select")
def _(e: Emission, node: Operation, condition: Value, a: Value, b: Value) -> Value:
    return emitted(e, node, "select", condition, a, b)


@rule("stablehlo.compare")
def _(e: Emission, node: Operation, a: Value, b: Value) -> Value:
    if node.attrs.get("compare_type") == "TOTALORDER":
        raise UnsupportedForm("in the total order of floats")
    return emitted(e, node, _COMPARISONS[node.attrs["comparison_direction"]], a, b)


@rule("stablehlo.convert")
def _(e: Emission, node: Operation, x: Value) -> Value:
    dtype = node.types[0].dtype
    assert dtype is not None
    if dtype.is_fp8 and x.dtype is not dtype:
        raise UnsupportedForm(f"to {dtype}: aicf saturates where StableHLO makes NaN or infinity")
    return x if x.dtype is dtype else emitted(e, node, "convert", x, dtype=dtype)


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
    kind = node.types[0]
    return e.ctx.iota(shape=kind.shape, axis=node.attrs["iota_dimension"], dtype=kind.dtype)


@rule("chlo.square")
def _(e: Emission, node: Operation, x: Value) -> Value:
    return emitted(e, node, "square", x)
