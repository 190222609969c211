"""Losses, one number per row or element: what is averaged over, and how, is the caller's composition."""

from __future__ import annotations

import math

import numpy as np

from ..device.faults import RECORD
from ..types import DType, TensorSpec
from .arithmetic import unbroadcast
from .row_steps import ROWS, wide
from .schema import F32, I64, Access, Float, Index, elementwise, op, require


def _check_rows(logits: TensorSpec, labels: TensorSpec) -> None:
    require(logits.rank >= 1, "C1", f"logits have rank {logits.rank}, expected 1 or more")
    rows = logits.shape[:-1]
    require(labels.shape == rows, "C2", f"labels have shape {labels.shape}, expected {rows}, one per row")


@op("cross_entropy", results=("loss", "peak", "rsum"), core=ROWS, flops=24, public=1)
def cross_entropy(logits: Float, labels: Index, *, ignore_index: int = -100, label_smoothing: float = 0.0):
    """-sum(target * log_softmax(logits)) of each row; 0 where the label is ignore_index.

    The target is 1 - label_smoothing for the label, and label_smoothing / C more for each of the C classes.

    Shapes: logits (..., C), labels and loss (...,). The loss is f32 whatever the logits are. Its mean, if one is asked for, is
    reduce_sum(loss) / count, with the count of check_labels: nn.SoftmaxCrossEntropy. peak and rsum, the greatest logit and
    1 / sum(exp(logits - peak)), have the loss's type; the gradient reads them.

    A label outside [0, C) gives a NaN loss and a NaN gradient row; it is never wrapped. So does a row whose greatest logit is
    infinite. In a graph such a label makes the run invalid: see check_labels. A row that is ignored may hold anything.

    C1  logits have rank 1 or more                       (StableHLO has no cross entropy; aicf's own rules)
    C2  labels have the shape of logits without C
    C3  label_smoothing is in [0, 1]
    """
    _check_rows(logits, labels)
    require(0 <= label_smoothing <= 1, "C3", f"label_smoothing is {label_smoothing}, expected 0 to 1")
    number = TensorSpec(labels.shape, DType.f32, logits.device)
    return number, number, number


@cross_entropy.guards
def _(emit, logits, labels, ignore_index, label_smoothing):
    emit.check_labels(labels, classes=logits.shape[-1], ignore_index=ignore_index)


@cross_entropy.expands
def _(emit, logits, labels, ignore_index, label_smoothing):
    shape, last, rows = logits.shape, logits.rank - 1, tuple(range(logits.rank - 1))

    def repeated(row):
        return emit.broadcast_in_dim(row, shape=shape, dims=rows)

    def total(x):
        return emit.reduce_sum(x, axes=(last,), keepdims=False)

    label = emit.label_class(labels, classes=shape[last], ignore_index=ignore_index)
    x = wide(emit, logits)
    peak = emit.reduce_max(x, axes=(last,), keepdims=False)
    shifted = emit.sub(x, repeated(peak))
    sum = emit.select(emit.equal(label, NO_CLASS), math.nan, total(emit.exp(shifted)))
    hot = emit.equal(repeated(label), emit.iota(shape=shape, axis=last, dtype=label.dtype))
    expected = total(emit.select(hot, shifted, 0.0))
    if label_smoothing:
        even = emit.reduce_mean(shifted, axes=(last,), keepdims=False)
        expected = emit.add(
            emit.scale(expected, factor=1 - label_smoothing), emit.scale(even, factor=label_smoothing)
        )
    loss = emit.select(emit.equal(label, IGNORED), 0.0, emit.sub(emit.log(sum), expected))
    return loss, peak, emit.div(1.0, sum)


NO_CLASS, IGNORED = -1, -2


@op("label_class")
def label_class(labels: Index, *, classes: int, ignore_index: int):
    """The class, as i32: -1 for a label outside [0, classes), -2 for ignore_index. What cross_entropy compares indices with.

    C1  classes is in [0, 2^31)
    """
    require(0 <= classes < 2**31, "C1", f"classes is {classes}, expected 0 or more, under 2^31")
    return TensorSpec(labels.shape, DType.i32, labels.device)


def _whole_numbers(attrs):
    return {name: np.int64(value) for name, value in attrs.items()}


@label_class.maps(
    lambda labels, **attrs: [Access(0, tuple(range(len(labels))))], _whole_numbers, continuous=True
)  # labels are exact
def _(label, *, classes, ignore_index):
    return (
        np.int64(IGNORED) if label == ignore_index else label if 0 <= label < classes else np.int64(NO_CLASS)
    )


@label_class.reference
def _(labels, classes, ignore_index):
    valid = (labels >= 0) & (labels < classes)
    return np.where(labels == ignore_index, IGNORED, np.where(valid, labels, NO_CLASS))


def targets(logits, labels, label_smoothing):
    """What each class is expected to get, and which rows have a label that is a class."""
    classes = logits.shape[-1]
    hot = labels[..., None] == np.arange(classes)
    target = hot * (1 - label_smoothing) + label_smoothing / max(classes, 1)
    return target, (labels >= 0) & (labels < classes)


@cross_entropy.reference
def _(logits, labels, ignore_index, label_smoothing):
    target, valid = targets(logits, labels, label_smoothing)
    peak = np.max(logits, axis=-1, initial=-np.inf)
    shifted = logits - peak[..., None]
    sums = np.where(valid | (labels == ignore_index), np.exp(shifted).sum(-1), np.nan)
    loss = np.log(sums) - np.where(target > 0, target * shifted, 0).sum(-1)
    return np.where(labels == ignore_index, 0, loss), peak, 1 / sums


