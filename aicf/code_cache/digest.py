"""Functions and values as bytes: a digest of everything that code compiled from them depends on, computed without numba.

That is bytecode, constants, defaults and closures, and the functions called, recursively, so that what is written in a
notebook counts as much as aicf's own. Line numbers, file names and comments don't count. Classes, and all that belongs to
Python, NumPy, numba and the rest of `LIBRARIES`, are known by their names.
"""

from __future__ import annotations

import builtins
import dataclasses
import enum
import functools
import importlib.metadata
import sys
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from dis import opmap
from hashlib import blake2b
from types import BuiltinFunctionType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np

from .source import ImportedName, syntax_of

# Packages whose functions are what they are: no part of a kernel's source.
LIBRARIES = frozenset(
    sys.stdlib_module_names | {"cuda", "llvmlite", "ml_dtypes", "numba", "numba_cuda", "numpy"}
)


class Undescribable(Exception):
    """A value that is neither data nor code."""


def digest(data: bytes) -> bytes:
    return blake2b(data, digest_size=16).digest()


def pack(tag: str, *parts: bytes) -> bytes:
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
    constants = Description().of(code.co_consts)
    return digest(pack("code", repr(shape).encode(), code.co_code, code.co_exceptiontable, constants))


_JITTED: weakref.WeakKeyDictionary[Any, bytes] = weakref.WeakKeyDictionary()


class Description:
    """One walk over what a function reaches; or several, between which nothing changes.

    known    digests of functions, in this walk
    settled  those of them beneath which no function comes back to one before it, so that no walk finds another: for later walks
    """

    def __init__(self) -> None:
        self.open: list[FunctionType] = []
        self.known: dict[FunctionType, bytes] = {}
        self.settled: dict[FunctionType, bytes] = {}
        self.placed: dict[int, tuple[Any, bytes]] = {}  # by id, so they are kept
        self._comes_back = False  # whether what was described lately does

    def another(self) -> Description:
        """For the next walk."""
        self.open, self.known, self._comes_back = [], dict(self.settled), False
        return self

    def of(self, value: Any) -> bytes:
        kind = type(value)
        if kind in HASHED_ALIKE:
            return _plain(value)
        if kind is tuple:
            return self.once(value, _tuple) if value else _plain(value)
        if kind is float or kind is complex:
            return pack(kind.__name__, repr(value).encode())
        if kind is list:
            return pack("list", *map(self.of, value))
        if isinstance(value, tuple):  # with names
            return pack("tuple", self.name(kind), *map(self.of, value))
        if kind in (set, frozenset):
            return pack("set", *sorted(map(self.of, value)))
        if kind is dict:
            return pack("dict", *sorted(pack("item", self.of(k), self.of(v)) for k, v in value.items()))
        if kind is CodeType:
            return _code(value)
        if kind is FunctionType:
            return self.function(value)
        if isinstance(value, enum.Enum):
            return _member(value, self.name(kind))
        if isinstance(value, np.generic | np.ndarray) and not value.dtype.hasobject:
            return pack("array", repr((value.dtype.str, value.shape)).encode(), value.tobytes())
        if (described := getattr(kind, "described", None)) is not None:  # a value that says itself what it is
            return self.once(value, described)
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            return self.once(value, _record)
        return self.callable(value)

    def once(self, value: Any, described: Callable[[Any, Description], bytes]) -> bytes:
        """The description of a value that a body contains in many places, computed once."""
        if id(value) in self.placed:
            return self.placed[id(value)][1]
        before, self._comes_back = self._comes_back, False
        made = described(value, self)
        if not self._comes_back:
            self.placed[id(value)] = value, made
        self._comes_back |= before
        return made

    def callable(self, value: Any) -> bytes:
        """What stands for a function or a module; classes, and what libraries made, by their names."""
        if isinstance(value, ModuleType):
            return pack("module", value.__name__.encode())
        if isinstance(value, type):
            return pack("named", self.name(value))
        if isinstance(value, BuiltinFunctionType | np.ufunc):
            return pack("named", _qualified(value))
        if isinstance(value, MethodType):
            return pack("method", self.of(value.__func__), self.of(value.__self__))
        if isinstance(value, functools.partial):
            return pack("partial", self.of(value.func), self.of(value.args), self.of(value.keywords))
        if type(value).__module__.split(".")[0] in ("numba", "numba_cuda"):
            return self.numba(value)
        if isinstance(getattr(value, "__wrapped__", None), FunctionType):  # functools.cache
            return self.of(value.__wrapped__)
        raise Undescribable(f"{type(value).__module__}.{type(value).__qualname__}")

    def numba(self, value: Any) -> bytes:
        """What a body holds that was made with numba itself. numba may go on using what a function's globals once were."""
        made_of = getattr(value, "py_func", None) or getattr(value, "_defn", None)
        if made_of is None:
            return pack("numba", _qualified(type(value)), str(value).encode())
        options = repr(sorted(getattr(value, "targetoptions", {}).items()))
        now = pack("jitted", self.of(made_of), options.encode())
        if _JITTED.setdefault(value, now) != now:
            raise Undescribable(f"{value} reads globals that have changed")
        return now

    def function(self, fn: FunctionType) -> bytes:
        if _of_library(fn.__module__):
            return pack("named", _qualified(fn))
        if fn in self.open:
            far = len(self.open) - self.open.index(fn)
            self._comes_back |= far > 1
            return pack("recursion", str(far).encode())
        if fn not in self.known:
            before, self._comes_back = self._comes_back, False
            self.open.append(fn)
            self.known[fn] = digest(self._function(fn))
            self.open.pop()
            if not self._comes_back:
                self.settled[fn] = self.known[fn]
            self._comes_back |= before
        elif fn not in self.settled:
            self._comes_back = True
        return self.known[fn]

    def _function(self, fn: FunctionType) -> bytes:
        cells = [self.of(cell.cell_contents) for cell in fn.__closure__ or ()]
        read = [(n, fn.__globals__[n]) for n in globals_read(fn.__code__) if n in fn.__globals__]
        around = [pack(name, self.of(value), self._attributes(value, fn)) for name, value in read]
        defaults = pack("tuple", self.of(fn.__defaults__), self.of(fn.__kwdefaults__))
        return pack("function", _code(fn.__code__), defaults, pack("cells", *cells), *around)

    def name(self, kind: type) -> bytes:
        return _qualified(kind)

    def _attributes(self, value: Any, fn: FunctionType) -> bytes:
        """What the function may take from a module that is no library: `helpers.twice(x)` depends on `twice`."""
        if not isinstance(value, ModuleType) or _of_library(value.__name__):
            return b""
        used = sorted(set(_attribute_names(fn.__code__)) & set(vars(value)))
        return pack("attributes", *(pack(name, self.of(vars(value)[name])) for name in used))


