"""Selection: a pure function of (RegionSpec, DeviceSpec, registry, tuning data). The same question, the same answer."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from rich.console import RenderableType

from .. import channels
from ..device.spec import DeviceSpec
from ..errors import NoKernelError
from ..lazy import lazy
from ..ops.schema import schema_of
from ..printing import Printed
from ..rows import Form, RegionSpec
from . import invariant
from .checks import OF_FORM
from .cost import Cost
from .index import REQUIRED, Bits, lacks
from .nearby import least_factor
from .numerics import NumericClass
from .registry import KernelRegistry
from .tuning import Times, Tuning
from .variant import KernelVariant, Reject, structure

log = logging.getLogger("aicf.select")
REMEMBERED = 4096  # regions
TIE = 1e-8  # times that differ by less may be equal to the nine digits that count


class Candidate(NamedTuple):
    """A variant that accepts the region. The score is runs per second, predicted or, once tuned, measured."""

    variant: KernelVariant
    cost: Cost
    us: float  # the cost's

    @property
    def score(self) -> float:
        return 1e6 / self.us

    @property
    def order(self) -> tuple[float, int, tuple[str, str]]:
        """Smallest is best: time, to nine digits, then priority, then name; never the order of registration."""
        return (float(f"{self.us:.9g}"), -self.variant.priority, self.variant.order)


@dataclass(frozen=True)
class Rejection:
    variant: KernelVariant
    reject: Reject


@dataclass(frozen=True, repr=False)
class Selection(Printed):
    """The choice for one region with its candidates and rejections. Renders as text, rich and JSON (`trace.py`).

    ranking, refusals   give `ranked` and `rejected`; called on demand, since a registry may hold thousands of variants
    selector            who chose: further questions, such as of a region much like this one, go there
    """

    region: RegionSpec
    device: DeviceSpec
    chosen: Candidate
    ranking: Callable[[], tuple[Candidate, ...]] = field(compare=False)
    refusals: Callable[[], tuple[Rejection, ...]] = field(compare=False)
    selector: Selector | None = field(compare=False, default=None)

    @lazy
    def ranked(self) -> tuple[Candidate, ...]:
        """Every variant that accepts the region, best first."""
        return self.ranking()

    @lazy
    def rejected(self) -> tuple[Rejection, ...]:
        """Every other variant that may begin with the region's first op, with the first condition that failed."""
        return self.refusals()

    @lazy
    def free(self) -> invariant.FreeChoice | None:
        """Of an invariant region: what would be chosen for it otherwise, and so the price."""
        us, selector = self.chosen.us, self.selector
        return invariant.free_choice(self.region, us, selector) if selector is not None else None

    @property
    def kernel_id(self) -> str:
        """The id of the variant that was chosen."""
        return self.chosen.variant.id

    def __repr__(self) -> str:
        return f"<{self.region.signature} on {self.device.name}: {self.kernel_id}; print it>"

    def _rendering(self) -> RenderableType:
        from .trace import selection_lines

        return selection_lines(self)

    def to_json(self) -> dict[str, Any]:
        """The choice as plain data: the region, what was chosen, ranked and refused."""
        from .trace import selection_json

        return selection_json(self)


def select(
    region: RegionSpec,
    device: DeviceSpec,
    registry: KernelRegistry,
    tuning: Times | None = None,
    required: frozenset[str] = REQUIRED,
) -> Selection:
    """The variant that accepts the region with the highest score; masks and lower bounds rule others out without a call. NoKernelError
    lists the reasons of all."""
    return Selector(registry, device, tuning, required)(region)


