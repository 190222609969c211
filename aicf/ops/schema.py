"""OpSchema: an op is one record. Operands, attributes and traits are declared; `infer` checks the rest.

`@op` reads the declaration off the signature: positional parameters are operands (annotated with a type constraint,
`= None` when they may be left out; the last may be `*xs`, one or more of them), keyword-only parameters are attributes (annotated bool, int, float, str, tuple, Shape,
DType or an enumeration, with a default). `@elementwise` does the same for a scalar function, and derives shape and type rules from it.

Then, each a stacked registration on the schema:

    .reference     the op in NumPy: the tests' oracle, and the CPU kernel of whatever has no better one
    .gradient      a rule written with an emitter; it asks for what it needs by the names of its parameters: operands (`xs`,
                   if it is variadic, is a tuple), results, `d` + result for an incoming gradient, and attributes. It returns
                   a gradient, or None, for each operand
    .normalizer    (operand specs, attrs) -> attrs in the one form kernels see; total, applied before packing
    .replaced_by   (emitter, operands, attributes) -> the result of simpler ops that a graph has in this one's place, or None
    .guards        (emitter, operands, attributes): emits the check of data that the op can't take; see `GraphEmitter.guard`
    .checks        numbered constraints of an elementwise op, beyond those on shapes that it has by being one
    .samples       shapes and attributes that enrol the op in the generated tests
"""

from __future__ import annotations

import dis
import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from ..errors import RegistryError
from ..types import DType, TensorSpec
from .attributes import ATTR_TYPES, AttrDecl, attribute, coerced
from .constraints import (
    ACCUMULATES,
    DISCONTINUOUS,
    ELEMENTWISE,
    F32,
    I32,
    I64,
    LINEAR,
    MAP,
    MASKED,
    MOVES,
    VIEW,
    Any_,
    AnyOwn,
    Bool,
    ConstraintBroken,
    Factor,
    Float,
    FloatOwn,
    Gradient,
    Index,
    Int,
    Moment,
    Number,
    OperandDecl,
    Real,
    Sum,
    TypeConstraint,
    Valid,
    each_operand,
    is_integer,
    refuse_gradient,
    require,
)
from .continuity import is_continuous
from .record import Access, OpSchema, register, schema_of, schemas, unregister
from .unsized import broadcast

__all__ = [
    "ACCUMULATES",
    "DISCONTINUOUS",
    "ELEMENTWISE",
    "F32",
    "I32",
    "I64",
    "LINEAR",
    "MAP",
    "MASKED",
    "MOVES",
    "VIEW",
    "Access",
    "AnyOwn",
    "Any_",
    "Bool",
    "Factor",
    "Float",
    "FloatOwn",
    "Gradient",
    "Index",
    "Int",
    "Moment",
    "Number",
    "OpSchema",
    "Real",
    "Sum",
    "Valid",
    "elementwise",
    "is_integer",
    "op",
    "refuse_gradient",
    "register",
    "require",
    "schema_of",
    "schemas",
    "unregister",
]


def _declare(
    function: Callable[..., Any], default: TypeConstraint | None
) -> tuple[tuple[OperandDecl, ...], tuple[AttrDecl, ...]]:
    operands, attrs = [], []
    for p in inspect.signature(function).parameters.values():
        annotation = p.annotation
        if isinstance(annotation, str):
            annotation = ATTR_TYPES.get(annotation) or eval(annotation, function.__globals__)
        if p.kind is p.KEYWORD_ONLY:
            attrs.append(decl := attribute(function.__name__, p.name, annotation, p.default))
            if not decl.required and p.default is not None:
                coerced(function.__name__, decl, p.default)  # a default of another type is refused here
        else:
            type = default if annotation is p.empty else annotation
            if not isinstance(type, TypeConstraint):
                raise RegistryError(
                    f"{function.__name__}: operand {p.name} needs a type constraint, got {annotation}"
                )
            operands.append(OperandDecl(p.name, type, p.default is None, p.kind is p.VAR_POSITIONAL))
    return tuple(operands), tuple(attrs)


def op(
    name: str,
    *,
    results: Sequence[str] = ("y",),
    alias: Mapping[int, tuple[int, str]] | None = None,
    traits: Sequence[str] = (),
    core: str = "",
    flops: int = 1,
    version: int = 1,
    public: int = 0,
) -> Callable[[Callable[..., Any]], OpSchema]:
    """Declare an op by its type rule: `def softmax(x: Float, *, axis: int = -1)` returning the result specs.

    core    the sort of kernel it needs, if it shares one with other ops: reductions say "reduce", ops over rows "rows"
    public  how many results a caller gets, if there are more for the gradient
    """

    def make(rule: Callable[..., Any]) -> OpSchema:
        operands, attrs = _declare(rule, None)
        schema = OpSchema(
            name,
            operands,
            attrs,
            tuple(results),
            rule,
            inspect.getdoc(rule) or "",
            frozenset(traits),
            alias=dict(alias or {}),
            core=core,
            public=public,
            flops=flops,
            version=version,
            origin=_origin(rule),
        )
        return register(schema)

    return make


