"""Tuning data: measured times of kernels on regions, which override predictions, and kernels that are wrong.

A `Tuning` belongs to one device, and each time to the text of its kernel and of the ops that it inlines; `tuning_file.py` has its JSON layout. It is a
mapping of (region key, kernel id) to microseconds, which is all that selection reads besides `refused`.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from ..device.spec import DeviceSpec
from ..errors import TuningError
from ..files import read_text, replacing
from ..ops.schema import schema_of
from ..rows import RegionSpec
from .measured import Header, Measured, counted, joined, place_of, text_hash
from .text_digest import inlined, op_digest, variant_digest

if TYPE_CHECKING:
    from .registry import KernelRegistry

Times = Mapping[tuple[str, str], float]  # (region key, kernel id) -> measured microseconds


@dataclass(frozen=True)
class Change:
    """A time that differs between two tunings; None where there is none."""

    region: RegionSpec
    kernel_id: str
    before: float | None
    after: float | None


class Tuning(Mapping[tuple[str, str], float]):
    """Immutable. Two with the same header and the same regions are equal, whatever the order of the arguments."""

    def __init__(self, header: Header, regions: Iterable[Measured] = ()) -> None:
        self.header = header
        ordered = sorted(((m.region.key, m) for m in regions), key=lambda pair: pair[0])
        self.regions: Mapping[str, Measured] = dict(ordered)
        if len(ordered) != len(self.regions):
            raise TuningError("tuning has a region twice", expected="each region once, with all its kernels")
        self._us = {(key, id): t.us for key, m in ordered for id, t in sorted(m.timings.items())}
        for (key, id), us in self._us.items():
            if not (math.isfinite(us) and us > 0):
                raise TuningError(
                    f"the time of {id} is {us}", expected="microseconds, more than 0 and finite",
                    where=self.regions[key].region.signature,
                )  # fmt: skip

    def __getitem__(self, key: tuple[str, str]) -> float:
        return self._us[key]

    def __iter__(self) -> Iterator[tuple[str, str]]:
        return iter(self._us)

    def __len__(self) -> int:
        return len(self._us)

    def __bool__(self) -> bool:
        """Whether it says anything: refusals count, too."""
        return bool(self.regions)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Tuning):
            return NotImplemented
        return self.header == other.header and self.regions == other.regions

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"<tuning of {self.header.place}: {counted(len(self), 'time')} of {counted(len(self.regions), 'region')}>"

    def refused(self, key: str, kernel_id: str) -> str | None:
        """Why a kernel must not be used for a region, if it is wrong there."""
        measured = self.regions.get(key)
        return measured.refused.get(kernel_id) if measured else None

    def noise(self, key: str, kernel_id: str) -> float:
        """The error of a time against one of another region, in microseconds: half the interquartile range, the
        probable error of one sample. More samples make a median no surer here, as regions are measured one after the other,
        and what drifts meanwhile is in all samples of one."""
        timing = self.regions[key].timings[kernel_id]
        return 0.5 * timing.spread * timing.us

    @property
    def kernel_ids(self) -> frozenset[str]:
        """All variants that were timed, or refused to run."""
        return frozenset(id for m in self.regions.values() for id in (*m.timings, *m.refused))

    # --- putting together -----------------------------------------------------------------------------------------

    def updated(self, newer: Tuning) -> Tuning:
        """With the other's regions in place of those here."""
        self._check_same(newer)
        return Tuning(self._joined(newer.header, newer.header), {**self.regions, **newer.regions}.values())

    def _joined(self, other: Header, newer: Header) -> Header:
        """The header of both, with the versions and date of `newer`. The text is today's only if it is that of both."""
        mine = self.header
        text = newer.text if mine.text == other.text else ""
        kernels, ops = {**mine.kernels, **other.kernels}, {**mine.ops, **other.ops}
        return replace(newer, text=text, kernels=dict(sorted(kernels.items())), ops=dict(sorted(ops.items())))

    def changed(self, registry: KernelRegistry) -> list[str]:
        """Kernels, and ops that they inline, that have another text today."""
        header, same = self.header, self.header.text == text_hash(self.header.kind)
        registered = {id: registry.by_id(id) for id in header.kernels if id in registry}
        kernels = [v for v in registered.values() if not (same and v.origin == "aicf")]
        ops = [name for name in header.ops if not (same and schema_of(name).origin == "aicf")]
        changes = [v.id for v in kernels if variant_digest(v) != header.kernels[v.id]]
        return changes + [name for name in ops if op_digest(name) != header.ops[name]]

    def stale(self, registry: KernelRegistry) -> list[str]:
        """What has changed, and kernels that are no more."""
        return [*self.changed(registry), *sorted(id for id in self.kernel_ids if id not in registry)]

    def without(self, names: Collection[str]) -> Tuning:
        """Without the times of these kernels, and of regions with these ops."""
        remaining = []
        for m in self.regions.values():
            timings = {id: t for id, t in m.timings.items() if id not in names}
            refused = {id: why for id, why in m.refused.items() if id not in names}
            if (timings or refused) and inlined(m.region).isdisjoint(names):
                remaining.append(Measured(m.region, timings, refused))
        known = self.header.kernels, self.header.ops
        kernels, ops = ({name: d for name, d in digests.items() if name not in names} for digests in known)
        return Tuning(replace(self.header, kernels=kernels, ops=ops), remaining)

    def merge(self, *others: Tuning) -> Tuning:
        """All regions of all. Of two times for one kernel and region the more telling one stays; a refusal outweighs both.

        The result does not depend on the order.
        """
        union = self
        for tuning in others:
            union._check_same(tuning)
            merged, mine, theirs = dict(union.regions), union.header, tuning.header
            for key, measured in tuning.regions.items():
                merged[key] = joined(merged[key], measured) if key in merged else measured
            newer = max(mine, theirs, key=lambda h: (h.date, sorted(h.versions.items())))
            union = Tuning(union._joined(theirs, newer), merged.values())
        return union

    def _check_same(self, other: Tuning) -> None:
        mine, theirs = self.header, other.header
        if (mine.device, mine.target, mine.sms) != (theirs.device, theirs.target, theirs.sms):
            raise TuningError(
                "these times are of different devices", expected=mine.place, got=theirs.place,
                hint="keep a file for each device",
            )  # fmt: skip
        for what, ours, others in (("kernels", mine.kernels, theirs.kernels), ("ops", mine.ops, theirs.ops)):
            both = sorted(ours.keys() & others.keys())
            if different := [f"{n}: {ours[n]} and {others[n]}" for n in both if ours[n] != others[n]]:
                raise TuningError(
                    f"these times are of different {what}", details=different,
                    hint="aicf tune --update measures the older one's regions again",
                )  # fmt: skip

    def diff(self, after: Tuning) -> list[Change]:
        """Times that differ, in the order of regions and kernels."""
        regions = {**self.regions, **after.regions}
        keys = sorted({**self._us, **after._us})
        pairs = ((key, self._us.get(key), after._us.get(key)) for key in keys)
        return [Change(regions[k[0]].region, k[1], a, b) for k, a, b in pairs if a != b]

    # --- files ----------------------------------------------------------------------------------------------------

    @classmethod
    def load(
        cls, path: str | Path, device: DeviceSpec | None = None, registry: KernelRegistry | None = None,
        stale: bool = False,
    ) -> Tuning:  # fmt: skip
        """Read a file, completely or not at all: TuningError names the file and what is wrong with it.

        device    whose times they must be
        registry  must have every kernel that is named, of the same text
        stale     accept times of kernels that have changed since, to measure their regions again
        """
        from .tuning_file import parse

        name = str(path)
        text = read_text(path, "a tuning file", "aicf tune FILE --output TUNING writes one", TuningError)
        tuning = parse(text, name)
        tuning.check(name, device, registry, stale)
        return tuning

    def check(
        self, name: str, device: DeviceSpec | None = None, registry: KernelRegistry | None = None, stale: bool = False
    ) -> None:  # fmt: skip
        """TuningError, which calls it `name`, if these times can't be used: arguments as for `load`."""
        if device is not None and not self.header.stands_for(device):
            raise TuningError(
                f"{name} is of another device", expected=place_of(device.name, device.target, device.sms),
                got=self.header.place, hint=f"aicf tune FILE --device {device.kind} measures on this one",
            )  # fmt: skip
        if stale:
            return
        hint = "aicf tune --update --output FILE measures its regions again"
        if registry is None:
            return
        if changed := self.changed(registry):
            raise TuningError(
                f"{name} is stale: what it has times of has changed since {self.header.date[:10]}",
                details=changed, hint=hint,
            )  # fmt: skip
        missing = sorted(id for id in self.kernel_ids if id not in registry)
        if missing:
            raise TuningError(
                f"{name} is stale: it has times of kernels that are not registered",
                details=missing, hint=f"{hint}; or install the package that has them",
            )  # fmt: skip

    def save(self, path: str | Path) -> None:
        """Write the file. A reader sees the complete old file or the complete new one."""
        from .tuning_file import text_of

        try:
            with replacing(Path(path)) as temporary:
                temporary.write_text(text_of(self), encoding="utf-8", newline="\n")
        except (OSError, TypeError, ValueError) as error:  # no text, or a NUL in it
            raise TuningError(f"{str(path)!r} can't be written: {error}") from error

    def save_into(self, path: str | Path, update: KernelRegistry | None = None) -> Tuning:
        """Merge with what the file holds and write that; processes that do so at once wait for each other.

        update  these regions take the place of those in the file; times of what is not as in this registry are dropped
        """
        from filelock import FileLock

        path, merged = Path(path), self
        with FileLock(path.with_name(f".{path.name}.lock")):
            if path.exists():
                old = Tuning.load(path)
                if update is None:
                    merged = old.merge(self)
                else:
                    merged = old.without(old.stale(update)).updated(self)
            merged.save(path)
        return merged


