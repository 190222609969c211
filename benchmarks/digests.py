"""What a kernel variant is made of, as a digest: which results belong to today's text of a kernel, and which to an earlier one.

A digest covers the source of all that a variant's `build` reaches within the kernels' packages: bodies, device functions, intrinsics,
launch constants, and the values that it was made with, such as a tiling. It does not cover what the kernel predicts of itself
(`cost`), what it accepts, the ops' scalar functions that it inlines, or what compiles it; the compilers' versions are in each result
file. Source and not bytecode, since results are measured with one Python and looked at with another. Comments and docstrings don't
count.
"""

from __future__ import annotations

import ast
import enum
import functools
import importlib
import inspect
import io
import textwrap
import tokenize
from collections.abc import Callable, Iterable, Iterator
from dataclasses import fields, is_dataclass
from hashlib import blake2s
from pathlib import Path
from types import FunctionType, MethodType, ModuleType
from typing import Any

from aicf.dispatch import default_registry
from aicf.registry.variant import KernelVariant

PACKAGES = ("aicf.cuda_kernels", "aicf.cpu_kernels")
# The way from a body to machine code: recorded as versions, and no part of a kernel.
ROUTE = tuple(
    f"aicf.cuda_kernels.{name}"
    for name in ("cache", "compile", "dsl", "engine", "keys", "simulate", "workers")
)
NOT_BUILT = frozenset(
    {"accepts", "cost", "family", "least", "viable", "workspace"}
)  # methods of a variant's class


def digest_of(id: str) -> str | None:
    """Of the variant with this id; None if there is none any more."""
    registry = default_registry()
    return digest(registry.by_id(id).build) if id in registry else None


@functools.cache
def digest(build: Callable[..., Any]) -> str:
    text = "\0".join(sorted(_reached(build)))
    return blake2s(text.encode(), digest_size=6).hexdigest()


def _reached(start: Callable[..., Any]) -> set[str]:
    """An entry for each function and class that is reached, and for the values around it."""
    entries: set[str] = set()
    seen: set[Any] = set()
    open_ = [_function(start)]
    while open_:
        value = open_.pop()
        if value not in seen:
            seen.add(value)
            entry, more = _entry(value)
            entries.add(entry)
            open_ += more
    return entries


def _function(value: Any) -> Any:
    """What a cache, a partial or a decorator stands before."""
    while True:
        if isinstance(value, functools.partial):
            value = value.func
        elif isinstance(value, MethodType):
            value = value.__func__
        elif hasattr(value, "__wrapped__"):
            value = value.__wrapped__
        else:
            return value


@functools.cache
def _entry(value: Any) -> tuple[str, list[Any]]:
    """Of a function or a class: its source and the values that it reads, and the functions and classes among them."""
    more: list[Any] = []
    read = [f"{name}={_described(v, more)}" for name, v in sorted(_read(value), key=lambda item: item[0])]
    return f"{_name(value)}\n{source(value)}\n{'; '.join(read)}", more


def _read(value: Any) -> Iterator[tuple[str, Any]]:
    tree = _node(value)
    module = importlib.import_module(value.__module__)
    scope = value.__globals__ if isinstance(value, FunctionType) else vars(module)
    if isinstance(value, FunctionType):
        cells = zip(value.__code__.co_freevars, value.__closure__ or ())
        yield from ((name, cell.cell_contents) for name, cell in cells)
        yield "defaults", (value.__defaults__, value.__kwdefaults__)
    for name in {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)} & set(scope):
        yield name, scope[name]
        if isinstance(scope[name], ModuleType) and _ours(scope[name].__name__):
            yield from _attributes(tree, name, scope[name])
    for node in ast.walk(tree):  # imports within a function: bodies are imported where they are built
        if isinstance(node, ast.ImportFrom):
            where = "." * node.level + (node.module or "")
            package = value.__module__ if hasattr(module, "__path__") else value.__module__.rpartition(".")[0]
            found = importlib.import_module(where, package)
            for alias in node.names:
                if hasattr(found, alias.name):
                    taken = getattr(found, alias.name)
                else:
                    taken = importlib.import_module(f"{found.__name__}.{alias.name}")
                yield alias.name, taken
                if isinstance(taken, ModuleType) and _ours(taken.__name__):
                    yield from _attributes(tree, alias.asname or alias.name, taken)


