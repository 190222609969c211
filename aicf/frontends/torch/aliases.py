"""Views at the border of parts. A part writes each of its results into dense memory of its own; PyTorch's views share memory, and many
are not dense. So PyTorch computes such views itself, from a dense tensor of the part's.

AOTAutograd computes views of inputs itself, and those of tensors that need a gradient; this is for the others."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Iterator, Sequence

import torch
from torch._guards import TracingContext
from torch.fx import GraphModule, Node

from .emit import meta_of, name_of
from .rules import VIEWS
from .types import is_dense

COPIES = {
    "aten.clone.default",
    "aten.lift_fresh_copy.default",
}  # of VIEWS those whose results have memory of their own


def views_of_results(graph: GraphModule, kind: str) -> set[Node]:
    """Give results that share memory views of their own, which read the tensor that owns the memory, and return these."""
    (output,) = [n for n in graph.graph.nodes if n.op == "output"]
    returned = _returned(output, kind)
    sharing: dict[Node, list[Node]] = {}
    for node in dict.fromkeys(returned):
        sharing.setdefault(_owner(node), []).append(node)
    made: dict[Node, Node] = {}
    for owner, nodes in sharing.items():
        if owner.op != "call_function" or len(nodes) < 2:
            continue
        for node in nodes:
            for step in _steps(node, owner):
                if step not in made:
                    with graph.graph.inserting_before(output):
                        made[step] = graph.graph.node_copy(step, lambda n: made.get(n, n))
    if made:
        output.args = torch.fx.map_arg(output.args, lambda n: made.get(n, n))
        graph.graph.eliminate_dead_code()
        graph.recompile()
    return set(made.values())


def views_for_readers(graph: GraphModule, parts: Sequence[Iterable[Node]]) -> list[list[Node]]:
    """Copy the views of each part that are not dense for their readers outside of it: PyTorch computes those that it reads, with the
    strides that they have in the trace; another part computes its own. Return the parts after that."""
    found = [list(nodes) for nodes in parts]
    home = {node: n for n, nodes in enumerate(found) for node in nodes}
    copies: dict[tuple[Node, int | None], Node] = {}
    for node in reversed(list(graph.graph.nodes)):  # a copy reads what its node reads, which is next
        if node not in home or not _is_view(node) or _is_dense(meta_of(node)):
            continue
        for user in list(node.users):
            there = home.get(user)
            if there == home[node]:
                continue
            if (node, there) not in copies:
                with graph.graph.inserting_after(node):
                    copy = copies[node, there] = graph.graph.node_copy(node)
                if there is not None:
                    home[copy] = there
                    found[there].append(copy)
            user.replace_input_with(node, copies[node, there])
        if not node.users:
            found[home.pop(node)].remove(node)
            graph.graph.erase_node(node)
    return found


def _is_view(node: Node) -> bool:
    """Whether a node shows another tensor's memory, or is one of several such results."""
    source = node.args[0] if node.target is operator.getitem else node
    return name_of(source) in VIEWS and name_of(source) not in COPIES


def _is_dense(made: object) -> bool:
    return isinstance(made, torch.Tensor) and is_dense(made)


def under(node: Node) -> list[Node]:
    """What a view reads the memory of: views, and behind them what has it."""
    return list(_up(node))


def _returned(output: Node, kind: str) -> list[Node]:
    """What a caller sees: of a forward graph not what is kept for the backward one, whose gradients nobody else has."""
    context = TracingContext.try_get()
    if kind == "backward" or (kind == "forward" and (context is None or context.fw_metadata is None)):
        return []
    count = context.fw_metadata.num_forward_returns if kind == "forward" else None
    listed = [output.args[0]] if isinstance(output.args[0], Node) else list(output.args[0])
    return [n for n in listed[:count] if isinstance(n, Node) and _strided(meta_of(n))]


def _strided(made: object) -> bool:
    return isinstance(made, torch.Tensor) and made.layout is torch.strided


def _owner(node: Node) -> Node:
    return [node, *_up(node)][-1]


def _steps(node: Node, owner: Node) -> list[Node]:
    """The views from what has the memory to a node, in the order of their calls."""
    return [n for n in (node, *_up(node)) if n is not owner][::-1]


def _up(node: Node) -> Iterator[Node]:
    """What a view shows, and what that shows, up to what has the memory."""
    while True:
        if node.target is operator.getitem and name_of(node.args[0]) in VIEWS:
            node = node.args[0]
            yield node
        if name_of(node) not in VIEWS or name_of(node) in COPIES or not isinstance(node.args[0], Node):
            return
        node = node.args[0]
        yield node
