"""What kernel bodies are written with: numba-cuda's names, and a way to defer, so that bodies are made without numba.

Importing numba takes half a second, which a process that finds its kernels in the cache need not spend. So a body is data
until it is compiled. In it `cuda` is a `Name`, which stands for the module `numba.cuda`; and `get = getter(f32)` is a
`Deferred`, the factory `getter` and its arguments. Both compare by value. `materialise` rebuilds a function with the real
objects in their places, in the globals and closure cells that it reads and, by way of arguments, in the functions that
its device functions and intrinsics were made of. The engine calls it to compile or to simulate a body.

    @deferred                             # a factory: what it does may need numba, so it is done later
    def getter(dtype):
        @intrinsic                        # names of this module work in factories as they do in numba
        def get(typing, pointer, i): ...
        return get

    @functools.cache                      # a body: equal requests give the identical function
    def double(dtype):
        get, put = getter(dtype), putter(dtype)

        def kernel(x, y, n):              # reads as numba.cuda Python, and is
            i = cuda.grid(1)
            if i < n:
                put(y, i, get(x, i) * float32(2))

        return kernel

Bodies that import numba themselves work as well; they cost their process the import.
"""

from __future__ import annotations

import functools
import importlib
import math
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import CellType, FunctionType, ModuleType
from typing import Any

import numpy as np

from ..code_cache.digest import LIBRARIES, Description, globals_read, pack
from ..ops.numbers import float_bits
from ..whole import Whole

# numba's simulator has no intrinsics: each factory of one makes a plain Python function instead.
SIMULATED = os.environ.get("NUMBA_ENABLE_CUDASIM", "0").strip() not in ("", "0")


@functools.cache
def module(name: str) -> ModuleType:
    """A module of numba's or llvmlite's, imported with what numba-cuda 0.30 needs of NumPy: 2.5 dropped an alias that it names."""
    vars(np).setdefault("row_stack", np.vstack)
    with Whole():
        return importlib.import_module(name)


class Name:
    """A module, or an attribute of one, that is imported when something is asked of it."""

    def __init__(self, module: str, attribute: str = "") -> None:
        self.module, self.attribute = module, attribute

    def resolve(self) -> Any:
        found = module(self.module)
        return getattr(found, self.attribute) if self.attribute else found

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # Python's own questions, such as copy's, import nothing
            raise AttributeError(name)
        return getattr(self.resolve(), name)

    def __call__(self, *args: Any) -> Any:
        return self.resolve()(*args)

    def __repr__(self) -> str:
        return f"{self.module}.{self.attribute}" if self.attribute else self.module

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Name) and repr(self) == repr(other)

    def __hash__(self) -> int:
        return hash(repr(self))

    def described(self, description: Description) -> bytes:
        return pack("name", repr(self).encode())


cuda: Any = Name("numba.cuda")
types: Any = Name("numba.cuda.types")
float32, int32, int64, uint32, uint64 = (
    Name("numba.cuda.types", t) for t in ("float32", "int32", "int64", "uint32", "uint64")
)

# for intrinsics
intrinsic: Any = Name("numba.cuda.extending", "intrinsic")
ir: Any = Name("llvmlite.ir")


@dataclass(frozen=True)
class Deferred:
    """`factory(*args)`, for when a kernel is compiled."""

    factory: Callable[..., Any]
    args: tuple[Any, ...]

    def described(self, description: Description) -> bytes:
        return pack("deferred", description.of(self.factory), description.of(self.args))


def deferred(factory: Callable[..., Any]) -> Callable[..., Any]:
    """The factory, made to return a placeholder of what it would make. Its arguments are positional and hashable."""

    @functools.wraps(factory)
    def place(*args: Any) -> Deferred:
        return Deferred(factory, args)

    return place


@deferred
def device(fn: Callable[..., Any]) -> Any:
    """A device function. Inlined in numba's own IR: any other kind asks for a current GPU while it is typed."""
    return cuda.jit(device=True, inline="always")(fn)


