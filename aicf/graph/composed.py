"""`op_call` of an op that a graph has others in the place of: the others, as a graph that is compiled once for these types and layouts.

They fuse there as in any graph. Operands and results that are no dense, aligned tensors are copied, around the graph's kernels.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Group, RenderableType

from ..device import streams
from ..device.spec import DeviceSpec
from ..device.tensor import Runtime
from ..dispatch import KernelLoader, default_registry
from ..dispatch.prepared import Descs, KernelStart, Place, Prepared, StartBuilder, launch_all
from ..errors import NoKernelError
from ..ir import Role, Value
from ..ops.schema import OpSchema, schema_of
from ..printing import labelled
from ..registry.select import Selection, Selector, select
from ..rows import RegionSpec
from ..types import TensorDesc, TensorSpec
from .compile import compile_graph
from .emit.builder import GraphEmitter
from .emit.trace import Recipe
from .run.call import FIRST, PlanCall
from .run.plan import ExecPlan
from .run.plans import CompiledPlan
from .run.variables import Variables


@dataclass(frozen=True, repr=False)
class ComposedSelection(Selection):
    """The choice for the costliest region of the graph that stands in an op's place. `kernels` are those of all, in their order."""

    op: str = ""
    kernels: tuple[str, ...] = ()

    def _rendering(self) -> RenderableType:
        lines = [("composed" if n == 0 else "", "yellow", line) for n, line in enumerate(self._told())]
        return Group(super()._rendering(), labelled(lines))

    def _told(self) -> list[str]:
        return [
            f"{self.op} is made of other ops: {len(self.kernels)} kernels, of which this is the costliest",
            *self.kernels,
        ]

    def to_json(self) -> dict[str, Any]:
        return {**super().to_json(), "op": self.op, "kernels": list(self.kernels)}


class _Unguarded(GraphEmitter):
    """A call of one op checks no indices, as that of an op with a kernel of its own."""

    def check_labels(self, labels: Value, *, classes: int, ignore_index: int = -100) -> Value:
        kept: Value = self.op("not_equal", labels, ignore_index)
        count: Value = self.op("reduce_sum", self.op("convert", kept, dtype="f32"), axes=())
        return count

    def check_indices(self, indices: Value, *, size: int, negative: bool = True, of: str = "") -> None:
        pass


class _OneOp:
    """A model of one op: its operands are the inputs."""

    seed = 0
    sizes: Mapping[str, int] = {}

    def __init__(
        self, schema: OpSchema, attrs: Mapping[str, Any], specs: Sequence[TensorSpec | None]
    ) -> None:
        self.schema, self.attrs, self._specs = schema, attrs, specs
        self.inputs = {f"i{n}": spec for n, spec in enumerate(specs) if spec is not None}

    def emit(self, ctx: GraphEmitter, inputs: Mapping[str, Value]) -> dict[str, Value]:
        ctx.__class__ = _Unguarded
        given = [inputs.get(f"i{n}") for n in range(len(self._specs))]
        made = ctx.op(self.schema.name, *given, **self.attrs)
        return {f"o{n}": value for n, value in enumerate(made if isinstance(made, tuple) else (made,))}


