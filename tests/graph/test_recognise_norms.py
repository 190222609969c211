"""Gradients of norms in graphs that bring their own backward pass: found however they are spelt, added to another gradient or not; numbers stay."""

from __future__ import annotations

import numpy as np
import pytest

from aicf.graph.emit.evaluate import evaluate

from .spelt import Spelt

ROWS, N = (2, 3), 10


def mean_of(c, x):
    return c.reduce_mean(x, axes=(2,), keepdims=True)


def by_division(c, x):
    return c.div(c.reduce_sum(x, axes=(2,), keepdims=True), float(N))


class Norm(Spelt):
    """y of x, and its gradient of dy as it is differentiated step by step. fast: the variance is the mean of squares less the mean's."""

    def __init__(
        self,
        centred=True,
        mean=mean_of,
        inverse=False,
        fast=False,
        residual=False,
        weight=True,
        eps=1e-5,
        slip=1.0,
    ):
        super().__init__()
        c = self.ctx
        self.x, self.dy, self.w = self.input("x", *ROWS, N), self.input("dy", *ROWS, N), self.input("w", N)
        x, g = self.x, c.mul(self.dy, self.w) if weight else self.dy
        m = mean(c, x) if centred else None
        d = c.sub(x, m) if centred else x
        v = c.sub(mean(c, c.square(x)), c.square(m)) if fast else mean(c, c.square(d))
        total = c.add(v, eps)
        rstd = c.div(1.0, c.sqrt(total)) if inverse else c.rsqrt(total)
        h = c.mul(d, rstd)
        self.y = c.mul(h, self.w) if weight else h
        self.dw = c.reduce_sum(c.mul(h, self.dy), axes=(0, 1), keepdims=False)
        # through h = d * rstd, rstd = total^-1/2, total = mean(d^2) + eps, d = x - mean(x)
        drstd = c.reduce_sum(c.mul(g, d), axes=(2,), keepdims=True)
        dv = c.mul(c.mul(drstd, c.mul(c.mul(rstd, rstd), rstd)), -0.5 * slip)
        dd = c.add(c.mul(g, rstd), c.mul(c.mul(d, 2.0), c.div(dv, float(N))))
        self.other = self.input("other", *ROWS, N)
        sum = (
            c.add(self.other, c.mul(g, rstd)) if residual else dd
        )  # as gradients of several readers are added up
        sum = c.add(sum, c.mul(c.mul(d, 2.0), c.div(dv, float(N)))) if residual else sum
        self.dx = c.sub(sum, mean(c, dd)) if centred else sum


FORMS = {
    "plain": {}, "divided sums": {"mean": by_division}, "a square root": {"inverse": True}, "a fast variance": {"fast": True},
    "beside a residual": {"residual": True}, "without a weight": {"weight": False}, "a large eps": {"eps": 0.5},
    "both": {"residual": True, "mean": by_division, "inverse": True},
}  # fmt: skip


@pytest.mark.parametrize("centred", [True, False])
@pytest.mark.parametrize("form", FORMS)
def test_gradients_of_norms(form, centred):
    if form == "a fast variance" and not centred:
        return
    s = Norm(centred, **FORMS[form])
    (note,) = s.found(s.y, s.dx, s.dw)
    kind = "layer_norm" if centred else "rms_norm"
    assert note.told == f"{kind} of 10" + ", added to another one" * ("residual" in FORMS[form])
    assert s.kinds.count(f"{kind}_grad") == 1
    x, dy, w = (s.fed[v].reshape(-1, *v.shape[2:]) if v.rank > 1 else s.fed[v] for v in (s.x, s.dy, s.w))
    g = dy * (w if FORMS[form].get("weight", True) else 1)
    d = x - x.mean(-1, keepdims=True) * centred
    rstd = 1 / np.sqrt((d**2).mean(-1, keepdims=True) + FORMS[form].get("eps", np.float32(1e-5)))
    h = d * rstd
    want = (g - g.mean(-1, keepdims=True) * centred - h * (g * h).mean(-1, keepdims=True)) * rstd
    want = want + (s.fed[s.other].reshape(-1, N) if "residual" in FORMS[form] else 0)
    np.testing.assert_allclose(
        evaluate(s.builder.graph, s.fed)[s.dx].reshape(-1, N), want, rtol=1e-7, atol=1e-9
    )


@pytest.mark.parametrize("slip", [0.999, 2.0, 0.0])
def test_what_is_not_quite_the_gradient_is_left(slip):
    s = Norm(slip=slip)
    assert s.found(s.y, s.dx, s.dw) == [] and "layer_norm_grad" not in s.kinds


def test_statistics_of_something_else_are_left():
    s = Spelt()
    c, x, g = s.ctx, s.input("x", *ROWS, N), s.input("g", *ROWS, N)
    total = c.add(c.reduce_sum(c.square(x), axes=(2,), keepdims=True), 1e-5)  # a length, not a mean
    y = c.mul(x, c.rsqrt(total))
    assert s.found(y, c.mul(g, c.rsqrt(total)), c.mul(c.rsqrt(total), total)) == []


def test_forward_passes_are_left_as_they_are():
    s = Norm()
    assert s.found(s.y) == [] and "layer_norm" not in s.kinds


def test_it_is_left_where_it_would_be_slower_and_with_strict_numerics():
    s = Norm()
    (note,) = s.found(s.y, s.dx, before=1.0, after=3.0)
    assert not note.ops and note.told == "the op would take 3 us, the ops that it is made of 1"
    s = Norm()
    assert s.found(s.y, s.dx, strict=True) == [] and "layer_norm_grad" not in s.kinds


def test_short_rows_are_left():
    """Of two numbers every gradient of a norm is nearly nothing."""
    s = Spelt()
    c, x, g = s.ctx, s.input("x", 5, 2), s.input("g", 5, 2)
    d = c.sub(x, c.reduce_mean(x, axes=(1,), keepdims=True))
    rstd = c.rsqrt(c.add(c.reduce_mean(c.square(d), axes=(1,), keepdims=True), 1e-5))
    h = c.mul(d, rstd)
    dx = c.mul(
        c.sub(
            g,
            c.add(
                c.reduce_mean(g, axes=(1,), keepdims=True),
                c.mul(h, c.reduce_mean(c.mul(g, h), axes=(1,), keepdims=True)),
            ),
        ),
        rstd,
    )
    assert s.found(h, dx) == []
