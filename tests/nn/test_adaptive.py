"""Lion, LAMB, RMSprop, Adagrad and AMSGrad against the formulas of PyTorch's documentation and of Lion's and LAMB's papers, in float64."""

from __future__ import annotations

import copy
import functools
import math
import pickle
from typing import Any

import numpy as np
import pytest

import aicf
from aicf import nn
from aicf.errors import StateError, VerifyError
from aicf.types import DType

from . import oracle
from .decoder import decoder
from .mlp import batch_of, mlp, on_each_device, params, trainer


class Rule:
    """A rule of one parameter: `step(t, p, g, kept)` returns it anew; `kept` holds arrays by the names of state dicts."""

    def __init__(self, lr: float, weight_decay: float = 0.0, start: float = 0.0) -> None:
        self.lr, self.decay, self.start, self.t, self.kept = lr, weight_decay, start, 0, {}

    def update(self, values: dict[str, Any], grads: dict[str, Any]) -> None:
        self.t += 1
        for name, p in values.items():
            kept = self.kept.setdefault(name, {k: np.full(p.shape, self.start) for k in self.names})
            values[name] = self.step(p, grads[name], kept)


class Lion(Rule):
    names = ("lion_avg",)

    def step(self, p, g, kept, beta1=0.9, beta2=0.99):
        m = kept["lion_avg"]
        c = beta1 * m + (1 - beta1) * g
        kept["lion_avg"] = beta2 * m + (1 - beta2) * g
        return p - self.lr * (np.sign(c) + self.decay * p)


class RMSprop(Rule):
    names = ("square_avg", "momentum_buffer")
    alpha, momentum, centered = 0.99, 0.0, False

    def step(self, p, g, kept):
        g = g + self.decay * p
        v = kept["square_avg"] = self.alpha * kept["square_avg"] + (1 - self.alpha) * g**2
        if self.centered:
            a = kept["grad_avg"] = self.alpha * kept["grad_avg"] + (1 - self.alpha) * g
            v = v - a**2
        b = kept["momentum_buffer"] = self.momentum * kept["momentum_buffer"] + g / (np.sqrt(v) + 1e-8)
        return p - self.lr * b


class Centered(RMSprop):
    names = ("square_avg", "grad_avg", "momentum_buffer")
    alpha, momentum, centered = 0.9, 0.8, True


class Adagrad(Rule):
    names = ("sum",)
    lr_decay = 0.0

    def step(self, p, g, kept):
        rate = self.lr / (1 + (self.t - 1) * self.lr_decay)
        g = g + self.decay * p
        total = kept["sum"] = kept["sum"] + g**2
        return p - rate * g / (np.sqrt(total) + 1e-10)


class SlowingAdagrad(Adagrad):
    lr_decay = 0.3


class AMSGrad(Rule):
    names = ("exp_avg", "exp_avg_sq", "max_exp_avg_sq")
    decoupled, beta2 = False, 0.6  # so short a memory that the greatest square is often not the last

    def step(self, p, g, kept, beta1=0.9):
        if self.decoupled:
            p = p - self.lr * self.decay * p
        else:
            g = g + self.decay * p
        m = kept["exp_avg"] = beta1 * kept["exp_avg"] + (1 - beta1) * g
        v = kept["exp_avg_sq"] = self.beta2 * kept["exp_avg_sq"] + (1 - self.beta2) * g**2
        top = kept["max_exp_avg_sq"] = np.maximum(kept["max_exp_avg_sq"], v)
        return p - self.lr * (m / (1 - beta1**self.t)) / (np.sqrt(top / (1 - self.beta2**self.t)) + 1e-8)


class AMSGradW(AMSGrad):
    decoupled = True


class LAMB(Rule):
    names = ("lamb_avg", "lamb_avg_sq")

    def step(self, p, g, kept, beta1=0.9, beta2=0.999):
        m = kept["lamb_avg"] = beta1 * kept["lamb_avg"] + (1 - beta1) * g
        v = kept["lamb_avg_sq"] = beta2 * kept["lamb_avg_sq"] + (1 - beta2) * g**2
        u = m / (1 - beta1**self.t) / (np.sqrt(v / (1 - beta2**self.t)) + 1e-6) + self.decay * p
        return p - self.lr * np.linalg.norm(p) / np.linalg.norm(u) * u


def kept_by(program: Any) -> dict[str, np.ndarray]:
    """What the optimizer keeps of each parameter: `0.weight.sum`."""
    return {
        n: v for n, v in program.state_dict().items() if n.count(".") == 2 and not n.startswith("optimizer.")
    }


