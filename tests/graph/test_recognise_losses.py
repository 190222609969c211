"""Cross entropy that arrives spelt out, with its gradient or without: each way to pick a label's class is found, labels that are no class give what
they gave, and what only resembles it is left, with the reason."""

from __future__ import annotations

import math

import numpy as np
import pytest

from aicf.graph.emit.evaluate import evaluate

from .spelt import Spelt

ROWS, CLASSES = (2, 3), 11
R = 6


def logs_of(c, x):
    return c.log_softmax(x)


def logs_in_steps(c, x):
    shifted = c.sub(x, c.reduce_max(x, axes=(2,), keepdims=True))
    return c.sub(shifted, c.log(c.reduce_sum(c.exp(shifted), axes=(2,), keepdims=True)))


def hot_of(c, y):
    wide = c.broadcast_in_dim(y, shape=(*ROWS, CLASSES), dims=(0, 1))
    return c.equal(wide, c.iota(shape=(*ROWS, CLASSES), axis=2, dtype="i32"))


def flat_index(c, y):
    """As JAX computes it: negative labels count from the end, others are moved inside."""
    y = c.select(c.less(y, 0), c.add(y, CLASSES), y)
    inside = c.logical_and(c.greater_equal(y, 0), c.less_equal(y, CLASSES - 1))
    row = c.mul(c.reshape(c.iota(shape=(R,), axis=0, dtype="i32"), shape=ROWS), CLASSES)
    return c.add(row, c.minimum(c.maximum(y, 0), CLASSES - 1)), inside


def by_gather(c, x, y):
    index, inside = flat_index(c, y)
    return c.select(inside, c.gather(c.reshape(x, shape=(R * CLASSES,)), index, axis=0), math.nan)


def by_take(c, x, y):
    return c.reshape(c.take_along_axis(x, c.reshape(y, shape=(*ROWS, 1)), axis=2), shape=ROWS)


def by_product(c, x, y):
    return c.reduce_sum(c.mul(c.convert(hot_of(c, y), dtype="f32"), x), axes=(2,), keepdims=False)


def by_select(c, x, y):
    return c.reduce_sum(c.select(hot_of(c, y), x, 0.0), axes=(2,), keepdims=False)


PICKS = (by_gather, by_take, by_product, by_select)


def drawn(s, low=0, high=CLASSES):
    return s.input("labels", *ROWS, dtype="i32", draw=lambda rng, shape: rng.integers(low, high, shape))


@pytest.mark.spec("A12")
@pytest.mark.parametrize("logs", [logs_of, logs_in_steps], ids=lambda f: f.__name__)
@pytest.mark.parametrize("pick", PICKS, ids=lambda f: f.__name__)
def test_the_loss_of_each_row(pick, logs):
    s = Spelt()
    x, y = s.input("x", *ROWS, CLASSES), drawn(s)
    loss = s.ctx.neg(pick(s.ctx, logs(s.ctx, x), y))
    (note,) = s.found(loss)
    assert (note.what, note.told) == ("cross entropy", "11 classes") and "cross_entropy" in s.kinds
    assert "exp" not in s.kinds and "log_softmax" not in s.kinds
    logits, labels = s.fed[x].reshape(R, CLASSES), s.fed[y].reshape(R)
    want = np.log(np.exp(logits).sum(-1)) - logits[np.arange(R), labels]
    np.testing.assert_allclose(evaluate(s.builder.graph, s.fed)[loss].reshape(R), want, rtol=1e-9)


@pytest.mark.parametrize("pick", PICKS, ids=lambda f: f.__name__)
def test_logits_that_are_picked_from_themselves(pick):
    """As optax has it: the logarithm of the sum, less the logit of the label."""
    s = Spelt()
    c, x, y = s.ctx, s.input("x", *ROWS, CLASSES), drawn(s)
    total = c.reshape(c.logsumexp(x), shape=ROWS)
    (note,) = s.found(c.sub(total, pick(c, x, y)))
    assert note.ops and "logsumexp" not in s.kinds


