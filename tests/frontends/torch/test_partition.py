"""Parts of graphs over several devices, which fake tensors stand for."""

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed: make test-torch")

from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode  # noqa: E402
from torch.fx import Graph, GraphModule  # noqa: E402

from aicf.frontends.torch.part import target  # noqa: E402
from aicf.frontends.torch.partition import _Partitioner  # noqa: E402

aten = torch.ops.aten


def graph_over_two_devices():
    """x * 2 + 1 on the CPU, copied to a GPU, * 3 + 3 there."""
    graph, mode = Graph(), FakeTensorMode()
    places = {d: FakeTensor(mode, torch.empty(4, device="meta"), torch.device(d)) for d in ("cpu", "cuda:0")}

    def made(node, device):
        node.meta["val"] = places[device]
        return node

    x = made(graph.placeholder("x"), "cpu")
    y = made(graph.call_function(aten.mul.Tensor, (x, 2)), "cpu")
    y = made(graph.call_function(aten.add.Tensor, (y, 1)), "cpu")
    z = made(graph.call_function(aten._to_copy.default, (y,), {"device": torch.device("cuda:0")}), "cuda:0")
    copy = z
    for op in (aten.mul.Tensor, aten.add.Tensor):
        z = made(graph.call_function(op, (z, 3)), "cuda:0")
    graph.output((y, z))
    return GraphModule(torch.nn.Module(), graph), copy


def test_a_copy_to_another_device_is_pytorchs():
    _, copy = graph_over_two_devices()
    assert target(torch.device("cpu")).takes(copy) == "tensors on several devices"


def test_a_part_is_of_one_device():
    graph, copy = graph_over_two_devices()
    taken = {n: None for n in graph.graph.nodes if n.op == "call_function"}
    for left in ([], [copy]):
        found = _Partitioner(graph, {n: None for n in taken if n not in left}).partitions()
        assert all(len({n.meta["val"].device for n in nodes}) == 1 for nodes in found)
        assert len(found) == 2
