"""Attention on a model of a Hopper multiprocessor: what it computes with masks and biases of keys, whatever the order of copies, products and
threads. See machines/attention_model.py."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from kernel_cases import (
    FEW_ATTENTION,
    HOPPER_ATTENTION,
    HOPPER_ATTENTION_GRAD,
    MMA_ATTENTION,
    VARIANTS,
    Case,
    assert_close,
    attention,
    attention_grad,
    hopper_attentions,
    operands_for,
    reference,
)
from machines.attention_model import ROLES, AttentionMachine, EndsMachine
from test_attention_mma import chosen
from test_fused_maps import fresh_seed

from aicf.device.spec import preset
from aicf.types import bf16, bool_, f16

H200 = preset("h200")


def on_model(case: Case, operands: list[np.ndarray], seed: int, blocks: int = 0) -> list[np.ndarray]:
    variant, r = VARIANTS[case.variant], case.region
    assert (reject := variant.supported(r, H200)) is None, reject
    outs = [np.full(t.numel, np.nan).astype(t.dtype.numpy) for t in r.results]
    workspace = np.full(variant.query_workspace(r, H200), 255, np.uint8)
    for launch in variant.build(r, H200):
        of_roles = launch.block[0] == ROLES
        machine = (AttentionMachine if of_roles else EndsMachine)(seed)
        machine.launch(launch, [x.reshape(-1) for x in operands], outs, blocks if of_roles else 0, workspace)
    return [x.reshape(t.shape) for x, t in zip(outs, r.results)]


SHAPES = (
    ((2, 1, 40, 64), (2, 1, 200, 64), {"mask": (2, 1, 1, 200)}, f16),
    ((1, 2, 70, 64), (1, 2, 256, 64), {"bias": (1, 2, 1, 256), "of_bias": bf16}, bf16),
    ((2, 60, 128), (1, 300, 128), {"mask": (300,), "bias": (1, 1, 300), "causal": True}, f16),
    ((1, 2, 3, 64), (1, 2, 130, 64), {"bias": (1, 130), "of_bias": f16, "softcap": 3.0, "window": 100}, f16),
)
CASES = [
    case
    for q, k, asked, t in SHAPES
    for case in hopper_attentions(q, k, dtype=t, tolerance=2e-3 if t is f16 else 2e-2, **asked)
]


@pytest.mark.sample(1, pool="on the model")
@pytest.mark.spec("F2")
@pytest.mark.parametrize("case", CASES, ids=str)
def test_what_is_added_to_keys_agrees_with_the_reference(case):
    seed = fresh_seed()
    operands = operands_for(case, seed)
    assert_close(case, on_model(case, operands.arrays, seed, 1), reference(case, operands.arrays))


@pytest.mark.sample(1, pool="on the model")
@pytest.mark.spec("F2")
@pytest.mark.parametrize("least", [np.finfo(np.float32).min, -np.inf])
def test_keys_that_all_are_masked_weigh_the_same_or_nothing(least):
    """Of one entry of the batch by the lowest number there is, or by -inf; of the other one some keys."""
    case = Case(HOPPER_ATTENTION, attention((2, 1, 9, 64), (2, 1, 140, 64), dtype=f16, bias=(2, 1, 1, 140)))
    q, k, v, bias = (x.copy() for x in operands_for(case).arrays)
    bias[0], bias[1, ..., 50:] = least, least
    out, lse = (x.astype(np.float64) for x in on_model(case, [q, k, v, bias], fresh_seed(), 1))
    want, want_lse = reference(case, [q, k, v, bias])
    np.testing.assert_allclose(out[1], want[1], rtol=2e-3, atol=2e-3)
    np.testing.assert_allclose(lse[1], want_lse[1], rtol=1e-3, atol=1e-3)
    if least == -np.inf:
        assert not out[0].any() and (lse[0] == -np.inf).all()
    else:
        even = v[0, 0].astype(np.float64).mean(0)
        np.testing.assert_allclose(out[0, 0], np.broadcast_to(even, (9, 64)), rtol=2e-3, atol=2e-3)
        assert np.isfinite(lse[0]).all()


def gradient_case(q, k, bias, **asked):
    return (
        Case(HOPPER_ATTENTION, attention(q, k, dtype=f16, bias=bias, **asked)),
        Case(HOPPER_ATTENTION_GRAD, attention_grad(q, k, dtype=f16, bias=bias, **asked), 1e-2),
    )


@pytest.mark.sample(1, pool="on the model")
@pytest.mark.spec("F2")
@pytest.mark.parametrize("least", [np.finfo(np.float32).min, -1e9, -np.inf])
def test_a_query_whose_keys_all_are_masked_has_no_gradient(least):
    forward, backward = gradient_case((2, 1, 9, 64), (2, 1, 140, 64), (2, 1, 1, 140))
    q, k, v, bias = (x.copy() for x in operands_for(forward).arrays)
    bias[0], bias[1, ..., 50:] = least, least
    out, lse = on_model(forward, [q, k, v, bias], fresh_seed(), 1)
    dout = np.random.default_rng(1).normal(size=out.shape).astype(out.dtype)
    got = on_model(backward, [dout, q, k, v, out, lse, bias], fresh_seed(), 1)
    want = reference(backward, [dout, q, k, v, out, lse, bias])
    for name, x, y in zip("qkv", got, want):
        assert not x[0].any(), name
        np.testing.assert_allclose(x[1].astype(np.float64), y[1], rtol=1e-2, atol=1e-2, err_msg=name)


@pytest.mark.sample(1, pool="on the model")
@pytest.mark.spec("F2")
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_biases_that_are_no_numbers_stay_with_the_queries_that_meet_them(value):
    """The last key's, which the last query alone attends to."""
    forward, backward = gradient_case((1, 20, 64), (1, 130, 64), (1, 130), causal=True)
    q, k, v, bias = (x.copy() for x in operands_for(forward).arrays)
    bias[0, 129] = value
    out, lse = on_model(forward, [q, k, v, bias], fresh_seed(), 1)
    assert np.isnan(out[0, 19]).all() and np.isfinite(out[0, :19]).all() and np.isfinite(lse[0, :19]).all()
    dout = np.random.default_rng(1).normal(size=out.shape).astype(out.dtype)
    dq, dk, dv = on_model(backward, [dout, q, k, v, out, lse, bias], fresh_seed(), 1)
    want = reference(backward, [dout, q, k, v, out, lse, bias])[0]
    np.testing.assert_allclose(dq[0, :19].astype(np.float64), want[0, :19], rtol=1e-2, atol=1e-2)
    assert np.isnan(dq[0, 19]).all() and np.isnan(dk).any() and np.isnan(dv).any()


