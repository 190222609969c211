"""Ops of the registry: drawn types, shapes, attributes, layouts and values; every kernel that accepts them, against the reference.

An op enrols by its samples. A draw begins with one of them and changes its extents, axes and attributes; what the op's type rule
refuses is drawn again.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import ml_dtypes
import numpy as np

from aicf.errors import AicfError
from aicf.ops.draw import draw as draw_values
from aicf.ops.schema import ELEMENTWISE, OpSchema, schema_of, schemas
from aicf.rows import RegionSpec
from aicf.types import AttrPack, DType, TensorDesc, TensorSpec

from .attributes import changed_attributes
from .bounds import bounds, differs, epsilon
from .devices import Host, device, fresh
from .extents import broadcast_shapes, changed_extents, smaller_extents
from .layouts import LAYOUTS, Laid, laid, poisoned, strayed
from .op_script import script_of
from .seeds import seeded

NAME = "ops"
TRIES, LARGEST = 25, 20_000
VALUES = "plain", "wide", "ties", "special"
STATE = {
    "f32",
    "f32 sum",
    "moment",
    "flag",
    "random state",
}  # constraints of operands that only an op's own values fit
Shape = tuple[int, ...]


@dataclass(frozen=True)
class OpCase:
    """One op on operands that follow from a seed.

    types, shapes, layouts   of each operand; None for one left out
    results                  the layout of every result
    over                     whether results are written over the operands that the op declares for that
    """

    op: str
    types: tuple[DType | None, ...]
    shapes: tuple[Shape | None, ...]
    attrs: tuple[tuple[str, Any], ...]
    layouts: tuple[str, ...]
    results: str = "dense"
    values: str = "plain"
    over: bool = False
    seed: int = 0

    @property
    def schema(self) -> OpSchema:
        return schema_of(self.op)

    def specs(self, where: str = "cpu") -> list[TensorSpec | None]:
        return [
            None if s is None or t is None else TensorSpec(s, t, where)
            for s, t in zip(self.shapes, self.types)
        ]

    def pack(self, where: str = "cpu") -> AttrPack:
        return self.schema.pack(self.schema.normalized(self.specs(where), dict(self.attrs)))

    def inferred(self, where: str = "cpu") -> tuple[TensorSpec, ...]:
        return self.schema.infer(self.specs(where), self.pack(where), where)

    def fits(self) -> bool:
        """Whether the op's rule accepts it, at a size that NumPy computes quickly."""
        try:
            specs = self.inferred()
        except (AicfError, OverflowError):
            return False
        sizes = [math.prod(s) for s in self.shapes if s is not None] + [math.prod(s.shape) for s in specs]
        return max([1, *sizes]) <= LARGEST

    def has_values(self) -> bool:
        """Whether the op draws operands of these shapes: some of its own draws are of few shapes."""
        try:
            return bool(self.operands() or True)
        except (ValueError, IndexError):
            return False

    def operands(self) -> list[Laid | None]:
        """The operands in their memory."""
        rng, schema, made = seeded(self.seed, self.op), self.schema, []
        for decl, dtype, shape, layout in zip(
            schema.declared(len(self.shapes)), self.types, self.shapes, self.layouts
        ):
            if shape is None or dtype is None:
                made.append(None)
                continue
            values = np.asarray(draw_values(schema, decl, dtype, self.shapes, rng))
            if decl.type.name not in STATE:
                values = harder(values, dtype, self.values, schema.domains.get(decl.parameter), schema, rng)
            with np.errstate(all="ignore"):
                made.append(laid(np.asarray(values).astype(dtype.numpy), layout))
        return made

    def __str__(self) -> str:
        given = [
            "None" if s is None else f"{t}{list(s)}" + (f" {y}" if y != "dense" else "")
            for s, t, y in zip(self.shapes, self.types, self.layouts)
        ]
        more = [f"{k}={v}" for k, v in self.attrs]
        more += [f"{self.results} results"] if self.results != "dense" else []
        more += ["in place"] if self.over else []
        return f"{self.op}({', '.join([*given, *more])}), {self.values} values, seed {self.seed}"


def harder(
    values: np.ndarray, dtype: DType, how: str, domain: Any, schema: OpSchema, rng: np.random.Generator
) -> np.ndarray:
    """Values of a sort: of many magnitudes, with ties, with NaN, infinities, the largest and the smallest numbers of the type. Only
    special values leave an op's domain, and only if it is an interval."""
    if how == "plain" or callable(domain) or values.size == 0 or dtype is DType.bool:
        return values
    if dtype.kind == "int":
        info = np.iinfo(dtype.numpy)
        if how != "wide" or domain is not None:
            return values
        return rng.integers(info.min, info.max, values.shape, dtype.numpy, endpoint=True)
    info = ml_dtypes.finfo(dtype.numpy)
    if how == "special" and (domain is None or ELEMENTWISE in schema.traits):
        most, least, normal = float(info.max), float(info.smallest_subnormal), float(info.tiny)
        special = [np.nan, np.inf, -np.inf, 0.0, -0.0, most, -most, least, -least, normal, -normal, 1.0, -1.0]
        if dtype is DType.f8e4m3:
            special = [v for v in special if not np.isinf(v)]
        return np.where(rng.random(values.shape) < 0.2, rng.choice(special, values.shape), values)
    if domain is not None:
        return values
    if how == "wide":
        return np.clip(
            values * 10.0 ** rng.uniform(-4, 4, values.shape), -float(info.max) / 4, float(info.max) / 4
        )
    return np.rint(2 * values)