class Portable(Description):
    """The same for every Python, and whatever functions, classes and modules are called: by source where there is one to be read.

    A function's own name, the names that it reads from its module, and where both stand don't count, but what is read does.
    """

    without: frozenset[str] = frozenset()  # names of methods that are left out

    def of(self, value: Any) -> bytes:
        return pack("named", b"LIBRARIES") if value is LIBRARIES else super().of(value)

    def _function(self, fn: Any) -> bytes:
        """Of a function, or of a class: its source, and what that reads from outside."""
        if isinstance(fn, type):
            outside, defaults = {*vars(sys.modules[fn.__module__])}, b""
        else:
            outside = {*fn.__code__.co_freevars, *globals_read(fn.__code__)} - vars(builtins).keys()
            defaults = pack("tuple", self.of(fn.__defaults__), self.of(fn.__kwdefaults__))
        try:
            text, reads, imports = syntax_of(fn, frozenset(outside), self.without)
        except (OSError, TypeError, StopIteration, SyntaxError):
            return super()._function(fn)
        if fn.__module__ == __name__:  # reads bytecode, of which every Python has its own
            reads = ()
        around = [self.read(path, fn, imports) for path in reads]
        return pack("function", text.encode(), defaults, *around)

    def read(self, path: tuple[str, ...], fn: Any, imports: Mapping[str, ImportedName]) -> bytes:
        """What a dotted name in a function stands for: through modules of ours to what they hold, and the attributes behind it."""
        name, *rest = path
        if name in imports:
            return self.imported(imports[name], rest, fn)
        if isinstance(fn, type):
            value = vars(sys.modules[fn.__module__]).get(name)
        else:
            cells = dict(zip(fn.__code__.co_freevars, fn.__closure__ or ()))
            value = cells[name].cell_contents if name in cells else fn.__globals__.get(name)
        return self.attribute(value, rest)

    def attribute(self, value: Any, names: Sequence[str]) -> bytes:
        while names and isinstance(value, ModuleType) and not _of_library(value.__name__):
            value, names = getattr(value, names[0], None), names[1:]
        return pack("read", self.of(value), ".".join(names).encode())

    def imported(self, what: ImportedName, names: Sequence[str], fn: Any) -> bytes:
        """What a function imports when it runs: by name, as in bytecode."""
        return pack("import", ".".join([what.attribute or what.module, *names]).encode())

    def name(self, kind: type) -> bytes:
        return _qualified(kind) if _of_library(kind.__module__) else kind.__name__.encode()


def _of_library(module: str | None) -> bool:
    return (module or "").split(".")[0] in LIBRARIES


# Of these types equal values print equally, unlike 0.0 and -0.0.
HASHED_ALIKE = frozenset({type(None), type(...), bool, int, str, bytes})


@functools.lru_cache(maxsize=4096, typed=True)
def _plain(value: Any) -> bytes:
    return pack("tuple") if value == () else pack(type(value).__name__, repr(value).encode())


@functools.lru_cache(maxsize=4096, typed=True)
def _member(value: enum.Enum, kind: bytes) -> bytes:
    return pack("enum", kind, value.name.encode())


def _tuple(value: tuple[Any, ...], description: Description) -> bytes:
    return pack("tuple", *map(description.of, value))


def _record(value: Any, description: Description) -> bytes:
    fields = (description.of(getattr(value, f.name)) for f in dataclasses.fields(value))
    return pack("record", description.name(type(value)), *fields)


def _qualified(value: Any) -> bytes:
    return f"{getattr(value, '__module__', '')}.{getattr(value, '__qualname__', value)}".encode()


@functools.cache
def version(package: str) -> str | None:
    """None if it is not installed."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


_LOAD_GLOBAL, _EXTENDED_ARG = opmap["LOAD_GLOBAL"], opmap["EXTENDED_ARG"]


@functools.cache
def globals_read(code: CodeType) -> tuple[str, ...]:
    """The names that the code, or a function inside it, looks up in its module."""
    names: dict[str, None] = {}
    arg = 0
    for op, byte in zip(code.co_code[::2], code.co_code[1::2]):
        arg = arg << 8 | byte
        if op == _LOAD_GLOBAL:
            names[code.co_names[arg >> 1]] = None  # the lowest bit is Python's own
        if op != _EXTENDED_ARG:
            arg = 0
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            names.update(dict.fromkeys(globals_read(constant)))
    return tuple(names)
