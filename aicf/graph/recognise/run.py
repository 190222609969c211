"""The pass: what is spelt out, as the op that it is, where that is no slower; and what came close, with what was in the way."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from ...ir import Graph, Op, Recognised, Value
from ..emit.builder import GraphEmitter
from . import attention, attention_op, cross_entropy, cross_entropy_op, decided, norms, positions
from .axes import MOVED
from .flow import CameClose, Edit, Flow

Price = Callable[[Graph, Sequence[Op], Sequence[Value]], float]


@dataclass
class _Pass:
    """A graph under construction, what a time is predicted by, and how much may be changed.

    logits  those that a cross entropy was looked for around
    """

    flow: Flow
    price: Price
    trains: bool
    strict: bool
    logits: set[int] = field(default_factory=set)


@dataclass(frozen=True)
class Recogniser:
    """One form: the kinds of ops that a search for it starts at, and the search.

    strict  whether it looks with strict numerics, too, to say what it would do
    """

    kinds: frozenset[str]
    look: Callable[[_Pass, Op], Recognised | None]
    strict: bool = False


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
    search = _Pass(flow, price, trains, strict)
    notes: list[Recognised | None] = []
    for op in [] if strict else list(flow.graph.ops):
        if flow.has(op):
            notes.append(decided.decide(flow, op, trains))
    flow.renumber()
    for op in list(flow.graph.ops):
        form = next((one for one in RECOGNISERS.values() if op.kind in one.kinds), None)
        if form is not None and flow.has(op) and (form.strict or not strict):
            notes.append(form.look(search, op))
    flow.graph.recognised = [note for note in notes if note is not None]
    return flow.graph.recognised


def _attention(search: _Pass, op: Op) -> Recognised | None:
    flow = search.flow
    try:
        found = attention.find(flow, op, search.trains)
        if found is None:
            return None
        gradient = found.gradient
        old = (
            [found.result, *(piece.value for piece in gradient.pieces.values())]
            if gradient
            else [found.result]
        )
        edits = attention_op.AttentionEdit(flow, found).edits()
        _replaced(search, edits, _with_operands(flow, found), old)
        told = attention_op.described(found)
        return Recognised(
            "attention", op.where, told, len(found.ops) + (len(gradient.ops) if gradient else 0)
        )
    except CameClose as near:
        return Recognised("attention", op.where, str(near), 0)


def _loss(search: _Pass, op: Op) -> Recognised | None:
    flow = search.flow
    try:
        found = cross_entropy.find_loss(flow, op, search.logits)
        if found is None:
            return None
        old = [v for v in (found.loss, found.slope.value if found.slope else None) if v is not None]
        _replaced(search, cross_entropy_op.LossEdit(flow, found).edits(), found.ops, old)
        if not search.trains:
            cross_entropy_op.drop_checks(flow, found.ops)
        return Recognised("cross entropy", op.where, cross_entropy_op.described(found), len(found.ops))
    except CameClose as near:
        return Recognised("cross entropy", op.where, str(near), 0)


def _slope(search: _Pass, op: Op) -> Recognised | None:
    flow = search.flow
    try:
        found = norms.find_slope(flow, op)
        if found is None:
            return None
        _replaced(search, norms.SlopeEdit(flow, found).edits(), found.ops, [found.value])
        return Recognised("gradient of a norm", op.where, norms.described(found), len(found.ops))
    except CameClose as near:
        return Recognised("gradient of a norm", op.where, str(near), 0)


def _replaced(search: _Pass, edits: Sequence[Edit], going: Sequence[Op], old: Sequence[Value]) -> None:
    """CameClose, and all as it was, where that does not pay."""
    flow, price = search.flow, search.price
    if search.strict:
        raise CameClose('numerics="strict" keeps every op as it is')
    before, after = price(flow.graph, going, old), math.inf

    def pays(ops: Sequence[Op], results: Sequence[Value]) -> bool:
        nonlocal after
        after = price(flow.graph, ops, results)
        return after <= before

    if not flow.replace(edits, pays):
        raise CameClose(_slower(before, after))


def _positions(search: _Pass, op: Op) -> Recognised | None:
    flow = search.flow
    found = positions.find_positions(flow, op)
    if found is None:
        return None
    positions.settle(flow, found)
    return Recognised(f"mask of {op.kind}", op.where, found.told, 1)


RECOGNISERS = {
    "attention": Recogniser(frozenset({"gemm"}), _attention, strict=True),
    "cross entropy": Recogniser(cross_entropy.ANCHORS, _loss, strict=True),
    "gradient of a norm": Recogniser(norms.ANCHORS, _slope),
    "mask of attention": Recogniser(positions.KINDS, _positions),
}  # by their forms, one of which an op belongs to at most


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
