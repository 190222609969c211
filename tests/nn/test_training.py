"""Training programs (C11-C14, C17, D16): what is bound once, what changes, and that replay is the same program."""

from __future__ import annotations

import math
import signal
import threading
from copy import copy

import numpy as np
import pytest

import aicf
from aicf import nn, whole
from aicf.errors import FeedError, LabelError, NanError, StateError, VerifyError

from . import oracle as exact
from .mlp import batch_of, host, mlp, on_each_device, oracle, params, same, trainer


@on_each_device
@pytest.mark.spec("C11", "C12", "B13")
@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
def test_a_hundred_eager_steps_and_replays_agree_bit_for_bit(device, optimizer):
    made = [
        trainer(device, mlp("gelu", seed=5), {"sgd": nn.SGD(0.1, 0.9), "adamw": nn.AdamW(0.01)}[optimizer])
        for _ in range(2)
    ]
    eager, replayed = made
    for step in range(100):
        feed = batch_of(6 if step % 10 else 5, seed=step)
        assert same(host(eager.run(feed)), host(replayed.replay(feed))), f"step {step}"
        assert eager.executed == replayed.executed
    assert same(eager.state_dict(), replayed.state_dict())
    assert eager.get("step") == 100


@on_each_device
@pytest.mark.spec("C12")
def test_eager_steps_and_replays_may_alternate(device):
    mixed, plain = trainer(device, mlp(seed=2)), trainer(device, mlp(seed=2))
    for step in range(8):
        feed = batch_of(6, seed=step)
        assert same(host((mixed.run, mixed.replay)[step % 2](feed)), host(plain.run(feed)))
    assert same(mixed.state_dict(), plain.state_dict())


@on_each_device
@pytest.mark.spec("C11")
@pytest.mark.parametrize("how", ["run", "replay"])
def test_fed_params_and_state_are_ignored_in_train_mode(device, how):
    fed, plain = trainer(device), trainer(device)
    zeros = {
        name: np.zeros_like(fed.get(name))
        for name in ("0.weight", "2.bias", "0.weight.momentum", "optimizer.sgd.step")
    }
    for step in range(4):
        feed = batch_of(6, seed=step)
        assert same(host(getattr(fed, how)({**feed, **zeros})), host(getattr(plain, how)(feed)))
    assert same(fed.state_dict(), plain.state_dict())
    assert fed.get("step") == 4


@on_each_device
@pytest.mark.spec("C11")
def test_inputs_alone_change_and_results_are_the_callers_own(device):
    program = trainer(device, optimizer=nn.SGD(0.0))
    first, second = batch_of(6, seed=1), batch_of(6, seed=2)
    a = program.replay(first)
    before = host(a)
    b = host(program.replay(second))
    assert same(host(a), before), "a later replay wrote over an earlier result"
    assert not same(before, b)
    assert same(host(program.replay(first)), before)


@on_each_device
@pytest.mark.spec("C14")
def test_compiling_and_freezing_leave_params_and_state_as_they_were(device):
    program = trainer(device)
    program.run(batch_of(6))
    before = program.state_dict()
    program.compiled({"batch": 4})
    aicf.compile(program.recipe.model, device=device)
    assert same(program.state_dict(), before)
    other = trainer(device)
    other.run(batch_of(6))
    other.replay(batch_of(6, seed=1))  # binds, then runs once: one step, not two
    program.run(batch_of(6, seed=1))
    assert same(other.state_dict(), program.state_dict())


@on_each_device
@pytest.mark.spec("C4")
def test_a_compiled_program_keeps_the_layers_it_was_compiled_with(device):
    """Also in the plans that it makes later, for other batch sizes. If the model itself has changed, a run would be of an older one."""
    model = mlp(sizes=(5, 3))
    stale = aicf.compile(model, device=device)
    program = aicf.compile(copy(model), device=device, variables=stale)
    model.add(nn.Tanh())
    with pytest.raises(StateError, match="layer '1' was added"):
        stale({"x": batch_of(6)["x"]})
    feed = {"x": batch_of(6)["x"]}
    want = oracle(program).forward(feed["x"])
    assert abs(want).max() > 0.5, "tanh would show"
    for rows in (6, 2):
        got = program.run({"x": feed["x"][:rows]})["output"].numpy()
        np.testing.assert_allclose(got, want[:rows], rtol=1e-4, atol=1e-5)
    extended = aicf.compile(model, device=device)
    assert extended.variables.shared is program.variables.shared
    np.testing.assert_allclose(extended.run(feed)["output"].numpy(), np.tanh(want), rtol=1e-4, atol=1e-5)


