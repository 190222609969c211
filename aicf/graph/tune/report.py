"""What came of a tuning session, as text and as JSON."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from rich.console import RenderableType

from ...lazy import lazy
from ...pages import objects
from ...pages.notebook import InNotebook
from ...printing import Printed, labelled
from ...registry.measured import Measured, counted
from ...registry.select import Selection
from ...registry.trace import factor, microseconds
from ...registry.tuning import Tuning
from ...rows import RegionSpec

log = logging.getLogger("aicf.tune")

SHOWN = 12  # lines of a kind
DOUBT = 8.0  # a time that is so many times the predicted one is taken once more, when all are known


@dataclass(frozen=True)
class Question:
    """What selection decides for a model.

    plan   the kernels of a run, in order
    asked  every region that was weighed on the way, these among them
    """

    plan: tuple[Selection, ...]
    asked: tuple[Selection, ...]


@dataclass(frozen=True)
class Flip:
    """A region for which another kernel is chosen now. Times are measured ones."""

    region: RegionSpec
    before: str
    after: str
    us_before: float | None
    us_after: float


@dataclass(frozen=True, repr=False)
class Report(InNotebook, Printed):
    """`print(report)` is plain text, `rich.print(report)` has colour, `report.to_json()` is data.

    before   the choices by prediction alone; after: those with what was measured
    left     regions for which the time was too short
    skipped  regions that can't be verified, and why
    """

    tuning: Tuning
    before: Question
    after: Question
    measured: tuple[RegionSpec, ...]
    left: tuple[RegionSpec, ...]
    skipped: tuple[tuple[RegionSpec, str], ...]
    seconds: float
    stopped: BaseException | None = None  # Ctrl-C, or a device that was lost

    def usable(self) -> Tuning:
        """The tuning, for a program to be compiled with it: whatever went wrong is logged, what broke it off is raised."""
        for m, id, why in self.failures:
            log.warning("%s is WRONG on %s: %s; it is not used there", id, m.region, why)
        for region, why in self.skipped:
            log.warning("%s was not tuned: %s", region, why)
        if self.stopped is not None:
            raise self.stopped
        return self.tuning

    @lazy
    def failures(self) -> list[tuple[Measured, str, str]]:
        """(what was measured of the region, kernel id, what it did wrong), of this session."""
        found = [self.tuning.regions[r.key] for r in self.measured]
        return [(m, id, why) for m in found for id, why in sorted(m.refused.items())]

    @lazy
    def flips(self) -> list[Flip]:
        """In the order of the plan, each region once."""
        chosen = {s.region: s for s in self.after.asked}
        found = dict[RegionSpec, Flip]()
        for s in (*self.before.plan, *self.before.asked):
            now = chosen.get(s.region)
            if now is not None and now.kernel_id != s.kernel_id and s.region not in found:
                before = self._us(s.region, s.kernel_id)
                found[s.region] = Flip(s.region, s.kernel_id, now.kernel_id, before, now.chosen.us)
        return list(found.values())

    def _us(self, region: RegionSpec, kernel_id: str) -> float | None:
        return self.tuning.get((region.key, kernel_id))

    def _total(self, plan: tuple[Selection, ...]) -> float | None:
        """The measured time of a plan's kernels; None if one of them was not measured."""
        times = [self._us(s.region, s.kernel_id) for s in plan]
        return None if None in times else sum(t for t in times if t is not None)

    @property
    def us_before(self) -> float | None:
        return self._total(self.before.plan)

    @property
    def us_after(self) -> float | None:
        return self._total(self.after.plan)

    @property
    def gain(self) -> float | None:
        """The untuned plan's kernels over the tuned plan's, both measured: 1.2 is a fifth more work in the same time."""
        before, after = self.us_before, self.us_after
        return before / after if before and after else None

    # --- telling --------------------------------------------------------------------------------------------------

    def _rendering(self) -> RenderableType:
        return labelled(list(self._lines()))

    def __repr__(self) -> str:
        return (
            f"<tuned {len(self.measured)} regions in {self.seconds:.1f} s, {len(self.left)} left; print it>"
        )

    def _repr_html_(self) -> str:
        return objects.tuning(self.to_json())

    def _lines(self) -> Iterator[tuple[str, str, str]]:
        yield (
            "measured",
            "green",
            f"{counted(len(self.measured), 'region')} in {self.seconds:.1f} s · {self.tuning!r}",
        )
        for m, id, why in self.failures:
            yield "WRONG", "bold red", f"{id} on {m.region}\n{why}; it is not used there"
        if self.stopped is not None:
            yield "stopped", "bold red", f"{type(self.stopped).__name__} {self.stopped}".rstrip()
        if self.left:
            yield (
                "left",
                "yellow",
                f"{counted(len(self.left), 'region')}, for want of time: {_some([r.signature for r in self.left])}",
            )
        for region, why in self.skipped:
            yield "skipped", "yellow", f"{region.signature}: {why}"
        for n, flip in enumerate(self.flips[:SHOWN]):
            before = microseconds(flip.us_before) if flip.us_before else "not measured"
            yield (
                "changed" if n == 0 else "", "cyan",
                f"{flip.region.signature}: {flip.before} ({before}) -> {flip.after} ({microseconds(flip.us_after)})",
            )  # fmt: skip
        if (more := len(self.flips) - SHOWN) > 0:
            yield "", "", f"and {more} more"
        for n, (s, us) in enumerate(self._compared()[:SHOWN]):
            predicted = s.chosen.us
            text = f"{s.region.signature} by {s.kernel_id}: {microseconds(predicted)} predicted, {microseconds(us)} measured"
            yield "predicted" if n == 0 else "", "", f"{text}, {factor(us / predicted)} times that"
        if slow := sum(us > DOUBT * s.chosen.us for s, us in self._compared()):
            which = (
                f"{slow} of these {'is' if slow == 1 else 'are'} more than {DOUBT:.0f} times the prediction"
            )
            yield (
                "doubtful", "yellow", f"{which}: most likely the machine was busy with something else. "
                "`aicf tune --update --output FILE` measures again what the file has",
            )  # fmt: skip
        if self.us_before and self.us_after and self.gain:
            kernels = f"{counted(len(self.before.plan), 'kernel')}, {len(self.after.plan)} after tuning"
            yield (
                "gain", "bold", f"{microseconds(self.us_before)} -> {microseconds(self.us_after)}, "
                f"{factor(self.gain)} times as fast ({kernels})",
            )  # fmt: skip

    def _compared(self) -> list[tuple[Selection, float]]:
        """The untuned plan's regions with the measured times of their kernels, the worst predicted first."""
        pairs = {s.region: (s, us) for s in self.before.plan if (us := self._us(s.region, s.kernel_id))}
        return sorted(pairs.values(), key=lambda p: -max(p[1] / p[0].chosen.us, p[0].chosen.us / p[1]))

    def to_json(self) -> dict[str, Any]:
        return {
            "device": self.tuning.header.device,
            "seconds": self.seconds,
            "measured": [str(r) for r in self.measured],
            "left": [str(r) for r in self.left],
            "skipped": [{"region": str(r), "why": why} for r, why in self.skipped],
            "wrong": [{"region": str(m.region), "kernel": id, "why": why} for m, id, why in self.failures],
            "changed": [
                {"region": str(f.region), "before": f.before, "after": f.after, "us_before": f.us_before,
                 "us_after": f.us_after}
                for f in self.flips
            ],
            "regions": [
                {"region": str(s.region), "kernel": s.kernel_id, "predicted_us": s.chosen.us, "measured_us": us}
                for s, us in self._compared()
            ],
            "kernels_before": len(self.before.plan),
            "kernels_after": len(self.after.plan),
            "us_before": self.us_before,
            "us_after": self.us_after,
            "gain": self.gain,
        }  # fmt: skip


def _some(names: list[str]) -> str:
    names = list(dict.fromkeys(names))
    return ", ".join(names[:SHOWN]) + (", …" if len(names) > SHOWN else "")
