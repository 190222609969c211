"""What a training step keeps of half parameters: moments, norms and sums of gradients are f32 (D16)."""

from __future__ import annotations

import io

import numpy as np
import pytest

import aicf
from aicf import nn
from aicf.types import DType

from . import oracle as exact
from .mlp import batch_of, host, mlp, on_each_device, params, same, trainer

HALVES = pytest.mark.parametrize("dtype", [DType.f16, DType.bf16], ids=["f16", "bf16"])
STEPS = 60
# of a weight that moves by some 0.06 and lies near 0.3: the nearest f16 is 1e-4 away at most, and errors of 60 steps add up;
# the nearest bf16 is 1e-3 away, which is a whole step
TOLERANCE = {DType.f16: 4e-3, DType.bf16: 6e-2}


def narrow(dtype: DType, inputs: int = 6) -> nn.Model:
    model = nn.Model({"x": aicf.TensorSpec(("batch", inputs), dtype)}, batch=8, seed=3)
    return model.add(nn.Linear(inputs, 3))


def feed_of(dtype: DType, step: int, scale: float, inputs: int = 6, rows: int = 8) -> dict[str, np.ndarray]:
    rng = np.random.default_rng([5, step])
    x = rng.normal(size=(rows, inputs)) * scale
    return {"x": x.astype(dtype.numpy), "y": rng.integers(0, 3, rows)}


def train(device: str, dtype: DType, optimizer: nn.Optimizer, **more) -> aicf.graph.run.program.Program:
    return aicf.compile(
        narrow(dtype), "train", device=device, loss=nn.SoftmaxCrossEntropy(), optimizer=optimizer, **more
    )


@pytest.mark.sample(1, each="dtype")
@on_each_device
@pytest.mark.spec("D16")
@HALVES
@pytest.mark.parametrize("decoupled", [False, True], ids=["adam", "adamw"])
def test_sixty_steps_of_adam_stay_near_float64(device, dtype, decoupled):
    """Gradients of some 1e-3, whose squares are nothing in f16: a step would be lr / eps times too long."""
    made = (nn.AdamW if decoupled else nn.Adam)(1e-3, weight_decay=0.0)
    program = train(device, dtype, made)
    start = {n: v.astype(np.float64) for n, v in params(program).items()}
    model, theirs = exact.MLP(dict(start), "relu"), exact.Adam(1e-3)
    for step in range(STEPS):
        feed = feed_of(dtype, step, 3e-3)
        theirs.update(model.params, model.step(feed["x"].astype(np.float64), feed["y"])[2])
        program.replay(feed)
    for name, value in params(program).items():
        assert value.dtype == dtype.numpy
        squares = program.get(f"{name}.exp_avg_sq")
        np.testing.assert_allclose(squares, theirs.v[name], rtol=0.05 if dtype is DType.f16 else 0.3)
        assert np.abs(value.astype(np.float64) - model.params[name]).max() <= TOLERANCE[dtype], name
    assert max(np.abs(model.params[n] - start[n]).max() for n in start) > 0.01, "nothing was learnt"


@on_each_device
@pytest.mark.spec("D16")
@HALVES
@pytest.mark.parametrize("optimizer", [nn.SGD(0.1, momentum=0.9), nn.Adam()], ids=["sgd", "adam"])
def test_optimizer_state_of_half_parameters_is_f32(device, dtype, optimizer):
    state = train(device, dtype, optimizer, accumulate=2).state_dict()
    kept = {n: v for n, v in state.items() if n.count(".") == 2}
    assert {n.split(".")[2] for n in kept} > {"grad_sum"}
    assert {v.dtype for n, v in kept.items() if not n.startswith("optimizer")} == {np.dtype(np.float32)}


@on_each_device
@pytest.mark.spec("D16")
@HALVES
def test_the_norm_of_half_gradients_is_taken_in_f32(device, dtype):
    """Entries of 300 and more, whose squares an f16 does not hold; and clipped ones are not rounded again."""
    program = train(device, dtype, nn.SGD(1.0, clip_norm=0.5))
    before = {n: v.astype(np.float64) for n, v in params(program).items()}
    model = exact.MLP(dict(before), "relu")
    feed = feed_of(dtype, 0, 3e3)
    grads = model.step(feed["x"].astype(np.float64), feed["y"])[2]
    assert max(np.abs(g).max() for g in grads.values()) > 300
    program.run(feed)
    for name, want in exact.clipped(grads, 0.5).items():
        moved = before[name] - params(program)[name].astype(np.float64)
        np.testing.assert_allclose(moved, want, atol=4e-3 if dtype is DType.bf16 else 1e-3)


@on_each_device
@pytest.mark.spec("D16")
@HALVES
@pytest.mark.parametrize("how", ["run", "replay"])
def test_sums_of_half_gradients_are_f32(device, dtype, how):
    """2^-11 beside 1 is nothing in f16: eight small gradients after a large one would be lost."""
    program = train(device, dtype, nn.SGD(0.0), accumulate=9)
    model = exact.MLP({n: v.astype(np.float64) for n, v in params(program).items()}, "relu")
    total = 0.0
    for step in range(8):
        feed = feed_of(dtype, step, 1.0 if step == 0 else 2e-4)
        total = total + model.step(feed["x"].astype(np.float64), feed["y"])[2]["0.weight"]
        getattr(program, how)(feed)
    small = feed_of(dtype, 0, 1.0)
    first = model.step(small["x"].astype(np.float64), small["y"])[2]["0.weight"]
    got = program.get("0.weight.grad_sum").astype(np.float64)
    assert np.abs(total - first).max() > 1e-4
    np.testing.assert_allclose(got, total, atol=(4e-3 if dtype is DType.bf16 else 5e-4))


@on_each_device
@pytest.mark.spec("D16", "C12")
@HALVES
def test_half_training_replays_as_it_runs(device, dtype):
    made = [train(device, dtype, nn.AdamW(0.01, clip_norm=0.1), accumulate=2) for _ in range(2)]
    for step in range(6):
        feed = feed_of(dtype, step, 1.0)
        assert same(host(made[0].run(feed)), host(made[1].replay(feed)))
    assert same(made[0].state_dict(), made[1].state_dict())


@on_each_device
@pytest.mark.spec("D16")
@HALVES
@pytest.mark.parametrize("through", ["arrays", "npz"])
def test_a_checkpoint_with_half_moments_is_widened(device, dtype, through):
    program = train(device, dtype, nn.Adam())
    program.run(feed_of(dtype, 0, 1.0))
    state = program.state_dict()
    moments = {n: v.astype(dtype.numpy) for n, v in state.items() if "exp_avg" in n}
    older = {**state, **moments}
    if through == "npz":
        file = io.BytesIO()
        np.savez(file, **older)
        file.seek(0)
        older = dict(np.load(file))
    program.load_state_dict(older)
    for name, value in moments.items():
        np.testing.assert_array_equal(program.get(name), value.astype(np.float32))


def test_a_parameter_is_never_widened():
    program = trainer("cpu", mlp())
    program.run(batch_of(6))
    state = program.state_dict()
    state["0.weight"] = state["0.weight"].astype(np.float16)
    with pytest.raises(aicf.errors.StateError, match=r"0\.weight does not fit"):
        program.load_state_dict(state)
