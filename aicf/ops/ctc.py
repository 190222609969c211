"""Connectionist temporal classification (Graves and others, ICML 2006): how likely a sequence of labels is to be read from an output.

Paths go through the labels with a blank before, between and behind them. alpha[t, b, s] is the log of the sum over all paths that are at place
s of 2 * length + 1 at time t, of the product of their probabilities; the gradient goes back from the end with the same sums, and joins both.
"""

from __future__ import annotations

import numpy as np

from ..types import DType, TensorSpec
from .constraints import TypeConstraint
from .schema import F32, Index, op, require

_Logs = TypeConstraint("float", frozenset({DType.f32}))


def _check(log_probs: TensorSpec, labels, input_lengths, target_lengths, blank: int) -> None:
    require(log_probs.rank == 3, "C1", f"log_probs have shape {log_probs.shape}, expected (time, N, classes)")
    many, classes = log_probs.shape[1:]
    require(
        labels.rank == 2 and labels.shape[0] == many,
        "C2",
        f"labels have shape {labels.shape}, expected ({many}, length)",
    )
    for name, lengths in (("input_lengths", input_lengths), ("target_lengths", target_lengths)):
        require(lengths.shape == (many,), "C3", f"{name} has shape {lengths.shape}, expected ({many},)")
    require(0 <= blank < classes, "C4", f"blank is {blank}, expected 0 to {classes - 1}")


@op("ctc_loss", results=("loss", "nll", "alpha"), public=1)
def ctc_loss(
    log_probs: _Logs, labels: Index, input_lengths: Index, target_lengths: Index,
    *, blank: int = 0, zero_infinity: bool = False,
):  # fmt: skip
    """-log of the probability of each sequence of labels; infinite where it is too long for the output, or 0 if zero_infinity.

    Shapes: log_probs (time, N, classes), labels (N, length), both lengths and the loss (N,). Of sequence n the first input_lengths[n] times and
    the first target_lengths[n] labels are read. A length that is none, or a label that is no class, gives NaN, and in a graph makes the run invalid.
    nll, which is the loss without zero_infinity, and alpha (time, N, 2 * length + 1) are for the gradient.

    C1  log_probs have rank 3
    C2  labels have rank 2, and the N of log_probs
    C3  input_lengths and target_lengths have shape (N,)
    C4  blank is one of the classes
    """
    _check(log_probs, labels, input_lengths, target_lengths, blank)
    time, many, _ = log_probs.shape
    loss = TensorSpec((many,), DType.f32, log_probs.device)
    return loss, loss, TensorSpec((time, many, 2 * labels.shape[1] + 1), DType.f32, log_probs.device)


@ctc_loss.guards
def _(emit, log_probs, labels, input_lengths, target_lengths, blank, zero_infinity):
    emit.check_indices(input_lengths, size=log_probs.shape[0] + 1, of="ctc_loss: input length")
    emit.check_indices(target_lengths, size=labels.shape[1] + 1, of="ctc_loss: target length")
    if labels.shape[1]:
        place = emit.iota(shape=(1, labels.shape[1]), axis=1, dtype=target_lengths.dtype)
        read = emit.less(place, emit.reshape(target_lengths, shape=(labels.shape[0], 1)))
        emit.check_labels(emit.select(read, labels, -1), classes=log_probs.shape[2], ignore_index=-1)


class _Paths:
    """What the forward and the backward sums share: the class at each place, which steps there are, and which rows make sense."""

    def __init__(self, log_probs, labels, input_lengths, target_lengths, blank):
        time, many, classes = log_probs.shape
        size = labels.shape[1]
        self.times, self.ends = input_lengths.astype(np.int64), 2 * target_lengths.astype(np.int64)
        place, read = np.arange(2 * size + 1), np.arange(size) < target_lengths[:, None]
        wrong = (labels < 0) | (labels >= classes)
        self.bad = (
            (self.times < 0)
            | (self.times > time)
            | (target_lengths < 0)
            | (target_lengths > size)
            | (read & wrong).any(1)
        )
        self.classes = np.full((many, 2 * size + 1), blank)
        self.classes[:, 1::2] = np.where(read & ~wrong, labels, blank)
        self.there = place <= self.ends[:, None]
        self.skips = np.zeros_like(self.there)  # from two places before: over a blank, to another label
        self.skips[:, 2:] = (self.classes[:, 2:] != blank) & (self.classes[:, 2:] != self.classes[:, :-2])
        self.log_probs = log_probs

    def at(self, t):
        return np.where(self.there, np.take_along_axis(self.log_probs[t], self.classes, 1), -np.inf)


def _moved(x, by):
    """By so many places to the right, or to the left; nothing comes in."""
    y = np.full_like(x, -np.inf)
    if by > 0:
        y[:, by:] = x[:, :-by]
    else:
        y[:, :by] = x[:, -by:]
    return y


def _joined(*logs):
    peak = np.maximum.reduce(logs)
    finite = np.where(np.isneginf(peak), 0, peak)
    return np.log(sum(np.exp(x - finite) for x in logs)) + finite