# --- meta-parameters --------------------------------------------------------------------------------------------------


@on_each_device
@pytest.mark.spec("C13")
def test_a_new_learning_rate_needs_no_new_plan(device):
    program = trainer(device, optimizer=nn.SGD(0.5))
    model = oracle(program)
    for step, lr in enumerate([0.5, 0.5, 0.01, 0.0]):
        program.set(lr=lr)
        feed = batch_of(6, seed=step)
        _, _, grads = model.step(**feed)
        exact.SGD(lr).update(model.params, grads)
        program.replay(feed)
    for name, value in params(program).items():
        np.testing.assert_allclose(value, model.params[name], rtol=1e-4, atol=1e-6)
    assert (len(program._plans), len(program._frozen)) == (1, 1)
    assert program.compiled({"batch": 6}).plan.key == trainer(device, optimizer=nn.SGD(0.01)).plan.key


@on_each_device
@pytest.mark.spec("C13")
def test_each_meta_parameter_of_adam_can_be_set(device):
    program = trainer(device, optimizer=nn.AdamW(0.1, betas=(0.1, 0.2), eps=1.0, weight_decay=0.0))
    program.set(lr=0.01, beta1=0.8, beta2=0.95, eps=1e-6, weight_decay=0.1)
    model, theirs = oracle(program), exact.Adam(0.01, (0.8, 0.95), 1e-6, 0.1, decoupled=True)
    for step in range(3):
        feed = batch_of(6, seed=step)
        theirs.update(model.params, model.step(**feed)[2])
        program.replay(feed)
    for name, value in params(program).items():
        np.testing.assert_allclose(value, model.params[name], rtol=1e-3, atol=1e-5)


@pytest.mark.spec("C13")
def test_an_unknown_meta_parameter_is_refused_and_nothing_is_set():
    program = trainer("cpu", optimizer=nn.SGD(0.5))
    with pytest.raises(StateError, match="no meta-parameter is called 'beta1'") as error:
        program.set(lr=0.1, beta1=0.9)
    assert "lr, momentum, weight_decay" in str(error.value)
    with pytest.raises(VerifyError, match=r"momentum=array"):
        program.set(lr=0.1, momentum=np.zeros(3, np.float32))
    assert program.get("lr") == np.float32(0.5)
    with pytest.raises(StateError, match="no variable is called"):
        program.get("nothing")


