"""Losses, one number per row or element: what is averaged over, and how, is the caller's composition."""

from __future__ import annotations

import numpy as np

from ..device.faults import RECORD
from ..types import DType, TensorSpec
from .arithmetic import unbroadcast
from .schema import F32, I64, Float, Index, elementwise, op, require


def _check_rows(logits: TensorSpec, labels: TensorSpec) -> None:
    require(logits.rank == 2, "C1", f"logits have rank {logits.rank}, expected 2")
    n = logits.shape[0]
    require(labels.shape == (n,), "C2", f"labels have shape {labels.shape}, expected ({n},), one per row")


@op("softmax_cross_entropy", results=("loss",))
def softmax_cross_entropy(logits: Float, labels: Index, *, ignore_index: int = -100):
    """loss[i] = logsumexp(logits[i]) - logits[i, labels[i]]; 0 where labels[i] is ignore_index.

    Shapes: logits (N, C), labels (N,), loss (N,). The loss is f32 whatever the logits are. A label outside
    [0, C) gives a NaN loss and a NaN gradient row; it is never wrapped. So does a row whose greatest logit is
    infinite. In a graph such a label makes the run invalid: see check_labels. A row that is ignored may hold anything.

    C1  logits have rank 2                               (StableHLO has no cross entropy; aicf's own rules)
    C2  labels have shape (N,)
    """
    _check_rows(logits, labels)
    return TensorSpec(labels.shape, DType.f32, logits.device)


def _picked(logits, labels):
    """One-hot rows, and which rows have a label that is a class."""
    classes = logits.shape[1]
    return labels[:, None] == np.arange(classes), (labels >= 0) & (labels < classes)


@softmax_cross_entropy.guards
def _(emit, logits, labels, ignore_index):
    emit.check_labels(labels, classes=logits.shape[1], ignore_index=ignore_index)


@softmax_cross_entropy.reference
def _(logits, labels, ignore_index):
    hot, valid = _picked(logits, labels)
    top = np.max(logits, axis=1, initial=-np.inf)
    shifted = logits - top[:, None]
    loss = np.log(np.exp(shifted).sum(1)) - np.where(hot, shifted, 0).sum(1)
    return np.where(labels == ignore_index, 0, np.where(valid, loss, np.nan))


@softmax_cross_entropy.nan_reason
def _(logits, labels, ignore_index):
    classes = logits.shape[1]
    bad = np.flatnonzero((labels != ignore_index) & ((labels < 0) | (labels >= classes)))
    if bad.size:
        return f"label {labels[bad[0]]} at row {bad[0]}, expected one of [0, {classes}); {bad.size} rows are like that"
    rows = np.flatnonzero(np.isinf(logits).any(1))
    return f"row {rows[0]} of the logits has an Inf; {rows.size} rows are like that" if rows.size else None


@softmax_cross_entropy.gradient
def _(emit, dloss, logits, labels, ignore_index):
    return emit.softmax_cross_entropy_grad(logits, labels, dloss, ignore_index=ignore_index), None


@op("softmax_cross_entropy_grad", results=("dlogits",))
def softmax_cross_entropy_grad(logits: Float, labels: Index, dloss: F32, *, ignore_index: int = -100):
    """dlogits[i, j] = (softmax(logits[i])[j] - (labels[i] == j)) * dloss[i]; 0 where labels[i] is ignore_index.

    Shapes: logits and dlogits (N, C), labels and dloss (N,). A label outside [0, C) gives a row of NaN.

    C1  logits have rank 2
    C2  labels have shape (N,)
    C3  dloss has shape (N,)
    """
    _check_rows(logits, labels)
    require(dloss.shape == labels.shape, "C3", f"dloss has shape {dloss.shape}, expected {labels.shape}")
    return logits


@softmax_cross_entropy_grad.reference
def _(logits, labels, dloss, ignore_index):
    hot, valid = _picked(logits, labels)
    e = np.exp(logits - np.max(logits, axis=1, initial=-np.inf)[:, None])
    grad = (e / e.sum(1, keepdims=True) - hot) * dloss[:, None]
    ignored = (labels == ignore_index)[:, None]
    return np.where(ignored, 0, np.where(valid[:, None], grad, np.nan))


@op("check_labels", results=("count", "valid", "told"), alias={2: (1, "must")})
def check_labels(labels: Index, fault: I64, *, classes: int, ignore_index: int = -100):
    """count = how many labels are not ignore_index, as f32; valid = whether each of those is one of [0, classes).

    told is fault, a record (device/faults.py), written in place: with one run more if not valid, and, if it is the first,
    with its first row that is not, the label there, classes and ignore_index.

    C1  labels have rank 1
    C2  fault has shape (5,)
    C3  classes is at least 0
    """
    require(labels.rank == 1, "C1", f"labels have rank {labels.rank}, expected 1")
    require(fault.shape == (RECORD,), "C2", f"fault has shape {fault.shape}, expected ({RECORD},)")
    require(classes >= 0, "C3", f"classes is {classes}, expected at least 0")
    device = labels.device
    return TensorSpec((), DType.f32, device), TensorSpec((), DType.bool, device), fault


@check_labels.reference
def _(labels, fault, classes, ignore_index):
    counted = labels != ignore_index
    bad = np.flatnonzero(counted & ((labels < 0) | (labels >= classes)))
    if not bad.size:
        return counted.sum(), True, fault
    first = [1, bad[0], labels[bad[0]], classes, ignore_index]
    return counted.sum(), False, np.array([fault[0] + 1, *fault[1:]] if fault[0] else first, np.int64)


def _no_fault(rng, shape, shapes):
    return np.zeros(shape)


check_labels.draws(fault=_no_fault)
for _n in (7, 1, 0, 1025):
    check_labels.samples((_n,), (RECORD,), classes=6, ignore_index=-5)


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
