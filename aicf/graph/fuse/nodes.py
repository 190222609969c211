"""Regions on their way through the schedule: what is known of one, and what of it does not depend on where it stands."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from ...registry.select import Candidate
from ...registry.variant import KernelVariant, Reject
from ...rows import Attributes, AttributeState, Conflict, RegionSpec
from ...rows.rows import Joined


@dataclass(frozen=True, eq=False)
class Shared:
    """What nodes have in common that differ in sizes alone, up to their last step.

    rows      that the step brings; of the domain, that of another size
    joined    with those before it, without those that depend on sizes
    defined   results of all its ops
    read      operands of all its ops: of those that share storage, the one that stands for all
    races     ops side by side, of which the last reads what others write in place, or writes what they read
    storage   of operands that share storage with others of the region: the one that stands for all
    point     flops of its maps, at one point
    """

    rows: Attributes
    joined: Joined
    defined: frozenset[int]
    read: frozenset[int]
    races: bool
    storage: Mapping[int, int]
    point: int
    own: int  # of an op of the step
    mask: int  # variants that live with its element types and alignments


class Node(NamedTuple):
    """A region and what selection knows of it."""

    id: int
    spec: RegionSpec
    state: AttributeState
    shared: Shared
    best: Candidate | None
    own_flops: int  # of its maps, each over its own result
    least: float  # microseconds that its last step takes at least if it is not fused
    abreast: int  # how many ops the last step is, side by side


@dataclass(frozen=True)
class Stop:
    """Why an op does not join a region: the rows' conflict; or the row that left no candidates, its value before and
    now, and what the last candidates have against the op."""

    conflict: Conflict | None
    against: tuple[tuple[KernelVariant, Reject], ...] = ()
    emptied: tuple[str, str, str] = ("", "", "")


class Open(NamedTuple):
    """Ops anchor..last as one region."""

    anchor: int
    last: int
    node: Node
    index: dict[int, int]  # type: ignore[assignment]  # vid -> place in the region's tensors
    live_out: tuple[int, ...]  # vids of its results that something after it reads
    homes: dict[int, int]  # storage that has several names -> the place of the first of them
    steps: tuple[Node, ...]  # of its prefixes by steps, the last is its own
    view: bool  # that the plan makes of it: no kernel runs

    @property
    def us(self) -> float | None:
        """Predicted or measured time of the best kernel; None if none takes exactly this."""
        if self.view:
            return 0.0
        return self.node.best.us if self.node.best else None


class Extension(NamedTuple):
    """Ops on their way into a region. What `key` says is all that the Node depends on."""

    key: tuple[Any, ...]
    ops: range
    ends: list[
        tuple[tuple[int, ...], tuple[int, ...]]
    ]  # of each op: operands and results, by place in the region's tensors
    new: list[int]  # vids
    leaving: tuple[int, ...]
    sync: bool
    same: tuple[tuple[int, int], ...]  # operands that share storage, and the place that stands for it
    places: dict[int, int]  # these are of the region with the op
    live_out: tuple[int, ...]
    homes: dict[int, int]
