"""Whole models against NumPy float64: forward, backward, and several optimizer steps (C11, D3, D13)."""

from __future__ import annotations

import numpy as np
import pytest

import aicf
from aicf import nn
from aicf.errors import VerifyError

from . import oracle as exact
from .mlp import LAYERS, LOSSES, batch_of, host, mlp, on_each_device, oracle, params, trainer

NEAR = {"rtol": 2e-4, "atol": 2e-6}  # f32 sums of tens of terms, several steps long


@pytest.mark.sample(1, each="activation")
@on_each_device
@pytest.mark.spec("C8", "D1", "D3", "D13")
@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("activation", LAYERS)
def test_loss_and_gradients_of_each_activation_and_loss(activation, loss, device):
    program = aicf.compile(mlp(activation, (5, 7, 6, 3)), "grad", device=device, loss=LOSSES[loss]())
    for rows in (6, 1, 4):
        feed = batch_of(rows, seed=rows, loss=loss)
        value, out, grads = oracle(program, activation, loss).step(**feed)
        for got in (host(program.run(feed)), host(program.replay(feed))):
            np.testing.assert_allclose(got["output"], out, **NEAR)
            np.testing.assert_allclose(got["loss"], value, **NEAR)
            assert {n for n in got if n.startswith("grad.")} == {f"grad.{n}" for n in grads}
            for name, grad in grads.items():
                np.testing.assert_allclose(got[f"grad.{name}"], grad, **NEAR, err_msg=name)


OPTIMIZERS = {
    "sgd": (nn.SGD(0.1), exact.SGD(0.1)),
    "momentum": (nn.SGD(0.1, momentum=0.9), exact.SGD(0.1, 0.9)),
    "nesterov": (nn.SGD(0.1, 0.8, 0.01, nesterov=True), exact.SGD(0.1, 0.8, 0.01, True)),
    "decay": (nn.SGD(0.1, weight_decay=0.1), exact.SGD(0.1, 0.0, 0.1)),
    "adam": (nn.Adam(0.01), exact.Adam(0.01)),
    "adam with decay": (nn.Adam(0.01, (0.8, 0.95), 1e-6, 0.1), exact.Adam(0.01, (0.8, 0.95), 1e-6, 0.1)),
    "adamw": (nn.AdamW(0.01, weight_decay=0.1), exact.Adam(0.01, weight_decay=0.1, decoupled=True)),
}


@pytest.mark.sample(4)
@on_each_device
@pytest.mark.spec("C11", "D13")
@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("loss", LOSSES)
def test_ten_steps_of_each_optimizer(name, loss, device):
    ours, theirs = OPTIMIZERS[name]
    program = trainer(device, mlp("tanh"), ours, loss)
    theirs.__init__(**_again(theirs))
    model = oracle(program, "tanh", loss)
    for step in range(10):
        feed = batch_of(6 if step % 3 else 5, seed=step, loss=loss)
        value, _, grads = model.step(**feed)
        theirs.update(model.params, grads)
        got = (program.replay if step % 2 else program.run)(feed)
        np.testing.assert_allclose(float(got["loss"]), value, rtol=1e-4)
    for key, value in params(program).items():
        np.testing.assert_allclose(value, model.params[key], rtol=1e-3, atol=1e-5, err_msg=key)
    assert int(program.get("step")) == 10


def _again(optimizer) -> dict:
    """The oracle's arguments, so that each test starts it anew."""
    if isinstance(optimizer, exact.SGD):
        o = optimizer
        return {"lr": o.lr, "momentum": o.momentum, "weight_decay": o.decay, "nesterov": o.nesterov}
    o = optimizer
    return {
        "lr": o.lr,
        "betas": (o.b1, o.b2),
        "eps": o.eps,
        "weight_decay": o.decay,
        "decoupled": o.decoupled,
    }


@on_each_device
@pytest.mark.spec("D16")
def test_gradients_equal_central_differences_of_the_loss(device):
    """By the loss alone: nothing of the oracle's backward pass is used."""
    program = aicf.compile(mlp("gelu", (4, 5, 3)), "grad", device=device, loss=nn.SoftmaxCrossEntropy())
    feed = batch_of(3, inputs=4)
    got, model, h = host(program.run(feed)), oracle(program, "gelu"), 1e-6
    for name, value in model.params.items():
        numeric = np.empty_like(value)
        for i in np.ndindex(value.shape):
            sides = []
            for sign in (1, -1):
                moved = value.copy()
                moved[i] += sign * h
                model.params[name] = moved
                sides.append(model.loss_of(model.forward(feed["x"]), feed["y"]))
            model.params[name] = value
            numeric[i] = (sides[0] - sides[1]) / (2 * h)
        np.testing.assert_allclose(got[f"grad.{name}"], numeric, rtol=1e-3, atol=1e-6, err_msg=name)


