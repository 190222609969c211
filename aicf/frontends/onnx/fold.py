"""What depends on constants alone is computed while the graph is read, by the same rules: they emit into a graph of its own, which the
ops' references evaluate. Shapes are numbers then.

What the constants of one model may take so has a budget: a kilobyte of nodes can double a constant until memory ends. What is over it is
in the graph, and a node that must know its elements is refused with the reason.

Large weights stay what they are, in the state dict by their names: how a model rearranges, converts or scales them is in the graph, of which
inference computes once what pays (graph/fuse/once.py)."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from math import prod
from typing import Any

import numpy as np

from ...graph.emit.builder import Builder, GraphEmitter
from ...graph.emit.evaluate import FoldBudget, evaluate, price_of
from ...ir import Role, Value
from ...types import DType, TensorSpec, numel
from ...weights import UnreadArray
from .graph import Document, OnnxNode
from .operands import Call, Operand, Refusal, constant
from .reading import TYPES, bad
from .table import OnnxRule

SMALL = 1 << 20  # bytes of a result that are always worth it
WIDENS = 8  # times its operands that a larger one may have: an i8 becomes an f64
LARGE = 1 << 16  # bytes of a weight that stays one
STAYING = frozenset(
    {"Transpose", "Reshape", "Flatten", "Squeeze", "Unsqueeze", "Cast", "Add", "Sub", "Mul", "Div", "Neg", "Slice", "Concat"}
)  # fmt: skip
WEIGHTS = frozenset({DType.f32, DType.f16, DType.bf16})  # those of which every device has kernels for these
MOST = 8  # operands


def budget_of(document: Document) -> FoldBudget:
    """What a walk of a model may compute of constants: the setting, and as much as its weights may grow."""
    stored = sum(numel(x.spec.shape) * x.spec.dtype.itemsize for x in document.arrays.values())
    budget = FoldBudget()
    budget.limit += WIDENS * stored
    return budget


def stays_a_weight(node: OnnxNode, operands: Sequence[Operand | None]) -> bool:
    """Whether the graph has the node, though its operands are known: what it makes of a large weight is one."""
    if node.domain or node.op not in STAYING or len(operands) > MOST:
        return False
    if node.op == "Cast" and TYPES.get(node.attrs["to"].i) not in WEIGHTS:
        return False
    weights = [x for x in operands if x is not None and (x.weight or x.origin) and x.dtype in WEIGHTS]
    return any(_nbytes(x) > LARGE for x in weights)


def kept_known(
    document: Document, budget: FoldBudget, found: OnnxRule, node: OnnxNode, schema: Any, operands: Sequence[Operand | None],
    results: Sequence[Operand | None],
) -> None:  # fmt: skip
    """Results that the graph has, of operands that are known, are known as well: they are computed if another node must know them."""
    key = _key(node, schema, operands)
    given = sum(_nbytes(x) for x in operands if x is not None)
    for n, x in enumerate(results):
        if x is not None and not x.is_known and _nbytes(x) <= max(SMALL, WIDENS * given):
            x.unread = UnreadArray(
                x.spec, partial(_known, document, budget, found, node, schema, operands, n)
            )
            x.origin = key, n


def _known(
    document: Document,
    budget: FoldBudget,
    found: OnnxRule,
    node: OnnxNode,
    schema: Any,
    operands: Sequence[Operand | None],
    n: int,
) -> np.ndarray:
    made = folded(document, budget, found, node, schema, operands)
    if isinstance(made, str):
        raise Refusal(made)
    result = made[n]
    assert result is not None and result.array is not None
    return result.array


def room(spec: TensorSpec) -> int:
    """Bytes of a tensor whose empty axes have one element: NumPy refuses those of more than 63 bits even if another axis is empty."""
    return prod(max(d, 1) for d in spec.shape) * spec.dtype.itemsize


def _nbytes(x: Operand) -> int:
    return numel(x.shape) * x.dtype.itemsize


def _key(node: OnnxNode, schema: Any, operands: Sequence[Operand | None]) -> Any:
    """What results are made of. By its content, since nodes of functions and branches are made anew, too, and an id returns; those that are
    kept keep their operands, so theirs can't."""
    text = node.proto.SerializeToString(deterministic=True)
    return text, schema.since_version, tuple(x and (x.weight or x.origin or id(x.array)) for x in operands)