# --- drawing ----------------------------------------------------------------------------------------------------------


def enrolled() -> list[OpSchema]:
    """Ops with samples and a reference, which are all that have no body."""
    return [s for s in schemas() if s.sample_specs and s.reference_fn is not None]


def draw(rng: np.random.Generator, where: str = "cpu", op: str | None = None) -> OpCase | None:
    """A case of a drawn op, or of this one."""
    schema = schema_of(op) if op else rng.choice(enrolled())
    sample = schema.sample_specs[rng.integers(len(schema.sample_specs))]
    base = OpCase(
        schema.name, types(schema, sample["shapes"], rng), tuple(sample["shapes"]), tuple(sample["attrs"].items()),
        ("dense",) * len(sample["shapes"]), seed=int(rng.integers(2**31)),
    )  # fmt: skip
    for _ in range(TRIES):
        case = base
        if ELEMENTWISE in schema.traits and rng.random() < 0.8:
            case = replace(case, shapes=broadcast_shapes(schema, case.shapes, rng))
        elif rng.random() < 0.9:
            shapes, attrs = changed_extents(case.shapes, dict(case.attrs), rng)
            case = replace(case, shapes=shapes, attrs=tuple(attrs.items()))
        if rng.random() < 0.5:
            attrs = changed_attributes(schema, dict(case.attrs), case.shapes, rng)
            case = replace(case, attrs=tuple(attrs.items()))
        case = replace(
            case, layouts=tuple(layout(rng) for _ in case.shapes), results=str(rng.choice(["dense"] * 4 + ["offset", "padded", "stepped"])),
            values=str(rng.choice(VALUES, p=[0.4, 0.2, 0.15, 0.25])), over=bool(schema.alias and rng.random() < 0.3),
        )  # fmt: skip
        if case.fits() and case.has_values():
            return case
    return None


def layout(rng: np.random.Generator) -> str:
    return "dense" if rng.random() < 0.6 else str(rng.choice(LAYOUTS))


def types(schema: OpSchema, shapes: Any, rng: np.random.Generator) -> tuple[DType | None, ...]:
    """One type for the operands that share theirs, one for each of the others."""
    declared = schema.declared(len(shapes))
    by_id = lambda t: t.id  # noqa: E731
    shared = [d.type.dtypes for d, s in zip(declared, shapes) if d.type.shared and s is not None]
    common = sorted(frozenset.intersection(*shared), key=by_id) if shared else []
    one = common[rng.integers(len(common))] if common else None
    same = one if one is not None else DType.f32
    made: list[DType | None] = []
    for decl, shape in zip(declared, shapes):
        own = sorted(decl.type.dtypes, key=by_id)
        follows = same in decl.type.dtypes and rng.random() < 0.6
        other = same if follows else own[rng.integers(len(own))]
        made.append(None if shape is None else one if decl.type.shared else other)
    return tuple(made)


# --- checking ---------------------------------------------------------------------------------------------------------


def region_of(case: OpCase, operands: list[Laid | None], results: list[Laid], kind: str) -> RegionSpec:
    ins: list[TensorDesc | None] = [None if o is None else o.desc(kind) for o in operands]
    return RegionSpec.single(case.schema.kind, case.pack(kind), ins, [r.desc(kind) for r in results])


def check(case: OpCase, where: str = "cpu") -> str | None:
    """What the first kernel computes that differs from the reference; None if every kernel is right."""
    on, wanted = device(where), Wanted(case, device(where))
    for variant in on.variants(wanted.region):
        try:
            said = wanted.of(variant)
        except Exception as error:
            said = f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
        if said:
            return f"{variant.id}: {said}"
    return None


