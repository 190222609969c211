"""What collectives of a plan cost, and how much of that passes behind kernels that do not need them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from ...registry.measured import counted
from ...registry.trace import microseconds
from ..fuse import Region
from .overlap import bucket_of
from .plan import ExecPlan, Step


@dataclass(frozen=True)
class CollectiveTime:
    """count, buckets, nbytes   of the tensors that a run exchanges
    ranks      between how many
    us         predicted, one bucket after the other; `exposed_us` of it nothing else runs
    whole_us   of the run
    """

    count: int
    buckets: int
    nbytes: int
    ranks: int
    us: float
    exposed_us: float
    whole_us: float

    def __str__(self) -> str:
        hidden = self.us - self.exposed_us
        told = f"{microseconds(hidden)} of it beside kernels" if hidden > 0 else "with nothing beside it"
        return (
            f"{counted(self.count, 'collective')} of {self.ranks} ranks in {counted(self.buckets, 'bucket')}, {self.nbytes:,} B: "
            f"predicted {microseconds(self.us)}, {told}"
        )


def collective_time(plan: ExecPlan, regions: Sequence[Region], beside: bool) -> CollectiveTime | None:
    """Of a run whose collectives have a stream of their own, if `beside`. None if it has no collectives.

    regions  of the plan's steps that have kernels, in their order
    """
    steps = [step for step in plan.steps if step.kernel_id]
    if not any(is_collective(step) for step in steps):
        return None
    now = free = sent = exposed = 0.0  # when kernels are done so far, and the links
    count = buckets = nbytes = 0
    ranks, last = 1, None
    done: dict[int, float] = {}  # by the storage that a collective writes: when it is through
    for step, region in zip(steps, regions):
        us = region.selection.chosen.us
        roots = [plan.alias.get(vid, vid) for vid in (*step.in_vids, *step.out_vids)]
        if not is_collective(step):
            ready = max((done.pop(at) for at in roots if at in done), default=now)
            exposed += max(0.0, ready - now)
            now, last = max(now, ready) + us, None
            continue
        bucket = bucket_of(step)
        if bucket == last:  # what it has of its own are bytes: the start and the trips are the bucket's
            us = region.selection.chosen.cost.terms.get("links", us)
        buckets, last = buckets + (bucket != last), bucket
        count, nbytes, ranks = (
            count + 1,
            nbytes + region.spec.results[0].nbytes,
            step.region.anchor.attrs["ranks"],
        )
        sent += us
        free = max(free, now) + us
        if beside:
            done.update(dict.fromkeys(roots, free))
        else:
            exposed, now = exposed + us, now + us
    exposed += max(0.0, max(done.values(), default=now) - now)
    return CollectiveTime(
        count, buckets, nbytes, ranks, sent, exposed, math.fsum((max(now, *done.values(), now),))
    )


def is_collective(step: Step) -> bool:
    """Whether a step is something that all ranks do together."""
    return step.region.anchor.attrs.get("ranks", 1) > 1
