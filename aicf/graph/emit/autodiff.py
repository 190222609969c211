"""Reverse-mode differentiation: walks the ops backwards and lets each op's gradient rule emit what it needs."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from typing import Any

from ...errors import RegistryError, TypeInferenceError
from ...ir import Op, Value
from ...ops.schema import schema_of
from ...ops.whose_line import definition
from .builder import GraphEmitter


def gradients(
    emit: GraphEmitter, loss: Value, wrt: Sequence[Value], scale: Value | None = None,
    copies: Sequence[tuple[Value, Value]] = (),
) -> list[Value]:  # fmt: skip
    """d loss / d w for each w. The loss is 0-D; a value that the loss does not depend on gets zeros.

    scale   0-D, of the loss's type: d (scale * loss) / d w instead
    copies  values that stand for some w in another type, each with its w
    """
    if loss.shape != ():
        raise TypeInferenceError(
            "only a 0-D value can be differentiated",
            got=str(loss.spec),
            where=loss.where,
            hint="reduce it first: emit.reduce_mean(loss)",
        )
    return pulled_back(emit, loss, scale, wrt, copies)


def pulled_back(
    emit: GraphEmitter, y: Value, dy: Value | None, wrt: Sequence[Value], copies: Sequence[tuple[Value, Value]] = ()
) -> list[Value]:  # fmt: skip
    """d sum(y * dy) / d w for each w, where dy is of y's shape and type; 1 if it is None. The rest as for `gradients`."""
    seed = emit.constant(1.0, y.dtype) if dy is None else dy
    found = from_seeds(emit, [(y, seed)], wrt, copies)
    return [
        emit.fill(shape=w.shape, value=0.0, dtype=w.dtype) if grad is None else grad
        for w, grad in zip(wrt, found)
    ]


def from_seeds(
    emit: GraphEmitter, seeds: Sequence[tuple[Value, Value]], wrt: Sequence[Value], copies: Sequence[tuple[Value, Value]] = ()
) -> list[Value | None]:  # fmt: skip
    """The same of the sum over several y, each with its dy; None for a value that none of them depends on."""
    graph = emit.builder.graph
    ops = list(graph.ops)
    reached = {w.vid for w in (*wrt, *(copy for copy, _ in copies))}
    for op in ops:  # what depends on some w
        if reached.intersection(op.inputs):
            reached.update(op.outputs)
    grads: dict[int, Value] = {}
    parts: dict[int, list[Value]] = {}  # gradients of a value's slices, each within zeros
    for y, dy in seeds:
        if y.vid in reached:
            _add(emit, grads, y.vid, dy)
    waiting = _by_first_reader(ops, copies)
    for op in reversed(ops):
        for vid in parts.keys() & set(op.outputs):
            _join(emit, grads, vid, parts.pop(vid))
        asked = any(v in grads for v in op.outputs) and reached.intersection(op.inputs)
        if asked:
            with emit.builder.because_of(op):
                for vid, grad in zip(op.inputs, _rule(emit, op, grads)):
                    if vid in reached and grad is not None:
                        if op.kind == "slice" and grad.producer is not None and grad.producer.kind == "pad":
                            parts.setdefault(vid, []).append(grad)
                        else:
                            _add(emit, grads, vid, grad)
        for copy, w in waiting.pop(op.oid, ()):
            if copy.vid in parts:
                _join(emit, grads, copy.vid, parts.pop(copy.vid))
            if copy.vid in grads:  # all of it, and whatever made the last of it can widen it
                _add(emit, grads, w.vid, emit.convert(grads[copy.vid], dtype=w.dtype))
    for vid, padded in parts.items():
        _join(emit, grads, vid, padded)
    return [grads.get(w.vid) for w in wrt]


def _by_first_reader(
    ops: Sequence[Op], copies: Sequence[tuple[Value, Value]]
) -> dict[int, list[tuple[Value, Value]]]:
    """By the op that reads them first, whose gradients come last."""
    found: dict[int, list[tuple[Value, Value]]] = {}
    for copy, w in copies:
        reader = next((op for op in ops if copy.vid in op.inputs), None)
        if reader is not None:
            found.setdefault(reader.oid, []).append((copy, w))
    return found


def _add(emit: GraphEmitter, grads: dict[int, Value], vid: int, grad: Value) -> None:
    grads[vid] = emit.add(grads[vid], grad) if vid in grads else grad


def _join(emit: GraphEmitter, grads: dict[int, Value], vid: int, padded: list[Value]) -> None:
    """Gradients of slices: side by side where they make the whole, such as those of queries, keys and values; else added up."""
    whole = _side_by_side(emit, padded)
    for grad in padded if whole is None else [whole]:
        _add(emit, grads, vid, grad)


def _side_by_side(emit: GraphEmitter, padded: list[Value]) -> Value | None:
    """The sum of what is padded with zeros as one concatenation, if no element of it comes from two, or from none, of them."""
    ops = [grad.producer for grad in padded if grad.producer is not None]
    inner = [emit.builder.graph.values[op.inputs[0]] for op in ops]
    axes = {
        axis
        for part, grad in zip(inner, padded)
        for axis, n in enumerate(part.shape)
        if n != grad.shape[axis]
    }
    if len(padded) < 2 or len(axes) != 1 or any(any(op.attrs["interior"]) for op in ops):
        return None
    (axis,) = axes
    order = sorted(range(len(ops)), key=lambda n: ops[n].attrs["low"][axis])
    end = 0
    for n in order:
        if ops[n].attrs["low"][axis] != end:
            return None
        end += inner[n].shape[axis]
    if end != padded[0].shape[axis]:
        return None
    made: Value = emit.concatenate(*(inner[n] for n in order), axis=axis)
    return made


@lru_cache(maxsize=4096)
def _parameters(rule: Callable[..., Any]) -> tuple[str, ...]:
    return tuple(inspect.signature(rule).parameters)


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
    pull = partial(from_seeds, emit)
    known: dict[str, object] = {"emit": emit, "pull": pull, **op.attrs, **schema.by_parameter(operands)}
    known.update(schema.results_by_parameter([values[vid] for vid in op.outputs]))
    cotangents = schema.results_by_parameter([grads.get(vid) for vid in op.outputs])
    known.update(("d" + result, grad) for result, grad in cotangents.items())
    got = schema.gradient_fn(**{name: known[name] for name in _parameters(schema.gradient_fn)})
    got = got if isinstance(got, tuple) else (got,)
    if len(got) != len(operands):
        raise RegistryError(
            f"the gradient rule of {op.kind} returned {len(got)} gradients, and {len(operands)} operands were given",
            expected="one for each, or None", where=definition(schema.gradient_fn), details=[f"op at: {op.where}"],
            hint="return them as a tuple, in the order of the operands",
        )  # fmt: skip
    for decl, operand, grad in zip(schema.declared(len(operands)), operands, got):
        if operand is not None and grad is not None and getattr(grad, "shape", None) != operand.shape:
            raise RegistryError(
                f"the gradient rule of {op.kind} returned a gradient for {decl.name} that is not shaped as it is",
                expected=str(operand.shape), got=str(getattr(grad, "shape", repr(grad))),
                where=definition(schema.gradient_fn), details=[f"op at: {op.where}"],
                hint=f"a gradient has one element for each of {decl.name}, or is None",
            )  # fmt: skip
    return got
