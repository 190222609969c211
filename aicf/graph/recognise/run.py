"""The pass: what is spelt out, as the op that it is, where that is no slower; and what came close, with what was in the way."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence

from ...ir import Graph, Op, Recognised, Value
from ..emit.builder import GraphEmitter
from . import attention, attention_op, cross_entropy, cross_entropy_op, decided, norms, positions
from .axes import MOVED
from .flow import CameClose, Edit, Flow

Price = Callable[[Graph, Sequence[Op], Sequence[Value]], float]


def recognise(
    ctx: GraphEmitter, wanted: Iterable[Value], price: Price, trains: bool = False, strict: bool = False
) -> list[Recognised]:
    """Look through a graph under construction; what is found stands in it, and `graph.recognised` has it, as the result does.

    wanted  what is returned of it, or differentiated
    price   predicted time of some ops by themselves
    trains  whether gradients will be made of it
    strict  find only: every op stays as it is
    """
    flow = Flow(ctx, wanted)
    notes: list[Recognised | None] = []
    logits: set[int] = set()  # that were looked at
    for op in [] if strict else list(flow.graph.ops):
        if flow.has(op):
            notes.append(decided.decide(flow, op, trains))
    flow.renumber()
    for op in list(flow.graph.ops):
        if not flow.has(op):
            continue
        if op.kind == "gemm":
            notes.append(_attention(flow, op, price, trains, strict))
        elif op.kind in cross_entropy.ANCHORS:
            notes.append(_loss(flow, op, logits, price, trains, strict))
        elif op.kind in norms.ANCHORS and not strict:
            notes.append(_slope(flow, op, price))
        elif op.kind in positions.KINDS and not strict:
            notes.append(_positions(flow, op))
    flow.graph.recognised = [note for note in notes if note is not None]
    return flow.graph.recognised


def _attention(flow: Flow, op: Op, price: Price, trains: bool, strict: bool) -> Recognised | None:
    try:
        found = attention.find(flow, op, trains)
        if found is None:
            return None
        gradient = found.gradient
        old = (
            [found.result, *(piece.value for piece in gradient.pieces.values())]
            if gradient
            else [found.result]
        )
        edits = attention_op.AttentionEdit(flow, found).edits()
        _replaced(flow, edits, _with_operands(flow, found), old, price, strict)
        told = attention_op.described(found)
        return Recognised(
            "attention", op.where, told, len(found.ops) + (len(gradient.ops) if gradient else 0)
        )
    except CameClose as near:
        return Recognised("attention", op.where, str(near), 0)


def _loss(flow: Flow, op: Op, seen: set[int], price: Price, trains: bool, strict: bool) -> Recognised | None:
    try:
        found = cross_entropy.find_loss(flow, op, seen)
        if found is None:
            return None
        old = [v for v in (found.loss, found.slope.value if found.slope else None) if v is not None]
        _replaced(flow, cross_entropy_op.LossEdit(flow, found).edits(), found.ops, old, price, strict)
        if not trains:
            cross_entropy_op.drop_checks(flow, found.ops)
        return Recognised("cross entropy", op.where, cross_entropy_op.described(found), len(found.ops))
    except CameClose as near:
        return Recognised("cross entropy", op.where, str(near), 0)


def _slope(flow: Flow, op: Op, price: Price) -> Recognised | None:
    try:
        found = norms.find_slope(flow, op)
        if found is None:
            return None
        _replaced(flow, norms.SlopeEdit(flow, found).edits(), found.ops, [found.value], price, False)
        return Recognised("gradient of a norm", op.where, norms.described(found), len(found.ops))
    except CameClose as near:
        return Recognised("gradient of a norm", op.where, str(near), 0)


def _replaced(
    flow: Flow, edits: Sequence[Edit], going: Sequence[Op], old: Sequence[Value], price: Price, strict: bool
) -> None:
    """CameClose, and all as it was, where that does not pay."""
    if strict:
        raise CameClose('numerics="strict" keeps every op as it is')
    before, after = price(flow.graph, going, old), math.inf

    def pays(ops: Sequence[Op], results: Sequence[Value]) -> bool:
        nonlocal after
        after = price(flow.graph, ops, results)
        return after <= before

    if not flow.replace(edits, pays):
        raise CameClose(_slower(before, after))


def _positions(flow: Flow, op: Op) -> Recognised | None:
    found = positions.find_positions(flow, op)
    if found is None:
        return None
    positions.settle(flow, found)
    return Recognised(f"mask of {op.kind}", op.where, found.told, 1)


def _slower(before: float, after: float) -> str:
    if math.isinf(after):
        return "no kernel takes it"
    return f"the op would take {after:.3g} us, the ops that it is made of {before:.3g}"


def _with_operands(flow: Flow, found: attention.Found) -> list[Op]:
    """The ops that go when it is found: its own, and those that only move, scale or widen its operands, and do so for nothing else."""
    going = {op.oid: op for op in (*found.ops, *(found.gradient.ops if found.gradient else ()))}
    ends = {
        x.value.vid for x in (found.q, found.k, found.v, *([found.gradient.dout] if found.gradient else ()))
    }
    waiting = [vid for op in going.values() if op.kind == "gemm" for vid in op.inputs]
    while waiting:
        vid = waiting.pop()
        op = flow.value(vid).producer if vid >= 0 and vid not in ends else None
        if op is None or op.oid in going or op.kind not in MOVED | {"convert", "mul", "div", "scale"}:
            continue
        if all(reader.oid in going for reader in flow.readers(flow.value(vid))) and not flow.is_returned(
            flow.value(vid)
        ):
            going[op.oid] = op
            waiting += op.inputs
    return [going[n] for n in sorted(going)]
