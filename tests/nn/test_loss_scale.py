"""policy="f16": the scale of the loss, by the rule of torch.amp.GradScaler, against a simulation of that in NumPy."""

import numpy as np
import pytest

import aicf
from aicf import nn
from aicf.errors import StateError, VerifyError

from .mlp import on_each_device

RNG = np.random.default_rng()
ROWS, INPUTS, OUTPUTS = 8, 5, 3


class Scaler:
    """GradScaler.update, and what SGD makes of gradients that may have overflowed; parameters in float64."""

    def __init__(self, how, rate, clip_norm=None, runs=1):
        self.how, self.rate, self.clip_norm, self.runs = how, rate, clip_norm, runs
        self.scale, self.good, self.skipped, self.step = np.float32(how.init), 0, 0, 0

    def update(self, weights, sums):
        """The parameters behind a step of these sums of gradients, which are None after an overflow."""
        if sums is None:
            self.scale, self.good = self.scale * np.float32(self.how.backoff), 0
            self.skipped += 1
            return weights
        grads = [g / self.runs for g in sums]
        if self.clip_norm is not None:
            norm = np.sqrt(sum((g**2).sum() for g in grads))
            grads = [g * min(1.0, self.clip_norm / (norm + 1e-6)) for g in grads]
        self.good, self.step = self.good + 1, self.step + 1
        if self.good == self.how.interval:
            self.scale, self.good = self.scale * np.float32(self.how.growth), 0
        return [w - self.rate * g for w, g in zip(weights, grads)]


def linear():
    return nn.Model({"x": (ROWS, INPUTS)}, seed=int(RNG.integers(2**31))).add(nn.Linear(INPUTS, OUTPUTS))


def halved(x):
    return x.astype(np.float16).astype(np.float64)


def gradients(weights, x, y):
    w, b = (halved(v) for v in weights)
    slope = 2 * (halved(x) @ w.T + b - y) / y.size
    return [slope.T @ halved(x), slope.sum(0)]


def feed(overflow=False):
    """1e5 is infinite in f16."""
    x, y = (RNG.normal(size=(ROWS, n)).astype(np.float32) for n in (INPUTS, OUTPUTS))
    if overflow:
        x[RNG.integers(ROWS), RNG.integers(INPUTS)] = RNG.choice([1e5, np.nan, -np.inf])
    return {"x": x, "y": y}


def compiled(model, device, how, optimizer=None, **more):
    return aicf.compile(
        model, "train", device=device, policy=aicf.Policy("f16", loss_scale=how), loss=nn.MeanSquaredError(),
        optimizer=optimizer or nn.SGD(0.1), **more,
    )  # fmt: skip


def seen(program):
    return [
        float(program.get("loss_scale")),
        int(program.get("good_steps")),
        int(program.get("skipped_steps")),
        int(program.get("step")),
    ]


@pytest.mark.spec("D15", "C13")
@on_each_device
@pytest.mark.parametrize("clip_norm", [None, 0.3])
@pytest.mark.parametrize("runs", [1, 3])
def test_each_step_is_gradscaler_s(clip_norm, runs, device):
    # small: there is no overflow but those of the inputs
    how, model = aicf.LossScale(init=1.0, growth=2.0, backoff=0.25, interval=3), linear()
    program = compiled(model, device, how, nn.SGD(0.1, clip_norm=clip_norm), accumulate=runs)
    want = Scaler(how, 0.1, clip_norm, runs)
    weights = [program.get(n).astype(np.float64) for n in ("0.weight", "0.bias")]
    for n in range(24):
        sums = [0.0, 0.0]
        for _ in range(runs):
            bad = n > 6 and RNG.integers(3 * runs) == 0
            data = feed(overflow=bad)
            now = None if bad or sums is None else gradients(weights, **data)
            sums = None if now is None else [s + g for s, g in zip(sums, now)]
            program(data)
        before = [program.get(n) for n in ("0.weight", "0.bias")] if sums is None else None
        weights = want.update(weights, sums)
        assert seen(program) == [want.scale, want.good, want.skipped, want.step]
        for name, w in zip(("0.weight", "0.bias"), weights):
            np.testing.assert_allclose(program.get(name), w, atol=2e-3)
            weights = [program.get(n).astype(np.float64) for n in ("0.weight", "0.bias")]
        assert before is None or np.isfinite(before[0]).all()
    assert want.step > 6


