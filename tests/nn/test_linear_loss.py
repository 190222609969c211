"""nn.LinearCrossEntropy: a head and its loss as one op, against the two apart and against NumPy."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import numpy as np
import pytest

import aicf
from aicf import nn
from aicf.errors import LabelError, VerifyError
from aicf.types import f16, i32

from .mlp import on_each_device, params

CLASSES = 211


class Words(nn.Layer):
    """Scores of the next token; the head's weight is that of the embedding, or its own."""

    def __init__(self, tied: bool = True, size: int = 8) -> None:
        self.embed = nn.Embedding(CLASSES, size, weight_init=nn.init.normal(0.5))
        self.mlp = nn.MLP(size)
        self.head = nn.Linear(size, CLASSES, bias=False, weight=self.embed if tied else None)

    def emit(self, ctx: Any, tokens: Any) -> Any:
        x = self.embed(tokens)
        return self.head(x + self.mlp(x))


def words(tied: bool = True) -> nn.Model:
    return nn.Model({"tokens": aicf.TensorSpec(("batch", "seq"), i32)}, Words(tied), batch=3, seq=7, seed=2)


def text(seed: int, batch: int = 3, seq: int = 7) -> dict[str, np.ndarray]:
    rng = np.random.default_rng([seed, batch, seq])
    made = rng.integers(0, CLASSES, (batch, seq + 1))
    labels = made[:, 1:].copy()
    labels[rng.random(labels.shape) < 0.2] = -100
    return {"tokens": made[:, :-1].astype(np.int32), "y": labels}


def chain() -> nn.Model:
    model = nn.Model({"x": aicf.TensorSpec(("batch", 5))}, batch=6, seed=1)
    return model.add(nn.Linear(5, 9)).add(nn.Tanh()).add(nn.Linear(9, 7, bias=False), "head")


@pytest.mark.sample(2)
@on_each_device
@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("accumulate", [1, 2])
def test_training_is_that_of_the_head_and_the_loss_apart(device, tied, accumulate):
    made = []
    for loss in (nn.LinearCrossEntropy(label_smoothing=0.1), nn.SoftmaxCrossEntropy(label_smoothing=0.1)):
        program = aicf.compile(
            words(tied), "train", device=device, loss=loss, optimizer=nn.SGD(0.5, momentum=0.9), accumulate=accumulate
        )  # fmt: skip
        seen = [float(program(text(n, seq=7 - n % 2))["loss"]) for n in range(12)]
        made.append((seen, params(program)))
    (fused, weights), (apart, wanted) = made
    np.testing.assert_allclose(fused, apart, rtol=1e-5)
    assert fused[-1] != fused[0] and weights.keys() == wanted.keys()
    for name, weight in weights.items():
        np.testing.assert_allclose(weight, wanted[name], rtol=1e-5, atol=1e-5, err_msg=name)


@on_each_device
def test_loss_and_gradients_are_those_of_numpy(device):
    """With a z-loss, and rows that are left out of the mean."""
    program = aicf.compile(chain(), "grad", device=device, loss=nn.LinearCrossEntropy(z_loss=0.05))
    rng = np.random.default_rng()
    feed = {"x": rng.normal(size=(6, 5)).astype(np.float32), "y": rng.integers(0, 7, 6)}
    feed["y"][2] = -100
    weights = {n: w.astype(np.float64) for n, w in params(program).items()}

    def mean(w):
        h = np.tanh(feed["x"].astype(np.float64) @ w["0.weight"].T + w["0.bias"])
        logits = h @ w["head.weight"].T
        lse = np.log(np.exp(logits).sum(1))
        losses = lse - logits[np.arange(6), np.maximum(feed["y"], 0)] + 0.05 * lse**2
        return losses[feed["y"] >= 0].mean()

    got = program(feed)
    assert sorted(got) == ["grad.0.bias", "grad.0.weight", "grad.head.weight", "loss"]
    np.testing.assert_allclose(float(got["loss"]), mean(weights), rtol=1e-5)
    for name, weight in weights.items():
        numeric = np.empty_like(weight)
        for at in np.ndindex(weight.shape):
            sides = []
            for step in (1e-5, -1e-5):
                moved = {**weights, name: weight.copy()}
                moved[name][at] += step
                sides.append(mean(moved))
            numeric[at] = (sides[0] - sides[1]) / 2e-5
        np.testing.assert_allclose(got[f"grad.{name}"].numpy(), numeric, rtol=1e-3, atol=1e-5, err_msg=name)


