"""A training step behind the loss: gradients, sums of them, the scale of the loss, the optimizer, and copies of what it made."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any, Protocol

from ...ir import Role, Value
from ...types import DType, f32, i32
from .autodiff import gradients
from .builder import GraphEmitter
from .policy import LossScale, Policy, checked_scale

ACCUMULATED = "optimizer.accumulated"  # how many runs are in the sums of gradients
GRAD_SUM = ".grad_sum"  # behind the name of a parameter

SCALE, GOOD, SKIPPED = (f"optimizer.{name}" for name in ("loss_scale", "good_steps", "skipped_steps"))


class OptimizerLike(Protocol):
    """An optimizer: emits one step for all parameters, with `ctx.update` for everything that changes."""

    def emit(self, ctx: Any, params: list[Value], grads: list[Value]) -> None: ...


def scaled_gradients(ctx: GraphEmitter, loss: Value, params: list[Value], follows: bool) -> list[Value]:
    """As many as params, larger by the loss scale if there is one, in the policy's type.

    follows   whether the scale follows the gradients, as it does where an optimizer steps; see `_scale`
    """
    scale, kind = _scale(ctx, follows), DType.of(ctx.policy.gradients)
    if scale is not None and loss.dtype is not f32:
        loss = ctx.convert(loss, dtype=f32)
    grads = gradients(ctx, loss, params, scale, ctx.copies)
    return [ctx.convert(g, dtype=kind) if g.dtype is f32 and kind is not f32 else g for g in grads]


def unscaled(ctx: GraphEmitter, grads: list[Value], follows: bool) -> list[Value]:
    """Gradients without the loss scale."""
    scale = _scale(ctx, follows)
    return grads if scale is None else _times(ctx, grads, 1.0 / scale)


def accumulated(ctx: GraphEmitter, params: list[Value], grads: list[Value], phase: str) -> list[Value]:
    """Between steps the sums grow; at a step the mean of what is in them, and of this run, goes to the optimizer, and they start
    at zero again. How many runs they have stands beside them: programs of one model share both."""
    count = ctx.state(ACCUMULATED, (), 0, i32)
    means = []
    for param, grad in zip(params, grads):
        total = ctx.state(param.name + GRAD_SUM, param.shape, 0.0)
        if phase == "step":
            mean, rest = ctx.mean_gradient(total, grad, count)
            means.append(mean)
        else:
            rest = ctx.add_gradient(total, grad)
        ctx.update(total, rest)
    ctx.update(count, ctx.restart(count) if phase == "step" else ctx.increment(count))
    return means


def optimizer_step(
    ctx: GraphEmitter, optimizer: OptimizerLike, params: list[Value], grads: list[Value], scaled: bool
) -> set[int]:
    """The optimizer's step, then the copies of params. Under a loss scale the step is taken if all gradients are finite; those that
    come `scaled` are unscaled behind that check, so that no kernel but the optimizer's can. Returns the vids of what was updated."""
    graph, outer = ctx.builder.graph, ctx.builder.valid
    if ctx.policy.loss_scale is not None:
        finite, inverse = _checked(ctx, grads)
        grads = _times(ctx, grads, inverse) if scaled else grads
        ctx.guard(finite)
    before = set(graph.updates)
    optimizer.emit(ctx, params, grads)
    keep_if_valid(ctx, updated := set(graph.updates) - before)
    ctx.builder.valid = outer
    for copy, param in ctx.copies:
        if param.vid in graph.updates:
            ctx.update(copy, ctx.refresh_copy(graph.values[graph.updates[param.vid]], copy))
    return updated


def keep_if_valid(ctx: GraphEmitter, updated: Iterable[int]) -> None:
    """What layers and optimizers of others' change without asking whether the run is valid stays as it is if it is not.

    Not what an op of theirs writes in place: that is done when it runs.
    """
    graph = ctx.builder.graph
    for old in sorted(updated) if ctx.builder.valid is not None else ():
        new = graph.updates[old]
        op = graph.values[new].producer
        if graph.values[old].role is Role.fault or (
            op is not None and "must" in str(op.constraints.get("alias"))
        ):
            continue
        graph.updates[old] = ctx.select(ctx.valid, graph.values[new], graph.values[old]).vid


def with_scale(
    state: Mapping[str, Any], names: Collection[str], policy: Policy, strict: bool
) -> dict[str, Any]:
    """A state dict for a program with these names. A scale that follows gradients is none for a program where it does not, nor the
    other way: it is left aside. What is lacking of the program's own starts anew, if all must be there."""
    made, follows = dict(state), GOOD in names
    if (GOOD in state) != follows:
        made = {name: value for name, value in state.items() if name not in (SCALE, GOOD, SKIPPED)}
    if strict and isinstance(how := policy.loss_scale, LossScale):
        starts = {SCALE: _start(how, follows), GOOD: 0, SKIPPED: 0}
        made = {name: start for name, start in starts.items() if name in names} | made
    return made


def _start(how: LossScale, follows: bool) -> float:
    return how.init if follows else 1.0


def _scale(ctx: GraphEmitter, follows: bool) -> Value | None:
    """One that follows is of all training programs of the model. Gradients that are returned have a program's own, 1 until it is set:
    what overflows would be returned, and nothing would lower it."""
    how = ctx.policy.loss_scale
    if not isinstance(how, LossScale):
        return None
    with ctx.scope("optimizer"):
        return ctx.meta("loss_scale", _start(how, follows), checked_scale, shared=follows)


def _checked(ctx: GraphEmitter, grads: list[Value]) -> tuple[Value, Value]:
    """(whether there was no overflow, 1 / scale); the scale follows."""
    how, scale = ctx.policy.loss_scale, _scale(ctx, True)
    assert isinstance(how, LossScale) and scale is not None
    finite: Value = ctx.all_finite(*grads)
    with ctx.scope("optimizer"):
        kept = [scale, ctx.state("good_steps", (), 0, i32), ctx.state("skipped_steps", (), 0, i32)]
    rule = {"growth": how.growth, "backoff": how.backoff, "interval": how.interval}
    *made, inverse = ctx.loss_scale_step(*kept, finite, **rule)
    for old, new in zip(kept, made):
        ctx.update(old, new)
    return finite, inverse


def _times(ctx: GraphEmitter, grads: list[Value], scale: Value) -> list[Value]:
    return [ctx.scale_gradient(grad, scale) for grad in grads]
