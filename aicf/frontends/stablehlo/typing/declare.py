"""What an op's rule declares: operands, attributes, bodies and results, and how what is given is held against that."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from . import types as ty
from .records import KINDS
from .types import TOKEN, Other, Tuple, Type
from .values import ArrayAttribute, Attribute, Case, Dense, Float, Int, Items, Plain, Record, Text


@dataclass(frozen=True)
class Kind:
    """Types that an operand or a result may have."""

    said: str
    elements: frozenset[str] = ty.ALL
    rank: int | None = None
    static: bool = False
    bounded: bool = False  # or not static, if one dimension is open and has a bound
    token: bool = False  # also
    tuples: bool = False  # also

    def accepts(self, type: Type) -> bool:
        if isinstance(type, Other):
            return self.token and type == TOKEN
        if isinstance(type, Tuple):
            return self.tuples and all(self.accepts(part) for part in type.types)
        if type.element not in self.elements or self.rank not in (None, type.rank):
            return False
        if not self.static or type.static:
            return True
        return (
            self.bounded
            and type.shape.count(None) == 1
            and sum(n is not None for n in type.bounds or ()) == 1
        )


TENSOR = Kind("a tensor")
FLOATS = Kind("a tensor of floating-point type", ty.FLOAT)
FLOAT_COMPLEX = Kind("a tensor of floating-point or complex type", ty.FLOAT | ty.COMPLEX)
INTS = Kind("a tensor of integer type", ty.INT)
INT_FLOAT = Kind("a tensor of integer or floating-point type", ty.INT | ty.FLOAT)
PREDS = Kind("a tensor of i1", ty.BOOL)
PRED_INT = Kind("a tensor of i1 or integer type", ty.BOOL | ty.INT)
NUMBERS = Kind("a tensor of integer, floating-point or complex type", ty.INT | ty.FLOAT | ty.COMPLEX)
SIGNED_NUMBERS = Kind(
    "a tensor of signed integer, floating-point or complex type", ty.SIGNED | ty.FLOAT | ty.COMPLEX
)
SCALAR = Kind("a 0-dimensional tensor", rank=0)
SCALAR_INT = Kind("a 0-dimensional tensor of integer type", ty.INT, rank=0)
I32 = Kind("a tensor of i32", frozenset({"i32"}))
UI32 = Kind("a tensor of ui32", frozenset({"ui32"}))
SIZES = Kind("a 1-dimensional tensor of integers whose size is known", ty.INT | ty.INDEX, rank=1, static=True)
INDEX_SIZES = Kind("a 1-dimensional tensor of integers", ty.INT | ty.INDEX, rank=1)
INT_FLOAT_COMPLEX_STATIC = Kind(
    "a tensor of integer, floating-point or complex type whose sizes are known",
    ty.INT | ty.FLOAT | ty.COMPLEX,
    static=True,
)
STATIC = Kind("a tensor whose sizes are known", static=True)
STATIC_BOUNDED = Kind(
    "a tensor whose sizes are known, or all but one that has a bound", static=True, bounded=True
)
TOKENS = Kind("a token", frozenset(), token=True)
VALUE = Kind("a tensor or a token", token=True)
NESTED = Kind("a tensor, a token or a tuple of them", token=True, tuples=True)


@dataclass(frozen=True)
class OperandRule:
    """An operand, or any number of them."""

    name: str
    kind: Kind = TENSOR
    many: bool = False
    at: int = 0  # its number among StableHLO's inputs, where that is not its place


@dataclass(frozen=True)
class Attr:
    """An attribute. `form` says how its text is read: see `FORMS`, or an enumeration's or a record's name."""

    name: str
    form: str
    least: int | None = None
    needed: bool = True
    default: Any = None
    at: int = 0
    low: str = ""  # the constraint on its least value, if that is not the input's

    def value(self, attribute: Attribute) -> Any:
        """What rules see of it; Misfit if it is of another kind."""
        made = _read(self.form, attribute)
        if self.least is not None and made < self.least:
            raise Misfit(f"is {made}, expected at least {self.least}", self.low)
        return made


class Misfit(Exception):
    """An attribute that is none of what is declared: why, and the constraint's number if it is another than the input's."""

    def __init__(self, why: str, constraint: str = "") -> None:
        super().__init__(why)
        self.constraint = constraint


def _read(form: str, given: Attribute) -> Any:
    if form in KINDS:
        if isinstance(given, Case) and given.kind == form:
            return given.value
        raise Misfit(f"is no #stablehlo<{form} …>")
    if form in ("dot", "gather", "scatter", "conv", "channel_handle", "dot_algorithm", "result_accuracy"):
        if isinstance(given, Record) and given.kind == form:
            return given
        raise Misfit(f"is no #stablehlo.{form}<…>")
    said, reader = FORMS[form]
    made = reader(given)
    if made is None:
        raise Misfit(f"is no {said}")
    return made


def _sized(width: str) -> Callable[[Attribute], Any]:
    return lambda a: a.value if isinstance(a, Int) and a.type == width else None


def _row(width: str) -> Callable[[Attribute], Any]:
    return lambda a: a.values if isinstance(a, ArrayAttribute) and a.type == width else None


def _precisions(a: Attribute) -> Any:
    if isinstance(a, Items) and all(isinstance(each, Case) and each.kind == "precision" for each in a.values):
        return tuple(each.value for each in a.values if isinstance(each, Case))
    return None


def _elements(a: Attribute) -> Any:
    return a if isinstance(a, Dense) and a.type.element == "i64" else None


FORMS: Mapping[str, tuple[str, Callable[[Attribute], Any]]] = {
    "i64": ("integer of 64 bits, such as 1 : i64", _sized("i64")),
    "i32": ("integer of 32 bits, such as 1 : i32", _sized("i32")),
    "bool": ("true or false", _sized("i1")),
    "f32": ("number of type f32, such as 1.0 : f32", lambda a: a.value if isinstance(a, Float) and a.type == "f32" else None),
    "ints": ("array of i64, such as array<i64: 0, 1>", _row("i64")),
    "bools": ("array of i1, such as array<i1: true>", _row("i1")),
    "elements": ("elements of i64, such as dense<0> : tensor<2x2xi64>", _elements),
    "groups": (
        "elements of i64, or mesh axes",
        lambda a: a if _elements(a) or (isinstance(a, Plain) and a.text.startswith("#stablehlo.replica_group_mesh_axes")) else None,
    ),
    "dense": ("elements, such as dense<0.0> : tensor<2xf32>", lambda a: a if isinstance(a, Dense) else None),
    "text": ("text", lambda a: a.value if isinstance(a, Text) else None),
    "unit": ("unit", lambda a: True if isinstance(a, Plain) and a.kind == "unit" else None),
    "precisions": ("array of #stablehlo<precision …>", _precisions),
}  # fmt: skip


@dataclass(frozen=True)
class Rule:
    """How an op is typed."""

    name: str
    given: tuple[OperandRule | Attr, ...]
    bodies: tuple[str, ...] | None  # their names; None is any number
    results: Kind | tuple[Kind, ...]  # one kind for all, or each one's
    infer: Callable[..., Any]
    same_shape: str = ""  # the constraint that all operands and results have one shape
    same_elements: str = ""  # that they have one element type
    made: str = ""  # that the results are what follows

    @property
    def operands(self) -> tuple[OperandRule, ...]:
        return tuple(each for each in self.given if isinstance(each, OperandRule))

    @property
    def attributes(self) -> tuple[Attr, ...]:
        return tuple(each for each in self.given if isinstance(each, Attr))

    def number(self, each: OperandRule | Attr) -> str:
        return f"I{each.at or self.given.index(each) + 1}"


RULES: dict[str, Rule] = {}


def typed(
    *names: str,
    given: Sequence[OperandRule | Attr] = (),
    bodies: tuple[str, ...] | None = (),
    results: Kind | tuple[Kind, ...] = TENSOR,
    same_shape: str = "",
    same_elements: str = "",
    made: str = "",
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Declare the type rule of ops. The function is given the call, then operands and attributes in their order; it returns the
    results' types, or a list of them."""

    def declare(function: Callable[..., Any]) -> Callable[..., Any]:
        for name in names:
            assert name not in RULES, name
            RULES[name] = Rule(name, tuple(given), bodies, results, function, same_shape, same_elements, made)
        return function

    return declare
