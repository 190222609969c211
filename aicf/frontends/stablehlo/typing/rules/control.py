"""Control flow, tuples and tokens."""

from __future__ import annotations

from ..bodies import TypedBody
from ..call import OpTyping
from ..declare import I32, NESTED, PREDS, TOKENS, UI32, VALUE, Attr, Kind, OperandRule, typed
from ..types import TOKEN, RankedTensor, Tuple, Type, all_compatible, joined, tensor, wider


def _said(types: list[Type]) -> str:
    return ", ".join(map(str, types)) or "nothing"


@typed(
    "while",
    given=[OperandRule("operand", VALUE, many=True)],
    bodies=("cond", "body"),
    results=VALUE,
    made="C3",
)
def _(c: OpTyping, operands: list[Type]) -> list[Type]:
    cond, body = c.body(0), c.body(1)
    if cond is not None:
        c.require(
            all_compatible(operands, cond.arguments),
            "C1",
            f"the condition takes {_said(cond.arguments)}, expected {_said(operands)}",
        )
        c.require(
            list(map(str, cond.returned)) == ["tensor<i1>"],
            "C1",
            f"the condition returns {_said(cond.returned)}, expected tensor<i1>",
        )
    if body is not None:
        c.require(
            all_compatible(operands, body.arguments),
            "C2",
            f"the body takes {_said(body.arguments)}, expected {_said(operands)}",
        )
        c.require(
            all_compatible(operands, body.returned),
            "C2",
            f"the body returns {_said(body.returned)}, expected {_said(operands)}",
        )
    return operands


def _branches(c: OpTyping, chosen: RankedTensor, numbers: tuple[str, str]) -> list[Type]:
    """The types that all branches return; each may be open where they differ."""
    c.require(chosen.rank == 0, "I1", f"what chooses is {chosen}, expected a 0-dimensional tensor")
    bodies: list[TypedBody] = []
    for n, body in enumerate(c.bodies or ()):
        if body is None:
            c.fail("bodies", f"branch {n} is empty, and its type follows from it")
        c.require(
            not body.arguments, numbers[0], f"branch {n} takes {_said(body.arguments)}, expected nothing"
        )
        bodies.append(body)
    for n, body in enumerate(bodies):
        fit = all_compatible(bodies[0].returned, body.returned)
        c.require(
            fit,
            numbers[1],
            f"branch {n} returns {_said(body.returned)}, and branch 0 {_said(bodies[0].returned)}",
        )
    made: list[Type] = []
    for types in zip(*[body.returned for body in bodies]):
        tensors = [type for type in types if isinstance(type, RankedTensor)]
        made.append(joined(tensors, wider) if len(tensors) == len(types) else types[0])
    return made


@typed(
    "if", given=[OperandRule("pred", PREDS)], bodies=("true_branch", "false_branch"), results=VALUE, made="C3"
)
def _(c: OpTyping, pred: RankedTensor) -> list[Type]:
    c.require(c.bodies is not None, "bodies", "its types follow from its branches, which are not given")
    return _branches(c, pred, ("C1", "C2"))


@typed("case", given=[OperandRule("index", I32)], bodies=None, results=VALUE, made="C4")
def _(c: OpTyping, index: RankedTensor) -> list[Type]:
    c.require(bool(c.bodies), "C1", "takes at least one branch")
    return _branches(c, index, ("C2", "C3"))


@typed("tuple", given=[OperandRule("val", NESTED, many=True)], results=NESTED, made="C1")
def _(c: OpTyping, values: list[Type]) -> list[Type]:
    return [Tuple(tuple(values))]


@typed(
    "get_tuple_element",
    given=[
        OperandRule("operand", Kind("a tuple of tensors and tokens", token=True, tuples=True)),
        Attr("index", "i32", 0, low="C1"),
    ],
    results=NESTED,
    made="C2",
)
def _(c: OpTyping, operand: Type, index: int) -> Type:
    if not isinstance(operand, Tuple):
        c.fail("I1", f"operand is {operand}, expected a tuple")
    c.require(index < len(operand.types), "C1", f"index is {index}, and operand {operand}")
    return operand.types[index]


@typed("optimization_barrier", given=[OperandRule("operand", VALUE, many=True)], results=VALUE)
def _(c: OpTyping, operands: list[Type]) -> list[Type]:
    c.require(
        c.results is None or c.results == operands,
        "C1",
        f"the results are {_said(c.results or [])}, expected {_said(operands)}",
    )
    return operands


@typed("after_all", given=[OperandRule("inputs", TOKENS, many=True)], results=(TOKENS,))
def _(c: OpTyping, inputs: list[Type]) -> Type:
    return TOKEN


@typed("create_token", results=(TOKENS,))
def _(c: OpTyping) -> Type:
    return TOKEN


@typed("replica_id", "partition_id", results=(UI32,))
def _(c: OpTyping) -> Type:
    return tensor((), "ui32")
