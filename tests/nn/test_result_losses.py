"""Losses of models with several results: what they read, what they return beside their value, what is refused."""

from __future__ import annotations

import numpy as np
import pytest

import aicf
from aicf import nn
from aicf.errors import AicfError, FeedError, VerifyError

from .mlp import host, on_each_device, params
from .routed import Emits, Routed, Y, feed, in_numpy, model, nll, routed_loss


@on_each_device
def test_gradients_flow_through_the_loss_alone_and_what_is_beside_it_is_returned(device):
    rng = np.random.default_rng()
    fed = feed(rng)
    program = aicf.compile(model(), "grad", device=device, loss=nn.LossFunction(routed_loss, y=Y))
    w = params(program)
    got = host(program(fed))
    grads = [f"grad.{name}" for name in w]
    assert list(got)[:5] == ["logits", "hidden", "router", "loss", "accuracy"] and sorted(
        list(got)[5:]
    ) == sorted(grads)
    made = in_numpy(w, fed["x"])
    assert got["loss"] == pytest.approx(nll(made["logits"], fed["y"]) + 0.5 * made["router"], rel=1e-4)
    assert got["accuracy"] == pytest.approx((got["logits"].argmax(-1) == fed["y"]).mean())

    def loss_of(weights):
        made = in_numpy(weights, fed["x"])
        return nll(made["logits"], fed["y"]) + 0.5 * made["router"]

    for name in ("gate.weight", "body.bias", "head.weight"):
        numeric = np.empty(w[name].shape)
        for at in np.ndindex(numeric.shape):
            sides = []
            for step in (1e-5, -1e-5):
                moved = w[name].astype(np.float64)
                moved[at] += step
                sides.append(loss_of({**w, name: moved}))
            numeric[at] = (sides[0] - sides[1]) / 2e-5
        np.testing.assert_allclose(got[f"grad.{name}"], numeric, rtol=1e-3, atol=1e-4, err_msg=name)
    plain = nn.LossFunction(lambda ctx, out, y: routed_loss(ctx, out, y)[0], y=Y)
    alone = host(aicf.compile(model(), "grad", device=device, loss=plain)(fed))
    for name in grads:
        np.testing.assert_allclose(alone[name], got[name], rtol=1e-5, atol=1e-7)


def test_a_loss_reads_the_output_or_the_first_result_or_the_one_it_names():
    fed = feed(np.random.default_rng())
    program = aicf.compile(model(), device="cpu", loss=nn.SoftmaxCrossEntropy())
    got = host(program(fed))
    assert list(got) == ["logits", "hidden", "router", "loss"]
    assert got["loss"] == pytest.approx(nll(got["logits"].astype(np.float64), fed["y"]), rel=1e-4)
    named = aicf.compile(model(), device="cpu", loss=nn.SoftmaxCrossEntropy(result="hidden"))(fed)
    assert float(named["loss"]) == pytest.approx(nll(got["hidden"].astype(np.float64), fed["y"]), rel=1e-4)
    second = model(Emits(lambda ctx, x, y: {"aside": y * 0.0, "output": y}))
    made = aicf.compile(second, device="cpu", loss=nn.SoftmaxCrossEntropy())(fed)
    assert float(made["loss"]) == pytest.approx(
        nll(made["output"].numpy().astype(np.float64), fed["y"]), rel=1e-4
    )


class Weighted(nn.Loss):
    """All results, as the model returns them."""

    result = "*"

    def targets(self, output):
        assert str(output["logits"]).startswith("tensor<")
        return {"y": aicf.TensorSpec(output["logits"].shape[:1], aicf.i64)}

    def emit(self, ctx, output, targets):
        return ctx.cross_entropy(output["logits"], targets["y"]).mean() + 0.5 * output["router"]


class Judge(nn.Layer):
    def emit(self, ctx, out, y):
        return routed_loss(ctx, out, y)


LOSSES = {
    "a function": nn.LossFunction(routed_loss, y=Y),
    "a function without ctx": nn.LossFunction(
        lambda out, y, k=0.5: (
            out["logits"].emitter.cross_entropy(out["logits"], y).mean() + k * out["router"]
        ),
        y=Y,
    ),
    "a layer": nn.LossFunction(Judge(), y=Y),
    "a class": Weighted(),
}


@pytest.mark.parametrize("what", LOSSES)
def test_a_loss_may_be_a_function_a_layer_or_a_class_of_all_results(what):
    fed = feed(np.random.default_rng())
    got = host(aicf.compile(model(), device="cpu", loss=LOSSES[what])(fed))
    want = nll(got["logits"].astype(np.float64), fed["y"]) + 0.5 * got["router"]
    assert got["loss"] == pytest.approx(want, rel=1e-4)
    assert ("accuracy" in got) == (what in ("a function", "a layer"))


