"""Cross entropy and squared error, against formulas written per element."""

import math

import numpy as np
import pytest

from aicf.ops.schema import schema_of

from .numpy_emitter import call_gradient


def cross_entropy(logits, labels, ignore_index=-100, label_smoothing=0.0):
    asked = {"ignore_index": ignore_index, "label_smoothing": label_smoothing}
    return schema_of("cross_entropy").call_reference([logits, labels], asked)[0]


def gradient(logits, labels, dloss, ignore_index=-100, label_smoothing=0.0):
    asked = {"ignore_index": ignore_index, "label_smoothing": label_smoothing}
    schema = schema_of("cross_entropy")
    results = schema.call_reference([logits, labels], asked)
    return call_gradient(schema, [logits, labels], results, [dloss], schema.pack(asked))[0]


def checked(labels, fault, classes=3, ignore_index=-100):
    asked = {"classes": classes, "ignore_index": ignore_index}
    return schema_of("check_labels").call_reference([np.asarray(labels), np.asarray(fault)], asked)


@pytest.mark.parametrize("ignored", [-100, 1, 255])
def test_rows_that_are_left_out_have_no_loss_and_no_gradient_whatever_they_hold(ignored):
    rng = np.random.default_rng(4)
    logits, labels = rng.normal(size=(5, 3)), np.array([0, ignored, 2, ignored, 0])
    want, slope = cross_entropy(logits, labels % 3), gradient(logits, labels % 3, np.ones(5))
    logits[1] = np.nan
    loss, grad = cross_entropy(logits, labels, ignored), gradient(logits, labels, np.ones(5), ignored)
    kept = [0, 2, 4]
    np.testing.assert_array_equal(loss[[1, 3]], 0)
    np.testing.assert_array_equal(grad[[1, 3]], 0)
    np.testing.assert_allclose(loss[kept], want[kept])
    np.testing.assert_allclose(grad[kept], slope[kept])


@pytest.mark.parametrize("index", [np.int32, np.int64])
def test_labels_are_counted_and_the_first_that_is_no_class_is_told(index):
    nothing = np.zeros(5, np.int64)
    count, valid, told = checked(np.array([0, 2, -100, 1], index), nothing)
    assert (count, valid) == (3, True)
    np.testing.assert_array_equal(told, nothing)
    count, valid, told = checked(np.array([0, -100, 3, -1], index), nothing)
    assert (count, valid) == (3, False)
    np.testing.assert_array_equal(told, [1, 2, 3, 3, -100])
    np.testing.assert_array_equal(
        checked(np.array([-7], index), told)[2], [2, 2, 3, 3, -100]
    )  # the first stays
    assert checked(np.zeros(0, index), nothing)[:2] == (0, True)


def test_by_hand():
    logits = np.array([[1.0, 2.0, 3.0], [0.5, -1.0, 4.0]])
    want = [math.log(sum(map(math.exp, row))) - row[label] for row, label in zip(logits.tolist(), [2, 0])]
    assert np.allclose(cross_entropy(logits, np.array([2, 0])), want, rtol=1e-14)
    row = [math.exp(v) / sum(map(math.exp, logits[0])) for v in logits[0]]
    assert np.allclose(
        gradient(logits, np.array([2, 0]), np.array([2.0, 0.0])),
        [[2 * row[0], 2 * row[1], 2 * row[2] - 2], [0] * 3],
    )


def test_a_smoothed_target_by_hand():
    """PyTorch's: (1 - s) of it is the label's, and s is shared by all classes."""
    logits, s = [0.5, -1.0, 4.0], 0.3
    total = sum(map(math.exp, logits))
    target = [s / 3, s / 3 + 1 - s, s / 3]
    want = -sum(t * math.log(math.exp(v) / total) for t, v in zip(target, logits))
    given = np.array([logits]), np.array([1])
    assert cross_entropy(*given, label_smoothing=s)[0] == pytest.approx(want, rel=1e-12)
    slope = [math.exp(v) / total - t for t, v in zip(target, logits)]
    assert np.allclose(gradient(*given, np.ones(1), label_smoothing=s), [slope], rtol=1e-12)
    assert cross_entropy(*given, ignore_index=1, label_smoothing=s)[0] == 0


def test_it_does_not_depend_on_a_shift():
    rng = np.random.default_rng(0)
    logits, labels = rng.normal(size=(5, 9)), np.arange(5)
    for shift in (1e4, -1e4):
        assert np.allclose(cross_entropy(logits + shift, labels), cross_entropy(logits, labels), rtol=1e-9)


def test_extreme_logits():
    logits = np.array([[1e30, 0, -1e30], [-np.inf, 0, 0], [-1e30, -1e30, -1e30]], np.float32)
    got = cross_entropy(logits, np.array([0, 1, 2]))
    assert np.allclose(got, [0, math.log(2), math.log(3)], rtol=1e-6)
    grad = gradient(logits, np.array([0, 1, 2]), np.ones(3, np.float32))
    assert np.allclose(grad, [[0, 0, 0], [0, -0.5, 0.5], [1 / 3, 1 / 3, -2 / 3]], rtol=1e-6)


@pytest.mark.parametrize("label", [-1, 3, -(2**31), 2**31 - 1])
@pytest.mark.parametrize("index", [np.int32, np.int64])
def test_a_label_that_is_no_class_gives_nan_and_is_never_wrapped(label, index):
    logits, labels = np.zeros((2, 3), np.float32), np.array([label, 1], index)
    assert np.array_equal(np.isnan(cross_entropy(logits, labels)), [True, False])
    grad = gradient(logits, labels, np.ones(2, np.float32))
    assert np.isnan(grad[0]).all() and np.isfinite(grad[1]).all()


def test_no_rows_and_no_classes():
    assert cross_entropy(np.zeros((0, 3), np.float32), np.zeros(0, np.int64)).shape == (0,)
    assert np.isnan(cross_entropy(np.zeros((2, 0), np.float32), np.zeros(2, np.int64))).all()
    assert gradient(np.zeros((2, 0), np.float32), np.zeros(2, np.int64), np.ones(2, np.float32)).shape == (
        2,
        0,
    )


def test_gradient_rows_sum_to_zero():
    rng = np.random.default_rng(1)
    grad = gradient(rng.normal(size=(6, 11)), rng.integers(0, 11, 6), rng.normal(size=6))
    assert np.allclose(grad.sum(1), 0, atol=1e-14)


def test_the_loss_of_narrow_logits_is_f32():
    logits = np.array([[1, 2, 3]], np.float16)
    loss = cross_entropy(logits, np.array([0]))
    assert loss.dtype == np.float32
    assert loss[0] == pytest.approx(math.log(sum(map(math.exp, [1, 2, 3]))) - 1, rel=1e-6)


def test_squared_error():
    p, t = np.array([[1.0, 2.0], [3.0, 5.0]]), np.array([1.0, 1.0])
    schema = schema_of("squared_error")
    (loss,) = schema.call_reference([p, t], {})
    assert np.array_equal(loss, [[0, 1], [4, 16]])
    dp, dt = call_gradient(schema, [p, t], [loss], [np.ones((2, 2))], {})
    assert np.array_equal(dp, [[0, 2], [4, 8]])
    assert np.array_equal(dt, [-4, -10])
