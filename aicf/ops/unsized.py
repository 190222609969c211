"""Named dimensions inside a type rule: what depends on their size has no answer, rather than one by accident of text.

A name equals itself, and can be handed on into a result. That is all: `n * 2` is no "nn", `n + 1` no error of Python's, and
`n == 5` neither true nor false.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NoReturn

from ..types import TensorSpec


class NoSize(Exception):
    """A type rule asked for what depends on the size of a named dimension."""

    def __init__(self, name: str) -> None:
        self.name = name
        super().__init__(name)


class Unsized(str):
    """A named dimension, while a type rule looks at it."""

    __slots__ = ()

    def _unknown(self, *others: Any) -> NoReturn:
        raise NoSize(str(self))

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Unsized) and str(self) == str(other):
            return True
        raise NoSize(str(self))

    def __ne__(self, other: object) -> bool:
        return not self == other

    __hash__ = str.__hash__


_BINARY = {
    "add",
    "sub",
    "mul",
    "truediv",
    "floordiv",
    "mod",
    "divmod",
    "pow",
    "matmul",
    "lshift",
    "rshift",
    "and",
    "or",
    "xor",
}
_OTHERS = {
    "lt", "le", "gt", "ge", "neg", "pos", "abs", "invert", "int", "float", "index", "round", "ceil", "floor", "trunc", "bool",
    "len", "iter", "getitem", "contains",
}  # fmt: skip
for _name in _BINARY | {f"r{name}" for name in _BINARY} | _OTHERS:
    setattr(Unsized, f"__{_name}__", Unsized._unknown)


def unsized(specs: Sequence[TensorSpec | None]) -> Sequence[TensorSpec | None]:
    """Specs for a type rule; the same objects where no dimension is a name."""
    if not any(isinstance(d, str) for s in specs if s is not None for d in s.shape):
        return specs
    return [
        s if s is None else replace(s, shape=tuple(Unsized(d) if isinstance(d, str) else d for d in s.shape))
        for s in specs
    ]


def plainly(spec: TensorSpec) -> TensorSpec:
    """What a type rule answered, with names as they were given."""
    if not any(isinstance(d, Unsized) for d in spec.shape):
        return spec
    return replace(spec, shape=tuple(str(d) if isinstance(d, Unsized) else d for d in spec.shape))


def broadcast(shapes: Sequence[tuple[Any, ...]]) -> tuple[Any, ...]:
    """The joint shape of shapes of which some dimensions are names; ValueError if there is none. A name beside 1 is the name."""
    rank = max(map(len, shapes), default=0)
    joint = []
    for axis in range(-rank, 0):
        dims = [s[axis] for s in shapes if len(s) >= -axis]
        wide = [d for d in dims if isinstance(d, Unsized) or d != 1]
        first = wide[0] if wide else 1
        if any(first != d for d in wide):  # where that depends on a name, there is no answer
            raise ValueError(f"{first} beside {wide}")
        joint.append(first)
    return tuple(joint)
