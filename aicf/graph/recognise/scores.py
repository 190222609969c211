"""What attention does with products of queries and keys before their softmax: from the scores up to the product, one op after the other."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from ...ir import Op, Value
from ...types import ActKind
from .axes import MOVED
from .flow import CameClose, Flow

LEAST = {"f16": -1e4}  # what masks scores away: less than any of them
LEAST_OF_OTHERS = -9.9e8  # -1e9, rounded to bf16: scores as large as that are none that kernels take


@dataclass(frozen=True)
class Hidden:
    """Scores are `fill` where `condition`, a bool, is not `shown`. later: whether something is added behind it."""

    condition: Value
    shown: bool
    fill: float
    later: bool


@dataclass(frozen=True)
class Added:
    """`factor` times a value is added."""

    value: Value
    factor: float


@dataclass(frozen=True)
class Scores:
    """softcap * tanh(scale * product / softcap), with what is added and hidden behind it. `ops`: from the product on, in order."""

    product: Op
    scale: float
    softcap: float
    hidden: tuple[Hidden, ...]
    added: tuple[Added, ...]
    ops: tuple[Op, ...]


@dataclass(frozen=True)
class _Walk:
    """What was met between the softmax and a value: factors are those of the value."""

    factor: float = 1.0
    scale: float = 1.0  # between a softcap's tanh and the value
    softcap: float = 0.0
    hidden: tuple[Hidden, ...] = ()
    added: tuple[Added, ...] = ()
    ops: tuple[Op, ...] = field(default=())

    def times(self, number: float) -> _Walk:
        if self.softcap:
            return replace(self, scale=self.scale * number)
        return replace(self, factor=self.factor * number)


def scores_of(flow: Flow, value: Value) -> Scores:
    """CameClose where something else is done with them, or where they come from no product."""
    ends: list[Value] = []
    for found in _walked(flow, value, _Walk(), ends):
        return found
    raise CameClose(
        f"scores come from no product of queries and keys, but from {', '.join(map(_made, ends))}"
    )


def _walked(flow: Flow, value: Value, walk: _Walk, ends: list[Value]) -> Iterator[Scores]:
    """Of either operand of a sum, where both may be scores. `ends` has where it went no further."""
    op = value.producer
    while op is not None and len(op.outputs) == 1:
        walk = replace(walk, ops=(op, *walk.ops))
        operands = flow.operands(op)
        kind = op.kind
        if kind == "gemm":
            yield _product(flow, op, walk)
            return
        if kind in MOVED - {"broadcast_in_dim"} or (kind == "convert" and operands[0].dtype.kind == "float"):
            value = operands[0]
        elif kind in ("mul", "div", "scale", "neg"):
            scaled = _scaled(flow, op, operands)
            if scaled is None:
                break
            value, number = scaled
            walk = walk.times(number)
        elif kind in ("add", "sub") and not walk.softcap:
            for n in (0, 1):
                sign = -1.0 if kind == "sub" and n == 0 else 1.0
                other = operands[1 - n]
                if n == 1 and kind == "sub":  # something less the scores
                    continue
                added = (*walk.added, Added(other, sign * walk.factor))
                yield from _walked(flow, operands[n], replace(walk, added=added), ends)
            return
        elif kind == "select" and not walk.softcap:
            hidden = _hidden(flow, operands, walk)
            if hidden is None:
                break
            value, one = hidden
            walk = replace(walk, hidden=(*walk.hidden, one))
        elif kind == "tanh" and not walk.softcap and walk.factor > 0:
            value, walk = operands[0], replace(walk, softcap=walk.factor)
        else:
            break
        op = value.producer
    ends.append(value)


def _scaled(flow: Flow, op: Op, operands: list[Value]) -> tuple[Value, float] | None:
    if op.kind == "neg":
        return operands[0], -1.0
    if op.kind == "scale":
        return operands[0], float(op.attrs["factor"])
    numbers = [flow.number(v) for v in operands]
    if numbers[1] is not None and (op.kind == "mul" or numbers[1] != 0):
        return operands[0], numbers[1] if op.kind == "mul" else 1 / numbers[1]
    if op.kind == "mul" and numbers[0] is not None:
        return operands[1], numbers[0]
    return None


def _hidden(flow: Flow, operands: list[Value], walk: _Walk) -> tuple[Value, Hidden] | None:
    condition, yes, no = operands
    for scores, fill, shown in ((yes, no, True), (no, yes, False)):
        number = flow.number(fill)
        if number is not None:
            if walk.factor <= 0:
                return None
            return scores, Hidden(condition, shown, number * walk.factor, bool(walk.added))
    return None


def _product(flow: Flow, op: Op, walk: _Walk) -> Scores:
    _, _, *more = [flow.value(vid) if vid >= 0 else None for vid in op.inputs]
    if op.attrs["act"] != ActKind.none or (len(more) > 1 and more[1] is not None):
        raise CameClose(f"{_told(flow.result(op))} have a bias or an activation of their own")
    added = walk.added
    if more and more[0] is not None:
        if walk.softcap:
            raise CameClose(f"{_told(flow.result(op))} are added to before they are capped")
        added = (*added, Added(more[0], walk.factor * op.attrs["beta"]))
    alpha = float(op.attrs["alpha"])
    if walk.softcap:
        scale = walk.scale * alpha * walk.softcap
    else:
        scale = walk.factor * alpha
    if scale == 0:
        raise CameClose(f"{_told(flow.result(op))} are multiplied by 0")
    return Scores(op, scale, walk.softcap, walk.hidden, added, walk.ops)


def _told(value: Value) -> str:
    return f"scores{f' at {value.where}' if value.where else ''}"


def _made(value: Value) -> str:
    if value.producer is None:
        return value.name
    return value.producer.kind + (f" at {value.producer.where}" if value.producer.where else "")
