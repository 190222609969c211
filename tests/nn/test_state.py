"""State dicts and initialisers (D16, C17)."""

from __future__ import annotations

import math

import numpy as np
import pytest

import aicf
from aicf import nn
from aicf.errors import StateError, VerifyError

from .mlp import batch_of, host, mlp, on_each_device, params, same, trainer


@on_each_device
@pytest.mark.spec("D16")
def test_a_state_dict_makes_a_fresh_model_equal(device):
    trained, fresh = trainer(device, mlp(seed=1), nn.AdamW(0.01)), trainer(device, mlp(seed=2), nn.AdamW(0.5))
    for step in range(3):
        trained.replay(batch_of(6, seed=step))
    saved = trained.state_dict()
    assert all(isinstance(v, np.ndarray) for v in saved.values())
    assert fresh.load_state_dict(saved) == []
    for step in range(3, 6):
        feed = batch_of(6, seed=step)
        assert same(host(trained.replay(feed)), host(fresh.replay(feed)))
    assert same(trained.state_dict(), fresh.state_dict())
    assert trained.get("lr") == fresh.get("lr") == np.float32(0.01)


@on_each_device
@pytest.mark.spec("D16")
def test_a_state_dict_is_a_copy(device):
    program = trainer(device)
    saved = program.state_dict()
    kept = {k: v.copy() for k, v in saved.items()}
    program.run(batch_of(6))
    assert same(saved, kept)
    saved["0.weight"][...] = 7
    assert not (program.get("0.weight") == 7).any()


@on_each_device
@pytest.mark.spec("D16")
def test_loading_reaches_frozen_plans(device):
    program = trainer(device, optimizer=nn.SGD(0.1))
    start, feed = program.state_dict(), batch_of(6)
    first = host(program.replay(feed))
    assert not same(host(program.replay(feed)), first)
    program.load_state_dict(start)
    assert same(host(program.replay(feed)), first)
    assert program.runs == 1


WRONG = {
    "missing": (lambda s: s.pop("2.bias"), r"missing: 2.bias: tensor<3xf32>"),
    "extra": (lambda s: s.update(unknown=np.zeros(3, np.float32)), r"extra: unknown"),
    "shape": (lambda s: s.update({"2.weight": s["2.weight"].T}), r"2.weight does not fit"),
    "type": (lambda s: s.update({"2.weight": s["2.weight"].astype(np.float16)}), r"2.weight does not fit"),
    "double": (
        lambda s: s.update({"2.weight": s["2.weight"].astype(float)}),
        r"2.weight does not fit\n  expected: tensor<3x7xf32>\n  got: tensor<3x7xf64>",
    ),
    "complex": (
        lambda s: s.update({"2.weight": s["2.weight"].astype(complex)}),
        r"2.weight has element type complex128",
    ),
    "list": (lambda s: s.update({"2.bias": [1.0, 2.0, 3.0]}), r"2.bias is a list"),
}


@on_each_device
@pytest.mark.spec("D16")
@pytest.mark.parametrize("what", WRONG)
def test_a_state_dict_is_loaded_whole_or_not_at_all(device, what):
    program = trainer(device, mlp(seed=1))
    other = trainer(device, mlp(seed=2))
    other.run(batch_of(6))
    state, before = other.state_dict(), program.state_dict()
    breaks, said = WRONG[what]
    breaks(state)
    with pytest.raises(StateError, match=said):
        program.load_state_dict(state)
    assert same(program.state_dict(), before)


@pytest.mark.spec("D16")
def test_without_strict_what_is_common_is_loaded_and_the_missing_are_named():
    program, other = trainer("cpu", mlp(seed=1)), trainer("cpu", mlp(seed=2))
    state = {"0.weight": other.get("0.weight"), "unknown": np.zeros(3, np.float32)}
    before = program.state_dict()
    missing = program.load_state_dict(state, strict=False)
    assert set(missing) == set(program.variables.names()) - {"0.weight"}
    assert program.get("0.weight").tobytes() == other.get("0.weight").tobytes()
    assert program.get("2.weight").tobytes() == before["2.weight"].tobytes()


@on_each_device
@pytest.mark.spec("D16")
def test_an_inference_program_takes_a_training_checkpoint(device):
    trained = trainer(device, mlp(seed=1), nn.AdamW(0.01, clip_norm=1.0))
    for step in range(3):
        trained.replay(batch_of(6, seed=step))
    fresh = aicf.compile(mlp(seed=2), device=device)
    state = trained.state_dict()
    assert fresh.load_state_dict(state) == []
    assert same(params(fresh), params(trained))
    with pytest.raises(StateError, match=r"extra: 9.weight"):
        fresh.load_state_dict({**state, "9.weight": state["0.weight"]})


