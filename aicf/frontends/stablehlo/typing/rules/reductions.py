"""Reductions, sorting and what else applies a body to elements."""

from __future__ import annotations

from collections.abc import Sequence

from ..bodies import TypedBody
from ..call import OpTyping
from ..declare import TENSOR, Attr, OperandRule, typed
from ..types import BOOL, COMPLEX, FLOAT, INT, Dim, RankedTensor, Type, fits, shapes_fit, tensor
from .movement import unique, within


def promotable(c: OpTyping, a: str, b: str) -> bool:
    """Whether elements of one type become those of another: of one kind, and not of fewer bits. Floats become each other."""
    if a in FLOAT and b in FLOAT:
        return True
    if a in INT | BOOL and b in INT | BOOL:
        return int(a.lstrip("ui")) <= int(b.lstrip("ui"))
    return a in COMPLEX and b in COMPLEX and int(a[9:-1]) <= int(b[9:-1])


def alike(a: RankedTensor, b: Type, floats: bool = False) -> bool:
    """Shapes that fit and one element type; any two floating-point types where `floats`."""
    if not isinstance(b, RankedTensor) or not shapes_fit(a.shape, b.shape):
        return False
    return a.element == b.element or (floats and a.element in FLOAT and b.element in FLOAT)


def accumulators(c: OpTyping, index: int) -> list[str] | None:
    """Element types that a body returns, which `check_reducer` has looked at; None where there is no body."""
    body = c.body(index)
    return (
        None if body is None else [type.element for type in body.returned if isinstance(type, RankedTensor)]
    )


def check_reducer(
    c: OpTyping,
    body: TypedBody | None,
    inputs: Sequence[RankedTensor],
    inits: Sequence[RankedTensor],
    allowed: Sequence[Dim],
    constraint: str,
) -> None:
    """That a body takes two values for each input and returns one, of types that inputs and initial values become."""
    if body is None:
        return
    count = len(inputs)
    c.require(
        len(body.arguments) == 2 * count,
        constraint,
        f"the body takes {len(body.arguments)} arguments, expected {2 * count}",
    )
    c.require(
        count > 0 and len(body.returned) == count,
        constraint,
        f"the body returns {_listed(body.returned)}, expected {count} tensors",
    )
    for n, (made, given, init) in enumerate(zip(body.returned, inputs, inits)):
        first, second = body.arguments[n], body.arguments[count + n]
        if not isinstance(made, RankedTensor):
            c.fail(constraint, f"the body returns {made}, expected a tensor")
        c.require(
            alike(made, first), constraint, f"the body's argument {n} is {first}, and its result {n} {made}"
        )
        c.require(
            alike(made, second, True),
            constraint,
            f"the body's argument {count + n} is {second}, and its result {n} {made}",
        )
        c.require(
            shapes_fit(init.shape, made.shape),
            constraint,
            f"the body's result {n} is {made}, and the initial value {init}",
        )
        c.require(
            promotable(c, init.element, made.element),
            constraint,
            f"the initial value {n} is {init}, which does not become {made}",
        )
        assert isinstance(second, RankedTensor)
        c.require(
            promotable(c, given.element, second.element),
            constraint,
            f"input {n} is {given}, whose elements do not become {second}",
        )
        left = iter(allowed)
        fit = all(any(fits(size, n) for n in left) for size in second.shape)
        c.require(
            len(second.shape) <= len(allowed) and fit,
            constraint,
            f"the body's argument {count + n} is {second}, and input {n} {given}",
        )


def _listed(types: Sequence[Type]) -> str:
    return ", ".join(map(str, types)) or "nothing"


def check_inputs(c: OpTyping, inputs: Sequence[RankedTensor], some: str, same: str) -> RankedTensor:
    c.require(len(inputs) > 0, some, "takes at least one input")
    for n, each in enumerate(inputs):
        c.require(
            shapes_fit(inputs[0].shape, each.shape), same, f"input {n} is {each}, and input 0 {inputs[0]}"
        )
    return inputs[0]


