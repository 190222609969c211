"""The ops that each recognised form may contain.

Samples confirm a form, they cannot prove it: a floor at -20 changes nothing at samples that are all greater. So an op that follows one rule in one part of
its domain and another rule elsewhere (a clamp, a comparison) may compute with a form's values only in a role that rules such a change out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from ...ir import Op, Value
from ...types import bool_
from .axes import MOVED
from .flow import CameClose, Flow, at

SMOOTH = MOVED | {"add", "sub", "mul", "div", "neg", "scale", "square", "reciprocal", "convert", "reduce_sum", "reduce_mean"}  # fmt: skip
SOFTMAXES = frozenset({"exp", "log", "exp2", "log2", "reduce_max", "softmax", "log_softmax", "logsumexp"})
COMPARISONS = frozenset({"equal", "not_equal", "less", "less_equal", "greater", "greater_equal"})
EXTREMES = frozenset({"maximum", "minimum"})
OF_NUMBERS = frozenset({"is_nan", "is_inf", "is_finite"})  # the samples have numbers of each kind
_DEPTH = 16  # ops that the search for a sign goes back


@dataclass(frozen=True)
class FormOps:
    """What is recognised, and the kinds of ops that may compute with its values, whatever their role."""

    name: str
    kinds: frozenset[str]


def stray(
    flow: Flow,
    form: FormOps,
    ops: Iterable[Op],
    starts: Iterable[int],
    may: Callable[[Op], bool] = lambda op: False,
) -> Op | None:
    """The first of these ops that computes with the form's values and is neither of its kinds nor in a harmless role.

    starts  the values that the form is a function of, by number; floats that the ops read from elsewhere are among them
    may     further roles that are harmless
    """
    ops = list(ops)
    own = {vid for op in ops for vid in op.outputs}
    varies = set(starts)
    for op in ops:
        operands = flow.operands(op)
        varies |= {
            v.vid for v in operands if v.vid not in own and v.dtype.kind == "float" and flow.known(v) is None
        }
        floats = [
            v for v in operands if v.vid in varies and v.dtype.kind == "float"
        ]  # conditions were allowed before
        if floats and not (_is_smooth(flow, form, op) or _is_harmless(flow, op, operands) or may(op)):
            return op
        if not varies.isdisjoint(op.inputs):
            varies.update(op.outputs)
    return None


def refused(form: FormOps, op: Op) -> CameClose:
    """What to raise where an op does not belong to a form: names the op and what to do."""
    return CameClose(
        f"{op.kind}{at(op.where)} can change values within {form.name}: apply it to the operands or to the result"
    )


def reached(flow: Flow, ends: Iterable[Value], ops: Sequence[Op], stops: Iterable[int]) -> list[Op]:
    """Those of the ops that the ends are computed by, in order, from values that are numbered in `stops` on."""
    among, stops = {op.oid for op in ops}, set(stops)
    found: dict[int, Op] = {}
    waiting = [value for value in ends if value.vid not in stops]
    while waiting:
        op = waiting.pop().producer
        if op is not None and op.oid in among and op.oid not in found:
            found[op.oid] = op
            waiting += [value for value in flow.operands(op) if value.vid not in stops]
    return [found[n] for n in sorted(found)]


def _is_smooth(flow: Flow, form: FormOps, op: Op) -> bool:
    """Whether it is one of the form's kinds. Floats that become integers or bools change in steps."""
    if op.kind == "convert":
        return flow.result(op).dtype.kind == "float"
    return op.kind == "select" or op.kind in SMOOTH or op.kind in form.kinds


def _is_harmless(flow: Flow, op: Op, operands: Sequence[Value]) -> bool:
    """Whether its rule changes nowhere among the numbers that its operand can be, or only at what is infinite or no number."""
    if op.kind in OF_NUMBERS:
        return True
    if op.kind in ("abs", "sign", "relu"):
        return is_nonnegative(flow, operands[0])
    if op.kind not in COMPARISONS | EXTREMES or any(v.dtype is bool_ for v in operands):
        return False
    left, right = operands
    if op.kind in COMPARISONS and (left.vid == right.vid or _is_at_its_maximum(flow, left, right)):
        return True
    for value, number in ((left, flow.number(right)), (right, flow.number(left))):
        if number is None:
            continue
        if np.isinf(number):
            return True
        if op.kind == "maximum" and number <= 0 and is_nonnegative(flow, value):
            return True
        if op.kind in COMPARISONS and number == 0 and _is_nonnegative_sum(flow, value):
            return True  # the samples have rows whose sum is 0
    return False


def is_nonnegative(flow: Flow, value: Value, depth: int = _DEPTH) -> bool:
    """Whether the ops that compute a value say that it is not negative."""
    number = flow.number(value)
    if number is not None:
        return number >= 0
    op = value.producer
    if op is None or depth == 0 or len(op.outputs) != 1:
        return False
    operands = flow.operands(op)
    if op.kind in ("exp", "exp2", "square", "abs", "softmax", "relu", "sqrt", "rsqrt"):
        return True
    if op.kind == "mul" and operands[0].vid == operands[1].vid:
        return True
    if op.kind in MOVED | {
        "convert",
        "reduce_sum",
        "reduce_mean",
        "reduce_max",
        "reciprocal",
        "add",
        "mul",
        "div",
    }:
        return all(is_nonnegative(flow, v, depth - 1) for v in operands)
    return op.kind == "maximum" and any(is_nonnegative(flow, v, depth - 1) for v in operands)


def before_moves(flow: Flow, value: Value, more: frozenset[str] = frozenset()) -> Value:
    """What a value is moved from."""
    while value.producer is not None and value.producer.kind in MOVED | more:
        value = flow.operands(value.producer)[0]
    return value


def _is_nonnegative_sum(flow: Flow, value: Value) -> bool:
    op = before_moves(flow, value, frozenset({"convert"})).producer
    return op is not None and op.kind == "reduce_sum" and is_nonnegative(flow, value)


def _is_at_its_maximum(flow: Flow, left: Value, right: Value) -> bool:
    """Whether a value is compared with the greatest along an axis, as the gradient of a maximum does."""
    for value, other in ((left, right), (right, left)):
        most = before_moves(flow, other)
        while (op := most.producer) is not None and op.kind == "maximum":
            bounds = [flow.number(v) for v in flow.operands(op)]
            if -np.inf not in bounds:
                break
            most = before_moves(flow, flow.operands(op)[1 - bounds.index(-np.inf)])
        if op is not None and op.kind == "reduce_max":
            return before_moves(flow, flow.operands(op)[0]).vid == before_moves(flow, value).vid
    return False
