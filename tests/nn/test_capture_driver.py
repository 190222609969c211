"""How a capture treats the driver (F3), against a stand-in that keeps count: every way out ends the capture."""

from __future__ import annotations

import gc
from dataclasses import replace
from types import SimpleNamespace

import pytest

from aicf.device.foreign import Foreign
from aicf.device.runtime import CudaRuntime
from aicf.device.tensor import Memory
from aicf.errors import CaptureError, DeviceError
from aicf.graph.run import capture as capturing
from aicf.graph.run import slots
from aicf.graph.run.capture import CapturedCall, DenseCopy, capture, segments_of
from aicf.graph.run.edges import Feeds
from aicf.types import DType, TensorDesc, TensorSpec


class Status(int):
    name = "CUDA_ERROR_STREAM_CAPTURE_INVALIDATED"


class Function(int):
    """A handle; 0 is none."""


MANAGED = 1000  # memory from here on is of another kind


class Driver:
    """Streams are captured or not, graphs exist or not; wrong use raises."""

    CUstreamCaptureMode = SimpleNamespace(CU_STREAM_CAPTURE_MODE_RELAXED=2)
    CUgraphNodeType = SimpleNamespace(CU_GRAPH_NODE_TYPE_MEMCPY="memcpy", CU_GRAPH_NODE_TYPE_KERNEL="kernel")

    def __init__(self) -> None:
        self.capturing: set[str] = set()
        self.invalid = False
        self.recorded: list[str | SimpleNamespace] = []
        self.graphs = self.executables = self.aimed = 0
        self.launched: list[str] = []

    def cuDriverGetVersion(self):
        return Status(0), 13000

    def cuStreamBeginCapture(self, stream, mode):
        assert not self.capturing
        self.capturing.add(stream)
        self.recorded, self.invalid = [], False
        return (Status(0),)

    def cuStreamEndCapture(self, stream):
        self.capturing.remove(stream)
        if self.invalid:
            return Status(901), None
        self.graphs += 1
        return Status(0), list(self.recorded)

    def cuGraphGetNodes(self, graph, most=0):
        return Status(0), graph[:most], len(graph)

    def cuGraphNodeGetType(self, node):
        return Status(0), "kernel" if isinstance(node, str) else "memcpy"

    def cuGraphKernelNodeGetParams(self, node):
        return Status(0), SimpleNamespace(func=Function(node == "b"), kern=node)

    def cuFuncGetName(self, function):
        return Status(0), b"b as a function"

    def cuKernelGetName(self, kernel):
        return Status(0), kernel.encode()

    def cuGraphMemcpyNodeGetParams(self, node):
        return Status(0), SimpleNamespace(**vars(node))

    def cuGraphExecMemcpyNodeSetParams(self, graph, node, params, context):
        if params.srcDevice >= MANAGED:
            return (Status(1),)
        self.aimed += 1
        vars(node).update(vars(params))
        return (Status(0),)

    def cuGraphInstantiate(self, graph, flags):
        self.executables += 1
        return Status(0), graph

    def cuGraphUpload(self, graph, stream):
        return (Status(0),)

    def cuGraphLaunch(self, graph, stream):
        self.launched += [
            f"{n if isinstance(n, str) else f'{n.srcDevice} to {n.dstDevice}'} on {stream}" for n in graph
        ]
        return (Status(0),)

    def cuGraphDestroy(self, graph):
        self.graphs -= 1
        return (Status(0),)

    def cuGraphExecDestroy(self, graph):
        self.executables -= 1
        return (Status(0),)


class Runtime(CudaRuntime):
    def __init__(self) -> None:
        self.driver = Driver()
        self.stream = SimpleNamespace(handle="own")
        self.device = SimpleNamespace(create_stream=lambda: SimpleNamespace(handle="side"))

    def check(self, result):
        if int(result[0]):
            raise DeviceError("invalid")
        return result[1:]

    def allocate(self, nbytes):
        return Memory(500, nbytes, None)

    def copy(self, target, source, nbytes, on=None):
        if on is None:
            self.driver.launched.append(f"{source} to {target} on own")
        else:
            assert on.handle in self.driver.capturing
            self.driver.recorded.append(SimpleNamespace(srcDevice=source, dstDevice=target))


def call(runtime: Runtime, name: str):
    """A launch: recorded on a stream that is captured, else done."""

    def launch(*on):
        stream = on[0].handle if on else "own"
        if stream in runtime.driver.capturing:
            runtime.driver.recorded.append(name)
        else:
            runtime.driver.launched.append(f"{name} on {stream}")
        return f"cpu.{name}.v1"

    return launch


@pytest.fixture(autouse=True)
def collecting():
    """Whatever ran before: `clean` looks whether it still is."""
    gc.enable()