@ctc_loss.reference
def _(log_probs, labels, input_lengths, target_lengths, blank, zero_infinity):
    paths = _Paths(log_probs, labels, input_lengths, target_lengths, blank)
    time, many, _ = log_probs.shape
    alpha = np.full((time, many, paths.classes.shape[1]), -np.inf, log_probs.dtype)
    with np.errstate(all="ignore"):
        for t in range(time):
            here = paths.at(t)
            if t == 0:
                start = np.where(np.arange(here.shape[1]) < 2, here, -np.inf)
            else:
                last = alpha[t - 1]
                skipped = (
                    np.where(paths.skips, _moved(last, 2), -np.inf)
                    if here.shape[1] > 2
                    else np.full_like(last, -np.inf)
                )
                start = _joined(last, _moved(last, 1), skipped) + here
            alpha[t] = np.where((t < paths.times)[:, None], start, -np.inf)
        row, end = np.arange(many), np.clip(paths.ends, 0, alpha.shape[2] - 1)
        last = np.full(alpha.shape[1:], -np.inf, log_probs.dtype)
        if time:
            last = alpha[np.clip(paths.times, 1, time) - 1, row]
        last = np.where(
            (paths.times == 0)[:, None], np.where(np.arange(last.shape[1]) == 0, 0, -np.inf), last
        )
        before = np.where(end > 0, last[row, np.maximum(end - 1, 0)], -np.inf)
        nll = np.where(paths.bad, np.nan, -_joined(last[row, end], before))
    return np.where(np.isposinf(nll) & zero_infinity, 0, nll), nll, alpha


@ctc_loss.gradient
def _(emit, dloss, log_probs, labels, input_lengths, target_lengths, nll, alpha, blank, zero_infinity):
    asked = {"blank": blank, "zero_infinity": zero_infinity}
    return (
        emit.ctc_loss_grad(dloss, log_probs, labels, input_lengths, target_lengths, nll, alpha, **asked),
        None,
        None,
        None,
    )


@op("ctc_loss_grad", results=("dlog_probs",))
def ctc_loss_grad(
    dloss: F32, log_probs: _Logs, labels: Index, input_lengths: Index, target_lengths: Index, nll: F32, alpha: F32,
    *, blank: int = 0, zero_infinity: bool = False,
):  # fmt: skip
    """-dloss times the probability that a path of the labels is at a class, for each time and class; 0 behind a sequence's end.

    Shapes: dloss and nll (N,), alpha (time, N, 2 * length + 1), the others as for ctc_loss; dlog_probs has log_probs' shape.

    C1  log_probs have rank 3
    C2  labels have rank 2, and the N of log_probs
    C3  input_lengths and target_lengths have shape (N,)
    C4  blank is one of the classes
    C5  dloss and nll have shape (N,), alpha (time, N, 2 * length + 1)
    """
    _check(log_probs, labels, input_lengths, target_lengths, blank)
    time, many, _ = log_probs.shape
    shapes = {"dloss": (many,), "nll": (many,), "alpha": (time, many, 2 * labels.shape[1] + 1)}
    for (name, shape), given in zip(shapes.items(), (dloss, nll, alpha)):
        require(given.shape == shape, "C5", f"{name} has shape {given.shape}, expected {shape}")
    return log_probs


@ctc_loss_grad.reference
def _(dloss, log_probs, labels, input_lengths, target_lengths, nll, alpha, blank, zero_infinity):
    paths = _Paths(log_probs, labels, input_lengths, target_lengths, blank)
    time, many, _ = log_probs.shape
    grad, row = np.zeros_like(log_probs), np.arange(many)[:, None]
    from_end = np.arange(paths.classes.shape[1]) - paths.ends[:, None]
    beta = np.full(paths.classes.shape, -np.inf, log_probs.dtype)
    with np.errstate(all="ignore"):
        for t in reversed(range(time)):
            here = paths.at(t)
            skips = np.zeros_like(paths.skips)
            skips[:, :-2] = paths.skips[:, 2:]
            skipped = (
                np.where(skips, _moved(beta, -2), -np.inf)
                if beta.shape[1] > 2
                else np.full_like(beta, -np.inf)
            )
            after = _joined(beta, _moved(beta, -1), skipped)  # of the paths from here on, without this time
            after = np.where(
                (t == paths.times - 1)[:, None],
                np.where((from_end <= 0) & (from_end >= -1), 0, -np.inf),
                after,
            )
            beta = np.where((t < paths.times)[:, None], after + here, -np.inf)
            share = np.where(paths.there, np.exp(alpha[t] + after + nll[:, None]), 0)
            np.subtract.at(grad[t], (row, paths.classes), np.where((t < paths.times)[:, None], share, 0))
        grad = grad * dloss[:, None]
    none = (np.isposinf(nll) & zero_infinity)[:, None]
    return np.where(none, 0, np.where(np.isnan(nll)[:, None], np.nan, grad))


# --- samples ------------------------------------------------------------------------------------------------------------


def _logs(rng, shape, shapes):
    x = rng.normal(size=shape)
    return x - np.log(np.exp(x).sum(-1, keepdims=True))


def _labels(rng, shape, shapes):
    return rng.integers(1, max(next(s for s in shapes if len(s) == 3)[2], 2), shape)


def _times(rng, shape, shapes):
    time = next(s for s in shapes if len(s) == 3)[0]
    return rng.integers(max(time - 2, 0), time + 1, shape)


def _counts(rng, shape, shapes):
    return rng.integers(0, next(s for s in shapes if len(s) == 2)[1] + 1, shape)


_DRAWS = {"log_probs": _logs, "labels": _labels, "input_lengths": _times, "target_lengths": _counts}
ctc_loss.draws(**_DRAWS)
ctc_loss_grad.draws(**_DRAWS, nll=(1, 3), alpha=lambda rng, shape, shapes: -rng.uniform(2, 9, shape))
for _time, _many, _classes, _size in ((9, 4, 5, 3), (7, 1, 3, 0), (11, 3, 2, 4), (3, 0, 4, 2)):
    _shapes = (_time, _many, _classes), (_many, _size), (_many,), (_many,)
    ctc_loss.samples(*_shapes, zero_infinity=True)
    ctc_loss_grad.samples((_many,), *_shapes, (_many,), (_time, _many, 2 * _size + 1))
ctc_loss.samples((9, 4, 5), (4, 2), (4,), (4,))
