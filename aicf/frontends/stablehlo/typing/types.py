"""MLIR's types, as far as StableHLO's ops have them: read from text, compared, written as MLIR writes them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from .scanner import Malformed, Scanner, number

Dim = int | None  # None is a size that is not known
MAX_SIZE = 2**63 - 1
_DIMENSION = re.compile(r"(\d+|\?)\s*x")
_SCALAR = re.compile(
    r"(?:si|ui|i)[1-9]\d{0,8}(?![\w$.])|index(?![\w$.])|none(?![\w$.])|(?:tf|bf|f)\d+(?:E\d+M\d+)?[A-Z0-9]*(?![\w$.])"
)
_DIALECT = re.compile(r"![\w$]+(?:\.[\w$.]+)?")
_WIDTHS = (2, 4, 8, 16, 32, 64)

BOOL = frozenset({"i1"})
SIGNED = frozenset(f"i{n}" for n in _WIDTHS)
UNSIGNED = frozenset(f"ui{n}" for n in _WIDTHS)
INT = SIGNED | UNSIGNED
FLOAT = frozenset(
    [
        "f4E2M1FN",
        "f6E2M3FN",
        "f6E3M2FN",
        "f8E3M4",
        "f8E4M3",
        "f8E4M3FN",
        "f8E4M3FNUZ",
        "f8E4M3B11FNUZ",
        "f8E5M2",
        "f8E5M2FNUZ",
        "f8E8M0FNU",
        "f16",
        "bf16",
        "f32",
        "f64",
    ]
)
COMPLEX = frozenset({"complex<f32>", "complex<f64>"})
ALL = BOOL | INT | FLOAT | COMPLEX
INDEX = frozenset({"index"})
_FLOATS = FLOAT | {"tf32", "f80", "f128"}  # that MLIR has


@dataclass(frozen=True)
class RankedTensor:
    """A ranked tensor. `bounds` is None where none are given, else a bound or None for each dimension."""

    shape: tuple[Dim, ...]
    element: str
    bounds: tuple[Dim, ...] | None = None

    @property
    def rank(self) -> int:
        return len(self.shape)

    @property
    def static(self) -> bool:
        return None not in self.shape

    @property
    def count(self) -> int:
        """Number of elements, of a shape that is known; one more than 64 bits hold where they are more."""
        made = 0 if 0 in self.shape else 1
        for n in self.shape:
            made = min(made * (n or 1), MAX_SIZE + 1)
        return made

    def bound(self, dim: int) -> Dim:
        return None if self.bounds is None else self.bounds[dim]

    def of(self, element: str) -> RankedTensor:
        return replace(self, element=element)

    def __str__(self) -> str:
        dims = "".join(f"{shown(n)}x" for n in self.shape)
        bounds = "" if self.bounds is None else f", #stablehlo.bounds<{', '.join(map(shown, self.bounds))}>"
        return f"tensor<{dims}{self.element}{bounds}>"


@dataclass(frozen=True)
class Tuple:
    types: tuple[Type, ...]

    def __str__(self) -> str:
        return f"tuple<{', '.join(map(str, self.types))}>"


@dataclass(frozen=True)
class Other:
    """A type that is known by its text alone: a token, a buffer, an unranked tensor, a scalar, another dialect's."""

    text: str

    def __str__(self) -> str:
        return self.text


Type = RankedTensor | Tuple | Other
TOKEN = Other("!stablehlo.token")


class Lacking(Exception):
    """A type or attribute that aicf has no rules for, such as quantized ones."""


def shown(dim: Dim) -> str:
    return "?" if dim is None else str(dim)


def tensor(shape: Sequence[Dim], element: str, bounds: Sequence[Dim] | None = None) -> RankedTensor:
    """A result's type: where no dimension has a bound, there are none."""
    known = bounds is not None and any(n is not None for n in bounds)
    return RankedTensor(tuple(shape), element, tuple(bounds) if known and bounds is not None else None)


# --- text ---------------------------------------------------------------------------------------------------------------


@lru_cache(maxsize=4096)
def parsed(text: str) -> Type:
    """The type of a text; Malformed says where it is none."""
    scanner = Scanner(text)
    made = read_type(scanner)
    scanner.end()
    return made


def read_type(s: Scanner) -> Type:
    with s.within():
        if s.sees("tensor<"):
            return _tensor(s)
        if s.sees("tuple<"):
            s.take("tuple")
            return Tuple(tuple(read_type(s) for _ in s.items("<", ">")))
        return Other(_other(s))


def _other(s: Scanner) -> str:
    if (found := s.match(_SCALAR)) is not None:
        if not _exists(found.group()):
            raise Malformed(f"{found.group()} is no type of MLIR's")
        return found.group()
    if s.take("complex"):
        s.expect("<")
        part = _other(s)
        if not re.fullmatch(r"(?:si|ui|i)\d+", part) and part not in _FLOATS:
            raise Malformed(f"complex<{part}> has no number for its parts")
        s.expect(">")
        return f"complex<{part}>"
    if (name := s.match(_DIALECT)) is not None:
        text = name.group() + (s.balanced() if s.sees("<") else "")
        if text.startswith("!quant."):
            raise Lacking(f"quantized element types such as {text}")
        return text
    for word in ("vector", "memref"):
        if s.sees(word + "<"):
            s.take(word)
            return word + s.balanced()
    raise s.wrong("a type")


def _exists(scalar: str) -> bool:
    width = re.fullmatch(r"(?:si|ui|i)(\d+)", scalar)
    return int(width.group(1)) < 2**24 if width else scalar in _FLOATS or scalar in ("index", "none")