BETAS = (0.9, 0.6)
OPTIMIZERS: dict[str, tuple[Any, Any, float]] = {  # ours, theirs, lr
    "lion": (nn.Lion, Lion, 0.003),
    "lamb": (lambda lr, weight_decay=0.0, **k: nn.LAMB(lr, weight_decay=weight_decay, **k), LAMB, 0.02),
    "rmsprop": (nn.RMSprop, RMSprop, 0.01),
    "centered": (lambda lr, **k: nn.RMSprop(lr, 0.9, momentum=0.8, centered=True, **k), Centered, 0.002),
    "adagrad": (nn.Adagrad, Adagrad, 0.05),
    "slowing": (
        lambda lr, **k: nn.Adagrad(lr, lr_decay=0.3, initial_accumulator_value=0.25, **k),
        lambda *a, **k: SlowingAdagrad(*a, start=0.25, **k),
        0.05,
    ),
    "amsgrad": (lambda lr, **k: nn.Adam(lr, BETAS, amsgrad=True, **k), AMSGrad, 0.02),
    "amsgradw": (lambda lr, **k: nn.AdamW(lr, BETAS, amsgrad=True, **k), AMSGradW, 0.02),
}
EACH = pytest.mark.parametrize("name", OPTIMIZERS)


def near(program: Any, model: oracle.MLP) -> None:
    for n, value in params(program).items():
        np.testing.assert_allclose(value, model.params[n], rtol=1e-3, atol=2e-5, err_msg=n)


@pytest.mark.sample(4)
@on_each_device
@pytest.mark.spec("C11", "D13")
@EACH
@pytest.mark.parametrize("decay", [0.0, 0.1])
def test_ten_steps(name, decay, device):
    """By runs and replays, of two sizes; the parameters and all that is kept beside them."""
    ours, theirs, lr = OPTIMIZERS[name]
    program, rule = trainer(device, mlp("tanh"), ours(lr, weight_decay=decay)), theirs(lr, weight_decay=decay)
    model = oracle.MLP(params(program), "tanh")
    for step in range(10):
        fed = batch_of(6 if step % 3 else 5, seed=step)
        loss, _, grads = model.step(**fed)
        rule.update(model.params, grads)
        got = (program.replay if step % 2 else program.run)(fed)
        np.testing.assert_allclose(float(got["loss"]), loss, rtol=1e-4)
    near(program, model)
    kept = kept_by(program)
    assert kept.keys() == {f"{p}.{s}" for p in model.params for s in rule.names}
    for p, arrays in rule.kept.items():
        for s, value in arrays.items():
            np.testing.assert_allclose(kept[f"{p}.{s}"], value, rtol=5e-3, atol=1e-5, err_msg=f"{p}.{s}")
    assert program.get("step") == 10


