"""Labels that are no class, labels that are left out, and steps that are not taken (D16, C11)."""

from __future__ import annotations

import math

import numpy as np
import pytest

import aicf
from aicf import nn
from aicf.errors import LabelError, VerifyError

from .mlp import batch_of, host, mlp, on_each_device, oracle, params, same, trainer

HOW = pytest.mark.parametrize("how", ["run", "replay"])
OPTIMIZERS = {
    "sgd": lambda: nn.SGD(nn.schedules.StepDecay(0.1, every=2, gamma=0.5), momentum=0.9),
    "adamw": lambda: nn.AdamW(0.01, clip_norm=0.1),
}


def dropping(optimizer: str, device: str, **more) -> aicf.Program:
    model = nn.Model({"x": aicf.TensorSpec(("batch", 5))}, batch=6, seed=3)
    model.add(nn.Linear(5, 7)).add(nn.Dropout(0.5)).add(nn.Linear(7, 3))
    return trainer(device, model, OPTIMIZERS[optimizer](), **more)


def wrong(seed: int, row: int = 4, label: int = 3) -> dict:
    feed = batch_of(6, seed=seed)
    feed["y"][row] = label
    return feed


def kept(program: aicf.Program) -> dict[str, np.ndarray]:
    """All that training goes on from; runs are counted however they end."""
    return {n: v for n, v in program.state_dict().items() if n != "program.runs"}


@pytest.mark.sample(6)
@on_each_device
@pytest.mark.spec("D16", "C11")
@HOW
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("label", [3, -1, 2**40])
def test_a_label_that_is_no_class_is_named_and_changes_nothing(device, how, optimizer, label):
    """Training goes on as if there had been no such batch: weights, moments, step, rate and random state."""
    program, never = dropping(optimizer, device), dropping(optimizer, device)
    for step in range(5):
        if step in (0, 3):
            before = kept(program)
            with pytest.raises(LabelError, match=rf"label {label} at row 4 is no class") as error:
                getattr(program, how)(wrong(step, label=label))["output"].numpy()
            assert "expected: 0 to 2, or -100" in str(error.value)
            assert same(kept(program), before)
        feed = batch_of(6, seed=step)
        assert same(host(getattr(program, how)(feed)), host(never.run(feed)))
    assert same(kept(program), kept(never))
    assert program.get("step") == 5


@on_each_device
@pytest.mark.spec("D16", "C12")
def test_runs_with_wrong_labels_replay_as_they_run(device):
    made = [dropping("adamw", device) for _ in range(2)]
    for step in range(6):
        for program, how in zip(made, ("run", "replay")):
            try:
                getattr(program, how)(wrong(step) if step % 2 else batch_of(6, seed=step))["loss"].numpy()
            except LabelError:
                assert step % 2
            else:
                assert not step % 2
        assert same(kept(made[0]), kept(made[1]))
    assert made[0].get("step") == 3


@on_each_device
@pytest.mark.spec("D16")
@pytest.mark.parametrize("mode", ["infer", "grad"])
@HOW
def test_every_mode_with_a_loss_names_the_label(device, mode, how):
    program = aicf.compile(mlp(), mode, device=device, loss=nn.SoftmaxCrossEntropy())
    with pytest.raises(LabelError, match="label 3 at row 4"):
        getattr(program, how)(wrong(0))["loss"].item()
    assert np.isfinite(getattr(program, how)(batch_of(6))["loss"].item())


@on_each_device
@pytest.mark.spec("D16", "C10")
def test_a_label_is_named_whatever_roles_are_copied(device):
    program = aicf.compile(
        mlp(), device=device, loss=nn.SoftmaxCrossEntropy(), copy_roles=("input", "param", "state")
    )
    for _ in range(2):
        with pytest.raises(LabelError, match="label 3 at row 4"):
            program(wrong(0))["loss"].item()


@on_each_device
@pytest.mark.spec("D16")
def test_among_many_labels_the_first_that_is_no_class_is_named(device):
    rows = 5000
    program = aicf.compile(mlp(batch=rows), device=device, loss=nn.SoftmaxCrossEntropy(dtype=aicf.i32))
    feed = batch_of(rows)
    feed["y"] = feed["y"].astype(np.int32)
    assert np.isfinite(program(feed)["loss"].item())
    feed["y"][[4999, 3333, 2345]] = 7, 8, 9
    with pytest.raises(LabelError, match="label 9 at row 2345 is no class"):
        program(feed)["loss"].item()


