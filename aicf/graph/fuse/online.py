"""The online loop: walk the lowered ops; compose, or else end the region and start anew behind it. Then flush.

A region is the last prefix that a kernel accepts; ops that were tried beyond it are composed again, in the next region. The walk
never goes back before the end of a region, but a beam may find a cheaper partition of the whole schedule. Regions are flushed, each
with its cheapest kernel, when the partition is complete. What ended a region is recorded with its values.
"""

from __future__ import annotations

import gc
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from ...errors import NoKernelError
from ...ir import Graph, LoweredOp
from ...lazy import lazy
from ...registry.select import Candidate, Selection, Selector
from ...registry.trace import counted_reasons, why_not_taken
from ...rows import AttributeState, RegionSpec
from ...rows.rows import OVER_ROWS
from .compose import Composer, structure_of
from .nodes import Node, Open, Stop
from .steps import OpSchedule

AHEAD = 6  # lookahead in steps, behind one that loses; enough for (x - mean) / sqrt(var)
NEAR = 0.05  # cap on the tolerance, as a fraction of the unfused time: greater noise says that the machine was busy


@dataclass(frozen=True)
class Ended:
    """Why a region ended: the trigger, the row and its two values if it was one, and the same as a sentence for people."""

    trigger: str  # end | conflict | candidates | barrier | limit | sync | view | cost | beam
    detail: str = ""
    sentence: str = field(default="it is the last one", compare=False)
    row: str = ""
    left: str = ""
    right: str = ""

    def __str__(self) -> str:
        return f"{self.trigger}: {self.detail}" if self.detail else self.trigger


@dataclass(frozen=True)
class Composed:
    """One step of a region's story: the op, the rows it changed, how many candidates it left, the best of them so far."""

    op: str  # `adam_step ×148` for so many side by side
    changed: dict[str, str]
    candidates: int
    best: str | None  # kernel id
    us: float | None
    alone_us: float | None  # each op as a kernel of its own, and the bytes they would then move
    alone_bytes: int
    near: str = ""  # that the op was kept, though times that were measured are a little better without it
    count: int = 1  # of ops side by side


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
    state: AttributeState
    story: Callable[[], tuple[Composed, ...]] = field(compare=False, repr=False)
    instead: tuple[str, ...] = ()  # ops that were asked for, where simpler ones stand in their place

    @lazy
    def steps(self) -> tuple[Composed, ...]:
        """How it grew, op by op; put together when somebody asks."""
        return self.story()

    @property
    def kernel_id(self) -> str:
        return self.selection.kernel_id


def form_regions(ops: Sequence[LoweredOp], graph: Graph, selector: Selector, beam: int = 1) -> list[Region]:
    """Partition the schedule into regions with one chosen kernel each; NoKernelError names an op no kernel takes.

    beam  hypotheses that are kept at each op; 1 is the greedy loop below, `LENGTH_LIMIT` the optimum over intervals
          (see beam.py). The loop's own partition counts as a hypothesis, so that a beam never does worse
    """
    with collector_paused():
        return _formed(Composer(selector, OpSchedule.of(ops, graph)), len(ops), beam)


@contextmanager
def collector_paused() -> Iterator[None]:
    """What selection makes is kept, so looking for garbage among it again and again would take most of the time."""
    collecting = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collecting:
            gc.enable()


def _formed(composer: Composer, n: int, beam: int) -> list[Region]:
    walked, refused = walk(composer, n)
    if beam > 1:
        from .beam import search

        cut = search(composer, n, beam)
        if cut is not None and (refused is not None or _total(cut) < _total([r for r, _ in walked])):
            return [flush(composer, region, _cut_short(composer, region, n)) for region in cut]
    if refused is not None:
        raise refusal(composer, refused)
    return [flush(composer, region, ended) for region, ended in walked]


def walk(composer: Composer, n: int) -> tuple[list[tuple[Open, Ended]], int | None]:
    """The greedy partition of ops 0..n-1; or what there is of it, and the op at which it ends."""
    walked: list[tuple[Open, Ended]] = []
    i = 0
    while i < n:
        region, ended = grow(composer, i, n)
        if region is None:
            return walked, i
        walked.append((region, ended))
        i = region.last + 1
    return walked, None


