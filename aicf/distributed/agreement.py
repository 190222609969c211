"""What all ranks of a program must have in common before they train: descriptions that are compared when it is compiled."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from ..graph.emit.trace import Recipe, trace
from ..graph.run.overlap import bucket_of
from ..graph.run.plan import ExecPlan, Step

ADDRESS = re.compile(" at 0x[0-9a-f]+")  # in the text of a function: another one on each rank
HINTS = {
    "calibration": "AICF_CALIBRATION=off on all ranks uses the constants of the package; or name copies of one file of aicf calibrate",
    "seed": "give the models of all ranks one seed: dropout draws other numbers on each rank by itself",
    "optimizer": "give all ranks one optimizer with the same numbers; program.set changes them later, on all ranks",
}


def described(recipe: Recipe, device: str, settings: Mapping[str, object]) -> dict[str, list[str]]:
    """A recipe as lines, by aspect. First values are no part of it, nor random numbers, nor which rank steps what."""
    graph = trace(replace(recipe, parallel=None), recipe.model.sizes, device)
    numbers = {v.meta: getattr(v.init, "value", None) for v in graph.externals() if v.meta}
    chosen = {"accumulate": recipe.accumulate, "policy": recipe.types, **recipe.attrs, **settings}
    return {
        "mode": [recipe.mode],
        "seed": [f"seed {recipe.model.seed}"],
        "optimizer": [type(recipe.optimizer).__name__, *(f"{n} = {numbers[n]}" for n in sorted(numbers))],
        "loss": [type(recipe.loss).__name__],
        "setting": [f"{name} = {ADDRESS.sub('', str(chosen[name]))}" for name in sorted(chosen)],
        "model": str(graph).splitlines(),
    }


def transfers(plan: ExecPlan) -> list[str]:
    """The collectives of a plan in their order, those that leave together on one line."""
    return [
        f"{group[0].region.anchor.kind} of {', '.join(str(s.region.results[0]) for s in group)}"
        for group in _groups(plan)
    ]


def kernels(plan: ExecPlan) -> list[str]:
    """The kernels of a plan, each with what it computes."""
    return [f"{step.kernel_id} of {step.region}" for step in plan.steps if step.kernel_id]


def _groups(plan: ExecPlan) -> Iterator[Sequence[Step]]:
    """Neighbours of one bucket: the executor sends them in one transfer."""
    group: list[Step] = []
    for step in plan.steps:
        if not step.kernel_id:
            continue
        sent = step.region.anchor.attrs.get("ranks", 1) > 1
        if group and not (sent and bucket_of(step) == bucket_of(group[0])):
            yield group
            group = []
        group += [step] * sent
    if group:
        yield group
