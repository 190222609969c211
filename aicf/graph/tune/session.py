"""A tuning session: which regions, in which order, within which time.

Selection compares a region with the regions it could be split into, so these belong together: a family is a region that was
weighed, with all of its parts that were. A family is measured whole or left out whole, lest measured times stand against
predicted ones. Cheap families come first: what they leave of their share of the time goes to the dear ones. Once the families
of a plan are measured the choices may fall otherwise and raise other regions; those are measured next.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from ... import channels
from ...device.tensor import Runtime
from ...errors import AicfError, TuningError
from ...ops.schema import VIEW, schema_of
from ...progress import Advance, no_progress
from ...registry.measured import Header, Measured
from ...registry.registry import KernelRegistry
from ...registry.select import Selection
from ...registry.tuning import Times, Tuning
from ...rows import RegionSpec
from .measure import LEAST, Bench
from .report import DOUBT, Question, Report

RUNS = LEAST + 3  # a kernel takes at least: it is verified, its samples are made ready, and taken

Ask = Callable[[Times | None], Question]


def tune(
    ask: Ask, runtime: Runtime, registry: KernelRegistry, seconds: float, known: Times | None = None,
    progress: Advance = no_progress, bench: Bench | None = None,
) -> Report:  # fmt: skip
    """Measure what `known` lacks, until every region is known or the time is up.

    ask    what selection decides for a model with given tuning data
    known  a Tuning: other times name no regions, and can't be added to

    What breaks it off, Ctrl-C or a device that is lost, is in `report.stopped`, beside all that was measured before.
    """
    if known is not None and not isinstance(known, Tuning):
        raise TuningError(
            f"a {type(known).__name__} of times can't be added to",
            expected="a Tuning, or a file that aicf tune wrote",
        )
    if not (isinstance(seconds, int | float) and not isinstance(seconds, bool) and seconds > 0):
        raise TuningError(f"{seconds!r} is no time to tune in", expected="seconds, more than 0")
    session = _Session(bench or Bench(runtime, registry), seconds, known, progress)
    before = after = ask(Tuning(session.tuning.header))  # which says nothing yet, but is asked about all
    stopped: BaseException | None = None

    def settled(question: Question) -> Question:
        """With the regions that are formed anew once others are measured, until there are none."""
        while not session.left and any(map(session.lacks, question.asked)):
            known = session.state
            session.measure(question)
            if session.state == known:  # whatever it is that it lacks, it can't be had
                session.leave(question.asked)
            question = ask(session.tuning)
        return question

    try:
        after = settled(before)
        while session.look_again([*before.asked, *after.asked]):
            after = settled(ask(session.tuning))
    except (KeyboardInterrupt, TuningError) as error:
        stopped, after = error, ask(session.tuning)
        session.leave(after.asked)
    return Report(
        session.tuning, before, after, tuple(session.done), tuple(session.left), tuple(session.skipped.items()),
        session.seconds, stopped,
    )  # fmt: skip


class _Session:
    def __init__(self, bench: Bench, seconds: float, known: Tuning | None, progress: Advance) -> None:
        self.bench, self.progress = bench, progress
        self.start = bench.clock()
        self.deadline = self.start + seconds
        self.tuning = known or Tuning(Header.here(bench.runtime.spec))
        self.done: list[RegionSpec] = []
        self.left: list[RegionSpec] = []
        self.skipped: dict[RegionSpec, str] = {}
        self.looked_at: set[RegionSpec] = set()  # again

    @property
    def seconds(self) -> float:
        return self.bench.clock() - self.start

    @property
    def state(self) -> tuple[int, int, int]:
        """What is known, left out and skipped, by number: none of it grows when measuring was in vain."""
        known = sum(len(m.timings) + len(m.refused) for m in self.tuning.regions.values())
        return known, len(self.left), len(self.skipped)

    @property
    def remaining(self) -> float:
        return self.deadline - self.bench.clock()

    def lacks(self, selection: Selection) -> bool:
        """Whether some kernel that takes the region has no time yet."""
        region = selection.region
        if region in self.skipped or not _runs(region):
            return False
        known = self.tuning.regions.get(region.key)
        return known is None or any(
            c.variant.id not in (*known.timings, *known.refused) for c in selection.ranked
        )

    def measure(self, question: Question) -> None:
        """The families that lack something; those of the plan first, and the cheap ones first."""
        planned = {s.region for s in question.plan}
        wanted = [f for f in families(question.asked) if any(map(self.lacks, f))]
        wanted.sort(key=lambda f: (not any(s.region in planned for s in f), f[0].chosen.us, f[0].region.key))
        total = len(self.done) + len({s.region for f in wanted for s in f if self.lacks(s)})
        for n, family in enumerate(wanted):
            needed = [s for s in family if self.lacks(s)]
            if not needed:
                continue  # it was part of another
            least = sum(c.us for s in needed for c in s.ranked) * RUNS * 1e-6
            if least > self.remaining or not self._family(needed, self.remaining / (len(wanted) - n), total):
                self.leave(needed)

    def leave(self, selections: Iterable[Selection]) -> None:
        """Note what is left out."""
        self.left += [s.region for s in selections if s.region not in self.left and self.lacks(s)]

    def _family(self, needed: Sequence[Selection], share: float, total: int) -> bool:
        """Whether it could be measured whole within the time."""
        bench, measured = self.bench, list[Measured]()
        bench.loader.prepare([(c.variant.id, s.region) for s in needed for c in s.ranked])
        end = bench.clock() + share
        for n, s in enumerate(needed):
            if self.remaining <= 0:
                self._keep(Measured(m.region, {}, m.refused) for m in measured if m.refused)
                return False
            self.progress(len(self.done) + n, total, s.region.signature)
            until = bench.clock() + max(end - bench.clock(), 0.0) / (len(needed) - n)
            try:
                found = bench.region(s.region, [c.variant.id for c in s.ranked], until)
            except TuningError:
                raise
            except (
                Exception
            ) as error:  # an op without a reference, tensors that don't fit: nothing to verify against
                self._skip(s.region, error.what if isinstance(error, AicfError) else repr(error))
                continue
            self._tell(found, s)
            if found.timings:
                measured.append(found)
            else:  # more likely the fault of the machine or the reference: no file should remember it
                why = "; ".join(f"{id}: {fault}" for id, fault in found.refused.items())
                self._skip(s.region, f"no kernel can be verified: {why}")
        self._keep(measured)
        self.done += [m.region for m in measured]
        self.left = [region for region in self.left if region not in self.done]
        self.progress(len(self.done), total, "")
        return True

    def _skip(self, region: RegionSpec, why: str) -> None:
        self.skipped[region] = why
        text = f"{region.signature} is not tuned: {why}"
        channels.tell("tune", "skipped", text, logging.WARNING, region=region.signature, why=why)

    def _tell(self, found: Measured, selection: Selection) -> None:
        """Each measurement, on the channel `tune`."""
        if not channels.enabled("tune", logging.WARNING):
            return
        region, predicted = found.region.signature, {c.variant.id: c.us for c in selection.ranked}
        operands = list(map(str, found.region.operands))
        for id, timing in found.timings.items():
            us = predicted.get(id)
            text = f"{region} by {id}: {timing.us:.4g} us measured" + (
                f", {us:.4g} us predicted" if us else ""
            )
            channels.tell(
                "tune", "measured", text, region=region, operands=operands, kernel=id, us=timing.us, predicted_us=us,
                spread=timing.spread, runs=timing.runs,
            )  # fmt: skip
        for id, why in found.refused.items():
            text = f"{region}: {id} is WRONG: {why}"
            channels.tell(
                "tune", "wrong", text, logging.WARNING, region=region, operands=operands, kernel=id, why=why
            )

    def look_again(self, asked: Iterable[Selection]) -> bool:
        """Times that are far above the prediction, once more: what else ran on the machine only ever adds to them. Whether there were
        any."""
        mine, tuning = set(self.done) - self.looked_at, self.tuning
        self.looked_at |= mine
        for s in {s.region: s for s in asked if s.region in mine}.values():
            known = self.tuning.regions[s.region.key]
            predicted = {c.variant.id: c.cost.predicted or c.us for c in s.ranked}
            doubted = [id for id, t in known.timings.items() if t.us > DOUBT * predicted.get(id, t.us)]
            if doubted and sum(known.timings[id].us for id in doubted) * RUNS * 1e-6 < self.remaining:
                self.progress(len(self.done), len(self.done), s.region.signature)
                found = self.bench.region(s.region, doubted, self.bench.clock())
                self._tell(found, s)
                again = found.timings
                best = {id: min(t, again.get(id, t), key=lambda t: t.us) for id, t in known.timings.items()}
                self._keep([Measured(known.region, best, known.refused)])
        return self.tuning is not tuning

    def _keep(self, measured: Iterable[Measured]) -> None:
        measured = list(measured)
        header = Header.here(self.bench.runtime.spec, self.bench.registry, measured)
        self.tuning = self.tuning.updated(Tuning(header, measured))


def _runs(region: RegionSpec) -> bool:
    """Whether there is something to measure: work, on tensors as plans have them."""
    view = len(region.ops) == 1 and VIEW in schema_of(region.kind).traits
    dense = all(t.contiguous for t in region.tensors)
    return dense and not view and any(t.numel for t in region.results)


def families(asked: Iterable[Selection]) -> list[list[Selection]]:
    """Each region that is part of no other, with its parts: regions whose ops are among its own, on equal tensors."""
    selections = list({s.region: s for s in asked}.values())
    ops = [Counter(_ops(s.region)) for s in selections]
    holders: dict[Any, set[int]] = {}
    for n, count in enumerate(ops):
        for op in count:
            holders.setdefault(op, set()).add(n)
    wholes = [
        [w for w in sorted(set.intersection(*(holders[op] for op in count))) if count < ops[w]]
        for count in ops
    ]
    members = {n: [s] for n, s in enumerate(selections) if not wholes[n]}
    for n, found in enumerate(wholes):
        for w in found:
            if w in members:
                members[w].append(selections[n])
    return list(members.values())


def _ops(region: RegionSpec) -> list[Any]:
    """Each op with what it reads and makes, whatever its place in a region."""
    return [
        (
            op.kind,
            op.attrs,
            tuple(t >= 0 and region.tensors[t] for t in op.inputs),
            tuple(region.tensors[t] for t in op.outputs),
        )
        for op in region.ops
    ]
