"""A StableHLO module as plain data, whoever parsed it: what the rules see. Nothing of MLIR is in it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from ...types import DType


@dataclass(frozen=True)
class TensorType:
    """A type of the module. `dtype` is None where aicf has no such tensor, and `lacking` says what it lacks."""

    text: str
    shape: tuple[int, ...] = ()
    dtype: DType | None = None
    lacking: str = ""

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True, eq=False)
class Operation:
    """One operation. Operands and results are numbers of values, which are unique within a function."""

    name: str  # "stablehlo.add"
    operands: tuple[int, ...]
    results: tuple[int, ...]
    types: tuple[TensorType, ...]  # of the results
    attrs: Mapping[str, Any] = field(default_factory=dict)
    bodies: tuple[Body, ...] = ()
    where: str = ""  # the line that it comes from, as far as the module says

    def __str__(self) -> str:
        return f"{self.name} -> {', '.join(map(str, self.types))}"


@dataclass(frozen=True, eq=False)
class Body:
    """A region of one block: what it is given, what it does, what it returns."""

    arguments: tuple[int, ...]
    types: tuple[TensorType, ...]
    nodes: tuple[Operation, ...]
    returned: tuple[int, ...]

    def walk(self) -> Iterator[Operation]:
        """All operations, those of inner bodies behind their own."""
        for node in self.nodes:
            yield node
            for body in node.bodies:
                yield from body.walk()


@dataclass(frozen=True, eq=False)
class Function:
    """A function of the module. Names of arguments and results are those that the module gives them, or none."""

    name: str
    body: Body
    arguments: tuple[str, ...]
    results: tuple[str, ...]
    result_types: tuple[TensorType, ...]


@dataclass(frozen=True, eq=False)
class StableModule:
    """Functions by name; `main` is what runs."""

    functions: Mapping[str, Function]
    main: str


def called(node: Operation) -> str | None:
    """The function that an operation stands for: that of a call, the decomposition of a composite."""
    if node.name in ("func.call", "stablehlo.composite"):
        return str(node.attrs["callee" if node.name == "func.call" else "decomposition"])
    return None
