"""Ops that act on each element alone."""

from __future__ import annotations

from ..call import OpTyping
from ..declare import (
    FLOAT_COMPLEX,
    FLOATS,
    INTS,
    NUMBERS,
    PRED_INT,
    PREDS,
    SIGNED_NUMBERS,
    TENSOR,
    Attr,
    Kind,
    OperandRule,
    typed,
)
from ..types import COMPLEX, RankedTensor, Type, all_fit, compatible, joined, tensor
from ..values import Case, Record

F32_F64 = Kind("a tensor of f32 or f64", frozenset({"f32", "f64"}))
COMPLEXES = Kind("a tensor of complex type", COMPLEX)
REALS = Kind("a tensor of signed integer or floating-point type", SIGNED_NUMBERS.elements - COMPLEX)
ACCURACY = Attr("result_accuracy", "result_accuracy", needed=False)


def _one_type(c: OpTyping) -> Type:
    """C1: all operands and results have one type, as far as it is known."""
    operands = [type for type in c.operands if isinstance(type, RankedTensor)]
    first = operands[0]
    for n, type in enumerate(operands[1:], 1):
        c.require(
            compatible(first, type), "C1", f"operand {n} is {type}, which does not fit operand 0, {first}"
        )
    for made in c.results or ():
        c.require(
            compatible(first, made), "C1", f"the result is {made}, which does not fit operand 0, {first}"
        )
    return joined(operands)


def _unary(names: str, kind: Kind) -> None:
    @typed(*names.split(), given=[OperandRule("operand", kind)], results=kind, same_shape="C1")
    def _(c: OpTyping, operand: RankedTensor) -> Type:
        return _one_type(c)


def _binary(names: str, kind: Kind) -> None:
    @typed(
        *names.split(),
        given=[OperandRule("lhs", kind), OperandRule("rhs", kind)],
        results=kind,
        same_shape="C1",
    )
    def _(c: OpTyping, lhs: RankedTensor, rhs: RankedTensor) -> Type:
        return _one_type(c)


_unary("ceil floor round_nearest_afz round_nearest_even", FLOATS)
_unary("count_leading_zeros popcnt", INTS)
_unary("negate", NUMBERS)
_unary("not", PRED_INT)
_unary("sign", SIGNED_NUMBERS)
_binary("atan2", FLOAT_COMPLEX)
_binary("divide power remainder subtract", NUMBERS)
_binary("maximum minimum multiply", TENSOR)
_binary("and or xor", PRED_INT)
_binary("shift_left shift_right_arithmetic shift_right_logical", INTS)


@typed("add", given=[OperandRule("lhs"), OperandRule("rhs")], same_shape="C1", same_elements="C1")
def _(c: OpTyping, lhs: RankedTensor, rhs: RankedTensor) -> Type:
    c.require(all_fit([lhs.shape, rhs.shape]), "C1", f"lhs is {lhs}, which does not fit rhs, {rhs}")
    return joined([lhs, rhs])


@typed(
    *["cbrt", "cosine", "exponential", "exponential_minus_one", "log", "log_plus_one", "logistic", "rsqrt", "sine", "sqrt", "tan", "tanh"],
    given=[OperandRule("operand", FLOAT_COMPLEX), ACCURACY], results=FLOAT_COMPLEX, same_shape="C1",
)  # fmt: skip
def _(c: OpTyping, operand: RankedTensor, accuracy: Record | None) -> Type:
    if accuracy is not None:
        numbers = [accuracy.fields[name] for name in ("atol", "rtol", "ulps")]
        mode = accuracy.fields["mode"]
        c.require(
            isinstance(mode, Case) and mode.kind == "result_accuracy_mode",
            "I2",
            "result_accuracy has no mode",
        )
        c.require(all(n >= 0 for n in numbers), "I2", "result_accuracy has a negative tolerance")
        strict = isinstance(mode, Case) and mode.value != "TOLERANCE"
        c.require(
            not (strict and any(numbers)), "I2", "result_accuracy has a tolerance, and a mode that has none"
        )
    return _one_type(c)


@typed("abs", given=[OperandRule("operand", SIGNED_NUMBERS)], results=REALS, same_shape="C1")
@typed("imag", "real", given=[OperandRule("operand", FLOAT_COMPLEX)], results=FLOATS, same_shape="C1")
def _(c: OpTyping, operand: RankedTensor) -> Type:
    return operand.of(operand.element.removeprefix("complex<").removesuffix(">"))