@pytest.mark.sample(3)
@on_each_device
@EACH
def test_clipping_a_schedule_and_groups(name, device):
    """All three at once: biases without decay, the last weight at a quarter of the rate."""
    ours, theirs, lr = OPTIMIZERS[name]
    optimizer = ours(
        nn.schedules.StepDecay(lr, every=2, gamma=0.5),
        weight_decay=0.1,
        clip_norm=0.3,
        groups=[
            nn.ParamGroup(use="bias", weight_decay=0.0),
            nn.ParamGroup(names=["2.*"], lr_scale=0.25, weight_decay=0.5),
        ],
    )
    program = trainer(device, mlp("tanh"), optimizer)
    model = oracle.MLP(params(program), "tanh")
    biases = {n for n in model.params if n.endswith("bias")}
    parts = [
        (biases, 1.0, theirs(lr)),
        ({"2.weight"}, 0.25, theirs(lr, weight_decay=0.5)),
        (model.params.keys() - biases - {"2.weight"}, 1.0, theirs(lr, weight_decay=0.1)),
    ]
    for step in range(6):
        fed = batch_of(6, seed=step)
        grads = model.step(**fed)[2]
        assert math.sqrt(sum((g**2).sum() for g in grads.values())) > 0.3, "nothing is clipped"
        grads = oracle.clipped(grads, 0.3)
        for names, scale, rule in parts:
            rule.lr = lr * scale * 0.5 ** (step // 2)
            own = {n: model.params[n] for n in names}
            rule.update(own, grads)
            model.params |= own
        program(fed)
    near(program, model)


@pytest.mark.sample(4)
@on_each_device
@pytest.mark.parametrize(
    "dtype, gap", [(DType.f16, 2e-3), (DType.bf16, 2e-2)], ids=["f16", "bf16"]
)  # of weights below 1: ten roundings of 2.4e-4, of 2e-3
@EACH
def test_half_parameters_have_states_of_f32(name, dtype, gap, device):
    """Gradients of some 1e-3, whose squares are nothing in f16."""
    ours, theirs, lr = OPTIMIZERS[name]
    program = trainer(
        device, nn.Model({"x": aicf.TensorSpec(("batch", 5), dtype)}, batch=6).add(nn.Linear(5, 3)), ours(lr)
    )
    rule, model = theirs(lr), oracle.MLP({n: v.astype(float) for n, v in params(program).items()}, "relu")
    x = (np.random.default_rng(3).normal(size=(6, 5)) * 3e-3).astype(dtype.numpy)
    for _ in range(10):
        rule.update(model.params, model.step(x.astype(float), np.arange(6) % 2)[2])
        program.replay({"x": x, "y": np.arange(6) % 2})
    for n, value in params(program).items():
        assert value.dtype == dtype.numpy
        assert np.abs(value.astype(float) - model.params[n]).max() <= gap, n
    state = kept_by(program)
    assert {value.dtype for value in state.values()} == {np.dtype(np.float32)}
    for s in rule.names:
        assert state[f"0.weight.{s}"].any(), f"{s} went under in {dtype}"


NUMBERS = {
    "lion": {"lr": 0.001, "beta1": 0.5, "beta2": 0.75, "weight_decay": 0.25},
    "lamb": {"lr": 0.001, "beta1": 0.5, "beta2": 0.75, "eps": 0.125, "weight_decay": 0.25},
    "rmsprop": {"lr": 0.001, "alpha": 0.5, "eps": 0.125, "weight_decay": 0.25, "momentum": 0.5},
    "centered": {"lr": 0.001, "alpha": 0.5, "eps": 0.125, "weight_decay": 0.25, "momentum": 0.5},
    "adagrad": {"lr": 0.001, "lr_decay": 0.5, "eps": 0.125, "weight_decay": 0.25},
    "amsgrad": {"lr": 0.001, "beta1": 0.5, "beta2": 0.75, "eps": 0.125, "weight_decay": 0.25},
}


@pytest.mark.spec("C13")
@pytest.mark.parametrize("name", NUMBERS)
def test_each_number_can_be_set_and_matters(name):
    """Each, changed between the second step and the third, moves the parameters elsewhere, by the plan that there is."""

    def trained(**numbers: float) -> list[np.ndarray]:
        ours, _, lr = OPTIMIZERS[name]
        program = trainer("cpu", mlp("tanh"), ours(4 * lr))
        for step in range(3):
            program.set(**(numbers if step == 2 else {}))
            program.replay(batch_of(6, seed=step))
        assert len(program._plans) == 1
        for number, value in numbers.items():
            assert program.get(number) == np.float32(value)
        return [*program.state_dict().values()]

    plain = trained()
    for number, value in NUMBERS[name].items():
        changed = trained(**{number: value})
        moved = sum(a.size > 1 and (a != b).any() for a, b in zip(plain, changed))
        assert moved, number


@EACH
def test_a_state_dict_goes_on_elsewhere(name):
    ours, _, lr = OPTIMIZERS[name]
    source, target = (trainer("cpu", mlp(seed=seed), ours(lr, weight_decay=0.1)) for seed in (1, 2))
    source(batch_of(6))
    target.load_state_dict(source.state_dict())
    for program in (source, target):
        program(batch_of(6, seed=1))
    for (n, a), b in zip(source.state_dict().items(), target.state_dict().values()):
        np.testing.assert_array_equal(a, b, err_msg=n)


def test_optimizers_that_take_turns_share_nothing_but_the_parameters():
    """Adam's averages are of no use to Lion, nor SGD's velocity to RMSprop, whose step counts from 1."""
    model = mlp()
    rules = [nn.SGD(0.1, momentum=0.9), nn.Adam(), nn.Lion(), nn.LAMB(), nn.RMSprop(), nn.Adagrad()]
    kept = [{n for n in trainer("cpu", model, rule).state_dict() if n.count(".") == 2} for rule in rules]
    assert sum(map(len, kept)) == len(set().union(*kept))


@pytest.mark.sample(3)
@EACH
def test_they_are_copied_and_pickled(name):
    ours, _, lr = OPTIMIZERS[name]
    made = ours(lr, weight_decay=0.1)
    for other in (copy.deepcopy(made), pickle.loads(pickle.dumps(made))):
        results = []
        for optimizer in (made, other):
            program = trainer("cpu", mlp(), optimizer)
            program(batch_of(6))
            results.append(program.state_dict())
        for n, value in results[0].items():
            np.testing.assert_array_equal(value, results[1][n], err_msg=n)


STEPS = [("lion", "lion_step"), ("rmsprop", "rmsprop_step"), ("centered", "rmsprop_centered_step"), ("adagrad", "adagrad_step"),
         ("amsgrad", "amsgrad_step"), ("lamb", "lamb_update"), ("lamb", "lamb_step")]  # fmt: skip


GROUPS = [nn.ParamGroup(use=("bias", "norm", "embedding"), weight_decay=0.0)]


@functools.cache
def steps_of_adam(dtype: DType) -> int:
    """In how many regions the same parameters are stepped by Adam."""
    optimizer = nn.Adam(clip_norm=1.0, groups=GROUPS)
    like = aicf.explain_for(
        decoder(dtype=dtype), "h200", "train", loss=nn.SoftmaxCrossEntropy(), optimizer=optimizer
    )
    return len([r for r in like.regions if "adam_step" in str(r.spec.signature)])


@pytest.mark.sample(2)
@pytest.mark.spec("A13")
@pytest.mark.parametrize("dtype", [DType.f32, DType.bf16], ids=["f32", "bf16"])
@pytest.mark.parametrize("name, op", STEPS)
def test_the_steps_of_all_parameters_are_one_launch(name, op, dtype):
    ours, _, lr = OPTIMIZERS[name]
    told = aicf.explain_for(
        decoder(dtype=dtype),
        "h200",
        "train",
        loss=nn.SoftmaxCrossEntropy(),
        optimizer=ours(lr, clip_norm=1.0, groups=GROUPS),
    )
    regions = [r for r in told.regions if op in str(r.spec.signature)]
    assert len(regions) == steps_of_adam(dtype)
    assert {r.kernel_id for r in regions} == {"cuda.multi_map_table.v1"}


def test_a_run_with_a_label_that_is_no_class_moves_nothing():
    for name, (ours, _, lr) in OPTIMIZERS.items():
        program = trainer("cpu", mlp(), ours(lr))
        program(batch_of(6))
        before = program.state_dict()
        wrong = batch_of(6, seed=1)
        wrong["y"][2] = 7
        with pytest.raises(aicf.errors.LabelError):
            program(wrong)
        for n, value in program.state_dict().items():
            if n != "program.runs":
                np.testing.assert_array_equal(value, before[n], err_msg=f"{name}: {n}")


REFUSED = {
    "lion betas": (lambda: nn.Lion(betas=0.9), "betas=0.9", "betas=(0.9, 0.99)"),
    "lion beta": (lambda: nn.Lion(betas=(0.9, 1.0)), "beta2=1.0", "a finite number >= 0 and < 1"),
    "lion decay": (lambda: nn.Lion(weight_decay=-1), "weight_decay=-1"),
    "lion rate": (lambda: nn.Lion(float("nan")), "lr=nan"),
    "alpha": (lambda: nn.RMSprop(alpha=1.0), "alpha=1.0", "a finite number >= 0 and < 1"),
    "a little alpha": (lambda: nn.RMSprop(alpha=-0.1), "alpha=-0.1"),
    "rmsprop eps": (lambda: nn.RMSprop(eps=-1e-8), "eps=-1e-08"),
    "momentum": (lambda: nn.RMSprop(momentum=2), "momentum=2", "<= 1"),
    "centered": (lambda: nn.RMSprop(centered=1), "centered=1", "True or False"),
    "slowing": (lambda: nn.Adagrad(lr_decay=-0.1), "lr_decay=-0.1", ">= 0"),
    "start": (lambda: nn.Adagrad(initial_accumulator_value=-1), "initial_accumulator_value=-1", ">= 0"),
    "adagrad eps": (lambda: nn.Adagrad(eps=None), "eps=None"),
    "lamb betas": (lambda: nn.LAMB(betas=(0.9,)), "betas=(0.9,)", "betas=(0.9, 0.999)"),
    "lamb eps": (lambda: nn.LAMB(eps=-1), "eps=-1", ">= 0"),
    "amsgrad": (lambda: nn.Adam(amsgrad=1), "amsgrad=1", "True or False"),
    "clip norm in amsgrad's place": (lambda: nn.AdamW(1e-3, (0.9, 0.99), 1e-8, 0.1, 1.0), "amsgrad=1.0"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_makes_no_sense_is_refused(what):
    call, *said = REFUSED[what]
    with pytest.raises(VerifyError) as raised:
        call()
    for part in said:
        assert part in str(raised.value), raised.value


def test_what_makes_no_sense_is_not_set_or_loaded_either():
    program = trainer("cpu", optimizer=nn.RMSprop())
    with pytest.raises(VerifyError, match=r"alpha=1\.0"):
        program.set(alpha=1.0)
    with pytest.raises(StateError, match=r"optimizer\.alpha"):
        program.load_state_dict({"optimizer.alpha": 2.0}, strict=False)
    with pytest.raises(StateError, match="no meta-parameter is called 'lr_decay'"):
        program.set(lr_decay=0.1)
