"""Tensors of a graph that depend on nothing that is fed: positions, comparisons of positions, masks of them."""

from __future__ import annotations

from typing import Any

import torch
from torch.fx import GraphModule, Node
from torch.utils._python_dispatch import _disable_current_modes

from .calls import called, made, nodes_in, run, writes

MOST_BYTES = 2**30  # of one value
# Named, since what draws random numbers or reads memory that nobody wrote must never be among them.
SOURCES = frozenset(
    ["arange", "ones", "zeros", "full", "scalar_tensor", "eye", "linspace", "tril_indices", "triu_indices"]
)
DERIVED = frozenset(
    [
        "add",
        "sub",
        "mul",
        "neg",
        "abs",
        "floordiv",
        "floor_divide",
        "mod",
        "remainder",
        "diff",
        "cumsum",
        "sum",
        "and",
        "or",
        "xor",
        "invert",
        "not",
        "bitwise_not",
        "bitwise_or",
        "bitwise_xor",
        "logical_not",
        "logical_or",
        "logical_xor",
        "eq",
        "ne",
        "lt",
        "le",
        "gt",
        "ge",
        "where",
        "masked_fill",
        "getitem",
        "unsqueeze",
        "squeeze",
        "view",
        "reshape",
        "expand",
        "expand_as",
        "flatten",
        "transpose",
        "permute",
        "t",
        "T",
        "contiguous",
        "clone",
        "repeat",
        "cat",
        "stack",
        "to",
        "bool",
        "long",
        "int",
        "float",
        "half",
        "bfloat16",
        "type",
        "type_as",
        "new_ones",
        "new_zeros",
        "new_full",
        "ones_like",
        "zeros_like",
        "full_like",
        "tril",
        "triu",
        "minimum",
        "maximum",
        "clamp",
        "unsqueeze_copy",
        "slice",
        "select",
        "index",
        "broadcast_to",
        "alias",
        "detach",
        "_to_copy",
    ]
)


def constants(graph: GraphModule) -> dict[Node, torch.Tensor]:
    """The values of what is the same in every run. What is written in place later is none, nor anything in a graph with such writes."""
    values: dict[Node, Any] = {}
    with _disable_current_modes(), torch.no_grad():
        for node in graph.graph.nodes:
            if writes(node) and any(n in values for n in nodes_in((node.args, node.kwargs))):
                return {}
            if _is_constant(node, values):
                values[node] = run(node, values)
    return {node: value for node, value in values.items() if isinstance(value, torch.Tensor)}


def _is_constant(node: Node, values: dict[Node, Any]) -> bool:
    read = list(nodes_in((node.args, node.kwargs)))
    name = called(node)
    if not ((name in SOURCES and not read) or (name in DERIVED and read and all(n in values for n in read))):
        return False
    stand_in = made(node)
    if not isinstance(stand_in, torch.Tensor) or not all(type(n) is int for n in stand_in.shape):
        return False  # sizes that change
    return not stand_in.is_complex() and stand_in.numel() * stand_in.element_size() <= MOST_BYTES
