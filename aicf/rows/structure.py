"""Structures: which sorts of ops a region has, in which order. A variant's `takes` names them."""

from __future__ import annotations

import functools

from ..ops.schema import MAP, VIEW, schema_of
from .by_form import by_form
from .region import RegionSpec
from .reject import Reject
from .rows import OVER_ROWS, REDUCE, over_rows


def structure(region: RegionSpec) -> str:
    """The sorts of ops in order, neighbouring maps as one: `map`, `gemm`, `gemm+map`, `map+reduce`, `softmax`.

    Independent maps that do the same, over domains of their own, are `maps`; several reductions, or maps over
    whole rows behind one, are `rows`.
    """
    return schema_of(region.kind).core if len(region.ops) == 1 else _structure(region)


@by_form
def _structure(region: RegionSpec) -> str:
    parts: list[str] = []
    rows = wide = False
    reduced: set[tuple[int, ...]] = set()  # extents of a first reduction's result, and of it reshaped
    for op in region.ops:
        schema, shape = schema_of(op.kind), region.tensors[op.outputs[0]].shape
        core = schema.core
        rows = rows or over_rows(parts, core)
        if VIEW in schema.traits and region.tensors[op.inputs[0]].shape in reduced:
            reduced.add(shape)
        wide = wide or bool(reduced and shape not in reduced)
        if core == REDUCE and not reduced and set(parts) <= {MAP}:
            reduced.add(shape)
        if core != MAP or parts[-1:] != [MAP]:
            parts.append(core)
    if set(parts) <= {MAP, REDUCE, OVER_ROWS} and (rows or wide):
        return OVER_ROWS
    return "maps" if parts == [MAP] and side_by_side(region) else "+".join(parts)


@by_form
def parts_of(region: RegionSpec) -> tuple[tuple[int, ...], ...] | Reject:
    """The places of each part's ops, parts in the order of their first ones."""
    first = region.ops[0]
    part_of: dict[int, int] = {}  # of a value that the region makes
    parts: list[list[int]] = []
    for n, op in enumerate(region.ops):
        if not schema_of(op.kind).is_map:
            return Reject("ops", f"{op.kind} is no map")
        read = {part_of[t] for t in op.inputs if t in part_of}
        if len(read) > 1:
            return Reject("ops", f"{op.kind} reads another part's result")
        if not read:
            read = {len(parts)}
            parts.append([])
        (part,) = read
        parts[part].append(n)
        part_of.update(dict.fromkeys(op.outputs, part))
    calls = [[(region.ops[n].kind, region.ops[n].attrs) for n in part] for part in parts]
    for call in calls:
        if call != calls[0]:
            other = next((kind for kind, _ in call if kind != first.kind), call[0][0])
            return Reject("ops", f"{other} beside {first.kind}: takes ops of one kind and equal attributes")
    return tuple(map(tuple, parts))


def side_by_side(region: RegionSpec) -> bool:
    """Whether it has several parts over domains of their own: some part begins at other points than the ops before it ended at.
    Else they are one map as well, be it one whose domain grows as later ops repeat what they read."""
    parts = parts_of(region)
    if isinstance(parts, Reject):
        return False
    shapes = [region.tensors[op.outputs[0]].shape for op in region.ops]
    return any(shapes[part[0]] != shapes[part[0] - 1] for part in parts[1:])


@functools.cache
def prefixes(taken: str) -> frozenset[str]:
    """The structures that a region of this structure goes through as it grows."""
    if taken == "maps":
        return frozenset({MAP, "maps"})
    if taken == OVER_ROWS:
        return frozenset({MAP, REDUCE, "map+reduce", "reduce+map", "map+reduce+map", OVER_ROWS})
    parts = taken.split("+")
    return frozenset("+".join(parts[: n + 1]) for n in range(len(parts)))