@pytest.mark.parametrize("pick", PICKS, ids=lambda f: f.__name__)
@pytest.mark.parametrize("labels", [(-CLASSES, 0), (CLASSES, 3 * CLASSES), (-3 * CLASSES, -CLASSES)])
def test_labels_that_are_no_class_give_what_they_gave(pick, labels):
    if pick is by_take and labels != (-CLASSES, 0):
        return  # such a run is invalid, and says so
    s = Spelt()
    x, y = s.input("x", *ROWS, CLASSES), drawn(s, *labels)
    loss = s.ctx.neg(pick(s.ctx, logs_of(s.ctx, x), y))
    (note,) = s.found(loss)
    got = evaluate(s.builder.graph, s.fed)[loss]
    assert note.ops
    if pick in (by_product, by_select):
        assert (got == 0).all()
    else:
        assert np.isfinite(got).all() if labels == (-CLASSES, 0) else np.isnan(got).all()


def test_logits_that_were_widened_are_read_as_they_are():
    s = Spelt()
    c, y = s.ctx, drawn(s)
    x = c.convert(s.input("x", *ROWS, CLASSES), dtype="bf16")
    s.found(c.neg(by_take(c, logs_of(c, c.convert(x, dtype="f32")), y)), exact=0.01)
    (op,) = (op for op in s.builder.graph.ops if op.kind == "cross_entropy")
    assert s.builder.graph.values[op.inputs[0]] is x


# --- with the gradient ------------------------------------------------------------------------------------------------


def scattered(c, values, y):
    """The gradient of `by_gather`: what is outside is left out."""
    wrapped = c.select(c.less(y, 0), c.add(y, CLASSES), y)
    inside = c.logical_and(c.greater_equal(wrapped, 0), c.less(wrapped, CLASSES))
    row = c.mul(c.reshape(c.iota(shape=(R,), axis=0, dtype="i32"), shape=ROWS), CLASSES)
    index = c.select(inside, c.add(row, wrapped), 0)
    values = c.select(inside, values, 0.0)
    flat = c.scatter_add(c.reshape(values, shape=(R,)), c.reshape(index, shape=(R,)), size=R * CLASSES)
    return c.reshape(flat, shape=(*ROWS, CLASSES))


def spread(c, values, y):
    wide = c.broadcast_in_dim(values, shape=(*ROWS, CLASSES), dims=(0, 1))
    return c.mul(c.convert(hot_of(c, y), dtype="f32"), wide)


class WithGradient(Spelt):
    """Loss and gradient of logits, as they are differentiated: `weights` are those of the rows' losses."""

    def __init__(self, pick, back, weighted=True, labels=(0, CLASSES)):
        super().__init__()
        c = self.ctx
        self.x, self.y = self.input("x", *ROWS, CLASSES), drawn(self, *labels)
        dl = self.dl = (
            self.input("weights", *ROWS) if weighted else c.fill(shape=ROWS, value=0.25, dtype="f32")
        )
        most = c.reduce_max(self.x, axes=(2,), keepdims=True)
        e = c.exp(c.sub(self.x, most))
        total = c.reduce_sum(e, axes=(2,), keepdims=True)
        logs = c.sub(c.sub(self.x, most), c.log(total))
        self.loss = c.neg(pick(c, logs, self.y))
        g = back(c, c.neg(dl), self.y)  # of logs
        outer = c.div(c.neg(c.reduce_sum(g, axes=(2,), keepdims=True)), total)
        self.slope = c.add(g, c.mul(outer, e))