def clean(runtime: Runtime) -> bool:
    gc.collect()
    driver = runtime.driver  # a graph lives as long as what was made of it
    return not driver.capturing and driver.graphs == driver.executables and gc.isenabled()


@pytest.mark.spec("F3", "C14")
def test_a_capture_runs_nothing_and_a_replay_everything_in_order():
    runtime = Runtime()
    graph = capture(runtime, [call(runtime, n) for n in "abc"])
    assert (graph.nodes, runtime.driver.launched, clean(runtime)) == (3, [], True)
    assert graph.kernels() == ["a", "b as a function", "c"]
    assert graph.launch() == ["cpu.a.v1", "cpu.b.v1", "cpu.c.v1"]
    assert runtime.driver.launched == ["a on own", "b on own", "c on own"]
    del graph
    gc.collect()
    assert runtime.driver.executables == runtime.driver.graphs == 0


@pytest.mark.spec("F3", "C9")
def test_copies_of_a_graph_go_where_they_are_told_before_each_launch(monkeypatch):
    """The driver is asked only for those whose ends have changed; copies that the plan makes itself are not touched."""
    monkeypatch.setattr(capturing, "current_context", lambda: "context")
    runtime = Runtime()
    feed, result = DenseCopy(runtime, 10, 1, 64), DenseCopy(runtime, 2, 20, 64)
    graph = capture(runtime, [feed, call(runtime, "a"), DenseCopy(runtime, 3, 4, 64), result])
    driver = runtime.driver

    def launched() -> list[str]:
        driver.launched.clear()
        driver.aimed = 0
        graph.launch()
        return [driver.aimed, *(text.removesuffix(" on own") for text in driver.launched)]

    assert launched() == [0, "10 to 1", "a", "3 to 4", "2 to 20"]
    result.target = 21
    assert launched() == [1, "10 to 1", "a", "3 to 4", "2 to 21"]
    assert launched() == [0, "10 to 1", "a", "3 to 4", "2 to 21"]
    feed.source, result.target = 11, 20
    assert launched() == [2, "11 to 1", "a", "3 to 4", "2 to 20"]


@pytest.mark.spec("F3", "C9")
def test_a_feed_in_memory_that_a_node_does_not_take_is_copied_before(monkeypatch):
    monkeypatch.setattr(capturing, "current_context", lambda: "context")
    runtime = Runtime()
    feed = DenseCopy(runtime, 10, 1, 64)
    graph = capture(runtime, [feed, call(runtime, "a")])
    for source in (MANAGED, MANAGED, 11):
        feed.source = source
        graph.launch()
    staged = ["1000 to 500 on own", "500 to 1 on own", "a on own"]
    assert runtime.driver.launched == [*staged, *staged, "11 to 1 on own", "a on own"]


@pytest.mark.spec("F3", "C9")
def test_a_graph_whose_node_takes_no_other_memory_at_all_is_walked(monkeypatch):
    """Until the node is told of memory that it takes: ends that it refused are not taken for those that it has."""
    monkeypatch.setattr(capturing, "current_context", lambda: "context")
    runtime = Runtime()
    feed, result = DenseCopy(runtime, 10, 1, 64), DenseCopy(runtime, 2, 20, 64)
    graph, driver = capture(runtime, [feed, call(runtime, "a"), result]), runtime.driver
    staged = "11 to 500 on own"
    with monkeypatch.context() as patch:
        patch.setattr(driver, "cuGraphExecMemcpyNodeSetParams", lambda *args: (Status(1),))
        for _ in range(2):
            feed.source, result.target = 11, 21
            graph.launch()
            assert driver.launched == [staged, "11 to 1 on own", "a on own", "2 to 21 on own"]
            driver.launched.clear()
    feed.source = 10
    graph.launch()
    assert driver.launched == ["10 to 1 on own", "a on own", "2 to 21 on own"]


@pytest.mark.spec("F3", "C9")
def test_ctrl_c_while_the_driver_is_told_leaves_no_copy_aimed_elsewhere(monkeypatch):
    """It is raised when the driver has already answered: the graph reads where it was told to last, the node must know."""
    monkeypatch.setattr(capturing, "current_context", lambda: "context")
    runtime = Runtime()
    feed, driver = DenseCopy(runtime, 10, 1, 64), runtime.driver
    graph = capture(runtime, [feed, call(runtime, "a")])

    def interrupted(*args):
        Driver.cuGraphExecMemcpyNodeSetParams(driver, *args)
        raise KeyboardInterrupt

    feed.source = 11
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(driver, "cuGraphExecMemcpyNodeSetParams", interrupted)
        graph.launch()
    feed.source = 10
    graph.launch()
    assert driver.launched == ["10 to 1 on own", "a on own"]