CURVES = {
    "cosine": (nn.schedules.Cosine(0.5, total=12, warmup=4, floor=0.02),
               lambda t: 0.5 * t / 4 if t < 4 else 0.02 + 0.48 * (1 + math.cos(math.pi * min((t - 4) / 8, 1))) / 2),
    "linear": (nn.schedules.Linear(0.5, total=10, warmup=2, floor=0.1),
               lambda t: 0.5 * t / 2 if t < 2 else 0.5 - 0.4 * min((t - 2) / 8, 1)),
    "step": (nn.schedules.StepDecay(0.5, every=3, gamma=0.1), lambda t: 0.5 * 0.1 ** (t // 3)),
}  # fmt: skip


class Slope(nn.Layer):
    """y = x * w, with one weight that starts at 0."""

    def emit(self, ctx, x):
        return ctx.mul(x, ctx.param("w", (1,), nn.init.zeros))


@on_each_device
@pytest.mark.spec("C13", "D16", "D13")
@pytest.mark.parametrize("name", CURVES)
def test_a_schedule_in_the_graph_gives_the_textbook_rates(device, name):
    """The gradient of (w - t)^2 at w = t + 1/2 is 1: SGD then moves w by the rate."""
    schedule, curve = CURVES[name]
    model = nn.Model({"x": aicf.TensorSpec(("batch", 1))}, batch=1).add(Slope())
    program = trainer(device, model, nn.SGD(schedule), "mse")
    rates = []
    for _ in range(14):
        w = program.get("0.w")
        program.replay({"x": np.ones((1, 1), np.float32), "y": (w - 0.5).reshape(1, 1)})
        rates.append(float(w[0] - program.get("0.w")[0]))
    np.testing.assert_allclose(rates, [curve(t) for t in range(14)], rtol=1e-4, atol=1e-6)
    assert len(program._frozen) == 1
    program.set(lr=0.0)
    w = program.get("0.w")
    program.replay({"x": np.ones((1, 1), np.float32), "y": (w - 0.5).reshape(1, 1)})
    floor = getattr(schedule, "floor", 0.0)
    np.testing.assert_allclose(w[0] - program.get("0.w")[0], floor, atol=1e-6)


# --- clipping, accumulation, partial batches --------------------------------------------------------------------------


@on_each_device
@pytest.mark.spec("D16")
@pytest.mark.parametrize("max_norm", [0.05, 1e3])
def test_gradient_clipping_by_the_joint_norm(device, max_norm):
    program = trainer(device, optimizer=nn.SGD(0.5, momentum=0.9, clip_norm=max_norm))
    model, theirs = oracle(program), exact.SGD(0.5, 0.9)
    for step in range(5):
        feed = batch_of(6, seed=step)
        grads = model.step(**feed)[2]
        theirs.update(model.params, exact.clipped(grads, max_norm))
        program.replay(feed)
    norm = math.sqrt(sum(float((g * g).sum()) for g in grads.values()))
    assert (norm > max_norm) == (max_norm == 0.05)
    for name, value in params(program).items():
        np.testing.assert_allclose(value, model.params[name], rtol=1e-3, atol=1e-5)


@on_each_device
@pytest.mark.spec("D16")
@pytest.mark.parametrize("how", ["run", "replay"])
def test_accumulating_four_small_batches_is_one_step_with_the_large_one(device, how):
    whole = trainer(device, mlp(seed=3, batch=8), nn.SGD(0.5, momentum=0.9))
    parts = trainer(device, mlp(seed=3, batch=2), nn.SGD(0.5, momentum=0.9), accumulate=4)
    for step in range(3):
        feed = batch_of(8, seed=step)
        getattr(whole, how)(feed)
        before = params(parts)
        for i in range(4):
            assert same(params(parts), before), "a weight moved between steps"
            getattr(parts, how)({k: v[2 * i : 2 * i + 2] for k, v in feed.items()})
    assert whole.get("step") == parts.get("step") == 3
    for name, value in params(whole).items():
        np.testing.assert_allclose(parts.get(name), value, rtol=1e-4, atol=1e-5)
        np.testing.assert_array_equal(parts.get(f"{name}.grad_sum"), 0.0)


@on_each_device
@pytest.mark.spec("D16", "C13")
def test_an_accumulating_program_has_all_its_variables_before_its_first_step(device):
    program = trainer(device, optimizer=nn.AdamW(0.01), accumulate=3)
    program.set(lr=0.5)
    assert {"optimizer.lr", "0.weight.exp_avg", "0.weight.grad_sum"} <= set(program.state_dict())


@on_each_device
@pytest.mark.spec("D16")
def test_the_run_counter_goes_with_the_state_so_that_accumulation_resumes_in_the_middle(device):
    straight = trainer(device, mlp(seed=3), nn.SGD(0.1), accumulate=3)
    first, second = (trainer(device, mlp(seed=s), nn.SGD(0.1), accumulate=3) for s in (3, 4))
    for step in range(7):
        straight.run(batch_of(6, seed=step))
    for step in range(4):
        first.run(batch_of(6, seed=step))
    second.load_state_dict(first.state_dict())
    for step in range(4, 7):
        second.run(batch_of(6, seed=step))
    assert same(second.state_dict(), straight.state_dict())


@on_each_device
@pytest.mark.spec("D16", "C17")
def test_a_partial_last_batch_has_its_own_plan_and_the_same_state(device):
    program = trainer(device, optimizer=nn.SGD(0.1, momentum=0.9))
    model, theirs = oracle(program), exact.SGD(0.1, 0.9)
    for step, rows in enumerate([6, 6, 2, 6, 1]):
        feed = batch_of(rows, seed=step)
        loss, out, grads = model.step(**feed)
        theirs.update(model.params, grads)
        got = host(program.replay(feed))
        np.testing.assert_allclose(got["loss"], loss, rtol=1e-4)
        assert got["output"].shape == (rows, 3)
        np.testing.assert_allclose(got["output"], out, rtol=1e-3, atol=1e-5)
    for name, velocity in theirs.v.items():
        np.testing.assert_allclose(program.get(f"{name}.momentum"), velocity, rtol=1e-3, atol=1e-5)
    assert len(program._plans) == 3
    assert program.get("step") == 5


@on_each_device
@pytest.mark.spec("D16", "C17")
def test_an_inference_program_sees_what_training_learns(device):
    model = mlp()
    program, inference = trainer(device, model), aicf.compile(model, device=device)
    assert inference.variables.shared is program.variables.shared
    feed = batch_of(4)
    before = host(inference({"x": feed["x"]}))
    for _ in range(3):
        program.replay(feed)
    after = host(inference({"x": feed["x"]}))
    assert not same(before, after)
    np.testing.assert_allclose(after["output"], oracle(program).forward(feed["x"]), rtol=1e-4, atol=1e-5)


@on_each_device
@pytest.mark.spec("C11")
def test_an_eager_inference_run_takes_other_parameters_for_once(device):
    program = aicf.compile(mlp(sizes=(5, 3)), device=device)
    x, w = batch_of(6)["x"], np.random.default_rng(1).normal(size=(3, 5)).astype(np.float32)
    plain = host(program.run({"x": x}))
    got = program.run({"x": x, "0.weight": w})["output"].numpy()
    np.testing.assert_allclose(got, x @ w.T.astype(float) + program.get("0.bias"), rtol=1e-4, atol=1e-5)
    assert same(host(program.run({"x": x})), plain)
    with pytest.raises(FeedError, match=r"0.weight is bound once for all replays"):
        program.replay({"x": x, "0.weight": w})
    with pytest.raises(FeedError, match=r"the feed of 0.weight is wrong"):
        program.run({"x": x, "0.weight": w.T})


class Scaled(nn.Layer):
    """x times a 0-D parameter."""

    def emit(self, ctx, x):
        return ctx.mul(x, ctx.param("scale", (), nn.init.ones))


@on_each_device
def test_a_parameter_without_dimensions_can_be_fed_and_trained(device):
    model = nn.Model({"x": aicf.TensorSpec(("batch", 2))}, batch=3).add(Scaled())
    x = np.random.default_rng(0).normal(size=(3, 2)).astype(np.float32)
    got = aicf.compile(model, device=device).run({"x": x, "0.scale": np.float32(-2)})["output"].numpy()
    np.testing.assert_array_equal(got, -2 * x)
    program = trainer(device, model, nn.SGD(0.1), "mse")
    program.replay({"x": x, "y": np.zeros_like(x)})
    np.testing.assert_allclose(program.get("0.scale"), 1 - 0.1 * 2 * np.mean(x.astype(float) ** 2), rtol=1e-5)


# --- the first NaN ----------------------------------------------------------------------------------------------------


class Log(nn.Layer):
    def emit(self, ctx, x):
        return ctx.exp(ctx.log(x))


@on_each_device
@pytest.mark.spec("D16")
@pytest.mark.parametrize("how", ["run", "replay"])
def test_the_first_nan_is_traced_to_its_op(device, how, monkeypatch):
    model = nn.Model({"x": aicf.TensorSpec(("batch", 5))}, batch=6).add(Log()).add(nn.Linear(5, 3))
    program = aicf.compile(model, device=device)
    x = np.abs(batch_of(6)["x"])
    x[2, 3] = -1.0
    assert np.isnan(getattr(program, how)({"x": x})["output"].numpy()).any()  # unchecked, it goes through
    monkeypatch.setenv("AICF_CHECK", "nan")
    with pytest.raises(NanError, match=r"step 0 made the first NaN: log") as error:
        getattr(program, how)({"x": x})
    assert "1 NaN of 30" in str(error.value)
    assert "log made it" in str(error.value) or "log + exp" not in str(error.value)
    assert "test_training.py" in error.value.where
    assert np.isfinite(getattr(program, how)({"x": np.abs(x)})["output"].numpy()).all()
    x[0, 0] = np.nan
    monkeypatch.delenv("AICF_CHECK")
    assert np.isnan(getattr(program, how)({"x": x})["output"].numpy()).any()


class Masked(nn.Layer):
    """A NaN that is masked, and one that is not."""

    def emit(self, ctx, x):
        kept = ctx.select(ctx.greater(x, 0.0), ctx.log(x), 0.0)
        return ctx.div(kept, ctx.sub(kept, kept))


@on_each_device
@pytest.mark.spec("D16")
def test_a_nan_is_traced_back_through_the_places_that_have_it(device, monkeypatch):
    program = aicf.compile(
        nn.Model({"x": aicf.TensorSpec(("batch", 5))}, batch=6).add(Masked()), device=device
    )
    monkeypatch.setenv("AICF_CHECK", "nan")
    with pytest.raises(NanError) as error:
        program.run({"x": -np.ones((6, 5), np.float32)})
    if len(program.plan.kernel_ids) == 1:
        assert "div made it" in str(error.value)


@on_each_device
@pytest.mark.spec("D16")
@pytest.mark.parametrize("how", ["run", "replay"])
def test_a_nan_that_comes_from_outside_is_named(device, how, monkeypatch):
    monkeypatch.setenv("AICF_CHECK", "nan")
    program = aicf.compile(mlp(), device=device)
    x = batch_of(6)["x"]
    x[0, 0] = np.nan
    with pytest.raises(NanError, match="input x has NaN before anything ran"):
        getattr(program, how)({"x": x})
    weight = program.get("2.weight")
    weight[1, 1] = np.nan
    program.load_state_dict({"2.weight": weight}, strict=False)
    with pytest.raises(NanError, match=r"param 2.weight has NaN(.|\n)*load a state dict"):
        getattr(program, how)({"x": batch_of(6)["x"]})


@on_each_device
@pytest.mark.spec("D16")
def test_a_label_that_is_no_class_is_named_by_row(device, monkeypatch):
    monkeypatch.setenv("AICF_CHECK", "nan")
    program, feed = trainer(device), batch_of(6)
    feed["y"][4] = 3
    with pytest.raises(LabelError, match="label 3 at row 4 is no class"):
        program.run(feed)


@on_each_device
@pytest.mark.spec("D16")
def test_threads_never_see_each_other_s_results(device):
    program = aicf.compile(mlp(), device=device)
    feeds = [batch_of(6, seed=n)["x"] for n in range(4)]
    wanted = [program.run({"x": x})["output"].numpy() for x in feeds]
    wrong = []

    def work(n):
        for _ in range(100):
            if not np.array_equal(program({"x": feeds[n]})["output"].numpy(), wanted[n]):
                wrong.append(n)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not wrong


@pytest.fixture
def interruptible():
    """Python's handler of Ctrl-C, which a process that a shell starts in the background does not have."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield signal.default_int_handler
    signal.signal(signal.SIGINT, before)


@pytest.mark.spec("C11")
def test_ctrl_c_never_tears_a_training_step(monkeypatch, interruptible):
    """An interrupt in the middle of a step arrives after it: the state is that of whole steps."""
    program, plain = trainer("cpu"), trainer("cpu")
    program(batch_of(6))
    frozen = next(iter(program._frozen.values()))
    step, call = frozen.bound.calls[3]

    def interrupted(*on):
        signal.raise_signal(signal.SIGINT)
        call(*on)

    frozen.bound.calls[3] = (step, interrupted)
    monkeypatch.setenv("AICF_CHECK", "nan")  # walks the calls one by one
    with pytest.raises(KeyboardInterrupt):
        program(batch_of(6, seed=1))
    for seed in range(2):
        plain(batch_of(6, seed=seed))
    assert same(program.state_dict(), plain.state_dict())
    assert signal.getsignal(signal.SIGINT) is interruptible


def test_a_handler_of_ctrl_c_that_is_not_python_s_is_left_alone(monkeypatch, interruptible):
    """It could not be brought back."""
    monkeypatch.setattr(whole, "getsignal", lambda number: None)
    with whole.Uninterrupted():
        assert signal.getsignal(signal.SIGINT) is interruptible
    assert signal.getsignal(signal.SIGINT) is interruptible


@on_each_device
@pytest.mark.spec("C17", "D16")
def test_a_second_optimizer_brings_its_own_rate_and_its_own_state(device):
    model = mlp()
    first = trainer(device, model, nn.SGD(0.5, momentum=0.9, clip_norm=1.0))
    first(batch_of(6))
    saved = first.state_dict()
    second = trainer(device, model, nn.AdamW(1e-3, weight_decay=0.3))
    assert (second.get("lr"), second.get("weight_decay"), second.get("step")) == (
        np.float32(1e-3), np.float32(0.3), 0,
    )  # fmt: skip
    assert not [n for n in second.state_dict() if "momentum" in n or "clip" in n]
    first.load_state_dict(
        saved
    )  # a checkpoint of a program fits it, whatever the model was compiled for since
    assert first.get("step") == 1
