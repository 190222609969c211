"""Products over batches in a model: forward and backward (D6, D9)."""

from __future__ import annotations

import numpy as np
import pytest

import aicf
from aicf import nn
from aicf.types import TensorSpec

from .mlp import on_each_device

B, T, IN, OUT = 3, 5, 7, 4


def gradients(device, inputs, layers, feed):
    model = nn.Model(inputs, seed=3)
    for layer in layers:
        model.add(layer)
    program = aicf.compile(model, "grad", device=device, loss=nn.MeanSquaredError())
    return {name: np.asarray(value) for name, value in program(feed).items()}


@on_each_device
@pytest.mark.spec("D6", "D9")
def test_a_linear_layer_over_a_batch_is_one_over_all_its_rows(device):
    rng = np.random.default_rng()
    x, target = (rng.standard_normal((B, T, n), np.float32) for n in (IN, OUT))

    def run(*rows):
        layers = nn.Linear(IN, 6), nn.GELU(), nn.Linear(6, OUT)
        feed = {"x": x.reshape(*rows, IN), "y": target.reshape(*rows, OUT)}
        return gradients(device, {"x": (*rows, IN)}, layers, feed)

    batched, flat = run(B, T), run(B * T)
    assert batched.keys() == flat.keys() and batched["output"].shape == (B, T, OUT)
    for name, value in batched.items():
        np.testing.assert_allclose(
            value.reshape(flat[name].shape), flat[name], rtol=1e-4, atol=1e-5, err_msg=name
        )


class Scores(nn.Layer):
    """softmax-free attention: (x wq)(x wk)ᵀ x, with products of every kind of batch."""

    def emit(self, ctx, x):
        q, k = (ctx.gemm(x, ctx.param(name, (IN, 6), nn.init.uniform(-1, 1))) for name in ("wq", "wk"))
        scores = ctx.gemm(q, k, trans_b=True, alpha=0.5)
        mixed = ctx.gemm(scores, x, trans_a=True)
        return ctx.gemm(ctx.param("left", (T, T), nn.init.uniform(-1, 1)), mixed)


@on_each_device
@pytest.mark.spec("D6", "D9")
def test_gradients_through_batched_products_are_the_numerical_ones(device):
    rng = np.random.default_rng()
    feed = {
        "x": rng.standard_normal((B, T, IN), np.float32),
        "y": rng.standard_normal((B, T, IN), np.float32),
    }
    model = nn.Model({"x": TensorSpec((B, T, IN))}, seed=3).add(Scores())
    program = aicf.compile(model, "grad", device=device, loss=nn.MeanSquaredError())
    got = {name: np.asarray(value) for name, value in program(feed).items()}
    weights = {
        name: np.asarray(value, np.float64) for name, value in program.state_dict().items() if name[0] == "0"
    }
    x, target = (feed[name].astype(np.float64) for name in ("x", "y"))

    def loss(w):
        q, k = x @ w["0.wq"], x @ w["0.wk"]
        y = w["0.left"] @ ((0.5 * q @ k.swapaxes(1, 2)).swapaxes(1, 2) @ x)
        return np.mean((y - target) ** 2)

    np.testing.assert_allclose(got["loss"], loss(weights), rtol=1e-4)
    for name, w in weights.items():
        wanted = np.empty_like(w)
        for at in np.ndindex(w.shape):
            sides = []
            for step in (1e-5, -1e-5):
                moved = w.copy()
                moved[at] += step
                sides.append(loss({**weights, name: moved}))
            wanted[at] = (sides[0] - sides[1]) / 2e-5
        np.testing.assert_allclose(
            got[f"grad.{name}"], wanted, rtol=2e-3, atol=2e-3 * np.abs(wanted).max(), err_msg=name
        )
