"""Scalar functions of aicf's ops, compiled beforehand: a file in the package, in which functions.py looks before it imports numba.

tools/scalar_functions.py writes it. An entry is found by its content: the source of the function and of what it calls, the same for every
Python, and of the modules that compile. So an entry that is out of date is never found, and numba compiles the function instead. Bitcode
depends on the platform alone: each loop is optimised for the processor that runs it.
"""

from __future__ import annotations

import builtins
import json
import os
import pkgutil
import warnings
import zlib
from collections.abc import Iterator, Mapping
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any

import numpy as np

from ...code_cache.digest import Portable, Undescribable, digest, globals_read, pack, version
from .toolchain import SETTINGS, SVML

FILE = "functions.bin"
MAGIC = b"aicf functions 1\n"
COMPILED_BY = "numba_functions", "target", "vector_math", "wide_math"


def shipped(key: str) -> bytes | None:
    """The bitcode of a key."""
    return _entries().get(key)


def available() -> bool:
    """Whether the file has anything for this process."""
    return bool(_entries())


def in_package(name: str) -> Path:
    """A file of this package."""
    package = find_spec(__package__)
    assert package is not None and package.submodule_search_locations is not None
    return Path(package.submodule_search_locations[0], name)


def write(entries: Mapping[str, bytes]) -> None:
    """Write the file: a line of JSON, then the bitcode of each key in that line's order, compressed together."""
    keys = sorted(entries)
    header = {"platform": platform(), "sizes": {key: len(entries[key]) for key in keys}}
    content = json.dumps(header).encode() + b"\n" + b"".join([entries[key] for key in keys])
    in_package(FILE).write_bytes(MAGIC + zlib.compress(content, 9))


def read() -> tuple[list[Any], dict[str, bytes]]:
    """(platform, bitcode by key); zlib checks that the file is complete."""
    data = pkgutil.get_data(__package__, FILE) or b""
    if not data.startswith(MAGIC):
        raise ValueError("it is no file of scalar functions")
    line, _, code = zlib.decompress(data[len(MAGIC) :]).partition(b"\n")
    header, entries, at = json.loads(line), {}, 0
    for key, size in header["sizes"].items():
        entries[key] = code[at : at + size]
        at += size
    return header["platform"], entries


@cache
def _entries() -> dict[str, bytes]:
    """Nothing on another platform, nor where settings or Intel's library change what numba compiles."""
    if any(name.startswith(SETTINGS) for name in os.environ) or any(map(version, SVML)):
        return {}
    try:
        of, entries = read()
    except (OSError, ValueError, KeyError, zlib.error) as error:
        warnings.warn(
            f"aicf's {FILE} can't be read, so numba compiles its functions anew: {error}; install aicf again",
            RuntimeWarning, stacklevel=2,
        )  # fmt: skip
        return {}
    return entries if of == platform() else {}


def platform() -> list[Any]:
    """What bitcode depends on: LLVM's version, and the target without its processor."""
    import llvmlite.binding as llvm

    return [llvm.llvm_version_info[0], llvm.get_process_triple()]


# --- keys -------------------------------------------------------------------------------------------------------------


def shipped_key(
    function: FunctionType, arguments: tuple[str, ...], results: tuple[str, ...], constants: dict[int, Any], double: bool
) -> str | None:  # fmt: skip
    """32 hexadecimal digits; None of a function that is not as aicf's files have it."""
    if not (function.__module__ or "").startswith("aicf."):
        return None
    try:
        described = _AsInFiles().of((function, arguments, results, constants, double))
        return digest(pack("shipped", described, _compiled_by())).hex()
    except (Undescribable, OSError):  # where there is no source
        return None


class _AsInFiles(Portable):
    """By source, of functions whose code is that of their files, with literals converted (ops/scalar.py)."""

    def _function(self, fn: Any) -> bytes:
        code = fn.__code__
        if not (fn.__module__ or "").startswith("aicf."):
            raise Undescribable(str(fn.__module__))
        if not any(_same(code, each) for each in _codes(fn.__module__).get(code.co_qualname, ())):
            raise Undescribable(f"{fn.__module__}.{code.co_qualname} is not what its file has")
        literals = sorted(
            {type(value).__name__ for value in _constants(code) if isinstance(value, np.generic)}
        )
        builtin = {*globals_read(code)} & {*vars(builtins)} & {*fn.__globals__}
        replaced = [pack(name, self.of(fn.__globals__[name])) for name in sorted(builtin)]
        return pack("typed", super()._function(fn), repr(literals).encode(), *replaced)


@cache
def _codes(module: str) -> dict[str, list[CodeType]]:
    """The code of a module's functions as its file has it now, by qualified name."""
    spec, found = find_spec(module), dict[str, list[CodeType]]()
    if spec is not None and hasattr(spec.loader, "get_code"):
        for code in _nested(spec.loader.get_code(module)):
            found.setdefault(code.co_qualname, []).append(code)
    return found


def _nested(code: CodeType) -> Iterator[CodeType]:
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield constant
            yield from _nested(constant)


def _constants(code: CodeType) -> list[Any]:
    return [value for each in (code, *_nested(code)) for value in each.co_consts]


def _same(code: CodeType, of_file: CodeType) -> bool:
    """Whether code is that of the file but for the types of its literals."""
    return (
        code.co_firstlineno == of_file.co_firstlineno
        and (code.co_code, code.co_names) == (of_file.co_code, of_file.co_names)
        and len(code.co_consts) == len(of_file.co_consts)
        and all(map(_same_value, code.co_consts, of_file.co_consts))
    )


def _same_value(value: Any, of_file: Any) -> bool:
    if isinstance(value, CodeType):
        return isinstance(of_file, CodeType) and _same(value, of_file)
    converted = type(value)(of_file) if isinstance(value, np.generic) else of_file
    return repr(value) == repr(converted)


@cache
def _compiled_by() -> bytes:
    """The source of the modules that compile scalar functions, and of what they put in place of `math`."""
    texts = [pkgutil.get_data(__package__, f"{name}.py") or b"" for name in COMPILED_BY]
    return digest(pack("modules", *texts))
