"""A graph that brings its own backward pass: attention and its gradient are found together, or neither is, with the reason."""

from __future__ import annotations

import math

import numpy as np
import pytest

from aicf.graph.emit.evaluate import evaluate

from .spelt import Spelt

B, H, T, S, D, V = 2, 3, 4, 5, 6, 2


def by_rows(c, p, dp):
    return c.mul(p, c.sub(dp, c.reduce_sum(c.mul(p, dp), axes=(3,), keepdims=True)))


def by_products(c, p, dp):
    both = c.mul(dp, p)
    return c.sub(both, c.mul(p, c.reduce_sum(both, axes=(3,), keepdims=True)))


def by_the_op(c, p, dp):
    return c.softmax_grad(dp, p)


def as_jax_has_it(c, p, dp):
    """From the exponentials and their sum, which the forward pass has made."""
    e, total = (c.builder.graph.values[vid] for vid in p.producer.inputs)
    squared = c.div(1.0, c.mul(total, total))
    inner = c.neg(c.reduce_sum(c.mul(c.mul(dp, squared), e), axes=(3,), keepdims=True))
    return c.mul(c.add(c.div(dp, total), inner), e)


FORMS = (by_rows, by_products, by_the_op, as_jax_has_it)


def weights_of(c, x):
    e = c.exp(c.sub(x, c.reduce_max(x, axes=(3,), keepdims=True)))
    return c.div(e, c.reduce_sum(e, axes=(3,), keepdims=True))


def lower(c, t, keys):
    row, column = (c.iota(shape=(t, keys), axis=n, dtype="i32") for n in (0, 1))
    return c.less_equal(column, c.add(row, keys - t))


class Both(Spelt):
    """Attention with its gradient: `scale` where the scores are, `mask` (c, t, s) -> a bool or None."""

    def __init__(self, form, scale=0.5, mask=None, least=-1e9, softcap=0.0):
        super().__init__()
        c = self.ctx
        q, k, v = self.input("q", B, H, T, D), self.input("k", B, H, S, D), self.input("v", B, H, S, V)
        self.q, self.k = q, k
        dout = self.input("dout", B, H, T, V)
        x = c.mul(c.gemm(q, k, trans_b=True), scale)
        capped = c.tanh(c.div(x, softcap)) if softcap else None
        x = c.mul(capped, softcap) if softcap else x
        shown = mask(self) if mask else None
        p = weights_of(c, x if shown is None else c.select(shown, x, least))
        self.out = p @ v
        self.dv = c.gemm(p, dout, trans_a=True)
        ds = form(c, p, c.gemm(dout, v, trans_b=True))
        if shown is not None:
            ds = c.select(shown, ds, 0.0)
        if softcap:
            ds = c.mul(ds, c.sub(1.0, c.square(capped)))
        ds = c.mul(ds, scale)
        self.dq, self.dk = ds @ k, c.gemm(ds, q, trans_a=True)


@pytest.mark.parametrize("form", FORMS, ids=lambda f: f.__name__)
def test_attention_with_its_gradient(form):
    s = Both(form)
    (note,) = s.found(s.out, s.dq, s.dk, s.dv)
    assert note.told == "scale 0.5, with its gradient" and note.ops > 10
    assert sorted(s.kinds) == ["attention", "attention_grad"]


@pytest.mark.parametrize("kept", ["q", "k", "v", "qv", "kv"])
def test_gradients_of_some_operands(kept):
    s = Both(by_rows)
    made = {"q": s.dq, "k": s.dk, "v": s.dv}
    (note,) = s.found(s.out, *(made[name] for name in kept))
    assert note.ops and sorted(s.kinds) == ["attention", "attention_grad"]


@pytest.mark.parametrize("form", FORMS, ids=lambda f: f.__name__)
def test_a_causal_mask_of_both(form):
    s = Both(form, mask=lambda s: lower(s.ctx, T, S))
    (note,) = s.found(s.out, s.dq, s.dk, s.dv)
    assert note.told == "causal, scale 0.5, with its gradient"


def padding(s):
    shown = s.input("shown", B, 1, T, S, dtype="bool", draw=lambda rng, shape: rng.random(shape) < 0.6)
    s.fed[shown][0, 0, 1] = False
    return shown


@pytest.mark.parametrize("form", FORMS, ids=lambda f: f.__name__)
def test_a_query_without_keys_gives_its_mean_s_gradient(form):
    s = Both(form, mask=padding)
    (note,) = s.found(s.out, s.dq, s.dk, s.dv)
    assert note.told == "mask, scale 0.5, with its gradient"
    got = evaluate(s.builder.graph, s.fed)
    assert (got[s.dq][0, :, 1] == 0).all()


