"""Loops of which data decide how many iterations they have, as layers write them."""

from __future__ import annotations

import numpy as np
import pytest

import aicf
from aicf.errors import AicfError, NoKernelError, VerifyError

from .test_scan import model_of, run

X = np.random.default_rng(3).normal(size=(5, 3)).astype(np.float32)


@pytest.mark.parametrize("top", [0.0, 1.0, 7.0, 1e6])
def test_turns_go_on_while_the_condition_holds(top):
    """Both bodies read values of the graph around, one of them both; the results are what the last iteration has made."""

    def f(ctx, x):
        edge, shift = x.sum() * 0.0 + top, x.mean(0)
        state = {"n": ctx.iota(shape=(1,), axis=0, dtype="i64"), "v": [x, x * 0.5]}

        def more(s):
            return ctx.less(ctx.abs(s["v"][0]).max() + edge * 0.0, edge)

        def turn(s):
            a, b = s["v"]
            return {"n": s["n"] + 1, "v": [a * 1.5 + shift, a + edge * 0.0 - b]}

        made = ctx.while_loop(more, turn, state)
        return {"n": made["n"], "a": made["v"][0], "b": made["v"][1]}

    made = run(f, X)
    a, b, n = X.astype(np.float64), X * 0.5, 0
    while np.abs(a).max() < top:
        a, b, n = a * 1.5 + X.mean(0, dtype=np.float64), a - b, n + 1
    assert made["n"].tolist() == [n]
    np.testing.assert_allclose(made["a"], a, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(made["b"], b, rtol=1e-4, atol=1e-5)


def test_it_runs_again_from_what_it_is_given():
    """What one run leaves behind is no other's beginning; a value may be carried unchanged, or handed from place to place."""

    def f(ctx, x):
        a, b, n = ctx.while_loop(
            lambda s: ctx.less(s[2], 3.5), lambda s: (s[1], s[0], s[2] + 1.0), (x[0], x[1], x.sum() * 0.0)
        )
        return {"a": a, "b": b, "n": n}

    program = aicf.compile(model_of(f, 2, 3), device="cpu")
    for seed in range(3):
        x = np.random.default_rng(seed).normal(size=(2, 3)).astype(np.float32)
        made = program({"x": x})
        assert np.array_equal(made["a"].numpy(), x[0]) and np.array_equal(made["b"].numpy(), x[1])
        assert made["n"].numpy() == 4


def test_a_loop_within_a_scan_and_a_scan_within_a_loop():
    def f(ctx, x):
        def halved(row):
            return ctx.while_loop(lambda v: ctx.greater(v.sum(), 1.0), lambda v: v * 0.5, row)

        def swept(v):
            return ctx.scan(lambda c, row: (c + ctx.exp(row), ()), v, x)[0]

        return {
            "rows": ctx.map(halved, x * x),
            "swept": ctx.while_loop(lambda v: ctx.less(v.max(), 99.0), swept, x[0]),
        }

    made = run(f, X)
    for row, got in zip(X.astype(np.float64) ** 2, made["rows"]):
        while row.sum() > 1:
            row = row * 0.5
        np.testing.assert_allclose(got, row, rtol=1e-5)
    v, once = X[0].astype(np.float64), np.exp(X.astype(np.float64)).sum(0)
    while v.max() < 99:
        v = v + once
    np.testing.assert_allclose(made["swept"], v, rtol=1e-4)


def test_both_bodies_are_told_and_the_plan_is_saved():
    def f(ctx, x):
        return ctx.while_loop(lambda v: ctx.less(v.sum(), 99.0), lambda v: ctx.exp(v) + 1.0, x)

    program = aicf.compile(model_of(f, 5, 3), device="cpu")
    told = str(program.explain().region(0))
    assert "condition  cpu.reduce_loop" in told and "iteration  cpu.elementwise_loop" in told
    loaded = aicf.ExecPlan.from_json(program.plan.to_json())
    assert loaded.key == program.plan.key and "while_loop" in str(loaded)


def test_it_has_no_gradient_and_no_kernel_for_cuda():
    def f(ctx, x):
        w = ctx.param("w", (3,), aicf.nn.init.ones)
        return ctx.while_loop(lambda v: ctx.less(v.sum(), 99.0), lambda v: v + 1.0, x * w)

    with pytest.raises(AicfError, match="while_loop has no gradient, and the loss depends on it"):
        aicf.compile(model_of(f, 5, 3), "grad", device="cpu", loss=lambda out: out.mean())
    with pytest.raises(NoKernelError, match="no kernel takes while_loop"):
        aicf.explain_for(model_of(f, 5, 3), "h200")


WRONG = {
    "the condition": (lambda ctx, x: ctx.while_loop(lambda v: v, lambda v: v, x), AicfError, "C4: the condition returns tensor<5x3xf32>"),
    "the step's parts": (
        lambda ctx, x: ctx.while_loop(lambda s: ctx.less(s.sum(), 1.0), lambda s: (s, s), x), VerifyError, "something else than it is given",
    ),
    "the step's type": (lambda ctx, x: ctx.while_loop(lambda s: ctx.less(s.sum(), 1.0), lambda s: s.sum(), x), AicfError, r"C5: xs\[0\]"),
    "numbers": (lambda ctx, x: ctx.while_loop(lambda s: s, lambda s: s, 1.0), VerifyError, "carry is a float"),
    "nothing": (lambda ctx, x: ctx.while_loop(lambda s: x, lambda s: s, ()), AicfError, "C1: 0 carried operands"),
    "a state": (
        lambda ctx, x: ctx.while_loop(
            lambda s: ctx.less(s.sum(), 1.0), lambda s: ctx.update(ctx.state("s", (5, 3), 0.0), s), x
        ), VerifyError, "the body updates a state",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_what_is_wrong_is_said_with_the_user_s_line(name):
    function, error, text = WRONG[name]
    with pytest.raises(error, match=text) as caught:
        model_of(function, 5, 3)
    assert "/tests/graph/" in str(caught.value)
