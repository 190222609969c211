"""The Python that a kernel is made of: its body, and every function that the body reaches, each with the values it was made with."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import textwrap
from collections.abc import Iterator
from pathlib import Path
from types import FunctionType, MethodType
from typing import Any

from ...code_cache.digest import LIBRARIES, globals_read
from ...registry.blame import definition
from ...text import shortened

MACHINERY = ("aicf.code_cache.", "aicf.cuda_kernels.dsl")  # what a body is made with, no part of it
SHOWN = 160  # characters of a value
HEAD = """# What the kernel was compiled from, to be read: the body first, then what it calls. `name = value` lines above a function are what
# it holds in its closure and defaults, and what is constant in the machine code."""


def python_of(body: Any) -> str:
    parts = {
        "\n".join([f"# --- {definition(function)}", *_holds(function), "", _source(function)]): None
        for function in _reached(body)
        if not (function.__module__ or "").startswith(MACHINERY)
    }
    return "\n\n\n".join([HEAD, *parts])


def _source(function: FunctionType) -> str:
    try:
        return textwrap.dedent(inspect.getsource(function)).rstrip()
    except (OSError, TypeError, SyntaxError):
        return "# its source is in no file"


def _holds(function: FunctionType) -> Iterator[str]:
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or ()):
        try:
            yield f"# {name} = {_shown(cell.cell_contents)}"
        except ValueError:
            yield f"# {name} is empty"
    defaults = function.__defaults__ or ()
    names = function.__code__.co_varnames[: function.__code__.co_argcount]
    for name, value in zip(names[len(names) - len(defaults) :], defaults):
        yield f"# {name} = {_shown(value)}"


def _shown(value: Any) -> str:
    if isinstance(value, FunctionType):
        return (
            f"{value.__qualname__}, {Path(value.__code__.co_filename).name}:{value.__code__.co_firstlineno}"
        )
    if _is_deferred(value):
        return f"{value.factory.__name__}({', '.join(map(_shown, value.args))})"
    if isinstance(value, tuple):
        text = f"({', '.join(map(_shown, value))}{',' * (len(value) == 1)})"
    else:
        text = repr(value)
    return shortened(text.replace("\n", " "), SHOWN)


def _is_deferred(value: Any) -> bool:
    """aicf.cuda_kernels.dsl's, which is imported where there are kernels alone."""
    return {"factory", "args"} <= set(getattr(type(value), "__dataclass_fields__", ()))


def _reached(value: Any) -> Iterator[FunctionType]:
    """Functions that are no library's, each once, callers before what they call."""
    seen: set[int] = set()
    alive = []  # ids stay taken
    todo = [value]
    while todo:
        value = todo.pop(0)
        if id(value) in seen:
            continue
        seen.add(id(value))
        alive.append(value)
        if isinstance(value, FunctionType) and (value.__module__ or "").split(".")[0] not in LIBRARIES:
            yield value
        todo += _parts(value)


def _parts(value: Any) -> Iterator[Any]:
    """What a function, or a value that stands for some, is made of."""
    if isinstance(value, FunctionType):
        if (value.__module__ or "").split(".")[0] in LIBRARIES:
            return
        for cell in value.__closure__ or ():
            try:
                yield cell.cell_contents
            except ValueError:  # not filled yet
                continue
        yield from value.__defaults__ or ()
        yield from (value.__globals__[n] for n in globals_read(value.__code__) if n in value.__globals__)
    elif isinstance(value, MethodType):
        yield value.__func__
        yield value.__self__
    elif isinstance(value, functools.partial):
        yield from (value.func, *value.args, *value.keywords.values())
    elif isinstance(value, (tuple, list, frozenset)):
        yield from value
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        yield from (getattr(value, f.name) for f in dataclasses.fields(value))
    elif isinstance(getattr(value, "__wrapped__", None), FunctionType):  # functools.cache
        yield value.__wrapped__
    elif isinstance(getattr(value, "py_func", None), FunctionType):  # numba's
        yield value.py_func
