"""Nodes of torch.fx by the names of what they call, whether it is a function, a method, an operator or an overload of ATen's."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch.fx import GraphModule, Node
from torch.fx.node import map_aggregate


def called(node: Node) -> str:
    """`and` of operator.and_, torch.bitwise_and and Tensor.__and__; `masked_fill_` of the method that writes; "" of what calls nothing."""
    if node.op == "call_method":
        name = str(node.target)
    elif node.op == "call_function":
        overload = isinstance(node.target, torch._ops.OpOverload)
        name = (
            node.target._schema.name.partition("::")[2] if overload else getattr(node.target, "__name__", "")
        )
        if getattr(node.target, "__module__", "") == "_operator":
            name = name.rstrip("_")
    else:
        return ""
    if name.startswith("__"):
        name = name.strip("_")
    return _ALIASES.get(name, name)


_ALIASES = {
    "bitwise_and": "and", "logical_and": "and", "multiply": "mul", "subtract": "sub", "divide": "div", "truediv": "div", "true_divide": "div",
    "greater_equal": "ge", "less_equal": "le", "greater": "gt", "less": "lt", "not_equal": "ne", "radd": "add", "rmul": "mul", "rsub": "rsub",
    "negative": "neg", "special_erf": "erf", "special_expit": "sigmoid",
}  # fmt: skip


def writes(node: Node) -> bool:
    """Whether it writes what it is given."""
    name = called(node)
    in_place = name.endswith("_") and not name.endswith("__")
    of_operator = getattr(node.target, "__module__", "") == "_operator" and name in _IN_PLACE
    return in_place or of_operator or node.kwargs.get("out") is not None


_IN_PLACE = frozenset(
    [
        "iadd",
        "isub",
        "imul",
        "itruediv",
        "ifloordiv",
        "imod",
        "ipow",
        "iand",
        "ior",
        "ixor",
        "ilshift",
        "irshift",
        "setitem",
        "delitem",
    ]
)


def made(node: Node) -> Any:
    """The stand-in of what a node makes: TorchDynamo's graphs have it in one place, exported ones in another."""
    return node.meta.get("example_value", node.meta.get("val"))


def nodes_in(arguments: Any) -> Iterator[Node]:
    """The nodes anywhere in arguments, slices and tuples included."""
    found: list[Node] = []
    map_aggregate(arguments, lambda a: found.append(a) if isinstance(a, Node) else None)
    return iter(found)


def run(node: Node, values: Mapping[Node, Any], change: Callable[[Any], Any] = lambda arg: arg) -> Any:
    """What a node makes of these values. `change` is asked of each other argument."""

    def given(arg: Any) -> Any:
        return values[arg] if isinstance(arg, Node) else change(arg)

    args, kwargs = map_aggregate(node.args, given), map_aggregate(node.kwargs, given)
    if node.op == "call_method":
        return getattr(args[0], str(node.target))(*args[1:], **kwargs)
    return node.target(*args, **kwargs)


def replace(graph: GraphModule, node: Node, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Node:
    """A call in the place of a node, which keeps what is known of it: the line, and what it makes."""
    with graph.graph.inserting_before(node):
        new = graph.graph.call_function(function, args, kwargs)
    new.meta = dict(node.meta)
    node.replace_all_uses_with(new)
    graph.graph.erase_node(node)
    return new
