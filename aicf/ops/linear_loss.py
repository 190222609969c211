"""The cross entropy of a linear layer: the layer and its loss as one op, so that no kernel needs all logits at once."""

from __future__ import annotations

import math

import numpy as np

from ..types import DType, Precision, TensorSpec
from .losses import targets
from .schema import ACCUMULATES, F32, Float, Index, op, require


def _check(
    x: TensorSpec, weight: TensorSpec, labels: TensorSpec, label_smoothing: float, z_loss: float
) -> None:
    """C1 to C6."""
    require(x.rank >= 1, "C1", f"x has rank {x.rank}, expected 1 or more")
    require(weight.rank == 2, "C2", f"weight has rank {weight.rank}, expected 2: (classes, K)")
    k = x.shape[-1]
    require(weight.shape[1] == k, "C3", f"rows of weight have length {weight.shape[1]}, those of x {k}")
    rows = x.shape[:-1]
    require(labels.shape == rows, "C4", f"labels have shape {labels.shape}, expected {rows}, one per row")
    require(0 <= label_smoothing <= 1, "C5", f"label_smoothing is {label_smoothing}, expected 0 to 1")
    require(0 <= z_loss < math.inf, "C6", f"z_loss is {z_loss}, expected a finite number, 0 or more")


@op("linear_cross_entropy", results=("loss", "lse"), flops=24, traits=(ACCUMULATES,), public=1)
def linear_cross_entropy(
    x: Float,
    weight: Float,
    labels: Index,
    *,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
    z_loss: float = 0.0,
    precision: Precision = Precision.exact,
):
    """cross_entropy of the logits x @ weight.T, plus z_loss * lse^2, of each row; 0 where the label is ignore_index.

    lse is log(sum(exp(logits))), which the gradient reads, and 0 where the label is ignore_index. ignore_index and label_smoothing
    are those of cross_entropy. z_loss, 1e-4 where it is used, keeps lse near 0 (PaLM).

    Shapes: x (..., K), weight (C, K) for C classes, labels, loss and lse (...,). loss and lse are f32, and so are logits, of which a
    kernel has a chunk at a time. precision is that of gemm.

    A label outside [0, C) gives NaN: loss, lse, the row's gradient, and all of the weight's. It is never wrapped. So does a row whose
    greatest logit is infinite. In a graph such a label makes the run invalid: see check_labels. A row that is ignored must be
    finite.

    C1  x has rank 1 or more                             (StableHLO has no cross entropy; aicf's own rules)
    C2  weight has rank 2
    C3  x and weight have one K
    C4  labels have the shape of x without K
    C5  label_smoothing is in [0, 1]
    C6  z_loss is finite and not negative
    """
    _check(x, weight, labels, label_smoothing, z_loss)
    number = TensorSpec(labels.shape, DType.f32, x.device)
    return number, number


@linear_cross_entropy.guards
def _(emit, x, weight, labels, ignore_index, **attrs):
    emit.check_labels(labels, classes=weight.shape[0], ignore_index=ignore_index)


@linear_cross_entropy.reference
def _(x, weight, labels, ignore_index, label_smoothing, z_loss, precision):
    logits = x @ weight.T
    target, valid = targets(logits, labels, label_smoothing)
    peak = np.max(logits, axis=-1, initial=-np.inf)
    shifted = logits - peak[..., None]
    log_sum = np.log(np.where(valid, np.exp(shifted).sum(-1), np.nan))
    lse = log_sum + peak
    loss = log_sum - np.where(target > 0, target * shifted, 0).sum(-1) + z_loss * np.square(lse)
    ignored = labels == ignore_index
    return np.where(ignored, 0, loss), np.where(ignored, 0, lse)


@linear_cross_entropy.nan_reason
def _(x, weight, labels, ignore_index, label_smoothing, z_loss, precision):
    classes, labels = weight.shape[0], labels.reshape(-1)
    bad = np.flatnonzero((labels != ignore_index) & ((labels < 0) | (labels >= classes)))
    if bad.size:
        return f"label {labels[bad[0]]} at row {bad[0]}, expected one of [0, {classes}); {bad.size} rows are like that"
    return None


