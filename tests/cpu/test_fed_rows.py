"""Invariant rows of products whose second operand is fed: its columns, or its rows where it is transposed, are samples."""

from __future__ import annotations

import numpy as np
import pytest
from draws.seeds import rng

import aicf
from aicf import nn
from aicf.cpu_kernels import blas
from aicf.types import ActKind

holds = pytest.mark.skipif(bool(blas.blocks_differ()), reason=f"BLAS: {blas.blocks_differ()}")


class OfColumns(nn.Layer):
    """act(W @ x^T + bias), perhaps with a W for each head; samples are first in x and last in the result, which is moved first."""

    def __init__(self, heads: int, m: int, k: int, turned: bool, first: bool, bias: bool) -> None:
        self.heads, self.m, self.k, self.turned, self.first, self.bias = heads, m, k, turned, first, bias

    def emit(self, ctx, x):
        shape = (self.k, self.m) if self.turned else (self.m, self.k)
        w = ctx.param("w", (self.heads, *shape) if self.heads else shape, nn.init.normal(0.3))
        bias = ctx.param("bias", (self.m,), nn.init.normal(0.3)) if self.bias else None
        if self.heads:
            x = ctx.transpose(x, perm=(1, 0, 2))
        axes = list(range(x.rank))
        if not self.first:  # the operand is (k, samples) as it is
            x = ctx.transpose(x, perm=(*axes[:-2], axes[-1], axes[-2]))
        act = ActKind.relu if self.bias else ActKind.none
        y = ctx.gemm(w, x, None, bias, trans_a=self.turned, trans_b=self.first, alpha=0.5, act=act)
        return ctx.transpose(y, perm=(axes[-1], *axes[:-1]))


@holds
@pytest.mark.spec("A15", "B14")
def test_columns_of_products_have_equal_bits(request):
    """12 drawn products of a param and an input: with heads, transposed, with a bias and ReLU; samples alone and among NaN."""
    draw = rng(request.node.nodeid)
    for n in range(12):
        heads, k = int(draw.choice([0, 3])), int(draw.integers(2, 300))
        m = int(draw.choice([draw.integers(1, 60), draw.integers(95, 120)]))
        turned, first, bias = (bool(draw.random() < 0.5) for _ in range(3))
        layer = OfColumns(
            heads, m, k, turned, first, bias and m > 90
        )  # a bias as long as a batch belongs to columns
        most = int(draw.integers(61, 90))
        shape = ("batch", heads, k) if heads else ("batch", k)
        model = nn.Model({"x": aicf.TensorSpec(shape)}, layer, batch=most, seed=n)
        program = aicf.compile(model, device="cpu", invariant=True)
        x = draw.standard_normal((most, *shape[1:])).astype(np.float32)
        rows = np.asarray(program({"x": x})["output"]).copy()
        values = {
            name.rsplit(".", 1)[-1]: np.asarray(v, np.float64) for name, v in program.state_dict().items()
        }
        w = values["w"].swapaxes(-1, -2) if layer.turned else values["w"]
        wanted = 0.5 * (w @ x.astype(np.float64)[..., None])[..., 0]
        if layer.bias:
            wanted = np.maximum(wanted + values["bias"], 0)
        np.testing.assert_allclose(rows, wanted, rtol=1e-4, atol=1e-4)
        for count in (1, int(draw.integers(2, 16)), int(draw.integers(17, 60))):
            at, row = draw.permutation(most)[:count], int(draw.integers(count))
            spoilt = np.where(
                (np.arange(count) == row).reshape(-1, *[1] * (x.ndim - 1)), x[at], np.float32("nan")
            )
            found, alone = (np.asarray(program({"x": fed})["output"]).copy() for fed in (x[at], spoilt))
            assert found.tobytes() == rows[at].tobytes(), (vars(layer), most, at)
            assert alone[row].tobytes() == rows[at[row]].tobytes(), (vars(layer), most, at, row)


@pytest.mark.spec("A15", "B14")
def test_ops_that_select_elements_have_a_class(request):
    """Drawn rows are sorted, and the largest picked, as they are alone."""
    draw = rng(request.node.nodeid)

    class Picked(nn.Layer):
        def emit(self, ctx, x):
            values, _ = ctx.top_k(ctx.sort(x, axis=-1), k=3)
            return values * ctx.fill(value=2.0, shape=(), dtype=aicf.f32)

    model = nn.Model({"x": aicf.TensorSpec(("batch", 9))}, Picked(), batch=20)
    program = aicf.compile(model, device="cpu", invariant=True)
    x = draw.standard_normal((20, 9)).astype(np.float32)
    rows = np.asarray(program({"x": x})["output"]).copy()
    np.testing.assert_array_equal(rows, 2 * -np.sort(-x, axis=-1)[:, :3])
    assert np.asarray(program({"x": x[7:8]})["output"]).tobytes() == rows[7:8].tobytes()
