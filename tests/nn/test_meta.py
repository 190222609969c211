"""Meta-parameters: each program's own, checked as the f32 that devices have; and the rate that a schedule makes of them."""

from __future__ import annotations

import math

import numpy as np
import pytest

import aicf
from aicf import nn
from aicf.errors import StateError, VerifyError

from . import oracle as exact
from .mlp import batch_of, mlp, on_each_device, oracle, params, same, trainer


@on_each_device
@pytest.mark.spec("C13", "C14")
def test_each_program_of_a_model_has_its_own_meta_parameters(device):
    """What is compiled, set and loaded in one leaves the others', frozen plans included."""
    model, feed = mlp(), batch_of(6)
    fast = trainer(device, model, nn.SGD(0.5, momentum=0.0, weight_decay=0.25))
    fast.replay(feed)
    before = fast.state_dict()
    slow = trainer(device, model, nn.SGD(0.125, momentum=0.5))
    assert same(fast.state_dict(), before), "compiling another program changed this one's state"
    assert (slow.get("lr"), slow.get("momentum"), slow.get("weight_decay")) == (0.125, 0.5, 0)
    slow.set(lr=0.0)
    assert (fast.get("lr"), fast.get("weight_decay")) == (0.5, 0.25)
    slow.replay(feed)
    assert same(params(fast), {n: before[n] for n in params(fast)}), "a rate of 0 moved a parameter"
    theirs, rule = oracle(fast), exact.SGD(0.5, 0.0, 0.25)
    rule.update(theirs.params, theirs.step(**feed)[2])
    fast.replay(feed)
    for name, value in params(slow).items():  # the same params
        np.testing.assert_allclose(value, theirs.params[name], rtol=1e-4, atol=1e-6)
    assert fast.get("step") == slow.get("step") == 3, "optimizer state is the model's"
    slow.load_state_dict({**slow.state_dict(), "optimizer.lr": 2.0})
    assert (slow.get("lr"), fast.get("lr")) == (2, 0.5)


@pytest.mark.spec("C13", "C14")
def test_two_optimizers_of_one_model_keep_what_both_have_a_name_for():
    model = mlp()
    sgd, adam = trainer("cpu", model, nn.SGD(0.5, weight_decay=0.5)), trainer("cpu", model, nn.AdamW(0.01))
    assert (sgd.get("lr"), sgd.get("weight_decay")) == (0.5, 0.5)
    assert (adam.get("lr"), adam.get("weight_decay")) == (np.float32(0.01), np.float32(0.01))
    again = aicf.compile(
        model, "train", device="cpu", loss=nn.SoftmaxCrossEntropy(), optimizer=nn.SGD(0.25), variables=adam
    )
    assert (again.get("lr"), sgd.get("lr"), adam.get("lr")) == (0.25, 0.5, np.float32(0.01))
    assert again.variables.shared is sgd.variables.shared


@pytest.mark.spec("C14")
def test_a_plan_for_another_size_keeps_what_was_set():
    program = trainer("cpu", optimizer=nn.SGD(0.5))
    program.set(lr=0.125)
    program.run(batch_of(3))
    assert program.get("lr") == 0.125


@pytest.mark.spec("C14", "C17")
def test_a_program_that_is_refused_leaves_no_variables():
    model = mlp()
    there = trainer("cpu", model, nn.SGD(0.5)).variables.names()
    wrong = nn.Linear(3, 2, bias_init=lambda shape, rng: np.zeros(7))
    model.add(nn.Linear(3, 3)).add(wrong)
    with pytest.raises(StateError, match="made the wrong shape"):
        trainer("cpu", model, nn.Adam())
    assert trainer("cpu", mlp(), variables=aicf.compile(mlp(), device="cpu")).variables.names() == there
    assert not any("exp_avg" in name for name in model._variables[id(aicf.runtime("cpu"))].names())


# --- as f32 -----------------------------------------------------------------------------------------------------------

TOO_FINE = {
    "lr": (1e39, "inf in f32"), "beta1": (0.99999999, "1 in f32"), "beta2": (1 - 1e-9, "1 in f32"),
    "clip_norm": (1e-50, "0 in f32"), "eps": (1e39, "inf in f32"), "weight_decay": (3.5e38, "inf in f32"),
}  # fmt: skip


