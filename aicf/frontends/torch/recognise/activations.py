"""Activations that are spelt out are recognised by what they compute: ops of one tensor, tried at numbers in f64 beside the functions that
PyTorch has. So every spelling of one is found, and no list of spellings is kept."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import torch
from torch.fx import GraphModule, Node
from torch.utils._python_dispatch import _disable_current_modes

from .calls import called, made, nodes_in, replace, run

ELEMENTWISE = frozenset(
    [
        "add",
        "sub",
        "rsub",
        "mul",
        "div",
        "neg",
        "pow",
        "square",
        "sqrt",
        "tanh",
        "erf",
        "erfc",
        "sigmoid",
        "exp",
        "expm1",
        "log1p",
        "softplus",
    ]
)
CURVED = frozenset(
    ["tanh", "erf", "erfc", "sigmoid", "exp", "expm1"]
)  # one of these is in every function below
MOST_OPS = 16  # of one activation
CLOSE = 1e-6  # published constants have so many digits: sqrt(2 / pi) is written 0.7978845608
EDGES = 0.02  # what rounding to halves on the way may change
KNOWN: dict[str, tuple[Callable[..., Any], dict[str, Any]]] = {
    "gelu, tanh form": (torch.ops.aten.gelu.default, {"approximate": "tanh"}),
    "gelu": (torch.ops.aten.gelu.default, {}),
    "silu": (torch.ops.aten.silu.default, {}),
}


@cache
def _points() -> torch.Tensor:
    """Where functions are compared: dense around 0, small and large numbers of both signs, infinities and NaN."""
    around = torch.linspace(-12, 12, 1537, dtype=torch.float64)
    size = torch.logspace(-30, 12, 253, dtype=torch.float64)
    special = torch.tensor([0.0, -0.0, torch.inf, -torch.inf, torch.nan], dtype=torch.float64)
    return torch.cat([around, size, -size, special])


@cache
def _edges(dtype: torch.dtype) -> torch.Tensor:
    """The ends of a type's range, and what is no number: as many as PyTorch's vectorised kernels take."""
    most = torch.finfo(dtype).max
    ends = [most, most / 3, most**0.5, 40.0, torch.finfo(dtype).tiny, torch.inf]
    return torch.tensor([*ends, *(-x for x in ends), torch.nan, 0.0, -0.0, 1.0] * 8, dtype=torch.float64).to(
        dtype
    )


def recognise_activations(graph: GraphModule) -> Counter[str]:
    found: Counter[str] = Counter()
    with _disable_current_modes(), torch.no_grad():
        for root in reversed(list(graph.graph.nodes)):
            if called(root) not in ("mul", "div") or not root.users:
                continue
            match = next(_matches(root), None)
            if match is not None:
                name, x, count = match
                function, options = KNOWN[name]
                if made(x).dtype != made(root).dtype:
                    x = _widened(graph, x, root)
                replace(graph, root, function, x, **options)
                found[f"{name}, of {count} ops"] += 1
    return found


def _widened(graph: GraphModule, x: Node, root: Node) -> Node:
    """x in the type of the result."""
    with graph.graph.inserting_before(root):
        wide = graph.graph.call_function(torch.ops.aten.to.dtype, (x, made(root).dtype))
    wide.meta = dict(root.meta)
    return wide


def _matches(root: Node) -> Iterator[tuple[str, Node, int]]:
    """(name, operand, number of ops) of the functions that a node computes of one of the nodes behind it."""
    steps = _behind(root)
    if not any(called(n) in CURVED for n in steps):
        return
    for x in sorted(_operands(steps), key=lambda n: len(list(n.users)), reverse=True):
        inner = _between(x, root, steps)
        if inner is None or not any(called(n) in CURVED for n in inner) or not _one_shape(x, inner):
            continue
        got = _computed(x, inner, root)
        if got is None:
            continue
        for name, (function, options) in KNOWN.items():
            want = function(_points(), **options)
            same = torch.isclose(got, want, rtol=CLOSE, atol=1e-12, equal_nan=True)
            if bool(same.all()) and _same_at_the_edges(x, inner, root, function, options):
                yield name, x, len(inner)


def _behind(root: Node) -> list[Node]:
    """The elementwise ops that end in a node, it among them; no more than an activation has."""
    steps: list[Node] = []
    todo = [root]
    while todo:
        node = todo.pop(0)
        if node in steps or called(node) not in ELEMENTWISE or len(steps) > 2 * MOST_OPS:
            continue
        steps.append(node)
        todo += nodes_in((node.args, node.kwargs))
    return steps


def _operands(steps: list[Node]) -> list[Node]:
    """What such ops read: each may be the operand."""
    return list(dict.fromkeys(n for step in steps for n in nodes_in((step.args, step.kwargs))))


def _between(x: Node, root: Node, steps: list[Node]) -> list[Node] | None:
    """The ops from x to root, in order; None if they read anything else, or if x is not what they are a function of."""
    needed: list[Node] = []
    todo = [root]
    while todo:
        node = todo.pop()
        if node is x or node in needed:
            continue
        if node not in steps or len(needed) == MOST_OPS:
            return None
        read = list(nodes_in((node.args, node.kwargs)))
        if not read:
            return None
        needed.append(node)
        todo += read
    order = {n: i for i, n in enumerate(root.graph.nodes)}
    return sorted(needed, key=order.__getitem__)


def _one_shape(x: Node, inner: list[Node]) -> bool:
    """Whether all of it is floats of one shape, none narrower than x's: autocast widens powers and exponentials, and what follows."""
    first = made(x)
    if not isinstance(first, torch.Tensor) or not first.is_floating_point():
        return False
    results = [made(n) for n in inner]
    return all(
        isinstance(r, torch.Tensor)
        and r.shape == first.shape
        and torch.promote_types(r.dtype, first.dtype) == r.dtype
        for r in results
    )


def _same_at_the_edges(
    x: Node, inner: list[Node], root: Node, function: Callable[..., Any], options: dict[str, Any]
) -> bool:
    """Whether the function of PyTorch that may run, in the tensor's own type, has no infinity or NaN where what is spelt out has a number, and
    the same at infinities. A product that overflows on the way to a number is no difference.

    oneDNN's gelu is NaN at inf on some processors: it is tried for tensors on the host. It takes contiguous ones alone.
    """
    points = _edges(made(x).dtype)
    want = _computed(x, inner, root, points)
    if want is None:
        return False
    wide = points.to(made(root).dtype)
    if made(x).device.type != "cpu":
        wide = torch.stack([wide, wide], 1)[:, 0]
    got = function(wide, **options)
    infinite, number = torch.isinf(points), torch.isfinite(want)
    same = torch.isclose(got.double(), want.double(), rtol=EDGES, atol=EDGES, equal_nan=True)
    return bool(torch.where(infinite | number, same, ~torch.isnan(got) | torch.isnan(want)).all())


def _computed(
    x: Node, inner: list[Node], root: Node, points: torch.Tensor | None = None
) -> torch.Tensor | None:
    """What the ops make of points in place of x."""
    values: dict[Node, Any] = {x: _points() if points is None else points}
    try:
        for node in inner:
            values[node] = run(node, values)
    except (TypeError, ValueError, RuntimeError):  # not a function of numbers alone
        return None
    return values[root] if isinstance(values[root], torch.Tensor) else None
