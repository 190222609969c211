"""How the body of an op runs: as kernels in an order, each on memory that a variant knows. Plans are built in graph/, which is imported for
that, at the request of variants of ops with bodies."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from ..device.spec import DeviceSpec
from ..ir import Subgraph
from ..lazy import deferred
from ..ops.schema import schema_of
from ..rows import RegionSpec
from ..types import DType, TensorDesc, TensorSpec, pointer_alignment
from .cost import Cost
from .variant import KernelVariant


class Spot(NamedTuple):
    """Where a tensor of a body is stored: a byte offset into an "operand" or a "result", by its number, or into its "arena"."""

    what: str
    number: int
    offset: int


@dataclass(frozen=True)
class BodyStep:
    """A kernel on a region whose operands and results are stored there; `workspace` is the offset of its workspace in the arena."""

    variant: KernelVariant
    region: RegionSpec
    us: float
    ins: tuple[Spot, ...]
    outs: tuple[Spot, ...]
    workspace: int = 0


@dataclass(frozen=True)
class BodyPlan:
    """Kernels in order.

    same    of each result the one that it shares its place with: what a step hands on may be what it shows
    arena   bytes for what is between the kernels
    """

    steps: tuple[BodyStep, ...]
    same: tuple[int, ...]
    arena: int

    def cost(self, times: int) -> Cost:
        """Of so many runs: a term for each kernel, by its name."""
        terms: dict[str, float] = {}
        for step in self.steps:
            terms[step.variant.name] = terms.get(step.variant.name, 0.0) + step.us * times
        return Cost(terms)


# (body, its operands, alignments of its results, how many of these are carried, strict numerics, device)
Planner = Callable[[Subgraph, tuple[TensorDesc, ...], tuple[int, ...], int, bool, DeviceSpec], BodyPlan]


_planner: Planner = deferred("aicf.graph.run.bodies", "plan_body")


def plan_of(
    body: Subgraph, operands: Sequence[TensorDesc], alignments: Sequence[int], carried: int, strict: bool, device: DeviceSpec
) -> BodyPlan:  # fmt: skip
    """The plan of a body; NoKernelError says what no kernel takes.

    alignments  of the places of results, in bytes
    carried     so many results, the first ones, are handed on; one of them may share its place with one of the others
    """
    return _planner(body, tuple(operands), tuple(alignments), carried, strict, device)


class ScanSteps:
    """What a region that is a scan does on a device.

    places    where the op's operands are among the region's, in its own order
    operands  the operands of each step, `rows` among them a row of a stacked operand; `results` its results
    plan      of a step
    """

    def __init__(self, region: RegionSpec, device: DeviceSpec) -> None:
        attrs = schema_of(region.kind).values(region.attrs)
        self.body: Subgraph = attrs["body"]
        self.carried, self.stacked, self.length = attrs["carried"], attrs["stacked"], attrs["length"]
        self.order = range(self.length)[:: -1 if attrs["reverse"] else 1]
        self.places = tuple(region.inputs.index(tensor) for tensor in region.anchor.inputs)
        given = [region.operands[place] for place in self.places]
        self.rows = range(self.carried, self.carried + self.stacked)
        self.results = tuple(t if n < self.carried else _row(t) for n, t in enumerate(region.results))
        self.operands = tuple(
            _row(t) if n in self.rows else self._carried(n, t) if n < self.carried else t
            for n, t in enumerate(given)
        )
        self.plan = plan_of(
            self.body, self.operands, [t.alignment for t in self.results], self.carried, region.strict, device
        )

    def _carried(self, n: int, first: TensorDesc) -> TensorDesc:
        """Carried values are stored in an operand, in a result or in a row that shows them."""
        made = self.body.results
        places = [
            first,
            self.results[n],
            *(t for v, t in zip(made[self.carried :], self.results[self.carried :]) if v == made[n]),
        ]
        return replace(first, alignment=min(t.alignment for t in places))


class WhileBodies:
    """What a region that is a while_loop does on a device: `condition` and `body` are the plans of its bodies, which are given `operands`, of
    which the first `carried` ones are made anew; `places` as those of a scan."""

    def __init__(self, region: RegionSpec, device: DeviceSpec) -> None:
        attrs = schema_of(region.kind).values(region.attrs)
        self.carried: int = attrs["carried"]
        self.places = tuple(region.inputs.index(tensor) for tensor in region.anchor.inputs)
        given = [region.operands[place] for place in self.places]
        self.operands = tuple(
            replace(t, alignment=min(t.alignment, region.results[n].alignment)) if n < self.carried else t
            for n, t in enumerate(given)
        )
        flag = TensorDesc.dense(TensorSpec((), DType.bool, given[0].device))
        self.condition, self.body = (
            plan_of(body, self.operands, [t.alignment for t in results], 0, region.strict, device)
            for body, results in ((attrs["condition"], [flag]), (attrs["body"], region.results))
        )


def plans_of(region: RegionSpec, device: DeviceSpec) -> list[tuple[str, BodyPlan]]:
    """The bodies of an op, each with its description."""
    if region.kind.name == "scan":
        scan = ScanSteps(region, device)
        return [(f"{scan.length} steps", scan.plan)]
    bodies = WhileBodies(region, device)
    return [("condition", bodies.condition), ("iteration", bodies.body)]


def _row(of: TensorDesc) -> TensorDesc:
    """A row of a dense tensor, at any index."""
    size = of.nbytes // max(of.shape[0], 1)
    alignment = min(of.alignment, pointer_alignment(size)) if size else of.alignment
    return TensorDesc(of.dtype, of.shape[1:], of.stride[1:], of.device, alignment)
