"""Dropout in models: random state on the device, another mask each run, the same one forward and backward (C15)."""

from __future__ import annotations

import numpy as np
import pytest

import aicf
from aicf import nn
from aicf.errors import VerifyError
from aicf.ops.dropout import kept

from .mlp import batch_of, host, on_each_device, same, trainer


def model_of(rate: float = 0.5, seed: int = 0, *layers: nn.Layer) -> nn.Model:
    model = nn.Model({"x": aicf.TensorSpec(("batch", 5))}, batch=6, seed=seed)
    model.add(nn.Linear(5, 7)).add(nn.ReLU()).add(nn.Dropout(rate))
    for layer in layers:
        model.add(layer)
    return model.add(nn.Linear(7, 3))


@on_each_device
@pytest.mark.spec("C15", "C12")
def test_masks_differ_from_run_to_run_and_replays_equal_eager_runs(device):
    eager, replayed = (trainer(device, model_of(), nn.SGD(0.0)) for _ in range(2))
    feed, losses = batch_of(6), []
    for step in range(5):
        results = host(eager.run(feed))
        assert same(results, host(replayed.replay(feed)))
        losses.append(results["loss"].item())
        assert eager.get("rng")[1] == replayed.get("rng")[1] == step + 1
    assert len(set(losses)) == 5, "nothing but the mask changes where the learning rate is 0"
    assert same(eager.state_dict(), replayed.state_dict())


@on_each_device
@pytest.mark.spec("C15", "D16")
def test_random_state_is_checkpointed(device):
    program, feed = trainer(device, model_of(seed=1)), batch_of(6)
    program.replay(feed)
    saved = program.state_dict()
    assert saved["rng"].dtype == np.int64 and saved["rng"][1] == 1
    went_on = [host(program.replay(feed)) for _ in range(3)]
    other = trainer(device, model_of(seed=2))
    assert other.get("rng")[0] != saved["rng"][0], "another seed, another key"
    other.load_state_dict(saved)
    assert all(same(host(other.replay(feed)), want) for want in went_on)


@on_each_device
@pytest.mark.spec("C14", "C15")
def test_compiling_and_freezing_draw_nothing(device):
    program = trainer(device, model_of())
    assert program.get("rng")[1] == 0
    key = program.get("rng")[0]
    program.replay(batch_of(6))
    program.replay(batch_of(5))  # another plan, of the same state
    assert list(program.get("rng")) == [key, 2]


@on_each_device
@pytest.mark.spec("C15")
def test_inference_drops_nothing(device):
    model = model_of(0.9)
    program = aicf.compile(model, device=device)
    x = batch_of(6)["x"]
    plain = nn.Model({"x": aicf.TensorSpec(("batch", 5))}, batch=6)
    plain.add(nn.Linear(5, 7)).add(nn.ReLU()).add(nn.Dropout(0.0)).add(nn.Linear(7, 3))
    want = aicf.compile(plain, device=device).run({"x": x})
    assert same(host(program.run({"x": x})), host(want))
    assert "rng" not in program.state_dict()


@on_each_device
@pytest.mark.spec("C15", "D13")
def test_forward_and_backward_use_one_mask(device):
    """y = sum of dropout(x w): its gradient by w is, in float64, that of the mask the state says."""
    program = aicf.compile(model_of(0.4), "grad", device=device, loss=nn.MeanSquaredError())
    feed = batch_of(6, loss="mse")
    for step in range(3):
        got = host(program.run(feed))
        p = {n: program.get(n).astype(np.float64) for n in ("0.weight", "0.bias", "3.weight", "3.bias")}
        mask = kept(42, np.array([program.get("rng")[0], step]), 0.4, 0).reshape(6, 7) / 0.6
        z = feed["x"] @ p["0.weight"].T + p["0.bias"]
        dropped = np.maximum(z, 0) * mask
        out = dropped @ p["3.weight"].T + p["3.bias"]
        dout = 2 * (out - feed["y"]) / out.size
        dz = (dout @ p["3.weight"]) * mask * (z > 0)
        np.testing.assert_allclose(got["output"], out, rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(got["grad.3.weight"], dout.T @ dropped, rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(got["grad.0.weight"], dz.T @ feed["x"], rtol=1e-4, atol=1e-5)


@pytest.mark.spec("C15")
def test_one_state_for_all_dropouts_and_one_advance_after_all_of_them():
    shared = nn.Dropout(0.5)
    model = model_of(0.5, 0, shared, shared)
    program = trainer("cpu", model)
    text = [str(op.kind) for op in _ops(program)]
    assert text.count("rng_advance") == 1 and text.index("rng_advance") > max(
        i for i, kind in enumerate(text) if kind == "dropout"
    )
    layers = [op.attrs["layer"] for op in _ops(program) if str(op.kind) == "dropout"]
    assert sorted(layers) == [0, 0, 1, 1, 2, 2], "each with a number of its own, forward and backward"


def _ops(program):
    from aicf.graph.emit.trace import trace

    return trace(program.recipe, program.recipe.model.sizes, "cpu").ops


def test_accumulated_runs_draw_anew():
    program = trainer("cpu", model_of(), nn.SGD(0.0), accumulate=2)
    losses = [host(program.replay(batch_of(6)))["loss"].item() for _ in range(4)]
    assert len(set(losses)) == 4 and program.get("rng")[1] == 4


@pytest.mark.parametrize("rate", [0.0, 1.0])
def test_the_ends_of_the_rate(rate):
    program = trainer("cpu", model_of(rate))
    out = host(program.run(batch_of(6)))["output"]
    assert np.isfinite(out).all() and (rate < 1 or (out == out[0]).all()), (
        "at 1 the last layer's bias is left"
    )


@pytest.mark.parametrize("rate", [-0.1, 1.1, float("nan"), "half", True])
def test_what_is_no_rate(rate):
    with pytest.raises(VerifyError, match="Dropout: rate="):
        nn.Dropout(rate)
