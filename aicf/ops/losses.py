"""Losses, one number per row or element: what is averaged over, and how, is the caller's composition."""

from __future__ import annotations

import numpy as np

from ..types import DType, TensorSpec
from .arithmetic import unbroadcast
from .schema import F32, Float, Index, elementwise, op, require


def _check_rows(logits: TensorSpec, labels: TensorSpec) -> None:
    require(logits.rank == 2, "C1", f"logits have rank {logits.rank}, expected 2")
    n = logits.shape[0]
    require(labels.shape == (n,), "C2", f"labels have shape {labels.shape}, expected ({n},), one per row")


@op("softmax_cross_entropy", results=("loss",))
def softmax_cross_entropy(logits: Float, labels: Index):
    """loss[i] = logsumexp(logits[i]) - logits[i, labels[i]].

    Shapes: logits (N, C), labels (N,), loss (N,). The loss is f32 whatever the logits are. A label outside
    [0, C) gives a NaN loss and a NaN gradient row; it is never wrapped. So does a row whose greatest logit is
    infinite.

    C1  logits have rank 2                               (StableHLO has no cross entropy; aicf's own rules)
    C2  labels have shape (N,)
    """
    _check_rows(logits, labels)
    return TensorSpec(labels.shape, DType.f32, logits.device)


def _picked(logits, labels):
    """One-hot rows, and which rows have a label that is a class."""
    classes = logits.shape[1]
    return labels[:, None] == np.arange(classes), (labels >= 0) & (labels < classes)


@softmax_cross_entropy.reference
def _(logits, labels):
    hot, valid = _picked(logits, labels)
    top = np.max(logits, axis=1, initial=-np.inf)
    shifted = logits - top[:, None]
    loss = np.log(np.exp(shifted).sum(1)) - np.where(hot, shifted, 0).sum(1)
    return np.where(valid, loss, np.nan)


@softmax_cross_entropy.nan_reason
def _(logits, labels):
    classes = logits.shape[1]
    bad = np.flatnonzero((labels < 0) | (labels >= classes))
    if bad.size:
        return f"label {labels[bad[0]]} at row {bad[0]}, expected one of [0, {classes}); {bad.size} rows are like that"
    rows = np.flatnonzero(np.isinf(logits).any(1))
    return f"row {rows[0]} of the logits has an Inf; {rows.size} rows are like that" if rows.size else None


@softmax_cross_entropy.gradient
def _(emit, dloss, logits, labels):
    return emit.softmax_cross_entropy_grad(logits, labels, dloss), None


@op("softmax_cross_entropy_grad", results=("dlogits",))
def softmax_cross_entropy_grad(logits: Float, labels: Index, dloss: F32):
    """dlogits[i, j] = (softmax(logits[i])[j] - (labels[i] == j)) * dloss[i].

    Shapes: logits and dlogits (N, C), labels and dloss (N,). A label outside [0, C) gives a row of NaN.

    C1  logits have rank 2
    C2  labels have shape (N,)
    C3  dloss has shape (N,)
    """
    _check_rows(logits, labels)
    require(dloss.shape == labels.shape, "C3", f"dloss has shape {dloss.shape}, expected {labels.shape}")
    return logits


@softmax_cross_entropy_grad.reference
def _(logits, labels, dloss):
    hot, valid = _picked(logits, labels)
    e = np.exp(logits - np.max(logits, axis=1, initial=-np.inf)[:, None])
    grad = (e / e.sum(1, keepdims=True) - hot) * dloss[:, None]
    return np.where(valid[:, None], grad, np.nan)


def _labels(rng, shape, shapes):
    return rng.integers(0, max(shapes[0][1], 1), shape)


softmax_cross_entropy.draws(labels=_labels)
softmax_cross_entropy_grad.draws(labels=_labels)
for _n, _c in [(4, 7), (1, 1), (5, 1), (0, 3), (3, 1025)]:
    softmax_cross_entropy.samples((_n, _c), (_n,))
    softmax_cross_entropy_grad.samples((_n, _c), (_n,), (_n,))


@elementwise("squared_error")
def squared_error(p, t):
    """(p - t)^2."""
    return (p - t) * (p - t)


@squared_error.reference
def _(p, t):
    return np.square(p - t)


@squared_error.gradient
def _(emit, dy, p, t):
    dp = emit.mul(emit.scale(dy, factor=2.0), emit.sub(p, t))
    return unbroadcast(emit, dp, p), unbroadcast(emit, emit.neg(dp), t)


squared_error.samples((4, 7), (4, 7))
squared_error.samples((4, 7), (7,))
squared_error.samples((0,), (0,))
squared_error.samples((1025,), ())
