"""policy="bf16": what is computed in bf16, what stays in f32, and what that changes."""

import ml_dtypes
import numpy as np
import pytest

import aicf
from aicf import nn
from aicf.errors import VerifyError

from .mlp import on_each_device

RNG = np.random.default_rng()
BF16 = ml_dtypes.bfloat16


def rounded(x):
    return x.astype(BF16).astype(np.float64)


def linear():
    return nn.Model({"x": ("batch", 24)}, batch=8, seed=3).add(nn.Linear(24, 16))


@pytest.mark.spec("D15")
@on_each_device
def test_operands_are_rounded_and_results_are_f32(device):
    x = RNG.normal(size=(8, 24)).astype(np.float32)
    program = aicf.compile(linear(), device=device, policy="bf16")
    got = program({"x": x})["output"]
    weight, bias = program.get("0.weight"), program.get("0.bias")
    want = rounded(x) @ rounded(weight).T + rounded(bias)
    assert got.dtype is aicf.f32 and weight.dtype == bias.dtype == np.float32
    assert (rounded(weight) != weight).any()
    terms = np.abs(rounded(x)) @ np.abs(rounded(weight)).T
    assert (np.abs(got.numpy() - want) <= 2**-8 * terms).all()
    exact = x.astype(np.float64) @ weight.astype(np.float64).T + bias
    assert np.abs(got.numpy() - want).mean() < np.abs(got.numpy() - exact).mean()  # it is the rounded model


@pytest.mark.spec("D15")
@on_each_device
def test_gradients_are_those_of_the_rounded_model_in_f32(device):
    x, y = RNG.normal(size=(8, 24)).astype(np.float32), RNG.normal(size=(8, 16)).astype(np.float32)
    program = aicf.compile(linear(), "grad", device=device, policy="bf16", loss=nn.MeanSquaredError())
    result = {k: v.numpy() for k, v in program({"x": x, "y": y}).items()}
    error = result["output"].astype(np.float64) - y
    slope = 2 * error / error.size
    assert {v.dtype for v in result.values()} == {np.dtype(np.float32)}
    assert result["loss"] == pytest.approx((error**2).mean(), rel=1e-5)  # in f32, of the result as it is
    for name, other in (("weight", rounded(x)), ("bias", np.ones((8, 1)))):
        want, terms = slope.T @ other, np.abs(slope).T @ np.abs(other)
        got = result[f"grad.0.{name}"].reshape(want.shape)
        assert (np.abs(got - want) <= 2**-7 * terms).all(), (
            name
        )  # two roundings to bf16: of slopes, and of the sum


class Counted(nn.Layer):
    """Something in f32 on the way: numbers made of integers."""

    def __init__(self):
        self.norm, self.linear = nn.LayerNorm(3), nn.Linear(3, 2)

    def emit(self, ctx, x):
        return self.linear(self.norm(x.astype(aicf.f32)))


@pytest.mark.spec("D15")
def test_layers_narrow_what_comes_in_f32():
    model = nn.Model({"x": aicf.TensorSpec((4, 3), aicf.i32)}, Counted())
    x = np.arange(12, dtype=np.int32).reshape(4, 3)
    exact, half = (
        aicf.compile(model, device="cpu", policy=p)({"x": x})["output"].numpy() for p in ("f32", "bf16")
    )
    np.testing.assert_allclose(half, exact, atol=0.03)


class Shift(nn.Layer):
    def emit(self, ctx, x):
        return x + ctx.param("shift", x.shape[-1:], nn.init.ones)


@pytest.mark.spec("D15")
def test_steps_that_bf16_would_lose_add_up():
    """A parameter of 1 has no bf16 neighbour within 0.0039; ten steps of 0.0001 each are there all the same."""
    model = nn.Model({"x": (4, 3)}).add(Shift())
    program = aicf.compile(
        model, "train", device="cpu", policy="bf16", loss=nn.MeanSquaredError(), optimizer=nn.SGD(1e-4)
    )
    x, y = np.zeros((4, 3), np.float32), np.zeros((4, 3), np.float32)
    for _ in range(10):
        program({"x": x, "y": y})
    np.testing.assert_allclose(program.get("0.shift"), 1 - 10 * 1e-4 * 2 / 3, rtol=1e-5)


