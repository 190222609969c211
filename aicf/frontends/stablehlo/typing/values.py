"""What MLIR's attributes are, as far as StableHLO's ops have them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from .scanner import Malformed
from .types import RankedTensor

_FEW = 2**20  # elements that are looked at one by one


@dataclass(frozen=True)
class Int:
    value: int
    type: str  # "i64", "index"


@dataclass(frozen=True)
class Float:
    value: float
    type: str


@dataclass(frozen=True)
class Text:
    value: str


@dataclass(frozen=True)
class Items:
    """`[a, b]`"""

    values: tuple[Attribute, ...]


@dataclass(frozen=True)
class ArrayAttribute:
    """`array<i64: 1, 2>`"""

    type: str
    values: tuple[int | float, ...]


@dataclass(frozen=True)
class Dense:
    """`dense<…> : tensor<…>`. `elements` has all elements, or the one that all are; none where they are not integers."""

    type: RankedTensor
    elements: tuple[int, ...]
    splat: bool

    def values(self) -> tuple[int, ...]:
        """The elements, in row-major order; Malformed if they are more than can be looked at."""
        if not self.splat:
            return self.elements
        if self.type.count > _FEW:
            raise Malformed(f"{self.type.count} elements of an attribute are more than are looked at")
        return self.elements * self.type.count


@dataclass(frozen=True)
class Case:
    """A member of one of StableHLO's enumerations."""

    kind: str
    value: str


@dataclass(frozen=True)
class Record:
    """StableHLO's attributes of several fields, such as dimension numbers."""

    kind: str
    fields: Mapping[str, Any] = field(hash=False)

    def ints(self, name: str) -> tuple[int, ...]:
        return tuple(self.fields[name])

    def number(self, name: str) -> int:
        return int(self.fields[name])


@dataclass(frozen=True)
class Plain:
    """`unit`, a symbol, a type, a dictionary, or another dialect's attribute: what it is, and its text."""

    kind: str
    text: str


Attribute = Int | Float | Text | Items | ArrayAttribute | Dense | Case | Record | Plain
