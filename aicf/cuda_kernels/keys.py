"""The key of a compiled kernel: a digest of everything its machine code depends on, computed without numba.

That is the body's bytecode, constants, defaults and closure, and the functions and factories it calls, recursively, so that
a kernel written in a notebook counts as much as aicf's own; its parameter types, target, launch bounds and strictness; the
route from body to cubin (`compile.py`, read in the same way); and the versions of the compilers. Line numbers, file names and
comments don't count. Classes, and all that belongs to Python, NumPy, numba and the rest of `LIBRARIES`, are known by their names.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import importlib.metadata
import os
import sys
import weakref
from collections.abc import Iterable
from hashlib import blake2b
from pathlib import Path
from types import BuiltinFunctionType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np

from ..registry.variant import Launch
from .compile import Signature, compile_kernel, kernel_name, launch_bounds, waits_itself
from .dsl import LIBRARIES, Deferred, Name, globals_read

FORMAT = 1  # of keys; a change of what is hashed changes it

PACKAGES = ("aicf", "numba-cuda", "numba", "llvmlite", "cuda-core", "numpy")
# Each by the name of its wheel for CUDA 13 and for CUDA 12; a machine without a wheel takes the system's.
TOOLKIT = (("nvidia-nvvm", "nvidia-cuda-nvcc-cu12"), ("nvidia-nvjitlink", "nvidia-nvjitlink-cu12"))


def kernel_key(launch: Launch, signature: Signature, target: str, strict: bool = False) -> str | None:
    """32 hexadecimal digits; None for a body that depends on something which can't be described.

    strict  of the region: compiled without contraction
    """
    described = kernel_digest(launch, signature, target, strict)
    return None if described is None else _digest(_pack("kernel", described, toolchain())).hex()


def kernel_digest(launch: Launch, signature: Signature, target: str, strict: bool = False) -> bytes | None:
    """Of the kernel alone, whatever compiles it; None as above."""
    body = body_digest(launch.body)
    parts = (kernel_name(launch), signature, target, launch_bounds(launch), strict, waits_itself(launch))
    return None if body is None else _digest(_pack("launch", body, repr(parts).encode()))


_BODIES: weakref.WeakKeyDictionary[Any, bytes | None] = weakref.WeakKeyDictionary()


def body_digest(body: Any) -> bytes | None:
    if body not in _BODIES:
        try:
            _BODIES[body] = _digest(_Description().of(body))
        except Undescribable:
            _BODIES[body] = None
    return _BODIES[body]


@functools.cache
def toolchain() -> bytes:
    """What compiles: the route, the versions of its packages, and settings of numba's that change code."""
    versions = [(name, _version(name)) for name in PACKAGES]
    wheels = [(name, _version(name)) for names in TOOLKIT for name in names]
    settings = sorted(
        v for v in os.environ.items() if v[0].startswith(("NUMBA_CUDA_", "NUMBA_DEBUG", "NUMBA_OPT"))
    )
    system = [] if all(any(map(_version, names)) for names in TOOLKIT) else system_toolkit()
    facts = (FORMAT, sys.implementation.cache_tag, versions, wheels, settings, system)
    return _digest(_pack("toolchain", repr(facts).encode(), _Description().of(compile_kernel)))


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def system_toolkit() -> list[str]:
    """The compiler libraries where no wheel brings them: their real paths, whose names end in versions."""
    homes = [os.environ.get(v) for v in ("CONDA_PREFIX", "CUDA_HOME", "CUDA_PATH")]
    roots = [Path(home) for home in [*homes, "/usr/local/cuda", "/usr"] if home]
    patterns = ("lib*/libnvJitLink.so*", "lib/*/libnvJitLink.so*", "nvvm/lib*/libnvvm.so*", "lib/*/libnvvm.so*",
                "bin/nvJitLink*.dll", "nvvm/bin/nvvm*.dll")  # fmt: skip
    return sorted({os.path.realpath(file) for root in roots for p in patterns for file in root.glob(p)})


# --- functions and values as bytes --------------------------------------------------------------------------------------


class Undescribable(Exception):
    """A value that is neither data nor code."""


def _digest(data: bytes) -> bytes:
    return blake2b(data, digest_size=16).digest()


def _pack(tag: str, *parts: bytes) -> bytes:
    """Unambiguous: lengths come first."""
    return f"{tag} {[len(p) for p in parts]}\n".encode() + b"".join(parts)


