"""Capture: the launches of a bound plan as CUDA graphs, through cuda-python.

Everything is compiled, loaded, allocated and packed when a plan is bound, so that between the beginning and the end of a
capture there is nothing left but launches; none of them runs, so params, state and step stay as they are. Steps that
can't be captured run eagerly between graphs, and the report says which and why.

The driver's own calls begin and end a capture: they bring the stream back whatever went wrong in between, where cuda-core's
graph builder (before 1.3) takes the process down with a capture that was invalidated.
"""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

from rich.console import RenderableType

from ... import config
from ...device.runtime import CudaRuntime
from ...device.streams import Captured, current_context
from ...device.tensor import Memory, Runtime
from ...dispatch import Call
from ...errors import CaptureError, DeviceError, Immovable
from ...printing import Printed, paragraphs

MODES = ("auto", "strict", "off")


@dataclass(frozen=True)
class CapturedCall:
    """One call of a bound plan. `refused` says why it can't be part of a graph."""

    name: str
    call: Call
    refused: str | None = None


@dataclass(slots=True, eq=False)
class DenseCopy:
    """A call: dense memory into dense memory of one device. Either may be elsewhere whenever it is launched, in a graph too."""

    runtime: Runtime
    source: int
    target: int
    nbytes: int

    def __call__(self, *on: Any) -> None:
        self.runtime.copy(self.target, self.source, self.nbytes, *on)


@dataclass(frozen=True)
class Segment:
    """Calls first..last, replayed as one graph, or one by one for a reason. `launch` says what it ran, as the calls do."""

    first: int
    last: int
    launch: Callable[[], Sequence[str | None]] = field(repr=False)
    nodes: int = 0  # of the graph; 0 where there is none
    reason: str = ""


@dataclass(frozen=True)
class CaptureReport(Immovable, Printed):
    """What a frozen plan replays as graphs, what not, and why; and the memory that it keeps alive."""

    instead = "str(report) is what it says"

    device: str
    segments: tuple[Segment, ...]
    pinned_bytes: int = 0
    notes: tuple[str, ...] = ()

    @property
    def captured(self) -> int:
        """Calls that are part of a graph."""
        return sum(s.last - s.first + 1 for s in self.segments if s.nodes)

    @property
    def total(self) -> int:
        return self.segments[-1].last + 1 if self.segments else 0

    def _rendering(self) -> RenderableType:
        graphs = sum(1 for s in self.segments if s.nodes)
        lines = [f"{self.captured} of {self.total} calls captured in {graphs} graphs on {self.device}, "
                 f"{self.pinned_bytes:,} bytes pinned"]  # fmt: skip
        for s in self.segments:
            what = f"graph of {s.nodes} nodes" if s.nodes else f"one by one: {s.reason}"
            lines.append(f"  calls {s.first}..{s.last}  {what}")
        return paragraphs([*lines, *(f"  {note}" for note in self.notes)])


def segments_of(runtime: Runtime, work: Sequence[CapturedCall], mode: str = "auto") -> tuple[Segment, ...]:
    """Capture as much as can be. "strict" raises CaptureError for a call that can't be, "off" captures nothing."""
    refusal = (
        None
        if isinstance(runtime, CudaRuntime)
        else "the CPU device has no graphs: the plan is walked as it is bound"
    )
    if mode == "off":
        refusal = "capture='off'"
    elif mode == "strict" and refusal is None and (bad := [w for w in work if w.refused]):
        raise CaptureError(
            f"{len(bad)} of {len(work)} calls can't be captured", details=[f"{w.name}: {w.refused}" for w in bad],
            hint="capture='auto' runs them between graphs",
        )  # fmt: skip
    segments, first = [], 0
    for reason, group in groupby(work, key=lambda w: refusal or w.refused):
        calls = list(group)
        segments.append(_segment(runtime, first, calls, reason, mode))
        first += len(calls)
    return tuple(segments)


def _segment(
    runtime: Runtime, first: int, work: list[CapturedCall], reason: str | None, mode: str
) -> Segment:
    last, calls = first + len(work) - 1, [w.call for w in work]
    if reason is None:
        try:
            graph = capture(runtime, calls)  # type: ignore[arg-type]  # a reason is given on every other device
            if graph.nodes:
                return Segment(first, last, graph.launch, graph.nodes)
            reason = "nothing to launch: every result is empty"
        except CaptureError as error:
            if mode == "strict":
                raise
            reason = str(error).replace("\n", ";")
    return Segment(first, last, lambda: _walk(calls), 0, reason)


def _walk(calls: Sequence[Call]) -> list[str | None]:
    return [call() for call in calls]


