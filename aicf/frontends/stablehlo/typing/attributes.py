"""MLIR's attributes read from text. StableHLO's own are in records.py."""

from __future__ import annotations

import re
from functools import lru_cache

from .records import FLOATING, read_dialect, wrapped
from .scanner import INTEGER, STRING, Malformed, Scanner, number
from .types import RankedTensor, read_type
from .values import ArrayAttribute, Attribute, Dense, Float, Int, Items, Plain, Text

_SYMBOL = re.compile(r'@(?:[\w$.-]+|"(?:[^"\\\n]|\\.)*")(?:::@(?:[\w$.-]+|"[^"\n]*"))*')
_DIALECT = re.compile(r"#[\w$]+(?:\.[\w$]+)*")


@lru_cache(maxsize=4096)
def parsed_attribute(text: str) -> Attribute:
    scanner = Scanner(text)
    made = read_attribute(scanner)
    scanner.end()
    return made


def read_attribute(s: Scanner) -> Attribute:
    with s.within():
        return _attribute(s)


def _attribute(s: Scanner) -> Attribute:
    if (found := s.match(FLOATING)) is not None:
        return Float(float(found.group()), _suffix(s, "f64", "f"))
    if (found := s.match(INTEGER)) is not None:
        return _integer(number(found.group()), _suffix(s, "i64"))
    if (found := s.match(STRING)) is not None:
        if s.take(":"):
            read_type(s)
        return Text(found.group(1))
    if s.sees("["):
        return Items(tuple(read_attribute(s) for _ in s.items("[", "]")))
    if s.sees("{"):
        start = s.pos
        read_dictionary(s)
        return Plain("dictionary", s.text[start : s.pos].strip())
    if (found := s.match(_SYMBOL)) is not None:
        return Plain("symbol", found.group())
    for word, value in (("true", 1), ("false", 0)):
        if s.take(word):
            return Int(value, "i1")
    if s.take("unit"):
        return Plain("unit", "unit")
    if s.take("array"):
        return _row(s)
    if s.take("dense"):
        return _dense(s)
    for word in ("dense_resource", "sparse", "strided", "affine_map", "affine_set", "loc", "distinct"):
        if s.take(word):
            text = s.match(re.compile(r"\[\d+\]")) and ""
            body = s.balanced()
            if s.take(":"):
                read_type(s)
            return Plain(word, f"{text or ''}{body}")
    if (name := s.match(_DIALECT)) is not None:
        return read_dialect(s, name.group())
    return Plain("type", str(read_type(s)))


def read_dictionary(s: Scanner) -> dict[str, Attribute]:
    """`{name = attribute, "name", …}`; a name alone is a unit."""
    made: dict[str, Attribute] = {}
    for _ in s.items("{", "}"):
        quoted = s.match(STRING)
        name = quoted.group(1) if quoted else s.word("an attribute's name")
        if name in made:
            raise Malformed(f"the attribute {name} is given twice")
        made[name] = read_attribute(s) if s.take("=") else Plain("unit", "unit")
    return made


def _suffix(s: Scanner, default: str, begins: str = "") -> str:
    """The type behind a number. A number with a point has a float's type."""
    if not s.take(":"):
        return default
    text = str(read_type(s))
    if begins and re.fullmatch(r"(?:si|ui|i)\d+|index", text):
        raise Malformed(f"a number with a point can't be of type {text}")
    return text


def _integer(value: int, type: str) -> Int | Float:
    found = re.fullmatch(r"(si|ui|i)(\d+)", type)
    if found is None and type != "index":
        raise Malformed(f"an integer can't be of type {type}")
    return Int(wrapped(value, type), type)


def _row(s: Scanner) -> ArrayAttribute:
    with s.within():
        s.expect("<")
        kind = str(read_type(s))
        if not re.fullmatch(r"i(?:1|8|16|32|64)|f32|f64", kind):
            raise Malformed(f"an array has no elements of type {kind}")
        values: list[int | float] = []
        if s.take(":"):
            while True:
                values.append(_element(s, kind))
                if not s.take(","):
                    break
        s.expect(">")
        return ArrayAttribute(kind, tuple(values))