@on_each_device
def test_a_residual_and_a_bare_model(device):
    model = nn.Model({"x": aicf.TensorSpec(("batch", 4))}, batch=3).add(
        nn.Residual(nn.Linear(4, 4), nn.Tanh())
    )
    program = aicf.compile(model, device=device)
    x = batch_of(3, inputs=4)["x"]
    w, b = program.get("0.0.weight").astype(float), program.get("0.0.bias")
    np.testing.assert_allclose(program.run({"x": x})["output"].numpy(), x + np.tanh(x @ w.T + b), **NEAR)
    bare = nn.Model({"x": aicf.TensorSpec(("batch", 4))}, batch=3)
    with pytest.raises(VerifyError, match="the model has no layers"):
        aicf.compile(bare, device=device)
    got = aicf.compile(bare.add(nn.Identity()), device=device).run({"x": x})["output"]
    assert got.numpy().tobytes() == x.tobytes()


@on_each_device
def test_an_op_may_read_one_value_twice(device):
    """x + x and x * x: one tensor of the region, two operands of the op."""

    class Twice(nn.Layer):
        def emit(self, ctx, x):
            return ctx.add(ctx.mul(x, x), ctx.maximum(x, x))

    model = nn.Model({"x": aicf.TensorSpec(("batch", 3))}, batch=2).add(Twice())
    x = np.random.default_rng(3).normal(size=(2, 3)).astype(np.float32)
    np.testing.assert_allclose(
        aicf.compile(model, device=device).run({"x": x})["output"].numpy(), x * x + x, rtol=1e-6
    )


@on_each_device
@pytest.mark.parametrize("which", [0, 1])
def test_only_one_of_two_results_is_read(which, device):
    class Corrections(nn.Layer):
        def emit(self, ctx, x):
            step = ctx.state("step", (), 3, aicf.i32)
            return ctx.mul(x, ctx.adam_correction(step, 0.5, 0.75)[which])

    model = nn.Model({"x": aicf.TensorSpec(("batch", 3))}, batch=2).add(Corrections())
    x = np.ones((2, 3), np.float32)
    got = aicf.compile(model, device=device).run({"x": x})["output"].numpy()
    np.testing.assert_allclose(got, [1 - 0.5**3, 1 - 0.75**3][which], rtol=1e-6)


@on_each_device
@pytest.mark.spec("D16")
def test_a_batch_without_rows_changes_nothing(device):
    program = trainer(device, optimizer=nn.SGD(0.1))
    before = params(program)
    got = host(program.run(batch_of(0)))
    assert got["output"].shape == (0, 3)
    assert np.isnan(got["loss"])
    for name, value in params(program).items():
        np.testing.assert_array_equal(value, before[name], err_msg=name)


@on_each_device
def test_gradients_through_maximum_minimum_and_abs(device):
    """Their rules select against the number 0, beside a condition of bools."""

    class Kinks(nn.Layer):
        def emit(self, ctx, x):
            w = ctx.param("w", (3,), nn.init.normal())
            return ctx.add(ctx.maximum(ctx.mul(x, w), 0.1), ctx.minimum(ctx.abs(ctx.mul(x, w)), 0.5))

    model = nn.Model({"x": aicf.TensorSpec(("batch", 3))}, batch=2).add(Kinks())
    program = aicf.compile(model, "grad", device=device, loss=nn.MeanSquaredError())
    feed = batch_of(2, inputs=3, loss="mse")
    x, w = feed["x"], program.get("0.w").astype(float)
    z = x * w
    y = np.maximum(z, 0.1) + np.minimum(abs(z), 0.5)
    got = host(program.run(feed))
    np.testing.assert_allclose(got["output"], y, **NEAR)
    slope = (z > 0.1) + np.sign(z) * (abs(z) < 0.5)
    np.testing.assert_allclose(got["grad.0.w"], (2 / 6 * (y - feed["y"]) * slope * x).sum(0), **NEAR)
