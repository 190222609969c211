"""Values in tuples, lists and dicts, as layers take and return them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any


def children(tree: Any) -> tuple[tuple[Any, Any], ...]:
    """What a tuple, list or dict has, by place, field or key; of anything else nothing."""
    if isinstance(tree, tuple) and hasattr(tree, "_asdict"):
        return tuple(tree._asdict().items())
    if isinstance(tree, (tuple, list)):
        return tuple(enumerate(tree))
    return tuple(tree.items()) if isinstance(tree, dict) else ()


def leaves(tree: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """What is no tuple, list or dict, or an empty one, with the way to it: `hidden.0`."""
    inside = children(tree)
    if not inside:
        yield path, tree
    for key, part in inside:
        yield from leaves(part, f"{path}.{key}" if path else str(key))


def tree_map(change: Callable[[Any], Any], tree: Any) -> Any:
    """The same tuples, lists and dicts around what `change` makes of each leaf."""
    parts = [(key, tree_map(change, part)) for key, part in children(tree)]
    if not parts:
        return change(tree)
    if isinstance(tree, dict):
        return dict(parts)
    made = [part for _, part in parts]
    if isinstance(tree, list):
        return made
    return type(tree)._make(made) if hasattr(tree, "_make") else tuple(made)
