"""A chain: kernels that are there already, one after the other as one variant. Each reads what those before it left in the workspace.

For an op that is made of others chunk by chunk, so that what is between them is never there as a whole. The kernel of each step is
chosen as any region's is, by predicted time; tuning data and other packages' kernels are not asked.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from typing import Any

from ..device.spec import DeviceSpec
from ..ops.schema import schema_of
from ..registry.cost import Cost
from ..registry.index import REQUIRED
from ..registry.registry import KernelRegistry
from ..registry.select import Selector
from ..registry.variant import Arg, In, KernelVariant, Launch, Out, Table, TensorMap, Work, cdiv
from ..rows import RegionOp, RegionSpec
from ..types import DType, TensorDesc, TensorSpec, numel

ALIGNMENT = 256  # of each tensor in the workspace
Place = In | Out | Work
CHAINED = REQUIRED | {"capture_safe", "chained"}


def dense(shape: Sequence[int], dtype: DType, alignment: int = ALIGNMENT) -> TensorDesc:
    """A tensor in the workspace, or one like it."""
    return TensorDesc.dense(TensorSpec(tuple(shape), dtype, "cuda"), alignment)


def shaped(of: TensorDesc, *shape: int) -> TensorDesc:
    """A dense tensor in another shape of as many elements."""
    return dense(shape, of.dtype, of.alignment)


def part(of: TensorDesc, rows: int, unit: int) -> TensorDesc:
    """So many rows of a dense tensor, from any multiple of `unit` rows on."""
    step = unit * _row(of)
    return dense((rows, *of.shape[1:]), of.dtype, min(of.alignment, step & -step or of.alignment))


def moved(place: Place, of: TensorDesc, rows: int) -> Place:
    """So many rows further on in a dense tensor that is at a place."""
    return replace(place, offset=place.offset + rows * _row(of))


def _row(of: TensorDesc) -> int:
    """Bytes from one to the next."""
    return numel(of.shape[1:]) * of.dtype.itemsize


def region_of(
    operands: Mapping[str, TensorDesc], *steps: tuple[Any, ...], alignment: int = ALIGNMENT
) -> RegionSpec:
    """Ops over named tensors: (results, op, operands, attributes), names apart by spaces. What leaves are the last op's results, of this
    alignment."""
    names, tensors, ops = list(operands), list(operands.values()), []
    for results, kind, ins, attrs in steps:
        schema, at = schema_of(kind), [names.index(n) for n in ins.split()]
        specs = [TensorSpec(tensors[t].shape, tensors[t].dtype, "cuda") for t in at]
        packed = schema.pack(schema.normalized(specs, attrs))
        made = [TensorDesc.dense(spec, alignment) for spec in schema.infer(specs, packed, "cuda")]
        outs = tuple(range(len(tensors), len(tensors) + len(made)))
        ops.append(RegionOp(schema.kind, packed, tuple(at), outs))
        tensors += made
        names += results.split()
    return RegionSpec(tuple(ops), tuple(tensors), tuple(range(len(operands))), ops[-1].outputs)


@dataclass(frozen=True)
class _Step:
    """A kernel on a region whose operands and results are at these places, or a launch of the chain's own."""

    name: str
    us: float
    launch: Launch | None = None
    variant: KernelVariant | None = None
    region: RegionSpec | None = None
    ins: tuple[Place, ...] = ()
    outs: tuple[Place, ...] = ()


