"""Learning-rate schedules: emitted into the graph, so that the rate changes on the device, without a new plan.

Each is a function of the number of steps done, 0 at the first, and of the base rate, which `program.set(lr=…)` changes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ..errors import VerifyError
from ..graph.emit.builder import Builder, GraphEmitter
from ..graph.emit.evaluate import evaluate
from ..ir import Value
from ..types import i32
from . import checks

MOST = 2**31 - 1  # steps are counted in i32

__all__ = ["Cosine", "Linear", "Schedule", "StepDecay"]


def __dir__() -> list[str]:
    return __all__


@dataclass(frozen=True)
class Schedule:
    """base is the learning rate that the schedule scales."""

    base: float

    def __post_init__(self) -> None:
        checks.not_negative(f"{type(self).__name__}: base", self.base)

    def emit(self, ctx: Any, step: Value, base: Value) -> Value:
        """The 0-D rate of this step."""
        raise checks.lacks(self, "emit", "ctx, step, base", "the 0-D rate")

    def rate(self, step: int, base: float | None = None) -> float:
        """The rate behind `step` steps, on the host: what `emit` computes. By default of the schedule's own base."""
        ctx = GraphEmitter(Builder(), "cpu")
        done, start = ctx.input("step", (), i32), ctx.input("base", ())
        rate = self.emit(ctx, done, start)
        fed = {
            done: np.int32(checks.whole("step", step)),
            start: np.float32(self.base if base is None else base),
        }
        return float(evaluate(ctx.builder.graph, fed)[rate])


@dataclass(frozen=True)
class _Decay(Schedule):
    """A linear warm-up over `warmup` steps, then down to the rate `floor` at step `total`."""

    total: int
    warmup: int = 0
    floor: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        name = type(self).__name__
        checks.whole(f"{name}: total", self.total, 1, MOST)
        if checks.whole(f"{name}: warmup", self.warmup) >= self.total:
            raise VerifyError(
                f"{name}: warmup={self.warmup}", expected=f"less than total={self.total}",
                hint="total counts the steps of the warm-up, too; the decay needs one of its own",
            )  # fmt: skip
        checks.not_negative(f"{name}: floor", self.floor)

    @property
    def shape(self) -> dict[str, Any]:
        return {"warmup": self.warmup, "total": self.total, "floor": self.floor}


class Cosine(_Decay):
    """Linear warm-up over `warmup` steps, then half a cosine down to the rate `floor` at step `total` (Loshchilov 2017)."""

    def emit(self, ctx: Any, step: Value, base: Value) -> Value:
        return ctx.schedule_cosine(step, base, **self.shape)


class Linear(_Decay):
    """Linear warm-up, then a straight line down to the rate `floor` at step `total`."""

    def emit(self, ctx: Any, step: Value, base: Value) -> Value:
        return ctx.schedule_linear(step, base, **self.shape)


@dataclass(frozen=True)
class StepDecay(Schedule):
    """The base rate times gamma for every `every` steps done."""

    every: int
    gamma: float = 0.1

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.whole("StepDecay: every", self.every, 1, MOST)
        checks.not_negative("StepDecay: gamma", self.gamma)

    def emit(self, ctx: Any, step: Value, base: Value) -> Value:
        return ctx.schedule_step(step, base, every=self.every, gamma=self.gamma)
