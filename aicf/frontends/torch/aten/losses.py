"""Losses of labels: PyTorch's negative log-likelihood, and aicf's cross entropy, which stands for it and a log_softmax (`..losses`)."""

from __future__ import annotations

from typing import Any

from ....ir import Value
from ....types import f32
from ..losses import MEAN, SUM
from ..rules import Site, rule
from .indexing import checked


def _labels(s: Site, x: Value, target: Value, ignored: int) -> tuple[Value, Value]:
    """(whether a row counts, its label or 0), for each row of x; x of one axis is one row."""
    rows = x.shape[:-1]
    target = s.reshape(checked(target), rows)
    kept = s.ctx.not_equal(target, ignored)
    return kept, s.ctx.select(kept, target, 0)


@rule("nll_loss_forward", heavy=True)
def _nll_loss(
    s: Site, x: Value, target: Value, weight: Value | None, reduction: int, ignored: int
) -> tuple[Value, Value]:
    """(loss, sum of the weights of rows that count)."""
    ctx, axes = s.ctx, tuple(range(x.rank - 1))
    kept, label = _labels(s, x, target, ignored)
    at = s.reshape(label, (*label.shape, 1))
    ctx.check_indices(at, size=x.shape[-1], negative=False, of="nll_loss: target")
    loss = s.wide(ctx.neg(s.reshape(ctx.take_along_axis(x, at, axis=x.rank - 1), label.shape)))
    if weight is None:
        weights = s.cast(kept, loss.dtype)
    else:
        weights = s.wide(ctx.gather(weight, s.reshape(label, (label.spec.numel,)), axis=0))
        weights = ctx.select(kept, s.reshape(weights, label.shape), 0.0)
        loss = ctx.mul(loss, weights)
    loss = ctx.select(kept, loss, 0.0)
    if reduction not in (MEAN, SUM) and x.rank > 1:
        return s.cast(loss, s.outs[0].dtype), ctx.fill(shape=(), value=0.0, dtype=s.outs[1].dtype)
    total = ctx.reduce_sum(weights, axes=axes) if axes else weights
    loss = ctx.reduce_sum(loss, axes=axes) if axes and reduction in (MEAN, SUM) else loss
    loss = ctx.div(loss, total) if reduction == MEAN else loss
    return tuple(s.reshape(s.cast(v, spec.dtype), spec.shape) for v, spec in zip((loss, total), s.outs))  # type: ignore[return-value]


@rule("nll_loss_backward", heavy=True)
def _nll_loss_backward(
    s: Site, dy: Value, x: Value, target: Value, weight: Value | None, reduction: int, ignored: int, total: Value,
) -> Value:  # fmt: skip
    """A map: of each row the label's element has a gradient, the others 0."""
    ctx, rows = s.ctx, x.shape[:-1]
    kept, label = _labels(s, x, target, ignored)
    each = s.wide(dy)
    if reduction == MEAN:
        each = ctx.div(each, s.reshape(s.wide(total), ()))
    if weight is not None:
        of = s.wide(ctx.gather(weight, s.reshape(label, (label.spec.numel,)), axis=0))
        each = ctx.mul(s.reshape(of, rows), each)
    ctx.check_indices(label, size=x.shape[-1], negative=False, of="nll_loss: target")
    each = ctx.select(kept, ctx.neg(s.spread(each, rows)), 0.0)
    one = s.reshape(label, (*rows, 1))
    places = ctx.iota(shape=x.shape, axis=x.rank - 1, dtype=label.dtype)
    return s.cast(
        ctx.select(ctx.equal(places, one), s.reshape(each, (*rows, 1)), ctx.constant(0.0, each.dtype)),
        x.dtype,
    )


@rule("aicf::cross_entropy", heavy=True)
def _cross_entropy(s: Site, logits: Value, labels: Value, ignored: int) -> Any:
    loss = s.ctx.cross_entropy(logits, labels, ignore_index=ignored)
    assert all(spec.dtype is f32 for spec in s.outs)
    return s.results(loss)


@rule("aicf::cross_entropy_grad", heavy=True)
def _cross_entropy_grad(
    s: Site, logits: Value, labels: Value, dloss: Value, peak: Value, rsum: Value, ignored: int
) -> Value:
    return s.ctx.cross_entropy_grad(logits, labels, dloss, peak, rsum, ignore_index=ignored)