@pytest.mark.gpu
@pytest.mark.spec("D16")
@HOW
def test_on_a_gpu_the_next_read_tells_of_all_runs_since_the_last(how):
    program = dropping("sgd", "cuda")
    before = kept(program)
    for row in (1, 2, 3):
        getattr(program, how)(wrong(0, row))  # nothing is read, nothing waits
    good = getattr(program, how)(batch_of(6))
    with pytest.raises(
        LabelError, match=r"label 3 at row 1 is no class(.|\n)*2 more runs since then had invalid data"
    ):
        good["output"].numpy()
    assert np.isfinite(good["loss"].item())  # it is told once
    assert program.get("step") == 1 and not same(kept(program), before)


# --- labels that are left out -----------------------------------------------------------------------------------------


@on_each_device
@pytest.mark.spec("D16")
@HOW
@pytest.mark.parametrize("ignored", [-100, 1, 255])
def test_rows_that_are_left_out_count_for_nothing(device, how, ignored):
    """Loss and step are those of the other rows alone."""
    feed, left = batch_of(6, seed=2), [0, 3, 5]
    feed["y"][:] = (0, 2, 0, 2, 2, 0)
    alone = {n: np.delete(v, left, axis=0) for n, v in feed.items()}
    feed["y"][left] = ignored
    program = aicf.compile(
        mlp(seed=1),
        "train",
        device=device,
        loss=nn.SoftmaxCrossEntropy(ignore_index=ignored),
        optimizer=nn.SGD(0.5),
    )
    model = oracle(program)
    loss, _, grads = model.step(**alone)
    assert getattr(program, how)(feed)["loss"].item() == pytest.approx(loss, rel=1e-5)
    for name, value in params(program).items():
        np.testing.assert_allclose(value, model.params[name] - 0.5 * grads[name], rtol=1e-4, atol=1e-6)


@on_each_device
@pytest.mark.spec("D16")
def test_where_all_rows_are_left_out_the_loss_is_nan_and_the_gradient_zero(device):
    """As PyTorch has it."""
    program = trainer(device, mlp(seed=1), nn.SGD(0.5))
    before, feed = params(program), batch_of(6)
    feed["y"][:] = -100
    assert math.isnan(program(feed)["loss"].item())
    assert same(params(program), before)


@pytest.mark.parametrize("ignored", [None, 1.0, True, 2**63, "none"])
def test_what_can_t_be_left_out_is_refused(ignored):
    with pytest.raises(VerifyError, match="ignore_index="):
        nn.SoftmaxCrossEntropy(ignore_index=ignored)


@pytest.mark.spec("D16")
def test_losses_and_gradients_are_pytorchs():
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(3)
    logits = rng.normal(size=(7, 4)).astype(np.float32)
    for labels, ignored, smoothing in (
        ([0, 3, -100, 1, -100, 2, 2], -100, 0.0), ([0, 3, 1, 1, 0, 2, 2], 1, 0.1), ([5] * 7, 5, 0.0), ([0, 3, 1, 1, 0, 2, 2], -100, 1.0),
    ):  # fmt: skip
        given = torch.tensor(logits, requires_grad=True)
        asked = {"ignore_index": ignored, "label_smoothing": smoothing}
        want = torch.nn.functional.cross_entropy(given, torch.tensor(labels), **asked)
        want.backward()
        program = aicf.compile(scaled(), "grad", device="cpu", loss=nn.SoftmaxCrossEntropy(**asked))
        got = program.run({"x": logits, "y": np.array(labels)})
        np.testing.assert_allclose(got["loss"].numpy(), want.item(), rtol=1e-6)
        slope = (given.grad.numpy() * logits).sum(0)
        np.testing.assert_allclose(got["grad.0.weight"].numpy(), slope, rtol=1e-5, atol=1e-7)