def blocks(rope):
    class Small(nn.Layer):
        def __init__(self):
            self.embed = nn.Embedding(19, 16)
            attn = nn.MultiHeadAttention(16, 2, rope=rope)
            self.block = nn.TransformerBlock(16, attn, nn.SwiGLU(16, 24), nn.RMSNorm)
            self.norm = nn.LayerNorm(16)
            self.head = nn.Linear(16, 19, bias=False, weight=self.embed)

        def emit(self, ctx, tokens):
            return self.head(self.norm(self.block(self.embed(tokens))))

    tokens = {"x": aicf.TensorSpec(("batch", "seq"), aicf.i32)}
    return nn.Model(tokens, Small(), batch=3, seq=8, seed=1)


@pytest.mark.spec("D15")
@on_each_device
@pytest.mark.parametrize("loss", [nn.SoftmaxCrossEntropy(), nn.LinearCrossEntropy()], ids=["apart", "as one"])
@pytest.mark.parametrize("rope", [None, 10_000.0])
def test_a_transformer_learns_as_it_does_in_f32(loss, rope, device):
    text = RNG.integers(0, 19, (3, 9))
    feed = {"x": text[:, :-1].astype(np.int32), "y": text[:, 1:].astype(np.int64)}
    losses, states = {}, {}
    for policy in ("f32", "bf16"):
        program = aicf.compile(
            blocks(rope),
            "train",
            device=device,
            policy=policy,
            loss=loss,
            optimizer=nn.AdamW(1e-2, clip_norm=1.0),
        )
        losses[policy] = [float(program({**feed})["loss"]) for _ in range(30)]
        states[policy] = program.state_dict()
    assert losses["bf16"][-1] < 0.6 * losses["bf16"][0] and losses["bf16"] != losses["f32"]
    np.testing.assert_allclose(losses["bf16"], losses["f32"], rtol=0.05)
    assert {k: v.dtype for k, v in states["bf16"].items()} == {k: v.dtype for k, v in states["f32"].items()}


@pytest.mark.spec("D15")
def test_programs_of_both_policies_share_their_parameters():
    model, x = linear(), RNG.normal(size=(8, 24)).astype(np.float32)
    train = aicf.compile(
        model, "train", device="cpu", policy="bf16", loss=nn.MeanSquaredError(), optimizer=nn.SGD(0.1)
    )
    exact = aicf.compile(model, device="cpu")
    before = exact({"x": x})["output"].numpy()
    train({"x": x, "y": before + 1})
    after = exact({"x": x})["output"].numpy()
    same = train.in_mode("infer")({"x": x, "y": before})["output"].numpy()
    assert (after != before).any() and (same != after).any()
    np.testing.assert_allclose(same, after, rtol=0.03, atol=0.03)


@pytest.mark.spec("D15")
def test_products_go_to_kernels_of_half_precision():
    model = nn.Model({"x": (512, 1024)}).add(nn.Linear(1024, 1024))
    explained = aicf.explain_for(model, "h200", policy="bf16")
    (product,) = (r for r in explained.regions if "gemm" in str(r.spec.signature))
    assert "wgmma" in product.kernel_id and {t.dtype for t in product.spec.operands[:2]} == {aicf.bf16}


@pytest.mark.parametrize(
    "policy, hint", [("f16", "needs a scale of the loss"), ("fp8", "parameters stay in f32"), (None, "")]
)
def test_policies_that_are_not_there(policy, hint):
    with pytest.raises(VerifyError, match=f"policy {policy!r} is unknown") as caught:
        aicf.compile(linear(), device="cpu", policy=policy)
    assert hint in str(caught.value)
