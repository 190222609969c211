"""Whether a scalar function is continuous: found in its bytecode, and in that of the functions it calls.

A function that may jump gets its operands rounded as they would be in memory, so it is taken for one wherever that can't be
ruled out: at every instruction that is not known to be harmless, and at every call that can't be seen through. A step to
infinity or NaN, as of 1 / x or log(x) at 0, counts as no jump.
"""

from __future__ import annotations

import builtins
import dis
import inspect
import math
import re
from collections.abc import Callable
from types import CodeType, FunctionType, ModuleType
from typing import Any

import numpy as np

_FUNCTIONS = [
    "exp",
    "exp2",
    "expm1",
    "log",
    "log2",
    "log10",
    "log1p",
    "sqrt",
    "cbrt",
    "pow",
    "power",
    "hypot",
    "fma",
    "square",
    "reciprocal",
    "sin",
    "cos",
    "tan",
    "asin",
    "acos",
    "atan",
    "arcsin",
    "arccos",
    "arctan",
    "sinh",
    "cosh",
    "tanh",
    "asinh",
    "acosh",
    "atanh",
    "arcsinh",
    "arccosh",
    "arctanh",
    "erf",
    "erfc",
    "gamma",
    "lgamma",
    "fabs",
    "abs",
    "absolute",
    "min",
    "max",
    "minimum",
    "maximum",
    "fmin",
    "fmax",
    "degrees",
    "radians",
    "add",
    "subtract",
    "multiply",
    "divide",
    "true_divide",
    "negative",
    "positive",
]
_FLOATS = (float, np.float16, np.float32, np.float64)  # called, they convert
_CONTINUOUS = {
    *(
        id(getattr(module, name))
        for module in (math, np, builtins)
        for name in _FUNCTIONS
        if hasattr(module, name)
    ),
    *map(id, _FLOATS),
}

# Instructions that move values about. Those that compare, branch or test begin with none of these words.
_HARMLESS = re.compile(
    r"(RESUME|NOP|CACHE|PRECALL|KW_NAMES|EXTENDED_ARG|COPY|SWAP|PUSH_NULL|POP_TOP|RETURN_VALUE|RETURN_CONST|MAKE_CELL|COPY_FREE_VARS"
    r"|LOAD_(CONST|SMALL_INT)|(LOAD|STORE|DELETE)_FAST.*|STORE_DEREF|BUILD_TUPLE|UNPACK_SEQUENCE|UNARY_(NEGATIVE|POSITIVE))"
)
_ARITHMETIC = {"+", "-", "*", "/", "**", "+=", "-=", "*=", "/=", "**="}
_NAMES = ("LOAD_GLOBAL", "LOAD_NAME", "LOAD_DEREF", "LOAD_CLASSDEREF")
_ATTRIBUTES = ("LOAD_ATTR", "LOAD_METHOD")
_CALLS = ("CALL", "CALL_FUNCTION", "CALL_KW")


def is_continuous(function: Callable[..., Any]) -> bool:
    """Whether nothing in the function, or in what it calls, can make a jump of a rounding error."""
    return isinstance(function, FunctionType) and why_not(function) is None


def why_not(function: FunctionType, seen: frozenset[CodeType] = frozenset()) -> str | None:
    """The first thing in it that may make a jump; None if it is continuous."""
    code = function.__code__
    if code in seen:  # it calls itself: what it does besides is looked at anyway
        return None
    read = _read(function)
    for default in (*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()):
        if default is not None and (reason := _jump_of(default, "a default", seen | {code})):
            return reason
    value: Any = _UNKNOWN  # what was loaded last, as far as it is known
    for i in dis.get_instructions(code):
        if i.opname in _NAMES:
            value = read.get(i.argval, _UNKNOWN)
        elif i.opname in _ATTRIBUTES:
            if not isinstance(value, ModuleType):
                return f"it reads .{i.argval} of what can't be seen"
            value = getattr(value, i.argval, _UNKNOWN)
        elif i.opname == "BINARY_OP":
            if i.argrepr not in _ARITHMETIC:
                return f"the operator {i.argrepr}"
            continue
        elif i.opname in _CALLS:
            continue  # what is called was looked at when it was loaded
        elif not _HARMLESS.fullmatch(i.opname):
            return f"the instruction {i.opname}"
        else:
            continue
        if reason := _jump_of(value, i.argval, seen | {code}):
            return reason
    return None


_UNKNOWN = object()


def _read(function: FunctionType) -> dict[str, Any]:
    """The names that a function reads from outside, with what they stand for now."""
    closure = inspect.getclosurevars(function)
    return {**closure.builtins, **closure.globals, **closure.nonlocals}


def _jump_of(value: Any, name: str, seen: frozenset[CodeType]) -> str | None:
    """Why what was loaded, and may be called, can make a jump."""
    if isinstance(value, (bool, int, float, np.generic, ModuleType)) or id(value) in _CONTINUOUS:
        return None
    if isinstance(value, FunctionType):
        reason = why_not(value, seen)
        return f"{name}: {reason}" if reason else None
    return f"{name} can't be seen through" if value is _UNKNOWN else f"{name}()"