@pytest.mark.spec("C13")
@pytest.mark.parametrize("name", TOO_FINE)
def test_a_meta_parameter_is_checked_as_the_f32_that_it_becomes(name):
    value, said = TOO_FINE[name]
    made = {"lr": {"lr": value}, "beta1": {"betas": (value, 0.5)}, "beta2": {"betas": (0.5, value)}}
    program = trainer("cpu", optimizer=nn.Adam(0.1, clip_norm=1.0))
    for call in (lambda: nn.Adam(**made.get(name, {name: value})), lambda: program.set(**{name: value})):
        with pytest.raises(VerifyError) as error:
            call()
        assert f"{name}={value!r}" in str(error.value) and "expected: a finite number" in str(error.value)
        assert said in str(error.value)
    with pytest.raises(StateError, match=f"optimizer.{name}"):
        program.load_state_dict({f"optimizer.{name}": value}, strict=False)


@pytest.mark.spec("C13")
def test_the_largest_beta_below_one_trains():
    program = trainer("cpu", optimizer=nn.Adam(0.1, betas=(0.9, 1 - 2**-24)))
    for _ in range(3):
        program.run(batch_of(6))
    assert all(np.isfinite(value).all() for value in program.state_dict().values())


# --- the rate of now --------------------------------------------------------------------------------------------------


def cosine(t: int, base: float) -> float:
    return base * t / 2 if t < 2 else 0.1 + (base - 0.1) * (1 + math.cos(math.pi * min((t - 2) / 6, 1))) / 2


@on_each_device
@pytest.mark.spec("C13")
def test_the_rate_of_now_can_be_read_under_a_schedule(device):
    program = trainer(device, optimizer=nn.SGD(nn.schedules.Cosine(0.5, total=8, warmup=2, floor=0.1)))
    rates = [program.get_last_lr()]
    for _ in range(9):
        program.replay(batch_of(6))
        rates.append(program.get_last_lr())
    np.testing.assert_allclose(rates, [cosine(t, 0.5) for t in range(10)], rtol=1e-6)
    assert program.get("lr") == 0.5, "the base"
    program.set(lr=2.0)
    program.load_state_dict({"optimizer.sgd.step": np.asarray(3, np.int32)}, strict=False)
    assert program.get_last_lr() == pytest.approx(cosine(3, 2.0), rel=1e-6)


def test_the_rate_without_a_schedule_is_what_was_set_and_a_program_without_one_says_so():
    program = trainer("cpu", optimizer=nn.AdamW(0.25))
    program.set(lr=0.5)
    assert program.get_last_lr() == 0.5
    with pytest.raises(StateError, match="'infer', has no learning rate"):
        aicf.compile(mlp(), device="cpu").get_last_lr()


class Halving(nn.schedules.Schedule):
    """One of a user's own, of several ops and a constant."""

    def emit(self, ctx, step, base):
        return ctx.mul(ctx.schedule_step(step, base, every=1, gamma=0.5), 3.0)


def test_a_schedule_of_the_user_s_own_tells_its_rate():
    assert [Halving(4.0).rate(step) for step in range(4)] == [12.0, 6.0, 3.0, 1.5]
    program = trainer("cpu", optimizer=nn.SGD(Halving(4.0)))
    program.run(batch_of(6))
    assert program.get_last_lr() == 6.0


SCHEDULES = {
    "cosine": lambda **how: nn.schedules.Cosine(0.1, **how), "linear": lambda **how: nn.schedules.Linear(0.1, **how),
    "step": lambda **how: nn.schedules.StepDecay(0.1, **how),
}  # fmt: skip
ENDS = [
    ("cosine", {"total": 10, "warmup": 10}, False), ("linear", {"total": 10, "warmup": 10}, False),
    ("cosine", {"total": 10, "warmup": 9}, True), ("linear", {"total": 1, "warmup": 0}, True),
    ("cosine", {"total": 2**31 - 1}, True), ("linear", {"total": 2**31}, False), ("cosine", {"total": 2**70}, False),
    ("linear", {"total": 5, "floor": 1e39}, False), ("cosine", {"total": 5, "floor": 1.0}, True),
    ("step", {"every": 1, "gamma": 0}, True), ("step", {"every": 2**70}, False), ("step", {"every": 3, "gamma": 1e39}, False),
    ("step", {"every": True}, False), ("linear", {"total": np.int64(7), "warmup": np.int32(6)}, True),
]  # fmt: skip


@pytest.mark.spec("C13")
@pytest.mark.parametrize("kind, how, taken", ENDS)
def test_a_schedule_is_refused_when_it_is_made_or_compiles_and_runs(kind, how, taken):
    if not taken:
        with pytest.raises(VerifyError, match=r"(Cosine|Linear|StepDecay): \w+="):
            SCHEDULES[kind](**how)
        return
    program = trainer("cpu", optimizer=nn.SGD(SCHEDULES[kind](**how)))
    for _ in range(3):
        program.run(batch_of(6))
    assert math.isfinite(program.get_last_lr()) and np.isfinite(program.get("0.weight")).all()
