"""The plan of an op's body: the same chain as a model's, from a graph to kernels with places."""

from __future__ import annotations

from functools import lru_cache

from ...device.spec import DeviceSpec
from ...dispatch import default_registry
from ...ir import Graph, Role, Subgraph, Value
from ...ops.scan import types_of
from ...ops.schema import schema_of
from ...registry.bodies import BodyPlan, BodyStep, Spot
from ...registry.index import REQUIRED
from ...registry.select import Selector
from ...types import TensorDesc, TensorSpec
from ..emit.builder import Builder
from ..emit.passes import lower, optimize
from ..fuse import form_regions
from ..fuse.schedule import schedule
from ..fuse.strided import find_views
from .plan import ExecPlan, make_plan

# whatever is required of the run: the op's variant says that it is so
CHAINED = REQUIRED | {"capture_safe", "chained"}


@lru_cache(maxsize=256)
def plan_body(
    body: Subgraph, operands: tuple[TensorDesc, ...], alignments: tuple[int, ...], carried: int, strict: bool, device: DeviceSpec
) -> BodyPlan:  # fmt: skip
    """See registry/bodies.py. Tuning data of the program is not asked."""
    registry = default_registry()
    selector = Selector(registry, device, required=CHAINED, strict=strict)
    graph, inputs, outputs, same = _graph_of(body, operands, alignments, carried)
    lowered = schedule(find_views(lower(optimize(graph)), graph, selector), graph)
    regions = form_regions(lowered, graph, selector, 1)
    plan = make_plan(graph, lowered, regions, device, "infer", registry)
    spots = _Spots(plan, inputs, outputs)
    steps = tuple(
        BodyStep(
            registry.by_id(step.kernel_id), step.region, region.selection.chosen.us, tuple(map(spots.of, step.in_vids)),
            tuple(map(spots.of, step.out_vids)), step.workspace.offset if step.workspace else 0,
        )
        for step, region in zip(plan.steps, regions)
        if step.kernel_id and any(t.numel for t in step.region.results)
    )  # fmt: skip
    return BodyPlan(steps, same, plan.arena_bytes)


class _Spots:
    def __init__(self, plan: ExecPlan, inputs: dict[int, int], outputs: dict[int, int]) -> None:
        self.plan, self.inputs, self.outputs = plan, inputs, outputs

    def of(self, vid: int) -> Spot:
        slot = self.plan.slots[vid]
        root = slot if slot.alias_of is None else self.plan.slots[slot.alias_of]
        start = slot.start * slot.spec.dtype.itemsize
        if root.vid in self.inputs:
            return Spot("operand", self.inputs[root.vid], start)
        if root.vid in self.outputs:
            return Spot("result", self.outputs[root.vid], start)
        assert root.offset is not None, slot
        return Spot("arena", 0, root.offset + start)


def _graph_of(
    body: Subgraph, operands: tuple[TensorDesc, ...], alignments: tuple[int, ...], carried: int
) -> tuple[Graph, dict[int, int], dict[int, int], tuple[int, ...]]:
    """The body as a graph; which operand each of its inputs is, which result each of its outputs, which results share a place."""
    builder = Builder()
    specs = tuple(TensorSpec(t.shape, t.dtype, t.device) for t in operands)
    types, known = types_of(body, specs), dict[int, Value]()

    def emit(
        kind: str, ins: tuple[Value | None, ...], outs: tuple[TensorSpec, ...], attrs: dict | object
    ) -> tuple[Value, ...]:
        schema = schema_of(kind)
        pack = schema.pack(attrs)  # type: ignore[arg-type]
        alias = {"alias": dict(schema.alias)} if schema.alias else {}
        return builder.emit(
            kind, ins, outs, schema.values(pack), alias, (schema.kind.id, schema.attr_schema, pack.blob)
        )

    for n, spec in enumerate(specs):
        known[n] = builder.value(f"operand.{n}", spec, Role.input)
    for step in body.ops:
        given = tuple(None if v < 0 else known[v] for v in step.inputs)
        known.update(
            zip(step.outputs, emit(step.kind, given, tuple(types[v] for v in step.outputs), step.attrs))
        )
    outputs: dict[int, int] = {}
    at: dict[int, int] = {}  # of each value that is returned as it is: which result it is
    same = list(range(len(body.results)))
    for n, v in enumerate(body.results):
        first = at.get(v)
        if first is not None and first < carried <= n and same.count(first) == 1:
            same[n] = first  # what is carried lies in the row that shows it
            continue
        value = known[v]
        if v < body.takes or first is not None:
            (value,) = emit("copy", (value,), (value.spec,), {})
        else:
            at[v] = n
        outputs[builder.output(f"result.{n}", value).vid] = n
    graph = builder.graph
    graph.aligned = {known[n].vid: t.alignment for n, t in enumerate(operands) if t.alignment < 256}
    shown = {first: n for n, first in enumerate(same) if first != n}
    for vid, n in outputs.items():
        alignment = min(alignments[n], alignments[shown.get(n, n)])
        if alignment < 256:
            graph.aligned[vid] = alignment
    return graph, {known[n].vid: n for n in range(body.takes)}, outputs, tuple(same)
