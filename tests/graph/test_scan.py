"""Scans in a graph: what a step may read, what it may not do, plans, the body's kernels, what is kept for gradients."""

from __future__ import annotations

import re

import numpy as np
import pytest

import aicf
from aicf import nn
from aicf.device.spec import preset
from aicf.errors import AicfError, AttrError, VerifyError
from aicf.ir import Subgraph
from aicf.ops.scan import drawn
from aicf.ops.schema import schema_of
from aicf.types import AttrPack, TensorSpec


class Function(nn.Layer):
    def __init__(self, function):
        self.function = function

    def emit(self, ctx, x):
        return self.function(ctx, x)


def model_of(function, *shape, **more):
    return nn.Model({"x": TensorSpec(shape)}, Function(function), **more)


def run(function, x, device="cpu", **more):
    model = model_of(function, *x.shape, **more)
    return {n: t.numpy() for n, t in aicf.compile(model, device=device)({"x": x}).items()}


X = np.random.default_rng(0).normal(size=(6, 3)).astype(np.float32)


def test_what_a_step_reads_of_the_graph_is_the_same_in_every_step():
    def f(ctx, x):
        top = x.max(0)
        total, rows = ctx.scan(lambda c, row: (c + row * top, {"row": row - 2.0, "before": c}), x[0] * 0.0, x)
        return {"total": total, **rows}

    made, top = run(f, X), X.max(0)
    sums = np.cumsum(X * top, 0, dtype=np.float64)
    np.testing.assert_allclose(made["total"], sums[-1], rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(made["row"], X - 2, rtol=1e-6)
    np.testing.assert_allclose(made["before"], np.vstack([np.zeros(3), sums[:-1]]), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("reverse", [False, True])
def test_trees_lengths_and_directions(reverse):
    def f(ctx, x):
        def step(c, row):
            return {"a": c["b"], "b": c["a"] * 0.5 + row["u"]}, ()

        end, y = ctx.scan(step, {"a": x[0], "b": x[1]}, {"u": x}, reverse=reverse)
        assert y == ()
        doubled, _ = ctx.scan(lambda c, none: (c * 2.0, ()), x[0], length=3)
        return {**end, "doubled": doubled, "squares": ctx.map(lambda row: row * row, x)}

    a, b = X[0].astype(np.float64), X[1].astype(np.float64)
    for row in X[::-1] if reverse else X:
        a, b = b, a * 0.5 + row
    made = run(f, X)
    for name, want in (("a", a), ("b", b), ("doubled", X[0] * 8), ("squares", X * X)):
        np.testing.assert_allclose(made[name], want, rtol=1e-5, atol=1e-6)


def test_a_scan_within_a_scan_and_its_gradient():
    def f(ctx, x):
        w = ctx.param("w", (3,), nn.init.constant(0.7))

        def outer(c, row):
            inner, _ = ctx.scan(lambda v, none: (ctx.tanh(v * w) + row, ()), c, length=2)
            return inner, inner.sum()

        _, sums = ctx.scan(outer, x[0], x)
        return sums

    def oracle(w):
        c, sums = X[0].astype(np.float64), []
        for row in X:
            for _ in range(2):
                c = np.tanh(c * w) + row
            sums.append(c.sum())
        return np.array(sums)

    model = model_of(f, 6, 3)
    program = aicf.compile(model, "grad", device="cpu", loss=lambda out: (out * out).mean())
    made = {n: t.numpy() for n, t in program({"x": X}).items()}
    (grad,) = (g for n, g in made.items() if n.startswith("grad."))
    w = np.full(3, 0.7)
    for n in range(3):
        up, down = ((oracle(w + s * np.eye(3)[n]) ** 2).mean() for s in (1e-6, -1e-6))
        assert grad[n] == pytest.approx((up - down) / 2e-6, rel=1e-3)


def test_a_weight_s_gradient_is_one_product_of_all_steps():
    def f(ctx, x):
        w = ctx.param("w", (3, 3), nn.init.normal(0.5))
        bias = ctx.param("b", (3,), nn.init.zeros)
        scale = ctx.param("s", (3, 3), nn.init.ones)
        step = lambda c, row: (ctx.tanh(ctx.bias_add(c @ w, bias)) @ ctx.exp(scale) + row, ())  # noqa: E731
        return ctx.scan(step, x[:1], x.reshape(6, 1, 3))[0]

    explained = aicf.explain_for(model_of(f, 6, 3), "h200", "grad", loss=lambda out: (out * out).mean())
    scans = [r.spec for r in explained.regions if r.spec.ops[0].kind.name == "scan"]
    carried = [spec.attrs["carried"] for spec in scans]
    assert carried == [1, 2], (
        "the gradient of what is carried, and that of the logarithms, which is no product"
    )
    assert sum(op.kind.name == "gemm" for r in explained.regions for op in r.spec.ops) == 1  # of w


def test_a_plan_with_a_scan_is_saved_and_loaded():
    model = model_of(lambda ctx, x: ctx.scan(lambda c, row: (c * 0.5 + row, c), x[0], x), 6, 3)
    program = aicf.compile(model, device="cpu")
    loaded = aicf.ExecPlan.from_json(program.plan.to_json())
    assert loaded.key == program.plan.key and "scan" in str(loaded)


def test_the_body_s_kernels_are_told():
    model = model_of(lambda ctx, x: ctx.scan(lambda c, row: (ctx.tanh(c * 0.5 + row), ()), x[0], x)[0], 6, 3)
    for device in ("cpu", "h200"):
        explained = aicf.explain_for(model, device)
        ((number, region),) = (
            (n, r) for n, r in enumerate(explained.regions) if r.spec.ops[0].kind.name == "scan"
        )
        assert re.search(
            r"6 steps\s+\w+\.elementwise_\w+\.v\d .*mul \+ add \+ tanh", str(explained.region(number))
        )
        assert any("elementwise" in term for term in region.selection.chosen.cost.terms)


def test_more_parts_than_a_launch_has_parameters_for():
    """The kernel that has them in a table can't be one of a chain's."""

    def f(ctx, x):
        parts = [x[0, : n + 1] for n in range(20)]
        end, _ = ctx.scan(lambda c, none: ([ctx.tanh(v) for v in c], ()), parts, length=3)
        return {f"part{n}": v for n, v in enumerate(end)}

    x = np.random.default_rng(1).normal(size=(2, 32)).astype(np.float32)
    model = model_of(f, *x.shape)
    (region,) = (r for r in aicf.explain_for(model, "h200").regions if r.spec.ops[0].kind.name == "scan")
    assert region.selection.chosen.variant.build(region.spec, preset("h200"))
    made = run(f, x)
    for n in range(20):
        np.testing.assert_allclose(made[f"part{n}"], np.tanh(np.tanh(np.tanh(x[0, : n + 1]))), rtol=1e-5)


WRONG = {
    "two things": (lambda ctx, x: ctx.scan(lambda c, row: c, x[0], x), VerifyError, "the step does not return two things"),
    "the carry's shape": (lambda ctx, x: ctx.scan(lambda c, row: (x, ()), x[0], x), AicfError, r"scan C6: xs\[0\] is tensor<3xf32>"),
    "the carry's parts": (lambda ctx, x: ctx.scan(lambda c, row: ((c, c), ()), x[0], x), VerifyError, "something else than it is given"),
    "no length": (lambda ctx, x: ctx.scan(lambda c, row: (c, ()), x[0]), VerifyError, "how many steps are there"),
    "two lengths": (lambda ctx, x: ctx.scan(lambda c, row: (c, ()), x[0], x, length=5), VerifyError, "how many steps are there"),
    "no axis": (lambda ctx, x: ctx.scan(lambda c, row: (c, ()), x[0], x.sum()), VerifyError, "xs has no steps"),
    "an op in the body": (lambda ctx, x: ctx.scan(lambda c, row: (c @ row, ()), x[0], x.reshape(3, 2, 3)), AicfError, "gemm|rank|matmul"),
    "a state": (
        lambda ctx, x: ctx.scan(lambda c, row: (c, ctx.update(ctx.state("s", (3,), 0.0), c)), x[0], x), VerifyError, "the body updates a state",
    ),
    "numbers": (lambda ctx, x: ctx.scan(lambda c, row: (c, ()), 0.0, x), VerifyError, "carry is a float"),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_what_is_wrong_is_said_with_the_user_s_line(name):
    function, error, text = WRONG[name]
    with pytest.raises(error, match=text) as caught:
        model_of(function, 6, 3)
    assert __file__ in str(caught.value)


def test_what_a_refused_step_has_emitted_is_gone():
    def f(ctx, x):
        before = len(ctx.builder.graph.ops)
        with pytest.raises(VerifyError):
            ctx.scan(lambda c, row: c + row, x[0], x)
        assert len(ctx.builder.graph.ops) == before + 2  # x[0]
        return x + 1.0

    np.testing.assert_allclose(run(f, X)["output"], X + 1)


BODY = drawn(2, lambda emit, a, b: [emit.add(a, b), a])


def test_bodies_are_equal_by_what_they_say():
    again = Subgraph.of(AttrPack.from_blob(AttrPack(body=BODY.packed).blob)["body"])
    assert again == BODY and hash(again) == hash(BODY) and again is not BODY
    other = drawn(2, lambda emit, a, b: [emit.add(b, a), a])
    assert other != BODY and len({BODY, again, other}) == 2
    signed = [drawn(1, lambda emit, a, v=v: [emit.fill(shape=(), value=v, dtype="f32")]) for v in (0.0, -0.0)]
    packs = [schema_of("scan").pack({"body": b, "carried": 0, "stacked": 0, "length": 1}) for b in signed]
    values = [schema_of("scan").values(AttrPack.from_blob(p.blob))["body"] for p in packs]
    assert values == signed and values[0] != values[1]


@pytest.mark.parametrize("packed, text", [
    ((1, (), (1,)), "returns %1"), ((1, (("add", (), (0, 2), (1,)),), (1,)), "reads %2"), ((1, (("add", (), (0, 0), (0,)),), (0,)), "makes %0 twice"),
    ((1, (), ("a",)), "no body"), ((True, (), ()), "no body"), ((1, ((),), ()), "no body"), (3, "no body"), ((1, (("add", 5, (0,), (1,)),), (0,)), "no body"),
])  # fmt: skip
def test_what_is_no_body_is_one_clear_error(packed, text):
    with pytest.raises(AttrError, match=text):
        schema_of("scan").pack({"body": packed, "carried": 0, "stacked": 0, "length": 1})