def tuning_of(
    source: Times | str | Path | None, device: DeviceSpec, registry: KernelRegistry
) -> Times | None:
    """The argument of `compile(tuning=…)` for selection: a file is loaded and checked, as are a mapping's times."""
    if source is None:
        return None
    if isinstance(source, Tuning):
        source.check("this tuning", device, registry)
        return source
    if isinstance(source, str | Path):
        return Tuning.load(source, device, registry)
    if not isinstance(source, Mapping):
        raise TuningError(
            f"tuning is {source!r}", expected="a file, a Tuning, or {(region key, kernel id): us}"
        )
    for entry, us in source.items():
        if not (
            isinstance(entry, tuple) and len(entry) == 2 and all(isinstance(part, str) for part in entry)
        ):
            raise TuningError(f"{entry!r} names no time", expected="(region key, kernel id)")
        if not isinstance(us, int | float) or isinstance(us, bool) or not (math.isfinite(us) and us > 0):
            raise TuningError(
                f"the time of {entry[1]} is {us!r}",
                expected="microseconds, more than 0 and finite",
                where=entry[0],
            )
        if entry[1] not in registry:
            raise TuningError(f"no kernel {entry[1]!r} is registered", expected="ids that `aicf info` lists")
    return {(key, registry.by_id(id).id): us for (key, id), us in source.items()}
