"""Elementwise ops: arithmetic with PyTorch's promotion, comparisons, logic, functions of one argument, conversions."""

from __future__ import annotations

from typing import Any

from ....ir import Value
from ....types import DType, bool_, f32
from ..rules import Site, holds, rule
from ..types import Unsupported

HALVES = DType.f16, DType.bf16


def computed_in(s: Site, *operands: Any) -> DType:
    """The type to compute in: PyTorch's, or f32 where a number or a CPU scalar beside halves may be none of theirs, as PyTorch computes there."""
    dtype = s.together(*operands)
    rounds = (
        s.scalars.get(x.vid, dtype) is not dtype
        if isinstance(x, Value)
        else isinstance(x, (int, float)) and not holds(dtype, x)
        for x in operands
    )
    return f32 if dtype in HALVES and any(rounds) else dtype


def binary(s: Site, kind: str, a: Any, b: Any, dtype: DType | None = None) -> Value:
    """An op on two operands, each a Value or a number, computed in one type; the result in PyTorch's."""
    dtype = dtype or computed_in(s, a, b)
    return s.cast(s.ctx.op(kind, s.value(a, dtype), s.value(b, dtype)), s.out.dtype)


def scaled(s: Site, x: Any, by: Any, dtype: DType) -> Any:
    """alpha * x, of `add` and `sub`."""
    if by == 1:
        return x
    return s.ctx.mul(s.value(x, dtype), s.value(by, dtype)) if isinstance(x, Value) else x * by


def _sum(kind: str) -> None:
    @rule(f"{kind}.Tensor", f"{kind}.Scalar")
    def _(s: Site, a: Any, b: Any, alpha: Any = 1) -> Value:
        if s.out.dtype is bool_:
            raise Unsupported("arithmetic of bools")
        dtype = computed_in(
            s, a, b, *([] if alpha == 1 else [float(alpha)] if s.out.dtype.kind == "float" else [])
        )
        return binary(s, kind, a, scaled(s, b, alpha, dtype), dtype)


for _kind in ("add", "sub"):
    _sum(_kind)


@rule("rsub.Tensor", "rsub.Scalar")
def _rsub(s: Site, a: Any, b: Any, alpha: Any = 1) -> Value:
    dtype = computed_in(s, a, b)
    return binary(s, "sub", b, scaled(s, a, alpha, dtype), dtype)


@rule("prims::fma")
def _fma(s: Site, a: Any, b: Any, c: Any) -> Value:
    """a * b + c, rounded once of halves; of f32 and f64 the product is rounded, too."""
    dtype = f32 if s.out.dtype in HALVES else s.out.dtype
    product = s.ctx.mul(s.value(a, dtype), s.value(b, dtype))
    return s.cast(s.ctx.add(product, s.value(c, dtype)), s.out.dtype)


@rule("mul.Tensor", "mul.Scalar")
def _mul(s: Site, a: Any, b: Any) -> Value:
    if s.out.dtype is bool_:
        return logical_and(s, a, b)
    return binary(s, "mul", a, b)


@rule("div.Tensor", "div.Scalar")
def _div(s: Site, a: Any, b: Any) -> Value:
    dtype = computed_in(s, a, b)
    return binary(s, "div", a, b, dtype if dtype.kind == "float" else s.out.dtype)


def _may_be_zero(s: Site, b: Any) -> None:
    """Refuse a divisor of integers that PyTorch may have to refuse on the host."""
    if s.ctx.device == "cpu" and (isinstance(b, Value) or b == 0):
        raise Unsupported("integers by what may be 0, which is an error on the host")


