"""Losses element by element, named and parametrised as PyTorch's; and what all losses that are reduced have in common."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

from ..errors import VerifyError
from ..graph.emit.objective import EVERYTHING
from ..ir import Value
from ..types import TensorSpec, f32, f64
from . import checks
from .losses import Loss, check_names
from .tables import WeightTable, read_table, table

REDUCTIONS = "mean", "sum", "none"


@dataclass(frozen=True)
class ReducedLoss(Loss):
    """A loss of one number for each element or row, then reduced: "mean", "sum", or "none" to get them all, which `compile` can't train.

    Called on Values inside another emit, it takes what its `compute` does: `nn.HuberLoss(delta=2.0)(out["mean"], y)`. Given to `compile`,
    the target is fed under the name `target`, and `result` names the result of the model that it reads. It is computed in f32 at least.
    """

    reduction: str = field(default="mean", kw_only=True)
    target: str = field(default="y", kw_only=True)
    result: str = field(default="", kw_only=True)

    reductions: ClassVar[tuple[str, ...]] = REDUCTIONS
    reads_all: ClassVar[bool] = False  # whether it reads several results of the model

    def __post_init__(self) -> None:
        check_names(self.target, "" if self.reads_all and self.result == EVERYTHING else self.result)
        if self.reduction not in self.reductions:
            raise VerifyError(
                f"{self._own}: reduction={self.reduction!r}", expected=" or ".join(map(repr, self.reductions))
            )

    @property
    def _own(self) -> str:
        return type(self).__name__

    def compute(self, *given: Any, **named: Any) -> Value:
        """(ctx, what it reads, targets): the losses before they are reduced, or the reduced loss where that is no plain mean."""
        raise checks.lacks(self, "compute", "ctx, *given", "losses")

    def reduced(self, losses: Value) -> Value:
        """Losses as `reduction` has them."""
        if self.reduction == "none":
            return losses
        return losses.sum() if self.reduction == "sum" else losses.mean()

    def targets(self, output: Any) -> Mapping[str, TensorSpec]:
        return {self.target: replace(self._spec(output))}

    def emit(self, ctx: Any, output: Any, targets: Mapping[str, Value]) -> Value:
        if self.reduction == "none":
            raise VerifyError(
                f'{self._own}: reduction="none" gives compile no loss to minimise', expected='"mean" or "sum"',
                hint="nn.LossFunction(lambda out, y: (loss(out, y) * weights).mean(), y=…) reduces it in another way",
            )  # fmt: skip
        return self.reduced(self.compute(ctx, output, *targets.values()))

    def __call__(self, output: Any, *targets: Value) -> Value:
        """The loss of Values, inside an emit."""
        given = [*(output if isinstance(output, (tuple, list)) else (output,)), *targets]
        ctx = next((v.emitter for v in given if isinstance(v, Value) and v.emitter is not None), None)
        if ctx is None:
            raise VerifyError(
                f"{self._own} was called without a Value", got=", ".join(type(v).__name__ for v in given) or "nothing",
                expected="Values of a graph, inside an emit", hint=f"aicf.compile(model, 'train', loss=nn.{self._own}(), …) trains a model",
            )  # fmt: skip
        return self.reduced(self.compute(ctx, output, *targets))

    # --- what subclasses share ------------------------------------------------------------------------------------

    def _spec(self, output: Any) -> TensorSpec:
        """The spec of the one tensor that the loss reads."""
        if not isinstance(output, TensorSpec):
            raise VerifyError(
                f"{self._own} reads one tensor", got=type(output).__name__, hint='result="logits" names one of the model\'s results'
            )  # fmt: skip
        return output

    def _pair(self, output: Any, names: tuple[str, ...]) -> tuple[Any, ...]:
        """The Values, or specs, of a loss of several results: a tuple, a list, or a dict in its order."""
        parts = tuple(output.values()) if isinstance(output, Mapping) else output
        if not isinstance(parts, (tuple, list)) or len(parts) != len(names):
            got = f"{len(parts)} results" if isinstance(parts, (tuple, list)) else "one tensor"
            raise VerifyError(f"{self._own} reads {len(names)} results", expected=", ".join(names), got=got)
        return tuple(parts)


def wide(x: Value) -> Value:
    """In f32, unless it is f64."""
    return x if x.dtype in (f32, f64) else x.astype(f32)


def both(output: Value, target: Value) -> tuple[Value, Value]:
    return wide(output), wide(target)


# --- regression -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class L1Loss(ReducedLoss):
    """|output - target|. The target has the output's type and shape."""

    def compute(self, ctx: Any, output: Value, target: Value) -> Value:
        x, t = both(output, target)
        return abs(x - t)