def elementwise(
    name: str,
    *,
    types: TypeConstraint = Float,
    result: DType | None = None,
    results: Sequence[str] = ("y",),
    alias: str | None = None,
    must: Mapping[str, str] | None = None,
    dtype_attr: str | None = None,
    traits: Sequence[str] = (),
    continuous: bool | None = None,
    flops: int | None = None,
    version: int = 1,
) -> Callable[[Callable[..., Any]], OpSchema]:
    """Declare an op by its scalar function: operands broadcast like NumPy's, results have the broadcast shape.

    types       constraint of operands without an annotation; they all share one element type
    result      element type of the results, if not the operands' (comparisons give bool)
    alias       operand whose storage the result may take over
    must        result -> operand it is written over, in place (optimizer steps), whose type it has; that operand is not
                broadcast
    dtype_attr  attribute that names the result's element type (convert)
    traits      LINEAR where it is, in its first operand
    continuous  whether a rounding error in an operand changes the result by no more than a rounding error. By default a
                function that compares, branches, or calls what can't be seen through is taken for one that jumps, and gets its
                operands rounded as they would be in memory (continuity.py)

    An op of any number of operands is a function of `*xs`: a loop over them, such as one that adds them up.
    An attribute that is an element type is its id in the scalar function, a member of an enumeration its number.
    In the scalar function a number literal has the compute type of the operands (f32 for floats). It may call `math`
    functions and use `if`/`else` expressions; it writes `float(i)` where an integer becomes a number of the compute
    type, and returns a tuple when the op has several results. A result gets its element type when it is stored.
    """

    def make(scalar: Callable[..., Any]) -> OpSchema:
        operands, attrs = _declare(scalar, types)
        for text in (a.name for a in attrs if a.stored == "str"):
            raise RegistryError(
                f"{scalar.__name__}: attribute {text} is text, and a scalar function computes with numbers",
                hint="declare an enum.IntEnum",
            )
        for absent in (a.name for a in attrs if a.optional and not a.named):
            raise RegistryError(
                f"{scalar.__name__}: attribute {absent} may be None, and a scalar function computes with numbers",
                expected="a number as the default",
            )
        names, variadic = [d.name for d in operands], bool(operands) and operands[-1].variadic

        def rule(*specs: TensorSpec, **values: Any) -> tuple[TensorSpec, ...]:
            shape = _broadcast(
                [d.name for d in each_operand(operands, len(specs))] if variadic else names, specs
            )
            typed = next((s for d, s in zip(operands, specs) if d.type.shared), specs[0])
            dtype = result or (values[dtype_attr] if dtype_attr else typed.dtype)
            made = dict.fromkeys(results, dtype)
            for target, source in (must or {}).items():
                spec = specs[names.index(source)]
                made[target] = spec.dtype
                require(spec.shape == shape, "C2", partial(_not_over, target, source, spec, shape))
            return tuple(TensorSpec(shape, made[r], typed.device) for r in results)

        aliases = {list(results).index(r): (names.index(o), "must") for r, o in (must or {}).items()}
        if alias is not None:
            aliases[0] = (names.index(alias), "may")
        implied = []
        if len(operands) > 1 or variadic:  # one operand has nothing to disagree with
            implied.append("C1  shapes broadcast to one shape                   (NumPy's rule)")
            if must:
                implied.append("C2  what is written in place has the broadcast shape")
        doc = _with_constraints(inspect.getdoc(scalar) or "", implied)
        smooth = is_continuous(scalar) if continuous is None else continuous
        jumps = () if smooth else (DISCONTINUOUS,)
        schema = OpSchema(
            name,
            operands,
            attrs,
            tuple(results),
            rule,
            doc,
            frozenset({ELEMENTWISE, *traits, *jumps}),
            scalar,
            alias=aliases,
            flops=flops or _count_flops(scalar),
            version=version,
            origin=_origin(scalar),
        )
        return register(schema)

    return make


def _with_constraints(doc: str, implied: Sequence[str]) -> str:
    """A docstring with the constraints its declaration implies, ahead of those it lists itself."""
    text, *own = re.split(r"^(?=C\d)", doc, maxsplit=1, flags=re.MULTILINE)
    return "\n\n".join(filter(None, [text.strip(), "\n".join([*implied, *own])]))


def _broadcast(names: Sequence[str], specs: Sequence[TensorSpec]) -> tuple[int, ...]:
    shapes = [s.shape for s in specs]
    named = any(isinstance(d, str) for shape in shapes for d in shape)
    if shapes and not named and shapes.count(shapes[0]) == len(shapes):
        return shapes[0]
    try:
        return broadcast(shapes)
    except ValueError:
        told = ", ".join(f"{n} {s.shape}" for n, s in zip(names, specs))
        raise ConstraintBroken("C1", f"shapes do not broadcast: {told}") from None


def _not_over(target: str, source: str, spec: TensorSpec, shape: tuple[int, ...]) -> str:
    return f"{target} is written over {source}, whose shape {spec.shape} is not the broadcast shape {shape}"


def _count_flops(scalar: Callable[..., Any]) -> int:
    """A rough count for the cost model: arithmetic instructions, a call as eight."""

    weights = {"BINARY_OP": 1, "COMPARE_OP": 1, "UNARY_NEGATIVE": 1, "CALL": 8}
    return max(1, sum(weights.get(i.opname, 0) for i in dis.get_instructions(scalar)))


def _origin(function: Callable[..., Any]) -> str:
    return (function.__module__ or "").split(".")[0] or "?"
