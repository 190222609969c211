"""The op that stands in the place of attention that was found, between what moves its operands and its result."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from ...ir import Value
from ...types import DType
from .arrange import Laid, arranged
from .attention import Found
from .axes import Group, Layout, atoms, settled
from .flow import Edit, Flow
from .masks import Condition


class AttentionEdit:
    """What stands in the place of attention, and of its gradient."""

    def __init__(self, flow: Flow, found: Found) -> None:
        self.flow, self.found, self.emit = flow, found, flow.ctx
        self.places = HeadPlaces(found)
        self.asked = {
            "scale": found.scale,
            "causal": found.masks.causal,
            "window": found.masks.window,
            "softcap": found.softcap,
        }

    def edits(self) -> list[Edit]:
        found = self.found
        edits: list[Edit] = [(found.product, self.forward)]
        if found.gradient is not None:
            edits.append((found.gradient.first, self.backward))
        return edits

    def forward(self) -> list[tuple[Value, Value]]:
        """The op, between what brings its operands into their places and the result into its own."""
        emit: Any = self.emit
        found, places, (of_q, of_v) = self.found, self.places, self.found.depth
        self.q = self._placed(found.q, places.of(found.rows, of_q, True))
        self.k = self._placed(found.k, places.of(found.keys, of_q, False))
        self.v = self._placed(found.v, places.of(found.keys, of_v, False))
        self.mask, self.bias = self._masks(places.of(found.rows, found.keys, True))
        self.out = emit.attention(self.q, self.k, self.v, self.mask, None, self.bias, **self.asked)
        self.lse = self.flow.value(self.out.producer.outputs[1])
        out = Laid(self._of_empty(), places.of(found.rows, of_v, True))
        return [
            (found.result, _cast(emit, arranged(emit, out, found.target, repeat=True), found.result.dtype))
        ]

    def backward(self) -> list[tuple[Value, Value]]:
        """Its gradient, which reads what the op has made."""
        emit: Any = self.emit
        found, places, (of_q, of_v) = self.found, self.places, self.found.depth
        gradient = found.gradient
        assert gradient is not None
        dout = self._placed(gradient.dout, places.of(found.rows, of_v, True))
        dq, dk, dv = emit.attention_grad(
            dout, self.q, self.k, self.v, self.out, self.lse, self.mask, None, self.bias, **self.asked
        )
        if found.masks.empty == "mean":
            dv = self._of_means(dout, dv)
        made = {
            "q": Laid(dq, places.of(found.rows, of_q, True)),
            "k": Laid(dk, places.of(found.keys, of_q, False)),
            "v": Laid(dv, places.of(found.keys, of_v, False)),
        }
        return [
            (
                piece.value,
                _cast(emit, arranged(emit, made[name], piece.layout, repeat=True), piece.value.dtype),
            )
            for name, piece in gradient.pieces.items()
        ]

    def _placed(self, x: Laid, layout: Layout) -> Value:
        return _cast(self.emit, arranged(self.emit, x, layout, repeat=False), self.found.dtype)

    def _masks(self, scores: Layout) -> tuple[Value | None, Value | None]:
        emit: Any = self.emit
        mask = bias = None
        for condition in self.found.masks.conditions:
            one = _condition(emit, condition, scores)
            mask = one if mask is None else emit.logical_and(mask, one)
        for laid, factor in self.found.masks.bias:
            one = _cast(emit, laid.value, DType.f32) if factor != 1 else laid.value
            one = emit.mul(one, factor) if factor != 1 else one
            one = arranged(emit, replace(laid, value=one), scores, repeat=False)
            bias = one if bias is None else emit.add(*(_cast(emit, x, DType.f32) for x in (bias, one)))
        return mask, bias

    # --- queries without keys: the op gives zeros -------------------------------------------------------------------------

    def _of_empty(self) -> Value:
        """The result with what such queries give when it is spelt out."""
        emit: Any = self.emit
        out, empty, softmax = self.out, self.found.masks.empty, self.found.softmax
        if softmax.broken == "zero":
            broken = emit.reshape(emit.is_nan(self.lse), shape=(*self.lse.shape, 1))
            out = emit.select(broken, 0.0, out)
        if empty is None or (empty == "nan" and softmax.empty == "zero"):
            return out
        made: Value = emit.select(self._nothing(), math.nan if empty == "nan" else self._mean(), out)
        return made

    def _nothing(self) -> Value:
        emit: Any = self.emit
        made: Value = emit.reshape(emit.equal(self.lse, -math.inf), shape=(*self.lse.shape, 1))
        return made

    def _mean(self) -> Value:
        """Of all values, for each head of queries: of them where they lie, if their keys are an axis there."""
        emit: Any = self.emit
        found, places = self.found, self.places
        keys, width = atoms(found.keys), found.depth[1]
        at = found.v if keys in settled(found.v.layout) else Laid(self.v, places.of(keys, width, False))
        axis = settled(at.layout).index(keys)
        mean = emit.reduce_mean(at.value, axes=(axis,), keepdims=True)
        layout = tuple(() if n == axis else group for n, group in enumerate(at.layout))
        return self._placed(Laid(mean, layout), places.of((), width, True))

    def _of_means(self, dout: Value, dv: Value) -> Value:
        """The gradient of values, with that of their means."""
        emit: Any = self.emit
        wide = _cast(emit, dout, DType.f32)
        lost = emit.reduce_sum(emit.select(self._nothing(), wide, 0.0), axes=(dout.rank - 2,), keepdims=True)
        lead, (heads, _, width) = lost.shape[:-3], lost.shape[-3:]
        groups = dv.shape[-3]
        if heads != groups:
            lost = emit.reshape(lost, shape=(*lead, groups, heads // groups, 1, width))
            lost = emit.reduce_sum(lost, axes=(len(lead) + 1,), keepdims=False)
        lost = emit.div(lost, float(dv.shape[-2]))
        made: Value = emit.add(dv, _cast(emit, lost, dv.dtype))
        return made


class HeadPlaces:
    """Which atoms are batches and which are heads: grouped heads go with the last atom that q, k and v share, if that leaves a batch."""

    def __init__(self, found: Found) -> None:
        shared, group = found.shared, found.group
        if group and len(shared) < 2:
            self.batch, self.heads, self.group = shared, shared[:0], group
        else:
            self.batch, self.heads, self.group = shared[:-1], shared[-1:], group

    def of(self, rows: Group, columns: Group, grouped: bool) -> Layout:
        heads = (*self.heads, *self.group) if grouped else self.heads
        return (*((axis,) for axis in self.batch), heads, rows, columns)


def _cast(emit: Any, x: Value, dtype: DType) -> Value:
    made: Value = x if x.dtype is dtype else emit.convert(x, dtype=dtype)
    return made


def _condition(emit: Any, condition: Condition, scores: Layout) -> Value:
    value = arranged(emit, condition.laid, scores, repeat=False)
    return value if condition.shown else emit.logical_not(value)


def described(found: Found) -> str:
    """`causal, scale 0.125, 4 heads share keys`: what of the op it has."""
    masks, parts = found.masks, []
    parts += ["causal"] * masks.causal + [f"window {masks.window}"] * bool(masks.window)
    parts += ["mask"] * bool(masks.conditions) + ["bias"] * bool(masks.bias)
    parts.append(f"scale {found.scale:.4g}")
    parts += [f"softcap {found.softcap:g}"] * bool(found.softcap)
    shared = math.prod(axis.size for axis in found.group)
    parts += [f"{shared} heads share keys"] * (shared > 1)
    parts += ["with its gradient"] * (found.gradient is not None)
    return ", ".join(parts)