class Selector:
    """Selection with a memo: one registry, one device, one set of tuning data, each region decided once.

    required  flags of KernelVariant that a choice must have: see `required_flags`
    strict    regions are formed with strict numerics
    invariant  and so that equal rows have equal bits whatever the number of rows: see invariant.py
    """

    def __init__(
        self,
        registry: KernelRegistry,
        device: DeviceSpec,
        tuning: Times | None = None,
        required: frozenset[str] = REQUIRED,
        strict: bool = False,
        invariant: bool = False,
    ) -> None:
        self.registry, self.device, self.tuning, self.required = registry, device, tuning, required
        self.strict, self.invariant = strict or invariant, invariant
        self.index = registry.index(device, required)
        self._tuned = (
            tuning if isinstance(tuning, Tuning) else None
        )  # a mapping of times says no more than those
        self._best: dict[RegionSpec, tuple[Candidate, Bits]] = {}  # with those that it was the best of
        self._told: dict[RegionSpec, Selection | NoKernelError] = {}
        self._winners: dict[Form, KernelVariant] = {}  # of the latest region of the form
        self._unfit: dict[Form, Bits] = {}  # those that refuse all regions of a form
        self.compositions: dict[str, dict] = {}  # what graph/fuse/compose.py has composed
        self.row_classes: dict[RegionSpec, NumericClass | Reject] = {}  # by the region with one row
        self._free: Selector | None = None

    def __call__(self, region: RegionSpec) -> Selection:
        answer = self.ask(region)
        if isinstance(answer, NoKernelError):
            raise answer
        return answer

    def trim(self) -> None:
        """Forget what was answered if that is much: each size of a batch asks of regions of its own. Which kernel won for a form
        stays known."""
        if len(self._best) > REMEMBERED:
            for memo in (self._best, self._told, self.compositions):
                memo.clear()
        if self._free is not None:
            self._free.trim()

    @property
    def asked(self) -> list[Selection]:
        """What was answered so far, in the order of the questions."""
        return [self(region) for region in self._best]

    def ask(self, region: RegionSpec) -> Selection | NoKernelError:
        """The selection, or the error that says why there is none."""
        if region not in self._told:
            if self.alone(region) is not None:
                best, bits = self._best[region]
                self._told[region] = Selection(
                    region,
                    self.device,
                    best,
                    lambda: self._rank(region, bits),
                    lambda: self._rejected(region),
                    self,
                )
            else:
                self._told[region] = self._none(region)
        return self._told[region]

    def alone(self, region: RegionSpec) -> Candidate | None:
        """The best kernel of a region: the walk's answer if there is one, or else the best that the masks leave."""
        earlier = self._best.get(region)
        return earlier[0] if earlier else self.best(region, self._may_take(region))

    def least(self, region: RegionSpec) -> float:
        """A lower bound of the microseconds of all kernels of a region, without a call of any."""
        if self.tuning is not None:
            return 0.0  # measured times have no bound, and all kernels to be measured must be candidates
        bits = self.index.begins(schema_of(region.kind))
        floors = self.index.floors(bits & self.index.accepting(structure(region), len(region.ops)))
        try:
            return min([floor(region, self.device) for floor in floors], default=0.0) * least_factor(
                region, self.device
            )
        except Exception:
            for variant in self.index.members(bits):
                variant.floor(region, self.device)  # the one that fails says so
            raise

    def _may_take(self, region: RegionSpec) -> Bits:
        bits = self.index.begins(schema_of(region.kind)) & self.index.living_with(region)
        return bits & self.index.accepting(structure(region), len(region.ops))

    def best(self, region: RegionSpec, bits: Bits) -> Candidate | None:
        """The best of these variants for a region; None if none accepts it, which is not remembered.

        The winner for a region of this form is tried first; then those whose lower bound is above its time are
        skipped.
        """
        best, order, refuses = None, self._summing_order(region), self._invariance(region)
        for variant in self._asked(region, bits, self._winners.get(region.form)):
            if best is not None and self._hopeless(variant, region, best):
                continue
            if self._takes(variant, region, order, refuses):
                candidate = self._candidate(variant, region)
                best = candidate if best is None or _better(candidate, best) else best
        if best is not None:
            self._winners[region.form], self._best[region] = best.variant, (best, bits)
        return best

    def _hopeless(self, variant: KernelVariant, region: RegionSpec, best: Candidate) -> bool:
        if variant.least is None or self.tuning:
            return False
        return variant.floor(region, self.device) > best.us * (1 + TIE)

    def _rank(self, region: RegionSpec, bits: Bits) -> tuple[Candidate, ...]:
        """Those of these variants that take the region, best first."""
        order, refuses = self._summing_order(region), self._invariance(region)
        asked = self._asked(region, bits)
        found = [self._candidate(v, region) for v in asked if self._takes(v, region, order, refuses)]
        return tuple(sorted(found, key=lambda c: c.order))

    def _asked(
        self, region: RegionSpec, bits: Bits, first: KernelVariant | None = None
    ) -> Iterator[KernelVariant]:
        """These variants without the families that refuse the region, this one before all others."""
        bits &= ~self._unfit.get(region.form, 0)
        for family, members in self.index.families:
            if bits & members and (refused := family(region)) is not None:
                bits &= ~members
                self._note(region, refused, members)
        return self.index.members(bits, first)

    def _note(self, region: RegionSpec, refused: Reject, bits: Bits) -> None:
        if refused.condition in OF_FORM:
            self._unfit[region.form] = self._unfit.get(region.form, 0) | bits

    def _takes(
        self, variant: KernelVariant, region: RegionSpec, order: str | None, refuses: invariant.Refuses | None
    ) -> bool:
        if order is not None and variant.id != order:
            return False
        if (refused := variant.refuses(region)) is not None:
            self._note(region, refused, self.index.bit(variant))
            return False
        if refuses is not None and refuses(variant) is not None:
            return False
        return not (self.tuning and self._found_wrong(variant, region))

    def _candidate(self, variant: KernelVariant, region: RegionSpec) -> Candidate:
        cost, us = variant.predicted(region, self.device)
        if self.tuning:
            cost = self._measured(cost, variant, region)
            us = cost.us
        return Candidate(variant, cost, us)

    def _measured(self, cost: Cost, variant: KernelVariant, region: RegionSpec) -> Cost:
        """The measured time of a kernel for the region, else the predicted one."""
        us = self.tuning.get((region.key, variant.id)) if self.tuning else None
        if us is None:
            return cost
        return cost.measured(us, self._tuned.noise(region.key, variant.id) if self._tuned else 0.0)

    def _found_wrong(self, variant: KernelVariant, region: RegionSpec) -> Reject | None:
        """Tuning runs a kernel before it times it; one that failed there is not used for that region."""
        why = self._tuned.refused(region.key, variant.id) if self._tuned else None
        return Reject("tuning", f"failed when it was tuned: {why}") if why else None

    def _summing_order(self, region: RegionSpec) -> str | None:
        """Strict numerics: the one variant that sums as the core op alone would be summed."""
        if not region.strict or region.invariant or len(region.ops) == 1:
            return None
        cores = [op for op in region.ops if not schema_of(op.kind).is_map]
        alone = self.ask(region.only(cores[0])) if cores else None
        return alone.kernel_id if isinstance(alone, Selection) else None

    # --- invariant rows -------------------------------------------------------------------------------------------------

    def rounding(self, free: bool) -> tuple[bool, bool]:
        """(strict, invariant) of the regions of an op; `free`: of a backward pass, whose rows are not invariant."""
        return (False, False) if free and self.invariant else (self.strict, self.invariant)

    def like(self, **changed: Any) -> Selector:
        """A selector of the same registry, device, tuning data, flags and numerics, but for what is changed."""
        names = "registry", "device", "tuning", "required", "strict", "invariant"
        return Selector(**{name: getattr(self, name) for name in names} | changed)

    def free(self, region: RegionSpec) -> tuple[KernelVariant, float] | None:
        """The best kernel of a region with fused numerics, whatever its class, and its microseconds; None if none accepts it."""
        if self._free is None:
            self._free = self.like(strict=False, invariant=False)
        selection = self._free.alone(replace(region, strict=False, invariant=False))
        return (selection.variant, selection.us) if selection else None

    def class_times(self, region: RegionSpec) -> dict[NumericClass, float]:
        """Microseconds of the best kernel of each numeric class."""
        best: dict[NumericClass, float] = {}
        for variant in self._asked(region, self._may_take(region)):
            if self._takes(variant, region, None, None):
                numeric, us = variant.numeric_class(region, self.device), self._candidate(variant, region).us
                if isinstance(numeric, NumericClass) and us < best.get(numeric, math.inf):
                    best[numeric] = us
        return best

    def classless(self, region: RegionSpec) -> Iterator[str]:
        """Why kernels that take a region have no numeric class."""
        for variant in self._asked(region, self._may_take(region)):
            if self._takes(variant, region, None, None):
                numeric = variant.numeric_class(region, self.device)
                if isinstance(numeric, Reject):
                    yield f"{variant.kernel}: {numeric.reason}"

    def _invariance(self, region: RegionSpec) -> invariant.Refuses | None:
        return invariant.refuses(region, self) if region.invariant else None

    def _rejected(self, region: RegionSpec) -> tuple[Rejection, ...]:
        taken = {c.variant.id for c in self(region).ranked} if self.alone(region) else frozenset()
        numerics = self._numerics(region)
        rejected = []
        for variant in self.registry.variants(region.kind):
            if variant.device != self.device.kind or variant.id in taken:
                continue
            reject = lacks(variant, self.required) or variant.supported(region, self.device)
            reject = reject or self._found_wrong(variant, region) or numerics(variant)
            assert reject is not None, variant.id
            rejected.append(Rejection(variant, reject))
        return tuple(rejected)

    def refusal(self, variant: KernelVariant, region: RegionSpec) -> Reject | None:
        """Why a variant can't be chosen for a region, the first reason; None if it can."""
        refused = lacks(variant, self.required) or variant.supported(region, self.device)
        return refused or self._found_wrong(variant, region) or self._numerics(region)(variant)

    def _numerics(self, region: RegionSpec) -> invariant.Refuses:
        """What strict numerics and invariant rows have against a variant that accepts the region."""
        order, refuses = self._summing_order(region), self._invariance(region)

        def refused(variant: KernelVariant) -> Reject | None:
            if order is not None and variant.id != order:
                return Reject("strict", f"sums in another order than {order}, which the op alone would run")
            return refuses(variant) if refuses is not None else None

        return refused

    def _none(self, region: RegionSpec) -> NoKernelError:
        rejected = self._rejected(region)
        hint = "`aicf info` lists the ops and their variants; docs/add-an-op.md shows how to add one"
        schema = schema_of(region.kind)
        if not rejected and schema.expand_fn is not None and schema.core in ("", schema.name):
            hint = f'{region.kind} expands, and kernels of rows would take its steps if it said so: @op(..., core="rows")'
        if region.invariant and any(r.reject.condition == invariant.CONDITION for r in rejected):
            hint = invariant.hint_of(region)
        unordered = [r.variant.id for r in rejected if r.reject.condition == "deterministic"]
        if unordered:
            hint = f"deterministic=False accepts {unordered[0]}, whose results may differ in each run"
        if not rejected and schema.instead_fn is not None:
            hint = f"in a model other ops stand in the place of {region.kind}: compile a layer that returns ctx.{region.kind}(…)"
        return NoKernelError(
            f"no kernel takes {region} on {self.device.name}",
            details=[f"{r.variant.id}: {r.reject.reason}" for r in rejected]
            or [f"no variant for {region.kind} on {self.device.kind} is registered"],
            hint=hint,
        )


