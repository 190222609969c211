"""Whose line it was: where an error in an op's or a kernel's own Python arose."""

from __future__ import annotations

import builtins
import dis
import inspect
import re
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any

_PACKAGE = str(Path(__file__).parents[1])
_LIBRARIES = ("numba", "numba_cuda", "llvmlite", "numpy", "ml_dtypes")


def told(error: BaseException, lines: int = 6) -> str:
    """An error's type and the beginning of its text: numba's list every overload there is."""
    text = [line for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: " + "\n    ".join(text[:lines] + ["…"] * (len(text) > lines))


def place(error: BaseException, function: Any) -> str:
    """file:line of what went wrong while a function ran or was compiled; where it is defined if nothing is nearer."""
    for code, line, _ in unknown_names(function):
        return f"{code.co_filename}:{line}, in {code.co_name}"
    at: BaseException | None = error
    while at is not None:
        loc = getattr(at, "loc", None)  # numba's
        if loc is not None and _is_source(loc.filename):
            return f"{loc.filename}:{loc.line}"
        at = at.__cause__ or at.__context__
    source = getattr(getattr(getattr(function, "func", function), "__code__", None), "co_filename", "")
    if found := re.search(rf"\b{re.escape(Path(source).name)}:(\d+)", str(error)) if source else None:
        return f"{source}:{found[1]}"  # numba's, inside its message
    frames = inspect.getinnerframes(error.__traceback__) if error.__traceback__ else []
    for frame in reversed(frames):
        own = frame.filename == source or not frame.filename.startswith(_PACKAGE)
        if own and _is_source(frame.filename):
            return f"{frame.filename}:{frame.lineno}, in {frame.function}"
    return definition(function)


def definition(function: Any) -> str:
    """file:line where a function is defined."""
    function = getattr(function, "func", function)  # a partial's
    code = getattr(getattr(function, "py_func", function), "__code__", None)
    return f"{code.co_filename}:{code.co_firstlineno}, in {code.co_name}" if code else repr(function)


def _is_source(filename: str) -> bool:
    parts = Path(filename).parts
    return filename.endswith(".py") and not any(library in parts for library in _LIBRARIES)


def unknown_names(function: Any, seen: set[CodeType] | None = None) -> Iterator[tuple[CodeType, int, str]]:
    """(code, line, name) of each name that a kernel's body, or a function it calls, reads and that is nowhere: a NameError of
    the compiler's, which does not say where."""
    seen = set() if seen is None else seen
    function = function.func if isinstance(function, partial) else function
    if not isinstance(function, FunctionType):
        fields = getattr(type(function), "__dataclass_fields__", ())
        parts = function.args if "factory" in fields else ()  # deferred: what it will be made of
        for part in parts if "steps" not in fields else [step[0] for step in function.steps]:  # an Expression
            yield from unknown_names(part, seen)
        return
    code = function.__code__
    if code in seen or not _is_source(code.co_filename):
        return
    seen.add(code)
    line = code.co_firstlineno
    value: Any = None
    for i in dis.get_instructions(code):
        line = i.positions.lineno if i.positions and i.positions.lineno else line
        if i.opname == "LOAD_GLOBAL":
            value = function.__globals__.get(i.argval, vars(builtins).get(i.argval, _NOWHERE))
            if value is _NOWHERE:
                yield code, line, i.argval
            yield from unknown_names(value, seen)
        elif i.opname in ("LOAD_ATTR", "LOAD_METHOD"):
            module = value.resolve() if hasattr(type(value), "resolve") else value
            if isinstance(module, ModuleType) and not hasattr(module, i.argval):
                yield code, line, i.argval
            value = None
    for cell in function.__closure__ or ():
        yield from unknown_names(cell.cell_contents, seen)


_NOWHERE = object()
