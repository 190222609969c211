"""Attention on a GPU: bits that repeat, numbers at the edge of f32, queries that may attend to nothing. Its cases are in kernel_cases.py."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from kernel_cases import (
    ATTENTION,
    ATTENTION_GRAD,
    DECODE,
    FEW_ATTENTION,
    HOPPER_ATTENTION,
    HOPPER_ATTENTION_GRAD,
    MMA_ATTENTION,
    MMA_ATTENTION_GRAD,
    OF_KEYS,
    TURING_ATTENTION,
    TURING_ATTENTION_GRAD,
    Case,
    attention,
    attention_grad,
    operands_for,
    reference,
)
from test_gpu_kernels import gpu, launch_case, opened  # noqa: F401

from aicf.types import bf16, f16, f32

pytestmark = pytest.mark.gpu


def by_formula(q, k, v, seen):
    """out and lse in float64, of heads that have keys of their own; keys that a query may not attend to are not looked at."""
    q, k, v = (x.astype(np.float64) for x in (q, k, v))
    out, lse = np.zeros((*q.shape[:2], v.shape[-1])), np.full(q.shape[:2], -np.inf)
    for h, i in np.ndindex(*q.shape[:2]):
        with np.errstate(all="ignore"):
            s = k[h, seen[i]] @ q[h, i] / np.sqrt(q.shape[-1])
            if s.size:
                p = np.exp(s - s.max())
                out[h, i], lse[h, i] = p @ v[h, seen[i]] / p.sum(), s.max() + np.log(p.sum())
    return out, lse


@pytest.mark.spec("F2")
@pytest.mark.parametrize("dtype", [f32, f16], ids=str)
@pytest.mark.parametrize("kind, make", [(ATTENTION, attention), (ATTENTION_GRAD, attention_grad)])
def test_equal_launches_have_equal_bits(gpu, kind, make, dtype):  # noqa: F811
    case = Case(kind, make((8, 700, 64), (2, 900, 64), causal=True, dtype=dtype))
    operands = operands_for(case)
    first, again = ([x.tobytes() for x in launch_case(gpu, case, operands.memory)] for _ in range(2))
    assert first == again


@pytest.mark.spec("F2")
@pytest.mark.parametrize("spread", [1.0, 30.0, 1e15])
def test_scores_of_any_size(gpu, spread):  # noqa: F811
    case = Case(ATTENTION, attention((2, 70, 8), (2, 150, 8), causal=True))
    q, k, v = operands_for(case).arrays
    q, k = (np.float32(spread) * x for x in (q, k))
    out, lse = launch_case(gpu, case, [q, k, v])
    seen = np.arange(150) <= np.arange(70)[:, None] + 80
    want, want_lse = by_formula(q, k, v, seen)
    np.testing.assert_allclose(lse, want_lse, rtol=1e-5, atol=1e-3)
    near = 1e-5 if spread == 1.0 else 1e-2
    np.testing.assert_allclose(out, want, rtol=near, atol=near)


@pytest.mark.spec("F2")
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_what_is_no_number_stays_with_the_queries_that_meet_it(gpu, value):  # noqa: F811
    case = Case(ATTENTION, attention((2, 70, 8), (2, 70, 8), causal=True))
    q, k, v = (x.copy() for x in operands_for(case).arrays)
    k[0, 50, 1] = q[1, 60, 0] = value
    out, lse = launch_case(gpu, case, [q, k, v])
    want, want_lse = by_formula(q, k, v, np.tri(70, dtype=np.bool_))
    assert np.isnan(want[1, 60]).all() and not np.isnan(want[0, :50]).any()
    np.testing.assert_allclose(out, want, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(lse, want_lse, rtol=1e-5, atol=1e-5)


@pytest.mark.spec("F2")
def test_a_query_that_may_attend_to_nothing_has_zeros_and_no_gradient(gpu):  # noqa: F811
    seen = np.random.default_rng(0).random((70, 90)) < 0.5
    seen[[3, 65]] = False
    case = Case(ATTENTION, attention((2, 70, 8), (2, 90, 8), mask=(70, 90)))
    q, k, v, _ = operands_for(case).arrays
    out, lse = launch_case(gpu, case, [q, k, v, seen])
    assert not out[:, [3, 65]].any() and (lse[:, [3, 65]] == -np.inf).all()
    grad = Case(ATTENTION_GRAD, attention_grad((2, 70, 8), (2, 90, 8), mask=(70, 90)))
    dout = np.random.default_rng(1).normal(size=out.shape).astype(np.float32)
    dq, dk, dv = launch_case(gpu, grad, [dout, q, k, v, out, lse, seen])
    assert not dq[:, [3, 65]].any() and all(np.isfinite(x).all() for x in (dq, dk, dv))


@pytest.mark.spec("F2")
@pytest.mark.parametrize("queries", [1, 70])
def test_keys_behind_a_length_are_not_read_whatever_they_hold(gpu, queries):  # noqa: F811
    case = Case(ATTENTION, attention((4, 2, queries, 8), (4, 2, 150, 8), ragged=True))
    lengths = np.array([0, 150, 64, 7], np.int32)
    q, k, v, _ = operands_for(case).arrays
    k, v = k.copy(), v.copy()
    for n, length in enumerate(lengths):
        k[n, :, length:] = v[n, :, length:] = np.nan
    out, lse = launch_case(gpu, case, [q, k, v, lengths])
    for n, length in enumerate(lengths):
        want, want_lse = by_formula(q[n], k[n], v[n], np.tile(np.arange(150) < length, (queries, 1)))
        np.testing.assert_allclose(out[n], want, rtol=1e-5, atol=1e-5)
        np.testing.assert_allclose(lse[n], want_lse, rtol=1e-5, atol=1e-5)
    grad = Case(ATTENTION_GRAD, attention_grad((4, 2, queries, 8), (4, 2, 150, 8), ragged=True))
    dout = np.random.default_rng(1).normal(size=out.shape).astype(np.float32)
    dq, dk, dv = launch_case(gpu, grad, [dout, q, k, v, out, lse, lengths])
    assert np.isfinite(dq).all()
    for n, length in enumerate(lengths):
        assert all(np.isfinite(x[n]).all() and not x[n, :, length:].any() for x in (dk, dv))


@pytest.mark.spec("F2")
@pytest.mark.parametrize("dtype", [f32, f16], ids=str)
@pytest.mark.parametrize("heads", [4, 32])
def test_decoding_reads_no_key_behind_a_length_and_repeats_its_bits(gpu, dtype, heads):  # noqa: F811
    case = Case(
        DECODE, attention((4, heads, 1, 128), (4, 4, 3000, 128), ragged=True, causal=True, dtype=dtype)
    )
    q, k, v, _ = operands_for(case).arrays
    lengths = np.array([0, 3000, 1, 1777], np.int32)
    want, want_lse = reference(case, [q, k, v, lengths])
    for n, length in enumerate(lengths):
        k[n, :, length:] = v[n, :, length:] = np.nan
    (out, lse), again = (launch_case(gpu, case, [q, k, v, lengths]) for _ in range(2))
    assert [x.tobytes() for x in again] == [out.tobytes(), lse.tobytes()]
    near = 2e-5 if dtype is f32 else 2e-3
    np.testing.assert_allclose(out.astype(np.float64), want, rtol=near, atol=near)
    np.testing.assert_allclose(lse, want_lse, rtol=1e-5, atol=1e-4)


@pytest.mark.spec("F2")
@pytest.mark.parametrize("d", [64, 128])
@pytest.mark.parametrize(
    "sizes, asked",
    [
        ((24, 1000, 8), {"causal": True}),
        ((150, 384, 150), {}),
        ((8, 2000, 8), {"causal": True, "window": 300}),
    ],
)
def test_tensor_cores_have_equal_bits_each_time(gpu, sizes, asked, d):  # noqa: F811
    heads, length, groups = sizes
    case = Case(
        HOPPER_ATTENTION_GRAD, attention_grad((heads, length, d), (groups, length, d), dtype=f16, **asked)
    )
    operands = operands_for(case)
    first, *others = ([x.tobytes() for x in launch_case(gpu, case, operands.memory)] for _ in range(6))
    assert all(first == other for other in others)


@pytest.mark.spec("F2")
@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize("variant", [HOPPER_ATTENTION, MMA_ATTENTION, TURING_ATTENTION, FEW_ATTENTION])
def test_tensor_cores_keep_what_is_no_number_with_the_queries_that_meet_it(gpu, variant, value):  # noqa: F811
    case = Case(variant, attention((2, 300, 64), (2, 300, 64), causal=True, dtype=f16))
    q, k, v = (x.copy() for x in operands_for(case).arrays)
    k[0, 150, 1] = q[1, 200, 0] = value
    out, lse = (x.astype(np.float64) for x in launch_case(gpu, case, [q, k, v]))
    want, want_lse = by_formula(q, k, v, np.tri(300, dtype=np.bool_))
    met = np.zeros((2, 300), np.bool_)
    met[0, 150:] = met[1, 200] = True
    assert np.isnan(out[1, 200]).all() and np.isfinite(out[~met]).all() and np.isfinite(lse[~met]).all()
    np.testing.assert_allclose(out[~met], want[~met], rtol=2e-3, atol=2e-3)
    np.testing.assert_allclose(lse[~met], want_lse[~met], rtol=1e-3, atol=1e-3)


@pytest.mark.spec("F2")
@pytest.mark.parametrize(
    "d, asked", [(64, {"causal": True}), (128, {"mask": (700, 900)}), (256, {"bias": (700, 900)})]
)
@pytest.mark.parametrize("kind, make", [(MMA_ATTENTION, attention), (MMA_ATTENTION_GRAD, attention_grad)])
def test_mma_has_equal_bits_each_time(gpu, kind, make, d, asked):  # noqa: F811
    case = Case(kind, make((8, 700, d), (2, 900, d), dtype=f16, **asked))
    operands = operands_for(case)
    first, *others = ([x.tobytes() for x in launch_case(gpu, case, operands.memory)] for _ in range(4))
    assert all(first == other for other in others)


@pytest.mark.spec("F2")
@pytest.mark.parametrize("least", [-np.inf, -1e9, np.finfo(np.float32).min])
@pytest.mark.parametrize("variant", [MMA_ATTENTION, TURING_ATTENTION])
def test_mma_takes_biases_that_stand_for_masks(gpu, variant, least):  # noqa: F811
    """Of a row of the least numbers all keys weigh the same, unless they are infinite: then none does."""
    case = Case(variant, attention((2, 70, 64), (2, 90, 64), bias=(70, 90), dtype=f16))
    q, k, v, bias = (x.copy() for x in operands_for(case).arrays)
    bias[:, 50:], bias[[3, 65]] = least, least
    out, lse = (x.astype(np.float64) for x in launch_case(gpu, case, [q, k, v, bias]))
    with np.errstate(all="ignore"):
        want, want_lse = reference(case, [q, k, v, bias])
    seen = np.isin(np.arange(70), [3, 65], invert=True)
    np.testing.assert_allclose(out[:, seen], want[:, seen], rtol=2e-3, atol=2e-3)
    np.testing.assert_allclose(lse[:, seen], want_lse[:, seen], rtol=1e-3, atol=1e-3)
    if least == -np.inf:
        assert not out[:, ~seen].any() and (lse[:, ~seen] == -np.inf).all()
    else:
        assert np.isfinite(out[:, ~seen]).all()


@pytest.mark.spec("F2")
@pytest.mark.parametrize("queries", [1, 70])
@pytest.mark.parametrize(
    "forward, backward", [(MMA_ATTENTION, MMA_ATTENTION_GRAD), (TURING_ATTENTION, TURING_ATTENTION_GRAD)]
)
def test_mma_reads_no_key_behind_a_length_whatever_it_holds(gpu, forward, backward, queries):  # noqa: F811
    case = Case(forward, attention((4, 2, queries, 64), (4, 2, 150, 64), ragged=True, dtype=f16))
    lengths = np.array([0, 150, 64, 7], np.int32)
    q, k, v, _ = operands_for(case).arrays
    k, v = k.copy(), v.copy()
    for n, length in enumerate(lengths):
        k[n, :, length:] = v[n, :, length:] = np.nan
    out, lse = launch_case(gpu, case, [q, k, v, lengths])
    for n, length in enumerate(lengths):
        want, want_lse = by_formula(q[n], k[n], v[n], np.tile(np.arange(150) < length, (queries, 1)))
        np.testing.assert_allclose(out[n].astype(np.float64), want, rtol=2e-3, atol=2e-3)
        np.testing.assert_allclose(lse[n], want_lse, rtol=1e-3, atol=1e-3)
    grad = Case(backward, attention_grad((4, 2, queries, 64), (4, 2, 150, 64), ragged=True, dtype=f16))
    dout = np.random.default_rng(1).normal(size=out.shape).astype(np.float16)
    dq, dk, dv = launch_case(gpu, grad, [dout, q, k, v, out, lse, lengths])
    assert np.isfinite(dq).all() and not dq[0].any()
    for n, length in enumerate(lengths):
        assert all(np.isfinite(x[n]).all() and not x[n, :, length:].any() for x in (dk, dv))


@pytest.mark.spec("F2")
@pytest.mark.parametrize("d", [64, 128])
@pytest.mark.parametrize(
    "asked", [{"mask": (24, 1, 1000)}, {"bias": (1, 1000), "causal": True, "window": 300}], ids=str
)
@pytest.mark.parametrize(
    "kind, make", [(HOPPER_ATTENTION, attention), (HOPPER_ATTENTION_GRAD, attention_grad)]
)
def test_tensor_cores_have_equal_bits_each_time_with_what_is_added_to_keys(gpu, kind, make, asked, d):  # noqa: F811
    case = Case(kind, make((24, 1000, d), (24, 1000, d), dtype=f16, **asked))
    operands = operands_for(case)
    first, *others = ([x.tobytes() for x in launch_case(gpu, case, operands.memory)] for _ in range(6))
    assert all(first == other for other in others)


LOWEST = np.finfo(np.float32).min


def with_bias(q, k, v, bias, dout=None):
    """out and lse in float64, of each query head, and dq, dk, dv if there is a dout; `bias` goes along (batch, heads, queries, keys). A query without
    keys has zeros."""
    out, lse, scale = (
        np.zeros((*q.shape[:-1], v.shape[-1])),
        np.full(q.shape[:-1], -np.inf),
        q.shape[-1] ** -0.5,
    )
    dq, dk, dv = (np.zeros(x.shape) for x in (q, k, v))
    shared = q.shape[1] // k.shape[1]
    for b, h in np.ndindex(*q.shape[:2]):
        own, keys, values = (x.astype(np.float64) for x in (q[b, h], k[b, h // shared], v[b, h // shared]))
        s = own @ keys.T * scale
        s = s + np.broadcast_to(bias[b, h if bias.shape[1] > 1 else 0], s.shape).astype(np.float64)
        most = s.max(-1, keepdims=True)
        with np.errstate(all="ignore"):
            e = np.exp(s - np.where(most == -np.inf, 0, most))
            total = e.sum(-1)
            p = np.where(total[:, None] == 0, 0, e / total[:, None])
            lse[b, h] = np.where(total == 0, -np.inf, most[:, 0] + np.log(total))
        out[b, h] = p @ values
        if dout is not None:
            g = dout[b, h].astype(np.float64)
            ds = p * (g @ values.T - (out[b, h] * g).sum(-1, keepdims=True)) * scale
            dq[b, h] = ds @ keys
            dk[b, h // shared] += ds.T @ own
            dv[b, h // shared] += p.T @ g
    return (out, lse) if dout is None else (out, lse, dq, dk, dv)


@pytest.mark.spec("F2")
@pytest.mark.parametrize("d, keys", [(64, 300), (128, 384)])
@pytest.mark.parametrize(
    "of_bias, least", [(f32, LOWEST), (f32, -np.inf), (f32, -1e4), (bf16, None), (f16, None)]
)
def test_hopper_takes_biases_of_keys_that_stand_for_masks(gpu, of_bias, least, d, keys):  # noqa: F811
    """Of an entry of the batch whose keys all have the least number that there is, each weighs the same; of -inf none does. No such number, nor one
    of another entry, is seen by the others."""
    q, k = (3, 4, 200, d), (3, 2, keys, d)
    case = Case(HOPPER_ATTENTION, attention(q, k, bias=(3, 1, 1, keys), of_bias=of_bias, dtype=f16))
    least = ml_dtypes.finfo(of_bias.numpy).min if least is None else least
    q, k, v, bias = (x.copy() for x in operands_for(case).arrays)
    bias[0], bias[1, ..., 50:], bias[2, ..., :3] = least, least, least
    out, lse = (x.astype(np.float64) for x in launch_case(gpu, case, [q, k, v, bias]))
    want, want_lse = with_bias(q, k, v, bias)
    np.testing.assert_allclose(out[1:], want[1:], rtol=2e-3, atol=2e-3)
    np.testing.assert_allclose(lse[1:], want_lse[1:], rtol=1e-3, atol=1e-3)
    if least == -np.inf:
        assert not out[0].any() and (lse[0] == -np.inf).all()
    else:
        np.testing.assert_allclose(
            out[0], want[0], rtol=4e-3, atol=4e-3
        )  # its scores are rounded as the large number is
        assert np.isfinite(lse[0]).all()


@pytest.mark.spec("F2")
@pytest.mark.parametrize("d, keys", [(64, 300), (128, 384)])
@pytest.mark.parametrize(
    "of_bias, least", [(f32, LOWEST), (f32, -np.inf), (f32, -1e9), (f32, -1e4), (bf16, None), (f16, None)]
)
def test_hopper_s_gradient_takes_biases_of_keys_that_stand_for_masks(gpu, of_bias, least, d, keys):  # noqa: F811
    """Of an entry of the batch whose keys all have a number so low that no lse can tell their weights, there is none."""
    q, k = (3, 4, 200, d), (3, 2, keys, d)
    asked = {"bias": (3, 1, 1, keys), "of_bias": of_bias, "dtype": f16}
    least = float(ml_dtypes.finfo(of_bias.numpy).min if least is None else least)
    forward = Case(HOPPER_ATTENTION, attention(q, k, **asked))
    backward = Case(HOPPER_ATTENTION_GRAD, attention_grad(q, k, **asked))
    q, k, v, bias = (x.copy() for x in operands_for(forward).arrays)
    bias[0], bias[1, ..., 50:], bias[2, ..., :3] = least, least, least
    out, lse = launch_case(gpu, forward, [q, k, v, bias])
    dout = np.random.default_rng(1).normal(size=out.shape).astype(np.float16)
    got = launch_case(gpu, backward, [dout, q, k, v, out, lse, bias])
    want, first = with_bias(q, k, v, bias, dout)[2:], 0 if least > -1e5 else 1
    for name, x, y in zip(("dq", "dk", "dv"), got, want):
        np.testing.assert_allclose(
            x[first:].astype(np.float64), y[first:], rtol=1e-2, atol=2e-2, err_msg=name
        )
        assert first == 0 or not x[0].any(), name


@pytest.mark.spec("F2")
def test_hopper_keeps_biases_of_keys_that_are_no_numbers_with_the_queries_that_meet_them(gpu):  # noqa: F811
    case = Case(
        HOPPER_ATTENTION,
        attention((2, 1, 300, 64), (2, 1, 300, 64), bias=(2, 1, 1, 300), causal=True, dtype=f16),
    )
    q, k, v, bias = (x.copy() for x in operands_for(case).arrays)
    bias[0, ..., 150], bias[1, ..., 290], bias[1, ..., 20] = np.nan, np.inf, -np.inf
    out, lse = (x.astype(np.float64) for x in launch_case(gpu, case, [q, k, v, bias]))
    seen = np.tri(300, dtype=np.bool_)
    want, want_lse = with_bias(q, k, v, np.where(seen, bias, -np.inf))
    met = np.zeros((2, 1, 300), np.bool_)
    met[0, 0, 150:] = met[1, 0, 290:] = True
    assert np.isnan(out[met]).all() and np.isnan(lse[0, 0, 150:]).all()
    np.testing.assert_allclose(out[~met], want[~met], rtol=2e-3, atol=2e-3)
    np.testing.assert_allclose(lse[~met], want_lse[~met], rtol=1e-3, atol=1e-3)
    dout = np.random.default_rng(1).normal(size=out.shape).astype(np.float16)
    shape, asked = (2, 1, 300, 64), {"bias": (2, 1, 1, 300), "causal": True, "dtype": f16}
    grad = Case(HOPPER_ATTENTION_GRAD, attention_grad(shape, shape, **asked))
    halves, statistics = out.astype(np.float16), lse.astype(np.float32)
    dq, dk, dv = launch_case(gpu, grad, [dout, q, k, v, halves, statistics, bias])
    assert np.isnan(dq[met]).all() and np.isfinite(dq[~met]).all()
    assert all(np.isnan(x[b]).any() for x in (dk, dv) for b in (0, 1))


@pytest.mark.spec("F2")
@pytest.mark.parametrize(
    "q, k, asked", [c for c in OF_KEYS if "mask" in c[2] and "bias" not in c[2]], ids=str
)
def test_a_mask_of_keys_is_a_bias_of_minus_infinity(gpu, q, k, asked):  # noqa: F811
    """Bit for bit."""
    made = []
    for given in (asked, {**{n: x for n, x in asked.items() if n != "mask"}, "bias": asked["mask"]}):
        case = Case(HOPPER_ATTENTION, attention(q, k, dtype=bf16, **given))
        arrays = operands_for(case).arrays
        seen = np.random.default_rng(3).random(asked["mask"]) < 0.5
        arrays[3] = seen if "mask" in given else np.where(seen, 0, -np.inf).astype(np.float32)
        made.append([x.tobytes() for x in launch_case(gpu, case, arrays)])
    assert made[0] == made[1]
