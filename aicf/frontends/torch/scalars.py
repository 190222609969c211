"""CPU scalars: tensors without dimensions on the CPU, which PyTorch's ops accept among tensors of a GPU.

PyTorch passes their value to its kernels. A part on a GPU reads constants as numbers of its graph, and the value of any other from a
tensor that each call fills on the GPU.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor, unset_fake_temporarily
from torch.fx import GraphModule, Node
from torch.utils import _pytree as pytree

from .types import DTYPES

aten = torch.ops.aten
COPIES = {aten.lift_fresh_copy.default, aten.clone.default, aten.alias.default, aten.detach.default}
NUMBERS = {aten.full.default, aten.scalar_tensor.default}


def is_cpu_scalar(made: Any) -> bool:
    """Whether a tensor, fake or real, is a CPU scalar."""
    return isinstance(made, torch.Tensor) and made.device.type == "cpu" and not made.dim()


def read_as(made: Any, gpu: bool) -> torch.dtype:
    """The element type in which a part reads a tensor: of CPU scalars in f64 a GPU reads f32, in which PyTorch's kernels compute with them."""
    wide = gpu and is_cpu_scalar(made) and made.dtype is torch.float64
    return torch.float32 if wide else made.dtype


def filled_on(device: torch.device, tensor: torch.Tensor) -> torch.Tensor:
    """A CPU scalar on a device, without a copy from the host, so that a CUDA graph may capture it; any other tensor as it is."""
    if not is_cpu_scalar(tensor):
        return tensor
    return torch.full((), tensor.item(), dtype=read_as(tensor, device.type != "cpu"), device=device)


def fold_constants(graph: GraphModule, parts: Sequence[Iterable[Node]]) -> list[list[Node]]:
    """Give each part numbers of its own for the constant CPU scalars that it reads. Return the parts with these."""
    found = [list(nodes) for nodes in parts]
    for nodes in found:
        inside, folded, gpu = set(nodes), dict[Node, Node](), is_on_gpu(nodes)
        for node in list(nodes):
            for read in node.all_input_nodes:
                if read in inside or not is_cpu_scalar(read.meta.get("val")):
                    continue
                number = folded[read] if read in folded else _number(graph, read, gpu)
                if number is not None:
                    folded[read] = number
                    node.replace_input_with(read, number)
        nodes.extend(folded.values())
    graph.graph.eliminate_dead_code()
    alive = set(graph.graph.nodes)
    return [left for nodes in found if (left := [n for n in nodes if n in alive])]


def is_on_gpu(nodes: Iterable[Node]) -> bool:
    """Whether any node computes a tensor that is not on the CPU."""
    found = [m for n in nodes for m in pytree.tree_leaves(n.meta.get("val"))]
    return any(m.device.type != "cpu" for m in found if isinstance(m, torch.Tensor))


def _number(graph: GraphModule, node: Node, gpu: bool) -> Node | None:
    """A new node for the number of a constant CPU scalar; None if a node is no constant."""
    source = node
    while source.target in COPIES and isinstance(source.args[0], Node):
        source = source.args[0]
    if source.target in NUMBERS and not source.all_input_nodes:
        return _filled(graph, node, source.args[-1], gpu)
    held = getattr(graph, str(source.target), None) if source.op == "get_attr" else None
    if not isinstance(held, torch.Tensor) or isinstance(held, FakeTensor) or held.dtype not in DTYPES:
        return None
    with unset_fake_temporarily():
        return _filled(graph, node, held.item(), gpu)


def _filled(graph: GraphModule, scalar: Node, value: Any, gpu: bool) -> Node:
    """A node that creates a CPU scalar of this value, as a part reads it."""
    made = scalar.meta["val"]
    dtype = read_as(made, gpu)
    with graph.graph.inserting_after(scalar):
        node = graph.graph.call_function(
            aten.full.default, ([], value), {"dtype": dtype, "device": made.device}
        )
    node.meta.update(scalar.meta, val=made.to(dtype))
    return node
