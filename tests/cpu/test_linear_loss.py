"""The cross entropy of a linear layer on the host against a formula in float64 that has all logits at once."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest
from dispatch.layouts import LAYOUTS

import aicf
from aicf.cpu_kernels import linear_loss as kernels
from aicf.device.spec import host
from aicf.ops.schema import schema_of
from aicf.types import bf16, f16, f32

from .regions import TOLERANCE, VARIANTS, Graph, normal

IGNORED = -100


def formula(x, weight, labels, label_smoothing=0.0, z_loss=0.0, ignore_index=IGNORED):
    """(loss, lse) in float64, row by row."""
    loss, lse = np.zeros(labels.shape), np.zeros(labels.shape)
    weight = weight.astype(np.float64)
    for at in np.ndindex(*labels.shape):
        if labels[at] == ignore_index:
            continue
        logits = weight @ x[at].astype(np.float64)
        lse[at] = logits.max() + np.log(np.exp(logits - logits.max()).sum())
        loss[at] = (1 - label_smoothing) * (lse[at] - logits[labels[at]]) + z_loss * lse[at] ** 2
        if label_smoothing:
            loss[at] += label_smoothing * (lse[at] - logits.mean())
    return loss, lse


def problem(rows, classes, k, dtype=f32, spread=1.0, ignored=0.2, ignore_index=IGNORED):
    rng = np.random.default_rng()
    labels = np.asarray(rng.integers(0, classes, rows))
    labels[rng.random(rows) < ignored] = ignore_index
    x = (spread * normal(*rows, k) / max(k, 1) ** 0.5).astype(dtype.numpy)
    return {"x": x, "weight": normal(classes, k, dtype=dtype), "labels": labels}


def losses(operands, **attrs):
    given = " ".join(operands)
    graph = Graph(operands, ("linear_cross_entropy", given, "loss lse", attrs), keep="loss lse")
    return graph.run("linear_cross_entropy_blas")


def differentiate(operands, dloss, **attrs):
    """dx and dweight by the kernel, from lse as the formula has it."""
    lse = formula(*operands.values(), **attrs)[1].astype(np.float32)
    given = {"dloss": dloss, **operands, "lse": lse}
    step = ("linear_cross_entropy_grad", " ".join(given), "dx dweight", attrs)
    return Graph(given, step, keep="dx dweight").run("linear_cross_entropy_grad_blas")


def gradients(x, weight, labels, dloss, label_smoothing=0.0, z_loss=0.0, ignore_index=IGNORED):
    """(dx, dweight) in float64."""
    k, classes = x.shape[-1], len(weight)
    flat, weight, labels = (
        x.reshape(labels.size, k).astype(np.float64),
        weight.astype(np.float64),
        labels.ravel(),
    )
    dx, dweight = np.zeros((len(flat), k)), np.zeros((classes, k))
    for n, label in enumerate(labels):
        if label == ignore_index:
            continue
        logits = weight @ flat[n]
        lse = logits.max() + np.log(np.exp(logits - logits.max()).sum())
        g = np.exp(logits - lse) * (1 + 2 * z_loss * lse) - label_smoothing / classes
        g[label] -= 1 - label_smoothing
        g *= dloss.ravel()[n]
        dx[n], dweight = weight.T @ g, dweight + np.outer(g, flat[n])
    return dx.reshape(x.shape), dweight


def close(got, want, dtype, times=1.0):
    allowed = times * TOLERANCE[dtype]
    scale = max(1.0, float(np.abs(want).max())) if want.size else 1.0
    np.testing.assert_allclose(got.astype(np.float64), want, rtol=allowed, atol=allowed * scale)


CASES = [
    (((37,), 53, 19), {}),
    (((2, 3), 7, 5), {"label_smoothing": 0.1}),
    (((1,), 1, 1), {"z_loss": 0.5}),
    (((), 9, 4), {"label_smoothing": 1.0}),
    (((130,), 1025, 33), {"label_smoothing": 0.3, "z_loss": 1e-2}),
    (((65,), 3, 8), {"ignore_index": 1}),
    (((0,), 9, 4), {"z_loss": 0.1}),
    (((0, 3), 9, 4), {}),
    (((5,), 6, 0), {}),
]


@pytest.mark.parametrize("dtype", [f32, f16, bf16], ids=str)
@pytest.mark.parametrize("sizes, attrs", CASES, ids=str)
def test_against_the_formula(sizes, attrs, dtype):
    operands = problem(*sizes, dtype, ignore_index=attrs.get("ignore_index", IGNORED))
    for got, want in zip(losses(operands, **attrs), formula(*operands.values(), **attrs)):
        assert got.dtype == np.float32
        close(got, want, f32, 2)
    dloss = normal(*sizes[0])
    wanted = gradients(*operands.values(), dloss, **attrs)
    for got, want in zip(differentiate(operands, dloss, **attrs), wanted, strict=True):
        assert got.dtype == dtype.numpy and got.shape == want.shape
        close(got, want, dtype, 4)


@pytest.mark.parametrize("attrs", [{}, {"label_smoothing": 0.2, "z_loss": 0.05}], ids=str)
def test_gradients_against_differences_of_the_formula(attrs):
    operands, step = problem((3, 4), 11, 6), 1e-5
    dloss, rng = normal(3, 4), np.random.default_rng()
    exact = {n: v.astype(np.float64) if n != "labels" else v for n, v in operands.items()}
    for name, got in zip(("x", "weight"), differentiate(operands, dloss, **attrs)):
        for flat in rng.permutation(got.size)[:20]:
            at, sums = np.unravel_index(flat, got.shape), []
            for shift in (step, -step):
                moved = {**exact, name: exact[name].copy()}
                moved[name][at] += shift
                sums.append(np.vdot(dloss, formula(*moved.values(), **attrs)[0]))
            assert got[at] == pytest.approx((sums[0] - sums[1]) / (2 * step), rel=1e-4, abs=1e-4), (name, at)


@pytest.mark.parametrize("dtype", [f32, f16, bf16], ids=str)
def test_where_all_rows_are_ignored_there_is_nothing(dtype):
    """What an ignored row holds is not read."""
    operands = problem((6,), 9, 4, dtype, ignored=1.1)
    operands["x"][2] = np.nan
    for got in (*losses(operands, z_loss=0.1), *differentiate(operands, normal(6))):
        assert not got.any()


@pytest.mark.parametrize("spread", [30.0, 1e3, 1e6])
def test_large_logits_neither_overflow_nor_lose_the_label(spread):
    operands = problem((70,), 301, 16, spread=spread)
    loss, lse = losses(operands)
    want, want_lse = formula(*operands.values())
    assert np.isfinite(loss).all()
    np.testing.assert_allclose(loss, want, rtol=2e-5, atol=2e-6 * spread)
    np.testing.assert_allclose(lse, want_lse, rtol=1e-5)
    for got in differentiate(operands, np.ones(70, np.float32)):
        assert np.isfinite(got).all()


def test_a_large_logit_far_from_its_row_leaves_the_loss_exact():
    """The label has the greatest of logits near 1e4: the loss is far smaller than a rounding error of lse."""
    x, weight = np.full((2, 1), 100, np.float32), np.array([[100], [99.93], [99.9]], np.float32)
    (loss, _) = losses({"x": x, "weight": weight, "labels": np.array([0, 1])})
    np.testing.assert_allclose(loss, formula(x, weight, np.array([0, 1]))[0], rtol=1e-4)


@pytest.mark.parametrize("label", [-1, 7, 2**40])
def test_a_label_that_is_no_class_gives_nan_and_no_other_row_does(label):
    operands = problem((5,), 7, 4, ignored=0)
    operands["labels"][3] = label
    loss, lse = losses(operands, label_smoothing=0.1)
    assert np.array_equal(np.isnan(loss), np.arange(5) == 3) and np.array_equal(np.isnan(lse), np.isnan(loss))
    given = {"dloss": normal(5), **operands, "lse": lse}
    step = ("linear_cross_entropy_grad", " ".join(given), "dx dweight", {})
    dx, dweight = Graph(given, step, keep="dx dweight").run("linear_cross_entropy_grad_blas")
    assert np.array_equal(np.isnan(dx).all(1), np.arange(5) == 3) and np.isnan(dweight).all()
    schema = schema_of("linear_cross_entropy")
    reason = schema.why_nan(list(operands.values()), schema.pack({}))
    assert reason == f"label {label} at row 3, expected one of [0, 7); 1 rows are like that"


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_a_row_of_no_numbers_is_nan_alone(value):
    operands = problem((9,), 7, 4, ignored=0)
    operands["x"][4, 1] = value
    loss, lse = losses(operands)
    assert np.array_equal(np.isnan(loss), np.arange(9) == 4) and np.isnan(lse[4])


def test_a_class_that_can_not_be_has_no_part():
    """Logits of -inf, of all classes of a tile too, add nothing; as the only ones they make NaN."""
    operands = {"x": np.ones((2, 1), np.float32), "weight": np.array([[-np.inf], [1], [2]], np.float32)}
    labels = np.array([1, 2])
    loss, _ = losses({**operands, "labels": labels})
    np.testing.assert_allclose(loss, formula(*operands.values(), labels)[0], rtol=1e-6)
    operands["weight"][:] = -np.inf
    assert np.isnan(losses({**operands, "labels": labels})).all()


def test_a_label_that_can_not_be_costs_without_end_and_says_so_alone():
    operands = {
        "x": np.ones((3, 2), np.float32),
        "weight": np.array([[-np.inf, 0], [1, 2], [3, 1]], np.float32),
        "labels": np.array([0, 1, IGNORED]),
    }
    loss, lse = losses(operands)
    sums = np.log(np.exp([3.0, 4.0]).sum())
    np.testing.assert_allclose(loss, [np.inf, sums - 3, 0], rtol=1e-6)
    np.testing.assert_allclose(lse, [sums, sums, 0], rtol=1e-6)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_operands_of_every_layout(layout):
    operands = {n: LAYOUTS[layout](a) for n, a in problem((3, 5), 9, 8).items()}
    for got, want in zip(losses(operands), formula(*operands.values())):
        close(got, want, f32, 2)
    dloss = LAYOUTS[layout](normal(3, 5))
    for got, want in zip(differentiate(operands, dloss), gradients(*operands.values(), dloss), strict=True):
        close(got, want, f32, 4)


@pytest.mark.parametrize("tile, rows, block", [(2**22, 2048, 2**16), (256, 8, 64), (64, 64, 7), (1, 1, 1)])
def test_tiles_of_any_size_give_the_same(tile, rows, block, monkeypatch):
    operands = problem((37,), 41, 6)
    operands["weight"][:5] = -np.inf  # a whole tile of classes that can't be
    operands["x"] = np.abs(operands["x"])
    operands["labels"] = np.where(operands["labels"] >= 0, np.maximum(operands["labels"], 5), IGNORED)
    attrs, dloss = {"z_loss": 0.1}, normal(37)
    finite = {**operands, "weight": normal(41, 6)}
    for name, value in (("TILE", tile), ("ROWS", rows), ("BLOCK", block)):
        monkeypatch.setattr(kernels, name, value)
    for got, want in zip(losses(operands, **attrs), formula(*operands.values(), **attrs)):
        close(got, want, f32, 2)
    for got, want in zip(
        differentiate(finite, dloss, **attrs), gradients(*finite.values(), dloss, **attrs), strict=True
    ):
        close(got, want, f32, 4)


def test_logits_are_never_there_as_a_whole(monkeypatch):
    """Of 64 MB, at most a tile of 1 MB and what NumPy makes of it."""
    monkeypatch.setattr(kernels, "TILE", 2**18)
    operands = problem((2048,), 8192, 4)
    logits = 4 * 2048 * 8192
    for run in (lambda: losses(operands, label_smoothing=0.1), lambda: kernel_gradients(operands)):
        tracemalloc.start()
        run()
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert peak < logits / 16


def kernel_gradients(operands):
    given = {"dloss": np.ones(2048, np.float32), **operands, "lse": np.full(2048, 9, np.float32)}
    step = ("linear_cross_entropy_grad", " ".join(given), "dx dweight", {})
    return Graph(given, step, keep="dx dweight").run("linear_cross_entropy_grad_blas")


def test_equal_calls_have_equal_bits():
    operands, dloss = problem((300,), 700, 16), normal(300)
    first, again = ([g.tobytes() for g in differentiate(operands, dloss)] for _ in range(2))
    assert first == again


# --- choice -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["linear_cross_entropy", "linear_cross_entropy_grad"])
def test_the_prediction_grows_with_classes_and_prefers_tiles(kind):
    def us(rows, classes, kernel=f"{kind}_blas"):
        operands = problem((rows,), classes, 64)
        row = np.zeros(rows, np.float32)
        names = "loss lse"
        if kind.endswith("grad"):
            operands, names = {"dloss": row, **operands, "lse": row}, "dx dweight"
        made = Graph(operands, (kind, " ".join(operands), names, {}), keep=names)
        return VARIANTS[kernel].cost(made.region, host()).us

    assert us(512, 8000) < us(512, 8000, "reference") and us(1, 4) > us(1, 4, "reference")
    assert 3.5 < us(512, 32000) / us(512, 8000) < 4.5


def test_called_as_an_op():
    operands = problem((300,), 2000, 32)
    loss, lse = np.empty(300, np.float32), np.empty(300, np.float32)
    attrs = {"label_smoothing": 0.1, "z_loss": 1e-3}
    chosen = aicf.op_call("linear_cross_entropy", list(operands.values()), [loss, lse], attrs)
    assert chosen.kernel_id == "cpu.linear_cross_entropy_blas.v2" and "logits" in str(chosen)
    for got, want in zip((loss, lse), formula(*operands.values(), **attrs)):
        close(got, want, f32, 2)
