"""What constants decide: a number that follows from numbers is one; a selection by a condition that is the same everywhere is one of its operands;
indices that are known to be in bounds need no check."""

from __future__ import annotations

from ...ir import Op, Recognised, Value
from ...ops.schema import ELEMENTWISE, schema_of
from ...types import bool_
from .flow import Flow

def decide(flow: Flow, op: Op, trains: bool) -> Recognised | None:
    """Let nobody read what is decided; ops that nothing reads are dropped later."""
    if op.kind == "check_indices":
        return None if trains else _check(flow, op)  # gradients may ask of the same indices, and number checks
    if op.inputs and len(op.outputs) == 1 and ELEMENTWISE in schema_of(op.kind).traits and flow.result(op).rank == 0:
        return _number(flow, op)
    return _selection(flow, op) if op.kind == "select" else None


def _number(flow: Flow, op: Op) -> Recognised | None:
    result = flow.result(op)
    known = None if flow.is_returned(result) or not flow.readers(result) else flow.known(result)
    if known is None:
        return None
    _read_instead(flow, result, flow.ctx.constant(known.item(), result.dtype))
    return Recognised("what constants decide", op.where, "a number", 1)


def _selection(flow: Flow, op: Op) -> Recognised | None:
    condition, *operands = flow.operands(op)
    number = flow.number(condition)
    if number is None:
        return None
    chosen, result = operands[0 if number else 1], flow.result(op)
    if chosen.spec != result.spec or flow.is_returned(result) or not flow.readers(result):
        return None
    _read_instead(flow, result, chosen)
    return Recognised("what constants decide", op.where, "a selection", 1)


def _check(flow: Flow, op: Op) -> Recognised | None:
    indices, fault = flow.operands(op)
    size = op.attrs["size"]
    known = flow.known(indices)
    if known is None or (known.size and not (known.min() >= -size and known.max() < size)):
        return None
    valid, told = (flow.value(vid) for vid in op.outputs)
    if flow.graph.updates.get(fault.vid) != told.vid or flow.is_returned(valid):
        return None
    del flow.graph.updates[fault.vid]
    if flow.ctx.builder.valid is valid:
        flow.ctx.builder.valid = None
    if flow.readers(valid):
        _read_instead(flow, valid, flow.ctx.constant(True, bool_))
    flow.renumber()
    return Recognised("what constants decide", op.where, "a check of indices", 1)


def _read_instead(flow: Flow, old: Value, new: Value) -> None:
    for op in old.users:
        op.inputs = tuple(new.vid if vid == old.vid else vid for vid in op.inputs)
    old.users, new.users = [], [*new.users, *old.users]
    flow.renumber()