def _tensor(s: Scanner) -> Type:
    start = s.pos
    s.take("tensor")
    if s.text.startswith("<*", s.pos):
        s.balanced()
        return Other(s.text[start : s.pos].strip())
    s.expect("<")
    shape: list[Dim] = []
    while (found := s.match(_DIMENSION)) is not None:
        shape.append(size(found.group(1)))
    element = _other(s)
    if element == "none":
        raise Malformed("a tensor has no elements of type none")
    bounds = _bounds(s) if s.take(",") else None
    s.expect(">")
    if bounds is not None:
        if len(bounds) != len(shape):
            raise Malformed(f"{len(bounds)} bounds of a tensor with {len(shape)} dimensions")
        for dim, (n, bound) in enumerate(zip(shape, bounds)):
            if n is not None and bound is not None:
                raise Malformed(
                    f"dimension {dim} has the size {n}, so it can't have the bound {bound}: write ? there"
                )
    return RankedTensor(tuple(shape), element, bounds)


def size(text: str) -> Dim:
    if text == "?":
        return None
    found = number(text)
    if found > MAX_SIZE:
        raise Malformed(f"the dimension {text} is larger than 64 bits hold")
    return found


def _bounds(s: Scanner) -> tuple[Dim, ...]:
    if s.take("#stablehlo.type_extensions"):
        s.expect("<")
        s.expect("bounds")
        s.expect("=")
        bounds = tuple(_bound(s) for _ in s.items("[", "]"))
        s.expect(">")
        return bounds
    if s.take("#stablehlo.bounds"):
        return tuple(_bound(s) for _ in s.items("<", ">"))
    raise Lacking("tensors with an encoding that is no #stablehlo.bounds")


def _bound(s: Scanner) -> Dim:
    return None if s.take("?") else size(str(s.integer()))


# --- what fits what -----------------------------------------------------------------------------------------------------


def fits(a: Dim, b: Dim) -> bool:
    """Whether two sizes may be one: either is unknown, or they are equal."""
    return a is None or b is None or a == b


def shapes_fit(a: Sequence[Dim], b: Sequence[Dim]) -> bool:
    return len(a) == len(b) and all(map(fits, a, b))


def all_fit(shapes: Sequence[Sequence[Dim]]) -> bool:
    """Whether there is one shape that all of them may be."""
    if len({len(shape) for shape in shapes}) > 1:
        return False
    return all(len({n for n in sizes if n is not None}) <= 1 for sizes in zip(*shapes))


def compatible(a: Type, b: Type) -> bool:
    """Whether a value of one type may be of the other: E6, with bounds."""
    if isinstance(a, RankedTensor) and isinstance(b, RankedTensor):
        return a.element == b.element and shapes_fit(a.shape, b.shape) and _bounded(a, b) and _bounded(b, a)
    return (a.element if isinstance(a, RankedTensor) else a) == (
        b.element if isinstance(b, RankedTensor) else b
    )


def all_compatible(a: Sequence[Type], b: Sequence[Type]) -> bool:
    return len(a) == len(b) and all(map(compatible, a, b))


def _bounded(a: RankedTensor, b: RankedTensor) -> bool:
    """No size of a is beyond a bound of b."""
    return b.bounds is None or all(
        bound is None or n is None or n <= bound for n, bound in zip(a.shape, b.bounds)
    )


def narrower(a: tuple[Dim, Dim], b: tuple[Dim, Dim], dim: int) -> tuple[Dim, Dim]:
    """The size and bound of a dimension that is both: the size that is known, the smaller of two bounds. Malformed if it can't be both."""
    if a[0] is None and b[0] is None:
        bounds = [n for n in (a[1], b[1]) if n is not None]
        return None, min(bounds, default=None)
    if not fits(a[0], b[0]):
        raise Malformed(f"sizes {a[0]} and {b[0]} of dimension {dim} differ")
    made = a[0] if a[0] is not None else b[0]
    bound = a[1] if a[1] is not None else b[1]
    if bound is not None and made is not None and made > bound:
        raise Malformed(f"the size {made} of dimension {dim} is beyond the bound {bound}")
    return made, None


def wider(a: tuple[Dim, Dim], b: tuple[Dim, Dim], dim: int) -> tuple[Dim, Dim]:
    """The size and bound of a dimension that is either of two: a size both have, else the larger of what bounds them."""
    if a[0] is not None and b[0] is not None:
        if a[0] != b[0]:
            raise Malformed(f"sizes {a[0]} and {b[0]} of dimension {dim} differ")
        return a[0], None
    limits = [n if n is not None else bound for n, bound in (a, b)]
    return (None, None) if None in limits else (None, max(n for n in limits if n is not None))


def joined(types: Sequence[RankedTensor], rule: type | object = narrower) -> RankedTensor:
    """One type of several by a rule for dimensions. As StableHLO has it, bounds are kept only where the first type has any."""
    first = types[0]
    for other in types[1:]:
        if other.rank != first.rank:
            raise Malformed(f"ranks {first.rank} and {other.rank} differ")
    dims = [(n, first.bound(d)) for d, n in enumerate(first.shape)]
    for other in types[1:]:
        dims = [rule(pair, (other.shape[d], other.bound(d)), d) for d, pair in enumerate(dims)]  # type: ignore[operator]
    bounds = [bound for _, bound in dims] if first.bounds is not None else None
    return tensor([n for n, _ in dims], first.element, bounds)
