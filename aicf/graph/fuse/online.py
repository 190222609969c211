"""The online loop (A6, A7): walk the lowered ops once, compose or else flush and start anew.

A first form of online selection. A state is the ordered ops of the open region with the variants that can still take it;
composing an op asks each of those again, so candidates only shrink. A flush emits the last prefix that a kernel accepts,
and what came after it is scanned again. Which op ended a region, and why, is recorded with the values.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ...errors import NoKernelError
from ...ir import Graph, LoweredOp, Role
from ...registry.select import Selection, Selector
from ...registry.trace import counted_reasons, why_not_taken
from ...registry.variant import KernelVariant
from ...rows import RegionOp, RegionSpec
from ...types import TensorDesc

LENGTH_LIMIT = 16


@dataclass(frozen=True)
class Ended:
    """Why a region ended: the trigger, the values it saw, and the same as a sentence for people."""

    trigger: str  # end | independent | candidates | cost | limit
    detail: str = ""
    sentence: str = field(default="it is the last one", compare=False)

    def __str__(self) -> str:
        return f"{self.trigger}: {self.detail}" if self.detail else self.trigger


@dataclass(frozen=True)
class Region:
    """Ops `anchor..last` of the schedule as one kernel. `in_vids` and `out_vids` follow the spec's operands, results."""

    anchor: int
    last: int
    spec: RegionSpec
    in_vids: tuple[int, ...]
    out_vids: tuple[int, ...]
    selection: Selection
    ended: Ended

    @property
    def kernel_id(self) -> str:
        return self.selection.kernel_id


@dataclass(frozen=True)
class _State:
    anchor: int
    last: int
    spec: RegionSpec
    in_vids: tuple[int, ...]
    out_vids: tuple[int, ...]
    live: tuple[KernelVariant, ...]
    best: Selection | None


class _Schedule:
    """The lowered ops with who reads what, so that a region knows which of its values outlive it."""

    def __init__(self, ops: Sequence[LoweredOp], graph: Graph) -> None:
        self.ops, self.values = ops, graph.values
        self.last_read: dict[int, int] = {}
        for i, op in enumerate(ops):
            for vid in op.in_vids:
                self.last_read[vid] = i
        kept = {v.vid for v in graph.values if v.role is Role.output} | set(graph.updates.values())
        self.last_read.update(dict.fromkeys(kept, len(ops)))
        self.attrs: Mapping[int, Any] = {i: op.attrs for i, op in enumerate(ops)}

    def region(self, anchor: int, last: int) -> tuple[RegionSpec, tuple[int, ...], tuple[int, ...]]:
        """Ops anchor..last as a RegionSpec, with the vids of its operands and results."""
        index: dict[int, int] = {}
        made: dict[int, None] = {}
        region_ops = []
        for i in range(anchor, last + 1):
            op = self.ops[i]
            for vid in (*op.in_vids, *op.out_vids):
                if vid >= 0:
                    index.setdefault(vid, len(index))
            made.update(dict.fromkeys(op.out_vids))
            ins, outs = (
                tuple(index[v] if v >= 0 else -1 for v in vids) for vids in (op.in_vids, op.out_vids)
            )
            region_ops.append(RegionOp(op.kind, self.attrs[i], ins, outs))
        in_vids = tuple(v for v in index if v not in made)
        out_vids = tuple(v for v in made if self.last_read.get(v, -1) > last)
        if anchor == last or not out_vids:  # a kernel of one op writes all its results, whoever reads them
            out_vids = tuple(self.ops[last].out_vids)
        tensors = tuple(TensorDesc.dense(self.values[v].spec) for v in index)
        spec = RegionSpec(
            tuple(region_ops), tensors, tuple(index[v] for v in in_vids), tuple(index[v] for v in out_vids)
        )
        return spec, in_vids, out_vids


def form_regions(ops: Sequence[LoweredOp], graph: Graph, selector: Selector) -> list[Region]:
    """Partition the schedule into regions with one chosen kernel each; NoKernelError names an op no kernel takes."""
    schedule, regions, i = _Schedule(ops, graph), [], 0
    while i < len(ops):
        state, ended = _start(schedule, i, selector), Ended("end")
        best = state if state.best else None
        for j in range(i + 1, len(ops)):
            following = _compose(schedule, state, j, selector)
            if isinstance(following, Ended):
                ended = following
                break
            if best and following.best and (lost := _loses(schedule, best, following, selector)):
                ended = lost
                break
            state = following
            best = state if state.best else best
        if best is None:
            selector(state.spec)  # raises, with every variant's reason
            raise NoKernelError(f"no kernel takes {state.spec}")
        assert best.best is not None
        regions.append(
            Region(best.anchor, best.last, best.spec, best.in_vids, best.out_vids, best.best, ended)
        )
        i = best.last + 1
    return regions


def _start(schedule: _Schedule, i: int, selector: Selector) -> _State:
    spec, in_vids, out_vids = schedule.region(i, i)
    live = tuple(
        v for v in selector.registry.variants(spec.kind) if v.continues(spec, selector.device) is None
    )
    found = selector.ask(spec)
    if isinstance(found, NoKernelError) and not live:
        found.where = schedule.ops[i].where or None
        raise found
    return _State(i, i, spec, in_vids, out_vids, live, None if isinstance(found, NoKernelError) else found)


def _compose(schedule: _Schedule, state: _State, j: int, selector: Selector) -> _State | Ended:
    op = schedule.ops[j]
    if j - state.anchor >= LENGTH_LIMIT:
        most = f"a region has at most {LENGTH_LIMIT} ops"
        return Ended("limit", most, most)
    made = {v for i in range(state.anchor, j) for v in schedule.ops[i].out_vids}
    if not made.intersection(op.in_vids):
        return Ended(
            "independent", f"{op.kind} reads nothing that {state.spec.signature} makes",
            f"the next op, {op.kind}, reads nothing that this one makes",
        )  # fmt: skip
    spec, in_vids, out_vids = schedule.region(state.anchor, j)
    verdicts = [(v, v.continues(spec, selector.device)) for v in state.live]
    live = tuple(v for v, reject in verdicts if reject is None)
    if not live:
        against = [(v, r) for v, r in verdicts if r]
        return Ended(
            "candidates", f"{op.kind} fits none: {counted_reasons(against)}", why_not_taken(op.kind.name, against)
        )  # fmt: skip
    found = selector.ask(spec)
    return _State(
        state.anchor, j, spec, in_vids, out_vids, live, None if isinstance(found, NoKernelError) else found
    )


def _loses(schedule: _Schedule, best: _State, following: _State, selector: Selector) -> Ended | None:
    """Legal is not profitable: stop when the fused prediction is worse than the split one (A9)."""
    assert best.best is not None and following.best is not None
    split = best.best.chosen.us
    for k in range(best.last + 1, following.last + 1):
        single = selector.ask(schedule.region(k, k)[0])
        if isinstance(single, NoKernelError):
            return None
        split += single.chosen.us
    fused = following.best.chosen.us
    if fused <= split:
        return None
    kind = schedule.ops[following.last].kind
    return Ended(
        "cost", f"fused {fused:.3g} us against {split:.3g} us split",
        f"with the next op, {kind}, it would take {fused:.3g} us, apart {split:.3g} us",
    )  # fmt: skip