def _attributes(tree: ast.AST, name: str, module: ModuleType) -> Iterator[tuple[str, Any]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == name:
            yield f"{name}.{node.attr}", getattr(module, node.attr, None)


def _described(value: Any, more: list[Any]) -> str:
    """A value in words; functions and classes of kernels by name, and put to `more`."""
    if value is None or isinstance(value, bool | int | float | complex | str | bytes):
        return repr(value)
    if isinstance(value, enum.Enum):
        return f"{_name(type(value))}.{value.name}"
    if isinstance(value, tuple | list):
        return f"({', '.join(_described(v, more) for v in value)})"
    if isinstance(value, set | frozenset):
        return f"{{{', '.join(sorted(_described(v, more) for v in value))}}}"
    if isinstance(value, dict):
        return f"{{{', '.join(sorted(f'{_described(k, more)}: {_described(v, more)}' for k, v in value.items()))}}}"
    if isinstance(value, KernelVariant):  # one that is built in the place of another
        return f"{value.id} of {_described(value.build, more)}"
    if is_dataclass(value) and not isinstance(value, type):
        parts = (_described(getattr(value, f.name), more) for f in fields(value))
        return f"{_described(type(value), more)}({', '.join(parts)})"
    if isinstance(value, functools.partial):
        return f"{_described(value.func, more)}({_described((value.args, value.keywords), more)})"
    bare = _function(value)
    if isinstance(bare, FunctionType | type) and _ours(bare.__module__):
        more.append(bare)
    return _name(bare)


def _ours(module: str | None) -> bool:
    return module not in ROUTE and any(f"{module}.".startswith(f"{p}.") for p in PACKAGES)


def _name(value: Any) -> str:
    named = value if isinstance(value, FunctionType | type | ModuleType) else type(value)
    return f"{getattr(named, '__module__', '')}.{getattr(named, '__qualname__', named.__name__)}"


@functools.cache
def source(value: Any) -> str:
    """Without comments, docstrings, blank lines and what only a choice needs; the same for every Python."""
    text, lines, _ = _module(inspect.getsourcefile(value) or "")
    node = _node(value)
    if isinstance(node, ast.Lambda):
        return f"({ast.get_source_segment(text, node)})"
    first, last = _lines(node)
    kept = lines[first - 1 : last]
    for start, end in _left_out(node):
        kept[start - first : end - first + 1] = [""] * (end - start + 1)
    return textwrap.dedent("\n".join(line for line in kept if line.strip()))


@functools.cache
def _module(path: str) -> tuple[str, list[str], ast.AST]:
    """A file's text, its lines without comments, and its tree."""
    text = Path(path).read_text(encoding="utf-8")
    lines = text.splitlines()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            row, column = token.start
            lines[row - 1] = lines[row - 1][:column].rstrip()
    return text, lines, ast.parse(text)


@functools.cache
def _node(value: Any) -> ast.FunctionDef | ast.ClassDef | ast.Lambda:
    _, _, tree = _module(inspect.getsourcefile(value) or "")
    if isinstance(value, type):
        node: Any = tree
        for name in value.__qualname__.replace(".<locals>", "").split("."):
            named = (
                n for n in ast.walk(node) if isinstance(n, ast.ClassDef | ast.FunctionDef) and n.name == name
            )
            node = next(named)
        return node
    code = value.__code__
    if code.co_name != "<lambda>":
        named = (n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef) and n.name == code.co_name)
        return next(n for n in named if code.co_firstlineno in (n.lineno, _lines(n)[0]))
    places = [(line, column) for line, _, column, _ in code.co_positions() if line and column]

    def covers(node: ast.Lambda) -> int:
        body = node.body
        start, end = (body.lineno, body.col_offset), (body.end_lineno or 0, body.end_col_offset or 0)
        return sum(start <= place < end for place in places)

    lambdas = [n for n in ast.walk(tree) if isinstance(n, ast.Lambda) and n.lineno == code.co_firstlineno]
    return max(lambdas, key=lambda n: (covers(n), -len(ast.dump(n))))


def _lines(node: Any) -> tuple[int, int]:
    """First and last, decorators among them."""
    return min([node.lineno, *(d.lineno for d in node.decorator_list)]), node.end_lineno


def _left_out(tree: ast.AST) -> Iterable[tuple[int, int]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            first = node.body[0]
            if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant) and len(node.body) > 1:
                yield first.lineno, first.end_lineno or first.lineno
        if isinstance(node, ast.ClassDef):
            inside = (n for n in node.body if isinstance(n, ast.FunctionDef) and n.name in NOT_BUILT)
            yield from map(_lines, inside)
