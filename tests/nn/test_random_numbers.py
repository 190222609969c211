"""Random numbers in a graph: each draw is another one, each run too, and a run can be had again; their distributions."""

from __future__ import annotations

import math

import numpy as np
import pytest

import aicf
from aicf import nn
from aicf.errors import TypeInferenceError
from aicf.ops.schema import schema_of

from .mlp import host

N = 1 << 16


class Draws(nn.Layer):
    def __init__(self, make) -> None:
        self.make = make

    def emit(self, ctx, x):
        return self.make(ctx, x)


def drawn(make, seed=0, shape=(4,)):
    """A program that returns what `make` draws, beside x."""
    model = nn.Model({"x": aicf.TensorSpec(shape)}, Draws(make), seed=seed)
    program = aicf.compile(model, device="cpu")
    return lambda: host(program({"x": np.zeros(shape, np.float32)}))


def test_each_draw_and_each_run_is_another_and_a_seed_gives_them_again():
    def two(ctx, x):
        return {"a": ctx.random_normal(shape=(64,)), "b": ctx.random_normal(shape=(64,))}

    run, again, other = drawn(two), drawn(two), drawn(two, seed=1)
    first, second = run(), run()
    made = [first["a"], first["b"], second["a"], second["b"], other()["a"]]
    assert len({x.tobytes() for x in made}) == 5
    for got, want in ((again(), first), (again(), second)):
        assert np.array_equal(got["a"], want["a"]) and np.array_equal(got["b"], want["b"])


def phi(x):
    return 0.5 * (1 + np.vectorize(math.erf)(np.asarray(x) / math.sqrt(2)))


def of(name, **attrs):
    return drawn(lambda ctx, x: getattr(ctx, name)(shape=(N,), **attrs))()["output"].astype(np.float64)


def nearly(x, cdf, least, most):
    """Kolmogorov and Smirnov's distance, which is over 1.95 / sqrt(n) once in a thousand."""
    x = np.sort(x)
    assert least <= x[0] and x[-1] <= most
    want, n = cdf(x), len(x)
    apart = max(np.max(np.arange(1, n + 1) / n - want), np.max(want - np.arange(n) / n))
    assert apart < 1.95 / math.sqrt(n)


def test_distributions_of_floats():
    nearly(of("random_uniform", low=-1.0, high=3.0), lambda x: (x + 1) / 4, -1, 3)
    nearly(of("random_normal", mean=2.0, std=0.5), lambda x: phi((x - 2) / 0.5), -1, 5)
    low, high = phi(-1.0), phi(0.5)
    nearly(
        of("random_truncated_normal", low=-1.0, high=0.5), lambda x: (phi(x) - low) / (high - low), -1, 0.5
    )
    halves = drawn(lambda ctx, x: ctx.random_normal(shape=(N,), dtype="f16"))()["output"]
    assert halves.dtype == np.float16 and abs(halves.astype(np.float64).std() - 1) < 0.02


def test_integers_are_all_as_likely_and_within_their_bounds():
    made = drawn(lambda ctx, x: ctx.random_integers(shape=(N,), low=-2, high=5, dtype="i8"))()["output"]
    values, counts = np.unique(made, return_counts=True)
    assert made.dtype == np.int8 and values.tolist() == list(range(-2, 5))
    assert np.sum((counts - N / 7) ** 2 / (N / 7)) < 30  # chi squared of 6 degrees: once in 25,000
    wide = drawn(lambda ctx, x: ctx.random_integers(shape=(N,), low=-(2**30), high=2**30))()["output"]
    nearly(wide.astype(np.float64), lambda x: (x + 2**30) / 2**31, -(2**30), 2**30 - 1)


def test_bernoulli_and_categorical_have_the_probabilities_that_they_are_given():
    p = np.array([0.0, 0.1, 0.5, 1.0], np.float32)

    def make(ctx, x):
        many = ctx.broadcast_in_dim(x, shape=(N, 4), dims=(1,))
        return {
            "hit": ctx.random_bernoulli(many),
            "kept": ctx.random_bernoulli(many, dtype="bool"),
            "token": ctx.random_categorical(ctx.log(many)),
        }

    model = nn.Model({"x": aicf.TensorSpec((4,))}, Draws(make))
    got = host(aicf.compile(model, device="cpu")({"x": p}))
    assert (
        got["hit"].dtype == np.float32
        and set(np.unique(got["hit"])) == {0, 1}
        and got["kept"].dtype == np.bool_
    )
    spread = 4 * np.sqrt(p * (1 - p) / N)
    assert np.all(abs(got["hit"].mean(0) - p) <= spread) and np.all(abs(got["kept"].mean(0) - p) <= spread)
    share = np.bincount(got["token"], minlength=4) / N
    want = p / p.sum()
    assert np.all(abs(share - want) <= 4 * np.sqrt(want * (1 - want) / N))


def test_a_permutation_has_each_number_once_and_each_place_is_as_likely():
    run = drawn(lambda ctx, x: ctx.random_permutation(size=5))
    made = np.array([run()["output"] for _ in range(200)])
    assert all(sorted(row) == list(range(5)) for row in made.tolist())
    assert all(20 <= np.sum(made[:, at] == n) <= 66 for at in range(5) for n in range(5))


def test_draws_train_a_model_whose_noise_has_no_gradient():
    class Noisy(nn.Layer):
        def emit(self, ctx, x):
            return x + ctx.random_normal(shape=x.shape, std=0.01) * ctx.random_bernoulli(abs(x) * 0.0 + 0.5)

    model = nn.Model({"x": aicf.TensorSpec((32, 6))}).add(nn.Linear(6, 6)).add(Noisy()).add(nn.Linear(6, 1))
    learn = aicf.compile(model, "train", device="cpu", loss=nn.MeanSquaredError(), optimizer=nn.Adam(0.05))
    x = np.random.default_rng(0).standard_normal((32, 6), np.float32)
    losses = [float(learn({"x": x, "y": x[:, :1]})["loss"]) for _ in range(60)]
    assert losses[-1] < 0.1 * losses[0]


def test_op_call_takes_a_state_of_the_callers():
    state, y = np.array([7, 3]), np.empty((3, 5), np.int32)
    aicf.op_call("random_bits", [state], [y], {"shape": (3, 5), "layer": 2})
    want = schema_of("random_bits").call_reference([state], {"shape": (3, 5), "layer": 2})[0]
    assert np.array_equal(y, want)


@pytest.mark.parametrize("layer", [0, 1])
def test_bits_are_those_that_the_paper_s_generator_makes(layer):
    """Philox4x32-10 of Random123's known answers: counter 0 and key 0; and the same words for a dropout."""
    from aicf.ops.dropout import random_words

    state = np.array([0, 0])
    got = schema_of("random_bits").call_reference([state], {"shape": (4,), "layer": layer})[0].view(
        np.uint32
    ) ^ np.uint32(1 << 31)
    if layer == 0:
        assert [hex(n) for n in got.tolist()] == ["0x6627e8d5", "0xe169c58d", "0xbc57ac4c", "0x9b00dbd8"]
    assert got.tolist() == [int(w) for w in random_words(0, 0, 0, layer)]


def test_an_error_names_the_op_and_the_constraint():
    with pytest.raises(TypeInferenceError, match=r"random_uniform C4: low is 2\.0, high is 1\.0"):
        drawn(lambda ctx, x: ctx.random_uniform(shape=(3,), low=2.0, high=1.0))
