"""OpSchema: one op as one record, and the table of all of them. Ops are declared through `schema.py`."""

from __future__ import annotations

import enum
import hashlib
import inspect
import itertools
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from typing import Any

import numpy as np

from .. import near
from ..errors import AttrError, RegistryError, TypeInferenceError
from ..ir import Subgraph
from ..lazy import deferred, lazy
from ..types import AttrPack, DType, OpKind, TensorSpec
from . import numbers
from .attributes import AttrDecl, coerced
from .constraints import (
    DISCONTINUOUS,
    ELEMENTWISE,
    MAP,
    MASKED,
    ConstraintBroken,
    OperandDecl,
    each_operand,
    require,
)
from .continuity import is_continuous
from .unsized import NoSize, plainly, unsized
from .whose_line import definition

# --- how a map op reads its operands ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Access:
    """What one argument of a map op's scalar function is, at a point of the result.

    operand  which operand of the op; None for the point itself, as a row-major index (i64)
    axes     for each axis of the operand, the axis of the result that it follows, or -1: it stays where it is
    starts   for each axis of the operand, where it begins; () if all begin at 0
    steps    for each axis of the operand, how far it goes for one step of the axis that it follows, backwards if negative;
             () if all go by one
    in_order instead of all that: the operand has as many elements as the result, and is read in their row-major order

    A read that may have no element is masked; it is two arguments: the element, anything where there is none, and whether there
    is one. Its op has the trait MASKED.

    bounded  axes of the operand along which the read may lie outside of it
    spread   (axis, follows, start, every): along this axis there are elements at every so many points of the axis that it
             follows, from a start on
    index    (axis, argument): where along this axis is said by the access of that number, of an operand of integers; those
             from -size to -1 count from the end
    """

    operand: int | None
    axes: tuple[int, ...] = ()
    starts: tuple[int, ...] = ()
    steps: tuple[int, ...] = ()
    bounded: tuple[int, ...] = ()
    spread: tuple[tuple[int, int, int, int], ...] = ()
    index: tuple[tuple[int, int], ...] = ()

    in_order: bool = False

    @property
    def masked(self) -> bool:
        return bool(self.bounded or self.spread or self.index)

    @property
    def plain(self) -> bool:
        """Whether every axis begins at 0 and goes by one, and nothing is masked."""
        return not self.masked and not any(self.starts) and all(step == 1 for step in self.steps)

    def walked(self) -> Iterator[tuple[int, int, int]]:
        """Of each axis of the operand: the axis that it follows, its start and its step."""
        starts, steps = self.starts or (0,) * len(self.axes), self.steps or (1,) * len(self.axes)
        return zip(self.axes, starts, steps)


@lru_cache(maxsize=1024)
def _at_the_right(ranks: tuple[int | None, ...], rank: int) -> tuple[Access, ...]:
    """Operands of these ranks, None for one left out, aligned at the right, as NumPy broadcasts."""
    return tuple(Access(n, tuple(range(rank - r, rank))) for n, r in enumerate(ranks) if r is not None)


REMEMBERED = 4096  # sets of attributes of an op, as packs

# --- the record -------------------------------------------------------------------------------------------------------


