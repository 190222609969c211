"""Optimizers: one in-place step per parameter. Every meta-parameter is 0-D device state, changed by `program.set`.

State is keyed by the parameter's name: `0.weight.momentum`. So all programs and paths of a model share it. It is f32, as are
norms and sums of gradients, whatever the parameter's type.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from ..errors import VerifyError
from ..ir import Value
from ..types import f32, i32
from . import checks
from .groups import DECAY, SCALE, ParamGroup, divided, named
from .schedules import Schedule

Rate = float | Schedule
_DECAY = checks.Range(low=0, high=1, open_high=True)
CHECKS = {  # of each meta-parameter: in constructors, in `program.set`, and where a state dict is loaded
    "lr": checks.not_negative,
    "adam_lr": checks.not_negative,
    "clip_norm": checks.positive,
    "momentum": checks.Range(low=0, high=1),
    "weight_decay": checks.not_negative,
    "beta1": _DECAY,
    "beta2": _DECAY,
    "eps": checks.not_negative,
    "alpha": _DECAY,
    "lr_decay": checks.not_negative,
}


class Optimizer:
    """Counts steps, clips gradients by their global norm if asked, and steps each parameter.

    lr         a number, or a Schedule that computes the rate in the graph
    clip_norm  scale all gradients so that their joint L2 norm is at most this (torch.nn.utils.clip_grad_norm_)
    groups     ParamGroups, whose parameters have another learning rate or weight decay
    """

    family = ""  # names the step counter: optimizers of one family share it

    groups: Sequence[tuple[str, ParamGroup]] = ()

    def __init__(self, lr: Rate, clip_norm: float | None = None, groups: Iterable[ParamGroup] = ()) -> None:
        self.lr = lr if isinstance(lr, Schedule) else checked("lr", lr)
        self.clip_norm = None if clip_norm is None else checked("clip_norm", clip_norm)
        self.groups = named(groups)

    def emit(self, ctx: Any, params: list[Value], grads: list[Value]) -> None:
        """Emit a step of all parameters: clip gradients, compute the rate, count the step."""
        with ctx.scope("optimizer"):
            # steps done; not shared with another kind of optimizer
            step = ctx.state(f"{self.family}.step", (), 0, i32, checks.whole)
            base = _meta(ctx, "lr", self.lr.base if isinstance(self.lr, Schedule) else self.lr)
            lr = self.lr.emit(ctx, step, base) if isinstance(self.lr, Schedule) else base
            rates = self.rates(ctx, step, lr, base)
            now = ctx.increment(step)
            ctx.update(step, now)
            meta = {**self.meta(ctx, now), **rates}
            grads = self._clip(ctx, grads)
            how: dict[str | None, tuple[Value, dict[str, Value]]] = {None: (lr, meta)}
            how |= {name: _of_group(ctx, name, group, lr, meta, rates) for name, group in self.groups}
        each = zip(params, grads, divided(self.groups, params))
        self.steps(ctx, [(param, grad, *how[group]) for param, grad, group in each])

    def rate(self, step: int, base: float) -> float:
        """The learning rate behind `step` steps, on the host."""
        return self.lr.rate(step, base) if isinstance(self.lr, Schedule) else base

    def _clip(self, ctx: Any, grads: list[Value]) -> list[Value]:
        if self.clip_norm is None:
            return [_beside_the_step(ctx, grad) for grad in grads]
        scale = ctx.clip_scale(_joint_squares(ctx, grads), _meta(ctx, "clip_norm", self.clip_norm))
        return [_beside_the_step(ctx, grad, scale) for grad in grads]

    def rates(self, ctx: Any, step: Value, lr: Value, base: Value) -> dict[str, Value]:
        """Learning rates beside lr, which is made of base, behind `step` steps; a group's lr_scale multiplies them, too."""
        return {}

    def meta(self, ctx: Any, step: Value) -> dict[str, Value]:
        """Meta-parameters and what depends on them and the step alone, emitted once for all parameters."""
        raise checks.lacks(self, "meta", "ctx, step", "a dict of Values")

    def steps(self, ctx: Any, each: list[tuple[Value, Value, Value, dict[str, Value]]]) -> None:
        """The steps of all parameters, each with its gradient, learning rate and meta-parameters.

        For an optimizer whose step is several ops: what is alike of all parameters, emitted in a row, is one launch.
        """
        for one in each:
            self.step(ctx, *one)

    def step(self, ctx: Any, param: Value, grad: Value, lr: Value, meta: dict[str, Value]) -> None:
        """One parameter's step: emit it, and `ctx.update` the parameter and its states."""
        raise checks.lacks(
            self, "step", "ctx, param, grad, lr, meta", "nothing, after ctx.update(param, new)"
        )


class SGD(Optimizer):
    """v = momentum v + g + weight_decay p; p = p - lr v, or with Nesterov p - lr (g + momentum v). As torch.optim.SGD."""

    family = "sgd"

    def __init__(
        self,
        lr: Rate,
        momentum: float = 0.0,
        weight_decay: float = 0.0,
        nesterov: bool = False,
        clip_norm: float | None = None,
        groups: Iterable[ParamGroup] = (),
    ) -> None:
        super().__init__(lr, clip_norm, groups)
        self.momentum, self.weight_decay = (
            checked("momentum", momentum),
            checked("weight_decay", weight_decay),
        )
        self.nesterov = checks.yes_or_no("nesterov", nesterov)

    def meta(self, ctx: Any, step: Value) -> dict[str, Value]:
        return declared(ctx, momentum=self.momentum, weight_decay=self.weight_decay)

    def step(self, ctx: Any, param: Value, grad: Value, lr: Value, meta: dict[str, Value]) -> None:
        velocity = ctx.moment(param, "momentum")
        new, moved = ctx.sgd_step(
            param, grad, velocity, lr, meta["momentum"], meta["weight_decay"], nesterov=self.nesterov
        )
        ctx.update(param, new)
        ctx.update(velocity, moved)