class ComposedCall(Prepared):
    """The graph's kernels, and the copies around them, at the pointers of a call."""

    def __init__(
        self, schema: OpSchema, selection: Selection, operands: Descs, results: Sequence[TensorDesc], call: PlanCall,
        runtime: Runtime,
    ) -> None:  # fmt: skip
        super().__init__(schema, selection, operands, results, getattr(runtime, "ordinal", None), None)
        self._call = call
        given = [n for n, d in enumerate(operands) if d is not None]
        made = [len(operands) + n for n in range(len(results))]
        scratch = len(self.tensors)
        self._builder = StartBuilder(runtime, default_registry(), scratch)
        arena = self._builder.reserve(max(call.arena_bytes, 1))
        self._bases: list[Place] = [arena, *((n, 0) for n in (*given, *made))]
        before, after = [], []
        for base, n in enumerate(given, FIRST):
            desc = operands[n]
            assert desc is not None
            if not desc.contiguous or desc.alignment < call.alignments[base - FIRST]:
                self._bases[base] = place = self._builder.reserve(desc.nbytes)
                before.append((desc, _dense(desc), (n, 0), place))
        for base, (n, desc, lies) in enumerate(zip(made, results, call.places), FIRST + len(given)):
            own = lies.base == base and lies.stride is None
            if own and desc.contiguous and desc.alignment >= ALIGNED:
                continue
            if own:
                self._bases[base] = self._builder.reserve(desc.nbytes)
            which, offset = self._bases[lies.base]
            spec = TensorSpec(desc.shape, desc.dtype, desc.device)
            source = (
                TensorDesc(spec.dtype, spec.shape, lies.stride, spec.device) if lies.stride else _dense(desc)
            )
            after.append((source, desc, (which, offset + lies.offset), (n, 0)))
        self._before, self._after = self._copies(before), self._copies(after)
        self.scratch = self._builder.scratch
        call.bind()

    def _copies(self, wanted: list[tuple[TensorDesc, TensorDesc, Place, Place]]) -> list[KernelStart]:
        first = len(self._builder.starts)
        for copy in wanted:
            self._builder.copy(*copy)
        return self._builder.starts[first:]

    def run(self, tensors: Sequence[Any], stream: int = 0) -> None:
        assert self.ordinal is not None
        scratch, previous = 0, streams.enter(self.ordinal)
        try:
            scratch = streams.allocate(stream, self.scratch)
            pointers, on = [*tensors, scratch], streams.stream_object(self.ordinal, stream)
            launch_all(self._before, pointers, on)
            self._call([pointers[which] + offset for which, offset in self._bases], stream)
            launch_all(self._after, pointers, on)
        finally:
            if scratch:
                streams.free(stream, scratch)
            streams.leave(previous)


ALIGNED = TensorDesc.dense(TensorSpec(())).alignment  # what plans assume of results


def _dense(desc: TensorDesc) -> TensorDesc:
    return TensorDesc.dense(TensorSpec(desc.shape, desc.dtype, desc.device))


def compose(
    schema: OpSchema,
    attrs: Mapping[str, Any],
    operands: Descs,
    results: Sequence[TensorDesc],
    runtime: Runtime,
) -> Prepared | None:
    """The call of an op by the ops that stand in its place; None where a graph has the op itself, or they have no kernels."""
    specs = [None if d is None else TensorSpec(d.shape, d.dtype, d.device) for d in operands]
    variables = Variables(runtime, 0).of_program()
    try:
        call, selection = composed(schema, attrs, specs, runtime, variables)
    except NoKernelError:
        return None
    runtime.sync()  # constants are there, whatever stream reads them
    return ComposedCall(schema, selection, operands, results, call, runtime)


def composed(
    schema: OpSchema,
    attrs: Mapping[str, Any],
    specs: Sequence[TensorSpec | None],
    runtime: Runtime,
    variables: Variables,
) -> tuple[PlanCall, ComposedSelection]:
    """The graph as a function of pointers, and what was chosen for it."""
    made, registry = planned(schema, attrs, specs, runtime.spec, variables), default_registry()
    inputs, outputs = (
        [slot.name for slot in slots] for slots in (made.plan.externals(Role.input), made.plan.outputs)
    )
    loader = KernelLoader(registry, runtime)
    call = PlanCall(made.plan, loader, variables, sorted(inputs, key=_number), sorted(outputs, key=_number))
    chosen = max((r.selection for r in made.regions), key=lambda s: s.chosen.us, default=None)
    chosen = chosen or _copying(made.plan, runtime)
    selection = ComposedSelection(
        chosen.region, chosen.device, chosen.chosen, chosen.ranking, chosen.refusals, chosen.selector, schema.name, call.kernel_ids
    )  # fmt: skip
    return call, selection


def planned(
    schema: OpSchema, attrs: Mapping[str, Any], specs: Sequence[TensorSpec | None], device: DeviceSpec,
    variables: Variables | None = None,
) -> CompiledPlan:  # fmt: skip
    """The graph, compiled for a device that need not be there."""
    recipe = Recipe(_OneOp(schema, attrs, specs), "infer")
    return compile_graph(recipe, {}, Selector(default_registry(), device), variables=variables)


def _number(name: str) -> int:
    return int(name[1:])


def _copying(plan: ExecPlan, runtime: Runtime) -> Selection:
    """What a graph is chosen by whose results are views."""
    desc, schema = TensorDesc.dense(next(slot.spec for slot in plan.outputs)), schema_of("copy")
    region = RegionSpec.single(schema.kind, schema.pack({}), [desc], [desc])
    return select(region, runtime.spec, default_registry())
