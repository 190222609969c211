"""A softmax, as one op or in several: found by what it computes, whichever of the form's ops it consists of."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from ...ir import Op, Value
from ...ops.schema import ELEMENTWISE, schema_of
from .axes import ALONG, FOLDED, MOVED, Axis, Group, every, fresh
from .flow import Flow
from .forms import SOFTMAXES, FormOps, stray
from .probe import Layouts, Probe, Unknowable

FAR = 32  # ops between a weight and what it is a softmax of
EXACT = 1e-7
SOFTMAX = FormOps("a softmax", SOFTMAXES)
_ROWS, _LENGTH, _OTHERS = 3, 37, 2  # of what is probed


@dataclass(frozen=True)
class FoundSoftmax:
    """weights = softmax(scores) along some axis of the scores.

    ops     in order: all that is between them, the op that makes the weights the last one
    empty   what a row of -inf gives: "nan" or "zero"
    broken  what a row with a NaN or +inf gives
    stray   an op within it that can change its values elsewhere than at the samples: it only came close
    """

    scores: Value
    weights: Value
    ops: tuple[Op, ...]
    empty: str
    broken: str
    stray: Op | None = None


def is_plain(op: Op) -> bool:
    """Whether its result is made element by element, or moved, or of rows."""
    kind = op.kind
    return (
        kind in MOVED or kind in FOLDED or kind in ALONG or ELEMENTWISE in schema_of(kind).traits
    ) and len(op.outputs) == 1


def softmax_behind(flow: Flow, weights: Value) -> FoundSoftmax | None:
    """The softmax that makes these values, and nothing else; one that came close where there is no other."""
    tried: set[int] = set()
    close: FoundSoftmax | None = None
    for scores in _candidates(flow, weights):
        if scores.vid in tried:
            continue
        tried.add(scores.vid)
        found = _softmax_of(flow, scores, weights)
        if found is not None and found.stray is None:
            return found
        close = close or found
    return close


def _candidates(flow: Flow, weights: Value) -> Iterator[Value]:
    """What it may be the softmax of: operands of softmaxes and exponentials near by, the nearest first."""
    waiting, seen = [weights], set[int]()
    for _ in range(FAR):
        if not waiting:
            return
        value = waiting.pop(0)
        op = value.producer
        if op is None or value.vid in seen or not is_plain(op):
            continue
        seen.add(value.vid)
        operands = flow.operands(op)
        if op.kind in ("softmax", "log_softmax", "logsumexp"):
            yield operands[0]
            continue
        if op.kind == "exp":
            inner = operands[0].producer
            if inner is not None and inner.kind == "sub":
                yield flow.operands(inner)[0]
            yield operands[0]
        waiting += operands


def between(flow: Flow, start: Value, end: Value) -> tuple[Op, ...] | None:
    """The ops that make one value of another one and of numbers, in order; None if it needs anything else."""
    found: dict[int, Op] = {}
    waiting = [end]
    while waiting:
        value = waiting.pop()
        op = value.producer
        if value.vid == start.vid or (op is not None and op.oid in found) or flow.number(value) is not None:
            continue
        if op is None or not is_plain(op) or len(found) >= FAR:
            return None
        found[op.oid] = op
        waiting += flow.operands(op)
    return tuple(found[n] for n in sorted(found))


def _softmax_of(flow: Flow, scores: Value, weights: Value) -> FoundSoftmax | None:
    ops = between(flow, scores, weights)
    if not ops or any(n == 0 for n in scores.shape):
        return None
    layout = fresh(scores.shape)
    domain = Layouts(flow, {scores.vid: layout})
    if domain.follow(ops) is not None:
        return None
    along = axis_of(flow, domain, ops)
    whole = every(layout)
    if not along or not set(along) <= set(whole) or set(every(domain.of(weights))) != set(whole):
        return None
    sizes = dict.fromkeys(whole, _OTHERS) | {axis: _LENGTH if len(along) == 1 else 5 for axis in along}
    others = tuple(axis for axis in whole if axis not in along)
    if others:
        sizes[others[-1]] = _ROWS
    order = (*others, *along)

    def probed(rows: np.ndarray) -> np.ndarray:
        """The weights of rows of scores, of which each has its own; as rows."""
        shape = [sizes[axis] for axis in order]
        probe = Probe(domain, sizes, {scores.vid: (rows.reshape(shape), order)})
        probe.run(ops)
        return probe.whole(weights, order).reshape(rows.shape)

    try:
        empty, broken = _checked(probed, sizes, others, along)
    except (Unknowable, NotASoftmax):
        return None
    return FoundSoftmax(scores, weights, ops, empty, broken, stray(flow, SOFTMAX, ops, {scores.vid}))


def axis_of(flow: Flow, domain: Layouts, ops: tuple[Op, ...]) -> Group:
    """The atoms that sums and maxima go over: the same of all."""
    found: set[Group] = set()
    for op in ops:
        if op.kind in FOLDED | ALONG:
            operand = flow.operands(op)[0]
            axes = op.attrs["axes"] if op.kind in FOLDED else (op.attrs["axis"],)
            over = tuple(a for n in sorted(x % operand.rank for x in axes) for a in domain.of(operand)[n])
            if over:
                found.add(over)
    return found.pop() if len(found) == 1 else ()


class NotASoftmax(Exception):
    pass


def _checked(probed, sizes: dict[Axis, int], others: Group, along: Group) -> tuple[str, str]:  # type: ignore[no-untyped-def]
    """What rows of -inf, and rows with a NaN, give; NotASoftmax unless others are what a softmax of them is."""
    rng = np.random.default_rng(20)
    rows = int(np.prod([sizes[a] for a in others], dtype=int))
    length = int(np.prod([sizes[a] for a in along], dtype=int))
    plain = rng.normal(size=(rows, length))
    hidden = np.where(rng.random((rows, length)) < 0.4, -np.inf, plain)
    hidden[:, 0] = plain[:, 0]
    floor = np.where(rng.random((rows, length)) < 0.4, -1e9, plain)
    equal = np.broadcast_to(plain[:, :1], plain.shape)
    spread = (plain, 1e-3 * plain, 30 * plain, 300 * plain)
    for x in (*spread, plain - 200, plain + 1e4, equal, hidden, floor, np.full_like(plain, -1e9)):
        e = np.exp(x - x.max(-1, keepdims=True))
        if not np.allclose(probed(x), e / e.sum(-1, keepdims=True), rtol=EXACT, atol=1e-12):
            raise NotASoftmax
    made = []
    nan, more = plain.copy(), plain.copy()
    nan[:, 1], more[:, -1] = np.nan, np.inf
    for x in (np.full_like(plain, -np.inf), nan, more):
        y = probed(x)
        if not (np.isnan(y).all() or (y == 0).all()):
            raise NotASoftmax
        made.append("nan" if np.isnan(y).all() else "zero")
    if made[1] != made[2]:
        raise NotASoftmax
    return made[0], made[1]