@rule("div.Tensor_mode", "div.Scalar_mode")
def _div_mode(s: Site, a: Any, b: Any, rounding_mode: str | None = None) -> Value:
    if rounding_mode is None:
        return _div(s, a, b)
    dtype = s.out.dtype
    if dtype.kind == "float":
        if dtype in HALVES and rounding_mode == "floor":
            raise Unsupported("quotients of halves, rounded down")
        kind = "floor_divide" if rounding_mode == "floor" else "trunc_divide"
        return binary(s, kind, a, b, f32 if dtype in HALVES else dtype)
    _may_be_zero(s, b)
    return binary(s, "floor_divide" if rounding_mode == "floor" else "trunc_divide", a, b, dtype)


for _name, _kind in {"remainder": "mod", "fmod": "rem", "atan2": "atan2"}.items():

    def _of(s: Site, a: Any, b: Any, kind: str = _kind) -> Value:
        if s.out.dtype.kind == "int":
            _may_be_zero(s, b)
        return binary(s, kind, a, b, s.out.dtype)

    rule(*([f"{_name}.Tensor", f"{_name}.Scalar"] if _name != "atan2" else ["atan2"]))(_of)


@rule("reciprocal")
def _reciprocal(s: Site, x: Value) -> Value:
    return s.ctx.div(1.0, s.cast(x, s.out.dtype))


def _extreme(name: str) -> None:
    @rule(name)
    def _(s: Site, a: Value, b: Value) -> Value:
        return binary(s, name, a, b)


for _name in ("maximum", "minimum"):
    _extreme(_name)


def clamped(s: Site, x: Value, low: Any = None, high: Any = None) -> Value:
    dtype = computed_in(s, *(v for v in (x, low, high) if v is not None))
    y = s.cast(x, dtype)
    if low is not None:
        y = s.ctx.maximum(y, s.value(low, dtype))
    if high is not None:
        y = s.ctx.minimum(y, s.value(high, dtype))
    return s.cast(y, s.out.dtype)


rule("clamp", "clamp.Tensor")(clamped)
rule("clamp_min", "clamp_min.Tensor")(lambda s, x, low: clamped(s, x, low))
rule("clamp_max", "clamp_max.Tensor")(lambda s, x, high: clamped(s, x, None, high))

# --- powers ---------------------------------------------------------------------------------------------------------


@rule("pow.Tensor_Scalar")
def _pow_scalar(s: Site, x: Value, exponent: Any) -> Value:
    ctx, wide = s.ctx, s.wide(s.cast(x, s.out.dtype))
    if exponent in (0, 1):
        y = wide if exponent == 1 else ctx.fill(shape=x.shape, value=1.0, dtype=wide.dtype)
    elif exponent == 2:
        y = ctx.square(wide)
    elif exponent == 3:
        y = ctx.mul(ctx.square(wide), wide)
    elif exponent in (-1, -2):
        y = ctx.div(1.0, wide if exponent == -1 else ctx.square(wide))
    elif exponent in (0.5, -0.5):
        y = ctx.sqrt(wide) if exponent > 0 else ctx.div(1.0, ctx.sqrt(wide))
    else:
        y = ctx.power(wide, s.value(exponent, wide.dtype))
    return s.cast(y, s.out.dtype)


@rule("pow.Tensor_Tensor", "pow.Scalar")
def _pow(s: Site, a: Any, b: Any) -> Value:
    dtype = f32 if s.out.dtype in HALVES else s.out.dtype
    return binary(s, "power", a, b, dtype)


# --- comparisons and logic --------------------------------------------------------------------------------------------


def _comparison(name: str, kind: str) -> None:
    @rule(f"{name}.Tensor", f"{name}.Scalar")
    def _(s: Site, a: Any, b: Any) -> Value:
        dtype = s.together(a, b)  # the host rounds a number to halves beside it
        if s.ctx.device != "cpu" and computed_in(s, a, b) is not dtype:
            raise Unsupported("halves compared with a number that is none of theirs")
        if dtype is bool_ and kind not in ("equal", "not_equal"):
            dtype = DType.i32
        return s.ctx.op(kind, s.value(a, dtype), s.value(b, dtype))


