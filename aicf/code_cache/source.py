"""The syntax of functions and classes, without their own names and those that they read from outside; the same for every Python."""

from __future__ import annotations

import ast
import functools
import inspect
import linecache
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

Path = tuple[str, ...]  # a dotted name


class ImportedName(NamedTuple):
    """As `from module import attribute` has it, of so many packages up; without an attribute, the module itself."""

    level: int
    module: str
    attribute: str | None


class Syntax(NamedTuple):
    """Of a function or a class.

    text     its syntax, without comments, docstrings, annotations, decorators and its own name; `$k` stands for the k-th of `reads`
    reads    the dotted names that come from outside, in the order of their first use
    imports  of names that it imports when it runs
    """

    text: str
    reads: tuple[Path, ...]
    imports: dict[str, ImportedName]


def syntax_of(value: Any, outside: frozenset[str], without: frozenset[str] = frozenset()) -> Syntax:
    """Of a function or a class. OSError where no source can be read.

    outside  the names that come from its module or its closure
    without  methods of these names are left out
    """
    return _syntax_of(_Text(getattr(value, "__code__", value)), outside, without)


class _Text:
    """A class, or the code that functions share which are made in one place, thousands of them."""

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value

    def __hash__(self) -> int:
        return id(self.value)

    def __eq__(self, other: object) -> bool:  # equal code may stand in two files
        return isinstance(other, _Text) and self.value is other.value


@functools.cache
def _syntax_of(text: _Text, outside: frozenset[str], without: frozenset[str]) -> Syntax:
    node = _node_of(text)
    imports = dict(_imports(node))
    writer = _Writer(outside | imports.keys(), without)
    return Syntax(writer.definition(node), tuple(writer.reads), imports)


def _imports(node: ast.AST) -> Iterator[tuple[str, ImportedName]]:
    for found in _statements(node):
        if isinstance(found, ast.ImportFrom):
            for alias in found.names:
                yield alias.asname or alias.name, ImportedName(found.level, found.module or "", alias.name)
        elif isinstance(found, ast.Import):
            for alias in found.names:
                name = alias.name if alias.asname else alias.name.partition(".")[0]
                yield alias.asname or name, ImportedName(0, name, None)


def _statements(node: ast.AST) -> Iterator[ast.AST]:
    """A tree's statements, the outermost first, without the expressions in them: a twentieth of its nodes."""
    ahead = [node]
    for found in ahead:  # which grows
        yield found
        for name in ("body", "orelse", "handlers", "finalbody", "cases"):
            inner = getattr(found, name, None)
            if isinstance(inner, list):
                ahead += inner


class _Writer:
    """Writes a syntax tree, and numbers the names from outside."""

    IGNORED = frozenset({"annotation", "ctx", "kind", "returns", "type_comment"})

    def __init__(self, outside: frozenset[str], without: frozenset[str]) -> None:
        self.outside, self.without = outside, without
        self.reads: dict[Path, int] = {}

    def definition(self, node: ast.FunctionDef | ast.ClassDef | ast.Lambda) -> str:
        """Without the defaults of parameters, which are values by now."""
        if isinstance(node, ast.Lambda | ast.FunctionDef):
            args = [
                getattr(node.args, name) for name in ("posonlyargs", "args", "vararg", "kwonlyargs", "kwarg")
            ]
            return f"({self.of(args)}) {self.of(node.body)}"
        body = [n for n in node.body if getattr(n, "name", None) not in self.without]
        return f"class {self.of(node.bases)} {self.of(body)}"

    def of(self, value: Any) -> str:
        if isinstance(value, list):
            return f"[{' '.join(map(self.of, filter(_runs, value)))}]"
        if not isinstance(value, ast.AST):
            return repr(value)
        if (path := _path(value)) and path[0] in self.outside:
            return f"${self.reads.setdefault(path, len(self.reads))}"
        parts = [
            f"{name}={self.of(field)}"
            for name, field in ast.iter_fields(value)
            if field not in (None, []) and name not in self.IGNORED
        ]
        if isinstance(value, ast.Constant):
            parts = [repr(value.value)]
        return f"{type(value).__name__}({' '.join(parts)})"


def _runs(node: Any) -> bool:
    """Whether a statement does more than import, or say something."""
    says = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    return not says and not isinstance(node, ast.Import | ast.ImportFrom)


def _path(node: ast.AST) -> Path:
    """Of a dotted name; () of anything else."""
    names: list[str] = []
    while isinstance(node, ast.Attribute):
        names.append(node.attr)
        node = node.value
    return (node.id, *reversed(names)) if isinstance(node, ast.Name) else ()


# --- finding the syntax -----------------------------------------------------------------------------------------------


@functools.cache
def _tree(path: str) -> ast.Module:
    """A file is read once: thousands of functions are looked up."""
    text = "".join(linecache.getlines(path))  # of a notebook's cells, too
    if not text:
        raise OSError(f"no source in {path!r}")
    return ast.parse(text)


@functools.cache
def _defined(path: str) -> dict[str, list[ast.FunctionDef | ast.ClassDef]]:
    """By name, the outermost first."""
    defined: dict[str, list[ast.FunctionDef | ast.ClassDef]] = {}
    for node in _statements(_tree(path)):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            defined.setdefault(node.name, []).append(node)
    return defined


@functools.cache
def _lambdas(path: str) -> dict[int, list[ast.Lambda]]:
    """By line."""
    lambdas: dict[int, list[ast.Lambda]] = {}
    for node in ast.walk(_tree(path)):
        if isinstance(node, ast.Lambda):
            lambdas.setdefault(node.lineno, []).append(node)
    return lambdas


def _node_of(text: _Text) -> ast.FunctionDef | ast.ClassDef | ast.Lambda:
    value = text.value
    path = inspect.getsourcefile(value) or ""
    if isinstance(value, type):
        outermost, *inner = value.__qualname__.replace(".<locals>", "").split(".")
        return _named(next(iter(_defined(path).get(outermost, ()))), inner)
    code = value
    if code.co_name != "<lambda>":
        named = (n for n in _defined(path).get(code.co_name, ()) if isinstance(n, ast.FunctionDef))
        lines = ((n, min([n.lineno, *(d.lineno for d in n.decorator_list)])) for n in named)
        return next(n for n, first in lines if code.co_firstlineno in (n.lineno, first))
    places = [(line, column) for line, _, column, _ in code.co_positions() if line and column]

    def covers(node: ast.Lambda) -> int:
        body = node.body
        start, end = (body.lineno, body.col_offset), (body.end_lineno or 0, body.end_col_offset or 0)
        return sum(start <= place < end for place in places)

    lambdas = _lambdas(path).get(code.co_firstlineno, [])
    return max(lambdas, key=lambda n: (covers(n), -len(ast.dump(n))))


def _named(node: Any, names: Iterable[str]) -> Any:
    for name in names:
        inside = (n for n in ast.walk(node) if isinstance(n, ast.ClassDef | ast.FunctionDef))
        node = next(n for n in inside if n.name == name)
    return node
