"""The ops that stand in the place of cross entropy that was found, and of its gradient."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from ...ir import Op, Value
from ...ops.schema import schema_of
from ...types import DType
from .arrange import Laid, arranged
from .axes import Layout, every
from .cross_entropy import FoundLoss
from .flow import Edit, Flow


class LossEdit:
    def __init__(self, flow: Flow, found: FoundLoss) -> None:
        self.flow, self.found, self.emit = flow, found, flow.ctx
        self.shape = found.logits.shape[:-1]

    def edits(self) -> list[Edit]:
        found = self.found
        ends = [v.producer for v in (found.loss, found.slope.value if found.slope else None) if v is not None]
        first = min((op for op in ends if op is not None), key=lambda op: op.oid)
        edits: list[Edit] = [(first, self.forward)]
        if found.slope is not None:
            assert found.slope.value.producer is not None
            edits.append((found.slope.value.producer, self.backward))
        return (
            edits if found.slope is None or found.slope.value.producer is not first else [(first, self.both)]
        )

    def both(self) -> list[tuple[Value, Value]]:
        return [*self.forward(), *self.backward()]

    def forward(self) -> list[tuple[Value, Value]]:
        emit: Any = self.emit
        found, size = self.found, self.found.logits.shape[-1]
        labels = (
            found.labels if found.labels.shape == self.shape else emit.reshape(found.labels, shape=self.shape)
        )
        if labels.dtype not in (DType.i32, DType.i64):
            labels = emit.convert(labels, dtype=DType.i32 if labels.dtype.itemsize < 4 else DType.i64)
        if found.wraps:
            labels = emit.select(emit.less(labels, 0), emit.add(labels, size), labels)
        inside = emit.logical_and(emit.greater_equal(labels, 0), emit.less(labels, size))
        self.labels = emit.select(inside, labels, NO_LABEL)
        loss, self.peak, self.rsum = unguarded(
            self.flow, "cross_entropy", found.logits, self.labels, ignore_index=NO_LABEL
        )
        if found.loss is None:
            return []
        if found.outside.loss == "nan":
            loss = emit.select(inside, loss, math.nan)
        elif found.outside.loss == "sum":
            loss = emit.select(inside, loss, emit.sub(self.peak, emit.log(self.rsum)))
        loss = emit.neg(loss) if found.sign < 0 else loss
        return [(found.loss, self._laid(loss, found.rows, found.loss_layout, found.loss.dtype))]

    def backward(self) -> list[tuple[Value, Value]]:
        emit: Any = self.emit
        found = self.found
        slope = found.slope
        assert slope is not None
        if slope.of is None:
            factor = emit.fill(shape=self.shape, value=slope.factor, dtype=DType.f32)
        else:
            factor = arranged(emit, slope.of, found.rows, repeat=True)
            factor = factor if factor.dtype is DType.f32 else emit.convert(factor, dtype=DType.f32)
            factor = emit.mul(factor, slope.factor)
        ignored = NO_LABEL if found.outside.slope == "zero" else NO_LABEL - 1
        asked = {"ignore_index": ignored, "label": 1.0, "other": 0.0}
        made = emit.cross_entropy_grad(found.logits, self.labels, factor, self.peak, self.rsum, **asked)
        classes = [axis for axis in every(slope.layout) if axis not in every(found.rows)]
        return [
            (slope.value, self._laid(made, (*found.rows, tuple(classes)), slope.layout, slope.value.dtype))
        ]

    def _laid(self, value: Value, layout: Layout, target: Layout, dtype: DType) -> Value:
        emit: Any = self.emit
        made = arranged(emit, Laid(value, layout), target, repeat=True)
        return made if made.dtype is dtype else emit.convert(made, dtype=dtype)


NO_LABEL = -1


def described(found: FoundLoss) -> str:
    parts = [f"{found.logits.shape[-1]} classes"]
    parts += ["with its gradient" if found.loss is not None else "its gradient"] * (found.slope is not None)
    return ", ".join(parts)


def unguarded(flow: Flow, kind: str, *operands: Value, **attrs: Any) -> tuple[Value, ...]:
    """All results of an op whose operands need no check."""
    schema, ctx = schema_of(kind), flow.ctx
    pack = schema.pack(schema.normalized([v.spec for v in operands], attrs))
    specs = schema.infer(operands, pack, ctx.device)
    spec = (schema.kind.id, schema.attr_schema, pack.blob)
    return ctx.builder.emit(schema.name, operands, specs, schema.values(pack), {}, spec)


def drop_checks(flow: Flow, ops: Sequence[Op]) -> None:
    """Those of indices that only ops which are gone have read."""
    for vid in {op.inputs[1] for op in ops if op.kind in ("gather", "scatter_add")}:
        readers = flow.readers(flow.value(vid))
        if readers and all(op.kind == "check_indices" for op in readers):
            for op in readers:
                flow.drop_check(op)
    flow.renumber()