@dataclass(eq=False, repr=False)
class OpSchema:
    """One op: everything that is true of it on any device. `print(schema)` is its signature and what it says of itself."""

    name: str
    operands: tuple[OperandDecl, ...]
    attrs: tuple[AttrDecl, ...]
    results: tuple[str, ...]
    rule: Callable[..., Any]  # (*operand specs, **attrs) -> result specs
    doc: str
    traits: frozenset[str] = frozenset()
    scalar: Callable[..., Any] | None = None  # map ops: the op on one element of each operand
    core: str = ""  # what a kernel is built around: "map", "gemm", "reduce"; an op's own name if nothing else fuses to it
    alias: Mapping[int, tuple[int, str]] = field(default_factory=dict)  # result -> (operand, "may" or "must")
    flops: int = 1  # per element of the result, for the cost model
    version: int = 1
    origin: str = "aicf"
    reference_fn: Callable[..., Any] | None = None
    gradient_fn: Callable[..., Any] | None = None
    normalize: Callable[[Sequence[TensorSpec | None], dict[str, Any]], dict[str, Any]] | None = None
    check_fn: Callable[..., None] | None = (
        None  # (*operand specs, **attrs): more constraints, before the rule's
    )
    nan_fn: Callable[..., str | None] | None = None
    access_fn: Callable[..., Sequence[Access]] | None = (
        None  # (*operand shapes, **attrs); elementwise ops need none
    )
    constants_fn: Callable[[Mapping[str, Any]], Mapping[str, Any]] | None = (
        None  # attrs as the scalar function takes them
    )
    special_fn: Callable[[Sequence[DType], Mapping[str, Any]], Callable[..., Any] | None] | None = None
    guard_fn: Callable[..., None] | None = None
    instead_fn: Callable[..., Any] | None = None
    count_fn: Callable[..., int] | None = None  # (*operand specs, **attrs) -> flops of all results
    expand_fn: Callable[..., Any] | None = (
        None  # (emit, *operands, **attrs) -> results: the op as steps of a region
    )
    public: int = 0  # results that a caller gets, 0 for all: the others are for the gradient
    sample_specs: list[dict[str, Any]] = field(default_factory=list)
    domains: dict[str, Any] = field(default_factory=dict)  # operand -> where random values of it come from

    def __reduce__(self) -> tuple[Any, ...]:
        return schema_of, (self.name,)

    def __post_init__(self) -> None:
        if ELEMENTWISE in self.traits:
            self.traits |= {MAP}
        self.core = self.core or (MAP if self.is_map else self.name)

    def __repr__(self) -> str:
        return f"<{self.signature}; print it>"

    def __str__(self) -> str:
        return f"{self.signature}\n{self.doc}"

    @property
    def signature(self) -> str:
        """`gelu(x: float) -> y`, with attributes behind a `*`: as in Python, they are given by name."""
        takes = [f"{d}: {d.type}" for d in self.operands]
        takes += ["*"] if self.attrs and not self.variadic else []
        return f"{self.name}({', '.join([*takes, *map(str, self.attrs)])}) -> {', '.join(self.results)}"

    @property
    def is_map(self) -> bool:
        return MAP in self.traits

    @lazy
    def operand_names(self) -> frozenset[str]:
        return frozenset([d.name for d in self.operands])

    @lazy
    def _required(self) -> int:
        return sum(not d.optional for d in self.operands)

    @lazy
    def variadic(self) -> bool:
        """Whether it takes any number of operands in the place of the last that it declares."""
        return bool(self.operands) and self.operands[-1].variadic

    def declared(self, count: int) -> tuple[OperandDecl, ...]:
        """What each of so many operands is held to; of an op that isn't variadic, all that it declares."""
        return each_operand(self.operands, count) if self.variadic else self.operands

    @property
    def many(self) -> bool:
        """Whether it has any number of results: it declares them as one, such as `*ys`."""
        return self.results[-1].startswith("*")

    @lazy
    def has_body(self) -> bool:
        """Whether it does what a body says, which is one of its attributes."""
        return any(a.type is Subgraph for a in self.attrs)

    def named_results(self, count: int) -> tuple[str, ...]:
        """A name for each of so many results."""
        return tuple(f"{self.results[-1][1:]}[{n}]" for n in range(count)) if self.many else self.results

    def results_by_parameter(self, results: Sequence[Any]) -> dict[str, Any]:
        """Results by the names that the op declares: None for one that is not there, a tuple for any number of them."""
        if self.many:
            return {self.results[-1][1:]: tuple(results)}
        return dict(itertools.zip_longest(self.results, results[: len(self.results)]))

    def by_parameter(self, operands: Sequence[Any]) -> dict[str, Any]:
        """Operands by the names that the op declares: None for one left out, a tuple for a variadic one."""
        known = {d.name: x for d, x in itertools.zip_longest(self.operands, operands[: len(self.operands)])}
        if self.variadic:
            known[self.operands[-1].name] = tuple(operands[len(self.operands) - 1 :])
        return known

    def jumps(self, operands: Iterable[DType], results: Iterable[DType]) -> bool:
        """Whether a rounding error of an operand may change a result by a jump: a float that becomes an integer is cut off."""
        cut = any(t.kind == "float" for t in operands) and any(t.kind != "float" for t in results)
        return cut or DISCONTINUOUS in self.traits

    @lazy
    def kind(self) -> OpKind:
        return OpKind(self.name)

    @lazy
    def attr_schema(self) -> str:
        """Names the layout of `attr_blob`: the op's version and a digest of its attributes' names and types."""
        layout = ",".join(f"{a.name}:{a.stored}" for a in self.attrs)
        return f"{self.name}/v{self.version}:{hashlib.blake2s(layout.encode(), digest_size=4).hexdigest()}"

    @property
    def constraints(self) -> tuple[str, ...]:
        """The numbered constraints of the docstring: C1, C2, …"""
        return tuple(re.findall(r"^\s*(C\d+)\s", self.doc, re.MULTILINE))

    @property
    def summary(self) -> str:
        return self.doc.strip().split("\n")[0]

    # --- registrations --------------------------------------------------------------------------------------------

    def reference(self, function: Callable[..., Any]) -> Callable[..., Any]:
        self.reference_fn = function
        return function

    def gradient(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Decorates (emit, …) -> a gradient for each operand, or None. It names what it asks for: operands, results, `d` and a result,
        attributes; `pull` differentiates what was emitted, for ops with bodies."""
        results = {name.lstrip("*") for name in self.results}
        known = {d.name for d in self.operands} | results | {a.name for a in self.attrs}
        known |= {"d" + name for name in results} | {"emit", "pull"}
        unknown = [p for p in inspect.signature(function).parameters if p not in known]
        if unknown:
            raise RegistryError(
                f"the gradient rule of {self.name} asks for {', '.join(unknown)}",
                expected="emit, " + ", ".join(sorted(known - {"emit", "pull"})),
            )
        self.gradient_fn = function
        return function

    def normalizer(self, function: Callable[..., Any]) -> Callable[..., Any]:
        self.normalize = function
        return function

    def checks(self, function: Callable[..., None]) -> Callable[..., None]:
        self.check_fn = function
        return function

    def expands(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Decorates what the op is made of: other ops, written with `emit`. It stays one op in the schedule; a kernel may read
        it as these steps, and fuse what stands around it with them."""
        self.expand_fn = function
        return function

    def why_nan(self, operands: Sequence[np.ndarray], attrs: Mapping[str, Any]) -> str | None:
        """What in these operands, none of which has a NaN, makes one; None if the op has nothing to say."""
        return self.nan_fn(*operands, **self.values(attrs)) if self.nan_fn else None

    def nan_reason(self, function: Callable[..., str | None]) -> Callable[..., str | None]:
        self.nan_fn = function
        return function

    def counts(self, function: Callable[..., int]) -> Callable[..., int]:
        """Decorates (*operand specs, **attrs) -> flops, of an op that does more for an element the larger its operands are."""
        self.count_fn = function
        return function

    def guards(self, function: Callable[..., None]) -> Callable[..., None]:
        """Called with an emitter, the op's operands and its attributes when it is emitted into a graph."""
        self.guard_fn = function
        return function

    def replaced_by(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Called as guards are, and before them: the result of simpler ops that stand in this one's place, or None."""
        self.instead_fn = function
        return function

    def samples(self, *operands: Sequence[tuple[int, ...]], **attrs: Any) -> None:
        """Enrol a case: one shape per operand (None for one left out), with attributes."""
        self.sample_specs.append({"shapes": operands, "attrs": attrs})

    def draws(self, **operands: Any) -> None:
        """Where random values of operands come from, if plain ones would leave the op's domain (see `ops/draw.py`).

        Each is (low, high), or a function (rng, shape, shapes of all operands) -> values.
        """
        unknown = set(operands) - {d.name for d in self.operands}
        if unknown:
            raise RegistryError(f"op {self.name} has no operand {', '.join(sorted(unknown))}")
        self.domains.update(operands)

    def maps(
        self,
        access: Callable[..., Sequence[Access]],
        constants: Callable[[Mapping[str, Any]], Mapping[str, Any]] | None = None,
        continuous: bool | None = None,
    ) -> Callable[[Callable[..., Any]], OpSchema]:
        """Decorates the scalar function of an op that is a map, but not elementwise: `access` says what it is called with.

        access     (*operand shapes, **attrs) -> one Access per argument; the result has one shape, that of `infer`
        constants  attrs -> the keyword arguments, NumPy scalars of the types they have in the kernel; by default the
                   attributes themselves, in the compute type
        continuous  as for elementwise ops: found in the function unless it is said
        """

        def register_scalar(scalar: Callable[..., Any]) -> OpSchema:
            self.scalar, self.access_fn, self.constants_fn, self.core = scalar, access, constants, MAP
            smooth = is_continuous(scalar) if continuous is None else continuous
            self.traits |= {MAP} if smooth else {MAP, DISCONTINUOUS}
            return self

        return register_scalar

    def specialised(
        self, function: Callable[[Sequence[DType], Mapping[str, Any]], Callable[..., Any] | None]
    ) -> Any:
        """Registers (operands' types, attrs) -> another scalar function for them, without attributes, or None."""
        self.special_fn = function
        return function

    def scalar_for(self, operands: Sequence[DType], attrs: Mapping[str, Any]) -> Callable[..., Any]:
        """A map op's scalar function, on operands of these types."""
        assert self.scalar is not None
        return (self.special_fn and self.special_fn(operands, self.values(attrs))) or self.scalar

    def accesses(
        self, shapes: Sequence[tuple[int, ...] | None], rank: int, attrs: Mapping[str, Any]
    ) -> tuple[Access, ...]:
        """What a map op's scalar function is called with; operands of these shapes, a result of this rank."""
        if self.access_fn is not None:
            made = tuple(self.access_fn(*shapes, **self.values(attrs)))
            if MASKED not in self.traits and any(access.masked for access in made):
                raise RegistryError(
                    f"op {self.name} reads under a mask",
                    expected="traits=(MASKED,), by which kernels know it",
                )
            return made
        return _at_the_right(tuple([None if shape is None else len(shape) for shape in shapes]), rank)

    # --- the boundary -----------------------------------------------------------------------------------------------

    def normalized(self, operands: Sequence[TensorSpec | None], attrs: Mapping[str, Any]) -> dict[str, Any]:
        """Attributes in the one form that kernels see: what callers of `pack` pass them through first."""
        return self.normalize(operands, self.values(attrs)) if self.normalize else dict(attrs)

    def values(self, attrs: Mapping[str, Any]) -> dict[str, Any]:
        """Attributes as rules see them: a blob's ids and values as what they stand for."""
        given = attrs.unpacked() if isinstance(attrs, AttrPack) else dict(attrs)
        for d in self._named:
            if d.name in given:
                given[d.name] = coerced(self.name, d, given[d.name])
        return given

    @lazy
    def _named(self) -> tuple[AttrDecl, ...]:
        return tuple([a for a in self.attrs if a.named])

    @lazy
    def _by_name(self) -> dict[str, AttrDecl]:
        return {a.name: a for a in self.attrs}

    @lazy
    def _defaults(self) -> dict[str, Any]:
        return {a.name: a.default for a in self.attrs if not a.required}

    @lazy
    def _packs(self) -> dict[Any, AttrPack]:
        return {}

    def pack(self, attrs: Mapping[str, Any]) -> AttrPack:
        """Attributes with defaults filled in, each of its declared type; an unknown or mistyped one is refused."""
        known = self._by_name
        for name in attrs:
            if name not in known:
                raise AttrError(
                    f"{self.name} has no attribute {name!r}",
                    expected=", ".join(known) or "no attributes at all",
                )
        full = {}
        for decl in self.attrs:
            if decl.name not in attrs and decl.required:
                raise AttrError(f"{self.name} needs attribute {decl.name!r}", expected=decl.kind)
            value = coerced(self.name, decl, attrs.get(decl.name, decl.default))
            if isinstance(value, Subgraph):
                value = value.packed
            full[decl.name] = 0 if value is None and decl.named else value  # no element type
        key = _key_of(full)
        if key is None:
            return AttrPack(full)
        pack = self._packs.get(key)
        if pack is None:
            if len(self._packs) >= REMEMBERED:
                self._packs.clear()
            pack = self._packs[key] = AttrPack(full)
        return pack

    @lazy
    def _inferred(self) -> dict[Any, tuple[TensorSpec, ...]]:
        return {}

    def infer_again(
        self, operands: Sequence[Any], attrs: AttrPack, device: str = "cpu"
    ) -> tuple[TensorSpec, ...]:
        """As `infer`, which is asked once for equal types and attributes: a rule is a function of these. For graphs, whose layers repeat
        and whose ops are verified."""
        specs = tuple([None if o is None else o.spec for o in operands])
        key = specs, attrs, None if specs else device, self.rule, self.check_fn
        known = self._inferred.get(key)
        if known is None:
            known = self.infer(operands, attrs, device)
            if len(self._inferred) >= REMEMBERED:
                self._inferred.clear()
            self._inferred[key] = known
        return known

    def infer(
        self, operands: Sequence[Any], attrs: Mapping[str, Any], device: str = "cpu"
    ) -> tuple[TensorSpec, ...]:
        """Verify operands and attributes and compute the result types; TypeInferenceError names what is wrong.

        operands   TensorSpecs, or things with a `.spec` (their `.name` and `.where` then go into the message). Dimensions may
                   be names; what depends on the size of one is an error that says so
        device     where the results of an op without operands live; other ops follow their operands
        """
        given = [getattr(o, "spec", o) for o in operands]
        specs = unsized(given)
        attrs = self.values(attrs if len(attrs) == len(self.attrs) else {**self._defaults, **attrs})
        try:
            self._check_declared(specs)
            if self.check_fn is not None:
                self.check_fn(*specs, **attrs)
            results = self.rule(*specs, **attrs)
            self._check_constants(specs, attrs)
        except ConstraintBroken as broken:
            raise TypeInferenceError(
                f"{self.name} {broken.constraint}: {broken.message}",
                op=self.name,
                constraint=broken.constraint,
                message=broken.message,
                details=self._described(operands),
                hint=f"the constraints of {self.name} are in its docstring: aicf info {self.name}",
            ) from None
        except NoSize as unknown:
            raise TypeInferenceError(
                f"{self.name}: its result's type depends on the size of {unknown.name}, which has none yet",
                details=self._described(operands),
                hint=f"give it one first: spec.bind({{{unknown.name!r}: 32}})",
            ) from None
        results = results if isinstance(results, tuple) else (results,)
        if not all(isinstance(r, TensorSpec) for r in results):
            raise RegistryError(
                f"the type rule of {self.name} returned what is no type", expected="a TensorSpec for each result, such as x or replace(x, dtype=f16)",
                got=repr(results[0] if len(results) == 1 else results), where=definition(self.rule), hint="docs/add-an-op.md shows type rules",
            )  # fmt: skip
        if specs is not given:
            results = tuple(map(plainly, results))
        return results if self.operands else tuple(replace(r, device=device) for r in results)

    def _described(self, operands: Sequence[Any]) -> list[str]:
        given = zip(self.declared(len(operands)), operands)
        return [_describe(decl, operand) for decl, operand in given if operand is not None]

    def _check_declared(self, specs: Sequence[TensorSpec | None]) -> None:
        require(
            self._required <= len(specs) and (self.variadic or len(specs) <= len(self.operands)),
            "operands",
            lambda: f"takes {', '.join(map(str, self.operands))}; got {len(specs)} operands",
        )
        shared: tuple[str, DType] | None = None
        for decl, spec in zip(self.declared(len(specs)), specs):
            if spec is None:
                require(decl.optional, "operands", f"{decl.name} can't be left out")
                continue
            require(spec.dtype in decl.type.dtypes, "types", partial(_other_type, decl, spec.dtype))
            if decl.type.shared:
                shared = shared or (decl.name, spec.dtype)
                require(spec.dtype is shared[1], "types", partial(_promoted, decl.name, spec.dtype, *shared))
        devices = {s.device for s in specs if s is not None}
        require(len(devices) <= 1, "devices", lambda: f"operands live on {' and '.join(sorted(devices))}")

    def _check_constants(self, specs: Sequence[TensorSpec | None], attrs: Mapping[str, Any]) -> None:
        """Attributes that are constants of the scalar function are numbers of the type that it computes in."""
        if not self.attrs or self.scalar is None or self.constants_fn is not None:
            return
        given = zip(self.declared(len(specs)), specs)
        shared = (s.dtype for d, s in given if s is not None and d.type.shared)
        compute = next(shared, DType.f32).compute
        for decl in self.attrs if compute.kind == "int" else ():
            if decl.type in (int, float):
                value = numbers.whole(attrs[decl.name])
                reason = numbers.why_not(value, compute)
                require(
                    reason is None, "types", f"{decl.name} is {value}, a constant beside {compute}: {reason}"
                )

    def call_reference(
        self, arrays: Sequence[np.ndarray | None], attrs: Mapping[str, Any]
    ) -> tuple[np.ndarray, ...]:
        """The reference on NumPy arrays; always a tuple.

        It sees narrower floats as f32, unless it hands them to a body, and what it returns is rounded once, to the inferred types. With
        an f64 array among
        the operands the results stay f64: an oracle for every float type.
        """
        if self.reference_fn is None:
            raise RegistryError(f"op {self.name} has no reference")
        exact = any(a is not None and a.dtype == np.float64 for a in arrays)
        specs = [a if a is None else TensorSpec(a.shape, _spec_dtype(a.dtype)) for a in arrays]
        wide = [
            a.astype(np.float32)
            if a is not None and s is not None and s.dtype.compute is not s.dtype and not self.has_body
            else a
            for a, s in zip(arrays, specs)
        ]
        with np.errstate(all="ignore"):
            out = self.reference_fn(*wide, **self.values(attrs))
            out = out if isinstance(out, tuple) else (out,)
            return tuple(
                np.asarray(o, np.float64 if exact and s.dtype.kind == "float" else s.dtype.numpy)
                for o, s in zip(out, self.infer(specs, attrs))
            )


def _other_type(decl: OperandDecl, dtype: DType) -> str:
    told = f"{decl.name} is {dtype}; expected {decl.type} ({', '.join(sorted(map(str, decl.type.dtypes)))})"
    return told + ("; fp8 is for storage and products, convert it" if dtype.is_fp8 else "")


def _promoted(name: str, dtype: DType, first: str, shared: DType) -> str:
    return f"{name} is {dtype} but {first} is {shared}; operands never promote, convert one of them"


def _key_of(values: Mapping[str, Any]) -> tuple[Any, ...] | None:
    """Equal for attributes that have equal packs, and for no others; None where equal values may differ: -0.0 equals 0.0."""
    for value in values.values():
        kind = type(value)
        if kind is tuple:
            if any(type(v) is not int for v in value):
                return None
        elif kind is float:
            if not value:
                return None
        elif kind not in (bool, int, str, type(None)) and not isinstance(value, enum.Enum):
            return None
    given = tuple(values.values())
    return *map(type, given), *given


def _spec_dtype(dtype: np.dtype) -> DType:
    return DType.f32 if dtype == np.float64 else DType.of(dtype)


def _describe(decl: OperandDecl, operand: Any) -> str:
    spec, name, where = (
        getattr(operand, "spec", operand),
        getattr(operand, "name", ""),
        getattr(operand, "where", ""),
    )
    label = f"{decl.name} ({name})" if name and name != decl.name else decl.name
    return f"{label}: {spec}" + (f"  at {where}" if where else "")


# --- the table of ops -------------------------------------------------------------------------------------------------

_SCHEMAS: dict[OpKind, OpSchema] = {}
MAIN = "__main__"  # what a script or a notebook defines


load_more = deferred("aicf.dispatch.extensions", "load_ops")  # those of other packages


def register(schema: OpSchema) -> OpSchema:
    known = _SCHEMAS.get(schema.kind)
    if known is not None and known.origin == schema.origin == MAIN:
        unregister(schema.name)  # a notebook's cell that runs again
    elif known is not None and known.rule is not schema.rule:
        raise RegistryError(
            f"op {schema.name!r} is already registered by {known.origin}",
            hint="choose another name for the new op",
        )
    names = [*(d.name for d in schema.operands), *(a.name for a in schema.attrs)]
    results = [name.lstrip("*") for name in schema.results]
    names += [*results, *(f"d{name}" for name in results), "emit", "pull"]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise RegistryError(
            f"op {schema.name!r}: {', '.join(twice)} names two things",
            expected="operands, attributes, results and d + result, each with a name of its own",
            hint='name the result: results=("z",)',
        )
    return _SCHEMAS.setdefault(schema.kind, schema)


# How often an op or a core was forgotten: what was found for it must not be used for its successor.
schema_epoch = 0


def unregister(name: str) -> None:
    """Forget an op; for tests and notebooks that define one again."""
    global schema_epoch
    _SCHEMAS.pop(OpKind(name), None)
    schema_epoch += 1


def schema_of(kind: OpKind | str) -> OpSchema:
    """The op of a kind, or of a name in any of its spellings (see `OpKind`)."""
    found = _find(kind)
    if found is None:
        load_more()
        found = _find(kind)
    if found is None:
        names = [s.name for s in schemas()]
        raise RegistryError(
            f"no op is called {str(kind)!r}", expected=f"one of the {len(names)} ops that `aicf info` lists",
            hint=near.hint(str(kind), near.OPS, names),
        )  # fmt: skip
    return found


def _find(kind: OpKind | str) -> OpSchema | None:
    known = OpKind.known(kind) if isinstance(kind, str) else kind
    return None if known is None else _SCHEMAS.get(known)


def schemas() -> Iterator[OpSchema]:
    """All ops, by name."""
    return iter(sorted(_SCHEMAS.values(), key=lambda s: s.name))