def test_a_query_without_keys_that_gave_nan_gives_nan_forward_and_no_gradient():
    s = Both(by_rows, mask=padding, least=-math.inf)
    values = [s.out, s.dv]
    before = evaluate(s.builder.graph, s.fed)
    want = [before[v] for v in values]
    with pytest.raises(AssertionError, match="nan location mismatch"):
        s.found(*values)
    got = [evaluate(s.builder.graph, s.fed)[v] for v in values]
    np.testing.assert_allclose(got[0], want[0], rtol=1e-9)
    assert np.isnan(want[1][0]).all() and np.isfinite(got[1]).all()
    np.testing.assert_allclose(got[1][1], want[1][1], rtol=1e-9)


def test_a_softcap_of_both():
    s = Both(by_rows, softcap=2.0)
    (note,) = s.found(s.out, s.dq, s.dk, s.dv)
    assert note.told == "scale 0.5, softcap 2, with its gradient"


@pytest.mark.parametrize("slip", ["of keys", "another sum", "a factor", "clipped"])
def test_what_is_not_quite_the_gradient_is_left(slip):
    def form(c, p, dp):
        if slip == "of keys":
            return c.mul(p, c.sub(dp, c.reduce_sum(c.mul(p, dp), axes=(2,), keepdims=True)))
        if slip == "another sum":
            return c.mul(p, c.sub(dp, c.reduce_sum(dp, axes=(3,), keepdims=True)))
        if slip == "a factor":
            return c.mul(by_rows(c, p, dp), 1.001)
        return c.minimum(by_rows(c, p, dp), 0.1)

    s = Both(form)
    (note,) = s.found(s.out, s.dq, s.dk, s.dv)
    assert not note.ops and "attention" not in s.kinds
    assert note.told.startswith("weights at ")
    if slip == "clipped":
        assert ": minimum at " in note.told and "apply it to the operands or to the result" in note.told
    else:
        assert note.told.endswith(", by what is not the gradient of q")


def test_a_gradient_of_another_result_is_left():
    s = Both(by_rows)
    c, other = s.ctx, s.input("other", B, H, S, V)
    p = c.builder.graph.values[s.out.producer.inputs[0]]
    ds = by_rows(c, p, c.gemm(s.input("g", B, H, T, V), other, trans_b=True))
    (note,) = s.found(s.out, ds @ s.k)
    assert not note.ops and note.told.endswith(
        ", where the gradient of weights is not that of the result times values"
    )


def test_a_gradient_that_is_returned_itself_is_left():
    s = Both(by_rows)
    ds = s.builder.graph.values[s.dq.producer.inputs[0]]
    (note,) = s.found(s.out, s.dq, ds)
    assert not note.ops and note.told.endswith(", which is returned")


def test_heads_and_batches_that_move():
    """As JAX has it: tokens before heads, and products the other way round."""
    s = Spelt()
    c = s.ctx
    q, k, v, dout = (
        s.input(n, B, size, H, d) for n, size, d in (("q", T, D), ("k", S, D), ("v", S, V), ("dout", T, V))
    )
    x = c.mul(c.transpose(q, perm=(0, 2, 1, 3)) @ c.transpose(k, perm=(0, 2, 3, 1)), 0.25)
    shown = lower(c, T, S)
    p = weights_of(c, c.select(shown, x, -1e9))
    turned = c.transpose(v, perm=(0, 2, 3, 1))
    out = c.transpose(c.gemm(turned, p, trans_b=True), perm=(0, 3, 1, 2))
    back = c.transpose(dout, perm=(0, 2, 3, 1))
    dv = c.transpose(back @ p, perm=(0, 3, 1, 2))
    ds = c.mul(c.select(shown, as_jax_has_it(c, p, c.gemm(back, turned, trans_a=True)), 0.0), 0.25)
    dk = c.transpose(c.gemm(ds, c.transpose(q, perm=(0, 2, 1, 3)), trans_a=True), perm=(0, 2, 1, 3))
    dq = c.transpose(ds @ c.transpose(k, perm=(0, 2, 1, 3)), perm=(0, 2, 1, 3))
    (note,) = s.found(out, dq, dk, dv)
    assert note.told == "causal, scale 0.25, with its gradient"
    assert "gemm" not in s.kinds and "exp" not in s.kinds


