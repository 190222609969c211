"""`infer_op`: texts in, texts out."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Mapping, Sequence
from difflib import get_close_matches

from . import rules
from .attributes import parsed_attribute
from .bodies import TypedBody, read_body
from .call import OpTyping, refusal
from .declare import RULES
from .scanner import Malformed
from .types import Lacking, Type, parsed
from .values import Attribute

for _each in pkgutil.iter_modules(rules.__path__):  # a new file there is found by where it lies
    importlib.import_module(f"{rules.__name__}.{_each.name}")

PREFIX = "stablehlo."
# What StableHLO has beside: inside of bodies these are taken as they are typed.
WITHOUT_RULES = frozenset(
    {
        "async_done",
        "async_start",
        "collective_reduce",
        "composite",
        "custom_call",
        "infeed",
        "outfeed",
        "recv",
        "send",
    }
    | {"uniform_dequantize", "uniform_quantize"}
)
# Dialects whose ops bodies may have; what they do is not looked at.
_DIALECTS = "arith builtin check chlo complex func interpreter linalg math memref mhlo quant scf sdy shape tensor vector vhlo"
OTHERS = frozenset(_DIALECTS.split())


def infer_op(
    name: str,
    operand_types: Sequence[str],
    attributes: Mapping[str, str],
    result_types: Sequence[str] | None = None,
    bodies: Sequence[str] | None = None,
) -> list[str]:
    """The result types of a StableHLO op, by StableHLO's constraints, from MLIR text.

    name           "stablehlo.slice", or "slice"
    operand_types  such as "tensor<2x3xf32>", "tensor<?x3xf32>", "tensor<?xf32, #stablehlo.bounds<4>>", "!stablehlo.token"
    attributes     by name, such as {"dimension": "1 : i64", "strides": "array<i64: 1, 2>"}
    result_types   the types that the results are said to have: verified, and returned. Some ops need them, since theirs follow
                   from nothing else: reshape, iota, convert
    bodies         the text of each region, "^bb0(%a: tensor<f32>, %b: tensor<f32>): …", with or without braces. Where None, they are
                   not looked at, and `map`, `if` and `case`, whose types follow from them, are refused

    TypeInferenceError, whose `op`, `constraint` and `message` say what is broken: `constraint` is StableHLO's number, "C3" or
    "I2", or "operands", "bodies" or "result" for what has none. NotImplementedError for an op, or a type, that aicf lacks. What of
    ops inside of a body aicf lacks is taken as it is typed there.
    """
    short = name.removeprefix(PREFIX)
    rule = RULES.get(short)
    if rule is None:
        near = get_close_matches(short, RULES, n=1)
        raise NotImplementedError(
            f"aicf has no type rule for the op {name[:100]}{f'; did you mean {near[0]}?' if near else ''}"
        )
    try:
        operands = [_type(name, f"I{n + 1}", text) for n, text in enumerate(operand_types)]
        given = {key: _attribute(name, key, text) for key, text in attributes.items()}
        results = None if result_types is None else [_type(name, "result", text) for text in result_types]
        read = None if bodies is None else [_body(name, n, text) for n, text in enumerate(bodies)]
        return [str(made) for made in _run(name, operands, given, results, read)]
    except Lacking as lacking:
        raise NotImplementedError(f"{name}: aicf has no type rules for {lacking}") from None


def _run(
    name: str,
    operands: Sequence[Type],
    attributes: Mapping[str, Attribute],
    results: Sequence[Type] | None,
    bodies: Sequence[TypedBody | None] | None,
) -> list[Type]:
    call = OpTyping(name, RULES[name.removeprefix(PREFIX)], operands, attributes, results, bodies)
    try:
        return call.run()
    except Malformed as wrong:
        raise refusal(name, "", str(wrong), operands) from None


def _inner(
    name: str,
    operands: Sequence[Type],
    attributes: Mapping[str, Attribute],
    results: Sequence[Type],
    bodies: Sequence[TypedBody | None],
) -> None:
    """An op in a body."""
    short = name.removeprefix(PREFIX)
    if name.startswith(PREFIX) and short in RULES:
        _run(name, operands, attributes, results, bodies)
    elif name.startswith(PREFIX) and short not in WITHOUT_RULES:
        raise Malformed(f"StableHLO has no op {short[:100]}")
    elif (
        not name.startswith(PREFIX)
        and name not in ("call", "return")
        and name.partition(".")[0] not in OTHERS
    ):
        raise Malformed(f"{name[:100]} is of a dialect that is not known")


def _type(name: str, constraint: str, text: str) -> Type:
    try:
        return parsed(text)
    except Malformed as wrong:
        raise refusal(name, constraint, f"{text[:100]!r} is no type: {wrong}") from None


def _attribute(name: str, key: str, text: str) -> Attribute:
    rule = RULES[name.removeprefix(PREFIX)]
    number = next((rule.number(each) for each in rule.attributes if each.name == key), "")
    try:
        return parsed_attribute(text)
    except Malformed as wrong:
        raise refusal(name, number, f"{key} = {text[:100]!r} is no attribute: {wrong}") from None


def _body(name: str, index: int, text: str) -> TypedBody | None:
    try:
        return read_body(text, _inner)
    except Malformed as wrong:
        raise refusal(name, "bodies", f"body {index} can't be read: {wrong}") from None