@linear_cross_entropy.gradient
def _(emit, dloss, x, weight, labels, lse, ignore_index, label_smoothing, z_loss, precision):
    asked = {"label_smoothing": label_smoothing, "z_loss": z_loss, "precision": precision}
    dx, dweight = emit.linear_cross_entropy_grad(
        dloss, x, weight, labels, lse, ignore_index=ignore_index, **asked
    )
    return dx, dweight, None


@op("linear_cross_entropy_grad", results=("dx", "dweight"), flops=24, traits=(ACCUMULATES,))
def linear_cross_entropy_grad(
    dloss: F32,
    x: Float,
    weight: Float,
    labels: Index,
    lse: F32,
    *,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
    z_loss: float = 0.0,
    precision: Precision = Precision.exact,
):
    """linear_cross_entropy's gradients of x and weight, from its lse: logits are computed again, none is kept.

    With p = exp(logits - lse), g = ((1 + 2 * z_loss * lse) * p - target) * dloss, 0 where the label is ignore_index: dx = g @ weight,
    dweight = g.T @ x. g is rounded to the type of x before it is multiplied, where kernels multiply that type. Each element is
    added up in one order: equal calls have equal bits.

    Shapes: x and dx (..., K), weight and dweight (C, K), dloss, labels and lse (...,).

    C1  x has rank 1 or more
    C2  weight has rank 2
    C3  x and weight have one K
    C4  labels have the shape of x without K
    C5  label_smoothing is in [0, 1]
    C6  z_loss is finite and not negative
    C7  dloss and lse have the shape of labels
    """
    _check(x, weight, labels, label_smoothing, z_loss)
    for name, v in (("dloss", dloss), ("lse", lse)):
        require(v.shape == labels.shape, "C7", f"{name} has shape {v.shape}, expected {labels.shape}")
    return x, weight


@linear_cross_entropy_grad.reference
def _(dloss, x, weight, labels, lse, ignore_index, label_smoothing, z_loss, precision):
    logits = x @ weight.T
    target, _ = targets(logits, labels, label_smoothing)
    p = np.exp(logits - lse[..., None])
    g = ((1 + 2 * z_loss * lse)[..., None] * p - target) * dloss[..., None]
    g = np.where((labels == ignore_index)[..., None], 0, g)
    g_rows, x_rows = (a.reshape(labels.size, a.shape[-1]) for a in (g, x))
    return g @ weight, g_rows.T @ x_rows


def _work(products: int):
    """Flops of so many products of all logits."""

    def count(x, weight, *rest, **attrs):
        return math.prod(x.shape[:-1]) * weight.shape[0] * (2 * products * weight.shape[1] + 24)

    return count


linear_cross_entropy.counts(_work(1))
linear_cross_entropy_grad.counts(lambda dloss, *rest, **attrs: _work(3)(*rest))


# --- samples ----------------------------------------------------------------------------------------------------------


def _labels_at(weight: int):
    """Labels that are classes, where the weight is the operand of this number."""
    return lambda rng, shape, shapes: rng.integers(0, max(shapes[weight][0], 1), shape)


def _sums(rng, shape, shapes):
    """lse somewhat smaller than that of random logits, so that every class has a part in gradients that shows."""
    return math.log(max(shapes[2][0], 1)) + rng.uniform(-3, -2, shape)


linear_cross_entropy.draws(x=(-0.3, 0.3), labels=_labels_at(1))
linear_cross_entropy_grad.draws(x=(-0.3, 0.3), labels=_labels_at(2), lse=_sums)


def _sample(x, classes, **attrs):
    rows, weight = x[:-1], (classes, x[-1])
    linear_cross_entropy.samples(x, weight, rows, **attrs)
    linear_cross_entropy_grad.samples(rows, x, weight, rows, rows, **attrs)


_sample((4, 5), 7)
_sample((2, 3, 5), 6, label_smoothing=0.25, z_loss=0.1)
_sample((33, 17), 65, ignore_index=2)
_sample((5,), 3, ignore_index=1, z_loss=0.01)
_sample((0, 3), 4)
_sample((4, 0), 3)
_sample((1, 1), 1, label_smoothing=1.0)
