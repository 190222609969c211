"""The memory planner: lifetimes to one arena. Best fit over the offsets that are free for a value's whole life."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ...device.runtime import ALIGNMENT
from ...ir import Graph, Role
from ..fuse import Region


def place(graph: Graph, regions: Sequence[Region], aliases: Mapping[int, int]) -> tuple[dict[int, int], int]:
    """Arena offset of each tmp value that owns storage, and the arena's size in bytes.

    Values whose lifetimes meet never overlap. Largest first, at the lowest gap that fits: deterministic.
    """
    first: dict[int, int] = {}
    last: dict[int, int] = {}
    for i, region in enumerate(regions):
        for vid in (*region.in_vids, *region.out_vids):
            owner = aliases.get(vid, vid)
            if graph.values[owner].role is Role.tmp:
                first.setdefault(owner, i)
                last[owner] = i
    for new in graph.updates.values():  # copied into their state after the last step
        owner = aliases.get(new, new)
        if owner in last:
            last[owner] = len(regions)
    size = {v: -(-max(graph.values[v].spec.nbytes, 1) // ALIGNMENT) * ALIGNMENT for v in first}
    offsets: dict[int, int] = {}
    for vid in sorted(first, key=lambda v: (-size[v], v)):
        taken = sorted(
            (offsets[o], offsets[o] + size[o])
            for o in offsets
            if first[o] <= last[vid] and first[vid] <= last[o]
        )
        offsets[vid] = _lowest_gap(taken, size[vid])
    return offsets, max((offsets[v] + size[v] for v in offsets), default=0)


def _lowest_gap(taken: list[tuple[int, int]], size: int) -> int:
    at = 0
    for start, end in taken:
        if start - at >= size:
            break
        at = max(at, end)
    return at