class Wanted:
    """A case's exact results and their bounds, and what each kernel makes of it."""

    def __init__(self, case: OpCase, on: Host) -> None:
        self.case, self.on, self.given = case, on, case.operands()
        self.types = [s.dtype for s in case.inferred(on.kind)]
        self.shapes = [s.shape for s in case.inferred(on.kind)]
        over = self._over()
        self.outs = [
            None if n in over else poisoned(s, t, case.results)
            for n, (s, t) in enumerate(zip(self.shapes, self.types))
        ]
        self.over = over
        described = [self.given[over[n]] if out is None else out for n, out in enumerate(self.outs)]
        self.region = region_of(case, self.given, described, on.kind)  # type: ignore[arg-type]
        self.exact: list[np.ndarray] | None = None

    def _over(self) -> dict[int, int]:
        """Result -> operand that it is written over, where both are dense and of one type."""
        found: dict[int, int] = {}
        for result, (operand, _) in self.case.schema.alias.items() if self.case.over else ():
            t = self.given[operand] if operand < len(self.given) else None
            spec = (self.shapes[result], self.types[result]) if result < len(self.shapes) else None
            layouts = {self.case.layouts[operand]} if operand < len(self.given) else set()
            if (
                t is not None
                and spec == (t.shape, DType.of(t.memory.dtype))
                and layouts <= {"dense", "offset"}
            ):
                found[result] = operand
        return found

    def exact_results(self) -> list[np.ndarray]:
        """In float64, by the reference."""
        if self.exact is None:
            self._compute()
        return self.exact or []

    def _compute(self) -> None:
        case, schema = self.case, self.case.schema
        arrays = [None if o is None else np.array(o.array) for o in self.given]
        own = schema.call_reference(arrays, case.pack())
        self.own = [a.astype(np.float64) for a in own]
        declared = zip(arrays, schema.declared(len(arrays)))
        wide = [
            a.astype(np.float64)
            if a is not None and DType.of(a.dtype).kind == "float" and DType.f32 in d.type.dtypes
            else a
            for a, d in declared
        ]
        exact = self._reference(wide)
        eps = epsilon([*case.types, *self.types], schema.values(case.pack()), self.on.loose)
        self.allowed = bounds(self._reference, wide, exact, self.types, eps, seeded(case.seed, "moves"))
        self.exact = exact

    def _reference(self, arrays: list[np.ndarray | None]) -> list[np.ndarray]:
        return list(self.case.schema.call_reference(arrays, self.case.pack()))

    def of(self, variant: Any) -> str | None:
        """What is wrong with this kernel's results."""
        operands = [None if o is None else fresh(o) for o in self.given]
        results = [operands[self.over[n]] if out is None else fresh(out) for n, out in enumerate(self.outs)]
        given = [o for o in operands if o is not None]
        before = [o.memory.tobytes() for o in given]
        found = self.on.run(variant, self.region, given, results)  # type: ignore[arg-type]
        if found is None:
            return None
        written = [id(operands[o]) for o in self.over.values()]
        for o, was in zip(given, before):
            if id(o) not in written and o.memory.tobytes() != was:
                return "wrote to an operand"
        if self.exact is None:
            self._compute()
        return self._difference(found)

    def _difference(self, found: list[Laid]) -> str | None:
        names = self.case.schema.named_results(len(found))
        assert self.exact is not None
        for n, (made, want, allowed, t) in enumerate(zip(found, self.exact, self.allowed, self.types)):
            got = made.array
            bad = differs(got, want, allowed, t)
            if bad.any() and self.case.values in ("special", "wide"):  # what f32 overflows to is right, too
                bad &= differs(got, self.own[n], allowed, t)
                if (
                    ELEMENTWISE in self.case.schema.traits
                ):  # inf - inf in f32 is a number where one fma rounds once
                    bad &= ~np.isnan(self.own[n]) | np.isnan(want)
            if bad.any():
                at = tuple(int(i) for i in np.argwhere(bad)[0])
                return (
                    f"{names[n]}{list(at)} is {got[at]!s}, expected {want[at]:.9g} within {allowed[at]:.3g}; "
                    f"{int(bad.sum())} of {bad.size} differ"
                )
            if n not in self.over and strayed(made):
                return f"{names[n]}: wrote outside of the result"
        return None


# --- shrinking --------------------------------------------------------------------------------------------------------


def smaller(case: OpCase) -> Iterator[OpCase]:
    """Cases of the same op with one thing simpler."""
    plain = ("dense",) * len(case.layouts)
    simpler = [
        replace(case, layouts=plain, results="dense", over=False, values="plain"), replace(case, layouts=plain),
        replace(case, results="dense"), replace(case, over=False), replace(case, values="plain"),
    ]  # fmt: skip
    simpler += [
        replace(case, layouts=(*case.layouts[:n], "dense", *case.layouts[n + 1 :])) for n in range(len(plain))
    ]
    for shapes, attrs in smaller_extents(case.shapes, dict(case.attrs)):
        simpler.append(replace(case, shapes=shapes, attrs=tuple(attrs.items())))
    for decl in case.schema.attrs:
        if not decl.required and dict(case.attrs).get(decl.name, decl.default) != decl.default:
            simpler.append(replace(case, attrs=tuple((k, v) for k, v in case.attrs if k != decl.name)))
    for other in simpler:
        if other != case and other.fits() and other.has_values():
            yield other


def script(case: OpCase, where: str = "cpu") -> str:
    """A program that runs every kernel on these operands, and prints what differs from the reference."""
    wanted = Wanted(case, device(where))
    return script_of(
        case.op,
        wanted.region,
        [o for o in wanted.given if o is not None],
        wanted.exact_results(),
        wanted.over,
    )
