"""Attributes: the types they are declared by, what callers may write for them, and what a blob has of them.

A blob has booleans, integers, floats, text and tuples. An element type is in it as its id, a member of an enumeration as its
value, a shape and a body as tuples; rules, references and gradient rules get what was declared.
"""

from __future__ import annotations

import enum
import inspect
import marshal
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from types import UnionType
from typing import Any, get_args

import numpy as np

from .. import near
from ..errors import AttrError, RegistryError
from ..ir import Subgraph
from ..lazy import lazy
from ..types import DType, Shape
from . import numbers

ATTR_TYPES: Mapping[str, Any] = {
    "bool": bool, "int": int, "float": float, "str": str, "tuple": tuple, "Shape": Shape, "DType": DType, "Subgraph": Subgraph,
}  # fmt: skip


@dataclass(frozen=True)
class AttrDecl:
    """type  one of ATTR_TYPES, or an enumeration whose members are all integers or all text"""

    name: str
    type: Any
    default: Any = inspect.Parameter.empty

    @property
    def required(self) -> bool:
        return self.default is inspect.Parameter.empty

    @property
    def optional(self) -> bool:
        """Whether None is a value: the absent one, which equals no number. A blob has id 0 for an absent element type."""
        return self.default is None

    @lazy
    def is_enum(self) -> bool:
        return self.type is not DType and isinstance(self.type, type) and issubclass(self.type, enum.Enum)

    @lazy
    def said(self) -> dict[tuple[type, Any], Any]:
        """What names, values and ids were found to stand for."""
        return {}

    @lazy
    def named(self) -> bool:
        """Whether a blob has it in another form: by a value, an id, a tuple."""
        return self.type in (DType, Subgraph) or self.is_enum

    @property
    def stored(self) -> str:
        """The type that it has in a blob."""
        if self.is_enum:
            return type(_plain(next(iter(self.type)))).__name__
        return (
            "int" if self.type is DType else "tuple" if self.type in (Shape, Subgraph) else self.type.__name__
        )

    @property
    def kind(self) -> str:
        return "Shape" if self.type is Shape else self.type.__name__

    def __str__(self) -> str:
        return f"{self.name}: {self.kind}" + ("" if self.required else f" = {told(self.default)}")


def attribute(op: str, name: str, annotation: Any, default: Any) -> AttrDecl:
    """The declaration of a keyword-only parameter."""
    if isinstance(annotation, UnionType):  # DType | None = None
        annotation = next(kind for kind in get_args(annotation) if kind is not type(None))
    decl = AttrDecl(name, annotation, default)
    if decl.is_enum:
        kinds = {type(_plain(member)) for member in annotation}
        if kinds not in ({int}, {str}):
            raise RegistryError(
                f"{op}: attribute {name} is a {annotation.__name__}", expected="members that are all integers, or all text"
            )  # fmt: skip
    elif annotation not in ATTR_TYPES.values():
        raise RegistryError(f"{op}: attribute {name} needs {', '.join(ATTR_TYPES)}, or an enumeration")
    return decl


def told(value: Any) -> str:
    """A value as text: members of enumerations by their names."""
    if isinstance(value, tuple):
        return f"({', '.join(map(told, value))}{',' * (len(value) == 1)})"
    return value.name if isinstance(value, enum.Enum) else repr(value)


def coerced(op: str, decl: AttrDecl, value: Any) -> Any:
    """What a caller, or a blob, gave for an attribute, as its declared type; AttrError if it is none."""
    if type(value) is decl.type and decl.type is not float:
        return value
    if value is None and decl.optional and not decl.named:
        return None
    if decl.type is Subgraph:
        return _body(value)
    if decl.named:
        kind = type(value)
        if kind is not int and kind is not str:
            return _member(op, decl, value)
        if (kind, value) not in decl.said:  # whatever is written again and again
            decl.said[kind, value] = _member(op, decl, value)
        return decl.said[kind, value]
    if decl.type is Shape:
        return _shape(op, decl, value)
    good = {
        bool: isinstance(value, (bool, np.bool_)),
        int: isinstance(value, (int, np.integer)) and not isinstance(value, bool),
        float: isinstance(value, (int, float, np.integer, np.floating)) and not isinstance(value, bool),
        str: isinstance(value, str),
        tuple: isinstance(value, (tuple, list)),
    }[decl.type]
    if isinstance(value, DType) and decl.type is int:
        return value.id
    if not good:
        expected = f"{decl.kind} or None" if decl.optional else decl.kind
        raise AttrError(f"{op}: attribute {decl.name} is {value!r}", expected=expected)
    if decl.type is float:  # kernels have it as f32
        reason = numbers.why_not(numbers.plain(value), DType.f32)
        if reason:
            raise AttrError(
                f"{op}: attribute {decl.name} is {numbers.told(value)}", expected=f"a number of f32: {reason}",
                hint=numbers.instead(numbers.plain(value), DType.f32),
            )  # fmt: skip
    return decl.type(value)


def _member(op: str, decl: AttrDecl, value: Any) -> Any:
    """An element type or a member of an enumeration: itself, its name, its value or id, or what NumPy calls it."""
    if isinstance(value, decl.type):
        return value
    if decl.optional and (value is None or (_is_int(value) and value == 0)):
        return None
    members = dict(decl.type.__members__)
    if isinstance(value, str):
        known = {_folded(n): m for n, m in members.items()}.get(_folded(value))
        if known is not None:  # a member may be 0
            return known
    if decl.type is DType:
        by_value: dict[Any, Any] = {t.id: t for t in DType}
    else:
        by_value = {_plain(m): m for m in decl.type}
    if (isinstance(value, str) or _is_int(value)) and value in by_value:
        return by_value[value]
    if decl.type is DType and not _is_int(value):
        try:
            return DType.of(value)
        except AttrError:
            pass
    table = near.AICF if decl.type is DType else {}
    hint = near.hint(value, table, members) if isinstance(value, str) else None
    choices = ", ".join([*members, *["None"] * decl.optional])
    raise AttrError(f"{op}: attribute {decl.name} is {value!r}", expected=f"one of {choices}", hint=hint)


def _shape(op: str, decl: AttrDecl, value: Any) -> Shape:
    sizes = (value,) if _is_int(value) else value
    if not isinstance(sizes, (tuple, list)) or not all(map(_is_int, sizes)):
        raise AttrError(f"{op}: attribute {decl.name} is {value!r}", expected="a tuple of sizes")
    return tuple(map(int, sizes))


@lru_cache(maxsize=1024)
def _known_body(written: bytes) -> Subgraph:
    return Subgraph.of(marshal.loads(written))


def _body(packed: Any) -> Subgraph:
    """By its bytes: equal tuples may have 0.0 and -0.0, which are not the same."""
    return _known_body(marshal.dumps(packed, 2)) if isinstance(packed, tuple) else Subgraph.of(packed)


def _is_int(value: Any) -> bool:
    return isinstance(value, (int, np.integer)) and not isinstance(value, bool)


def _folded(name: str) -> str:
    return name.lower().replace("_", "")


def _plain(member: enum.Enum) -> Any:
    value = member.value
    return int(value) if _is_int(value) else value
