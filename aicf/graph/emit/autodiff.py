"""Reverse-mode differentiation: walks the ops backwards and lets each op's gradient rule emit what it needs."""

from __future__ import annotations

import inspect
from collections.abc import Sequence

from ...errors import RegistryError, TypeInferenceError
from ...ir import Op, Value
from ...ops.schema import schema_of
from .builder import GraphEmitter


def gradients(emit: GraphEmitter, loss: Value, wrt: Sequence[Value]) -> list[Value]:
    """d loss / d w for each w. The loss is 0-D; a value that the loss does not depend on gets zeros."""
    if loss.shape != ():
        raise TypeInferenceError(
            "only a 0-D value can be differentiated",
            got=str(loss.spec),
            where=loss.where,
            hint="reduce it first: emit.reduce_mean(loss)",
        )
    graph = emit.builder.graph
    ops = list(graph.ops)
    reached = {w.vid for w in wrt}
    for op in ops:  # what depends on some w
        if reached.intersection(op.inputs):
            reached.update(op.outputs)
    grads: dict[int, Value] = {}
    if loss.vid in reached:
        grads[loss.vid] = emit.constant(1.0, loss.dtype)
    for op in reversed(ops):
        if not any(v in grads for v in op.outputs) or not reached.intersection(op.inputs):
            continue
        for vid, grad in zip(op.inputs, _rule(emit, op, grads)):
            if vid in reached and grad is not None:
                grads[vid] = emit.add(grads[vid], grad) if vid in grads else grad
    return [
        grads[w.vid] if w.vid in grads else emit.fill(shape=w.shape, value=0.0, dtype=w.dtype) for w in wrt
    ]


def _rule(emit: GraphEmitter, op: Op, grads: dict[int, Value]) -> tuple[Value | None, ...]:
    """Call the op's gradient rule with what its parameters name: operands, results, their gradients, attributes."""
    schema, values = schema_of(op.kind), emit.builder.graph.values
    if schema.gradient_fn is None:
        raise TypeInferenceError(
            f"{op.kind} has no gradient, and the loss depends on it",
            where=op.where,
            hint=f"register one: @{op.kind}.gradient, see docs/add-an-op.md",
        )
    operands = [values[vid] if vid >= 0 else None for vid in op.inputs]
    known: dict[str, object] = {"emit": emit, **op.attrs, **schema.by_parameter(operands)}
    for n, result in enumerate(schema.results):
        vid = op.outputs[n] if n < len(op.outputs) else -1
        known[result] = values[vid] if vid >= 0 else None
        known["d" + result] = grads.get(vid)
    got = schema.gradient_fn(
        **{name: known[name] for name in inspect.signature(schema.gradient_fn).parameters}
    )
    got = got if isinstance(got, tuple) else (got,)
    if schema.variadic and len(got) != len(operands):
        raise RegistryError(
            f"the gradient rule of {op.kind} returned {len(got)} gradients, and {len(operands)} operands were given",
            expected="one for each, or None", where=op.where,
        )  # fmt: skip
    return got