@typed("is_finite", given=[OperandRule("x", FLOATS)], results=PREDS, same_shape="C1")
def _(c: OpTyping, x: RankedTensor) -> Type:
    return x.of("i1")


@typed("convert", given=[OperandRule("operand")], same_shape="C1")
def _(c: OpTyping, operand: RankedTensor) -> Type:
    return c.said()


@typed(
    "cross-replica-sum", given=[OperandRule("operand"), Attr("replica_groups", "elements")], same_shape="C1"
)
def _(c: OpTyping, operand: RankedTensor, groups: object) -> Type:
    return _one_type(c)


@typed(
    "reduce_precision",
    given=[
        OperandRule("operand", FLOATS),
        Attr("exponent_bits", "i32", 1, low="C2"),
        Attr("mantissa_bits", "i32", 0, low="C3"),
    ],
    results=FLOATS,
)
def _(c: OpTyping, operand: RankedTensor, exponent_bits: int, mantissa_bits: int) -> Type:
    return _one_type(c)


@typed(
    "complex",
    given=[OperandRule("lhs", F32_F64), OperandRule("rhs", F32_F64)],
    results=COMPLEXES,
    same_shape="C2",
)
def _(c: OpTyping, lhs: RankedTensor, rhs: RankedTensor) -> Type:
    c.require(lhs.element == rhs.element, "C1", f"lhs is {lhs}, and rhs {rhs}")
    return lhs.of(f"complex<{lhs.element}>")


@typed(
    "compare",
    given=[
        OperandRule("lhs"),
        OperandRule("rhs"),
        Attr("comparison_direction", "comparison_direction"),
        Attr("compare_type", "comparison_type", needed=False),
    ],
    results=PREDS,
    same_shape="C2",
)
def _(c: OpTyping, lhs: RankedTensor, rhs: RankedTensor, direction: str, kind: str | None) -> Type:
    c.require(lhs.element == rhs.element, "C1", f"lhs is {lhs}, and rhs {rhs}")
    return lhs.of("i1")


@typed(
    "select", given=[OperandRule("pred", PREDS), OperandRule("on_true"), OperandRule("on_false")], made="C2"
)
def _(c: OpTyping, pred: RankedTensor, on_true: RankedTensor, on_false: RankedTensor) -> Type:
    fit = on_true.element == on_false.element and all_fit([on_true.shape, on_false.shape])
    c.require(fit, "C2", f"on_true is {on_true}, and on_false {on_false}")
    scalar = pred.rank == 0
    c.require(scalar or all_fit([pred.shape, on_true.shape]), "C1", f"pred is {pred}, and on_true {on_true}")
    return joined([on_true, on_false])


@typed(
    "clamp",
    given=[OperandRule("min"), OperandRule("operand"), OperandRule("max")],
    same_elements="C3",
    made="C4",
)
def _(c: OpTyping, low: RankedTensor, operand: RankedTensor, high: RankedTensor) -> Type:
    for constraint, name, type in (("C1", "min", low), ("C2", "max", high)):
        fit = type.rank == 0 or all_fit([type.shape, operand.shape])
        c.require(
            fit, constraint, f"{name} is {type}, neither a scalar nor of the shape of operand, {operand}"
        )
    return tensor(operand.shape, operand.element)  # StableHLO's inference keeps no bounds here


@typed("bitcast_convert", given=[OperandRule("operand")])
def _(c: OpTyping, operand: RankedTensor) -> Type:
    made = c.said()
    c.require(
        (operand.element in COMPLEX) == (made.element in COMPLEX),
        "C2",
        f"operand is {operand}, and the result {made}",
    )
    bits, wanted = _bits(operand.element), _bits(made.element)
    small, large = (operand, made) if bits < wanted else (made, operand)
    narrow, wide = sorted((bits, wanted))
    prefix = small.shape
    if narrow != wide:
        c.require(
            small.rank == large.rank + 1,
            "C1",
            f"of {operand} and {made} the smaller elements have another rank than one more",
        )
        last, prefix = small.shape[-1], small.shape[:-1]
        c.require(
            last is None or last * narrow == wide,
            "C1",
            f"{last} elements of {narrow} bits are not one of {wide} bits",
        )
    same = all(a is None or b is None or a == b for a, b in zip(prefix, large.shape))
    c.require(same, "C1", f"operand is {operand}, and the result {made}")
    return made


def _bits(element: str) -> int:
    if element.startswith("complex"):
        return 2 * _bits(element[len("complex<") : -1])
    digits = element.removeprefix("b").lstrip("uif")
    return int("".join(ch for n, ch in enumerate(digits) if digits[: n + 1].isdigit()))
