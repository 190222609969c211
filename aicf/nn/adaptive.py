"""Lion, RMSprop, Adagrad and LAMB. Their state has names that no other optimizer uses: one model may be trained by several in turn."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from ..ir import Value
from . import checks
from .groups import ParamGroup
from .optimizers import Optimizer, Rate, betas_of, checked, declared, sum_of_squares


class Lion(Optimizer):
    """p = p (1 - lr weight_decay) - lr sign(beta1 m + (1 - beta1) g), then m = beta2 m + (1 - beta2) g (Chen et al. 2023).

    Formula and defaults are the paper's. A step is lr long in every element: lr a third to a tenth of Adam's, and a weight decay as many
    times larger, train alike.
    """

    family = "lion"

    def __init__(
        self,
        lr: Rate = 1e-4,
        betas: tuple[float, float] = (0.9, 0.99),
        weight_decay: float = 0.0,
        clip_norm: float | None = None,
        groups: Iterable[ParamGroup] = (),
    ) -> None:
        super().__init__(lr, clip_norm, groups)
        self.betas, self.weight_decay = (
            betas_of(betas, "betas=(0.9, 0.99)"),
            checked("weight_decay", weight_decay),
        )

    def meta(self, ctx: Any, step: Value) -> dict[str, Value]:
        beta1, beta2 = self.betas
        return declared(ctx, beta1=beta1, beta2=beta2, weight_decay=self.weight_decay)

    def step(self, ctx: Any, param: Value, grad: Value, lr: Value, meta: dict[str, Value]) -> None:
        m = ctx.moment(param, "lion_avg")
        made = ctx.lion_step(param, grad, m, lr, meta["beta1"], meta["beta2"], meta["weight_decay"])
        for old, new in zip((param, m), made):
            ctx.update(old, new)


class RMSprop(Optimizer):
    """v = alpha v + (1 - alpha) g^2; b = momentum b + g / (sqrt(v) + eps); p = p - lr b. As torch.optim.RMSprop.

    weight_decay p is added to g. centered takes the variance of the gradient, v less the square of its average, in v's place.
    """

    family = "rmsprop"

    def __init__(
        self,
        lr: Rate = 1e-2,
        alpha: float = 0.99,
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        momentum: float = 0.0,
        centered: bool = False,
        clip_norm: float | None = None,
        groups: Iterable[ParamGroup] = (),
    ) -> None:
        super().__init__(lr, clip_norm, groups)
        self.alpha, self.eps = checked("alpha", alpha), checked("eps", eps)
        self.weight_decay, self.momentum = (
            checked("weight_decay", weight_decay),
            checked("momentum", momentum),
        )
        self.centered = checks.yes_or_no("centered", centered)

    def meta(self, ctx: Any, step: Value) -> dict[str, Value]:
        return declared(
            ctx, alpha=self.alpha, eps=self.eps, weight_decay=self.weight_decay, momentum=self.momentum
        )

    def step(self, ctx: Any, param: Value, grad: Value, lr: Value, meta: dict[str, Value]) -> None:
        names = ("square_avg", *["grad_avg"] * self.centered, "momentum_buffer")
        kept = [ctx.moment(param, name) for name in names]
        take = ctx.rmsprop_centered_step if self.centered else ctx.rmsprop_step
        made = take(
            param, grad, *kept, lr, meta["alpha"], meta["eps"], meta["weight_decay"], meta["momentum"]
        )
        for old, new in zip((param, *kept), made):
            ctx.update(old, new)


class Adagrad(Optimizer):
    """s = s + g^2; p = p - lr / (1 + (step - 1) lr_decay) g / (sqrt(s) + eps). As torch.optim.Adagrad.

    weight_decay p is added to g. s starts at initial_accumulator_value.
    """

    family = "adagrad"

    def __init__(
        self,
        lr: Rate = 1e-2,
        lr_decay: float = 0.0,
        weight_decay: float = 0.0,
        initial_accumulator_value: float = 0.0,
        eps: float = 1e-10,
        clip_norm: float | None = None,
        groups: Iterable[ParamGroup] = (),
    ) -> None:
        super().__init__(lr, clip_norm, groups)
        self.lr_decay, self.eps = checked("lr_decay", lr_decay), checked("eps", eps)
        self.weight_decay = checked("weight_decay", weight_decay)
        self.start = checks.not_negative("initial_accumulator_value", initial_accumulator_value)

    def meta(self, ctx: Any, step: Value) -> dict[str, Value]:
        meta = declared(ctx, eps=self.eps, weight_decay=self.weight_decay, lr_decay=self.lr_decay)
        return {**meta, "slowing": ctx.adagrad_slowing(step, meta["lr_decay"])}

    def step(self, ctx: Any, param: Value, grad: Value, lr: Value, meta: dict[str, Value]) -> None:
        total = ctx.moment(param, "sum", self.start)
        made = ctx.adagrad_step(param, grad, total, lr, meta["eps"], meta["weight_decay"], meta["slowing"])
        for old, new in zip((param, total), made):
            ctx.update(old, new)


class LAMB(Optimizer):
    """u = m / c1 / (sqrt(v / c2) + eps) + weight_decay p, with Adam's m, v, c1, c2; p = p - lr |p| / |u| u (You et al. 2020).

    Each parameter moves by lr times its own length, whatever its gradients are: for large batches. The norms are L2; where one is 0, their
    ratio counts as 1. Formula and eps are the paper's.
    """

    family = "lamb"

    def __init__(
        self,
        lr: Rate = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-6,
        weight_decay: float = 1e-2,
        clip_norm: float | None = None,
        groups: Iterable[ParamGroup] = (),
    ) -> None:
        super().__init__(lr, clip_norm, groups)
        self.betas = betas_of(betas, "betas=(0.9, 0.999)")
        self.eps, self.weight_decay = checked("eps", eps), checked("weight_decay", weight_decay)

    def meta(self, ctx: Any, step: Value) -> dict[str, Value]:
        beta1, beta2 = self.betas
        meta = declared(ctx, beta1=beta1, beta2=beta2, eps=self.eps, weight_decay=self.weight_decay)
        meta["c1"], meta["c2"] = ctx.adam_correction(step, meta["beta1"], meta["beta2"])
        return meta

    def steps(self, ctx: Any, each: list[tuple[Value, Value, Value, dict[str, Value]]]) -> None:
        updates = [self._update(ctx, param, grad, meta) for param, grad, _, meta in each]
        trusts = [
            ctx.lamb_trust(sum_of_squares(ctx, param), sum_of_squares(ctx, update))
            for (param, *_), update in zip(each, updates)
        ]
        for (param, _, lr, _), update, trust in zip(each, updates, trusts):
            ctx.update(param, ctx.lamb_step(param, update, trust, lr))

    def _update(self, ctx: Any, param: Value, grad: Value, meta: dict[str, Value]) -> Value:
        m, v = (ctx.moment(param, name) for name in ("lamb_avg", "lamb_avg_sq"))
        numbers = (meta[name] for name in ("beta1", "beta2", "eps", "weight_decay", "c1", "c2"))
        update, m2, v2 = ctx.lamb_update(param, grad, m, v, *numbers)
        ctx.update(m, m2)
        ctx.update(v, v2)
        return update