def test_grouped_heads_as_rows_of_one_product():
    s = Spelt()
    c, g = s.ctx, 2
    q, k, v = s.input("q", B, H, g, T, D), s.input("k", B, H, S, D), s.input("v", B, H, S, V)
    dout = s.input("dout", B, H, g, T, V)
    rows, back = c.reshape(q, shape=(B, H, g * T, D)), c.reshape(dout, shape=(B, H, g * T, V))
    scores = c.reshape(c.gemm(rows, k, trans_b=True), shape=(B, H, g, T, S))
    e = c.exp(c.sub(scores, c.reduce_max(scores, axes=(4,), keepdims=True)))
    p = c.reshape(c.div(e, c.reduce_sum(e, axes=(4,), keepdims=True)), shape=(B, H, g * T, S))
    out = c.reshape(p @ v, shape=(B, H, g, T, V))
    ds = by_rows(c, p, c.gemm(back, v, trans_b=True))
    dq = c.reshape(ds @ k, shape=(B, H, g, T, D))
    (note,) = s.found(out, dq, c.gemm(ds, rows, trans_a=True), c.gemm(p, back, trans_a=True))
    assert note.told == "scale 1, 2 heads share keys, with its gradient"
    assert "gemm" not in s.kinds


# --- masks of the op itself -------------------------------------------------------------------------------------------


def op_of(s, mask=None, bias=None, **attrs):
    q, k, v = s.input("q", B, H, 4, D), s.input("k", B, H, 4, D), s.input("v", B, H, 4, V)
    return s.ctx.attention(q, k, v, mask, None, bias, **attrs)


@pytest.mark.parametrize("spelling", ["mask", "bias of -inf", "bias of -1e9"])
def test_a_causal_mask_of_the_op(spelling):
    s = Spelt()
    c = s.ctx
    shown = c.broadcast_in_dim(lower(c, 4, 4), shape=(B, 1, 4, 4), dims=(2, 3))
    least = c.fill(shape=(), value=-math.inf if spelling.endswith("inf") else -1e9, dtype="f32")
    given = (
        {"mask": shown}
        if spelling == "mask"
        else {"bias": c.select(shown, c.fill(shape=(), value=0.0, dtype="f32"), least)}
    )
    (note,) = s.found(op_of(s, **given))
    assert (note.what, note.told) == ("mask of attention", "causal") and s.kinds == ["attention"]


def test_a_window_within_a_causal_op():
    s = Spelt()
    c = s.ctx
    row, column = (c.iota(shape=(4, 4), axis=n, dtype="i32") for n in (0, 1))
    (note,) = s.found(op_of(s, mask=c.greater(column, c.sub(row, 2)), causal=True))
    assert note.told == "causal, window 2" and s.kinds == ["attention"]


def test_what_depends_on_data_stays_a_mask():
    s = Spelt()
    c = s.ctx
    shown = s.input("shown", B, 1, 1, 4, dtype="bool", draw=lambda rng, shape: rng.random(shape) < 0.5)
    s.fed[shown][0] = False
    (note,) = s.found(op_of(s, mask=c.logical_and(lower(c, 4, 4), shown)))
    assert note.told == "causal" and s.kinds == ["attention"]
    assert s.builder.graph.values[s.builder.graph.ops[0].inputs[3]] is shown


def test_masks_of_other_forms_stay():
    for keep in (
        lambda c: c.less(c.iota(shape=(4, 4), axis=1, dtype="i32"), 3),
        lambda c: c.logical_not(lower(c, 4, 4)),
    ):
        s = Spelt()
        assert s.found(op_of(s, mask=keep(s.ctx))) == []
    s = Spelt()
    bias = s.input("bias", 4, 4)
    assert s.found(op_of(s, bias=bias)) == []


def test_a_finite_bias_that_hides_a_whole_row_stays():
    s = Spelt()
    c = s.ctx
    shown = c.less_equal(
        c.iota(shape=(4, 4), axis=1, dtype="i32"), c.sub(c.iota(shape=(4, 4), axis=0, dtype="i32"), 1)
    )
    bias = c.select(
        shown, c.fill(shape=(), value=0.0, dtype="f32"), c.fill(shape=(), value=-1e9, dtype="f32")
    )
    assert s.found(op_of(s, bias=bias)) == []


def test_masks_of_a_gradient():
    s = Spelt()
    c = s.ctx
    q, k, v, dout = (s.input(n, B, H, 4, D) for n in ("q", "k", "v", "dout"))
    out = c.attention(q, k, v, lower(c, 4, 4))
    lse = s.builder.graph.values[out.producer.outputs[1]]
    notes = s.found(*c.attention_grad(dout, q, k, v, out, lse, lower(c, 4, 4)))
    assert sorted((n.what, n.told) for n in notes) == [
        ("mask of attention", "causal"),
        ("mask of attention_grad", "causal"),
    ]
    assert s.kinds == ["attention", "attention_grad"]