@pytest.mark.spec("D15")
@on_each_device
@pytest.mark.parametrize(
    "optimizer", [nn.AdamW(1e-2), nn.Lion(1e-2), nn.LAMB(1e-2), nn.RMSprop(1e-2)], ids=lambda o: o.family
)
def test_an_overflow_changes_nothing_but_the_scale(optimizer, device):
    program = compiled(linear(), device, aicf.LossScale(), optimizer)
    program(feed())
    before = program.state_dict()
    program(feed(overflow=True))
    after = program.state_dict()
    changed = {n for n in before if before[n].tobytes() != after[n].tobytes()}
    assert changed == {
        "optimizer.loss_scale",
        "optimizer.good_steps",
        "optimizer.skipped_steps",
        "program.runs",
    }
    assert (after["optimizer.loss_scale"], after["optimizer.skipped_steps"]) == (2**15, 1)


class Plain:
    """An optimizer of a user's own, which asks nobody whether a step may be taken."""

    def emit(self, ctx, params, grads):
        for param, grad in zip(params, grads):
            ctx.update(param, param - 0.1 * grad)


@pytest.mark.spec("D15")
@on_each_device
def test_an_optimizer_of_one_s_own_is_held_back_too(device):
    program = compiled(linear(), device, aicf.LossScale(interval=2), Plain())
    program(feed())
    before, half = program.get("0.weight"), program.get("0.weight.f16")
    assert (before.astype(np.float16) == half).all()
    program(feed(overflow=True))
    assert (program.get("0.weight") == before).all() and (program.get("0.weight.f16") == half).all()
    program(feed())
    assert (program.get("0.weight") != before).any()
    assert (program.get("0.weight.f16") == program.get("0.weight").astype(np.float16)).all()


@pytest.mark.spec("D15")
@on_each_device
def test_a_scale_that_is_too_large_comes_down_by_itself(device):
    """Errors of order 1 times 2**24 are infinite in f16; the scale halves until they are not, and the step is that of f32."""
    model = linear()
    program = compiled(model, device, aicf.LossScale(init=2.0**24))
    data, before = feed(), program.get("0.weight")
    for n in range(1, 20):
        program(data)
        if program.get("step"):
            break
        assert program.get("loss_scale") == 2.0 ** (24 - n) and (program.get("0.weight") == before).all()
    assert 2 < n < 19
    want = gradients([before, np.zeros(OUTPUTS) + program.get("0.bias")], **data)
    assert program.get("skipped_steps") == n - 1
    assert np.abs((before - program.get("0.weight")) / 0.1 - want[0]).max() < 0.05


@pytest.mark.spec("D15")
@on_each_device
def test_the_scale_has_a_lower_bound(device):
    """However many steps are skipped, the next good one is taken with numbers."""
    program = compiled(linear(), device, aicf.LossScale(init=2.0**-100, backoff=2.0**-10))
    for n in range(5):
        program(feed(overflow=True))
        assert program.get("loss_scale") == 2.0 ** -min(126, 100 + 10 * (n + 1))
    compiled(linear(), device, aicf.LossScale()).load_state_dict(program.state_dict())
    program(feed())
    assert seen(program)[2:] == [5, 1] and np.isfinite(program.get("0.weight")).all()
    assert np.isfinite(program.get("0.bias")).all()


@pytest.mark.spec("D15")
@pytest.mark.filterwarnings("error::RuntimeWarning")
@pytest.mark.parametrize("gradients", ["f32", "f16"])
def test_an_overflow_is_no_warning(gradients):
    """Inf is a value, in the sums of gradients of biases as elsewhere."""
    model = nn.Model({"x": (8, 5)}).add(nn.Linear(5, 7)).add(nn.ReLU()).add(nn.Linear(7, 3))
    policy = aicf.Policy("f16", gradients=gradients, loss_scale=aicf.LossScale(init=2.0**18))
    how = {"loss": nn.MeanSquaredError(), "optimizer": nn.SGD(0.1), "policy": policy}
    program = aicf.compile(model, "train", device="cpu", **how)
    program({"x": np.ones((8, 5), np.float32), "y": np.full((8, 3), 9, np.float32)})
    assert program.get("skipped_steps") == 1