class Adam(Optimizer):
    """Adam with bias correction (Kingma and Ba 2015), weight decay added to the gradient. As torch.optim.Adam.

    amsgrad divides by the root of the largest average of squares so far (Reddi et al. 2018).
    """

    family = "adam"
    decoupled = False

    def __init__(
        self,
        lr: Rate = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        amsgrad: bool = False,
        clip_norm: float | None = None,
        groups: Iterable[ParamGroup] = (),
    ) -> None:
        super().__init__(lr, clip_norm, groups)
        self.amsgrad = checks.yes_or_no("amsgrad", amsgrad)
        self.betas = betas_of(betas, "betas=(0.9, 0.999)")
        self.eps, self.weight_decay = checked("eps", eps), checked("weight_decay", weight_decay)

    def meta(self, ctx: Any, step: Value) -> dict[str, Value]:
        beta1, beta2 = self.betas
        meta = declared(ctx, beta1=beta1, beta2=beta2, eps=self.eps, weight_decay=self.weight_decay)
        meta["c1"], meta["c2"] = ctx.adam_correction(step, meta["beta1"], meta["beta2"])
        return meta

    def step(self, ctx: Any, param: Value, grad: Value, lr: Value, meta: dict[str, Value]) -> None:
        names = ("exp_avg", "exp_avg_sq", *["max_exp_avg_sq"] * self.amsgrad)
        kept = [ctx.moment(param, name) for name in names]
        take = ctx.amsgrad_step if self.amsgrad else ctx.adam_step
        made = take(
            param,
            grad,
            *kept,
            lr,
            meta["beta1"],
            meta["beta2"],
            meta["eps"],
            meta["weight_decay"],
            meta["c1"],
            meta["c2"],
            decoupled=self.decoupled,
        )
        for old, new in zip((param, *kept), made):
            ctx.update(old, new)


class AdamW(Adam):
    """Adam with decoupled weight decay (Loshchilov and Hutter 2019). As torch.optim.AdamW."""

    decoupled = True

    def __init__(
        self,
        lr: Rate = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 1e-2,
        amsgrad: bool = False,
        clip_norm: float | None = None,
        groups: Iterable[ParamGroup] = (),
    ) -> None:
        super().__init__(lr, betas, eps, weight_decay, amsgrad, clip_norm, groups)


def _of_group(
    ctx: Any, name: str, group: ParamGroup, lr: Value, meta: dict[str, Value], rates: Iterable[str]
) -> tuple[Value, dict[str, Value]]:
    """The learning rate and the meta-parameters of a group."""
    if group.lr_scale is not None:
        scale = ctx.meta(f"{name}_{SCALE}", group.lr_scale, checks.not_negative)
        lr, meta = lr * scale, {**meta, **{rate: meta[rate] * scale for rate in rates}}
    if group.weight_decay is not None:
        if DECAY not in meta:
            raise VerifyError(f"the optimizer has no weight decay, and the group {name} one", got=repr(group))
        meta = {**meta, DECAY: ctx.meta(f"{name}_{DECAY}", group.weight_decay, checks.not_negative)}
    return lr, meta


def _beside_the_step(ctx: Any, grad: Value, scale: Value | None = None) -> Value:
    """A gradient times a scale. One that is multiplied by a factor already is emitted anew, with both in one, so that the kernel of
    the steps does it, and those of the norm need not store it."""
    op = grad.producer
    if op is not None and op.kind == "scale_gradient":
        grad, factor = (ctx.builder.graph.values[vid] for vid in op.inputs)
        scale = (
            factor if scale is None else ctx.once(("factor", factor.vid, scale.vid), lambda: factor * scale)
        )
    return grad if scale is None else ctx.scale_gradient(grad, scale)


def _joint_squares(ctx: Any, grads: list[Value]) -> Value:
    """The squared norm of all gradients together, in one op; of those that are all multiplied by one factor, times its square."""
    values = ctx.builder.graph.values
    scaled = [
        grad.producer.inputs for grad in grads if grad.producer and grad.producer.kind == "scale_gradient"
    ]
    if len(scaled) < len(grads) or len({factor for _, factor in scaled}) != 1:
        made: Value = ctx.sum_of_squares(*grads)
        return made
    factor = values[scaled[0][1]]
    made = ctx.sum_of_squares(*(values[vid] for vid, _ in scaled)) * (factor * factor)
    return made


def sum_of_squares(ctx: Any, value: Value) -> Value:
    """0-D, in f32: 300 squared is too large for f16."""
    wide = value if value.dtype is f32 else ctx.convert(value, dtype=f32)
    return (wide**2).sum()


def betas_of(betas: Any, hint: str) -> tuple[float, float]:
    if not isinstance(betas, (tuple, list)) or len(betas) != 2:
        raise VerifyError(f"betas={betas!r}", expected="two numbers", hint=hint)
    return checked("beta1", betas[0]), checked("beta2", betas[1])


def checked(name: str, value: Any) -> float:
    return CHECKS[name](name, value)


def declared(ctx: Any, **values: float) -> dict[str, Value]:
    """Meta-parameters, by their names."""
    return {name: _meta(ctx, name, value) for name, value in values.items()}


def _meta(ctx: Any, name: str, value: float) -> Value:
    return ctx.meta(name, value, CHECKS[name])
