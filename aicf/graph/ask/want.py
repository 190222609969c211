"""Why not this kernel, and what would it take? The nearest changes of a region for which a kernel takes it, and is chosen.

Found by search: each changed region is handed to the kernel and to selection, so what is said holds for it. Single changes come
first, then pairs and triples of those that got past the condition that failed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from ...device.spec import PRESETS
from ...registry.select import Candidate, Selection, Selector
from ...registry.variant import KernelVariant, Reject
from ...rows import RegionSpec
from .changes import RegionChange, changes, extents, moved, sized

DEEPEST = 3  # changes that go together
KEPT = 6  # of the changes that got further, those that others are tried with
SHOWN = 3  # ways that are told, each of another sort


@dataclass(frozen=True)
class Advice:
    """Changes, the region that they make, and what is chosen for that. `candidate` is the kernel that was asked about."""

    changes: tuple[RegionChange, ...]
    selection: Selection
    candidate: Candidate

    @property
    def chosen(self) -> bool:
        return self.selection.kernel_id == self.candidate.variant.id


@dataclass(frozen=True)
class Answer:
    """Of one region.

    candidate   the best of the wanted kernels that take it, if any does
    reject      else what the one that came nearest has against it
    to_take     the nearest changes after which one takes it; none if one does
    to_choose   the nearest changes after which one is chosen
    furthest    where nothing helps: the changes that got past the first condition, and what was in the way then
    """

    wanted: tuple[KernelVariant, ...]
    selection: Selection
    candidate: Candidate | None
    kernel: KernelVariant
    reject: Reject | None
    to_take: tuple[Advice, ...] = ()
    to_choose: tuple[Advice, ...] = ()
    furthest: tuple[tuple[RegionChange, ...], Reject] | None = None

    @property
    def chosen(self) -> bool:
        return self.candidate is not None and self.candidate.variant.id == self.selection.kernel_id


@dataclass(frozen=True)
class _At:
    """Where a search stands: changes so far, the region and the device they lead to, why each kernel refuses that."""

    changes: tuple[RegionChange, ...]
    region: RegionSpec
    selector: Selector
    against: tuple[tuple[KernelVariant, Reject], ...] = ()


def answer(selection: Selection, wanted: Sequence[KernelVariant]) -> Answer:
    """Why none of these kernels is chosen for a region, and what would change that."""
    assert selection.selector is not None
    asked = selection.selector
    selector = asked.like()
    here = _At((), selection.region, selector)
    ids = {v.id for v in wanted}
    candidate = next((c for c in selection.ranked if c.variant.id in ids), None)
    if candidate is not None:
        won = candidate.variant.id == selection.kernel_id
        to_choose = () if won else _to_choose([here], (candidate.variant, *wanted))
        return Answer(tuple(wanted), selection, candidate, candidate.variant, None, (), to_choose)
    here = replace(here, against=tuple((v, r) for v, r in _refusals(wanted, here) if r is not None))
    to_take, stuck = _to_take(here, wanted)
    kernel = to_take[0].candidate.variant if to_take else _nearest(here)
    reject = next(r for v, r in here.against if v.id == kernel.id)
    whole = [way for way in to_take if not any(change.subject == "ops" for change in way.changes)]
    starts = [_At(way.changes, way.selection.region, _of(way, selector)) for way in whole]
    to_choose = tuple(way for way in to_take if way.chosen) or _to_choose([here, *starts], wanted)
    furthest = None if to_take or stuck is None else (stuck.changes, stuck.against[0][1])
    return Answer(tuple(wanted), selection, None, kernel, reject, to_take, to_choose, furthest)


def begins(selection: Selection, wanted: Sequence[KernelVariant]) -> bool:
    """Whether one of these kernels begins with an op of the region, so that there is something to ask."""
    assert selection.selector is not None
    registry = selection.selector.registry
    begun = {v.id for op in selection.region.ops for v in registry.variants(op.kind)}
    return any(v.id in begun for v in wanted)


def _refusals(wanted: Sequence[KernelVariant], at: _At) -> list[tuple[KernelVariant, Reject | None]]:
    """Why each of these kernels refuses the region there; None for one that takes it."""
    begun = {v.id for v in at.selector.registry.variants(at.region.kind)}

    def refusal(variant: KernelVariant) -> Reject | None:
        if variant.device != at.selector.device.kind:
            return variant.admits(at.selector.device)
        if variant.id not in begun:
            begins = ", ".join(variant.kinds)
            return Reject("begins", f"its regions begin with {begins}, this one with {at.region.kind}")
        return at.selector.refusal(variant, at.region)

    return [(variant, refusal(variant)) for variant in wanted]


_FAR = "device", "needs", "begins", "structure", "ops"  # conditions of kernels for other regions or devices


def _nearest(at: _At) -> KernelVariant:
    """Of kernels that all refuse, the first that is at least for such a device, for regions that begin so, of this structure."""

    def depth(reject: Reject) -> int:
        return _FAR.index(reject.condition) if reject.condition in _FAR else len(_FAR)

    return max(at.against, key=lambda said: depth(said[1]))[0]


# --- the search -------------------------------------------------------------------------------------------------------


def _steps(at: _At) -> Iterator[_At]:
    """One change further, of something that was not changed yet."""
    done = {change.subject for change in at.changes}
    reasons = " ".join(dict.fromkeys(reject.reason for _, reject in at.against))
    for change, selector, region in (*_devices(at), *_relaxed(at)):
        if change.subject not in done:
            yield _At((*at.changes, change), region, selector)
    for change, region in changes(at.region, reasons):
        if change.subject not in done:
            yield _At((*at.changes, change), region, at.selector)


def _devices(at: _At) -> Iterator[tuple[RegionChange, Selector, RegionSpec]]:
    """Other presets, for kernels that this device can't run."""
    unable = [v for v, reject in at.against if reject.condition in ("device", "needs")]
    old = at.selector
    for spec in PRESETS.values() if len(unable) == len(at.against) else ():
        if any(v.admits(spec) is None for v in unable):
            new = old.like(device=spec, tuning=None)
            yield (
                RegionChange("device", f"on {spec.name}", f"--device {spec.name}"),
                new,
                moved(at.region, spec.kind),
            )