@typed(
    "reduce",
    given=[
        OperandRule("inputs", many=True),
        OperandRule("init_values", many=True),
        Attr("dimensions", "ints"),
    ],
    bodies=("body",),
    made="C7",
)
def _(
    c: OpTyping, inputs: list[RankedTensor], inits: list[RankedTensor], dims: tuple[int, ...]
) -> list[Type]:
    first = check_inputs(c, inputs, "C3", "C1")
    within(c, "C4", "dimensions", dims, first.rank)
    unique(c, "C5", "dimensions", dims)
    kept = [axis for axis in range(first.rank) if axis not in dims]
    shape = [first.shape[axis] for axis in kept]
    check_reducer(c, c.body(0), inputs, inits, shape, "C6")
    elements = accumulators(c, 0) or [each.element for each in inputs]
    bounds = None if first.bounds is None else [first.bounds[axis] for axis in kept]
    return [tensor(shape, element, bounds) for element in elements]


@typed(
    "map",
    given=[OperandRule("inputs", many=True), Attr("dimensions", "ints")],
    bodies=("computation",),
    same_shape="C1",
)
def _(c: OpTyping, inputs: list[RankedTensor], dims: tuple[int, ...]) -> Type:
    body = c.body(0)
    if body is None:
        c.fail("I3", "its type follows from its body, which is not given or is empty")
    c.require(len(inputs) > 0, "C2", "takes at least one input")
    c.require(
        len(body.arguments) == len(inputs),
        "C4",
        f"the body takes {len(body.arguments)} arguments, expected {len(inputs)}",
    )
    for n, (argument, given) in enumerate(zip(body.arguments, inputs)):
        fit = isinstance(argument, RankedTensor) and argument.rank == 0 and argument.element == given.element
        c.require(fit, "C4", f"the body's argument {n} is {argument}, expected tensor<{given.element}>")
    made = body.returned[0] if len(body.returned) == 1 else None
    if not isinstance(made, RankedTensor) or made.rank != 0:
        c.fail("C4", f"the body returns {_listed(body.returned)}, expected one 0-dimensional tensor")
    c.require(dims == tuple(range(len(dims))), "C3", f"dimensions is {list(dims)}, expected 0, 1, … in order")
    for n, given in enumerate(inputs):
        c.require(given.rank == len(dims), "C3", f"dimensions is {list(dims)}, and input {n} {given}")
    return tensor(inputs[-1].shape, made.element)


@typed("sort",
    given=[OperandRule("inputs", many=True), Attr("dimension", "i64", needed=False, default=-1), Attr("is_stable", "bool", needed=False)],
    bodies=("comparator",), same_shape="C3", made="C2")  # fmt: skip
def _(c: OpTyping, inputs: list[RankedTensor], dimension: int, stable: bool) -> list[Type]:
    c.require(len(inputs) > 0, "C1", "takes at least one input")
    rank = inputs[0].rank
    c.require(-rank <= dimension < rank, "C4", f"dimension is {dimension}, and input 0 {inputs[0]}")
    body = c.body(0)
    if body is not None:
        c.require(
            len(body.arguments) == 2 * len(inputs),
            "C5",
            f"the body takes {len(body.arguments)} arguments, expected {2 * len(inputs)}",
        )
        for n, argument in enumerate(body.arguments):
            wanted = tensor((), inputs[n // 2].element)
            c.require(argument == wanted, "C5", f"the body's argument {n} is {argument}, expected {wanted}")
        made = body.returned[0] if len(body.returned) == 1 else None
        fit = isinstance(made, RankedTensor) and made.rank == 0 and made.element == "i1"
        c.require(fit, "C5", f"the body returns {_listed(body.returned)}, expected tensor<i1>")
    return list(inputs)


__all__ = ["TENSOR", "accumulators", "alike", "check_reducer"]
