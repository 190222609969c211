"""Gradients of all that a product takes, by compiled programs, against central differences of the loss in float64 (D4, D6, D8)."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

import aicf
from aicf import ActKind, nn

from .mlp import host, on_each_device

M, N, K = 5, 6, 7
LENGTHS = {"scalar": 1, "per n": N, "per m": M}


class Product(nn.Layer):
    """act(alpha * op(x) @ op(w) + beta * c + bias)"""

    def __init__(self, bias: str, **attrs: object) -> None:
        self.length, self.attrs = LENGTHS[bias], attrs

    def emit(self, ctx, x):
        w = ctx.param("w", (N, K) if self.attrs["trans_b"] else (K, N), nn.init.normal(0.5), x.dtype)
        c = ctx.param("c", (M, N), nn.init.normal(0.5), x.dtype)
        bias = ctx.param("bias", (self.length,), nn.init.normal(0.5), x.dtype)
        return ctx.gemm(x, w, c, bias, **self.attrs)


def loss_of(feed, p, bias, alpha, beta, trans_a, trans_b, act):
    x, w = feed["x"].T if trans_a else feed["x"], p["w"].T if trans_b else p["w"]
    added = p["bias"].reshape((-1, 1) if bias == "per m" else (1, -1))
    z = alpha * x @ w + beta * p["c"] + added
    z = {ActKind.none: lambda z: z, ActKind.tanh: np.tanh, ActKind.sigmoid: lambda z: 1 / (1 + np.exp(-z))}[
        act
    ](z)
    return np.mean((z - feed["y"]) ** 2)


CASES = list(
    itertools.product(LENGTHS, (False, True), (False, True), (ActKind.none, ActKind.tanh, ActKind.sigmoid))
)


@pytest.mark.sample(1)
@on_each_device
@pytest.mark.spec("D4", "D6", "D8")
@pytest.mark.parametrize("bias, trans_a, trans_b, act", CASES, ids=str)
def test_gradients_of_a_product_are_central_differences(device, bias, trans_a, trans_b, act):
    attrs = {"alpha": 0.7, "beta": -1.3, "trans_a": trans_a, "trans_b": trans_b, "act": act}
    shape = (K, M) if trans_a else (M, K)
    model = nn.Model({"x": aicf.TensorSpec(shape)}).add(Product(bias, **attrs))
    program = aicf.compile(model, "grad", device=device, loss=nn.MeanSquaredError())
    rng = np.random.default_rng()
    feed = {"x": rng.normal(size=shape).astype(np.float32), "y": rng.normal(size=(M, N)).astype(np.float32)}
    got = host(program.run(feed))
    wide = {name: value.astype(np.float64) for name, value in feed.items()}
    p = {name: program.get(f"0.{name}").astype(np.float64) for name in ("w", "c", "bias")}
    np.testing.assert_allclose(got["loss"], loss_of(wide, p, bias, **attrs), rtol=1e-5)
    for name, value in p.items():
        expected, step = np.empty_like(value), 1e-5
        for at in np.ndindex(value.shape):
            losses = []
            for sign in (1, -1):
                moved = value.copy()
                moved[at] += sign * step
                losses.append(loss_of(wide, {**p, name: moved}, bias, **attrs))
            expected[at] = (losses[0] - losses[1]) / (2 * step)
        np.testing.assert_allclose(got[f"grad.0.{name}"], expected, rtol=2e-5, atol=2e-6, err_msg=name)