def _relaxed(at: _At) -> Iterator[tuple[RegionChange, Selector, RegionSpec]]:
    """Without a flag that was asked for, for kernels that lack it."""
    old = at.selector
    for flag in sorted(old.required.intersection(reject.condition for _, reject in at.against)):
        new = old.like(required=old.required - {flag})
        how = "deterministic=False" if flag == "deterministic" else 'capture="auto"'
        yield RegionChange(flag, f"not {flag.replace('_', '-')}", how), new, at.region


def _to_take(start: _At, wanted: Sequence[KernelVariant]) -> tuple[tuple[Advice, ...], _At | None]:
    """The fewest changes after which one of these kernels takes the region; or how far any came."""
    frontier, stuck = [start], None
    for _ in range(DEEPEST):
        found: dict[str, Advice] = {}
        further: dict[tuple[str, str], _At] = {}
        for at in frontier:
            for step in _steps(at):
                subject = step.changes[-1].subject
                if subject in found:
                    continue
                said = _refusals(wanted, step)
                against = tuple((v, reject) for v, reject in said if reject is not None)
                if len(against) < len(said):
                    if (way := _way(step, wanted)) is not None:
                        found[subject] = _refined(at, step, way, lambda nearer: True, wanted)
                elif (condition := _past(at.against, against)) is not None:
                    further.setdefault((subject, condition), replace(step, against=against))
            if len(found) >= SHOWN:
                break
        if found:
            return tuple(found.values())[:SHOWN], None
        frontier = list(further.values())[:KEPT]
        stuck = frontier[0] if frontier else stuck
    return (), stuck


def _past(
    before: Sequence[tuple[KernelVariant, Reject]], now: Sequence[tuple[KernelVariant, Reject]]
) -> str | None:
    """The condition that fails now for a kernel for which another one failed before."""
    failed = {v.id: r.condition for v, r in before}
    return next(
        (r.condition for v, r in now if failed.get(v.id) != r.condition and r.condition not in _BACK), None
    )


_BACK = frozenset({"device", "begins"})  # conditions that stand before all others


def _to_choose(starts: Sequence[_At], wanted: Sequence[KernelVariant]) -> tuple[Advice, ...]:
    """One change more, after which one of these kernels is chosen."""
    found: dict[str, Advice] = {}
    for at in starts:
        for step in _steps(at):
            subject = step.changes[-1].subject
            if subject in found or subject == "ops":
                continue
            way = _way(step, wanted)
            if way is not None and way.chosen:
                found[subject] = _refined(at, step, way, lambda w: w.chosen, wanted)
        if found:
            break
    return tuple(found.values())[:SHOWN]


def _way(at: _At, wanted: Sequence[KernelVariant]) -> Advice | None:
    """What selection says of where the search stands; None if it takes none of these kernels."""
    selection = at.selector.ask(at.region)
    if not isinstance(selection, Selection):
        return None
    ids = {v.id for v in wanted}
    if selection.kernel_id in ids:
        return Advice(at.changes, selection, selection.chosen)
    candidate = next((c for c in selection.ranked if c.variant.id in ids), None)
    return None if candidate is None else Advice(at.changes, selection, candidate)


def _refined(
    before: _At, at: _At, way: Advice, holds: Callable[[Advice], bool], wanted: Sequence[KernelVariant]
) -> Advice:
    """With the last extent as near to what it was as it may be: by bisection, each size asked."""
    extent = next((e for e in extents(before.region) if f"extent {e.name}" == at.changes[-1].subject), None)
    if extent is None:
        return way
    target = _extent_of(at.region, extent.axes)
    low, high = extent.size, target
    while abs(high - low) > 1:
        middle = (low + high) // 2
        made = next(sized(before.region, extent, (middle,)), None)
        nearer = (
            None if made is None else _way(_At((*before.changes, made[0]), made[1], before.selector), wanted)
        )
        if nearer is not None and holds(nearer):
            way, high = nearer, middle
        else:
            low = middle
    return way


def _extent_of(region: RegionSpec, axes: frozenset[tuple[int, int]]) -> int:
    i, axis = min(axes)
    return region.operands[i].shape[axis]


def _of(way: Advice, selector: Selector) -> Selector:
    return way.selection.selector or selector
