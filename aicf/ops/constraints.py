"""What a declaration may say: element types of operands, attributes, and the numbered constraints that `infer` checks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np

from ..errors import TypeInferenceError
from ..types import FINITE_MAX, DType


@dataclass(frozen=True)
class TypeConstraint:
    """Element types an operand may have. Operands marked `shared` all have the same one."""

    name: str
    dtypes: frozenset[DType]
    shared: bool = True

    def __str__(self) -> str:
        return self.name


_FLOATS = frozenset({DType.f32, DType.f16, DType.bf16})
_INTS = frozenset({DType.i32, DType.i64})
_INTEGERS = frozenset(t for t in DType if t.kind == "int")
Float = TypeConstraint("float", _FLOATS)
Int = TypeConstraint("int", _INTS)
# a factor of a product, whose other operands follow its result
Factor = TypeConstraint("factor", _FLOATS | frozenset(FINITE_MAX) | {DType.i8, DType.u8}, shared=False)
Number = TypeConstraint("number", _FLOATS | _INTEGERS | {DType.f64})
Real = TypeConstraint("float", _FLOATS | {DType.f64})  # f64 too: of ops that compute in nothing narrower
Any_ = TypeConstraint("any", frozenset(DType))
Index = TypeConstraint("index", _INTS, shared=False)
Valid = TypeConstraint(
    "flag", frozenset({DType.bool}), shared=False
)  # whether a run may be kept: emitters know it
Bool = TypeConstraint("bool", frozenset({DType.bool}), shared=False)
FloatOwn = TypeConstraint("float", _FLOATS, shared=False)  # such as weights wider than what they multiply
AnyOwn = TypeConstraint("any", frozenset(DType), shared=False)
F32 = TypeConstraint("f32", frozenset({DType.f32}), shared=False)  # meta-parameters: always f32
Sum = TypeConstraint(
    "f32 sum", frozenset({DType.f32}), shared=False
)  # what goes on from step to step: never a half
Moment = TypeConstraint(
    "moment", frozenset({DType.f32, DType.bf16}), shared=False
)  # an optimizer's averages: f32 unless a policy says otherwise
Gradient = TypeConstraint("float", _FLOATS, shared=False)  # of its parameter's type, or a sum of such
I32 = TypeConstraint("i32", frozenset({DType.i32}), shared=False)  # places and lengths of sequences
I64 = TypeConstraint("i64", frozenset({DType.i64}), shared=False)  # random states
RANDOM = TypeConstraint(
    "random state", frozenset({DType.i64}), shared=False
)  # a key and a step: emitters give the graph's own

VIEW = "view"  # the result is the operand's bytes: a plan may run nothing at all
MOVES = "moves"  # each element of the result is one of an operand's: a plan may run nothing where strides can say so
ELEMENTWISE = "elementwise"  # result i depends on element i of each (broadcast) operand alone
MAP = "map"  # each element of the result is a scalar function of one element of each operand: what can be composed
MASKED = "masked"  # a map that reads where there may be no element: kernels that can say so (see KernelVariant.masked)
ACCUMULATES = "accumulates"  # adds or multiplies as many elements as an axis has: on the host its reference computes in f64
LINEAR = "linear"  # in its first operand, whatever the others are
DISCONTINUOUS = "discontinuous"  # a rounding error of an operand may change the result by a jump


@dataclass(frozen=True)
class OperandDecl:
    """An operand; or, if it is variadic, all those behind the others: one or more, called xs[0], xs[1], …"""

    name: str
    type: TypeConstraint
    optional: bool = False
    variadic: bool = False

    @property
    def parameter(self) -> str:
        """The name it was declared by: xs, of xs[2]."""
        return self.name.partition("[")[0]

    def __str__(self) -> str:
        return "*" * self.variadic + self.name + "?" * self.optional


@lru_cache(maxsize=1024)
def each_operand(operands: tuple[OperandDecl, ...], count: int) -> tuple[OperandDecl, ...]:
    """The declarations of so many operands, one by one, where the last is variadic."""
    *fixed, last = operands
    more = [
        replace(last, name=f"{last.name}[{n}]", variadic=False) for n in range(max(count - len(fixed), 0))
    ]
    return (*fixed, *more)


def require(condition: bool, constraint: str, message: str | Callable[[], str]) -> None:
    """Inside `infer`: constraint `C1` of the op's docstring must hold. The message gives the values seen; a function that makes it
    is called only where the constraint is broken."""
    if not condition:
        raise ConstraintBroken(constraint, message if isinstance(message, str) else message())


def refuse_gradient(op: str, **operands: DType) -> None:
    """Inside a gradient rule: fp8 holds too little to be differentiated through."""
    for name, dtype in operands.items():
        if dtype.is_fp8:
            raise TypeInferenceError(
                f"{op} has no gradient where {name} is {dtype}, and the loss depends on it",
                expected="f32, f16 or bf16",
                hint="keep master weights in f32, and convert them to fp8 for inference",
            )


def is_integer(value: Any) -> bool:
    """Whether a tuple attribute's entry is an integer; a bool is not."""
    return isinstance(value, (int, np.integer)) and not isinstance(value, bool)


class ConstraintBroken(Exception):
    def __init__(self, constraint: str, message: str) -> None:
        self.constraint, self.message = constraint, message
        super().__init__(f"{constraint}: {message}")