class Chain:
    """Steps in order, and where what is between them lies."""

    def __init__(self, device: DeviceSpec) -> None:
        self.device, self.steps, self.nbytes = device, list[_Step](), 0

    def reserve(self, tensor: TensorDesc) -> Work:
        """Room for a tensor, for all of the chain."""
        place = Work(self.nbytes, tensor.dtype)
        self.nbytes += cdiv(tensor.nbytes, ALIGNMENT) * ALIGNMENT
        return place

    def us(self, *regions: RegionSpec) -> float:
        """Of kernels for regions, one after the other."""
        return math.fsum(_chosen(region, self.device)[1] for region in regions)

    def run(self, region: RegionSpec, ins: Sequence[Place], outs: Sequence[Place]) -> None:
        """The best kernel for a region; nothing if it has no results."""
        if any(t.numel for t in region.results):
            self.add(*_chosen(region, self.device), region, ins, outs)

    def add(
        self, variant: KernelVariant, us: float, region: RegionSpec, ins: Sequence[Place], outs: Sequence[Place]
    ) -> None:  # fmt: skip
        """A kernel that was chosen for a region, which takes so long."""
        self.steps.append(_Step(variant.name, us, None, variant, region, tuple(ins), tuple(outs)))

    def launch(self, launch: Launch, cost: Cost) -> None:
        """A kernel of the chain's own."""
        self.steps.append(_Step(launch.body.__name__, cost.us, launch))

    @property
    def cost(self) -> Cost:
        """A term for each kernel, by its name."""
        terms: dict[str, float] = {}
        for step in self.steps:
            terms[step.name] = terms.get(step.name, 0.0) + step.us
        return Cost(terms)

    @property
    def workspace(self) -> int:
        """With what kernels need of their own, which they share."""
        own = [s.variant.query_workspace(s.region, self.device) for s in self.steps if s.variant and s.region]
        return self.nbytes + max(own, default=0)

    def launches(self) -> list[Launch]:
        made: list[Launch] = []
        for step in self.steps:
            if step.launch is not None:
                made.append(step.launch)
            elif step.region is not None and step.variant is not None:
                own = Work(self.nbytes)
                built = _built(step.variant, step.region, self.device)
                made += [replace(x, args=_placed(x.args, step.ins, step.outs, own)) for x in built]
        return made


def of_chain(chain: Callable[[RegionSpec, DeviceSpec], Chain]) -> Callable[[type], type]:
    """Gives a variant's class the cost, the workspace and the launches of `chain(region, device)`."""

    def complete(cls: type) -> type:
        def cost(region: RegionSpec, device: DeviceSpec) -> Cost:
            return chain(region, device).cost

        def workspace(region: RegionSpec, device: DeviceSpec) -> int:
            return chain(region, device).workspace

        def build(region: RegionSpec, device: DeviceSpec) -> list[Launch]:
            return chain(region, device).launches()

        for function in (cost, workspace, build):
            function.__module__ = cls.__module__
            setattr(cls, function.__name__, function)
        return cls

    return complete


def _placed(args: Any, ins: tuple[Place, ...], outs: tuple[Place, ...], own: Work) -> Any:
    """Arguments of a kernel with its operands, results and workspace where the chain has them."""

    def of(arg: Arg) -> Any:
        if isinstance(arg, tuple):
            return tuple(map(of, arg))
        if isinstance(arg, TensorMap):
            return replace(arg, source=of(arg.source))
        if isinstance(arg, Work):
            return replace(arg, offset=own.offset + arg.offset)
        if isinstance(arg, (In, Out)):
            place = (ins if isinstance(arg, In) else outs)[arg.index]
            return replace(place, offset=place.offset + arg.offset)
        assert not isinstance(arg, Table), arg
        return arg

    return of(args)


@lru_cache(maxsize=1024)
def _built(variant: KernelVariant, region: RegionSpec, device: DeviceSpec) -> tuple[Launch, ...]:
    built = variant.build(region, device)
    assert isinstance(built, list), variant.id
    return tuple(built)


@lru_cache(maxsize=4096)
def _chosen(region: RegionSpec, device: DeviceSpec) -> tuple[KernelVariant, float]:
    """The kernel, and its predicted time; NoKernelError says why there is none."""
    chosen = Selector(_registry(), device, required=CHAINED)(region).chosen
    return chosen.variant, chosen.us


@cache
def _registry() -> KernelRegistry:
    """aicf's own kernels."""
    from . import MODULES

    registry = KernelRegistry()
    for module in MODULES:
        registry.add_module(module)
    return registry
