"""aicf's own side: what the suites reach into beyond the public API, in one place."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import aicf
from aicf.device.interop import adopt
from aicf.device.spec import DeviceSpec
from aicf.device.tensor import Runtime
from aicf.dispatch import KernelLoader
from aicf.graph.emit.builder import Builder, GraphEmitter
from aicf.graph.emit.passes import lower, optimize, verify
from aicf.graph.fuse import Region, form_regions
from aicf.graph.fuse.schedule import schedule
from aicf.graph.run.capture import segments_of
from aicf.graph.run.executor import BoundPlan
from aicf.graph.run.plan import ExecPlan
from aicf.graph.run.program import Program
from aicf.ir import KEPT, Graph, Role
from aicf.registry.select import Selector, select
from aicf.rows import RegionSpec
from aicf.types import TensorDesc, TensorSpec

from .harness import NotHere


@dataclass(frozen=True)
class BoundOp:
    """One op, selected and bound to memory: calling it only launches."""

    call: Callable[[], None]
    kernel_id: str
    keep: tuple[Any, ...]


def bind_op(
    runtime: Runtime,
    kind: str,
    inputs: Sequence[Any],
    outputs: Sequence[Any],
    kernel_id: str | None = None,
    **attrs: Any,
) -> BoundOp:
    """An op on any library's tensors that the runtime's device can reach; by this kernel, or the one that is chosen."""
    operands, results, region = _region_of(runtime, kind, inputs, outputs, attrs)
    registry = aicf.default_registry()
    chosen = kernel_id or select(region, runtime.spec, registry).kernel_id
    call, work = _bind(runtime, registry, chosen, region, operands, results)
    return BoundOp(call, chosen, (operands, results, work))


Kernel = tuple[str, RegionSpec]  # an id, and what it is for
Emit = Callable[..., Any]


def predicted(region: RegionSpec, device: DeviceSpec) -> list[tuple[str, float]]:
    """(id, predicted us) of the kernels that take a region, the best first."""
    return [(c.variant.id, c.us) for c in select(region, device, aicf.default_registry()).ranked]


def prepare(runtime: Runtime, kernels: Sequence[Kernel]) -> None:
    """Compile what is in no cache, many at once: what is bound after that is there."""
    KernelLoader(aicf.default_registry(), runtime).prepare(kernels)


def one_op(
    kind: str, operands: Sequence[TensorDesc | None], results: Sequence[TensorDesc] = (), **attrs: Any
) -> RegionSpec:
    """An op as a region; its last operands may be left out. Results are dense by default."""
    schema = aicf.schema_of(kind)
    descs = [*operands, *[None] * (len(schema.operands) - len(operands))]
    specs = [None if d is None else TensorSpec(d.shape, d.dtype, d.device) for d in descs]
    packed = schema.pack(schema.normalized(specs, attrs))
    described = list(results) or [TensorDesc.dense(spec) for spec in schema.infer(specs, packed)]
    return RegionSpec.single(schema.kind, packed, descs, described)


def _region_of(
    runtime: Runtime, kind: str, inputs: Sequence[Any], outputs: Sequence[Any], attrs: dict[str, Any]
) -> tuple[list[Any], list[Any], RegionSpec]:
    operands, results = ([runtime.borrow(adopt(t)) for t in tensors] for tensors in (inputs, outputs))
    return operands, results, one_op(kind, [t.desc for t in operands], [t.desc for t in results], **attrs)


def _bind(
    runtime: Runtime, registry: aicf.KernelRegistry, kernel_id: str, region: RegionSpec, operands: Sequence[Any],
    results: Sequence[Any],
) -> tuple[Callable[[], None], Any]:  # fmt: skip
    """A call, and the workspace that it needs, if any."""
    loader = KernelLoader(registry, runtime)
    nbytes = loader.workspace(kernel_id, region)
    work = runtime.empty(TensorSpec((nbytes,), aicf.u8, runtime.kind)) if nbytes else None
    return loader.bind(kernel_id, region, operands, results, work), work


@dataclass(frozen=True)
class BoundGraph:
    """Ops that became regions by themselves, bound to memory, in order."""

    calls: tuple[Callable[[], None], ...]
    kernel_ids: tuple[str, ...]
    keep: tuple[Any, ...]


def bind_graph(runtime: Runtime, emit: Emit, inputs: dict[str, Any], results: Sequence[Any]) -> BoundGraph:
    """`emit(ctx, **values)` returns the results; `inputs` and `results` are any library's tensors."""
    registry = aicf.default_registry()
    tensors = [runtime.borrow(adopt(t)) for t in (*inputs.values(), *results)]
    specs = {name: t.spec for name, t in zip(inputs, tensors)}
    graph, regions, vids = _formed(emit, specs, runtime.spec, registry)
    memory = dict(zip(vids, tensors, strict=True))
    for region in regions:
        for vid in (*region.in_vids, *region.out_vids):
            if vid not in memory:
                memory[vid] = runtime.empty(graph.values[vid].spec)
    bound = [
        _bind(
            runtime,
            registry,
            r.kernel_id,
            r.spec,
            *([memory[v] for v in vids] for vids in (r.in_vids, r.out_vids)),
        )
        for r in regions
    ]
    keep = memory, [work for _, work in bound]
    return BoundGraph(tuple(call for call, _ in bound), tuple(r.kernel_id for r in regions), keep)


