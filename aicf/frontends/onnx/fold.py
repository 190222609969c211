"""What depends on constants alone is computed while the graph is read, by the same rules: they emit into a graph of its own, which the
ops' references evaluate. Shapes are numbers then.

Large weights stay what they are, in the state dict by their names: how a model rearranges, converts or dequantises them is in the graph, of which
inference computes once what pays (graph/fuse/once.py)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ...graph.emit.builder import Builder, GraphEmitter
from ...graph.emit.evaluate import evaluate
from ...ir import Role, Value
from ...types import numel
from .graph import Document, OnnxNode
from .operands import Call, Operand, constant
from .reading import bad
from .table import OnnxRule

SMALL = 1 << 20  # bytes of a result that are always worth it
WIDENS = 8  # times its operands that a larger one may have: an i8 becomes an f64
LARGE = 1 << 16  # bytes of a weight that stays one
STAYING = frozenset(
    [
        "Transpose",
        "Reshape",
        "Flatten",
        "Squeeze",
        "Unsqueeze",
        "Cast",
        "CastLike",
        "DequantizeLinear",
        "Add",
        "Sub",
        "Mul",
        "Div",
        "Neg",
        "Slice",
        "Concat",
    ]
)


def stays_a_weight(node: OnnxNode, operands: Sequence[Operand | None]) -> bool:
    """Whether the graph has the node, though its operands are known."""
    if node.domain or node.op not in STAYING:
        return False
    return any(x is not None and x.weight and numel(x.shape) * x.dtype.itemsize > LARGE for x in operands)


def folded(
    document: Document, found: OnnxRule, node: OnnxNode, schema: Any, operands: Sequence[Operand | None]
) -> Sequence[Operand | None] | None:
    """The results of a node whose operands are known; None where they are better computed in each run, as they are large."""
    key: Any = None
    if any(x is not None and x.weight for x in operands):  # other arrays are made anew in each emission
        # by its content, since nodes of functions and branches are made anew, too, and an id returns; operands are kept, so theirs can't
        text = node.proto.SerializeToString(deterministic=True)
        which = tuple(None if x is None else x.weight or id(x.array) for x in operands)
        key = text, schema.since_version, which
        if (kept := document.folded.get(key)) is not None:
            return [None if a is None else Operand(a) for a in kept[1]]
    arrays = _evaluated(document, found, node, schema, operands)
    if arrays is None:
        return None
    if key is not None:
        document.folded[key] = operands, arrays
    return [None if a is None else Operand(a) for a in arrays]


def _evaluated(
    document: Document, found: OnnxRule, node: OnnxNode, schema: Any, operands: Sequence[Operand | None]
) -> list[np.ndarray | None] | None:
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

    call = Call(ctx, node, schema.since_version, schema, document.source, inside, declare)
    padded = inside if schema.max_input > 1000 else [*inside, *[None] * (schema.max_input - len(inside))]
    made = found.function(call, *padded)
    results = list(made) if isinstance(made, tuple) else [made]
    given = sum(array.nbytes for array in fed.values())
    values = [x.value if isinstance(x, Operand) and x.value is not None else x for x in results]
    sizes = [numel(x.shape) * x.dtype.itemsize for x in values if isinstance(x, Value)]
    sizes += [numel(op_value.shape) * op_value.dtype.itemsize for op_value in builder.graph.values]
    if max(sizes, default=0) > max(SMALL, WIDENS * given):
        return None
    for value in builder.graph.externals(Role.fault):
        fed[value] = np.zeros(value.shape, value.dtype.numpy)
    known = evaluate(builder.graph, fed)
    if builder.valid is not None and not known[builder.valid]:
        raise bad(f"{node.op} reads at an index outside of its axis", where=node.where)
    return [_array(x, known) for x in values] + [None] * (len(node.outputs) - len(values))


def _array(x: Any, known: dict[Value, np.ndarray]) -> np.ndarray | None:
    if isinstance(x, Operand):
        return x.array
    return known[x] if isinstance(x, Value) else None if x is None else np.asarray(x)
