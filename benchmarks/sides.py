"""aicf's own side: what the suites reach into beyond the public API, in one place."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import aicf
from aicf.device.interop import adopt
from aicf.device.runtime import Runtime
from aicf.dispatch import KernelLoader
from aicf.graph.run.program import Program
from aicf.registry.select import select
from aicf.rows import RegionSpec

from .harness import NotHere


@dataclass(frozen=True)
class BoundOp:
    """One op, selected and bound to memory: calling it only launches."""

    call: Callable[[], None]
    kernel_id: str
    keep: tuple[Any, ...]


def bind_op(
    runtime: Runtime, kind: str, inputs: Sequence[Any], outputs: Sequence[Any],
    kernels: aicf.KernelRegistry | None = None, **attrs: Any,
) -> BoundOp:  # fmt: skip
    """An op on any library's tensors that the runtime's device can reach; by these kernels, or those that are installed."""
    operands, results = ([runtime.borrow(adopt(t)) for t in tensors] for tensors in (inputs, outputs))
    schema, registry = aicf.schema_of(kind), kernels or aicf.default_registry()
    packed = schema.pack(schema.normalized([t.spec for t in operands], attrs))
    region = RegionSpec.single(
        aicf.OpKind(kind), packed, [t.desc for t in operands], [t.desc for t in results]
    )
    chosen = select(region, runtime.spec, registry).kernel_id
    call = KernelLoader(registry, runtime).bind(chosen, region, operands, results)
    return BoundOp(call, chosen, (operands, results))


def op_call() -> Callable[..., Any]:
    """The public entry to one op."""
    try:
        return aicf.op_call  # type: ignore[attr-defined]
    except AttributeError:
        raise NotHere("aicf.op_call is not there") from None


def walked(program: Program, feed: dict[str, Any]) -> tuple[Callable[[], None], int]:
    """The steps of a bound plan, called one by one, and their number. For programs compiled with capture="off"."""
    (segment,) = program.capture(feed).segments
    return segment.launch, segment.last - segment.first + 1


def captured(program: Program, feed: dict[str, Any]) -> tuple[Callable[[], None], str]:
    """The launch of the graph that a replay of this feed launches, without its copies, and what was captured."""
    report = program.capture(feed)
    if report.captured < report.total or len(report.segments) != 1:
        raise NotHere(f"not one graph: {str(report).splitlines()[0]}")
    return report.segments[0].launch, f"{report.segments[0].nodes} nodes"


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