def graph_kernels(emit: Emit, inputs: dict[str, aicf.TensorSpec], device: DeviceSpec) -> list[Kernel]:
    """What `bind_graph` will bind."""
    return [(r.kernel_id, r.spec) for r in _formed(emit, inputs, device, aicf.default_registry())[1]]


def _formed(
    emit: Emit, inputs: dict[str, aicf.TensorSpec], device: DeviceSpec, registry: aicf.KernelRegistry
) -> tuple[Graph, list[Region], list[int]]:
    """A graph, its regions, and the inputs and the results."""
    builder = Builder()
    ctx = GraphEmitter(builder, device.kind)
    values = {name: ctx.input(name, spec.shape, spec.dtype) for name, spec in inputs.items()}
    emitted = emit(ctx, **values)
    results = [
        builder.output(f"result {n}", value).vid
        for n, value in enumerate(emitted if isinstance(emitted, tuple) else (emitted,))
    ]
    graph = verify(optimize(builder.graph))
    regions = form_regions(schedule(lower(graph), graph), graph, Selector(registry, device))
    return graph, regions, [*(v.vid for v in values.values()), *results]


def op_call() -> Callable[..., Any]:
    """The public entry to one op."""
    try:
        return aicf.op_call  # type: ignore[attr-defined]
    except AttributeError:
        raise NotHere("aicf.op_call is not there") from None


def walked(program: Program, feed: dict[str, Any]) -> tuple[Callable[[], None], int]:
    """The steps of a bound plan, called one by one, and their number."""
    work = bound_plan(program, feed).work()
    return segments_of(program.runtime, work, "off")[0].launch, len(work)


def captured(program: Program, feed: dict[str, Any]) -> tuple[Callable[[], None], str]:
    """The graph of the launches of a replay of this feed, without its copies of feeds and results, and what was captured."""
    segments = segments_of(program.runtime, bound_plan(program, feed).work())
    if len(segments) != 1 or not segments[0].nodes:
        raise NotHere(f"not one graph: {'; '.join(s.reason for s in segments if s.reason)}")
    return segments[0].launch, f"{segments[0].nodes} nodes"


def bound_plan(program: Program, feed: dict[str, Any]) -> BoundPlan:
    """The plan that a replay of this feed replays, with its tensors; the program keeps them."""
    program.capture(feed)
    return next(reversed(program._frozen.values())).bound


def bare_launch(runtime: Any, op: BoundOp) -> Callable[[], None]:
    """The kernel of a bound op through `cuLaunchKernel` alone, its parameters packed.

    Kernel, grid and parameters are read off a graph that the op was captured into; the graph owns the parameters.
    """
    driver, check, stream = runtime.driver, runtime.check, runtime.stream.handle
    runtime.sync()
    check(driver.cuStreamBeginCapture(stream, driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED))
    try:
        op.call()
    finally:
        (graph,) = check(driver.cuStreamEndCapture(stream))
    nodes, count = check(driver.cuGraphGetNodes(graph, 8))
    if count != 1:
        raise NotHere(f"{op.kernel_id} launches {count} kernels, not one")
    (node,) = check(driver.cuGraphKernelNodeGetParams(nodes[0]))
    function = driver.CUfunction(int(node.func) or int(node.kern))
    grid = (node.gridDimX, node.gridDimY, node.gridDimZ)
    block = (node.blockDimX, node.blockDimY, node.blockDimZ)
    shared, params = node.sharedMemBytes, int(node.kernelParams)
    if not params:
        raise NotHere(f"the driver does not tell the parameters of {op.kernel_id}")
    launch = driver.cuLaunchKernel
    (status,) = launch(function, *grid, *block, shared, stream, params, 0)
    runtime.sync()
    if int(status):
        raise NotHere(f"{op.kernel_id} can't be launched by what the driver tells of it: {status}")

    def go(graph: Any = graph) -> None:
        launch(function, *grid, *block, shared, stream, params, 0)

    return go


def plan_bytes(plan: ExecPlan) -> dict[str, int]:
    """Device memory of a bound plan by its own account: state, inputs and outputs, the arena."""
    state, edges = (
        sum(s.spec.nbytes for s in slots)
        for slots in (plan.externals(*KEPT), [*plan.externals(Role.input), *plan.outputs])
    )
    return {"state": state, "inputs and outputs": edges, "arena": plan.arena_bytes}
