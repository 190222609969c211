"""A sequence's length is a named dimension: one model trains at some and runs at any."""

from __future__ import annotations

import numpy as np
import pytest

import aicf
from aicf import nn
from aicf.errors import FeedError, OutOfBoundsError
from aicf.types import TensorSpec

from .decoder import PLACES, WORDS, decoder, doubles, fed, logits, loss_of
from .mlp import on_each_device, params

LENGTHS = (1, 2, 7, 16, 17, PLACES)


@on_each_device
@pytest.mark.parametrize("batch", [1, 3])
def test_a_model_of_one_length_runs_at_any(batch, device):
    program = aicf.compile(decoder(), device=device)
    weights, rng = doubles(program), np.random.default_rng()
    for seq in LENGTHS:
        tokens = fed(rng, batch, seq)["tokens"]
        got = program({"tokens": tokens})["output"].numpy()
        np.testing.assert_allclose(got, logits(weights, tokens), rtol=2e-4, atol=2e-4, err_msg=str(seq))
    for shape in ((0, 5), (2, 0), (0, 0)):
        assert program({"tokens": np.zeros(shape, np.int32)})["output"].shape == (*shape, WORDS)


@on_each_device
def test_gradients_at_other_lengths_are_the_numerical_ones(device):
    program = aicf.compile(decoder(), "grad", device=device, loss=nn.SoftmaxCrossEntropy())
    weights, rng = doubles(program), np.random.default_rng()
    for seq in (5, 16, 1):
        feed = fed(rng, 3, seq)
        got = program(feed)
        assert float(got["loss"]) == pytest.approx(loss_of(weights, feed["tokens"], feed["y"]), rel=1e-4)
        for name, w in weights.items():
            numeric, picked = [], [tuple(rng.integers(0, w.shape)) for _ in range(6)]
            for at in picked:
                sides = []
                for step in (1e-5, -1e-5):
                    moved = w.copy()
                    moved[at] += step
                    sides.append(loss_of({**weights, name: moved}, feed["tokens"], feed["y"]))
                numeric.append((sides[0] - sides[1]) / 2e-5)
            own = got[f"grad.{name}"].numpy()
            np.testing.assert_allclose(
                [own[at] for at in picked], numeric, rtol=2e-3, atol=2e-4 * max(1, np.abs(own).max()),
                err_msg=f"{name} at {seq}",
            )  # fmt: skip


def test_one_model_trains_at_lengths_in_turn_and_infers_what_it_learned():
    """A sentence of which each word is the next one's: learned at 16 and 9, said at 30."""
    model = decoder()
    train = aicf.compile(
        model,
        "train",
        device="cpu",
        loss=nn.SoftmaxCrossEntropy(),
        optimizer=nn.AdamW(1e-2, weight_decay=0.0),
    )
    rng, losses = np.random.default_rng(0), []
    for step in range(80):
        seq = (16, 9)[step % 2]
        words = (rng.integers(0, WORDS, (8, 1)) + np.arange(seq + 1)) % WORDS
        fed = {"tokens": words[:, :-1].astype(np.int32), "y": words[:, 1:]}
        losses.append(float(train(fed)["loss"]))
    assert max(losses[-2:]) < 0.2 < losses[0]
    assert train.get("step") == 80
    said = [3]
    infer = aicf.compile(model, device="cpu")
    for _ in range(11):
        scores = infer({"tokens": np.array([said], np.int32)})["output"].numpy()
        said.append(int(scores[0, -1].argmax()))
    assert said == [(3 + n) % WORDS for n in range(12)]


def test_what_comes_later_changes_nothing_before_it():
    program = aicf.compile(decoder(), device="cpu")
    tokens = fed(np.random.default_rng(), 2, 20)["tokens"]
    whole = program({"tokens": tokens})["output"].numpy()
    for seq in (1, 9, 19):
        part = program({"tokens": tokens[:, :seq]})["output"].numpy()
        np.testing.assert_allclose(part, whole[:, :seq], rtol=1e-4, atol=1e-5)


def test_params_are_the_same_at_every_length():
    long, short = (aicf.compile(decoder(seq=seq), device="cpu") for seq in (32, 3))
    for (name, a), (other, b) in zip(params(long).items(), params(short).items(), strict=True):
        assert name == other and (a == b).all()


def test_a_length_that_fits_no_table_is_told():
    program = aicf.compile(decoder(), device="cpu")
    with pytest.raises(OutOfBoundsError, match=str(PLACES)):
        program({"tokens": np.zeros((1, PLACES + 1), np.int32)})


def test_lengths_of_two_inputs_must_agree_and_a_wrong_one_is_named():
    program = aicf.compile(decoder(), "grad", device="cpu", loss=nn.SoftmaxCrossEntropy())
    with pytest.raises(FeedError, match="with batch = 2 from tokens, seq = 5 from tokens") as error:
        program({"tokens": np.zeros((2, 5), np.int32), "y": np.zeros((2, 6), np.int64)})
    assert "tensor<2x5xi64>" in str(error.value)

    class Sum(nn.Layer):
        def emit(self, ctx, a, b):
            return a + b

    both = nn.Model({"a": TensorSpec(("batch", "seq")), "b": TensorSpec(("seq",))}, Sum(), batch=2, seq=3)
    summed = aicf.compile(both, device="cpu")
    with pytest.raises(FeedError, match="seq = 4, as in a"):
        summed({"a": np.zeros((2, 4), np.float32), "b": np.zeros(5, np.float32)})
