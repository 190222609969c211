"""nn.LSTM, nn.GRU and nn.RNN beside PyTorch's of the same arguments: results and gradients, with its state dict loaded by its own names."""

from __future__ import annotations

import numpy as np
import pytest

import aicf
from aicf import nn

torch = pytest.importorskip("torch", reason="PyTorch is not installed: make test-torch")

STEPS, BATCH, INPUTS, HIDDEN = 6, 3, 5, 7


class Net(nn.Layer):
    def __init__(self, layer):
        self.r = layer

    def emit(self, ctx, x):
        y, state = self.r(x)
        states = state if isinstance(state, tuple) else (state,)
        return {"out": y, **{f"state{n}": s for n, s in enumerate(states)}}


def loss(out, want):
    return ((out["out"] - want) ** 2).mean() + sum((s**2).mean() for n, s in out.items() if n != "out")


@pytest.mark.sample(3)
@pytest.mark.parametrize(
    "how",
    [
        {},
        {"bidirectional": True, "bias": False},
        {"num_layers": 3, "bidirectional": True, "batch_first": True},
    ],
    ids=str,
)
@pytest.mark.parametrize("name", ["LSTM", "GRU", "RNN"])
def test_results_and_gradients_are_pytorch_s(name, how):
    torch.manual_seed(0)
    theirs = getattr(torch.nn, name)(INPUTS, HIDDEN, **how)
    ours = {"layers" if k == "num_layers" else k: v for k, v in how.items()}
    shape = ("batch", STEPS, INPUTS) if how.get("batch_first") else (STEPS, "batch", INPUTS)
    wide = HIDDEN * (1 + how.get("bidirectional", False))
    model = nn.Model(
        {"x": aicf.TensorSpec(shape)}, Net(getattr(nn, name)(INPUTS, HIDDEN, **ours)), batch=BATCH
    )
    target = aicf.TensorSpec((*shape[:2], wide))
    program = aicf.compile(model, "grad", device="cpu", loss=nn.LossFunction(loss, want=target))
    state = {f"r.{n}": p.detach().numpy() for n, p in theirs.state_dict().items()}
    assert set(state) == set(program.state_dict())
    program.load_state_dict(state)
    rng = np.random.default_rng(1)
    x, want = (
        rng.normal(size=s.bind(model.sizes).shape).astype(np.float32)
        for s in (aicf.TensorSpec(shape), target)
    )
    made = {n: t.numpy() for n, t in program({"x": x, "want": want}).items()}
    y, states = theirs(torch.from_numpy(x))
    states = states if isinstance(states, tuple) else (states,)
    value = loss({"out": y, **{f"state{n}": s for n, s in enumerate(states)}}, torch.from_numpy(want))
    value.backward()
    infer = aicf.compile(model, device="cpu", variables=program)({"x": x})
    np.testing.assert_allclose(infer["out"].numpy(), y.detach().numpy(), rtol=1e-5, atol=1e-6)
    for n, s in enumerate(states):
        np.testing.assert_allclose(infer[f"state{n}"].numpy(), s.detach().numpy(), rtol=1e-5, atol=1e-6)
    assert float(made["loss"]) == pytest.approx(float(value.detach()), rel=1e-5)
    for n, p in theirs.named_parameters():
        np.testing.assert_allclose(made[f"grad.r.{n}"], p.grad.numpy(), rtol=1e-4, atol=1e-6, err_msg=n)
