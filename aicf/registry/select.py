"""Selection: a pure function of (RegionSpec, DeviceSpec, registry, tuning data). The same question, the same answer."""

from __future__ import annotations

import logging
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rich.jupyter import JupyterMixin

from .. import config
from ..device.spec import DeviceSpec
from ..errors import NoKernelError
from ..rows import RegionSpec
from .cost import Cost
from .registry import KernelRegistry
from .variant import KernelVariant, Reject

Tuning = Mapping[
    tuple[str, str], float
]  # (region key, kernel id) -> measured microseconds; overrides the prediction

log = logging.getLogger("aicf.select")


@dataclass(frozen=True)
class Candidate:
    """A variant that takes the region. The score is runs per second, predicted or, once tuned, measured."""

    variant: KernelVariant
    cost: Cost

    @property
    def us(self) -> float:
        return self.cost.us

    @property
    def score(self) -> float:
        return 1e6 / self.cost.us

    @property
    def order(self) -> tuple[float, int, str]:
        """Smallest is best: time, then priority, then name; never the order of registration."""
        return (self.us, -self.variant.priority, self.variant.id)


@dataclass(frozen=True)
class Rejection:
    variant: KernelVariant
    reject: Reject


@dataclass(frozen=True, repr=False)
class Selection(JupyterMixin):
    """The choice for one region with everything it was made from. Renders as text, rich and JSON (`trace.py`)."""

    region: RegionSpec
    device: DeviceSpec
    ranked: tuple[Candidate, ...]
    rejected: tuple[Rejection, ...]

    @property
    def chosen(self) -> Candidate:
        return self.ranked[0]

    @property
    def kernel_id(self) -> str:
        return self.chosen.variant.id

    def __repr__(self) -> str:
        return f"<{self.region.signature} on {self.device.name}: {self.kernel_id}; print it>"

    def __str__(self) -> str:
        from .trace import render

        return render(self)

    def __rich__(self) -> Any:
        from .trace import selection_lines

        return selection_lines(self)

    def to_json(self) -> dict[str, Any]:
        from .trace import selection_json

        return selection_json(self)


def select(
    region: RegionSpec,
    device: DeviceSpec,
    registry: KernelRegistry,
    tuning: Tuning | None = None,
    required: frozenset[str] = frozenset(),
) -> Selection:
    """Ask every variant of the region's first op; the highest score wins (B8). NoKernelError lists all reasons."""
    ranked, rejected = [], []
    for variant in registry.variants(region.kind):
        if variant.device != device.kind:
            continue
        if reject := _lacks(variant, required) or variant.supported(region, device):
            rejected.append(Rejection(variant, reject))
            continue
        measured = tuning.get((region.key, variant.id)) if tuning else None
        cost = variant.cost(region, device) if measured is None else Cost({"measured": measured})
        ranked.append(Candidate(variant, cost))
    ranked.sort(key=lambda c: c.order)
    if not ranked:
        raise NoKernelError(
            f"no kernel takes {region} on {device.name}",
            details=[f"{r.variant.id}: {r.reject.reason}" for r in rejected]
            or [f"no variant for {region.kind} on {device.kind} is registered"],
            hint="`aicf info` lists the ops and their variants; docs/add-an-op.md shows how to add one",
        )
    return Selection(region, device, tuple(ranked), tuple(rejected))


def _lacks(variant: KernelVariant, required: frozenset[str]) -> Reject | None:
    """The first flag, of those asked for, that the variant has not set."""
    for flag in sorted(required):
        if not getattr(variant, flag):
            return Reject(flag, f"is not {flag.replace('_', '-')}, which was asked for")
    return None


class Selector:
    """`select` with a memo: one registry, one device, one set of tuning data, each region decided once.

    required  flags of KernelVariant that a choice must have: `deterministic`, `capture_safe`
    """

    def __init__(
        self,
        registry: KernelRegistry,
        device: DeviceSpec,
        tuning: Tuning | None = None,
        required: frozenset[str] = frozenset(),
    ) -> None:
        self.registry, self.device, self.tuning, self.required = registry, device, tuning, required
        self._memo: dict[RegionSpec, Selection | NoKernelError] = {}

    def __call__(self, region: RegionSpec) -> Selection:
        found = self.ask(region)
        if isinstance(found, NoKernelError):
            raise found
        return found

    def ask(self, region: RegionSpec) -> Selection | NoKernelError:
        """The selection, or the error that says why there is none."""
        if region not in self._memo:
            try:
                self._memo[region] = select(region, self.device, self.registry, self.tuning, self.required)
            except NoKernelError as error:
                self._memo[region] = error
        return self._memo[region]


def log_choice(selection: Selection, stream: object = "-", where: str = "") -> None:
    """One line per choice under AICF_LOGS=select (B12): op kind, variant, dtypes and shapes, stream."""
    if not config.log_enabled("select"):
        return
    if not log.handlers and not logging.getLogger().handlers:
        handler = logging.StreamHandler(sys.stderr)
        handler.setFormatter(logging.Formatter("[aicf.select] %(message)s"))
        log.addHandler(handler)
    if not log.isEnabledFor(logging.INFO):
        log.setLevel(logging.INFO)
    log.info(
        "%s -> %s %.3g us %s stream=%s%s",
        selection.region.signature,
        selection.kernel_id,
        selection.chosen.us,
        ", ".join(map(str, selection.region.operands)),
        stream,
        f" {where}" if where else "",
    )