def grow(composer: Composer, i: int, n: int) -> tuple[Open | None, Ended]:
    """The region that begins at op i: the last prefix that a kernel accepts before something ends it; None if none does."""
    region = composer.beside(i) or composer.start(i)
    if region.view and i + 1 < n:  # what reads it reads the same memory, and may stand beside others
        text = "a view by itself costs nothing"
        return region, Ended("cost", text, text)
    best, ended = region if region.us is not None else None, Ended("end")
    lost: Ended | None = None
    while region.last + 1 < n:
        following = composer.compose(region)
        if isinstance(following, Stop):
            ended = stopped(composer, region, following)
            break
        lost = _loses(composer, best, following) if best and following.us is not None else lost
        if (
            best and lost and not composer.is_view(following.last)
        ):  # a view costs nothing apart, and may pay with its readers
            later = _pays_later(composer, best, following, n)
            if later is None:
                ended = lost
                break
            following, lost = later, None
        region = following
        if region.us is not None and not lost:
            best = region
    if best is not None and best.last < region.last and ended.trigger != "cost":
        ended = lost or _not_taken(composer, region, ended)
    return best, ended


def _pays_later(composer: Composer, best: Open, region: Open, n: int) -> Open | None:
    """Look ahead up to AHEAD steps, over rows. Return the longer region if it is no slower than `best` plus the greedy partition of
    the rest: an intermediate stored now may later stay internal."""
    for _ in range(AHEAD):
        if structure_of(region.node.state.attrs) != OVER_ROWS or region.last + 1 >= n:
            return None
        following = composer.compose(region)
        if isinstance(following, Stop):
            return None
        region, apart, i = following, best.us or 0.0, best.last + 1
        while region.us is not None and i <= region.last and apart < region.us:
            rest, _ = grow(composer, i, region.last + 1)
            if rest is None:
                return region
            apart, i = apart + (rest.us or 0.0), rest.last + 1
        if region.us is not None and region.us <= apart:
            return region
    return None


def _not_taken(composer: Composer, region: Open, ended: Ended) -> Ended:
    """Candidates were left that might have taken more ops, and none takes just these, which are all that go together."""
    index, device, node = composer.selector.index, composer.selector.device, region.node
    verdicts = ((v, v.supported(node.spec, device)) for v in index.members(node.state.candidates))
    against = [(v, reject) for v, reject in verdicts if reject is not None]
    kind, last = node.spec.ops[-1].kind.name, ", the last op" * (ended.trigger == "end")
    text = f"up to {kind}{last}, none takes it: {counted_reasons(against)}"
    row, why = (against[0][1].condition, against[0][1].reason) if against else ("", "")
    detail, sentence = (
        (text, text) if last else (f"{text}; then {ended.detail}", f"{text}; then {ended.sentence}")
    )
    return Ended("candidates", detail, sentence, row, why)


def refusal(composer: Composer, i: int) -> NoKernelError:
    """No kernel takes op i, alone or with what follows: with every variant's reason."""
    error = composer.selector.ask(composer.start(i).node.spec)
    assert isinstance(error, NoKernelError)
    error.where = composer.schedule.ops[i].where or None
    return error


def flush(composer: Composer, region: Open, ended: Ended) -> Region:
    """The region with its kernel: argmin cost over the candidates that take exactly this."""
    spec, at = region.node.spec, {n: vid for vid, n in region.index.items()}
    in_vids, out_vids = (tuple(at[n] for n in tensors) for tensors in (spec.inputs, spec.outputs))
    state = replace(region.node.state, anchor=region.anchor, last=region.last)
    selection = composer.selector(spec)
    ops = composer.schedule.ops[region.anchor : region.last + 1]
    instead = tuple(
        [f"{op.kind.name} for {op.constraints['instead']}" for op in ops if "instead" in op.constraints]
    )
    return Region(
        region.anchor, region.last, spec, in_vids, out_vids, selection, ended, state,
        lambda: _story(composer, region), instead,
    )  # fmt: skip


def _story(composer: Composer, region: Open) -> tuple[Composed, ...]:
    steps: list[Composed] = []
    before: AttributeState | None = None
    taken: tuple[int, int, Candidate] | None = (
        None  # the last prefix that a kernel takes: its steps, its end, the kernel
    )
    i = region.anchor
    for n, node in enumerate(region.steps):
        alone = [composer.alone(op) for op in range(i, i + node.abreast)]
        best, near = node.best, ""
        rest = region.steps[taken[0] : n + 1] if taken else ()
        if best and taken and (told := _apart(composer, taken[2], taken[1], rest, best)):
            over, margin = best.us - told[0], told[1]
            near = f"{over:.3g} us over the split one, noise {margin:.3g} us" if 0 < over <= margin else ""
            near = (
                f"{over:.3g} us over the split one, which pays with what follows" if over > margin else near
            )
        taken = (n + 1, i + node.abreast, best) if best else taken
        kind = node.spec.ops[-1].kind.name
        alone_us = None if any(c is None for c, _ in alone) else math.fsum([c.us for c, _ in alone if c])
        steps.append(
            Composed(
                kind if node.abreast == 1 else f"{kind} ×{node.abreast}",
                node.state.changed(before), node.state.candidates.bit_count(),
                best.variant.id if best else None, best.us if best else None, alone_us,
                sum([nbytes for _, nbytes in alone]), near, node.abreast,
            )
        )  # fmt: skip
        before = node.state
        i += node.abreast
    return tuple(steps)