def folded(
    document: Document, budget: FoldBudget, found: OnnxRule, node: OnnxNode, schema: Any, operands: Sequence[Operand | None]
) -> Sequence[Operand | None] | str:  # fmt: skip
    """The results of a node whose operands are known; or why they are better computed in each run, as they are large."""
    key: Any = None
    # others are created again in each emission
    if any(x is not None and (x.weight or x.origin) for x in operands):
        key = _key(node, schema, operands)
        if (kept := document.folded.get(key)) is not None:
            _, arrays, steps = kept
            if why := budget.spend(_total(arrays), steps):  # as in the emission that computed them
                return why
            return [None if a is None else Operand(a) for a in arrays]
    made = _evaluated(document, budget, found, node, schema, operands)
    if isinstance(made, str):
        return made
    arrays, steps = made
    if key is not None:
        document.folded[key] = operands, arrays, steps
    return [None if a is None else Operand(a) for a in arrays]


def _total(arrays: Sequence[np.ndarray | None]) -> int:
    return sum(a.nbytes for a in arrays if a is not None)


def _evaluated(
    document: Document, budget: FoldBudget, found: OnnxRule, node: OnnxNode, schema: Any, operands: Sequence[Operand | None]
) -> tuple[list[np.ndarray | None], int] | str:  # fmt: skip
    """The results of a node and the steps that they took; or why it is not evaluated."""
    builder = Builder()
    ctx = GraphEmitter(builder, "cpu")
    fed: dict[Value, np.ndarray | np.generic] = {}
    inside: list[Operand | None] = []
    for n, x in enumerate(operands):
        if x is None:
            inside.append(None)
            continue
        array = x.array
        assert array is not None
        value = builder.value(f"operand.{n}", x.spec, Role.input)
        fed[value] = array
        inside.append(Operand(array, value))

    def declare(x: Operand) -> Value:
        array = x.array
        assert array is not None
        return constant(ctx, array)

    call = Call(ctx, node, schema.since_version, schema, document.source, inside, declare, budget)
    padded = inside if schema.max_input > 1000 else [*inside, *[None] * (schema.max_input - len(inside))]
    made = found.function(call, *padded)
    results = list(made) if isinstance(made, tuple) else [made]
    given = sum(array.nbytes for array in fed.values())
    values = [x.value if isinstance(x, Operand) and x.value is not None else x for x in results]
    sizes = [room(x.spec) for x in values if isinstance(x, Value)]
    between = [room(x.spec) for x in builder.graph.values if x.producer is not None]
    if max(sizes + between, default=0) > max(SMALL, WIDENS * given):
        return f"it is {max(sizes + between)} bytes of {given}, which is too large a constant to be computed while the model is read"
    steps = sum(price_of(builder.graph, op)[1] for op in builder.graph.ops)
    if sum(between) > budget.limit:
        return FoldBudget(budget.limit).spend(sum(between))
    if why := budget.spend(sum(sizes), steps):
        return why
    for value in builder.graph.externals(Role.fault):
        fed[value] = np.zeros(value.shape, value.dtype.numpy)
    known = evaluate(builder.graph, fed)
    if builder.valid is not None and not known[builder.valid]:
        raise bad(f"{node.op} reads at an index outside of its axis", where=node.where)
    return [_array(x, known) for x in values] + [None] * (len(node.outputs) - len(values)), steps


def _array(x: Any, known: dict[Value, np.ndarray]) -> np.ndarray | None:
    if isinstance(x, Operand):
        return x.array
    return known[x] if isinstance(x, Value) else None if x is None else np.asarray(x)
