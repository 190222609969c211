"""Bodies of ops, read from MLIR text: arguments, what they return, and each op in them, which is typed in its turn.

MLIR's generic form is read whole. Of the short forms those of elementwise ops, comparisons, constants, slices, products and what has its
attributes as `name = value` are; of another one the types are taken as they are written.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from .attributes import parsed_attribute, read_attribute, read_dictionary
from .scanner import STRING, Malformed, Scanner
from .types import RankedTensor, Type, read_type
from .values import ArrayAttribute, Attribute, Case, Plain

_VALUE = re.compile(r"%(?:\d+|[A-Za-z_$.-][\w$.-]*)(?:#\d+)?(?![\w$])")
_LABEL = re.compile(r"\^[\w$.-]*")
_OPNAME = re.compile(r"[A-Za-z_][\w$]*(?:\.[A-Za-z_][\w$-]*)+")
_PART = re.compile(r"\s*(\d+)\s*:\s*(\d+)(?:\s*:\s*(\d+))?\s*")
_SHORT_NAMES = {
    "pad": {"low": "edge_padding_low", "high": "edge_padding_high", "interior": "interior_padding"},
    "concatenate": {"dim": "dimension"}, "broadcast_in_dim": {"dims": "broadcast_dimensions"}, "transpose": {"dims": "permutation"},
    "reverse": {"dims": "dimensions"}, "iota": {"dim": "iota_dimension"}, "dynamic_slice": {"sizes": "slice_sizes"},
    "get_dimension_size": {"dim": "dimension"}, "set_dimension_size": {"dim": "dimension"}, "broadcast": {"sizes": "broadcast_sizes"},
}  # fmt: skip
MAX_OPS = 100_000

Check = Callable[
    [str, Sequence[Type], Mapping[str, Attribute], Sequence[Type], "Sequence[TypedBody | None]"], None
]


class UnreadForm(Malformed):
    """A short form whose attributes are not read."""


@dataclass
class TypedBody:
    """A body of one block."""

    arguments: list[Type] = field(default_factory=list)
    returned: list[Type] = field(default_factory=list)


class _BodyReader:
    """One text of bodies. `check` is given each op in them."""

    def __init__(self, scanner: Scanner, check: Check) -> None:
        self.s, self.check, self.count = scanner, check, 0

    def region(self, outer: Mapping[str, Type], braces: bool = True) -> TypedBody | None:
        """A body; None if there is no block."""
        s = self.s
        with s.within():
            if braces:
                s.expect("{")
            values: dict[str, Type] = dict(outer)
            body = TypedBody()
            labelled = s.match(_LABEL) is not None
            if labelled:
                if s.sees("("):
                    for _ in s.items("(", ")"):
                        name = self._value()
                        s.expect(":")
                        body.arguments.append(self._define(values, name, read_type(s), outer))
                        self._location()
                s.expect(":")
            ended = False
            while not (s.take("}") if braces else s.done):
                if s.sees("^"):
                    raise Malformed("a body has more than one block")
                if s.done:
                    raise s.wrong("'}'")
                if ended:
                    raise Malformed("ops stand behind the end of a block")
                ended = self._op(values, body)
            if not ended and not labelled and values.keys() == dict(outer).keys() and not self.count:
                return None
            if not ended:
                raise Malformed("a body does not end with stablehlo.return")
            return body

    def _value(self) -> str:
        found = self.s.match(_VALUE)
        if found is None:
            raise self.s.wrong("a value, such as %0")
        return found.group()

    def _define(
        self, values: dict[str, Type], name: str, type: Type, outer: Mapping[str, Type] | None = None
    ) -> Type:
        if name in values and not (outer is not None and values.get(name) is outer.get(name)):
            raise Malformed(f"{name} is defined twice")
        values[name] = type
        return type

    def _use(self, values: dict[str, Type], name: str, type: Type) -> None:
        """A value's type where it is read. One that no body here defines is of what stands around the op: its type is as said."""
        base = name.partition("#")[0]
        known = values.get(name) if name in values else values.get(base + "#0") if "#" in name else None
        if known is None:
            values[name] = type
        elif known != type:
            raise Malformed(f"{name} is {known}, and used as {type}")

    def _location(self) -> None:
        if self.s.take("loc"):
            self.s.balanced()

    def _op(self, values: dict[str, Type], body: TypedBody) -> bool:
        """One op; whether it ends the block."""
        s = self.s
        self.count += 1
        if self.count > MAX_OPS:
            raise Malformed(f"bodies have more than {MAX_OPS} ops")
        made: list[tuple[str, int]] = []
        if s.sees("%"):
            while True:
                name = self._value()
                made.append((name, s.integer() if s.take(":") else 1))
                if not s.take(","):
                    break
            s.expect("=")
        quoted = s.match(STRING)
        if quoted is not None:
            name, operands, attributes, bodies, types, results = quoted.group(1), *self._generic(values)
        else:
            found = s.match(_OPNAME) or s.match(re.compile("return|call"))
            if found is None:
                raise s.wrong("an op")
            name, start = found.group(), s.pos
            try:
                operands, attributes, bodies, types, results = self._short(name, values)
            except UnreadForm:
                s.pos = start
                operands, attributes, bodies, types = [], {}, [], []
                results = self._written(name, sum(count for _, count in made))
                name = ""  # it is not looked at
        self._location()
        for operand, type in zip(operands, types):
            self._use(values, operand, type)
        if name == "stablehlo.return":
            if made or results:
                raise Malformed("stablehlo.return has no results")
            body.returned = list(types)
            return True
        if name in ("return", "func.return"):
            raise Malformed(f"{name} ends a function; a body ends with stablehlo.return")
        if sum(count for _, count in made) != len(results):
            raise Malformed(
                f"{name} has {len(results)} results, and {sum(count for _, count in made)} names for them"
            )
        if name:
            self.check(name, types, attributes, results, bodies)
        place = 0
        for label, count in made:
            for n in range(count):
                self._define(values, label if count == 1 else f"{label}#{n}", results[place])
                place += 1
        return False

    def _list(self) -> list[str]:
        return [self._value() for _ in self.s.items("(", ")")]

    def _types(self) -> list[Type]:
        if self.s.sees("("):
            return [read_type(self.s) for _ in self.s.items("(", ")")]
        return [read_type(self.s)]

    def _generic(
        self, values: dict[str, Type]
    ) -> tuple[list[str], dict[str, Attribute], list[TypedBody | None], list[Type], list[Type]]:
        """`(%a, %b) <{properties}> ({bodies}) {attributes} : (types) -> types`"""
        s = self.s
        operands = self._list()
        attributes: dict[str, Attribute] = {}
        if s.take("<"):
            attributes.update(read_dictionary(s))
            s.expect(">")
        bodies: list[TypedBody | None] = []
        if s.sees("("):
            for _ in s.items("(", ")"):
                inner = _BodyReader(s, self.check)
                bodies.append(inner.region(values))
                self.count += inner.count
        if s.sees("{"):
            attributes.update(read_dictionary(s))
        s.expect(":")
        types = [read_type(s) for _ in s.items("(", ")")]
        s.expect("->")
        results = self._types()
        if len(types) != len(operands):
            raise Malformed(f"{len(operands)} operands with {len(types)} types")
        return operands, attributes, bodies, types, results

    def _short(
        self, name: str, values: dict[str, Type]
    ) -> tuple[list[str], dict[str, Attribute], list[TypedBody | None], list[Type], list[Type]]:
        s, short = self.s, name.removeprefix("stablehlo.")
        attributes: dict[str, Attribute] = {}
        if short == "constant":
            if s.sees("{"):
                attributes.update(read_dictionary(s))
            value = read_attribute(s)
            attributes["value"] = value
            kind = getattr(value, "type", None)
            if not isinstance(kind, RankedTensor):
                raise UnreadForm("a constant whose elements are not read")
            return [], attributes, [], [], [kind]
        operands: list[str] = []
        while not s.take(":"):
            if operands or attributes:
                s.take(",")
            if s.sees("%"):
                operands.append(self._value())
            elif s.sees("{"):
                attributes.update(read_dictionary(s))
            elif short == "compare" and (found := s.match(re.compile(r"[A-Z]+"))) is not None:
                kind_ = "comparison_type" if "comparison_direction" in attributes else "comparison_direction"
                attributes["compare_type" if kind_ == "comparison_type" else kind_] = Case(
                    kind_, found.group()
                )
            elif short == "slice" and s.sees("["):
                attributes.update(self._range())
            elif short == "dot_general" and s.match(re.compile(r"batching_dims\s*=|contracting_dims\s*=")):
                raise UnreadForm("dot_general")
            elif (found := s.match(re.compile(r"([a-z_]+)\s*="))) is not None:
                attributes[_SHORT_NAMES.get(short, {}).get(found.group(1), found.group(1))] = self._setting()
            else:
                raise UnreadForm(f"this short form of {name} is not read")
        if s.sees("("):
            types = self._types()
            s.expect("->")
            results = self._types()
        else:
            types = [read_type(s)]
            while s.take(","):
                types.append(read_type(s))
            if short == "return":
                results = []
            elif short == "select" and len(types) == 2:
                types, results = [types[0], types[1], types[1]], [types[1]]
            else:
                results = [types[-1]]
                types = types * len(operands) if len(types) == 1 else types
        if len(types) != len(operands):
            raise Malformed(f"{name} has {len(operands)} operands with {len(types)} types")
        return operands, attributes, [], types, results

    def _range(self) -> dict[str, Attribute]:
        """`[0:4, 1:8:2]`, of a slice."""
        found = [_PART.fullmatch(part) for part in self.s.balanced()[1:-1].split(",") if part.strip()]
        if None in found:
            raise Malformed("a slice's range is written as start:limit or start:limit:stride")
        rows = [[int(each or 1) for each in part.groups()] for part in found if part is not None]
        names = ("start_indices", "limit_indices", "strides")
        columns = list(zip(*rows)) or [(), (), ()]
        return {name: ArrayAttribute("i64", tuple(column)) for name, column in zip(names, columns)}

    def _written(self, name: str, count: int) -> list[Type]:
        """The result types that stand behind an op whose short form is not read. It may have bodies behind them."""
        s = self.s
        while not s.take(":"):
            if s.done or s.sees("}"):
                raise Malformed(f"{name} without types")
            if s.text[s.pos] in "([{<":
                s.balanced()
            elif s.match(STRING) is None:
                s.skip(1)
        if s.sees("("):
            self._types()
            s.expect("->")
            types = self._types()
        else:
            types = [read_type(s)]
            while s.take(","):
                types.append(read_type(s))
        if s.take("cond"):
            s.balanced()
            s.expect("do")
            s.balanced()
        if s.take("reducer"):
            while s.sees("("):
                s.balanced()
            s.balanced()
        return types if len(types) == count else types[-1:] if count == 1 else types

    def _setting(self) -> Attribute:
        s = self.s
        if s.sees("["):
            return ArrayAttribute("i64", tuple(s.integer() for _ in s.items("[", "]")))
        made = read_attribute(s)
        return made if not isinstance(made, Plain) else parsed_attribute(made.text)


def read_body(text: str, check: Check) -> TypedBody | None:
    """The body of a text, with or without its braces; None if it is empty."""
    scanner = Scanner(text)
    reader = _BodyReader(scanner, check)
    made = reader.region({}, braces=scanner.sees("{"))
    scanner.end()
    return made


__all__ = ["TypedBody", "read_body"]