@cross_entropy.nan_reason
def _(logits, labels, ignore_index, label_smoothing):
    classes = logits.shape[-1]
    logits, labels = logits.reshape(-1, classes), labels.reshape(-1)
    bad = np.flatnonzero((labels != ignore_index) & ((labels < 0) | (labels >= classes)))
    if bad.size:
        return f"label {labels[bad[0]]} at row {bad[0]}, expected one of [0, {classes}); {bad.size} rows are like that"
    rows = np.flatnonzero(np.isinf(logits).any(1))
    return f"row {rows[0]} of the logits has an Inf; {rows.size} rows are like that" if rows.size else None


@cross_entropy.gradient
def _(emit, dloss, logits, labels, peak, rsum, ignore_index, label_smoothing):
    share = label_smoothing / max(logits.shape[-1], 1)
    asked = {"ignore_index": ignore_index, "label": 1 - label_smoothing + share, "other": share}
    return emit.cross_entropy_grad(logits, labels, dloss, peak, rsum, **asked), None


@op("cross_entropy_grad", results=("dlogits",), flops=16)
def cross_entropy_grad(
    logits: Float, labels: Index, dloss: F32, peak: F32, rsum: F32,
    *, ignore_index: int = -100, label: float = 1.0, other: float = 0.0,
):  # fmt: skip
    """(softmax(logits) - target) * dloss; 0 where the label is ignore_index.

    The target is `label` for the row's label and `other` for the other classes. A map: what cross_entropy found of a row, its
    greatest logit and 1 / sum(exp(logits - peak)), is given.

    Shapes: logits and dlogits (..., C), labels, dloss, peak and rsum (...,).

    C1  logits have rank 1 or more
    C2  labels have the shape of logits without C
    C3  dloss, peak and rsum have the shape of labels
    """
    _check_rows(logits, labels)
    for name, v in (("dloss", dloss), ("peak", peak), ("rsum", rsum)):
        require(v.shape == labels.shape, "C3", f"{name} has shape {v.shape}, expected {labels.shape}")
    return logits


def _points(logits, labels, dloss, peak, rsum, **attrs):
    last = len(logits) - 1
    row = tuple(range(last))
    rows = [Access(operand, row) for operand in (1, 2, 3, 4)]
    return [Access(0, (*row, last)), *rows, Access(None, (-1,) * last + (last,))]


def _as_typed(attrs):
    return {
        "ignored": np.int64(attrs["ignore_index"]),
        **{n: np.float32(attrs[n]) for n in ("label", "other")},
    }


@cross_entropy_grad.maps(_points, _as_typed, continuous=True)  # labels are exact
def _(x, of, dloss, peak, rsum, column, *, ignored, label, other):
    target = label if of == column else other
    return 0.0 if of == ignored else (math.exp(x - peak) * rsum - target) * dloss


@cross_entropy_grad.reference
def _(logits, labels, dloss, peak, rsum, ignore_index, label, other):
    hot = labels[..., None] == np.arange(logits.shape[-1])
    p = np.exp(logits - peak[..., None]) * rsum[..., None]
    grad = (p - np.where(hot, label, other)) * dloss[..., None]
    return np.where((labels == ignore_index)[..., None], 0, grad)


@op("check_labels", results=("count", "valid", "told"), alias={2: (1, "must")})
def check_labels(labels: Index, fault: I64, *, classes: int, ignore_index: int = -100):
    """count = how many labels are not ignore_index, as f32; valid = whether each of those is one of [0, classes).

    told is fault, a record (device/faults.py), written in place: with one run more if not valid, and, if it is the first,
    with its first row that is not, in row-major order, the label there, classes and ignore_index.

    C1  fault has shape (5,)
    C2  classes is at least 0
    """
    require(fault.shape == (RECORD,), "C1", f"fault has shape {fault.shape}, expected ({RECORD},)")
    require(classes >= 0, "C2", f"classes is {classes}, expected at least 0")
    device = labels.device
    return TensorSpec((), DType.f32, device), TensorSpec((), DType.bool, device), fault


@check_labels.reference
def _(labels, fault, classes, ignore_index):
    labels = labels.reshape(-1)
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


check_labels.samples((3, 5), (RECORD,), classes=6, ignore_index=-5)
label_class.samples((7,), classes=6, ignore_index=-5)
label_class.samples((2, 3), classes=2, ignore_index=1)
label_class.samples((0, 3), classes=6, ignore_index=-5)


def _labels(rng, shape, shapes):
    return rng.integers(0, max(shapes[0][-1], 1), shape)


cross_entropy.draws(labels=_labels)
cross_entropy_grad.draws(labels=_labels, rsum=(0.1, 1))
for _shape in [(4, 7), (1, 1), (5, 1), (0, 3), (3, 1025), (2, 3, 5), (7,)]:
    _rows = _shape[:-1]
    cross_entropy.samples(_shape, _rows)
    cross_entropy_grad.samples(_shape, *[_rows] * 4)
cross_entropy.samples((4, 7), (4,), ignore_index=2, label_smoothing=0.25)
cross_entropy_grad.samples((4, 7), *[(4,)] * 4, ignore_index=2, label=0.8, other=0.05)


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
