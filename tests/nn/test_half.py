"""Models in f16 and bf16: gradients against float64, and training that gets somewhere, on each device (D10, D6)."""

from __future__ import annotations

import numpy as np
import pytest

import aicf
from aicf import nn
from aicf.types import DType

from .mlp import host, on_each_device

HALVES = pytest.mark.parametrize(
    "dtype, tolerance", [(DType.f16, 1e-2), (DType.bf16, 8e-2)], ids=["f16", "bf16"]
)


def model_of(dtype: DType, batch: int, inputs: int = 12, hidden: int = 20, outputs: int = 4) -> nn.Model:
    model = nn.Model({"x": aicf.TensorSpec(("batch", inputs), dtype)}, batch=batch)
    return model.add(nn.Linear(inputs, hidden)).add(nn.Tanh()).add(nn.Linear(hidden, outputs))


def feed_of(dtype: DType, batch: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(batch)
    return {n: rng.normal(size=(batch, k)).astype(dtype.numpy) for n, k in (("x", 12), ("y", 4))}


@pytest.mark.sample(1, each="dtype")
@on_each_device
@pytest.mark.spec("D10", "D6")
@HALVES
@pytest.mark.parametrize("batch", [1, 7, 32])
def test_gradients_in_half_types(device, dtype, tolerance, batch):
    program = aicf.compile(model_of(dtype, batch), "grad", device=device, loss=nn.MeanSquaredError())
    feed = feed_of(dtype, batch)
    got = host(program.run(feed))
    x, y = (feed[n].astype(np.float64) for n in "xy")
    p = {n: program.get(n).astype(np.float64) for n in ("0.weight", "0.bias", "2.weight", "2.bias")}
    h = np.tanh(x @ p["0.weight"].T + p["0.bias"])
    out = h @ p["2.weight"].T + p["2.bias"]
    dout = 2 * (out - y) / out.size
    dz = dout @ p["2.weight"] * (1 - h * h)
    want = {"output": out, "grad.0.weight": dz.T @ x, "grad.0.bias": dz.sum(0), "grad.2.weight": dout.T @ h,
            "grad.2.bias": dout.sum(0)}  # fmt: skip
    for name, exact in want.items():
        assert got[name].dtype == dtype.numpy
        error = np.abs(got[name].astype(np.float64) - exact).max()
        assert error <= tolerance * max(np.abs(exact).max(), 1e-3), (name, error)


@on_each_device
@pytest.mark.spec("D10")
@HALVES
def test_half_types_train(device, dtype, tolerance):
    program = aicf.compile(
        model_of(dtype, 32),
        "train",
        device=device,
        loss=nn.MeanSquaredError(),
        optimizer=nn.SGD(0.2, momentum=0.9),
    )
    feed = feed_of(dtype, 32)
    losses = [float(host(program.replay(feed))["loss"]) for _ in range(40)]
    assert losses[-1] < 0.5 * losses[0]