def materialise(value: Any) -> Any:
    """The value with real objects in the place of names and placeholders; itself if it holds none.

    Nothing is kept from one call to the next: in a notebook, what a function reads may have changed in between.
    """
    return _Materials().of(value)


class _Materials:
    """The real objects of one kernel; equal placeholders share theirs."""

    def __init__(self) -> None:
        self.made: dict[Deferred, Any] = {}
        self.rebuilt: dict[FunctionType, FunctionType] = {}

    def of(self, value: Any) -> Any:
        if isinstance(value, Name):
            return value.resolve()
        if isinstance(value, Deferred):
            if value not in self.made:
                self.made[value] = self.of(value.factory(*map(self.of, value.args)))
            return self.made[value]
        if isinstance(value, FunctionType):
            if value not in self.rebuilt:
                self.rebuilt[value] = self._rebuild(value)
            return self.rebuilt[value]
        if type(value) is tuple:
            made = tuple(map(self.of, value))
            return value if all(m is v for m, v in zip(made, value)) else made
        return value

    def _rebuild(self, fn: FunctionType) -> FunctionType:
        read = {name: fn.__globals__[name] for name in globals_read(fn.__code__) if name in fn.__globals__}
        cells = [cell.cell_contents for cell in fn.__closure__ or ()]
        # Functions stay as they are: numba calls none from a kernel, but device functions.
        made = {name: self.of(v) for name, v in read.items() if not isinstance(v, FunctionType)}
        kept = [v if isinstance(v, FunctionType) else self.of(v) for v in cells]
        if all(v is read[name] for name, v in made.items()) and all(a is b for a, b in zip(kept, cells)):
            return fn
        return _rebuilt(fn, made, kept)


def _rebuilt(fn: FunctionType, names: dict[str, Any], cells: list[Any]) -> FunctionType:
    """The function with these objects behind some of its global names, and in its closure cells."""
    names, closure = {**fn.__globals__, **names}, tuple(map(CellType, cells))
    copy = FunctionType(fn.__code__, names, fn.__name__, fn.__defaults__, closure)
    copy.__kwdefaults__, copy.__qualname__ = fn.__kwdefaults__, fn.__qualname__
    copy.__dict__.update(fn.__dict__)
    return copy


def device_calls(fn: Any) -> Any:
    """A plain function, calling as device functions the plain functions that it finds in its module or closure.

    Those of libraries stay: what numba knows of them, it knows by themselves.
    """

    def of(value: Any) -> Any:
        if value is float_bits:  # whose own text asks for a current GPU while it is typed
            return Name("numba.cuda.libdevice", "float_as_int").resolve()
        if not isinstance(value, FunctionType) or (value.__module__ or "").split(".")[0] in LIBRARIES:
            return value
        return cuda.jit(device=True, inline="always")(device_calls(value))

    read = {name: fn.__globals__[name] for name in globals_read(fn.__code__) if name in fn.__globals__}
    cells = [cell.cell_contents for cell in fn.__closure__ or ()]
    made, kept = {name: of(v) for name, v in read.items()}, [of(v) for v in cells]
    if all(v is read[name] for name, v in made.items()) and all(a is b for a, b in zip(kept, cells)):
        return fn
    return _rebuilt(fn, made, kept)


def with_functions(fn: Any, functions: Mapping[str, Any]) -> Any:
    """The function, with these in the place of the functions of those names of Python's `math`, and of aicf's own modules."""
    module = ModuleType("math")
    module.__dict__.update({**vars(math), **functions})

    def of(value: Any) -> Any:
        if value is math:
            return module
        name = getattr(value, "__name__", "")
        own = isinstance(value, FunctionType) and value.__module__.startswith("aicf.")
        return functions[name] if name in functions and (own or value is getattr(math, name, None)) else value

    names = {n: of(fn.__globals__[n]) for n in globals_read(fn.__code__) if n in fn.__globals__}
    return _rebuilt(fn, names, [of(cell.cell_contents) for cell in fn.__closure__ or ()])
