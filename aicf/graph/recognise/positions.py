"""Masks of attention that follow from positions: what is known of a mask's elements becomes the op's own causal mask and window, which kernels
need not read. What depends on data stays a mask."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ...ir import Op, Value
from ...ops.attention import visible
from ...ops.schema import schema_of
from .arrange import Laid, arranged
from .axes import Layout, fresh
from .flow import Flow
from .masks import Condition, Known, along, conditions_of, labelled, of_positions, together
from .scores import LEAST, LEAST_OF_OTHERS

KINDS = frozenset({"attention", "attention_grad", "attention_bias_grad"})


@dataclass(frozen=True)
class Positions:
    """Of an op: its masks, with what is known of them as attributes; `bias`: whether it keeps the one that it has."""

    op: Op
    scores: Layout
    data: tuple[Condition, ...]
    causal: bool
    window: int
    bias: bool

    @property
    def told(self) -> str:
        parts = ["causal"] * self.causal + [f"window {self.window}"] * bool(self.window)
        return ", ".join(parts) or "all keys"


def find_positions(flow: Flow, op: Op) -> Positions | None:
    """None where nothing is known of its masks, or nothing that the op could say."""
    given = _operands(flow, op)
    mask, bias, q, k = (given[name] for name in ("mask", "bias", "q", "k"))
    assert q is not None and k is not None
    queries, keys = q.shape[-2], k.shape[-2]
    if given["lengths"] is not None or (mask is None and bias is None) or 0 in (*q.shape, *k.shape):
        return None
    scores = fresh((*q.shape[:-1], keys))
    data: tuple[Condition, ...] = ()
    arrays: list[Known] = []
    if mask is not None:
        data, known, _ = conditions_of(flow, Condition(Laid(mask, _aligned(mask, scores)), True))
        arrays += known
    hides = None if bias is None or op.kind == "attention_bias_grad" else _of_bias(flow, bias, scores, q)
    if hides is not None:
        whole, order = together([*arrays, hides[0]])
        seen = along(whole, order, scores[-1]).any(-1).all()
        if hides[1] == -np.inf or (seen and not data):
            arrays.append(hides[0])
        else:
            hides = None
    if not arrays:
        return None
    causal, window = bool(op.attrs["causal"]), int(op.attrs["window"])
    if causal or window:
        own = visible(range(queries), range(keys), keys - queries, causal, window)
        arrays.append(labelled(own, scores[-2:]))
    whole, order = together(arrays)
    if whole.all():
        causal, window = False, 0
    else:
        placed = of_positions(whole, order, scores[-1], scores[-2])
        if placed is None:
            return None
        _, causal, window = placed
    return Positions(op, scores, data, causal, window, bias is not None and hides is None)


def settle(flow: Flow, found: Positions) -> None:
    """Let the op have them."""
    op, emit = found.op, flow.ctx
    mask: Value | None = None

    def made() -> Value | None:
        mask = None
        for condition in found.data:
            one = arranged(emit, condition.laid, found.scores, repeat=False)
            one = one if condition.shown else emit.logical_not(one)
            mask = one if mask is None else emit.logical_and(mask, one)
        return mask

    mask = flow.before(op, made)
    names = [decl.name for decl in schema_of(op.kind).operands]
    given = _operands(flow, op) | {"mask": mask}
    if not found.bias:
        given["bias"] = None
    flow.amend(op, [given[name] for name in names], {"causal": found.causal, "window": found.window})


def _operands(flow: Flow, op: Op) -> dict[str, Value | None]:
    names = [decl.name for decl in schema_of(op.kind).operands]
    vids = [*op.inputs, *[-1] * len(names)]
    return {name: flow.value(vid) if vid >= 0 else None for name, vid in zip(names, vids)}


def _aligned(value: Value, scores: Layout) -> Layout:
    last = scores[len(scores) - value.rank :]
    return tuple(() if n == 1 else group for n, group in zip(value.shape, last))


def _of_bias(flow: Flow, bias: Value, scores: Layout, q: Value) -> tuple[Known, float] | None:
    """(where it is 0, what it is elsewhere) of a bias whose elements are known, and are 0 or a number below all scores."""
    array = flow.known(bias)
    if array is None:
        return None
    fills = [float(n) for n in np.unique(array.astype(np.float64)) if n != 0]
    if len(fills) > 1 or not all(fill <= LEAST.get(q.dtype.name, LEAST_OF_OTHERS) for fill in fills):
        return None
    return labelled(array == 0, _aligned(bias, scores)), fills[0] if fills else -np.inf