@pytest.mark.spec("D15")
def test_gradients_that_f16_would_lose_arrive():
    """1e-8 is nothing in f16; 65536 times that is a number."""
    model = nn.Model({"x": (4, 3)}).add(nn.Linear(3, 3, bias=False))
    x, start = np.full((4, 3), 1e-3, np.float32), {}
    for scale in (2.0**16, 1.0):
        grad = aicf.compile(model, "grad", device="cpu", policy="f16", loss=nn.MeanSquaredError())
        assert grad.get("loss_scale") == 1
        grad.set(loss_scale=scale)
        y = (x @ grad.get("0.weight").T + 1e-4).astype(np.float32)
        start[scale] = grad({"x": x, "y": y})["grad.0.weight"].numpy()
    assert (start[2.0**16] != 0).all() and np.abs(start[2.0**16]).max() < 1e-6
    assert not start[1.0].any() or np.abs(start[1.0] - start[2.0**16]).max() > 0


@pytest.mark.spec("D15")
@on_each_device
def test_gradients_that_are_returned_start_at_a_scale_of_1(device):
    """Errors of about 1e3: 65536 times that is infinite in f16, and there is no step to skip."""
    model = linear()
    how = {"device": device, "loss": nn.MeanSquaredError()}
    train = compiled(model, device, aicf.LossScale())
    grad, exact = (aicf.compile(model, "grad", policy=policy, **how) for policy in ("f16", "f32"))
    data = feed()
    data["y"] += 1e3
    grad.load_state_dict(train.state_dict())  # whose scale follows what it does
    for name in ("grad.0.weight", "grad.0.bias"):
        want = exact(data)[name].numpy()
        np.testing.assert_allclose(grad(data)[name].numpy(), want, rtol=1e-2, atol=1e-2 * np.abs(want).max())
    train(data)
    assert (train.get("loss_scale"), grad.get("loss_scale")) == (2**15, 1)
    grad.set(loss_scale=8.0)
    again = aicf.compile(linear(), "grad", policy="f16", **how)
    again.load_state_dict(grad.state_dict())
    assert again.get("loss_scale") == 8 and train.get("loss_scale") == 2**15


@pytest.mark.spec("D15", "C13")
@on_each_device
def test_training_programs_of_a_model_share_the_scale(device):
    """With the steps that it counts: what is compiled anew goes on at the scale that was found."""
    model, how = linear(), aicf.LossScale(init=64.0, interval=2)
    first = compiled(model, device, how)
    first(feed()), first(feed()), first(feed())
    second = compiled(model, device, how, nn.AdamW(1e-3), accumulate=2)
    assert seen(second)[:3] == seen(first)[:3] == [128, 1, 0]
    second(feed(overflow=True)), second(feed())
    assert seen(second)[:3] == seen(first)[:3] == [64, 0, 1]
    second.set(loss_scale=4.0)
    assert first.get("loss_scale") == 4
    plain = aicf.compile(
        model, "train", device=device, loss=nn.MeanSquaredError(), optimizer=nn.SGD(0.1), policy="bf16"
    )
    with pytest.raises(StateError, match="no meta-parameter is called 'loss_scale'"):
        plain.set(loss_scale=4.0)