def test_a_bare_function_of_results_and_inputs_is_a_loss():
    def rebuilt(out, x):
        return ((out[1] - x) ** 2).mean()

    made = model(Emits(lambda ctx, x, y: (y, ctx.layer(nn.Linear(3, 8), "back", y))))
    learn = aicf.compile(made, "train", device="cpu", loss=rebuilt, optimizer=nn.Adam(1e-2))
    x = np.random.default_rng(0).standard_normal((5, 8), np.float32)
    losses = [float(learn({"x": x})["loss"]) for _ in range(30)]
    got = learn({"x": x})
    assert list(got) == ["output.0", "output.1", "loss"] and losses[-1] < losses[0] / 2
    assert float(got["loss"]) == pytest.approx(((got["output.1"].numpy() - x) ** 2).mean(), rel=1e-4)


def test_a_loss_that_makes_the_logits_itself_leaves_out_no_other_result():
    class Headed(Routed):
        def __init__(self):
            super().__init__()
            self.head = nn.Linear(6, 3, bias=False)

    fed = feed(np.random.default_rng())
    loss = nn.LinearCrossEntropy(result="logits")
    learn = aicf.compile(model(Headed()), "grad", device="cpu", loss=loss)
    assert list(learn.outputs)[:3] == ["hidden", "router", "loss"]
    plain = aicf.compile(model(Headed()), "grad", device="cpu", loss=nn.SoftmaxCrossEntropy())
    got, want = host(learn(fed)), host(plain(fed))
    assert set(want) - set(got) == {"logits"}
    for name, value in got.items():
        np.testing.assert_allclose(value, want[name], rtol=1e-4, atol=1e-6, err_msg=name)
    assert next(iter(aicf.compile(model(Headed()), device="cpu", loss=loss).outputs)) == "logits"


def kept(ctx, out, y):
    ctx.param("scale", (), nn.init.ones)
    return out["router"]


BAD_LOSSES = {
    "a result that is not there": (nn.SoftmaxCrossEntropy(result="logit"), "reads the result 'logit'", "logits, hidden, router"),
    "a target of no spec": (lambda out, y: out["router"], "the loss takes 'y', which is no input of the model", "y=aicf.TensorSpec"),
    "a weight": (nn.LossFunction(kept, y=Y), "LossFunction declares a weight", "declare it in the model"),
    "nothing": (lambda out: None, "LossFunction.emit's result is nothing"),
    "three": (lambda out: (out["router"],) * 3, "LossFunction.emit's result is a tuple"),
    "a Value beside it": (lambda out: (out["router"], out["hidden"]), "beside the loss", "(loss, {'accuracy': …})"),
    "a result's name beside it": (lambda out: (out["router"], {"hidden": out["router"] * 1.0}), "both called 'hidden'"),
    "an input's name beside it": (lambda out: (out["router"], {"x": out["router"]}), "an input are both called 'x'"),
    "the loss's name beside it": (lambda out: (out["router"], {"loss": out["router"]}), "can't be called 'loss'"),
    "a target that is a result": (nn.SoftmaxCrossEntropy(target="hidden"), "a result and an input are both called 'hidden'"),
    "an array": (lambda out: out["hidden"], "only a 0-D value can be differentiated"),
    "a function of nothing": (lambda: 0.0, "a function of nothing", "(ctx, out, y)"),
}  # fmt: skip


@pytest.mark.parametrize("what", BAD_LOSSES)
def test_losses_that_make_no_sense_are_refused(what):
    loss, *said = BAD_LOSSES[what]
    with pytest.raises(AicfError) as raised:
        aicf.compile(model(), "grad", device="cpu", loss=loss)
    for part in said:
        assert part in str(raised.value), raised.value


def test_losses_are_checked_when_they_are_made():
    for call, said in (
        (lambda: nn.LossFunction(3), "LossFunction: 3"),
        (lambda: nn.LossFunction(nn.Layer), "LossFunction: <class"),
        (lambda: nn.LossFunction(lambda out, y: out, z=Y), "takes no 'z'"),
        (lambda: nn.SoftmaxCrossEntropy(result=3), "result=3"),
        (lambda: nn.MeanSquaredError(result="*"), "result='*'"),
    ):
        with pytest.raises(VerifyError) as raised:
            call()
        assert said in str(raised.value)
    assert repr(nn.LossFunction(kept, y=Y)) == "LossFunction(kept, y=tensor<batchxi64>)"


def test_a_target_s_named_dimension_follows_the_feed():
    program = aicf.compile(model(), device="cpu", loss=nn.LossFunction(routed_loss, y=Y))
    fed = feed(np.random.default_rng(0), 3)
    assert program(fed)["hidden"].shape == (3, 6)
    with pytest.raises(FeedError, match="the feed of y is wrong"):
        program({"x": fed["x"], "y": fed["y"][:2]})
