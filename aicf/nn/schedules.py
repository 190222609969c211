"""Learning-rate schedules: emitted into the graph, so that the rate changes on the device, without a new plan.

Each is a function of the number of steps done, 0 at the first, and of the base rate, which `program.set(lr=…)` changes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ..errors import VerifyError
from ..ir import Value
from . import checks

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
        raise NotImplementedError


@dataclass(frozen=True)
class _Decay(Schedule):
    """A linear warm-up over `warmup` steps, then down to the rate `floor` at step `total`."""

    total: int
    warmup: int = 0
    floor: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        name = type(self).__name__
        checks.whole(f"{name}: total", self.total, 1)
        if checks.whole(f"{name}: warmup", self.warmup) > self.total:
            raise VerifyError(f"{name}: warmup={self.warmup}", expected=f"at most total={self.total}")
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
        checks.whole("StepDecay: every", self.every, 1)
        checks.not_negative("StepDecay: gamma", self.gamma)

    def emit(self, ctx: Any, step: Value, base: Value) -> Value:
        return ctx.schedule_step(step, base, every=self.every, gamma=self.gamma)
