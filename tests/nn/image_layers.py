"""What tests of layers of images share."""

from __future__ import annotations

import numpy as np
import pytest

import aicf
from aicf import nn


class Moved(nn.Layer):
    """A layer of x + shift: the gradient of the shift is that of x."""

    def __init__(self, layer):
        self.layer = layer

    def emit(self, ctx, x):
        return self.layer(x + ctx.param("shift", x.shape, nn.init.zeros, x.dtype))


def check_layer(make, shape, function, device):
    """A layer against a function of (x, its weights by name) in NumPy, at random places; its gradients against difference quotients."""
    rng = np.random.default_rng()
    model = nn.Model({"x": aicf.TensorSpec(shape)}, Moved(make()), seed=1)
    program = aicf.compile(model, "grad", device=device, loss=nn.MeanSquaredError())
    moved = {
        n: v + (0.5 * rng.standard_normal(v.shape)).astype(v.dtype) * ("running" not in n)
        for n, v in program.state_dict().items()
    }
    program.load_state_dict(moved)
    weights = {n: np.asarray(v, np.float64) for n, v in moved.items() if "running" not in n}
    x = rng.standard_normal(shape, np.float32)

    def output(w):
        own = {n.removeprefix("layer."): v for n, v in w.items()}
        return function(x.astype(np.float64) + own.pop("shift"), own)

    wanted = output(weights)
    target = rng.standard_normal(wanted.shape, np.float32)
    got = {n: np.asarray(v, np.float64) for n, v in program({"x": x, "y": target}).items()}
    np.testing.assert_allclose(got["output"], wanted, rtol=1e-4, atol=1e-5)
    for n, w in weights.items():
        for at in rng.permutation(w.size)[:12]:
            sides = []
            for step in (1e-5, -1e-5):
                other = w.copy()
                other.reshape(-1)[at] += step
                sides.append(np.mean((output({**weights, n: other}) - target) ** 2))
            numeric = (sides[0] - sides[1]) / 2e-5
            assert got[f"grad.{n}"].reshape(-1)[at] == pytest.approx(numeric, rel=2e-3, abs=2e-4), (n, at)
