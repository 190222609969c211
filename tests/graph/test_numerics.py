"""Products and sums on the host (A15): LLVM is never asked to contract them, so strict or not they round twice."""

from __future__ import annotations

import numpy as np
import pytest

import aicf
from aicf import nn

from .chains import Fn


@pytest.mark.spec("A15")
@pytest.mark.parametrize("numerics", ["fused", "strict"])
@pytest.mark.parametrize("n", [1, 7, 4099])
def test_a_product_is_rounded_before_it_is_added(numerics, n):
    rng = np.random.default_rng(n)
    a, b, c = (rng.normal(size=(n, 4)).astype(np.float32) for _ in range(3))
    c = (
        -a * b * (1 + np.float32(1e-6)) if n > 1 else c
    )  # what is left of the sum is the product's rounding error

    def emit(ctx, x):
        factor, term = (ctx.state(name, (n, 4), lambda *_, v=v: v) for name, v in (("b", b), ("c", c)))
        return ctx.add(ctx.mul(x, factor), term)

    model = nn.Model({"x": aicf.TensorSpec((n, 4))}).add(Fn(emit))
    program = aicf.compile(model, device="cpu", numerics=numerics)
    assert [step.region.signature for step in program.plan.steps] == ["mul + add"]
    got = program.run({"x": a})["output"].numpy()
    np.testing.assert_array_equal(got, a * b + c)
    contracted = (a.astype(np.float64) * b + c).astype(np.float32)
    assert n == 1 or np.mean(got != contracted) > 0.5  # the test could see a contraction