def dropping(seed: int, batch: int = 6) -> nn.Model:
    model = nn.Model({"x": aicf.TensorSpec(("batch", 5))}, batch=batch, seed=seed)
    return model.add(nn.Linear(5, 7)).add(nn.Dropout(0.5)).add(Counting()).add(nn.Linear(7, 3))


class Counting(nn.Layer):
    """Keeps a state while it trains, and no other time."""

    def emit(self, ctx, x):
        if ctx.training:
            seen = ctx.state("seen", (), 0, aicf.i32)
            ctx.update(seen, ctx.increment(seen))
        return x


@on_each_device
@pytest.mark.spec("D16", "C15")
@pytest.mark.parametrize("mode", ["infer", "grad"])
def test_a_program_that_does_not_train_takes_all_of_a_training_checkpoint_with_dropout(device, mode):
    trained = trainer(device, dropping(1), nn.AdamW(0.01), accumulate=2)
    for step in range(3):
        trained.replay(batch_of(6, seed=step))
    state = trained.state_dict()
    assert {"rng", "2.seen", "optimizer.lr", "0.weight.exp_avg", "program.runs"} <= set(state)
    fresh = aicf.compile(dropping(2), mode, device=device, loss=nn.SoftmaxCrossEntropy())
    assert fresh.load_state_dict(state) == []
    assert same(params(fresh), params(trained))
    for name in ("9.weight", "3.weights", "seen"):
        before = fresh.state_dict()
        with pytest.raises(StateError, match=f"extra: {name}"):
            fresh.load_state_dict({**dropping_zeros(state), name: state["0.weight"]})
        assert same(fresh.state_dict(), before)
    del state["3.bias"]
    with pytest.raises(StateError, match=r"missing: 3.bias"):
        fresh.load_state_dict(state)


def dropping_zeros(state: dict) -> dict:
    """The same names, so that a load that was half done would show."""
    return {name: np.zeros_like(value) for name, value in state.items()}


def test_a_checkpoint_of_a_model_with_dropout_serves_the_model_without_for_inference_only():
    plain = nn.Model({"x": aicf.TensorSpec(("batch", 5))}, batch=6).add(nn.Linear(5, 3))
    with_dropout = (
        nn.Model({"x": aicf.TensorSpec(("batch", 5))}, batch=6).add(nn.Linear(5, 3)).add(nn.Dropout())
    )
    state = trainer("cpu", with_dropout).state_dict()
    assert aicf.compile(plain, device="cpu").load_state_dict(state) == []
    with pytest.raises(StateError, match="extra: rng"):
        trainer("cpu", plain).load_state_dict(state)


BAD_VALUES = {
    "lr": ("optimizer.lr", np.float32("nan"), "a finite number >= 0", "nan"),
    "beta": ("optimizer.beta1", np.float32(2), "a finite number >= 0 and < 1", "2.0"),
    "step": ("optimizer.adam.step", np.int32(-5), "a whole number, 0 or more", "-5"),
    "float step": ("optimizer.adam.step", 2.5, "tensor<i32>", "2.5"),
    "long step": ("optimizer.adam.step", 2**40, "tensor<i32>", "1099511627776"),
    "rng": ("rng", np.array([3, -1]), "a key, and a step of 0 or more", "[3, -1]"),
    "negative runs": ("program.runs", -3, "a 0-D integer, 0 or more", "-3"),
    "half a run": ("program.runs", 1.5, "a 0-D integer, 0 or more", "1.5"),
    "too many runs": ("program.runs", 2**70, "a 0-D integer, 0 or more", str(2**70)),
    "one run too many": ("program.runs", 2**63, "a 0-D integer, 0 or more", str(2**63)),
    "runs in a row": ("program.runs", np.arange(3), "a 0-D integer, 0 or more", "[0, 1, 2]"),
    "runs as text": ("program.runs", "many", "a 0-D integer, 0 or more", "many"),
}


@pytest.mark.spec("D16", "C13")
@pytest.mark.parametrize("what", BAD_VALUES)
def test_a_value_that_no_run_leaves_is_refused_with_its_key_and_nothing_is_loaded(what):
    key, value, expected, got = BAD_VALUES[what]
    source, program = (trainer("cpu", dropping(seed), nn.Adam(0.01)) for seed in (1, 2))
    source.run(batch_of(6))
    state, before = {**source.state_dict(), key: value}, program.state_dict()
    for strict in (True, False):
        with pytest.raises(StateError) as error:
            program.load_state_dict(state, strict=strict)
        text = str(error.value)
        assert key in text and f"expected: {expected}" in text and f"got: {got}" in text, text
        assert same(program.state_dict(), before)
    state[key] = source.state_dict()[key]
    assert program.load_state_dict(state) == []
    assert same(program.state_dict(), source.state_dict())


@pytest.mark.spec("C17")
def test_optimizer_state_is_keyed_by_the_parameter_s_name():
    names = set(trainer("cpu", mlp(), nn.Adam()).state_dict())
    assert {
        f"{p}.{s}" for p in ("0.weight", "0.bias", "2.weight", "2.bias") for s in ("exp_avg", "exp_avg_sq")
    } < names
    assert not any("const" in n for n in names)


