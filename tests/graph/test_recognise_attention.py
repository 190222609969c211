"""Attention that arrives spelt out: each spelling is found, means what it meant, and what only resembles it is left, with the reason."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from aicf.graph.emit.evaluate import evaluate
from aicf.graph.recognise.run import recognise
from examples import examples

from .spelt import Spelt

B, H, G, T, S, D, V = 2, 4, 2, 5, 7, 6, 3


def softmax(x):
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def heads(s, h=H, g=H, t=T, keys=S):
    return s.input("q", B, h, t, D), s.input("k", B, g, keys, D), s.input("v", B, g, keys, V)


def plain(s, scale=0.5, t=T, keys=S, mask=None):
    q, k, v = heads(s, t=t, keys=keys)
    scores = s.ctx.mul(q @ s.ctx.transpose(k, perm=(0, 1, 3, 2)), scale)
    scores = mask(scores) if mask else scores
    return q, k, v, s.ctx.softmax(scores) @ v


def told(notes):
    return [(n.what, n.told, n.ops > 0) for n in notes]


@pytest.mark.spec("A12")
def test_a_plain_spelling_is_the_op():
    s = Spelt()
    q, k, v, y = plain(s)
    notes = s.found(y)
    assert told(notes) == [("attention", "scale 0.5", True)]
    assert s.kinds == ["attention"]
    arrays = [s.fed[x] for x in (q, k, v)]
    want = softmax(0.5 * arrays[0] @ arrays[1].swapaxes(-1, -2)) @ arrays[2]
    np.testing.assert_allclose(evaluate(s.builder.graph, s.fed)[y], want, rtol=1e-9)


# --- where a softmax is spelt out -------------------------------------------------------------------------------------


def by_division(c, x):
    e = c.exp(c.sub(x, c.reduce_max(x, axes=(3,), keepdims=True)))
    return c.div(e, c.reduce_sum(e, axes=(3,), keepdims=True))


def by_reciprocal(c, x):
    e = c.exp(c.sub(x, c.reduce_max(x, axes=(3,), keepdims=True)))
    return c.mul(c.div(1.0, c.reduce_sum(e, axes=(3,), keepdims=True)), e)


def as_jax_has_it(c, x):
    shape, rows = x.shape, (0, 1, 2)
    most = c.maximum(-math.inf, c.reduce_max(x, axes=(3,), keepdims=False))
    e = c.exp(c.sub(x, c.broadcast_in_dim(most, shape=shape, dims=rows)))
    total = c.reduce_sum(e, axes=(3,), keepdims=False)
    return c.div(
        e, c.broadcast_in_dim(c.reshape(total, shape=(*shape[:3], 1)), shape=shape, dims=(0, 1, 2, 3))
    )


def by_logarithm(c, x):
    return c.exp(c.log_softmax(x))


def without_the_maximum(c, x):
    e = c.exp(x)
    return c.div(e, c.reduce_sum(e, axes=(3,), keepdims=True))


def as_onnx_guards_it(c, x):
    p = c.softmax(x)
    return c.select(c.is_nan(p), 0.0, p)


def safe(c, x):
    p = c.softmax(x)
    hidden = c.reduce_all(c.equal(x, -math.inf), axes=(3,), keepdims=True)
    return c.select(hidden, 0.0, p)


SOFTMAXES = (by_division, by_reciprocal, as_jax_has_it, by_logarithm, as_onnx_guards_it, safe)


@pytest.mark.parametrize("form", SOFTMAXES, ids=lambda f: f.__name__)
def test_softmaxes_in_several_ops(form):
    s = Spelt()
    q, k, v = heads(s)
    y = form(s.ctx, s.ctx.div(s.ctx.gemm(q, k, trans_b=True), 2.0)) @ v
    (note,) = s.found(y)
    assert note.told == "scale 0.5" and "exp" not in s.kinds and "softmax" not in s.kinds


@pytest.mark.parametrize("form", SOFTMAXES, ids=lambda f: f.__name__)
def test_a_query_without_keys_gives_what_it_gave(form):
    s = Spelt()
    q, k, v = heads(s)
    mask = s.input("mask", B, 1, T, S, dtype="bool", draw=lambda rng, shape: rng.random(shape) < 0.5)
    s.fed[mask][0, 0, 2] = False
    scores = s.ctx.select(mask, s.ctx.gemm(q, k, trans_b=True), -math.inf)
    (note,) = s.found(form(s.ctx, scores) @ v)
    assert note.told == "mask, scale 1" and "attention" in s.kinds
    y = evaluate(s.builder.graph, s.fed)[s.builder.graph.outputs[0]]
    nothing = y[0, :, 2]
    assert (nothing == 0).all() if form in (safe, as_onnx_guards_it) else np.isnan(nothing).all()
    assert np.isfinite(np.delete(y, 2, axis=2)).all()


@pytest.mark.parametrize("form", SOFTMAXES, ids=lambda f: f.__name__)
@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_row_that_is_no_number_gives_what_it_gave(form, bad):
    s = Spelt()
    q, k, v = heads(s)
    s.fed[q][1, 2, 3, 0] = bad
    s.found(form(s.ctx, s.ctx.gemm(q, k, trans_b=True)) @ v)
    assert "attention" in s.kinds


def test_a_softmax_along_queries_is_none_of_attention_s():
    s = Spelt()
    q, k, v = heads(s, t=S)
    y = s.ctx.softmax(s.ctx.gemm(q, k, trans_b=True), axis=2) @ v
    assert s.found(y) == [] and "attention" not in s.kinds


@pytest.mark.parametrize("slip", ["another sum", "another maximum", "half the sum", "a shifted sum"])
def test_what_only_looks_like_a_softmax_is_left(slip):
    s = Spelt()
    q, k, v = heads(s)
    c, x = s.ctx, s.ctx.gemm(q, k, trans_b=True)
    e = c.exp(c.sub(x, c.reduce_max(x, axes=(2,) if slip == "another maximum" else (3,), keepdims=True)))
    total = c.reduce_sum(e, axes=(2,) if slip == "another sum" else (3,), keepdims=True)
    if slip == "half the sum":
        total = c.mul(total, 0.5)
    if slip == "a shifted sum":
        total = c.add(total, 1e-3)
    y = c.div(e, total) @ v
    notes = s.found(y)
    # a softmax is one whatever is subtracted, as long as it is the same along the row
    assert notes == [] and "attention" not in s.kinds


# --- where the scale is -----------------------------------------------------------------------------------------------


SCALES = {
    "of scores": lambda c, q, k: c.mul(c.gemm(q, k, trans_b=True), 0.25),
    "of scores, from the left": lambda c, q, k: c.mul(c.constant(0.25), c.gemm(q, k, trans_b=True)),
    "a divisor": lambda c, q, k: c.div(c.gemm(q, k, trans_b=True), 4.0),
    "of queries": lambda c, q, k: c.gemm(c.mul(q, 0.25), k, trans_b=True),
    "of keys, before they turn": lambda c, q, k: q @ c.transpose(c.div(k, 4.0), perm=(0, 1, 3, 2)),
    "of both": lambda c, q, k: c.gemm(c.mul(q, 0.5), c.scale(k, factor=0.5), trans_b=True),
    "of the product": lambda c, q, k: c.gemm(q, k, trans_b=True, alpha=0.25),
    "twice": lambda c, q, k: c.mul(c.gemm(c.mul(q, 0.5), k, trans_b=True), 0.5),
    "an array of one number": lambda c, q, k: c.mul(c.gemm(q, k, trans_b=True), c.fill(shape=(1, 1, 1, 1), value=0.25, dtype="f32")),
    "negative twice": lambda c, q, k: c.neg(c.mul(c.gemm(q, k, trans_b=True), -0.25)),
}  # fmt: skip


@pytest.mark.parametrize("where", SCALES)
def test_scales_wherever_they_are(where):
    s = Spelt()
    q, k, v = heads(s)
    (note,) = s.found(s.ctx.softmax(SCALES[where](s.ctx, q, k)) @ v)
    assert note.told == "scale 0.25" and s.kinds == ["attention"]


def test_a_scale_that_is_data_is_told():
    s = Spelt()
    q, k, v = heads(s)
    y = s.ctx.softmax(s.ctx.mul(s.ctx.gemm(q, k, trans_b=True), s.input("temperature"))) @ v
    ((what, why, found),) = told(s.found(y))
    assert (what, found) == ("attention", False) and why.startswith(
        "scores come from no product of queries and keys, but from mul"
    )


def test_a_softcap():
    s = Spelt()
    q, k, v = heads(s)
    c, x = s.ctx, s.ctx.mul(s.ctx.gemm(q, k, trans_b=True), 0.5)
    y = c.softmax(c.mul(c.tanh(c.div(x, 3.0)), 3.0)) @ v
    (note,) = s.found(y)
    assert note.told == "scale 0.5, softcap 3" and s.kinds == ["attention"]


# --- masks ------------------------------------------------------------------------------------------------------------


def positions(c, t=T, s=S):
    return c.iota(shape=(t, s), axis=0, dtype="i32"), c.iota(shape=(t, s), axis=1, dtype="i32")


def lower(c, t, keys):
    row, column = positions(c, t, keys)
    return c.less_equal(column, c.add(row, keys - t))


MASKS = {
    "a select of -inf": lambda c, x, m: c.select(m, x, -math.inf),
    "a select of the least number": lambda c, x, m: c.select(m, x, float(np.finfo(np.float32).min)),
    "a select of -1e9": lambda c, x, m: c.select(m, x, -1e9),
    "a select the other way": lambda c, x, m: c.select(c.logical_not(m), -1e9, x),
    "a sum with -inf": lambda c, x, m: c.add(x, c.select(m, 0.0, c.fill(shape=(), value=-math.inf, dtype="f32"))),
    "a sum with a factor": lambda c, x, m: c.add(c.mul(c.sub(1.0, c.convert(m, dtype="f32")), -1e9), x),
}  # fmt: skip


@pytest.mark.parametrize("spelling", MASKS)
@pytest.mark.parametrize("t, keys", [(5, 5), (3, 7), (1, 4), (4, 4)])
def test_causal_masks(spelling, t, keys):
    s = Spelt()
    *_, y = plain(s, t=t, keys=keys, mask=lambda x: MASKS[spelling](s.ctx, x, lower(s.ctx, t, keys)))
    (note,) = s.found(y)
    assert note.told == ("causal, scale 0.5" if t > 1 else "scale 0.5") and s.kinds == ["attention"]


def test_a_window():
    s = Spelt()

    def mask(x):
        row, column = positions(s.ctx, 6, 6)
        near = s.ctx.greater(column, s.ctx.sub(row, 3))
        return s.ctx.select(s.ctx.logical_and(lower(s.ctx, 6, 6), near), x, -math.inf)

    *_, y = plain(s, t=6, keys=6, mask=mask)
    (note,) = s.found(y)
    assert note.told == "causal, window 3, scale 0.5" and s.kinds == ["attention"]


def test_a_causal_mask_that_counts_from_the_first_key_stays_a_mask():
    s = Spelt()

    def mask(x):
        row, column = positions(s.ctx)
        return s.ctx.select(s.ctx.less_equal(column, row), x, -math.inf)

    *_, y = plain(s, mask=mask)
    (note,) = s.found(y)
    assert note.told == "mask, scale 0.5"


def test_a_mask_of_positions_and_one_of_data_are_told_apart():
    s = Spelt()
    padding = s.input("padding", B, 1, 1, 5, dtype="bool", draw=lambda rng, shape: rng.random(shape) < 0.6)
    s.fed[padding][0] = False  # nothing there
    s.fed[padding][1, ..., 0] = False  # the first query has no key

    def mask(x):
        both = s.ctx.logical_and(lower(s.ctx, 5, 5), padding)
        return s.ctx.select(both, x, float(np.finfo(np.float32).min))

    *_, y = plain(s, t=5, keys=5, mask=mask)
    (note,) = s.found(y)
    assert note.told == "causal, mask, scale 0.5"
    (op,) = (op for op in s.builder.graph.ops if op.kind == "attention")
    assert s.builder.graph.values[op.inputs[3]].shape == (B, 1, 1, 5)


@pytest.mark.parametrize("least", [-math.inf, -1e9, float(np.finfo(np.float32).min)])
def test_masks_of_data_keep_what_queries_without_keys_give(least):
    for spelling in ("select", "sum"):
        if spelling == "sum" and least == -1e9:
            continue
        s = Spelt()
        hide = s.input("hide", B, 1, T, S, dtype="bool", draw=lambda rng, shape: rng.random(shape) < 0.5)
        s.fed[hide][1, 0, 3] = True

        def mask(x, s=s, hide=hide, spelling=spelling):
            if spelling == "select":
                return s.ctx.select(hide, least, x)
            return s.ctx.add(x, s.ctx.select(hide, s.ctx.fill(shape=(), value=least, dtype="f32"), 0.0))

        *_, v, y = plain(s, mask=mask)
        (note,) = s.found(y)
        assert note.told == "mask, scale 0.5"
        got = evaluate(s.builder.graph, s.fed)[y][1, :, 3]
        if least == -math.inf:
            assert np.isnan(got).all()
        else:
            np.testing.assert_allclose(got, s.fed[v][1].mean(1), rtol=1e-9)


def test_a_sum_that_hides_too_little_stays_a_bias():
    s = Spelt()
    keep = s.input("keep", B, 1, 1, S, draw=lambda rng, shape: rng.integers(0, 2, shape))
    s.fed[keep][0] = 0

    def mask(x):
        return s.ctx.add(x, s.ctx.mul(s.ctx.sub(1.0, keep), -10000.0))

    *_, y = plain(s, mask=mask)
    (note,) = s.found(y)
    assert note.told == "bias, scale 0.5"


@pytest.mark.parametrize("fill", [-100.0, 0.0, math.inf, math.nan])
def test_numbers_that_are_no_mask_are_told(fill):
    s = Spelt()
    *_, y = plain(s, mask=lambda x: s.ctx.select(lower(s.ctx, T, S), x, fill))
    ((_, why, found),) = told(s.found(y))
    assert not found and why == f"hidden scores are {fill:g}, not below all others, as -1e+09 is"


def test_masks_of_several_numbers_are_told():
    s = Spelt()
    hide = s.input("hide", B, 1, 1, S, dtype="bool", draw=lambda rng, shape: rng.random(shape) < 0.5)
    *_, y = plain(s, mask=lambda x: s.ctx.select(hide, -1e9, s.ctx.select(lower(s.ctx, T, S), x, -math.inf)))
    ((_, why, found),) = told(s.found(y))
    assert (
        not found and why == "scores are hidden by -inf and by -1e+09, which a query without keys could tell"
    )


# --- biases -----------------------------------------------------------------------------------------------------------


def test_biases_are_added_up_and_scaled():
    s = Spelt()
    one, other = s.input("one", H, T, S), s.input("other", B, 1, 1, S)
    q, k, v = heads(s)
    c = s.ctx
    x = c.mul(c.add(c.gemm(q, k, trans_b=True), one), 0.5)
    y = c.softmax(c.sub(x, other)) @ v
    (note,) = s.found(y)
    assert note.told == "bias, scale 0.5"


def test_a_bias_of_minus_infinity_throughout_gives_nan():
    s = Spelt()
    bias = s.input("bias", B, 1, T, S)
    s.fed[bias][0, 0, 1] = -np.inf
    *_, y = plain(s, mask=lambda x: s.ctx.add(x, bias))
    (note,) = s.found(y)
    assert note.told == "bias, scale 0.5"
    assert np.isnan(evaluate(s.builder.graph, s.fed)[y][0, :, 1]).all()


def test_a_bias_of_params_beside_a_mask():
    s = Spelt()
    table = s.ctx.param("table", (H, T, S), lambda shape, rng: rng.normal(size=shape))
    s.fed[table] = s.rng.normal(size=table.shape)
    hide = s.input("hide", B, 1, 1, S, dtype="bool", draw=lambda rng, shape: rng.random(shape) < 0.4)
    c = s.ctx

    def mask(x):
        least = c.fill(shape=(), value=float(np.finfo(np.float32).min), dtype="f32")
        return c.add(x, c.add(table, c.select(hide, least, c.fill(shape=(), value=0.0, dtype="f32"))))

    *_, y = plain(s, mask=mask)
    (note,) = s.found(y)
    assert note.told == "mask, bias, scale 0.5"


# --- heads ------------------------------------------------------------------------------------------------------------


def test_heads_that_are_split_from_a_projection():
    s = Spelt()
    x, w = s.input("x", B, T, H * D), [s.input(n, H * D, H * D) for n in "qkvo"]
    c = s.ctx

    def split(weight):
        y = c.reshape(c.reshape(x, shape=(B * T, H * D)) @ weight, shape=(B, T, H, D))
        return c.reshape(c.transpose(y, perm=(0, 2, 1, 3)), shape=(B * H, T, D))

    q, k, v = map(split, w[:3])
    scores = c.reshape(q @ c.transpose(k, perm=(0, 2, 1)), shape=(B, H, T, T))
    scores = c.select(lower(c, T, T), c.mul(scores, D**-0.5), -math.inf)
    y = c.reshape(c.softmax(scores), shape=(B * H, T, T)) @ v
    y = c.reshape(c.transpose(c.reshape(y, shape=(B, H, T, D)), perm=(0, 2, 1, 3)), shape=(B * T, H * D))
    (note,) = s.found(y @ w[3])
    assert note.told == f"causal, scale {D**-0.5:.4g}"
    assert s.kinds.count("transpose") == 4 and s.kinds.count("attention") == 1


@pytest.mark.parametrize("form", ["repeated", "grouped", "one head of keys"])
def test_query_heads_that_share_keys(form):
    s = Spelt()
    c = s.ctx
    q, k, v = heads(s, g=1 if form == "one head of keys" else G)
    share = H // k.shape[1]

    def repeated(x):
        n, g, keys, d = x.shape
        y = c.broadcast_in_dim(x, shape=(n, g, share, keys, d), dims=(0, 1, 3, 4))
        return c.reshape(y, shape=(n, g * share, keys, d))

    if form == "grouped":  # as einsum has it: groups are rows of one product
        rows = c.reshape(q, shape=(B, G, share * T, D))
        scores = c.reshape(rows @ c.transpose(k, perm=(0, 1, 3, 2)), shape=(B, G, share, T, S))
        weights = c.softmax(c.select(lower(c, T, S), scores, -math.inf), axis=4)
        y = c.reshape(c.reshape(weights, shape=(B, G, share * T, S)) @ v, shape=(B, H, T, V))
    else:
        scores = c.gemm(q, repeated(k), trans_b=True)
        y = c.softmax(c.select(lower(c, T, S), scores, -math.inf)) @ repeated(v)
    (note,) = s.found(y)
    assert note.told == f"causal, scale 1, {share} heads share keys"
    (op,) = (op for op in s.builder.graph.ops if op.kind == "attention")
    assert s.builder.graph.values[op.inputs[1]].shape == k.shape and "broadcast_in_dim" not in s.kinds


def test_products_the_other_way_round():
    s = Spelt()
    q, k, v = heads(s)
    c = s.ctx
    scores = c.gemm(k, q, trans_b=True)  # keys by queries
    weights = c.softmax(scores, axis=2)
    y = c.gemm(v, weights, trans_a=True)  # dv by queries
    (note,) = s.found(c.transpose(y, perm=(0, 3, 1, 2)))
    assert note.told == "scale 1" and "gemm" not in s.kinds


def test_one_head_without_a_batch():
    s = Spelt()
    q, k, v = s.input("q", T, D), s.input("k", S, D), s.input("v", S, V)
    (note,) = s.found(s.ctx.softmax(s.ctx.gemm(q, k, trans_b=True), axis=1) @ v)
    assert note.told == "scale 1" and "attention" in s.kinds


def test_sizes_of_one():
    for shape in ((1, 1, 1, 1, 1), (1, 2, 1, 3, 4), (2, 1, 3, 1, 1), (1, 1, 4, 4, 2)):
        b, h, t, keys, d = shape
        s = Spelt()
        q, k, v = s.input("q", b, h, t, d), s.input("k", b, h, keys, d), s.input("v", b, h, keys, d)
        s.found(s.ctx.softmax(s.ctx.gemm(q, k, trans_b=True)) @ v)


def test_empty_sizes_are_left():
    s = Spelt()
    q, k, v = s.input("q", 1, 2, 3, 4), s.input("k", 1, 2, 0, 4), s.input("v", 1, 2, 0, 4)
    notes = recognise(s.ctx, [s.ctx.softmax(s.ctx.gemm(q, k, trans_b=True)) @ v], lambda *_: 0.0)
    assert notes == []


# --- types ------------------------------------------------------------------------------------------------------------


def half(s, name, *shape):
    return s.ctx.convert(s.input(name, *shape), dtype="bf16")


def test_a_softmax_in_f32_between_products_of_halves():
    s = Spelt()
    q, k, v = half(s, "q", B, H, T, D), half(s, "k", B, H, S, D), half(s, "v", B, H, S, V)
    c = s.ctx
    weights = c.convert(c.softmax(c.convert(c.gemm(q, k, trans_b=True), dtype="f32")), dtype="bf16")
    y = c.convert(weights @ v, dtype="f32")
    (note,) = s.found(y, exact=0.05)
    q, k, v = (evaluate(s.builder.graph, s.fed)[x].astype(np.float64) for x in (q, k, v))
    np.testing.assert_allclose(
        evaluate(s.builder.graph, s.fed)[y], softmax(q @ k.swapaxes(-1, -2)) @ v, rtol=0.02, atol=0.01
    )
    (op,) = (op for op in s.builder.graph.ops if op.kind == "attention")
    assert str(s.builder.graph.values[op.outputs[0]].dtype) == "bf16" and note.ops == 5


def test_weights_that_were_never_rounded_are_not_now():
    s = Spelt()
    q, k, v = half(s, "q", B, H, T, D), half(s, "k", B, H, S, D), half(s, "v", B, H, S, V)
    c = s.ctx
    weights = c.softmax(c.gemm(q, k, trans_b=True, out_dtype="f32"))
    s.found(weights @ c.convert(v, dtype="f32"), exact=1e-5)
    (op,) = (op for op in s.builder.graph.ops if op.kind == "attention")
    assert [str(s.builder.graph.values[n].dtype) for n in op.inputs[:3]] == ["f32"] * 3


# --- what is in the way -----------------------------------------------------------------------------------------------


def test_weights_and_scores_that_are_read_or_returned():
    for what in ("weights", "scores"):
        for returned in (True, False):
            s = Spelt()
            q, k, v = heads(s)
            scores = s.ctx.gemm(q, k, trans_b=True)
            weights = s.ctx.softmax(scores)
            other = weights if what == "weights" else scores
            ((_, why, found),) = told(s.found(weights @ v, other if returned else s.ctx.tanh(other)))
            assert not found and why.startswith(f"{what} at ")
            assert why.endswith(
                "are returned, too" if returned else "are also read by tanh at " + why.rpartition(" at ")[2]
            )


def test_readers_that_nothing_needs_do_not_count():
    s = Spelt()
    *_, y = plain(s)
    s.ctx.tanh(s.builder.graph.values[y.producer.inputs[0]])
    assert [n.ops > 0 for n in s.found(y)] == [True]


def test_dropout_of_weights_is_told():
    s = Spelt()
    q, k, v = heads(s)
    keep = s.input("keep", B, H, T, S)
    y = s.ctx.mul(s.ctx.softmax(s.ctx.gemm(q, k, trans_b=True)), keep) @ v
    ((_, why, found),) = told(s.found(y))
    assert not found and why.startswith("weights go through mul by keep at ")


def test_it_is_left_where_it_would_be_slower_and_says_so():
    s = Spelt()
    *_, y = plain(s)
    ((_, why, found),) = told(s.found(y, before=10.0, after=12.5))
    assert not found and why == "the op would take 12.5 us, the ops that it is made of 10"
    assert "attention" not in s.kinds
    s = Spelt()
    *_, y = plain(s)
    ((_, why, _),) = told(s.found(y, before=10.0, after=math.inf))
    assert why == "no kernel takes it"


def test_strict_numerics_keep_it():
    s = Spelt()
    *_, y = plain(s)
    assert told(s.found(y, strict=True)) == [
        ("attention", 'numerics="strict" keeps every op as it is', False)
    ]
    assert "attention" not in s.kinds


def test_masks_whose_gradient_would_be_wrong_are_left_in_training():
    s = Spelt()
    hide = s.input("hide", B, 1, 1, S, dtype="bool", draw=lambda rng, shape: rng.random(shape) < 0.4)
    *_, y = plain(s, mask=lambda x: s.ctx.add(x, s.ctx.mul(s.ctx.convert(hide, dtype="f32"), -1e9)))
    ((_, why, found),) = told(s.found(y, trains=True))
    assert not found and why.startswith("a mask adds -1e+09, too much for the gradient")


def test_masks_of_data_that_are_added_are_left_in_training():
    """The gradient of a sum passes where scores are hidden; a row without keys, whose weights are equal, has one."""
    for spelling, told_of in (
        ("select", "mask, scale 0.5"),
        ("sum", "a mask is added, which lets gradients of a query without keys through"),
    ):
        s = Spelt()
        shown = s.input("shown", B, 1, 1, S, dtype="bool", draw=lambda rng, shape: rng.random(shape) < 0.6)
        least = s.ctx.fill(shape=(), value=float(np.finfo(np.float32).min), dtype="f32")

        def mask(x, s=s, shown=shown, least=least, spelling=spelling):
            if spelling == "select":
                return s.ctx.select(shown, x, least)
            return s.ctx.add(x, s.ctx.select(shown, s.ctx.fill(shape=(), value=0.0, dtype="f32"), least))

        *_, y = plain(s, mask=mask)
        (note,) = s.found(y, trains=True)
        assert note.told == told_of


# --- any of them together ---------------------------------------------------------------------------------------------


@examples(60)
@given(
    softmax_form=st.sampled_from(SOFTMAXES), scale=st.sampled_from(sorted(SCALES)), mask=st.sampled_from([None, *MASKS]),
    causal=st.booleans(), turned=st.booleans(), seed=st.integers(0, 99), t=st.integers(1, 4), keys=st.integers(2, 6),
)  # fmt: skip
def test_equivalent_spellings(softmax_form, scale, mask, causal, turned, seed, t, keys):
    s = Spelt(seed)
    c = s.ctx
    keys = max(keys, t)
    q, k, v = (
        c.transpose(s.input(n, B, size, H, d), perm=(0, 2, 1, 3))
        for n, size, d in (("q", t, D), ("k", keys, D), ("v", keys, V))
    )
    x = SCALES[scale](c, q, k)
    if mask:
        if causal:
            shown = lower(c, t, keys)
        else:
            shown = s.input(
                "shown", B, 1, t, keys, dtype="bool", draw=lambda rng, shape: rng.random(shape) < 0.6
            )
            if mask == "a sum with a factor":
                s.fed[shown][..., 0] = True
        x = MASKS[mask](c, x, shown)
    y = softmax_form(c, x) @ v
    if turned:
        y = c.reshape(c.transpose(y, perm=(0, 2, 1, 3)), shape=(B, t, H * V))
    (note,) = s.found(y)
    assert note.ops > 0, note.told
    assert s.kinds.count("attention") == 1 and "gemm" not in s.kinds