@pytest.mark.parametrize("weighted", [True, False])
@pytest.mark.parametrize("pick, back", [(by_gather, scattered), (by_product, spread), (by_select, spread)])
def test_loss_and_gradient(pick, back, weighted):
    s = WithGradient(pick, back, weighted)
    (note,) = s.found(s.loss, s.slope)
    assert note.told == "11 classes, with its gradient"
    assert s.kinds.count("cross_entropy") == s.kinds.count("cross_entropy_grad") == 1
    assert not {"exp", "scatter_add", "gather", "reduce_sum"} & set(s.kinds)
    logits, labels = s.fed[s.x].reshape(R, CLASSES), s.fed[s.y].reshape(R)
    p = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    dl = s.fed[s.dl].reshape(R, 1) if weighted else 0.25
    got = evaluate(s.builder.graph, s.fed)[s.slope].reshape(R, CLASSES)
    np.testing.assert_allclose(got, dl * (p - (labels[:, None] == np.arange(CLASSES))), rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("pick, back", [(by_gather, scattered), (by_product, spread)])
@pytest.mark.parametrize("labels", [(-CLASSES, 0), (CLASSES, 3 * CLASSES), (-3 * CLASSES, -CLASSES)])
def test_gradients_of_labels_that_are_no_class(pick, back, labels):
    s = WithGradient(pick, back, labels=labels)
    (note,) = s.found(s.loss, s.slope)
    assert note.ops


@pytest.mark.parametrize("kept", ["loss", "slope"])
def test_one_of_them(kept):
    s = WithGradient(by_gather, scattered)
    (note,) = s.found(getattr(s, kept))
    assert note.told == ("11 classes" if kept == "loss" else "11 classes, its gradient")


# --- what is in the way -----------------------------------------------------------------------------------------------


def test_smoothed_labels_are_left():
    s = Spelt()
    c, x, y = s.ctx, s.input("x", *ROWS, CLASSES), drawn(s)
    logs = logs_of(c, x)
    even = c.reduce_mean(logs, axes=(2,), keepdims=False)
    smoothed = c.add(c.mul(by_take(c, logs, y), -0.9), c.mul(even, -0.1))
    assert (
        all(n.what != "cross_entropy" or not n.ops for n in s.found(smoothed))
        or "cross_entropy" not in s.kinds
    )


def test_labels_of_a_neighbour_are_left():
    s = Spelt()
    c, x, y = s.ctx, s.input("x", *ROWS, CLASSES), drawn(s)
    index, _ = flat_index(c, y)
    moved = c.sub(c.minimum(c.add(index, 1), R * CLASSES - 1), 0)
    loss = c.neg(c.gather(c.reshape(logs_of(c, x), shape=(R * CLASSES,)), moved, axis=0))
    assert s.found(loss) == [] and "cross_entropy" not in s.kinds


def test_probabilities_that_are_read_are_told():
    s = WithGradient(by_gather, scattered)
    c = s.ctx
    e = next(op for op in s.builder.graph.ops if op.kind == "exp")
    (note,) = s.found(s.loss, s.slope, c.tanh(s.builder.graph.values[e.outputs[0]]))
    assert not note.ops and note.told.startswith("exp at ") and " is also read by tanh at " in note.told


def test_logs_that_are_returned_are_told():
    s = Spelt()
    x, y = s.input("x", *ROWS, CLASSES), drawn(s)
    logs = logs_of(s.ctx, x)
    (note,) = s.found(s.ctx.neg(by_take(s.ctx, logs, y)), logs)
    assert (
        not note.ops and note.told.startswith("log_softmax at ") and note.told.endswith(" is returned, too")
    )


def test_a_gradient_that_is_not_quite_one_is_left():
    s = WithGradient(by_gather, scattered)
    c = s.ctx
    (note,) = s.found(s.loss, c.mul(s.slope, 2.0), c.minimum(s.slope, 0.01))
    assert note.told == "11 classes, with its gradient"  # what is done with it afterwards is done
    s = WithGradient(by_gather, lambda c, values, y: c.mul(scattered(c, values, y), 1.5))
    (note,) = s.found(s.loss, s.slope)
    assert note.told == "11 classes, with its gradient"  # of 1.5 times the loss
    s = WithGradient(by_gather, lambda c, values, y: c.add(scattered(c, values, y), 1e-3))
    (note,) = s.found(s.loss, s.slope)
    assert not note.ops


def test_it_is_left_where_it_would_be_slower_and_with_strict_numerics():
    for asked, why in (
        ({"before": 1.0, "after": 2.0}, "the op would take 2 us"),
        ({"strict": True}, 'numerics="strict"'),
    ):
        s = Spelt()
        loss = s.ctx.neg(by_take(s.ctx, logs_of(s.ctx, s.input("x", *ROWS, CLASSES)), drawn(s)))
        (note,) = s.found(loss, **asked)
        assert not note.ops and note.told.startswith(why) and "cross_entropy" not in s.kinds


def test_few_classes_are_left():
    s = Spelt()
    x, y = s.input("x", 5, 3), s.input("y", 5, dtype="i32", draw=lambda rng, shape: rng.integers(0, 3, shape))
    picked = s.ctx.take_along_axis(s.ctx.log_softmax(x, axis=1), s.ctx.reshape(y, shape=(5, 1)), axis=1)
    assert s.found(s.ctx.neg(picked)) == []