@pytest.mark.spec("C17")
def test_two_programs_that_train_one_model_share_its_optimizer_state():
    model = mlp()
    a, b = trainer("cpu", model), trainer("cpu", model)
    a.run(batch_of(6))
    assert b.get("step") == 1
    assert b.get("0.weight.momentum").any()


@pytest.mark.spec("C17")
def test_a_parameter_declared_with_another_type_is_refused():
    program = trainer("cpu", mlp(sizes=(5, 7, 3)))
    with pytest.raises(StateError, match=r"param 0.weight is declared again with another type") as error:
        aicf.compile(mlp(sizes=(5, 8, 3)), device="cpu", variables=program)
    assert "tensor<7x5xf32>" in str(error.value)
    assert "tensor<8x5xf32>" in str(error.value)


# --- initialisers -----------------------------------------------------------------------------------------------------


@pytest.mark.spec("D16")
def test_the_seed_and_the_name_alone_decide_a_weight():
    def weights(*names, seed=0, first=5):
        model = nn.Model({"x": aicf.TensorSpec(("batch", first))}, batch=2, seed=seed)
        for name in names:
            model.add(nn.Linear(5, 5), name)
        return params(aicf.compile(model, device="cpu"))

    one = weights("a", "b")
    assert same(one, weights("a", "b"))
    swapped = weights("b", "c", "a")
    assert all(swapped[k].tobytes() == v.tobytes() for k, v in one.items())
    other = weights("a", "b", seed=1)
    assert not any(np.array_equal(other[k], v) for k, v in one.items())
    assert not np.array_equal(one["a.weight"], one["b.weight"])


@pytest.mark.spec("D16")
@pytest.mark.parametrize(
    "make, low, high, std",
    [
        (nn.init.kaiming_uniform(math.sqrt(5)), -1 / 20, 1 / 20, 1 / 20 / math.sqrt(3)),
        (nn.init.kaiming_uniform(), -math.sqrt(6) / 20, math.sqrt(6) / 20, math.sqrt(2) / 20),
        (nn.init.xavier_uniform(2.0), -0.2, 0.2, 0.2 / math.sqrt(3)),
        (nn.init.normal(0.5), -9, 9, 0.5), (nn.init.uniform(1, 2), 1, 2, 1 / math.sqrt(12)),
    ],
)  # fmt: skip
def test_an_initialiser_has_its_range_and_spread(make, low, high, std):
    """Over a weight of shape (200, 400): fan_in 400, fan_out 200."""
    w = make((200, 400), np.random.default_rng(0))
    assert w.shape == (200, 400)
    assert low <= w.min() < w.max() <= high
    assert abs(w.std() / std - 1) < 0.02


def test_linear_starts_as_pytorch_s_does():
    program = aicf.compile(mlp(sizes=(400, 200)), device="cpu")
    w, b = program.get("0.weight"), program.get("0.bias")
    for value in (w, b):
        assert 0.9 / 20 < abs(value).max() <= 1 / 20
        assert abs(value.mean()) < 0.01


def test_an_initialiser_of_the_wrong_shape_is_named():
    wrong = nn.Linear(5, 3, weight_init=lambda shape, rng: np.zeros((3, 3)))
    model = nn.Model({"x": aicf.TensorSpec(("batch", 5))}, batch=2).add(wrong)
    with pytest.raises(StateError, match=r"the initializer of 0.weight made the wrong shape"):
        aicf.compile(model, device="cpu")


@pytest.mark.parametrize(
    "make, said",
    [
        (lambda: nn.SGD(-0.1), "lr=-0.1"), (lambda: nn.Adam(clip_norm=0.0), "clip_norm=0.0"),
        (lambda: aicf.compile(mlp(), "train", device="cpu"), "needs a loss"),
        (lambda: aicf.compile(mlp(), "train", device="cpu", loss=nn.SoftmaxCrossEntropy()), "needs an optimizer"),
        (lambda: aicf.compile(mlp(), "learn", device="cpu"), "mode 'learn' is unknown"),
        (lambda: trainer("cpu", accumulate=0), "accumulate=0"),
        (lambda: aicf.compile(mlp(), "grad", device="cpu", loss=nn.MeanSquaredError(), accumulate=2), "accumulate=2"),
        (lambda: trainer("cpu", nn.Model({"x": aicf.TensorSpec((3, 2))}).add(nn.ReLU())), "no parameters"),
        (lambda: nn.Model({}), "needs an input"),
        (lambda: nn.Model({"x": aicf.TensorSpec(("batch", 2))}), "no size for batch"),
    ],
)  # fmt: skip
def test_what_can_t_be_trained_is_refused_in_words(make, said):
    with pytest.raises(VerifyError, match=said):
        make()
