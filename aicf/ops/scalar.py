"""Scalar functions and their element types: the one place where number literals get the compute type.

`x * 0.1` is f64 arithmetic to a compiler that takes Python's word for it. An elementwise op's scalar function means 0.1
in the type it computes in, so its code object is rebuilt with every int and float constant converted; nothing is parsed
and no source is written.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import lru_cache
from inspect import CO_VARARGS
from types import BuiltinFunctionType, CellType, FunctionType, SimpleNamespace
from typing import Any

import numpy as np

from ..errors import RegistryError
from ..types import AttrPack, DType
from . import numbers
from .record import OpSchema


def typed_scalar(
    function: Callable[..., Any], compute: DType, attrs: Mapping[str, Any] | None = None
) -> tuple[FunctionType, tuple[Any, ...]]:
    """(function of positional arguments only, constants for its last ones): literals, global numbers and attributes
    have the compute type; bools stay bools. `*xs` becomes a parameter behind them: a tuple.

    The keyword-only attributes become trailing positional parameters, to be called with the constants. Equal requests
    give the identical function, so that compile caches can be keyed by it.
    """
    typed, names = _typed(function, compute)
    return typed, tuple(_convert((attrs or {})[name], compute) for name in names)


def bound_scalar(
    schema: OpSchema, compute: DType, attrs: AttrPack, operands: tuple[DType, ...]
) -> FunctionType:
    """A map op's scalar function for operands of these types, typed, with its attributes bound as the defaults of trailing positional parameters.

    Equal requests give the identical function. Python fills defaults in by itself, numba as constants.
    """
    scalar = schema.scalar_for(operands, attrs)
    count = len(operands) if scalar.__code__.co_flags & CO_VARARGS else None
    return _bound(scalar, schema.constants_fn, compute, attrs, count)


@lru_cache(maxsize=4096)
def _bound(
    function: FunctionType, constants: Callable[..., Any] | None, compute: DType, attrs: AttrPack, count: int | None
) -> FunctionType:  # fmt: skip
    """`count`: of operands, where the function takes any number."""
    typed, values = typed_scalar(function, compute, constants(attrs) if constants else attrs)
    if count is not None:
        typed = _of_operands(typed, function.__code__.co_argcount, count)
    return FunctionType(typed.__code__, typed.__globals__, typed.__name__, values, typed.__closure__)


def _convert(value: Any, compute: DType, function: Callable[..., Any] | None = None) -> Any:
    """A number in the compute type; what is none, or has a type of its own, as it is."""
    if type(value) not in (int, float):
        return value
    compute = DType.i32 if compute is DType.bool else compute
    number = numbers.whole(value) if compute.kind == "int" else value
    if (reason := numbers.why_not(number, compute)) and function is not None:
        code = function.__code__
        raise RegistryError(
            f"{code.co_qualname} has the number {value!r}, and on {compute} it computes in {compute}: {reason}",
            where=f"{code.co_filename}:{code.co_firstlineno}", expected=f"numbers of {compute}",
            hint="declare the op for types that hold it, such as types=Float; or write np.float32(…), which keeps its type",
        )  # fmt: skip
    return compute.numpy.type(number)


def _of_operands(typed: FunctionType, fixed: int, count: int) -> FunctionType:
    """A function of so many operands, and of the attributes, around one that has those behind the first `fixed` as a tuple: a
    kernel's call of a function has as many arguments as it has parameters."""
    code = typed.__code__
    operands, attrs = [f"x{n}" for n in range(count)], code.co_varnames[fixed : code.co_argcount - 1]
    own, more = operands[:fixed], "".join(f"{x}, " for x in operands[fixed:])
    text = f"lambda of: lambda {', '.join([*operands, *attrs])}: of({', '.join([*own, *attrs, f'({more})'])})"
    around = eval(text)(typed)
    around.__name__, around.__module__ = typed.__name__, typed.__module__
    return around


@lru_cache(maxsize=4096)
def _typed(function: FunctionType, compute: DType) -> tuple[FunctionType, tuple[str, ...]]:
    code = function.__code__
    first, last = code.co_argcount, code.co_argcount + code.co_kwonlyargcount
    numbers = {
        n: _convert(function.__globals__[n], compute, function)
        for n in code.co_names
        if n in function.__globals__
    }
    if compute.kind == "float":
        numbers["float"] = compute.numpy.type  # float(i) is a number of the compute type, not an f64
    variadic = bool(code.co_flags & CO_VARARGS)
    typed = code.replace(
        co_consts=tuple(_convert(c, compute, function) for c in code.co_consts),
        co_argcount=last + variadic,  # *xs comes behind all the others
        co_kwonlyargcount=0,
        co_flags=code.co_flags & ~CO_VARARGS,
    )
    cells = tuple(CellType(_convert(c.cell_contents, compute, function)) for c in function.__closure__ or ())
    made = FunctionType(typed, {**function.__globals__, **numbers}, function.__name__, None, cells)
    return made, code.co_varnames[first:last]


# --- in plain Python --------------------------------------------------------------------------------------------------

_RENAMED = {
    "pow": "power",
    **{f"a{name}": f"arc{name}" for name in ("sin", "cos", "tan", "tan2", "sinh", "cosh", "tanh")},
}
_UNLIKE = {"log", "remainder"}  # NumPy's take other arguments, or are other functions


def _ieee(name: str) -> Callable[..., Any]:
    """A function of `math` that has infinities and NaN where Python's raises, as on every device."""
    known = getattr(np, _RENAMED.get(name, name), None)
    if isinstance(known, np.ufunc) and name not in _UNLIKE:
        return known
    python = getattr(math, name)

    def function(x: Any, *more: Any) -> Any:
        if name == "log":
            return np.log(x) / np.log(*more) if more else np.log(x)
        try:
            made = python(x, *more)
        except OverflowError:
            made = math.inf
        except ValueError:
            made = math.nan
        return type(x)(made) if isinstance(x, np.floating) else made

    return function


_IEEE = {name: _ieee(name) for name, value in vars(math).items() if isinstance(value, BuiltinFunctionType)}
_MATH = SimpleNamespace(**{**vars(math), **_IEEE})


@lru_cache(maxsize=4096)
def in_python(function: Callable[..., Any], number: Any) -> FunctionType:
    """A scalar function that Python runs on NumPy scalars as kernels compute: functions of `math`, however they were imported,
    have infinities where Python's raise, in the functions it calls as well. `float(i)` makes a `number`.
    """
    assert isinstance(function, FunctionType)

    def of(value: Any) -> Any:
        if value is math:
            return _MATH
        if isinstance(value, BuiltinFunctionType) and value is getattr(math, value.__name__, None):
            return _IEEE[value.__name__]
        return (
            in_python(value, number) if isinstance(value, FunctionType) and value is not function else value
        )

    read = {n: of(function.__globals__[n]) for n in function.__code__.co_names if n in function.__globals__}
    names = {**function.__globals__, **read, "float": number}
    cells = tuple(CellType(of(c.cell_contents)) for c in function.__closure__ or ())
    made = FunctionType(function.__code__, names, function.__name__, function.__defaults__, cells)
    made.__kwdefaults__ = function.__kwdefaults__
    return made
