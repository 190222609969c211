"""Masks of attention: one that is the same in every run, and is causal or hides nothing, needs no memory; others are handed on unexpanded."""

from __future__ import annotations

from collections import Counter
from typing import Any

import torch
from torch.fx import GraphModule, Node

from .calls import called, made, writes
from .constants import constants

ATTENTION = "scaled_dot_product_attention"
Q, K, MASK, CAUSAL = 0, 1, 3, 5  # positions of its arguments


def recognise_masks(graph: GraphModule) -> Counter[str]:
    found: Counter[str] = Counter()
    asked = [n for n in graph.graph.nodes if called(n) == ATTENTION and isinstance(_argument(n, MASK), Node)]
    if not asked:
        return found
    known = constants(graph)
    kinds: dict[tuple[Any, ...], str | None] = {}
    for node in asked:
        mask = _argument(node, MASK)
        seen, read = made(node.args[Q]), made(node.args[K])
        if mask in known:
            key = mask, seen.shape[-2], read.shape[-2]
            if key not in kinds:
                kinds[key] = _kind(known[mask], *key[1:])
            if (kind := kinds[key]) is not None:
                _set(node, MASK, None)
                _set(node, CAUSAL, bool(_argument(node, CAUSAL)) or kind == "causal")
                found[f"attention's mask is the same in every run: {kind}"] += 1
                continue
        narrow = _unexpanded(mask, known)
        if narrow is not mask and _spreads(made(narrow), seen, read):
            _set(node, MASK, narrow)
            found["attention's mask is read as it was before it was expanded"] += 1
    return found


def _argument(node: Node, position: int) -> Any:
    name = {MASK: "attn_mask", CAUSAL: "is_causal"}[position]
    return node.args[position] if len(node.args) > position else node.kwargs.get(name)


def _set(node: Node, position: int, value: Any) -> None:
    if len(node.args) > position:
        node.update_arg(position, value)
    else:
        node.update_kwarg({MASK: "attn_mask", CAUSAL: "is_causal"}[position], value)


def _kind(mask: torch.Tensor, queries: int, keys: int) -> str | None:
    """ "causal", "hides nothing", or None. Of numbers that are added, 0 shows and -inf or the type's least hides: no score outweighs it."""
    if mask.is_floating_point():
        shows = mask == 0
        if not bool((shows | (mask <= torch.finfo(mask.dtype).min)).all()):
            return None
    elif mask.dtype is torch.bool:
        shows = mask
    else:
        return None
    if bool(shows.all()):
        return "hides nothing"
    if queries != keys or mask.ndim < 2 or mask.shape[-2:] != (queries, keys):
        return None  # of fewer queries than keys PyTorch counts from the start
    causal = torch.ones(queries, keys, dtype=torch.bool, device=mask.device).tril()
    return "causal" if bool((shows == causal).all()) else None


def _unexpanded(mask: Node, known: dict[Node, torch.Tensor]) -> Node:
    """What a mask is made of by expanding it, or by hiding nothing more."""
    while True:
        name = called(mask)
        if name in ("expand", "broadcast_to", "expand_as") and isinstance(mask.args[0], Node):
            inner = mask.args[0]
        elif name == "and" and len(mask.args) == 2 and all(isinstance(a, Node) for a in mask.args):
            a, b = mask.args
            if _all_true(b, known):
                inner = a
            elif _all_true(a, known):
                inner = b
            else:
                return mask
        else:
            return mask
        if not isinstance(made(inner), torch.Tensor) or made(inner).dtype != made(mask).dtype:
            return mask
        mask = inner


def _all_true(node: Any, known: dict[Node, torch.Tensor]) -> bool:
    if node in known:
        return known[node].dtype is torch.bool and bool(known[node].all())
    return isinstance(node, Node) and not any(map(writes, node.graph.nodes)) and _holds(node)


# Of sizes that change nothing is known but what the ops say.
SHOWN = frozenset(
    ["getitem", "unsqueeze", "view", "reshape", "expand", "to", "contiguous"]
)  # elements of what they are given


def _holds(node: Any) -> bool:
    """Whether a bool is true whatever sizes are: transformers compares positions with 0 where all may attend."""
    if not isinstance(node, Node) or getattr(made(node), "dtype", None) is not torch.bool:
        return False
    name, args = called(node), node.args
    if name in ("ones", "new_ones"):
        return True
    if name == "ge":
        return len(args) == 2 and type(args[1]) is int and args[1] <= 0 and _never_negative(args[0])
    if name == "and":
        return all(map(_holds, args))
    return name in SHOWN and _holds(args[0])


def _never_negative(x: Any) -> bool:
    if type(x) is int:
        return x >= 0
    if not isinstance(x, Node) or getattr(made(x), "dtype", None) is not torch.int64:
        return False
    name, args = called(x), x.args
    if name == "arange":
        first = args[0] if len(args) > 1 else 0
        return (
            1 <= len(args) <= 2 and type(first) is int and first >= 0 and not {"start", "step"} & {*x.kwargs}
        )
    if name == "add":
        return len(args) == 2 and not x.kwargs and all(map(_never_negative, args))
    return name in SHOWN and _never_negative(args[0])


def _spreads(mask: torch.Tensor, q: torch.Tensor, k: torch.Tensor) -> bool:
    """PyTorch takes masks of two axes or of as many as q has, whose sizes are those of the scores, or 1."""
    scores = (*q.shape[:-1], k.shape[-2])
    sizes = zip(reversed(mask.shape), reversed(scores))
    return 2 <= mask.ndim <= len(scores) and all(m in (1, size) for m, size in sizes)