for _name, _kind in {
    "eq": "equal", "ne": "not_equal", "lt": "less", "le": "less_equal", "gt": "greater", "ge": "greater_equal",
}.items():  # fmt: skip
    _comparison(_name, _kind)


def truth(s: Site, x: Any) -> Value:
    """Whether each element is not zero."""
    return s.cast(x, bool_) if isinstance(x, Value) else s.ctx.constant(bool(x), bool_)


def logical_and(s: Site, a: Any, b: Any) -> Value:
    return s.ctx.logical_and(truth(s, a), truth(s, b))


def logical_not(s: Site, x: Value) -> Value:
    return s.ctx.logical_not(truth(s, x))


rule("logical_and")(logical_and)
rule("logical_not")(logical_not)
rule("logical_or")(lambda s, a, b: s.ctx.logical_or(truth(s, a), truth(s, b)))
rule("logical_xor")(lambda s, a, b: s.ctx.logical_xor(truth(s, a), truth(s, b)))


def _bitwise(name: str, logical: Any) -> None:
    @rule(f"bitwise_{name}.Tensor", f"bitwise_{name}.Scalar")
    def _(s: Site, a: Any, b: Any) -> Value:
        return logical(s, a, b) if s.out.dtype is bool_ else binary(s, f"bitwise_{name}", a, b, s.out.dtype)


_bitwise("and", logical_and)
_bitwise("or", lambda s, a, b: s.ctx.logical_or(truth(s, a), truth(s, b)))
_bitwise("xor", lambda s, a, b: s.ctx.logical_xor(truth(s, a), truth(s, b)))


@rule("bitwise_not")
def _bitwise_not(s: Site, x: Value) -> Value:
    return logical_not(s, x) if x.dtype is bool_ else s.ctx.bitwise_not(x)


@rule("where.self")
def _where(s: Site, c: Value, a: Value, b: Value) -> Value:
    dtype = s.out.dtype
    shape = s.out.shape
    y = s.ctx.select(truth(s, c), s.cast(a, dtype), s.cast(b, dtype))
    return s.spread(y, shape)


@rule("masked_fill.Scalar", "masked_fill.Tensor")
def _masked_fill(s: Site, x: Value, mask: Value, value: Any) -> Value:
    return s.ctx.select(mask, s.value(value, x.dtype), x)


@rule("isnan")
def _isnan(s: Site, x: Value) -> Value:
    if x.dtype.kind != "float":
        return s.ctx.fill(shape=x.shape, value=0, dtype=bool_)
    return s.ctx.is_nan(x)


@rule("isinf")
def _isinf(s: Site, x: Value) -> Value:
    if x.dtype.kind != "float":
        return s.ctx.fill(shape=x.shape, value=0, dtype=bool_)
    return s.ctx.is_inf(x)


# --- functions of one argument ------------------------------------------------------------------------------------------


def unary(name: str, kind: str) -> None:
    @rule(name)
    def _(s: Site, x: Value) -> Value:
        return s.ctx.op(kind, s.cast(x, s.out.dtype))


for _name in (
    "floor", "ceil", "trunc", "round", "sin", "cos", "tan", "asin", "acos", "atan", "sinh", "cosh", "asinh", "acosh", "atanh", "exp2",
    "expm1", "log1p", "log2", "log10", "erf", "erfc", "mish", "rsqrt",
):  # fmt: skip
    unary(_name, _name)
for _name, _kind in {
    "exp": "exp", "log": "log", "sqrt": "sqrt", "tanh": "tanh", "sigmoid": "sigmoid", "neg": "neg", "abs": "abs", "relu": "relu",
    "silu": "silu",
}.items():  # fmt: skip
    unary(_name, _kind)


@rule("erfinv")
def _erfinv(s: Site, x: Value) -> Value:
    return s.ctx.erf_inv(s.cast(x, s.out.dtype))