# --- why a region ends ------------------------------------------------------------------------------------------------


def stopped(composer: Composer, region: Open, stop: Stop) -> Ended:
    """Said once for each Stop: the composer keeps them, and finds equal ones again."""
    kind = composer.schedule.kinds[region.last + 1].name
    key = id(stop), kind
    if key not in composer.endings:
        composer.endings[key] = _told(kind, stop)
    return composer.endings[key]


def _told(kind: str, stop: Stop) -> Ended:
    if stop.conflict is None:
        against = list(stop.against)
        if not against:
            return Ended("candidates", "no kernel begins with it", "no kernel begins with it")
        detail = f"{kind} fits none: {counted_reasons(against)}"
        return Ended("candidates", detail, why_not_taken(kind, against), *stop.emptied)
    c = stop.conflict
    if c.trigger == "limit":
        most = f"a region has at most {c.right.removeprefix('the limit of ')} steps"
        return Ended("limit", most, most, c.row, c.left, c.right)
    if c.trigger == "view":
        return Ended(
            "view", f"{kind}: {c.right}", f"the next op, {kind}, is {c.right}", c.row, c.left, c.right
        )
    return Ended(
        c.trigger, f"{kind}: {c}", f"the next op, {kind}, conflicts in {c.row}: {c.left} meets {c.right}", c.row, c.left, c.right
    )  # fmt: skip


def _loses(composer: Composer, best: Open, following: Open) -> Ended | None:
    """Legal is not profitable: stop when the fused prediction is worse than the split one."""
    assert best.node.best and following.node.best and best.us is not None
    fused, first, rest = following.node.best.us, best.last + 1, following.steps[len(best.steps) :]
    if fused <= best.us + sum([node.least for node in rest]):
        return None  # whatever the ops' own kernels take
    told = _apart(composer, best.node.best, first, rest, following.node.best, best.view)
    if told is None or fused <= sum(told):
        return None
    split, kinds = told[0], composer.schedule.kinds[first : following.last + 1]
    more = (
        f"op, {kinds[0].name}"
        if len(kinds) == 1
        else f"{len(kinds)} ops, {kinds[0].name} to {kinds[-1].name}"
    )
    return Ended(
        "cost", f"fused {fused:.3g} us against {split:.3g} us split",
        f"with the next {more}, it would take {fused:.3g} us, apart {split:.3g} us",
        "cost", f"{fused:.3g} us", f"{split:.3g} us",
    )  # fmt: skip


def _apart(
    composer: Composer, best: Candidate, i: int, rest: Sequence[Node], fused: Candidate, view: bool = False
) -> tuple[float, float] | None:
    """(unfused time, tolerance): fuse if fused <= their sum. Unfused, the prefix and each step after it, from op i on, are a kernel
    of their own. The tolerance is what measured times may be off by: within it, fewer kernels are the better guess. None if a
    step has no kernel."""
    split, noise = (0.0, [fused.cost.noise]) if view else (best.us, [best.cost.noise, fused.cost.noise])
    for node in rest:
        apart = composer.apart(i, node.abreast)
        if apart is None:
            return None
        split += apart[0]
        noise.append(apart[1])
        i += node.abreast
    return split, min(math.hypot(*noise), NEAR * split)


def _total(regions: Sequence[Open]) -> float:
    """Predicted time, to nine digits: sums in another order are equal."""
    return float(f"{math.fsum(region.us or 0.0 for region in regions):.9g}")


def _cut_short(composer: Composer, region: Open, n: int) -> Ended:
    """Why a region of a beam's partition ends where it does: what stops it, or that the whole is cheaper so."""
    if region.last + 1 == n:
        return Ended("end")
    following = composer.compose(region)
    if isinstance(following, Stop):
        return stopped(composer, region, following)
    kind = composer.schedule.kinds[region.last + 1].name
    text = f"with {kind} in the next region the whole schedule is predicted to take less"
    return Ended("beam", text, text)