@pytest.mark.spec("F2", "A7")
@pytest.mark.parametrize(
    "asked, reason",
    [
        ({"mask": (4, 70, 90)}, "mask is bool[4x70x90], takes one that is the same for all queries"),
        ({"bias": (70, 1)}, "bias is f32[70x1], takes one that is the same for all queries"),
        ({"ragged": True}, "takes whole lengths alone"),
        ({"scale": 0.0}, "scale is 0.0, needs more than 0"),
    ],
)
def test_what_goes_along_queries_is_refused(asked, reason):
    r = attention((2, 4, 70, 64), (2, 4, 90, 64), dtype=f16, **asked)
    reject = VARIANTS[HOPPER_ATTENTION].supported(r, H200)
    assert reject is not None and reason in str(reject)
    assert chosen(r, H200) in (MMA_ATTENTION, FEW_ATTENTION)


@pytest.mark.spec("F2", "A7")
def test_the_gradient_refuses_what_goes_along_query_heads_that_share_keys():
    for heads, taken in ((4, False), (1, True)):
        r = attention_grad((2, 4, 70, 64), (2, 2, 90, 64), dtype=f16, mask=(2, heads, 1, 90))
        reject = VARIANTS[HOPPER_ATTENTION_GRAD].supported(r, H200)
        assert (reject is None) == taken
        assert taken or "mask goes along query heads, of which 2 share keys" in str(reject)


@pytest.mark.spec("F2")
@pytest.mark.parametrize("heads", [1, 12])
def test_it_is_chosen_for_padded_batches_also_of_expanded_masks(heads):
    q, mask = (32, 12, 384, 64), (32, heads, 1, 384)
    for asked in ({"mask": mask}, {"bias": mask}):
        assert chosen(attention(q, q, dtype=bf16, **asked), H200) == HOPPER_ATTENTION
        assert chosen(attention_grad(q, q, dtype=bf16, **asked), H200) == HOPPER_ATTENTION_GRAD
    r = attention(q, q, dtype=bf16, mask=(32, heads, 384, 384))
    views = [replace(t, stride=(heads * 384, 384, 0, 1)) if t.dtype is bool_ else t for t in r.tensors]
    assert chosen(replace(r, tensors=tuple(views)), H200) == HOPPER_ATTENTION
    assert chosen(r, H200) == MMA_ATTENTION
