"""The memory planner: lifetimes of values and of kernels' workspaces to one arena.

Three ways to lay it out are tried, and the smallest arena is taken; the first of equal ones. Walks along the steps, forwards
and backwards, take the smallest hole that fits, in O(n log n). Placing the largest value first wastes less where sizes differ,
but compares each value with all others: that is done while they are few.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from ...device.tensor import ALIGNMENT
from ...ir import Graph, Role
from ..fuse import Region

FEW = 256  # values that are compared with each other


@dataclass(frozen=True, slots=True)
class Life:
    """A value that owns `size` bytes of the arena from step `first` up to and including step `last`; or the workspace of step n: ~n."""

    vid: int
    first: int
    last: int
    size: int


def place(
    graph: Graph, regions: Sequence[Region], aliases: Mapping[int, int], workspaces: Mapping[int, int]
) -> tuple[dict[int, int], int]:
    """Arena offset of each tmp value that owns storage, and of ~n for each step n of `workspaces` (bytes); and the arena's size in bytes."""
    scratch = [Life(~n, n, n, whole(size)) for n, size in workspaces.items()]
    return arrange([*lifetimes(graph, regions, aliases), *scratch])


def whole(nbytes: int) -> int:
    """In whole units of the arena's alignment; one at the least."""
    return -(-max(nbytes, 1) // ALIGNMENT) * ALIGNMENT


def lifetimes(graph: Graph, regions: Sequence[Region], aliases: Mapping[int, int]) -> list[Life]:
    """Of each tmp value that owns storage; sizes are whole units of the arena's alignment."""
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
    return [Life(v, first[v], last[v], whole(graph.values[v].spec.nbytes)) for v in first]


def arrange(lives: Sequence[Life]) -> tuple[dict[int, int], int]:
    """Offsets at which values whose lives meet never overlap, and the size of the whole: deterministic."""
    backwards = [Life(v.vid, -v.last, -v.first, v.size) for v in lives]
    layouts = [_walked(lives), _walked(backwards)]
    if len(lives) <= FEW:
        layouts.insert(0, _largest_first(lives))
    return min(((at, _extent(lives, at)) for at in layouts), key=lambda layout: layout[1])


def _extent(lives: Iterable[Life], offsets: Mapping[int, int]) -> int:
    return max((offsets[v.vid] + v.size for v in lives), default=0)


# --- largest first ----------------------------------------------------------------------------------------------------


def _largest_first(lives: Sequence[Life]) -> dict[int, int]:
    """Each at the lowest gap that is free for its whole life."""
    offsets: dict[int, int] = {}
    placed: list[Life] = []
    for life in sorted(lives, key=lambda v: (-v.size, v.vid)):
        taken = sorted(
            (offsets[o.vid], offsets[o.vid] + o.size)
            for o in placed
            if o.first <= life.last and life.first <= o.last
        )
        offsets[life.vid] = _lowest_gap(taken, life.size)
        placed.append(life)
    return offsets


def _lowest_gap(taken: list[tuple[int, int]], size: int) -> int:
    at = 0
    for start, end in taken:
        if start - at >= size:
            break
        at = max(at, end)
    return at


# --- along the steps --------------------------------------------------------------------------------------------------


def _walked(lives: Sequence[Life]) -> dict[int, int]:
    """Step by step: what has died is freed, then what is born takes the smallest hole that fits, the largest first."""
    born: dict[int, list[Life]] = defaultdict(list)
    freed: dict[int, list[Life]] = defaultdict(list)
    for life in lives:
        born[life.first].append(life)
        freed[life.last + 1].append(life)
    offsets: dict[int, int] = {}
    holes = _Holes()
    for step in sorted({*born, *freed}):
        for life in freed.get(step, ()):
            holes.free(offsets[life.vid], life.size)
        for life in sorted(born.get(step, ()), key=lambda v: (-v.size, v.vid)):
            offsets[life.vid] = holes.take(life.size)
    return offsets


class _Holes:
    """The free parts of an arena that grows at its end. No two of them touch."""

    def __init__(self) -> None:
        self.end = 0
        self.by_size: list[tuple[int, int]] = []  # (size, start), ascending
        self.size_at: dict[int, int] = {}  # start -> size
        self.start_of: dict[int, int] = {}  # end -> start

    def take(self, size: int) -> int:
        i = bisect_left(self.by_size, (size, -1))
        if i < len(self.by_size):
            found, start = self.by_size[i]
            self._drop(start)
            if found > size:
                self._add(start + size, found - size)
            return start
        start = self.start_of.get(self.end, self.end)  # a hole at the end becomes part of what is taken
        if start < self.end:
            self._drop(start)
        self.end = start + size
        return start

    def free(self, start: int, size: int) -> None:
        if start + size in self.size_at:
            size += self._drop(start + size)
        if start in self.start_of:
            before = self.start_of[start]
            size += self._drop(before)
            start = before
        self._add(start, size)

    def _add(self, start: int, size: int) -> None:
        insort(self.by_size, (size, start))
        self.size_at[start] = size
        self.start_of[start + size] = start

    def _drop(self, start: int) -> int:
        size = self.size_at.pop(start)
        del self.start_of[start + size]
        del self.by_size[bisect_left(self.by_size, (size, start))]
        return size
