"""Attention on the host against a formula in float64 that reads, query by query, the keys that it attends to and no others."""

from __future__ import annotations

import math

import numpy as np
import pytest
from dispatch.layouts import LAYOUTS

import aicf
from aicf import nn
from aicf.cpu_kernels import attention as kernels
from aicf.device.spec import host
from aicf.types import bf16, bool_, f16, f32

from .regions import TOLERANCE, VARIANTS, Graph, normal

KERNELS = "attention_blas", "attention_grad_blas"


def formula(q, k, v, mask=None, lengths=None, bias=None, scale=None, causal=False, window=0, softcap=0.0):
    """(out, lse) in float64."""
    q, k, v = (x.astype(np.float64) for x in (q, k, v))
    *batch, heads, queries, d = q.shape
    keys, group = k.shape[-2], heads // max(k.shape[-3], 1)
    out, lse = np.zeros((*batch, heads, queries, v.shape[-1])), np.full((*batch, heads, queries), -np.inf)
    if mask is not None:
        mask = np.broadcast_to(mask, (*batch, heads, queries, keys))
    if bias is not None:
        bias = np.broadcast_to(bias, (*batch, heads, queries, keys)).astype(np.float64)
    for at in np.ndindex(*batch, heads, queries):
        *b, head, query = at
        length = keys if lengths is None else int(lengths[tuple(b)])
        here = query + length - queries
        kept = [
            j
            for j in range(min(keys, length))
            if (not causal or j <= here)
            and (not window or j > here - window)
            and (mask is None or mask[(*at, j)])
        ]
        kv = (*b, head // group, kept)
        scores = k[kv] @ q[at] * (scale or 1 / math.sqrt(max(d, 1)))
        if softcap:
            scores = softcap * np.tanh(scores / softcap)
        if bias is not None:
            scores = scores + bias[(*at, kept)]
        if kept and scores.max() != -np.inf:
            with np.errstate(all="ignore"):
                p = np.exp(scores - scores.max())
                out[at], lse[at] = p / p.sum() @ v[kv], scores.max() + math.log(p.sum())
    return out, lse


def heads_of(q, k, dv=None, dtype=f32, spread=1.0):
    shapes = {"q": q, "k": k, "v": (*k[:-1], dv or k[-1])}
    return {n: (spread * normal(*shape)).astype(dtype.numpy) for n, shape in shapes.items()}


def in_order(operands):
    """Their names as an op is given them: none in the place of one that is left out before another."""
    more = ("mask", "lengths", "bias")
    names = [n for n in operands if n not in more] + [n if n in operands else "none" for n in more]
    while names[-1] == "none":
        names.pop()
    return " ".join(names)


def attend(operands, results="out lse", **attrs):
    given = in_order(operands)
    return Graph(operands, ("attention", given, "out lse", attrs), keep=results).run("attention_blas")


def close(got, want, dtype, times=1):
    finite = want[np.isfinite(want)]
    scale = float(np.abs(finite).max()) if finite.size else 1.0
    allowed = times * TOLERANCE[dtype]
    np.testing.assert_allclose(got.astype(np.float64), want, rtol=allowed, atol=allowed * max(scale, 1.0))


CASES = [
    ((2, 3, 5, 4), (2, 3, 5, 4), {}),
    ((1, 1, 1), (1, 1, 1), {"causal": True}),
    ((2, 67, 16), (2, 67, 16), {"causal": True}),
    ((3, 130, 8), (3, 257, 8), {"causal": True}),
    ((2, 129, 8), (2, 33, 8), {"causal": True}),
    ((6, 33, 8), (2, 65, 8), {"dv": 5}),
    ((2, 4, 70, 8), (2, 1, 70, 8), {"causal": True, "scale": 0.7}),
    ((1, 200, 8), (1, 200, 8), {"causal": True, "window": 37}),
    ((1, 100, 8), (1, 150, 8), {"window": 9}),
    ((1, 150, 8), (1, 100, 8), {"window": 1, "causal": True}),
    ((2, 70, 8), (2, 70, 8), {"softcap": 2.0, "causal": True}),
    ((4, 1, 64), (2, 777, 64), {"causal": True}),
    ((2, 0, 8), (2, 5, 8), {}),
    ((2, 5, 8), (2, 0, 8), {"causal": True}),
    ((0, 5, 8), (0, 7, 8), {}),
    ((2, 5, 0), (2, 7, 0), {"dv": 3}),
]


@pytest.mark.sample(16)
@pytest.mark.parametrize("dtype", [f32, f16, bf16], ids=str)
@pytest.mark.parametrize("q, k, attrs", CASES, ids=str)
def test_against_the_formula(q, k, attrs, dtype):
    attrs = dict(attrs)
    operands = heads_of(q, k, attrs.pop("dv", None), dtype)
    for got, want, of in zip(attend(operands, **attrs), formula(*operands.values(), **attrs), (dtype, f32)):
        close(got, want, of)


@pytest.mark.parametrize("more", [{}, {"causal": True, "window": 40}], ids=str)
@pytest.mark.parametrize(
    "shape", [(2, 4, 70, 90), (2, 1, 70, 90), (1, 4, 1, 90), (70, 90), (90,), (2, 1, 70, 1), ()]
)
def test_masks_broadcast_to_scores(shape, more):
    operands = heads_of((2, 4, 70, 8), (2, 2, 90, 8))
    operands["mask"] = np.asarray(np.random.default_rng().random(shape) < 0.5)
    for got, want in zip(attend(operands, **more), formula(*operands.values(), **more)):
        close(got, want, f32)


def test_a_query_that_may_attend_to_nothing_has_zeros():
    operands = heads_of((2, 7, 4), (2, 3, 4))
    out, lse = attend(operands, causal=True)
    assert not out[:, :4].any() and (lse[:, :4] == -np.inf).all() and np.isfinite(lse[:, 4:]).all()
    operands["mask"] = np.ones((7, 3), np.bool_)
    operands["mask"][5] = False
    out, lse = attend(operands)
    assert not out[:, 5].any() and (lse[:, 5] == -np.inf).all() and np.isfinite(np.delete(lse, 5, 1)).all()
    dout = normal(2, 7, 4)
    grads = differentiate(operands, dout)
    assert not grads[0][:, 5].any() and all(np.isfinite(g).all() for g in grads)


@pytest.mark.parametrize("spread", [30.0, 1e3, 1e15])
def test_large_scores_neither_overflow_nor_lose_the_maximum(spread):
    operands = heads_of((2, 65, 8), (2, 65, 8), spread=spread)
    operands["v"] = normal(2, 65, 8)
    out, lse = attend(operands, causal=True)
    want_out, want_lse = formula(*operands.values(), causal=True)
    assert np.isfinite(out).all()
    q, k = operands["q"].astype(np.float64), operands["k"].astype(np.float64)
    off = 8 * 2.0**-23 * (np.abs(q) @ np.abs(k).swapaxes(-1, -2)).max(-1) / np.sqrt(8)  # of a score in f32
    assert (np.abs(lse - want_lse) <= off + 1e-6 * np.abs(want_lse) + 1e-3).all()
    scores = np.where(np.tri(65, dtype=bool), q @ k.swapaxes(-1, -2) / np.sqrt(8), -np.inf)
    first, second = np.moveaxis(np.sort(scores)[..., :-3:-1], -1, 0)
    told = (off < 1e-3) | (first - second > 2 * off + 20)  # else rounding may choose between them
    assert told.mean() > 0.5
    np.testing.assert_allclose(out[told], want_out[told], rtol=5e-3, atol=5e-3)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_what_is_no_number_goes_where_the_formula_takes_it(value):
    operands = heads_of((2, 9, 4), (2, 9, 4))
    operands["k"][0, 3, 1] = operands["q"][1, 2, 0] = value
    out, lse = attend(operands, causal=True)
    want, want_lse = formula(*operands.values(), causal=True)
    assert np.isnan(want).any() and not np.isnan(want).all()
    np.testing.assert_array_equal(np.isnan(out), np.isnan(want))
    np.testing.assert_allclose(out, want, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(lse, want_lse, rtol=1e-5, atol=1e-5)


@pytest.mark.sample(3)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_operands_of_every_layout(layout):
    operands = {n: LAYOUTS[layout](x) for n, x in heads_of((2, 4, 7, 8), (2, 2, 9, 8)).items()}
    for got, want in zip(attend(operands, causal=True), formula(*operands.values(), causal=True)):
        close(got, want, f32)
    dout = LAYOUTS[layout](normal(2, 4, 7, 8))
    against_differences(operands, dout, causal=True)


@pytest.mark.parametrize("name", KERNELS)
def test_blocks_of_any_size_give_the_same(name, monkeypatch):
    """Several heads at a time, one, and blocks of few queries."""
    operands = heads_of((3, 4, 37, 8), (3, 2, 41, 8))
    operands["mask"] = np.random.default_rng().random((3, 1, 37, 41)) < 0.8
    made = []
    for scores, rows in ((2**20, 64), (2**12, 16), (64, 5), (1, 1)):
        monkeypatch.setattr(kernels, "SCORES", scores)
        monkeypatch.setattr(kernels, "ROWS", rows)
        made.append(
            attend(operands, causal=True)
            if name == KERNELS[0]
            else differentiate(operands, np.ones((3, 4, 37, 8), np.float32))
        )
    for other in made[1:]:
        for a, b in zip(made[0], other):
            np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)


# --- gradients ----------------------------------------------------------------------------------------------------------


def given_back(operands, dout, **attrs):
    """What gradients read, with out and lse as the formula has them."""
    out, lse = formula(**operands, **attrs)
    own = {n: operands[n] for n in "qkv"}
    return {"dout": dout, **own, "out": out.astype(own["q"].dtype), "lse": lse.astype(np.float32)}


def differentiate(operands, dout, **attrs):
    """dq, dk and dv by the kernel."""
    given = given_back(operands, dout, **attrs)
    given |= {n: operands[n] for n in ("mask", "lengths", "bias") if n in operands}
    graph = Graph(given, ("attention_grad", in_order(given), "dq dk dv", attrs), keep="dq dk dv")
    return graph.run("attention_grad_blas")


def differentiate_bias(operands, dout, **attrs):
    given = given_back(operands, dout, **attrs) | {"bias": operands["bias"]}
    names = [*given, *(n if n in operands else "none" for n in ("mask", "lengths"))]
    given |= {n: operands[n] for n in ("mask", "lengths") if n in operands}
    graph = Graph(given, ("attention_bias_grad", " ".join(names), "dbias", attrs), keep="dbias")
    (got,) = graph.run("attention_bias_grad_blas")
    return got


def against_differences(operands, dout, dtype=f32, grads=None, **attrs):
    """Of <dout, out> in float64, for a dozen elements of each operand."""
    exact = {n: x.astype(np.float64) if n in (*"qkv", "bias") else x for n, x in operands.items()}
    rng, step = np.random.default_rng(), 1e-5
    grads = grads or dict(zip("qkv", differentiate(operands, dout, **attrs)))
    for name, got in grads.items():
        assert got.shape == operands[name].shape and got.dtype == operands[name].dtype
        for flat in rng.permutation(got.size)[:12]:
            at = np.unravel_index(flat, got.shape)
            if exact[name][at] == -np.inf:
                assert got[at] == 0
                continue
            sums = []
            for shift in (step, -step):
                moved = {**exact, name: exact[name].copy()}
                moved[name][at] += shift
                sums.append(np.vdot(dout.astype(np.float64), formula(**moved, **attrs)[0]))
            want = (sums[0] - sums[1]) / (2 * step)
            near = {f32: 2e-4, f16: 1e-2, bf16: 8e-2}[dtype]
            assert float(got[at]) == pytest.approx(want, rel=near, abs=near), (name, at)


SMALL = [
    ((2, 3, 5, 4), (2, 3, 5, 4), {}),
    ((4, 9, 4), (2, 13, 4), {"causal": True, "dv": 3}),
    ((2, 9, 4), (1, 6, 4), {"causal": True, "scale": 0.6}),
    ((1, 14, 4), (1, 14, 4), {"causal": True, "window": 4}),
    ((1, 6, 4), (1, 9, 4), {"window": 2, "softcap": 1.5}),
    ((2, 9, 4), (2, 9, 4), {"softcap": 0.7, "causal": True}),
]


@pytest.mark.sample(6)
@pytest.mark.parametrize("dtype", [f32, f16, bf16], ids=str)
@pytest.mark.parametrize("q, k, attrs", SMALL, ids=str)
def test_gradients_against_differences_of_the_formula(q, k, attrs, dtype):
    attrs = dict(attrs)
    operands = heads_of(q, k, attrs.pop("dv", None), dtype)
    against_differences(operands, normal(*q[:-1], operands["v"].shape[-1], dtype=dtype), dtype, **attrs)


def test_gradients_under_a_mask_against_differences():
    operands = heads_of((2, 4, 6, 4), (2, 2, 7, 4))
    operands["mask"] = np.random.default_rng().random((2, 1, 6, 7)) < 0.6
    against_differences(operands, normal(2, 4, 6, 4), causal=True)


@pytest.mark.parametrize(
    "q, k, attrs", [((2, 0, 8), (2, 5, 8), {}), ((2, 5, 8), (2, 0, 8), {}), ((0, 5, 8), (0, 7, 8), {})]
)
def test_gradients_of_nothing_are_zeros(q, k, attrs):
    operands = heads_of(q, k)
    for got in differentiate(operands, normal(*q)):
        assert not got.any()


def test_equal_calls_have_equal_bits():
    operands = heads_of((2, 300, 16), (1, 300, 16))
    dout = normal(2, 300, 16)
    first, again = ([x.tobytes() for x in differentiate(operands, dout, causal=True)] for _ in range(2))
    assert first == again


# --- ragged lengths -----------------------------------------------------------------------------------------------------


def ragged(q, k, lengths, dtype=f32, dv=None):
    """Where no key exists there is NaN."""
    operands = heads_of(q, k, dv, dtype)
    lengths = np.array(lengths, np.int32)
    for at in np.ndindex(*lengths.shape):
        for x in "kv":
            operands[x][at][:, max(int(lengths[at]), 0) :] = np.nan
    return {**operands, "lengths": lengths}


RAGGED = [
    ((3, 4, 70, 8), (3, 2, 90, 8), [90, 71, 33], {"causal": True}),
    ((3, 2, 1, 8), (3, 2, 150, 8), [0, 150, 7], {"causal": True, "dv": 5}),
    ((2, 3, 5, 8), (2, 3, 9, 8), [4, 0], {}),
    ((2, 2, 5, 8), (2, 1, 9, 8), [12, 3], {"causal": True, "window": 4}),
    ((1, 2, 3, 8), (1, 1, 9, 8), [40], {"window": 5}),
    ((2, 2, 1, 20, 4), (2, 2, 1, 30, 4), [[25, 30], [1, -3]], {"causal": True, "softcap": 2.0}),
    ((2, 5, 4), (2, 7, 4), 6, {"causal": True}),
    ((2, 2, 0, 4), (2, 2, 7, 4), [3, 2], {}),
    ((0, 2, 3, 4), (0, 2, 7, 4), [], {}),
]


@pytest.mark.parametrize("dtype", [f32, bf16], ids=str)
@pytest.mark.parametrize("q, k, lengths, attrs", RAGGED, ids=str)
def test_keys_behind_a_length_are_never_read(q, k, lengths, attrs, dtype):
    attrs = dict(attrs)
    operands = ragged(q, k, lengths, dtype, attrs.pop("dv", None))
    with_mask = {n: operands[n] for n in "qkv"} | {
        "mask": normal(q[-2], k[-2], dtype=bool_),
        "lengths": operands["lengths"],
    }
    for given in (operands, with_mask):
        for got, want, of in zip(attend(given, **attrs), formula(**given, **attrs), (dtype, f32)):
            close(got, want, of)


@pytest.mark.sample(3)
@pytest.mark.parametrize("q, k, lengths, attrs", RAGGED, ids=str)
def test_gradients_of_ragged_lengths(q, k, lengths, attrs):
    attrs = dict(attrs)
    operands = ragged(q, k, lengths, dv=attrs.pop("dv", None))
    dout = normal(*q[:-1], operands["v"].shape[-1])
    against_differences(operands, dout, **attrs)
    for got in differentiate(operands, dout, **attrs)[1:]:
        for at in np.ndindex(*operands["lengths"].shape):
            assert not got[at][:, max(int(operands["lengths"][at]), 0) :].any()


# --- cost and choice ----------------------------------------------------------------------------------------------------


def region(kind, q, k, **attrs):
    operands = heads_of(q, k)
    if kind == "attention_grad":
        out = np.zeros(q, np.float32)
        operands = {"dout": out, **operands, "out": out, "lse": np.zeros(q[:-1], np.float32)}
    names = "out lse" if kind == "attention" else "dq dk dv"
    return Graph(operands, (kind, " ".join(operands), names, attrs), keep=names).region


@pytest.mark.parametrize("kind", ["attention", "attention_grad"])
def test_masks_spare_work_and_the_prediction_knows(kind):
    kernel, shape = VARIANTS[f"{kind}_blas"], (4, 1024, 64)
    full, causal, window = (
        kernel.cost(region(kind, shape, shape, **attrs), host()).us
        for attrs in ({}, {"causal": True}, {"causal": True, "window": 64})
    )
    assert 0.5 < causal / full < 0.65 and window < 0.25 * full
    reference = VARIANTS["reference"].cost(region(kind, shape, shape), host()).us
    assert full < reference


class Attend(nn.Layer):
    def emit(self, ctx, x):
        *batch, rows, width = x.shape
        q, k, v = (x @ ctx.param(n, (width, width), nn.init.normal(0.3)) for n in "qkv")
        q, k, v = (y.reshape(*batch, rows, 4, -1).transpose(0, 2, 1, 3) for y in (q, k, v))
        return ctx.attention(q, k, v, causal=True).transpose(0, 2, 1, 3).reshape(*x.shape)


def test_a_layer_of_it_trains_and_is_causal():
    model = nn.Model({"x": aicf.TensorSpec(("batch", 33, 32))}, batch=4).add(Attend())
    x = np.random.default_rng(1).normal(size=(4, 33, 32)).astype(np.float32)
    infer = aicf.compile(model, device="cpu")
    assert "cpu.attention_blas.v2" in str(infer.explain())
    before = infer({"x": x})["output"].numpy()
    later = x.copy()
    later[:, 20:] += 1
    np.testing.assert_array_equal(infer({"x": later})["output"].numpy()[:, :20], before[:, :20])
    train = aicf.compile(model, "train", device="cpu", loss=nn.MeanSquaredError(), optimizer=nn.Adam(3e-3))
    losses = [float(train({"x": x, "y": np.roll(x, 1, 1)})["loss"]) for _ in range(100)]
    assert losses[-1] < 0.6 * losses[0]