class CapturedGraph:
    """An executable CUDA graph, uploaded. It does not own memory: who holds it holds the tensors it works on."""

    def __init__(
        self, runtime: CudaRuntime, graph: Any, calls: Sequence[Call], ran: Sequence[str | None] = ()
    ) -> None:
        driver, check = runtime.driver, runtime.check
        self._graph, self._ran = graph, ran  # what the calls said when they were captured
        self._calls, copies = calls, [c for c in calls if isinstance(c, DenseCopy)]
        weakref.finalize(self, driver.cuGraphDestroy, graph)
        self.nodes = int(check(driver.cuGraphGetNodes(graph))[1])
        (self._exec,) = check(driver.cuGraphInstantiate(graph, 0))
        weakref.finalize(self, driver.cuGraphExecDestroy, self._exec)
        self._runtime, self._driver, self._stream, self._check = runtime, driver, runtime.stream.handle, check
        self._copies = _nodes_of(runtime, graph, self.nodes, copies) if copies else []
        check(driver.cuGraphUpload(self._exec, self._stream))

    def kernels(self) -> list[str]:
        """The symbols of the kernels that it launches, as the driver has them."""
        driver, check = self._driver, self._check
        kernel, names = driver.CUgraphNodeType.CU_GRAPH_NODE_TYPE_KERNEL, []
        for node in check(driver.cuGraphGetNodes(self._graph, self.nodes))[0]:
            if check(driver.cuGraphNodeGetType(node))[0] == kernel:
                (params,) = check(driver.cuGraphKernelNodeGetParams(node))
                if int(params.func):
                    (name,) = check(driver.cuFuncGetName(params.func))
                else:
                    (name,) = check(driver.cuKernelGetName(params.kern))
                names.append(name.decode())
        return names

    def launch(self) -> Sequence[str | None]:
        moved = [n for n in self._copies if n.source != n.copy.source or n.target != n.copy.target]
        try:
            made = [self._aim(node) for node in moved]
        except DeviceError:  # one that was captured with a rarer kind of memory takes no other
            return _walk(self._calls)
        self._check(self._driver.cuGraphLaunch(self._exec, self._stream))
        del made
        return self._ran

    def _aim(self, node: _CopyNode) -> Memory | None:
        """Later launches copy from and to where the copy says. What they copy from instead, if a node can't."""
        copy, runtime = node.copy, self._runtime
        try:
            node.aim(self._exec, runtime, copy.source)
            return None
        except DeviceError:  # a node keeps to one kind of memory: managed memory, say, is another
            made = runtime.allocate(copy.nbytes)
            runtime.copy(made.ptr, copy.source, copy.nbytes)
            node.aim(self._exec, runtime, made.ptr)
            return made


@dataclass(slots=True)
class _CopyNode:
    """The node of a copy, and where the graph has it read and write."""

    copy: DenseCopy
    handle: Any
    params: Any
    context: Any
    source: int
    target: int

    def aim(self, executable: Any, runtime: CudaRuntime, source: int) -> None:
        """A third of what a copy of its own costs the host."""
        self.params.srcDevice, self.params.dstDevice = source, self.copy.target
        set_params = runtime.driver.cuGraphExecMemcpyNodeSetParams
        self.source = self.target = -1  # unknown until the driver has answered: Ctrl-C may come in between
        runtime.check(set_params(executable, self.handle, self.params, self.context))
        self.source, self.target = source, self.copy.target


def _nodes_of(runtime: CudaRuntime, graph: Any, count: int, copies: Sequence[DenseCopy]) -> list[_CopyNode]:
    """The nodes of copies that were captured, known by their ends."""
    driver, check, context = runtime.driver, runtime.check, current_context()
    memcpy = driver.CUgraphNodeType.CU_GRAPH_NODE_TYPE_MEMCPY
    found = {}
    for node in check(driver.cuGraphGetNodes(graph, count))[0]:
        if check(driver.cuGraphNodeGetType(node))[0] == memcpy:
            (params,) = check(driver.cuGraphMemcpyNodeGetParams(node))
            found[int(params.srcDevice), int(params.dstDevice)] = node, params
    if any((c.source, c.target) not in found for c in copies):
        raise CaptureError("a copy of a feed or of a result became no node of its own")
    return [_CopyNode(c, *found[c.source, c.target], context, c.source, c.target) for c in copies]


def _early(runtime: CudaRuntime) -> bool:
    """Whether the launch of a kernel may overlap the end of the one before it: CUDA 12.3 brought edges that say so."""
    (version,) = runtime.check(runtime.driver.cuDriverGetVersion())
    return config.early_launch() != "off" and version >= 12030


def capture(runtime: CudaRuntime, calls: Sequence[Call]) -> CapturedGraph:
    """Capture calls on a stream of their own, so that other threads' work never gets into the graph. CaptureError if one
    fails; nothing is left behind then."""
    driver, side = runtime.driver, runtime.device.create_stream()
    stream, captured = side.handle, Captured(side, _early(runtime))
    mode = driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED
    failure: BaseException | None = None
    runtime.check(driver.cuStreamBeginCapture(stream, mode))
    collecting = gc.isenabled()
    gc.disable()  # memory that is freed on a capturing stream would become a node of its graph
    ran: list[str | None] = []
    try:
        for call in calls:
            ran.append(call(captured))
    except BaseException as error:
        failure = error
    status, graph = driver.cuStreamEndCapture(stream)  # also ends a capture that was invalidated
    if collecting:
        gc.enable()
    if failure is not None or int(status) != 0:
        if int(status) == 0:
            driver.cuGraphDestroy(graph)
        if failure is not None and not isinstance(failure, Exception):
            raise failure  # KeyboardInterrupt goes on, with the stream in order
        raise CaptureError(
            "a call failed while it was captured", got=repr(failure) if failure else status.name,
            hint="program.run(feed) runs it eagerly, where the error is whole",
        ) from failure  # fmt: skip
    return CapturedGraph(runtime, graph, calls, ran)