def _element(s: Scanner, kind: str) -> int | float:
    if kind == "i1":
        if s.take("true"):
            return 1
        if s.take("false"):
            return 0
        raise s.wrong("true or false")
    if kind.startswith("f"):
        found = s.match(FLOATING) or s.match(INTEGER)
        if found is None:
            raise s.wrong("a number")
        return float(found.group()) if "x" not in found.group() else 0.0
    return wrapped(s.integer(), kind)


def _dense(s: Scanner) -> Dense:
    s.expect("<")
    literal: object = () if s.sees(">") else _literal(s)
    s.expect(">")
    s.expect(":")
    kind = read_type(s)
    if not isinstance(kind, RankedTensor) or not kind.static:
        raise Malformed(f"dense elements are of a tensor whose sizes are known, not of {kind}")
    if kind.count > 2**63 - 1:
        raise Malformed(f"{kind} has more elements than 64 bits count")
    if isinstance(literal, bytes):
        return _packed(literal, kind)
    splat = not isinstance(literal, tuple)
    flat: list[int] = []
    if splat:
        flat.append(_held(literal, kind.element))
    elif literal == () and kind.count == 0:
        pass
    else:
        _flatten(literal, kind.shape, kind.element, flat, kind)
    return Dense(kind, tuple(flat), splat or (len(flat) == 1 and kind.count == 1))


def _literal(s: Scanner) -> object:
    if s.sees("["):
        return tuple(_literal(s) for _ in s.items("[", "]"))
    if s.sees("("):
        return ("complex", *(_literal(s) for _ in s.items("(", ")")))
    if (found := s.match(STRING)) is not None:
        if not re.fullmatch(r"0x(?:[0-9A-Fa-f]{2})*", found.group(1)):
            raise Malformed("elements in quotation marks are hexadecimal, as 0x…")
        return bytes.fromhex(found.group(1)[2:])
    if (found := s.match(FLOATING)) is not None:
        return float(found.group())
    for word, value in (("true", True), ("false", False)):
        if s.take(word):
            return value
    return s.integer()


def _flatten(
    literal: object, shape: tuple[int | None, ...], element: str, into: list[int], kind: RankedTensor
) -> None:
    complex_ = isinstance(literal, tuple) and literal[:1] == ("complex",)
    if not shape:
        if isinstance(literal, (tuple, bytes)) and not complex_:
            raise Malformed(f"the elements nest deeper than {kind}")
        into.append(_held(literal, element))
        return
    if not isinstance(literal, tuple) or complex_ or len(literal) != shape[0]:
        raise Malformed(f"the elements have another shape than {kind}")
    for each in literal:
        _flatten(each, shape[1:], element, into, kind)


def _held(literal: object, element: str) -> int:
    """An element as an integer of its type; 0 for what is no integer, since no rule looks at it."""
    if isinstance(literal, bool):
        if element != "i1":
            raise Malformed(f"true and false are no elements of type {element}")
        return int(literal)
    if isinstance(literal, int):
        if re.fullmatch(r"(?:si|ui|i)\d+|index", element):
            return wrapped(literal, element)
        return 0
    if isinstance(literal, float) and re.fullmatch(r"(?:si|ui|i)\d+|index", element):
        raise Malformed(f"{literal} is no element of type {element}")
    return 0


def _packed(data: bytes, kind: RankedTensor) -> Dense:
    found = re.fullmatch(r"(u?)i(8|16|32|64)|index", kind.element)
    if found is None:
        return Dense(kind, (0,), True)
    width = int(found.group(2) or 64) // 8
    if len(data) not in (width, width * kind.count):
        raise Malformed(f"{len(data)} bytes of elements for {kind}")
    values = [
        int.from_bytes(data[n : n + width], "little", signed=not found.group(1))
        for n in range(0, len(data), width)
    ]
    return Dense(kind, tuple(values), len(values) == 1)
