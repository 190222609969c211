"""Gradients and training steps of random programs: gradients against difference quotients of the program in float64, and a step of a random
optimizer, fused and as one kernel per op."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

import aicf
from aicf import nn
from aicf.ops.schema import schema_of
from aicf.types import DType

from . import graphs
from .graphs import LOOSE, unfused
from .programs import IN_PLACE, Program, Step, program_script, simpler

NAME, DEVICES = "training", ("cpu", "cuda")
STEPS = 1e-4, 2e-5


def optimizers() -> list[str]:
    """Optimizers whose step is smooth: of the others, a rounding error of a small gradient is a step of its own."""
    return ["SGD", "Adam", "AdamW", "RMSprop", "Adagrad"]


@dataclass(frozen=True)
class TrainingCase:
    """A program of f32 with one result, whose float inputs are parameters; the loss is the mean of its squares."""

    program: Program
    optimizer: str

    def __str__(self) -> str:
        return f"{self.optimizer} of {'; '.join(map(str, self.program.steps))}"


class MeanOfSquares(nn.Loss):
    """Of the result, without targets."""

    def targets(self, output: Any) -> Mapping[str, Any]:
        return {}

    def emit(self, ctx: Any, output: Any, targets: Mapping[str, Any]) -> Any:
        return ctx.reduce_mean(ctx.square(output))


class Trained:
    """The program as a model whose float inputs are parameters."""

    seed: int = 0
    sizes: Mapping[str, int] = {}

    def __init__(self, program: Program) -> None:
        self.program = program
        self.params = {f.name: f for f in program.fed if f.spec.dtype is DType.f32}
        self.inputs = {f.name: f.spec for f in program.fed if f.name not in self.params}

    def emit(self, ctx: Any, inputs: Mapping[str, Any]) -> Any:
        made = {
            n: ctx.param(n, f.spec.shape, lambda shape, rng, f=f: f.array(self.program.seed))
            for n, f in self.params.items()
        }
        return self.program.emit(ctx, {**inputs, **made})


def differentiable(step: Step) -> bool:
    """Whether the op has a gradient rule, or is emitted as other ops; what writes in place has none."""
    schema = schema_of(step.kind)
    return step.kind not in IN_PLACE and (schema.gradient_fn is not None or schema.instead_fn is not None)


def draw(rng: np.random.Generator, where: str = "cpu") -> TrainingCase | None:
    """A program of f32 up to ten steps; None if nothing of it can be trained."""
    made: Program | None = graphs.drawn(int(rng.integers(2**31)), 10)
    while made and (dropped := next((s.name for s in made.steps if not differentiable(s)), "")):
        made = made.without(dropped)
    if made is None:
        return None
    types: dict[str, DType] = {}
    made.exact(types)
    made = made.having(list(made.steps), [n for n in made.outputs if types[n] is DType.f32][:1])
    if made is None or made.states or not any(f.spec.dtype is DType.f32 and f.spec.shape for f in made.fed):
        return None
    if not np.isfinite(made.exact()[made.outputs[0]].v).all() or not made.exact()[made.outputs[0]].v.size:
        return None
    return TrainingCase(made, str(rng.choice(optimizers())))


def loss_of(program: Program, arrays: Mapping[str, np.ndarray]) -> float:
    """In float64, with these arrays in the place of inputs."""
    return float(np.mean(program.exact(given=arrays)[program.outputs[0]].v ** 2))


def check(case: TrainingCase, where: str = "cpu") -> str | None:
    """What is wrong with a gradient, or which parameter differs after two steps."""
    try:
        return _gradients(case, where) or _steps(case, where)
    except aicf.AicfError as error:
        return f"{type(error).__name__}: {str(error).splitlines()[0]}"


def _gradients(case: TrainingCase, where: str) -> str | None:
    program, model = case.program, Trained(case.program)
    feed = {f.name: f.array(program.seed) for f in program.fed if f.name in model.inputs}
    made = aicf.compile(model, "grad", device=where, loss=MeanOfSquares()).run(feed)
    rng = np.random.default_rng(program.seed)
    base = {f.name: f.array(program.seed).astype(np.float64) for f in program.fed}
    for name, f in model.params.items():
        key = next((k for k in made if k in (name, f"d{name}", f"grad.{name}", f"{name}.grad")), None)
        if key is None or not f.spec.shape:
            continue
        grad = made[key].numpy().astype(np.float64)
        direction = rng.normal(size=f.spec.shape)
        quotients = []
        for step in STEPS:
            high, low = (
                loss_of(program, {**base, name: base[name] + sign * step * direction}) for sign in (1, -1)
            )
            quotients.append((high - low) / (2 * step))
        want, got = quotients[1], float((grad * direction).sum())
        scale = float(np.abs(grad * direction).sum()) + abs(loss_of(program, base))
        if not np.isfinite(want) or abs(quotients[0] - want) > 1e-4 * (abs(want) + scale):
            continue  # a kink between the points
        if not abs(got - want) <= LOOSE[where] * 1e-3 * (abs(want) + scale) + 1e-6:
            return f"gradient of {name}: {got:.7g} along a direction, expected {want:.7g}"
    return None


def _steps(case: TrainingCase, where: str) -> str | None:
    """Two steps fused and two as one kernel per op, of an optimizer with a wide eps."""
    ends = []
    for how in ({}, {"numerics": "strict", "registry": unfused(where)}):
        model = Trained(case.program)
        kind = getattr(nn, case.optimizer)
        optimizer = kind(0.05) if case.optimizer == "SGD" else kind(0.05, eps=0.1)
        program = aicf.compile(model, "train", device=where, loss=MeanOfSquares(), optimizer=optimizer, **how)
        feed = {f.name: f.array(case.program.seed) for f in case.program.fed if f.name in model.inputs}
        for _ in range(2):
            program.run(feed)
        ends.append({n: program.get(n) for n in model.params})
    for name, a in ends[0].items():
        b = ends[1][name]
        finite = np.isfinite(b)
        off = np.abs(a - b)[finite].max(initial=0.0)
        if off > LOOSE[where] * 1e-3 * (1 + np.abs(b)[finite].max(initial=0.0)):
            return f"steps: {name} differs by {off:.3g} between fused kernels and one kernel per op"
    return None


def smaller(case: TrainingCase) -> Iterator[TrainingCase]:
    """Of a smaller program."""
    for program in simpler(case.program):
        if (
            not program.states
            and any(f.spec.dtype is DType.f32 for f in program.fed)
            and program.exact()[program.outputs[0]].v.size
        ):
            yield replace(case, program=program)


def script(case: TrainingCase, where: str = "cpu") -> str:
    """The program, forward; its float inputs are the parameters."""
    return f"# the gradient of the mean of squares of the result; {case.optimizer}\n{program_script(case.program, where)}"
