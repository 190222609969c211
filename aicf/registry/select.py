"""Selection: a pure function of (RegionSpec, DeviceSpec, registry, tuning data). The same question, the same answer."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from rich.jupyter import JupyterMixin

from .. import config
from ..device.spec import DeviceSpec
from ..errors import NoKernelError
from ..ops.schema import schema_of
from ..rows import RegionSpec
from .cost import Cost
from .index import Bits, lacks
from .registry import KernelRegistry
from .tuning import Times, Tuning
from .variant import KernelVariant, Reject, structure

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
        """Smallest is best: time, to nine digits, then priority, then name; never the order of registration."""
        return (float(f"{self.us:.9g}"), -self.variant.priority, self.variant.id)


@dataclass(frozen=True)
class Rejection:
    variant: KernelVariant
    reject: Reject


@dataclass(frozen=True, repr=False)
class Selection(JupyterMixin):
    """The choice for one region with everything it was made from. Renders as text, rich and JSON (`trace.py`).

    refusals   gives `rejected`; called when somebody asks, since a registry may hold thousands of variants
    """

    region: RegionSpec
    device: DeviceSpec
    ranked: tuple[Candidate, ...]
    refusals: Callable[[], tuple[Rejection, ...]] = field(compare=False)

    @cached_property
    def rejected(self) -> tuple[Rejection, ...]:
        """Every other variant that may begin with the region's first op, with the first condition that failed."""
        return self.refusals()

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
    tuning: Times | None = None,
    required: frozenset[str] = frozenset(),
) -> Selection:
    """Ask every variant of the region's first op; the highest score wins (B8). NoKernelError lists all reasons."""
    return Selector(registry, device, tuning, required)(region)


class Selector:
    """Selection with a memo: one registry, one device, one set of tuning data, each region decided once.

    required  flags of KernelVariant that a choice must have: `deterministic`, `capture_safe`
    strict    regions are formed with strict numerics (A15)
    """

    def __init__(
        self,
        registry: KernelRegistry,
        device: DeviceSpec,
        tuning: Times | None = None,
        required: frozenset[str] = frozenset(),
        strict: bool = False,
    ) -> None:
        self.registry, self.device, self.tuning, self.required = registry, device, tuning, required
        self.strict = strict
        self.index = registry.index(device, required)
        self._tuned = (
            tuning if isinstance(tuning, Tuning) else None
        )  # a mapping of times says no more than those
        self._memo: dict[RegionSpec, Selection | NoKernelError] = {}
        self.compositions: dict[str, dict] = {}  # what graph/fuse/compose.py has composed

    def __call__(self, region: RegionSpec) -> Selection:
        found = self.ask(region)
        if isinstance(found, NoKernelError):
            raise found
        return found

    @property
    def asked(self) -> list[Selection]:
        """What was answered so far, in the order of the questions."""
        return [found for found in self._memo.values() if isinstance(found, Selection)]

    def ask(self, region: RegionSpec) -> Selection | NoKernelError:
        """The selection, or the error that says why there is none."""
        if region not in self._memo:
            self.decide(region, self.rank(region, self._may_take(region)))
        return self._memo[region]

    def alone(self, region: RegionSpec) -> Candidate | None:
        """The best kernel of a region of one op. That there is none is not remembered: its reasons may be many."""
        found = self._memo.get(region)
        if found is None and (ranked := self.rank(region, self._may_take(region))):
            self.decide(region, ranked)
            return ranked[0]
        return found.chosen if isinstance(found, Selection) else None

    def _may_take(self, region: RegionSpec) -> Bits:
        bits = self.index.begins(schema_of(region.kind)) & self.index.tensors(region.tensors)
        return bits & self.index.accepting(structure(region), len(region.ops))

    def decide(self, region: RegionSpec, ranked: tuple[Candidate, ...]) -> None:
        """Remember what `rank` said of a region."""
        self._memo[region] = (
            Selection(region, self.device, ranked, lambda: self._rejected(region, ranked))
            if ranked
            else self._none(region)
        )

    def rank(self, region: RegionSpec, bits: Bits) -> tuple[Candidate, ...]:
        """Those of these variants that take the region, best first."""
        order = self._summing_order(region)
        key = region.key if self.tuning else ""
        ranked = []
        families: dict[Any, Reject | None] = {}
        for variant in self.index.members(bits):
            family = variant.family
            if family is not None:
                if family not in families:
                    families[family] = family(region)
                if families[family] is not None:
                    continue
            if variant.refuses(region) or (order is not None and variant.id != order):
                continue
            if self._found_wrong(variant, key):
                continue
            measured = self.tuning.get((key, variant.id)) if self.tuning else None
            cost = variant.cost(region, self.device)
            if measured is not None:
                cost = cost.measured(measured, self._tuned.noise(key, variant.id) if self._tuned else 0.0)
            ranked.append(Candidate(variant, cost))
        return tuple(sorted(ranked, key=lambda c: c.order))

    def _found_wrong(self, variant: KernelVariant, key: str) -> Reject | None:
        """Tuning runs a kernel before it times it; one that failed there is not used for that region."""
        why = self._tuned.refused(key, variant.id) if self._tuned else None
        return Reject("tuning", f"failed when it was tuned: {why}") if why else None

    def _summing_order(self, region: RegionSpec) -> str | None:
        """Strict numerics: the one variant that sums as the core op alone would be summed."""
        if not region.strict or len(region.ops) == 1:
            return None
        cores = [op for op in region.ops if not schema_of(op.kind).is_map]
        alone = self.ask(region.only(cores[0])) if cores else None
        return alone.kernel_id if isinstance(alone, Selection) else None

    def _rejected(self, region: RegionSpec, ranked: tuple[Candidate, ...]) -> tuple[Rejection, ...]:
        taken, order = {c.variant.id for c in ranked}, self._summing_order(region)
        found = []
        for variant in self.registry.variants(region.kind):
            if variant.device != self.device.kind or variant.id in taken:
                continue
            reject = lacks(variant, self.required) or variant.supported(region, self.device)
            reject = reject or self._found_wrong(variant, region.key if self.tuning else "")
            strict = Reject("strict", f"sums in another order than {order}, which the op alone would run")
            found.append(Rejection(variant, reject or strict))
        return tuple(found)

    def _none(self, region: RegionSpec) -> NoKernelError:
        return NoKernelError(
            f"no kernel takes {region} on {self.device.name}",
            details=[f"{r.variant.id}: {r.reject.reason}" for r in self._rejected(region, ())]
            or [f"no variant for {region.kind} on {self.device.kind} is registered"],
            hint="`aicf info` lists the ops and their variants; docs/add-an-op.md shows how to add one",
        )


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
