"""What some ops of a graph would take by themselves, as regions form of them."""

from __future__ import annotations

import math
from collections.abc import Sequence

from ...errors import NoKernelError
from ...ir import Graph, Op, Value
from ...ops.schema import VIEW, schema_of
from ...registry.select import Selector
from ..emit.builder import Builder, GraphEmitter
from ..emit.declare import Constant
from ..emit.passes import lower
from .online import form_regions
from .schedule import schedule
from .strided import find_views


class Pricer:
    """Prices by what the ops are, so that equal layers are asked once."""

    def __init__(self, selector: Selector) -> None:
        self.selector = selector
        self._known: dict[tuple[object, ...], float] = {}

    def __call__(self, graph: Graph, ops: Sequence[Op], results: Sequence[Value]) -> float:
        """Predicted microseconds of these ops, in order; infinity where no kernel takes one of them."""
        key = _key(graph, ops, results)
        if key not in self._known:
            try:
                self._known[key] = self._asked(graph, ops, results)
            except NoKernelError:
                self._known[key] = math.inf
        return self._known[key]

    def _asked(self, graph: Graph, ops: Sequence[Op], results: Sequence[Value]) -> float:
        alone = _alone(graph, ops, results, self.selector.device.kind)
        lowered = schedule(find_views(lower(alone), alone, self.selector), alone)
        regions = form_regions(lowered, alone, self.selector)
        at = 0
        total = []
        for region in regions:
            count = len(region.spec.ops)
            views = all(op.constraints.get("view") for op in lowered[at : at + count])
            views = views or (count == 1 and VIEW in schema_of(region.spec.ops[0].kind).traits)
            total.append(0.0 if views else region.selection.chosen.us)
            at += count
        return math.fsum(total)


def _key(graph: Graph, ops: Sequence[Op], results: Sequence[Value]) -> tuple[object, ...]:
    place: dict[int, int] = {}
    told: list[object] = []
    for op in ops:
        for vid in (*op.inputs, *op.outputs):
            if vid >= 0 and vid not in place:
                place[vid] = len(place)
                told.append(str(graph.values[vid].spec))
        told.append((op.kind, op.attr_blob, *(place.get(vid, -1) for vid in (*op.inputs, *op.outputs))))
    return (*told, *(place[value.vid] for value in results))


def _alone(graph: Graph, ops: Sequence[Op], results: Sequence[Value], device: str) -> Graph:
    """The ops as a graph of their own, fed with what they read."""
    builder = Builder()
    ctx = GraphEmitter(builder, device)
    known: dict[int, Value | None] = {-1: None}
    for op in ops:
        for vid in op.inputs:
            if vid not in known:
                value = graph.values[vid]
                number = value.constant and isinstance(value.init, Constant) and value.rank == 0
                known[vid] = (
                    ctx.constant(value.init.value, value.dtype)  # type: ignore[union-attr]
                    if number
                    else ctx.input(f"given.{vid}", value.shape, value.dtype)
                )
        given = [None if vid < 0 else known[vid] for vid in op.inputs]
        made = builder.emit(
            op.kind, tuple(given), tuple(graph.values[vid].spec for vid in op.outputs), op.attrs, op.constraints,
            (op.kind_id or 0, op.attr_schema or "", op.attr_blob or b""),
        )  # fmt: skip
        known.update(zip(op.outputs, made))
    for n, value in enumerate(results):
        result = known[value.vid]
        assert result is not None
        builder.output(f"result.{n}", result)
    return builder.graph
