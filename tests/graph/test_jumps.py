"""What a jump reads is rounded first, so that a kernel that fuses it gives what separate kernels do (A15)."""

from __future__ import annotations

import math

import numpy as np
import pytest
from draws.graphs import unfused
from nn.mlp import on_each_device

import aicf
from aicf import nn
from aicf.ops import continuity, record
from aicf.ops.schema import elementwise, unregister
from aicf.rows import read
from aicf.types import DType

from .chains import Fn

ROWS, COLUMNS = 16, 125


def beyond(x):
    return 1.0 if x > 1500.0 else 0.0


def helped(x):
    return x * 0.0 + beyond(x)


SCALARS = {
    "floor": lambda x: math.floor(x), "ceil": lambda x: math.ceil(x), "trunc": lambda x: math.trunc(x),
    "round": lambda x: float(round(x)), "int": lambda x: float(int(x)), "mod": lambda x: x % 3.0, "div": lambda x: x // 3.0,
    "truth": lambda x: 1.0 if x else 0.0, "helper": lambda x: helped(x),
}  # fmt: skip
WANT = {
    "floor": np.floor, "ceil": np.ceil, "trunc": np.trunc, "round": np.rint, "int": np.trunc, "mod": lambda x: np.mod(x, np.float32(3)),
    "div": lambda x: np.floor_divide(x, np.float32(3)), "truth": lambda x: (x != 0).astype(np.float32),
    "helper": lambda x: (x > 1500).astype(np.float32),
}  # fmt: skip


@pytest.fixture
def jumping():
    for kind, scalar in SCALARS.items():
        made = elementwise(f"jump_{kind}")(scalar)
        made.doc = f"{kind} of x."
        made.reference(WANT[kind])
    yield
    for kind in SCALARS:
        unregister(f"jump_{kind}")


def products(seed=0):
    """Factors in f16 whose products, rounded to f16, are whole or 0 much more often than they are before it."""
    rng = np.random.default_rng(seed)
    a, b = rng.uniform(30, 44, (ROWS, COLUMNS)), rng.uniform(30, 44, (ROWS, COLUMNS))
    near, tiny = rng.random((2, ROWS, COLUMNS)) < 0.2
    b[near] = 1500 / a[near].astype(np.float16)
    a[tiny], b[tiny] = 1e-4, 1e-4
    return a.astype(np.float16), b.astype(np.float16)


def program(a, b, kinds, device, **more):
    def emit(ctx, x):
        factors = (ctx.state(name, a.shape, lambda *_, v=v: v, "f16") for name, v in (("a", a), ("b", b)))
        product = ctx.mul(*factors)
        for kind in kinds:
            ctx.builder.output(kind, ctx.convert(ctx.op(f"jump_{kind}", product), dtype=DType.f32))
        return ctx.relu(x)

    return aicf.compile(nn.Model({"x": aicf.TensorSpec((2, 2))}).add(Fn(emit)), device=device, **more)


def outcome(a, b, kinds, device, **more):
    made = program(a, b, kinds, device, **more)
    results = made.run({"x": np.ones((2, 2), np.float32)})
    return {kind: results[kind].numpy() for kind in kinds}, [len(step.region.ops) for step in made.plan.steps]


@on_each_device
@pytest.mark.spec("A15")
def test_fused_equals_unfused_at_every_kind_of_jump(jumping, device):
    a, b = products()
    exact = a.astype(np.float32) * b.astype(np.float32)
    narrow = exact.astype(np.float16).astype(np.float32)
    got, sizes = outcome(a, b, WANT, device)
    assert max(sizes) > len(WANT), "the product is computed where it jumps"
    for kind, want in WANT.items():
        jumped = want(narrow).astype(np.float16).astype(np.float32)
        np.testing.assert_array_equal(got[kind], jumped, err_msg=kind)
        assert np.mean(want(exact).astype(np.float16) != jumped) > 0.003, f"{kind}: the values tell"
    apart, sizes = outcome(a, b, ["helper"], device, registry=unfused(device))
    assert max(sizes) == 1
    for kind in apart:
        np.testing.assert_array_equal(apart[kind], got[kind], err_msg=kind)


@pytest.mark.spec("A15")
@pytest.mark.parametrize("off", ["what is found in bytecode", "what is rounded for it"])
def test_with_the_rule_off_the_results_differ(monkeypatch, off):
    """So the test above can fail: the rule is taken away where jumps are found, and where they are heeded."""
    monkeypatch.setattr(record, "schema_epoch", -len(off))  # what is read now is remembered apart
    if off == "what is rounded for it":
        monkeypatch.setattr(read, "jumps", lambda op, tensors: False)
    else:
        monkeypatch.setattr("aicf.ops.schema.is_continuous", lambda scalar: True)
    elementwise("jump_floor")(SCALARS["floor"]).reference(np.floor)
    try:
        a, b = products()
        (got, _), (apart, _) = (
            outcome(a, b, ["floor"], "cpu"),
            outcome(a, b, ["floor"], "cpu", registry=unfused("cpu")),
        )
    finally:
        unregister("jump_floor")
    assert np.mean(got["floor"] != apart["floor"]) > 0.05
    assert continuity.why_not(SCALARS["floor"])