@dataclass(frozen=True)
class MSELoss(ReducedLoss):
    """(output - target)^2. The target has the output's type and shape. nn.MeanSquaredError is its mean."""

    def compute(self, ctx: Any, output: Value, target: Value) -> Value:
        x, t = both(output, target)
        return ctx.squared_error(x, t)


@dataclass(frozen=True)
class HuberLoss(ReducedLoss):
    """d^2 / 2 where |d| <= delta, delta * (|d| - delta / 2) elsewhere, with d = output - target. delta > 0."""

    delta: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "delta", checks.positive(f"{self._own}: delta", self.delta))

    def compute(self, ctx: Any, output: Value, target: Value) -> Value:
        x, t = both(output, target)
        return _huber(ctx, x - t, self.delta)


def _huber(ctx: Any, d: Value, delta: float) -> Value:
    """c * (d - c / 2), where c is d cut off at delta: one formula for both sides, and its slope is c."""
    c = ctx.clamp(-delta, d, delta)
    return c * (d - 0.5 * c)


@dataclass(frozen=True)
class SmoothL1Loss(ReducedLoss):
    """d^2 / (2 beta) where |d| < beta, |d| - beta / 2 elsewhere, with d = output - target. beta >= 0; 0 is L1Loss."""

    beta: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "beta", checks.not_negative(f"{self._own}: beta", self.beta))

    def compute(self, ctx: Any, output: Value, target: Value) -> Value:
        x, t = both(output, target)
        return _huber(ctx, x - t, self.beta) * (1 / self.beta) if self.beta else abs(x - t)


@dataclass(frozen=True)
class LogCoshLoss(ReducedLoss):
    """log(cosh(output - target)): half of the square where they are near each other, |d| - log(2) where they are far apart."""

    def compute(self, ctx: Any, output: Value, target: Value) -> Value:
        x, t = both(output, target)
        d = x - t
        return d + ctx.softplus(d * -2.0) - math.log(2)


@dataclass(frozen=True)
class PoissonNLLLoss(ReducedLoss):
    """exp(output) - target * output; where log_input is false, output - target * log(output + eps).

    full  adds Stirling's approximation of log(target!) where the target is over 1
    """

    log_input: bool = True
    full: bool = False
    eps: float = 1e-8

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "eps", checks.not_negative(f"{self._own}: eps", self.eps))

    def compute(self, ctx: Any, output: Value, target: Value) -> Value:
        x, t = both(output, target)
        loss = ctx.exp(x) - t * x if self.log_input else x - t * ctx.log(x + self.eps)
        if not self.full:
            return loss
        many = ctx.maximum(t, 1.0)
        return loss + ctx.select(t > 1, t * ctx.log(many) - t + 0.5 * ctx.log(many * (2 * math.pi)), 0.0)


@dataclass(frozen=True)
class GaussianNLLLoss(ReducedLoss):
    """(log(var) + (mean - target)^2 / var) / 2 of a model that returns two results: the mean, and the variance of its shape or broadcast to it.

    full  adds log(2 pi) / 2
    eps   the least that var counts as; where it is less it has no gradient
    """

    full: bool = False
    eps: float = 1e-6
    result: str = field(default=EVERYTHING, kw_only=True)
    reads_all: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "eps", checks.positive(f"{self._own}: eps", self.eps))

    def targets(self, output: Any) -> Mapping[str, TensorSpec]:
        return {self.target: replace(self._pair(output, ("the mean", "the variance"))[0])}

    def compute(self, ctx: Any, output: Any, target: Value) -> Value:
        mean, var = map(wide, self._pair(output, ("the mean", "the variance")))
        var = ctx.maximum(var, self.eps)
        loss = 0.5 * (ctx.log(var) + ctx.squared_error(mean, wide(target)) / var)
        return loss + 0.5 * math.log(2 * math.pi) if self.full else loss