@rule("sign", "sgn")
def _sign(s: Site, x: Value) -> Value:
    y = s.ctx.add(s.ctx.sign(x), 0) if x.dtype.kind == "float" else s.ctx.sign(x)  # of -0 it is 0
    return s.ctx.select(s.ctx.is_nan(x), 0.0, y) if x.dtype.kind == "float" else y


@rule("hardtanh")
def _hardtanh(s: Site, x: Value, low: Any = -1, high: Any = 1) -> Value:
    return clamped(s, x, low, high)


@rule("hardswish")
def _hardswish(s: Site, x: Value) -> Value:
    return s.ctx.hard_swish(x)


@rule("hardsigmoid")
def _hardsigmoid(s: Site, x: Value) -> Value:
    return s.ctx.hard_sigmoid(x)


@rule("elu")
def _elu(s: Site, x: Value, alpha: Any = 1, scale: Any = 1, input_scale: Any = 1) -> Value:
    if input_scale != 1:
        raise Unsupported("elu with a scale of its input")
    y = s.ctx.elu(s.wide(x) if scale != 1 else x, alpha=float(alpha))
    return s.cast(y if scale == 1 else s.ctx.mul(y, float(scale)), s.out.dtype)


@rule("gelu")
def _gelu(s: Site, x: Value, approximate: str = "none") -> Value:
    return s.ctx.gelu(x) if approximate == "tanh" else s.ctx.gelu_erf(x)


@rule("gelu_backward")
def _gelu_backward(s: Site, dy: Value, x: Value, approximate: str = "none") -> Value:
    return s.ctx.gelu_grad(dy, x) if approximate == "tanh" else s.ctx.gelu_erf_grad(dy, x)


rule("silu_backward")(lambda s, dy, x: s.ctx.silu_grad(dy, x))
rule("tanh_backward")(lambda s, dy, y: s.ctx.tanh_grad(dy, y))
rule("sigmoid_backward")(lambda s, dy, y: s.ctx.sigmoid_grad(dy, y))


@rule("threshold_backward")
def _threshold_backward(s: Site, dy: Value, x: Value, threshold: Any) -> Value:
    if threshold == 0:
        return s.ctx.relu_grad(dy, x)
    return s.ctx.select(s.ctx.less_equal(x, float(threshold)), 0.0, dy)


@rule("leaky_relu")
def _leaky_relu(s: Site, x: Value, slope: float = 0.01) -> Value:
    return s.ctx.leaky_relu(x, slope=float(slope))


@rule("leaky_relu_backward")
def _leaky_relu_backward(s: Site, dy: Value, x: Value, slope: float, of_result: bool) -> Value:
    return s.ctx.leaky_relu_grad(dy, x, slope=float(slope))


# --- conversions and copies -------------------------------------------------------------------------------------------


@rule("_to_copy")
def _to_copy(s: Site, x: Value, **how: Any) -> Value:
    moved = how.get("device")
    if moved is not None and moved.type not in ("cpu", "cuda"):
        raise Unsupported(f"device {moved}")
    if x.dtype.kind == "float" and s.out.dtype.kind == "int" and s.out.dtype not in (DType.i32, DType.i64):
        raise Unsupported("floats that become narrow integers")
    made = x.producer
    if (
        s.alone and made is not None and made.kind == "reshape"
    ):  # which ends regions over rows: their kernel converts
        before = s.ctx.builder.graph.values[made.inputs[0]]
        return s.reshape(s.cast(before, s.out.dtype), x.shape)
    return s.cast(x, s.out.dtype)


@rule("copy")
def _copy(s: Site, x: Value, source: Value, non_blocking: bool = False) -> Value:
    return s.spread(_to_copy(s, source), x.shape)


@rule("clone", "alias", "detach", "lift_fresh_copy", view=True)
def _clone(s: Site, x: Value, memory_format: Any = None) -> Value:
    return x


@rule("_conj", "_neg_view")
def _lazy(s: Site, x: Value) -> Value:
    raise Unsupported("views that conjugate or negate lazily")