def _attribute_names(code: CodeType) -> Iterable[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _attribute_names(constant)


@functools.cache
def _code(code: CodeType) -> bytes:
    shape = (
        code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, code.co_flags, code.co_names,
        code.co_varnames, code.co_freevars, code.co_cellvars,
    )  # fmt: skip
    constants = _Description().of(code.co_consts)
    return _digest(_pack("code", repr(shape).encode(), code.co_code, code.co_exceptiontable, constants))


_JITTED: weakref.WeakKeyDictionary[Any, bytes] = weakref.WeakKeyDictionary()


class _Description:
    """One walk over what a function reaches."""

    def __init__(self) -> None:
        self.open: list[FunctionType] = []
        self.known: dict[FunctionType, bytes] = {}

    def of(self, value: Any) -> bytes:
        kind = type(value)
        if value is None or value is ... or kind in (bool, int, float, complex, str, bytes):
            return _pack(kind.__name__, repr(value).encode())
        if kind in (tuple, list):
            return _pack(kind.__name__, *map(self.of, value))
        if kind in (set, frozenset):
            return _pack("set", *sorted(map(self.of, value)))
        if kind is dict:
            return _pack("dict", *sorted(_pack("item", self.of(k), self.of(v)) for k, v in value.items()))
        if kind is CodeType:
            return _code(value)
        if kind is FunctionType:
            return self.function(value)
        if isinstance(value, enum.Enum):
            return _pack("enum", _qualified(kind), value.name.encode())
        if isinstance(value, np.generic | np.ndarray) and not value.dtype.hasobject:
            return _pack("array", repr((value.dtype.str, value.shape)).encode(), value.tobytes())
        if isinstance(value, Name):
            return _pack("name", repr(value).encode())
        if isinstance(value, Deferred):
            return _pack("deferred", self.of(value.factory), self.of(value.args))
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            return _pack(
                "record",
                _qualified(kind),
                *(self.of(getattr(value, f.name)) for f in dataclasses.fields(value)),
            )
        return self.callable(value)

    def callable(self, value: Any) -> bytes:
        """What stands for a function or a module; classes, and what libraries made, by their names."""
        if isinstance(value, ModuleType):
            return _pack("module", value.__name__.encode())
        if isinstance(value, type | BuiltinFunctionType | np.ufunc):
            return _pack("named", _qualified(value))
        if isinstance(value, MethodType):
            return _pack("method", self.of(value.__func__), self.of(value.__self__))
        if isinstance(value, functools.partial):
            return _pack("partial", self.of(value.func), self.of(value.args), self.of(value.keywords))
        if type(value).__module__.split(".")[0] in ("numba", "numba_cuda"):
            return self.numba(value)
        if isinstance(getattr(value, "__wrapped__", None), FunctionType):  # functools.cache
            return self.of(value.__wrapped__)
        raise Undescribable(f"{type(value).__module__}.{type(value).__qualname__}")

    def numba(self, value: Any) -> bytes:
        """What a body holds that was made with numba itself. numba may go on using what a function's globals once were."""
        made_of = getattr(value, "py_func", None) or getattr(value, "_defn", None)
        if made_of is None:
            return _pack("numba", _qualified(type(value)), str(value).encode())
        options = repr(sorted(getattr(value, "targetoptions", {}).items()))
        now = _pack("jitted", self.of(made_of), options.encode())
        if _JITTED.setdefault(value, now) != now:
            raise Undescribable(f"{value} reads globals that have changed")
        return now

    def function(self, fn: FunctionType) -> bytes:
        if (fn.__module__ or "").split(".")[0] in LIBRARIES:
            return _pack("named", _qualified(fn))
        if fn in self.open:
            return _pack("recursion", str(len(self.open) - self.open.index(fn)).encode())
        if fn not in self.known:
            self.open.append(fn)
            self.known[fn] = _digest(self._function(fn))
            self.open.pop()
        return self.known[fn]

    def _function(self, fn: FunctionType) -> bytes:
        cells = [self.of(cell.cell_contents) for cell in fn.__closure__ or ()]
        read = [(name, fn.__globals__[name]) for name in globals_read(fn.__code__) if name in fn.__globals__]
        around = [_pack(name, self.of(value), self._attributes(value, fn)) for name, value in read]
        defaults = self.of((fn.__defaults__, fn.__kwdefaults__))
        return _pack("function", _code(fn.__code__), defaults, _pack("cells", *cells), *around)

    def _attributes(self, value: Any, fn: FunctionType) -> bytes:
        """What the function may take from a module that is no library: `helpers.twice(x)` depends on `twice`."""
        if not isinstance(value, ModuleType) or value.__name__.split(".")[0] in LIBRARIES:
            return b""
        used = sorted(set(_attribute_names(fn.__code__)) & set(vars(value)))
        return _pack("attributes", *(_pack(name, self.of(vars(value)[name])) for name in used))


def _qualified(value: Any) -> bytes:
    return f"{getattr(value, '__module__', '')}.{getattr(value, '__qualname__', value)}".encode()
