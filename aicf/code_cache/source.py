"""The source of functions and classes as it runs: without comments, docstrings and blank lines, the same for every Python."""

from __future__ import annotations

import ast
import functools
import inspect
import io
import linecache
import textwrap
import tokenize
from bisect import bisect_left
from collections.abc import Iterable
from typing import Any, NamedTuple


def source(value: Any, without: frozenset[str] = frozenset()) -> str:
    """Of a function or a class; `without`: methods of these names. OSError where none can be read."""
    return _source(_Text.of(value), without)


def nodes_of(value: Any) -> tuple[ast.AST, ...]:
    """Of a function or a class: all of its syntax tree."""
    return _nodes_of(_Text.of(value))


class _Text:
    """A class, or the code that functions share which are made in one place, thousands of them."""

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value

    @staticmethod
    def of(value: Any) -> _Text:
        return _Text(getattr(value, "__code__", value))

    def __hash__(self) -> int:
        return id(self.value)

    def __eq__(self, other: object) -> bool:  # equal code may stand in two files
        return isinstance(other, _Text) and self.value is other.value


@functools.cache
def _source(text: _Text, without: frozenset[str]) -> str:
    value = text.value
    module = _module(inspect.getsourcefile(value) or "")
    node = _node_of(text)
    if isinstance(node, ast.Lambda):
        return f"({_segment(module.lines, node)})"
    first, last = _lines(node)
    kept = module.lines[first - 1 : last]
    docs = module.docs[bisect_left(module.docs, (first, 0)) : bisect_left(module.docs, (last + 1, 0))]
    for start, end in (*docs, *_methods(text, without)):
        kept[start - first : end - first + 1] = [""] * (end - start + 1)
    return textwrap.dedent("\n".join(line for line in kept if line.strip()))


def _segment(lines: list[str], node: ast.expr) -> str:
    """As ast.get_source_segment, which splits the whole file for each. Columns count bytes."""
    *before, last = lines[node.lineno - 1 : node.end_lineno]
    text = "\n".join([*before, last.encode()[: node.end_col_offset].decode()])
    return text.encode()[node.col_offset :].decode()


class _Module(NamedTuple):
    """A file is read once, and walked once: thousands of functions are asked for."""

    lines: list[str]  # without comments
    defined: dict[str, list[ast.FunctionDef | ast.ClassDef]]  # by name, outermost first
    lambdas: dict[int, list[ast.Lambda]]  # by line
    docs: list[tuple[int, int]]  # first and last line of docstrings that aren't all that is there, ascending


@functools.cache
def _module(path: str) -> _Module:
    text = "".join(linecache.getlines(path))  # of a notebook's cells, too
    if not text:
        raise OSError(f"no source in {path!r}")
    lines = text.splitlines()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            row, column = token.start
            lines[row - 1] = lines[row - 1][:column].rstrip()
    module = _Module(lines, {}, {}, [])
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            module.defined.setdefault(node.name, []).append(node)
            first = node.body[0]
            if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant) and len(node.body) > 1:
                module.docs.append((first.lineno, first.end_lineno or first.lineno))
        elif isinstance(node, ast.Lambda):
            module.lambdas.setdefault(node.lineno, []).append(node)
    module.docs.sort()
    return module


@functools.cache
def _node_of(text: _Text) -> ast.FunctionDef | ast.ClassDef | ast.Lambda:
    value = text.value
    module = _module(inspect.getsourcefile(value) or "")
    if isinstance(value, type):
        outermost, *inner = value.__qualname__.replace(".<locals>", "").split(".")
        node = next(iter(module.defined.get(outermost, ())))
        for name in inner:
            named = (
                n for n in ast.walk(node) if isinstance(n, ast.ClassDef | ast.FunctionDef) and n.name == name
            )
            node = next(named)
        return node
    code = value
    if code.co_name != "<lambda>":
        named = (n for n in module.defined.get(code.co_name, ()) if isinstance(n, ast.FunctionDef))
        return next(n for n in named if code.co_firstlineno in (n.lineno, _lines(n)[0]))
    places = [(line, column) for line, _, column, _ in code.co_positions() if line and column]

    def covers(node: ast.Lambda) -> int:
        body = node.body
        start, end = (body.lineno, body.col_offset), (body.end_lineno or 0, body.end_col_offset or 0)
        return sum(start <= place < end for place in places)

    lambdas = module.lambdas.get(code.co_firstlineno, [])
    return max(lambdas, key=lambda n: (covers(n), -len(ast.dump(n))))


def _lines(node: Any) -> tuple[int, int]:
    """First and last, decorators among them."""
    return min([node.lineno, *(d.lineno for d in node.decorator_list)]), node.end_lineno


@functools.cache
def _nodes_of(text: _Text) -> tuple[ast.AST, ...]:
    return tuple(ast.walk(_node_of(text)))


def _methods(text: _Text, names: frozenset[str]) -> Iterable[tuple[int, int]]:
    """Lines of the methods of these names, of all classes inside."""
    for node in _nodes_of(text) if names else ():
        if isinstance(node, ast.ClassDef):
            inside = (n for n in node.body if isinstance(n, ast.FunctionDef) and n.name in names)
            yield from map(_lines, inside)
