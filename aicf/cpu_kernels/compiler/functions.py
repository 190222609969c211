"""Scalar functions as LLVM bitcode: found in memory, on disk, in aicf's own file (shipped.py), or compiled by numba, once for all loops and
processes.

The key of a stored function is a digest of its code and of what it calls, of the types that it is called with, and of what compiles
it; its symbol is its key. So two functions of one name are two symbols, and a symbol is the same function everywhere.
"""

from __future__ import annotations

import itertools
import time
from functools import lru_cache
from types import FunctionType
from typing import Any, NamedTuple

import numpy as np

from ... import channels
from ...code_cache import disk
from ...code_cache.digest import Description, Undescribable, digest, pack
from .shipped import available, shipped, shipped_key
from .toolchain import FUNCTIONS, toolchain


class ScalarCode(NamedTuple):
    """LLVM's `{results} symbol(ptr status, arguments…)`; `status` is an i32 that is set where the function raises.

    arguments  NumPy's names of their types: operands, then the function's numbers
    numbers    the values of the last arguments, which are defaults of the function
    movable    whether it has no address of this process in it
    """

    symbol: str
    bitcode: bytes
    arguments: tuple[str, ...]
    numbers: tuple[Any, ...]
    movable: bool = True


_COUNT = itertools.count()


@lru_cache(maxsize=4096)
def function_of(function: FunctionType, operands: tuple[str, ...], results: tuple[str, ...]) -> ScalarCode:
    """The code of a scalar function, called with operands of these types and with its own defaults."""
    arguments, numbers, constants = signature(function, operands)
    double = "float64" in operands
    key = _key(function, arguments, results, constants, double)
    symbol = f"aicf.{key or f'process.{next(_COUNT)}'}"
    if key is not None and (found := disk.load(key, disk.FUNCTION, checked(symbol))):
        return ScalarCode(symbol, found, arguments, numbers)
    shared = shipped_key(plain(function), arguments, results, constants, double) if available() else None
    if shared is not None and (found := shipped(shared)):
        return ScalarCode(f"aicf.{shared}", found, arguments, numbers)
    from .numba_functions import compile_function

    name, start = function.__name__, time.perf_counter()
    bitcode, movable = compile_function(function, arguments, results, constants, double, symbol)
    seconds = time.perf_counter() - start
    channels.tell(
        "cache", "function", f"the scalar function {name} compiled for the CPU in {seconds:.2f} s",
        symbol=name, target="cpu", key=key, seconds=seconds,
    )  # fmt: skip
    if key is not None and movable:
        disk.store(key, disk.FUNCTION, bitcode, {})
    return ScalarCode(symbol, bitcode, arguments, numbers, movable)


def signature(
    function: FunctionType, operands: tuple[str, ...]
) -> tuple[tuple[str, ...], tuple[Any, ...], dict[int, Any]]:
    """(types of its arguments, numbers for the last of them, its other parameters by position): its defaults are either."""
    defaults = function.__defaults__ or ()
    kinds = [type_name(value) for value in defaults]
    numbers = tuple(
        value.item() if isinstance(value, np.generic) else value
        for value, kind in zip(defaults, kinds)
        if kind is not None
    )
    arguments = (*operands, *(kind for kind in kinds if kind is not None))
    return (
        arguments,
        numbers,
        {len(operands) + n: defaults[n] for n, kind in enumerate(kinds) if kind is None},
    )


def type_name(value: Any) -> str | None:
    """NumPy's name of a number's type in compiled code; None of anything else, such as an integer that no type has."""
    if isinstance(value, np.generic):
        name = value.dtype.name
        return name if value.dtype.kind in "biu" or name in ("float32", "float64") else None
    if type(value) is int:
        signed, unsigned = -(2**63) <= value < 2**63, 0 <= value < 2**64
        return "int64" if signed else "uint64" if unsigned else None
    return {bool: "bool", float: "float64"}.get(type(value))


def plain(function: FunctionType) -> FunctionType:
    """A function without its defaults: numbers among them are arguments, and no part of its key."""
    made = FunctionType(
        function.__code__, function.__globals__, function.__name__, None, function.__closure__
    )
    made.__module__ = function.__module__
    return made


def _key(
    function: FunctionType, arguments: tuple[str, ...], results: tuple[str, ...], constants: dict[int, Any], double: bool
) -> str | None:  # fmt: skip
    """32 hexadecimal digits; None if it can't be described."""
    try:
        described = Description().of((plain(function), arguments, results, constants, double))
    except Undescribable:
        return None
    return digest(pack("function", described, toolchain(FUNCTIONS))).hex()


def checked(symbol: str) -> Any:
    """check(bitcode): the bitcode, in which that symbol is defined; else ValueError."""

    def check(bitcode: bytes) -> bytes:
        import llvmlite.binding as llvm

        try:
            with llvm.create_context() as context, llvm.parse_bitcode(bitcode, context) as module:
                defined = not module.get_function(symbol).is_declaration
        except (RuntimeError, NameError) as error:
            raise ValueError(f"it is no bitcode of {symbol}: {error}") from error
        if not defined:
            raise ValueError(f"{symbol} is not defined in it")
        return bitcode

    return check
