"""What constants decide: a number that follows from numbers is one, and so is an array of one number; a selection by a condition that is the same
everywhere is one of its operands; indices that are known to be in bounds need no check."""

from __future__ import annotations

from typing import Any

import numpy as np

from ...ir import Op, Recognised
from ...ops.schema import ELEMENTWISE, schema_of
from .flow import Flow


def decide(flow: Flow, op: Op, trains: bool) -> Recognised | None:
    """Let nobody read what is decided; ops that nothing reads are dropped later."""
    if op.kind == "check_indices":
        # gradients may ask of the same indices, and number checks
        return None if trains else _check(flow, op)
    if flow.result(op).rank == 0 and (op.kind == "fill" or _is_elementwise(op)):
        return _number(flow, op)
    if op.kind in ("gather", "scatter_add"):
        return _only_one(flow, op)
    found = _selection(flow, op) if op.kind == "select" else None
    return found or _repeated(flow, op)


def _is_elementwise(op: Op) -> bool:
    return len(op.outputs) == 1 and ELEMENTWISE in schema_of(op.kind).traits


def _repeated(flow: Flow, op: Op) -> Recognised | None:
    """Arrays of one number, where it does as well: what elements are combined with is repeated anyway."""
    if not _is_elementwise(op):
        return None
    operands, shape = flow.operands(op), flow.result(op).shape
    asked = {v.vid: v for v in operands if v.rank and v.producer is not None and flow.number(v) is not None}
    others = [v.shape for v in operands if v.vid not in asked]
    if not asked or not others or len(operands) < len(op.inputs) or np.broadcast_shapes(*others) != shape:
        return None
    for value in asked.values():
        number = flow.number(value)
        assert number is not None
        flow.read_by(op, value, flow.constant(number, value.dtype))
    return Recognised("what constants decide", op.where, "an array of one number", 1)


def _only_one(flow: Flow, op: Op) -> Recognised | None:
    """Indices that pick all that there is, one along an axis."""
    source, indices = flow.operands(op)
    result = flow.result(op)
    if source.spec.numel != result.spec.numel:
        return None
    size = source.shape[op.attrs["axis"]] if op.kind == "gather" else op.attrs["size"]
    known = flow.known(indices) if size == 1 and indices.spec.numel == 1 else None
    if known is None or known.any() or flow.is_returned(result) or not flow.readers(result):
        return None
    emit: Any = flow.ctx
    made = (
        source
        if source.shape == result.shape
        else flow.before(op, lambda: emit.reshape(source, shape=result.shape))
    )
    assert made is not None
    flow.read_instead(result, made)
    return Recognised("what constants decide", op.where, "the only one of a gather", 1)


def _number(flow: Flow, op: Op) -> Recognised | None:
    result = flow.result(op)
    known = None if flow.is_returned(result) or not flow.readers(result) else flow.known(result)
    if known is None:
        return None
    flow.read_instead(result, flow.constant(known.item(), result.dtype))
    return Recognised("what constants decide", op.where, "a number", 1)


def _selection(flow: Flow, op: Op) -> Recognised | None:
    condition, *operands = flow.operands(op)
    number = flow.number(condition)
    if number is None:
        return None
    chosen, result = operands[0 if number else 1], flow.result(op)
    if chosen.spec != result.spec or flow.is_returned(result) or not flow.readers(result):
        return None
    flow.read_instead(result, chosen)
    return Recognised("what constants decide", op.where, "a selection", 1)


def _check(flow: Flow, op: Op) -> Recognised | None:
    indices = flow.operands(op)[0]
    size = op.attrs["size"]
    known, least = flow.known(indices), -size if op.attrs["negative"] else 0
    if known is None or (known.size and not (known.min() >= least and known.max() < size)):
        return None
    if not flow.drop_check(op):
        return None
    return Recognised("what constants decide", op.where, "a check of indices", 1)