@on_each_device
def test_inference_gives_logits_and_sees_what_training_learns(device):
    model = chain()
    train = aicf.compile(model, "train", device=device, loss=nn.LinearCrossEntropy(), optimizer=nn.Adam(0.05))
    x = np.random.default_rng(0).normal(size=(6, 5)).astype(np.float32)
    for _ in range(60):
        result = train({"x": x, "y": np.arange(6)})
    assert list(result) == ["loss"]
    logits = aicf.compile(model, device=device)({"x": x})["output"].numpy()
    assert (logits.argmax(1) == np.arange(6)).all()
    both = aicf.compile(model, device=device, loss=nn.LinearCrossEntropy())({"x": x, "y": np.arange(6)})
    np.testing.assert_allclose(both["output"].numpy(), logits, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(
        float(both["loss"]), np.mean(np.log(np.exp(logits).sum(1)) - logits.diagonal()), rtol=1e-4
    )


@pytest.mark.parametrize("mode", ["grad", "train"])
def test_no_memory_is_planned_for_logits(mode):
    explanation = aicf.explain_for(
        words(), "cpu", mode, loss=nn.LinearCrossEntropy(), optimizer=nn.SGD(0.1) if mode == "train" else None
    )
    assert "linear_cross_entropy_grad" in str(explanation.verbose())
    assert all(slot.spec.numel < 3 * 7 * CLASSES for slot in explanation.plan.slots.values())
    assert any(slot.spec.numel == 8 * CLASSES for slot in explanation.plan.slots.values())


@pytest.mark.parametrize("dtype", [f16, aicf.types.bf16], ids=str)
def test_halves_train(dtype):
    model = nn.Model({"x": aicf.TensorSpec(("batch", 16), dtype)}, batch=32)
    model.add(nn.Linear(16, 32)).add(nn.GELU()).add(nn.Linear(32, 10, bias=False))
    train = aicf.compile(model, "train", device="cpu", loss=nn.LinearCrossEntropy(), optimizer=nn.AdamW(1e-2))
    x = np.random.default_rng(0).normal(size=(32, 16)).astype(dtype.numpy)
    losses = [float(train({"x": x, "y": np.arange(32) % 10})["loss"]) for _ in range(60)]
    assert losses[-1] < 0.2 * losses[0]


@on_each_device
def test_a_label_that_is_no_class_is_named_and_changes_nothing(device):
    program = aicf.compile(
        words(), "train", device=device, loss=nn.LinearCrossEntropy(), optimizer=nn.Adam(0.1)
    )
    program(text(0))
    before, feed = params(program), text(1)
    feed["y"][1, 2] = CLASSES
    with pytest.raises(LabelError, match=rf"label {CLASSES} at row 9 is no class"):
        program(feed)["loss"].numpy()
    assert all(np.array_equal(w, before[n]) for n, w in params(program).items())


class Scaled(nn.Layer):
    def __init__(self) -> None:
        self.head = nn.Linear(5, 7, bias=False)

    def emit(self, ctx: Any, x: Any) -> Any:
        return self.head(x) * 0.5


@pytest.mark.parametrize(
    "last, made", [(nn.Linear(5, 7), "bias_add"), (nn.Tanh(), "tanh"), (Scaled(), "mul")], ids=["bias", "tanh", "scaled"]
)  # fmt: skip
def test_an_output_that_is_no_linear_layer_is_refused(last, made):
    model = nn.Model({"x": aicf.TensorSpec(("batch", 5))}, batch=6).add(last)
    with pytest.raises(VerifyError, match=r"the model's output is not an nn\.Linear without a bias") as error:
        aicf.compile(model, "grad", device="cpu", loss=nn.LinearCrossEntropy())
    said = str(error.value)
    assert (
        "expected: nn.Linear(..., bias=False) as its last layer" in said and f"the result of {made}" in said
    )
    assert "nn.SoftmaxCrossEntropy() takes any logits" in said


@pytest.mark.parametrize(
    "attrs, message",
    [
        ({"z_loss": -1.0}, r"LinearCrossEntropy: z_loss=-1.0"),
        ({"label_smoothing": 2}, r"LinearCrossEntropy: label_smoothing=2"),
        ({"dtype": aicf.f32}, r"LinearCrossEntropy: labels of f32"),
    ],
)
def test_arguments_that_make_no_sense_are_refused(attrs, message):
    with pytest.raises(VerifyError, match=message):
        nn.LinearCrossEntropy(**attrs)


def test_it_is_a_record():
    loss = nn.LinearCrossEntropy(dtype=i32, z_loss=1e-4)
    assert loss == copy.deepcopy(loss) == pickle.loads(pickle.dumps(loss)) != nn.LinearCrossEntropy(dtype=i32)