@pytest.mark.spec("F3", "C9")
def test_a_copy_that_became_no_node_is_replayed_one_by_one(monkeypatch):
    monkeypatch.setattr(capturing, "current_context", lambda: "context")
    runtime = Runtime()
    copied: list = []
    unseen = DenseCopy(SimpleNamespace(copy=lambda *where: copied.append(where)), 10, 1, 64)
    (segment,) = segments_of(runtime, [CapturedCall("feed", unseen), CapturedCall("a", call(runtime, "a"))])
    assert (segment.nodes, "became no node of its own" in segment.reason) == (0, True)
    assert clean(runtime) and runtime.driver.executables == 0
    copied.clear()
    segment.launch()
    assert (copied, runtime.driver.launched) == ([(1, 10, 64)], ["a on own"])


@pytest.mark.spec("C9", "C10")
def test_a_strided_feed_on_the_device_is_gathered_and_the_gathered_is_copied(monkeypatch):
    gathered: list = []
    monkeypatch.setattr(
        slots, "run_op", lambda op, *tensors: gathered.append([t.ptr for (t,) in tensors[:2]])
    )
    runtime = Runtime()
    desc = TensorDesc(DType.f32, (4, 2), (8, 1), "cuda", 16)
    found = {"x": Foreign(desc, 10, None, None)}
    slot = runtime.view(Memory(1, 32, None), 0, TensorSpec((4, 2), device="cuda"))
    feeds = Feeds(runtime, [("x", slot)], found, {})
    (copy,) = feeds.copies
    (room,) = feeds.aim(found, {}, gather=False)
    assert (copy.source, copy.target, copy.nbytes, room.spec.shape, gathered) == (500, 1, 32, (4, 2), [])
    copy.source = 0
    (dense,) = feeds.aim(found, {})
    assert (copy.source, dense.ptr, gathered) == (500, 500, [[10, 500]])
    found["x"] = replace(found["x"], desc=replace(desc, stride=(2, 1)))
    assert (feeds.aim(found, {}), copy.source, len(gathered)) == ([], 10, 1)


@pytest.mark.spec("F3", "C9")
def test_copies_that_are_not_captured_go_where_they_are_told_too():
    runtime = Runtime()
    feed = DenseCopy(runtime, 10, 1, 64)
    (segment,) = segments_of(
        runtime, [CapturedCall("feed", feed), CapturedCall("a", call(runtime, "a"))], "off"
    )
    feed.source = 11
    segment.launch()
    assert runtime.driver.launched == ["11 to 1 on own", "a on own"]


@pytest.mark.spec("F3")
@pytest.mark.parametrize("error", [RuntimeError("broken"), KeyboardInterrupt()])
def test_an_exception_inside_a_capture_ends_it(error):
    runtime = Runtime()

    def broken(*on):
        raise error

    with pytest.raises(CaptureError if isinstance(error, Exception) else KeyboardInterrupt):
        capture(runtime, [call(runtime, "a"), broken])
    assert clean(runtime)
    assert runtime.driver.executables == 0
    assert capture(runtime, [call(runtime, "a")]).nodes == 1  # the next capture works


@pytest.mark.spec("F3")
def test_an_invalidated_capture_is_ended_and_named():
    runtime = Runtime()

    def invalidates(*on):
        runtime.driver.invalid = True

    with pytest.raises(CaptureError, match=r"CUDA_ERROR_STREAM_CAPTURE_INVALIDATED"):
        capture(runtime, [invalidates])
    assert clean(runtime)


@pytest.mark.spec("F3", "C9")
def test_what_can_t_be_captured_runs_between_graphs_or_is_refused_when_strict():
    runtime = Runtime()
    work = [
        CapturedCall(n, call(runtime, n), "the variant is not capture-safe" if n in "bc" else None)
        for n in "abcde"
    ]
    segments = segments_of(runtime, work)
    assert [(s.first, s.last, s.nodes) for s in segments] == [(0, 0, 1), (1, 2, 0), (3, 4, 2)]
    for segment in segments:
        segment.launch()
    assert runtime.driver.launched == [f"{n} on own" for n in "abcde"]
    with pytest.raises(CaptureError, match=r"2 of 5 calls can't be captured(.|\n)*b: the variant is not"):
        segments_of(runtime, work, "strict")
    assert [s.nodes for s in segments_of(runtime, work, "off")] == [0]


@pytest.mark.spec("F3", "C9")
def test_a_call_that_fails_while_captured_is_replayed_one_by_one():
    runtime = Runtime()

    def only_outside(*on):
        if on:
            raise RuntimeError("not while capturing")
        runtime.driver.launched.append("b on own")

    segments = segments_of(runtime, [CapturedCall("a", call(runtime, "a")), CapturedCall("b", only_outside)])
    assert [s.nodes for s in segments] == [0]
    assert "not while capturing" in segments[0].reason
    segments[0].launch()
    assert runtime.driver.launched == ["a on own", "b on own"]
    assert clean(runtime)