@pytest.mark.spec("D15", "C13")
def test_checkpoints_go_from_a_program_with_a_scale_to_one_without_and_back():
    def made(policy):
        return aicf.compile(
            linear(),
            "train",
            device="cpu",
            loss=nn.MeanSquaredError(),
            optimizer=nn.AdamW(1e-2),
            policy=policy,
        )

    scaled, plain = made("f16"), made("bf16")
    scaled(feed()), scaled(feed(overflow=True))
    kept = scaled.state_dict()
    assert plain.load_state_dict(kept) == []
    assert set(kept) - set(plain.state_dict()) == {
        "optimizer.loss_scale",
        "optimizer.good_steps",
        "optimizer.skipped_steps",
    }
    plain(feed())
    assert scaled.load_state_dict(plain.state_dict()) == []
    assert seen(scaled) == [2**16, 0, 0, 2] and scaled.runs == 3
    scaled(feed(overflow=True))
    missing = scaled.load_state_dict({"0.bias": np.ones(OUTPUTS, np.float32)}, strict=False)
    assert "optimizer.loss_scale" in missing and seen(scaled)[0] == 2**15
    del kept["optimizer.lr"]
    with pytest.raises(StateError, match=r"missing: optimizer\.lr"):
        plain.load_state_dict(kept)


@pytest.mark.spec("D15", "C13")
@on_each_device
def test_the_scale_is_saved_set_and_resumed_bit_for_bit(device):
    how, model = aicf.LossScale(init=64.0, interval=2), linear()
    program = compiled(model, device, how, nn.AdamW(1e-2, clip_norm=1.0))
    feeds = [feed(overflow=RNG.integers(3) == 0) for _ in range(12)]
    for data in feeds[:6]:
        program(data)
    kept = program.state_dict()
    other = compiled(linear(), device, how, nn.AdamW(1e-2, clip_norm=1.0))
    other.load_state_dict(kept)
    for data in feeds[6:]:
        program(data), other(data)
    assert {n: v.tobytes() for n, v in program.state_dict().items()} == {
        n: v.tobytes() for n, v in other.state_dict().items()
    }
    program.set(loss_scale=4096.0)
    assert program.get("loss_scale") == 4096
    most = float(np.finfo(np.float32).max)
    program.set(loss_scale=most)
    program.load_state_dict(program.state_dict())  # 3 grows to more than 2**127
    assert program.get("loss_scale") == most
    for wrong in (0.0, -1.0, 2.0**128, 2.0**-127, float("nan"), float("inf"), "much"):
        with pytest.raises(VerifyError, match="loss_scale"):
            program.set(loss_scale=wrong)
    with pytest.raises(StateError, match=r"optimizer\.loss_scale can't be loaded"):
        program.load_state_dict({**kept, "optimizer.loss_scale": np.float32(0)})


@pytest.mark.spec("D15")
def test_a_label_that_is_none_leaves_the_scale():
    model = nn.Model({"x": (4, INPUTS)}).add(nn.Linear(INPUTS, OUTPUTS))
    program = aicf.compile(
        model, "train", device="cpu", policy="f16", loss=nn.SoftmaxCrossEntropy(), optimizer=nn.SGD(0.1)
    )
    x = RNG.normal(size=(4, INPUTS)).astype(np.float32)
    program({"x": x, "y": np.arange(4) % 3})
    kept = program.state_dict()
    with pytest.raises(aicf.errors.LabelError):
        float(program({"x": x, "y": np.full(4, 7)})["loss"])
    after = program.state_dict()
    assert all((after[n] == v).all() for n, v in kept.items() if n != "program.runs")


@pytest.mark.spec("D15", "A13")
def test_unscaling_is_a_part_of_the_optimizer_s_launch():
    model = nn.Model({"x": (64, 256)}).add(nn.Linear(256, 256)).add(nn.ReLU()).add(nn.Linear(256, 256))
    for optimizer in (nn.AdamW(1e-3), nn.AdamW(1e-3, clip_norm=1.0)):
        explained = aicf.explain_for(
            model, "h200", "train", policy="f16", loss=nn.MeanSquaredError(), optimizer=optimizer
        )
        (last,) = (r for r in explained.regions if any(op.kind.name == "adam_step" for op in r.spec.ops))
        assert [op.kind.name for op in last.spec.ops] == ["scale_gradient"] * 4 + ["adam_step"] * 4 + [
            "refresh_copy"
        ] * 4
        assert last.kernel_id.startswith("cuda.multi_map")
        others = [op.kind.name for r in explained.regions for op in r.spec.ops if r is not last]
        assert "scale_gradient" not in others  # the norm is of what is not unscaled yet