def _better(one: Candidate, other: Candidate) -> bool:
    """By `order`, whose rounding matters only where times are as good as equal."""
    a, b = one.us, other.us
    if abs(a - b) > TIE * b and max(a, b) < math.inf:
        return a < b
    return one.order < other.order


def log_choice(selection: Selection, stream: object = "-", where: str = "") -> None:
    """A line for each choice on the channel `select`: op kind, variant, dtypes and shapes, stream; in detail each other variant."""
    if not channels.enabled("select"):
        return
    region, chosen = selection.region, selection.chosen
    operands = list(map(str, region.operands))
    channels.tell(
        "select", "chosen",
        f"{region.signature} -> {selection.kernel_id} {chosen.us:.3g} us {', '.join(operands)} stream={stream}"
        + (f" {where}" if where else ""),
        region=region.signature, ops=[op.kind.name for op in region.ops], kernel=selection.kernel_id, us=chosen.us,
        operands=operands, results=list(map(str, region.results)), device=selection.device.name, stream=str(stream), where=where,
    )  # fmt: skip
    if not channels.enabled("select", logging.DEBUG):
        return
    for other in selection.ranked[1:]:
        channels.tell(
            "select", "candidate", f"{region.signature}: not {other.variant.id}, {other.us:.3g} us", logging.DEBUG,
            region=region.signature, kernel=other.variant.id, us=other.us, terms=dict(other.cost.terms),
        )  # fmt: skip
    for r in selection.rejected:
        channels.tell(
            "select", "rejected", f"{region.signature}: {r.variant.id} rejected: {r.reject.reason}", logging.DEBUG,
            region=region.signature, kernel=r.variant.id, condition=r.reject.condition, reason=r.reject.reason,
        )  # fmt: skip