@dataclass(frozen=True)
class KLDivLoss(ReducedLoss):
    """target * (log(target) - output), of an output that is the log of probabilities; 0 where the target is 0.

    log_target  whether the target is the log of probabilities, too
    reduction   "batchmean" too: the sum, divided by the size of the first axis. Only that is the divergence; "mean" is over all elements
    """

    log_target: bool = False
    reductions: ClassVar[tuple[str, ...]] = (*REDUCTIONS, "batchmean")

    def compute(self, ctx: Any, output: Value, target: Value) -> Value:
        x, t = both(output, target)
        if self.log_target:
            return ctx.exp(t) * (t - x)
        return ctx.xlogy(t, t) - t * x

    def reduced(self, losses: Value) -> Value:
        """Losses as `reduction` has them."""
        if self.reduction != "batchmean":
            return super().reduced(losses)
        return losses.sum() * (1 / max(losses.shape[0] if losses.ndim else 1, 1))


# --- two classes ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class BCELoss(ReducedLoss):
    """-(target * log(output) + (1 - target) * log(1 - output)), of probabilities; logs count as -100 at least.

    weight  an array that broadcasts to the loss, and multiplies it
    """

    weight: WeightTable | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "weight", table(f"{self._own}: weight", self.weight))

    def compute(self, ctx: Any, output: Value, target: Value) -> Value:
        return _times(ctx, ctx.binary_cross_entropy(*both(output, target)), self.weight)


@dataclass(frozen=True)
class BCEWithLogitsLoss(ReducedLoss):
    """BCELoss of sigmoid(output), computed from the logit itself: exact where the sigmoid is rounded to 0 or 1.

    weight      an array that broadcasts to the loss, and multiplies it
    pos_weight  an array that broadcasts to the loss: what the term of targets that are 1 is multiplied by
    """

    weight: WeightTable | None = None
    pos_weight: WeightTable | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("weight", "pos_weight"):
            object.__setattr__(self, name, table(f"{self._own}: {name}", getattr(self, name)))

    def compute(self, ctx: Any, output: Value, target: Value) -> Value:
        x, t = both(output, target)
        if self.pos_weight is None:
            return _times(ctx, ctx.softplus(x) - x * t, self.weight)
        more = (read_table(ctx, self.pos_weight, x.dtype) - 1.0) * t + 1.0
        return _times(ctx, (1 - t) * x + more * ctx.softplus(-x), self.weight)


def _times(ctx: Any, losses: Value, weight: WeightTable | None) -> Value:
    return losses if weight is None else losses * read_table(ctx, weight, losses.dtype)


@dataclass(frozen=True)
class SoftMarginLoss(ReducedLoss):
    """log(1 + exp(-target * output)); targets are 1 and -1, of the output's type and shape."""

    def compute(self, ctx: Any, output: Value, target: Value) -> Value:
        x, t = both(output, target)
        return ctx.softplus(-(x * t))


@dataclass(frozen=True)
class HingeLoss(ReducedLoss):
    """max(margin - target * output, 0); targets are 1 and -1, of the output's type and shape."""

    margin: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "margin", checks.anything(f"{self._own}: margin", self.margin))

    def compute(self, ctx: Any, output: Value, target: Value) -> Value:
        x, t = both(output, target)
        return ctx.relu(self.margin - x * t)


@dataclass(frozen=True)
class HingeEmbeddingLoss(ReducedLoss):
    """The output, a distance, where the target is 1; max(margin - output, 0) where it is -1."""

    margin: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "margin", checks.anything(f"{self._own}: margin", self.margin))

    def compute(self, ctx: Any, output: Value, target: Value) -> Value:
        x, t = both(output, target)
        near, far = ctx.select(t == -1, 0.0, x), ctx.select(t == 1, 0.0, ctx.relu(self.margin - x))
        return near + far