@pytest.mark.spec("D16")
@pytest.mark.parametrize("dtype", [aicf.i32, aicf.i64], ids=str)
def test_losses_of_every_token_of_a_sequence(dtype):
    """Logits (batch, tokens, classes): a mean over all tokens that count, and a label that is none by its place among them."""
    rng = np.random.default_rng(5)
    x = rng.normal(size=(2, 3, 4)).astype(np.float32)
    y = np.array([[0, 3, -100], [1, -100, 2]], dtype.numpy)
    model = nn.Model((2, 3, 4)).add(Weighted())
    loss = nn.SoftmaxCrossEntropy(dtype=dtype, label_smoothing=0.2)
    program = aicf.compile(model, "grad", device="cpu", loss=loss)
    got = program.run({"x": x, "y": y})
    z = x.astype(np.float64)
    log_p = z - np.log(np.exp(z).sum(-1, keepdims=True))
    total, slope = 0.0, np.zeros(4)
    for at in zip(*np.nonzero(y >= 0)):
        target = np.full(4, 0.2 / 4)
        target[y[at]] += 0.8
        total -= (target * log_p[at]).sum() / 4
        slope += (np.exp(log_p[at]) - target) * z[at] / 4
    assert got["loss"].item() == pytest.approx(total, rel=1e-6)
    np.testing.assert_allclose(got["grad.0.weight"].numpy(), slope, rtol=1e-5, atol=1e-6)
    y[1, 0] = 4
    with pytest.raises(LabelError, match="label 4 at row 3"):
        program.run({"x": x, "y": y})


@pytest.mark.parametrize("smoothing", [-0.1, 1.5, True, "some", float("nan")])
def test_a_smoothing_that_is_no_share_is_refused(smoothing):
    with pytest.raises(VerifyError, match="label_smoothing="):
        nn.SoftmaxCrossEntropy(label_smoothing=smoothing)


class Weighted(nn.Layer):
    def emit(self, ctx, x):
        return ctx.mul(x, ctx.param("weight", (4,), lambda shape, rng: np.ones(shape)))


def scaled() -> nn.Model:
    """Logits times a weight of ones."""
    return nn.Model((7, 4)).add(Weighted())


# --- steps that are not taken -----------------------------------------------------------------------------------------


class OwnCrossEntropy(nn.SoftmaxCrossEntropy):
    """Of someone who calls the op, of two heads, and knows nothing of guards."""

    def emit(self, ctx, output, targets):
        labels = targets["y"]
        twice = ctx.add(
            ctx.cross_entropy(output, labels), ctx.cross_entropy(ctx.neg(output), labels, ignore_index=1)
        )
        return ctx.reduce_mean(twice)


@on_each_device
@pytest.mark.spec("D16", "D16")
@HOW
def test_a_loss_of_one_s_own_is_guarded_by_the_op(device, how):
    program = aicf.compile(
        mlp(), "train", device=device, loss=OwnCrossEntropy(), optimizer=nn.Adam(), numerics="strict"
    )
    getattr(program, how)(batch_of(6))["loss"].item()
    before = kept(program)
    with pytest.raises(LabelError, match="label 3 at row 4"):
        getattr(program, how)(wrong(0))["loss"].item()
    assert same(kept(program), before)


class Bounded(nn.MeanSquaredError):
    """A step is valid if the loss is at most 2."""

    def emit(self, ctx, output, targets):
        loss = super().emit(ctx, output, targets)
        ctx.guard(ctx.less_equal(loss, 2.0))
        return loss


class Counting(nn.Layer):
    """Counts runs in a state that it writes by no op of its own, and sums what it sees."""

    def emit(self, ctx, x):
        total = ctx.state("total", (), 0.0)
        ctx.update(total, ctx.add(total, ctx.reduce_sum(x)))
        return x


@on_each_device
@pytest.mark.spec("D16", "C12")
@HOW
def test_any_flag_of_the_graph_keeps_a_step_from_being_taken(device, how):
    """What loss scaling asks for: nothing is raised, and nothing changes, a layer's own state included."""
    model = nn.Model({"x": aicf.TensorSpec(("batch", 5))}, batch=6).add(Counting()).add(nn.Linear(5, 3))
    program = aicf.compile(
        model, "train", device=device, loss=Bounded(), optimizer=nn.AdamW(0.01, clip_norm=1.0)
    )
    taken = 0
    for step in range(6):
        feed = batch_of(6, seed=step, loss="mse")
        feed["y"] *= 10.0 if step % 3 == 1 else 0.1
        before = kept(program)
        loss = getattr(program, how)(feed)["loss"].item()
        assert (loss > 2) == (step % 3 == 1)
        assert same(kept(program), before) == (loss > 2)
        taken += loss <= 2
        assert program.get("step") == taken
