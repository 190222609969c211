"""What kernels are made of, as digests: which times belong to today's text of a kernel, and which to an earlier one.

A variant's digest covers the source of all that its `build` reaches within the kernels' packages, and within its own if another package
brings it: bodies, device functions, intrinsics, launch constants, and the values that it was made with, such as a tiling. It does not
cover what the kernel predicts of itself (`cost`), what it accepts, or what compiles it; compilers' versions stand beside times. The ops'
scalar functions that a kernel inlines have digests of their own. Source and not bytecode, since times are taken with one Python and
used with another. Comments and docstrings don't count.
"""

from __future__ import annotations

import ast
import enum
import functools
import importlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import fields, is_dataclass
from hashlib import blake2s
from types import FunctionType, MethodType, ModuleType
from typing import Any

from ..code_cache.digest import Description, Undescribable
from ..code_cache.digest import digest as code_digest
from ..code_cache.source import nodes_of, source
from ..ops import record
from ..ops.schema import schema_of
from ..rows import RegionSpec
from ..rows.steps import expanded
from ..types import OpKind
from .variant import KernelVariant

PACKAGES = ("aicf.cuda_kernels", "aicf.cpu_kernels")
# The way from a body to machine code: recorded as versions, and no part of a kernel.
ROUTE = tuple(
    f"aicf.cuda_kernels.{name}"
    for name in (
        "dsl",
        *(f"compiler.{n}" for n in ("cache", "compile", "engine", "keys", "simulate", "workers")),
    )
)

NOT_BUILT = frozenset(
    {"accepts", "cost", "family", "least", "viable", "workspace"}
)  # methods of a variant's class


def variant_digest(variant: KernelVariant) -> str:
    return digest(variant.build)


def inlined(region: RegionSpec) -> set[str]:
    """Names of the ops that a kernel for the region may inline: its own, and the steps of those that expand."""
    return {op.kind.name for op in (*region.ops, *expanded(region).ops)}


def op_digest(name: str) -> str:
    """Of what kernels inline of an op."""
    return _op_digest(schema_of(name).kind, record.schema_epoch)


@functools.cache
def _op_digest(kind: OpKind, schema_epoch: int) -> str:
    schema = schema_of(kind)
    parts = (schema.scalar, schema.access_fn, schema.constants_fn, schema.special_fn, schema.expand_fn)
    return _hash([digest(part) if part else "" for part in parts])


@functools.cache
def digest(start: Callable[..., Any]) -> str:
    """Of a function and what it reaches: in the kernels' packages and in its own module's."""
    try:
        return _hash(sorted(_reached(start)))
    except (OSError, TypeError, StopIteration, SyntaxError):  # made without a source that can be read
        return _described_code(start)


def _described_code(start: Callable[..., Any]) -> str:
    """Of bytecode, which every Python has its own of; "" of what can't be described."""
    try:
        return code_digest(Description().of(start)).hex()[:12]
    except Undescribable:
        return ""


def _hash(parts: Iterable[str]) -> str:
    return blake2s("\0".join(parts).encode(), digest_size=6).hexdigest()


def _reached(start: Callable[..., Any]) -> set[str]:
    """An entry for each function and class that is reached, and for the values around it."""
    entries: set[str] = set()
    seen: set[Any] = set()
    open_ = [_function(start)]
    own = _package(open_[0].__module__)
    while open_:
        value = open_.pop()
        if value not in seen:
            seen.add(value)
            entry, more = _entry(value, own)
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
def _entry(value: Any, own: str) -> tuple[str, list[Any]]:
    """Of a function or a class: its source and the values that it reads, and the functions and classes among them."""
    more: list[Any] = []
    read = [
        f"{name}={_described(v, more, own)}"
        for name, v in sorted(_read(value, own), key=lambda item: item[0])
    ]
    return f"{_name(value)}\n{source(value, NOT_BUILT)}\n{'; '.join(read)}", more


def _read(value: Any, own: str) -> Iterator[tuple[str, Any]]:
    nodes = nodes_of(value)
    module = importlib.import_module(value.__module__)
    scope = value.__globals__ if isinstance(value, FunctionType) else vars(module)
    if isinstance(value, FunctionType):
        cells = zip(value.__code__.co_freevars, value.__closure__ or ())
        yield from ((name, cell.cell_contents) for name, cell in cells)
        yield "defaults", (value.__defaults__, value.__kwdefaults__)
    for name in {node.id for node in nodes if isinstance(node, ast.Name)}.intersection(scope):
        yield name, scope[name]
        if isinstance(scope[name], ModuleType) and _ours(scope[name].__name__, own):
            yield from _attributes(nodes, name, scope[name])
    for node in nodes:  # imports within a function: bodies are imported where they are built
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
                if isinstance(taken, ModuleType) and _ours(taken.__name__, own):
                    yield from _attributes(nodes, alias.asname or alias.name, taken)


def _attributes(nodes: Iterable[ast.AST], name: str, module: ModuleType) -> Iterator[tuple[str, Any]]:
    for node in nodes:
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == name:
            yield f"{name}.{node.attr}", getattr(module, node.attr, None)


def _described(value: Any, more: list[Any], own: str) -> str:
    """A value in words; functions and classes of kernels by name, and put to `more`."""
    if value is None or isinstance(value, bool | int | float | complex | str | bytes):
        return repr(value)
    if isinstance(value, enum.Enum):
        return f"{_name(type(value))}.{value.name}"
    if isinstance(value, tuple | list):
        return f"({', '.join(_described(v, more, own) for v in value)})"
    if isinstance(value, set | frozenset):
        return f"{{{', '.join(sorted(_described(v, more, own) for v in value))}}}"
    if isinstance(value, dict):
        return f"{{{', '.join(sorted(f'{_described(k, more, own)}: {_described(v, more, own)}' for k, v in value.items()))}}}"
    if isinstance(value, KernelVariant):  # one that is built in the place of another
        return f"{value.id} of {_described(value.build, more, own)}"
    if is_dataclass(value) and not isinstance(value, type):
        parts = (_described(getattr(value, f.name), more, own) for f in fields(value))
        return f"{_described(type(value), more, own)}({', '.join(parts)})"
    if isinstance(value, functools.partial):
        return f"{_described(value.func, more, own)}({_described((value.args, value.keywords), more, own)})"
    bare = _function(value)
    if isinstance(bare, FunctionType | type) and _ours(bare.__module__, own):
        more.append(bare)
    return _name(bare)


def _package(module: str) -> str:
    """Where what a function reaches is its own: a package that brings kernels, as a whole; of aicf, the module; nothing where that is
    among the kernels' packages, so that what their kernels share is read once."""
    if any(f"{module}.".startswith(f"{p}.") for p in PACKAGES):
        return ""
    return module if module.startswith("aicf.") else module.partition(".")[0]


def _ours(module: str | None, own: str) -> bool:
    return module not in ROUTE and any(f"{module}.".startswith(f"{p}.") for p in (*PACKAGES, own))


def _name(value: Any) -> str:
    named = value if isinstance(value, FunctionType | type | ModuleType) else type(value)
    return f"{getattr(named, '__module__', '')}.{getattr(named, '__qualname__', named.__name__)}"
