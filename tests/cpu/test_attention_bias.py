"""Attention with a bias on the host, and the bias's gradient, against the formula in float64 and its differences."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import aicf
from aicf import nn
from aicf.cpu_kernels import attention as kernels
from aicf.types import bf16, bool_, f16, f32

from .regions import normal
from .test_attention import (
    against_differences,
    attend,
    close,
    differentiate,
    differentiate_bias,
    formula,
    heads_of,
    ragged,
)

SHAPES = [(2, 4, 13, 17), (2, 1, 13, 17), (4, 13, 17), (2, 1, 1, 17), (13, 17), (1, 4, 13, 1), (17,), ()]
ASKED = [{}, {"causal": True, "window": 9}, {"softcap": 1.5, "scale": 0.7}]


def operands_with(shape, dtype=f32, of_bias=f32, masked=False):
    """Some rows of the bias are all -inf, if it has rows."""
    operands = heads_of((2, 4, 13, 6), (2, 2, 17, 6), 5, dtype)
    if masked:
        operands["mask"] = normal(13, 17, dtype=bool_)
    bias = normal(*shape).astype(of_bias.numpy)
    if len(shape) > 1:
        bias[np.random.default_rng().random(shape) < 0.2] = -np.inf
        bias[..., 3 % shape[-2], :] = -np.inf
    return {**operands, "bias": bias}


@pytest.mark.sample(24)
@pytest.mark.parametrize("dtype, of_bias", [(f32, f32), (f16, f16), (bf16, f32), (f32, bf16)], ids=str)
@pytest.mark.parametrize("attrs", ASKED, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_a_bias_is_added_to_capped_scores(shape, attrs, dtype, of_bias):
    for masked in (False, True):
        operands = operands_with(shape, dtype, of_bias, masked)
        for got, want, of in zip(attend(operands, **attrs), formula(**operands, **attrs), (dtype, f32)):
            close(got, want, of)


def test_a_row_of_minus_infinity_has_zeros_and_gradients_of_zero():
    operands = operands_with((13, 17))
    out, lse = attend(operands)
    assert not out[..., 3, :].any() and (lse[..., 3] == -np.inf).all() and np.isfinite(out).all()
    dout = normal(2, 4, 13, 5)
    dq, dk, dv = differentiate(operands, dout)
    assert not dq[..., 3, :].any() and all(np.isfinite(x).all() for x in (dk, dv))
    dbias = differentiate_bias(operands, dout)
    assert not dbias[operands["bias"] == -np.inf].any() and np.isfinite(dbias).all()


def test_a_nan_stays_with_its_query():
    operands = operands_with((13, 17))
    operands["bias"][5, 2] = np.nan
    out, _ = attend(operands)
    assert np.isnan(out[..., 5, :]).all() and np.isfinite(np.delete(out, 5, -2)).all()


@pytest.mark.sample(3)
@pytest.mark.parametrize("attrs", ASKED, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_gradients_under_a_bias_against_differences(shape, attrs):
    operands, dout = operands_with(shape, masked=True), normal(2, 4, 13, 5)
    against_differences(operands, dout, **attrs)
    if shape[-2:] == (13, 17):
        against_differences(
            operands, dout, grads={"bias": differentiate_bias(operands, dout, **attrs)}, **attrs
        )


@pytest.mark.sample(2)
@pytest.mark.parametrize("shape", [(3, 4, 7, 9), (3, 1, 7, 9), (4, 7, 9), (7, 9), (3, 1, 1, 9)], ids=str)
def test_a_bias_of_ragged_lengths(shape):
    """Where no key exists the bias is not read."""
    operands = ragged((3, 4, 7, 6), (3, 2, 9, 6), [9, 0, 4])
    operands["bias"] = normal(*shape)
    if len(shape) == 4:
        operands["bias"][2, ..., 4:] = np.nan
    for got, want in zip(attend(operands, causal=True), formula(**operands, causal=True)):
        close(got, want, f32)
    dout = normal(3, 4, 7, 6)
    against_differences(operands, dout, causal=True)
    if shape[-2] == 7:
        got = differentiate_bias(operands, dout, causal=True)
        assert np.isfinite(got).all()
        operands["bias"] = np.nan_to_num(operands["bias"])
        against_differences(operands, dout, grads={"bias": got}, causal=True)


@pytest.mark.sample(2)
@pytest.mark.parametrize("shape", [(3, 4, 37, 41), (1, 4, 37, 41), (3, 1, 37, 41), (37, 41)], ids=str)
def test_blocks_of_any_size_give_the_same(shape, monkeypatch):
    operands = heads_of((3, 4, 37, 8), (3, 2, 41, 8))
    operands["bias"], dout, made = normal(*shape), normal(3, 4, 37, 8), []
    for scores, rows in ((2**20, 64), (2**12, 16), (64, 5)):
        monkeypatch.setattr(kernels, "SCORES", scores)
        monkeypatch.setattr(kernels, "ROWS", rows)
        made.append([*attend(operands), *differentiate(operands, dout), differentiate_bias(operands, dout)])
    for other in made[1:]:
        for a, b in zip(made[0], other):
            np.testing.assert_allclose(a, b, rtol=1e-4, atol=2e-5)


# --- in models ----------------------------------------------------------------------------------------------------------


class Biased(nn.Layer):
    """Attention of x with itself, and a bias of its own."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        self.shape = shape

    def emit(self, ctx: Any, x: Any) -> Any:
        q = x * ctx.param("q", (6,), nn.init.normal(1.0))
        bias = ctx.param("bias", self.shape, nn.init.normal(1.0))
        return ctx.attention(q, x, x, None, None, bias, causal=True)


@pytest.mark.parametrize("shape", [(4, 5, 5), (3, 1, 5, 5), (5, 5), (4, 1, 5), (4, 1, 1), (1,)], ids=str)
def test_a_bias_is_learned(shape):
    """Whatever it is repeated along."""
    model = nn.Model({"x": (3, 4, 5, 6)}, Biased(shape))
    program = aicf.compile(model, "grad", device="cpu", loss=nn.MeanSquaredError())
    rng = np.random.default_rng()
    x, y = (rng.standard_normal((3, 4, 5, 6), np.float32) for _ in range(2))
    weights = {n: v.astype(np.float64) for n, v in program.state_dict().items()}

    def loss(bias):
        xx = x.astype(np.float64)
        return np.mean((formula(xx * weights["q"], xx, xx, bias=bias, causal=True)[0] - y) ** 2)

    got = program({"x": x, "y": y})["grad.bias"].numpy()
    for flat in rng.permutation(got.size)[:6]:
        at, sides = np.unravel_index(flat, shape), []
        for step in (1e-5, -1e-5):
            bias = weights["bias"].copy()
            bias[at] += step
            sides.append(loss(bias))
        assert got[at] == pytest.approx((sides[0] - sides[1]) / 2e-5, rel=1e-3, abs=1e-6)
