"""explain_over: the choices for a device over the sizes of one dimension."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from pathlib import Path

from ..device.spec import DeviceSpec, preset
from ..dispatch import default_registry
from ..registry.index import required_flags
from ..registry.naming import lacking
from ..registry.registry import KernelRegistry
from ..registry.select import Selector
from ..registry.tuning import Times, tuning_of
from ..types import Precision
from .ask.sizes import PlansBySize, dimension, parsed, ranges
from .ask.sweep import Sweep, listed
from .compile import compile_graph, rounding_of
from .emit.policy import Policy
from .emit.trace import LossLike, ModelLike, OptimizerLike, Recipe
from .fuse import Region


def explain_over(
    model: ModelLike,
    device: DeviceSpec | str,
    sizes: str | Iterable[int],
    mode: str = "infer",
    *,
    loss: LossLike | None = None,
    optimizer: OptimizerLike | None = None,
    accumulate: int = 1,
    numerics: str | None = None,
    precision: Precision | str = Precision.exact,
    policy: Policy | str = "f32",
    beam: int = 1,
    hoist: bool = True,
    registry: KernelRegistry | None = None,
    tuning: Times | str | Path | None = None,
    without: Iterable[str] = (),
    deterministic: bool = True,
    invariant: bool = False,
) -> Sweep:
    """Where the choice changes with the size of a batch, or of another named dimension.

    sizes  "1..4096": ranges of sizes with one plan each, found by bisection between powers of two; "1,8,64" or numbers: these
           sizes. They are of the dimension "batch", or of the only one there is; "seq=1..4096" names another
    the rest as for `explain_for`
    """
    named, numbers, through = parsed(sizes if isinstance(sizes, str) else ",".join(map(str, sizes)))
    dim = dimension(named, model.sizes)
    recipe = Recipe(model, mode, loss, optimizer, accumulate, precision, policy)
    spec = device if isinstance(device, DeviceSpec) else preset(device)
    registry = lacking(default_registry() if registry is None else registry, without)
    required = required_flags(deterministic)
    rounding = rounding_of(numerics, invariant)
    selector = Selector(registry, spec, tuning_of(tuning, spec, registry), required, *rounding)

    free = selector.like(strict=False, invariant=False) if invariant else None

    def run_of(size: int, selector: Selector) -> tuple[float, Sequence[Region]]:
        made = compile_graph(recipe, {**model.sizes, dim: size}, selector, beam=beam, hoist=hoist)
        run = [region for region, step in zip(made.regions, made.plan.steps) if step.kernel_id]
        selector.trim()
        return math.fsum(region.selection.chosen.us for region in run), run

    def make(size: int) -> tuple[float, Sequence[Region], float | None]:
        return *run_of(size, selector), None if free is None else run_of(size, free)[0]

    asked = PlansBySize(make)
    if through:
        found = tuple(ranges(asked, *numbers))
    else:
        found = listed([asked.at(size) for size in sorted(set(numbers))])
    return Sweep(dim, spec.name, found, tuple(asked.plans[size] for size in sorted(asked.plans)))
