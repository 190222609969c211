"""Whether a graph makes each place of a sequence of that place alone, but for attention over a cache: only then is what was computed of
a token still right when others follow.

Every value is followed by the axis along which its places lie: None if it is the same for all sequences and places.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

from ..errors import CacheError
from ..graph.emit.builder import Builder, GraphEmitter
from ..ir import Op, Role, Value
from ..ops.gemm import BIAS_PER_M, bias_kind
from ..ops.record import Access, OpSchema
from ..ops.schema import schema_of

CHECKS = ("check_indices", "check_labels")  # of data, for which no place stands


@dataclass(frozen=True)
class Along:
    """PlaceFlow lie along an axis, of outer * places * inner elements."""

    axis: int
    outer: int = 1
    inner: int = 1


KEPT = Along(-1)  # keys or values of all places so far: for attention alone


class PlaceFlow:
    """Of the ops of a graph, in their order."""

    def __init__(
        self, values: Sequence[Value], known: dict[int, Along], where: str = "", batch: int = 0
    ) -> None:
        """batch: how many sequences there are, a size that nothing else has; 0 is not looked at."""
        self.values, self.along, self.where, self.batch = values, known, where, batch

    def follow(self, ops: Sequence[Op]) -> None:
        for op in ops:
            if op.outputs[0] in self.along:  # known before
                continue
            states = [self.along.get(vid) for vid in op.inputs]
            if op.kind == "cache_write":
                self._kept(op, states)
            elif op.kind == "attention":
                self._attends(op, states)
            elif KEPT in states:
                self._refuse(op, "reads keys or values that are for attention alone")
            elif any(states) and op.kind not in CHECKS:
                self._alone(op, states)
                self._apart(op)

    def _apart(self, op: Op) -> None:
        """What is made of sequences has as many: else some are joined, such as by a mean over the batch."""
        has = {
            vid: any(n and n % self.batch == 0 for n in self.values[vid].shape)
            for vid in (*op.inputs, *op.outputs)
            if self.batch and vid >= 0
        }
        if any(has.get(vid) for vid in op.inputs) and not all(has[vid] for vid in op.outputs):
            self._refuse(op, "joins sequences of the batch")

    def _alone(self, op: Op, states: list[Along | None]) -> None:
        schema = schema_of(op.kind)
        if op.kind == "gemm":
            made = self._product(op, states)
        elif op.kind == "gemm_codes":
            made = self._codes(op, states[0])
        elif schema.is_map:
            made = self._map(op, schema)
        elif schema.expand_fn is not None:
            self._expanded(op, schema, states)
            return
        elif schema.core == "reduce":
            made = self._reduction(op, states[0])
        else:
            self._refuse(op, "is not known to take places one by one")
        for vid in op.outputs:
            self.along[vid] = made

    # --- ops ----------------------------------------------------------------------------------------------------------

    def _kept(self, op: Op, states: list[Along | None]) -> None:
        for vid, state in zip(op.inputs[2:4], states[2:4]):
            if state not in (None, Along(self.values[vid].rank - 2)):
                self._refuse(op, "is given rows that are not places")
        self.along.update(dict.fromkeys(op.outputs, KEPT))

    def _attends(self, op: Op, states: list[Along | None]) -> None:
        q, k, v, *others = states
        kept = k is KEPT and v is KEPT and op.attrs["causal"] and op.inputs[3] < 0
        if not kept or any(others) or q not in (None, Along(self.values[op.inputs[0]].rank - 2)):
            self._refuse(op, "is over keys that no cache keeps")
        if q is not None:
            self.along.update(dict.fromkeys(op.outputs, q))

    def _map(self, op: Op, schema: OpSchema) -> Along:
        result = self.values[op.outputs[0]]
        shapes = [self.values[vid].shape if vid >= 0 else None for vid in op.inputs]
        accesses = schema.accesses(shapes, result.rank, op.attrs)
        found: Along | None = None
        for access in accesses:
            state = None if access.operand is None else self.along.get(op.inputs[access.operand])
            if state is not None and access.operand is not None:
                made = self._read(op, access, shapes[access.operand] or (), result.shape, state)
                if found not in (None, made):
                    self._refuse(op, "meets places of two axes")
                found = made
        assert found is not None
        for access in accesses:
            if access.operand is None:
                self._refuse(op, "reads where an element stands")
            if self.along.get(op.inputs[access.operand]) is None:
                shape = shapes[access.operand] or ()
                if access.in_order or any(
                    follows == found.axis and n != 1 for follows, n in zip(access.axes, shape)
                ):
                    self._refuse(op, "reads what differs from place to place, and is not of ctx.positions")
        return found

    def _read(
        self, op: Op, access: Access, shape: tuple[int, ...], result: tuple[int, ...], state: Along
    ) -> Along:
        """Where the places of an operand are in the result."""
        if access.in_order:
            return self._reshaped(op, shape, result, state)
        follows, start, step = list(access.walked())[state.axis]
        special = {*access.bounded, *(s[0] for s in access.spread), *(i[0] for i in access.index)}
        moved = start != 0 or step != 1 or state.axis in special
        if follows < 0 or moved or result[follows] != shape[state.axis]:
            self._refuse(op, "reads other places than its own")
        return Along(follows, state.outer, state.inner)

    def _reshaped(self, op: Op, shape: tuple[int, ...], result: tuple[int, ...], state: Along) -> Along:
        size = shape[state.axis] // (state.outer * state.inner)
        outer = math.prod(shape[: state.axis]) * state.outer
        inner = state.inner * math.prod(shape[state.axis + 1 :])
        for axis, n in enumerate(result):
            before, behind = math.prod(result[:axis]), math.prod(result[axis + 1 :])
            if (
                outer % before == 0
                and inner % behind == 0
                and n == outer // before * size * (inner // behind)
            ):
                return Along(axis, outer // before, inner // behind)
        self._refuse(op, "splits the places")

    def _reduction(self, op: Op, state: Along | None) -> Along:
        assert state is not None
        axes = {a % self.values[op.inputs[0]].rank for a in op.attrs["axes"]}
        if state.axis in axes:
            self._refuse(op, "joins places")
        gone = 0 if op.attrs["keepdims"] else sum(a < state.axis for a in axes)
        return Along(state.axis - gone, state.outer, state.inner)

    def _product(self, op: Op, states: list[Along | None]) -> Along:
        a, b = (self.values[vid] for vid in op.inputs[:2])
        of_a, of_b = states[:2]
        rows = a.rank - (1 if op.attrs["trans_a"] else 2)
        if of_a is None or (of_a.axis >= a.rank - 2 and (of_a.axis != rows or of_b is not None)):
            self._refuse(op, "joins places")
        batch = of_a.axis < a.rank - 2
        if of_b not in (None, of_a) or (batch and of_b is None and b.rank > 2):
            self._refuse(op, "joins places")
        result = self.values[op.outputs[0]]
        made = of_a if batch else Along(result.rank - 2, of_a.outer, of_a.inner)
        c, bias = (op.inputs[n] if len(op.inputs) > n else -1 for n in (2, 3))
        if c >= 0 and self.along.get(c) != made:
            self._refuse(op, "adds what differs from place to place, and is not of ctx.positions")
        if bias >= 0 and bias_kind(self.values[bias].shape[0], *result.shape[-2:]) == BIAS_PER_M:
            self._refuse(op, "adds what differs from row to row")
        return made

    def _codes(self, op: Op, state: Along | None) -> Along:
        """Rows of x, one by one; only these differ from place to place."""
        if state is None or state.axis == self.values[op.inputs[0]].rank - 1:
            self._refuse(op, "joins places")
        return state

    def _expanded(self, op: Op, schema: OpSchema, states: list[Along | None]) -> None:
        """An op that is made of others, by these."""
        builder = Builder()
        ctx: Any = GraphEmitter(builder, "cpu")
        given = [
            None if vid < 0 else builder.value(f"operand.{n}", self.values[vid].spec, Role.input)
            for n, vid in enumerate(op.inputs)
        ]
        assert schema.expand_fn is not None
        made = schema.expand_fn(ctx, *given, **schema.values(op.attrs))
        known = {x.vid: s for x, s in zip(given, states) if x is not None and s is not None}
        inner = PlaceFlow(builder.graph.values, known, f"{op.kind}  at {op.where}")
        inner.follow(builder.graph.ops)
        for vid, value in zip(op.outputs, made if isinstance(made, tuple) else (made,)):
            if value.vid in inner.along:
                self.along[vid] = inner.along[value.vid]

    def _refuse(self, op: Op, why: str) -> NoReturn:
        raise CacheError(
            f"{self.where.partition('  at ')[0] or op.kind} {why}, so a KV cache can't serve the model",
            where=self.where.partition("  at ")[2] or op.where,
            expected="what is computed of a token depends on other tokens through nn.MultiHeadAttention, and on places through "
            "ctx.positions",
        )  # fmt: skip
