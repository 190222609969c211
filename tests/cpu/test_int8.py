"""Products of 8-bit integers on the CPU: exact, whatever their length."""

import numpy as np
import pytest

import aicf
from aicf import nn
from aicf.types import DType, TensorSpec


class Product(nn.Layer):
    def __init__(self, out=None, **attrs):
        self.out, self.attrs = out, attrs

    def emit(self, ctx, a, b):
        y = ctx.gemm(a, b, **self.attrs)
        return (
            y if self.out is None else ctx.convert(ctx.mul(ctx.convert(y, dtype="f32"), 0.01), dtype=self.out)
        )


def run(a, b, *, device="cpu", out=None, **attrs):
    specs = {n: TensorSpec(x.shape, DType.of(x.dtype)) for n, x in (("a", a), ("b", b))}
    program = aicf.compile(nn.Model(specs, Product(out, **attrs)), device=device)
    return program({"a": a, "b": b})["output"].numpy(), [s.kernel_id for s in program.plan.steps]


def ends(rng, dtype, shape):
    """Numbers of all of the range, and many of its ends."""
    info = np.iinfo(dtype)
    made = rng.integers(info.min, info.max, shape, dtype, endpoint=True)
    return np.where(rng.random(shape) < 0.5, info.min or info.max, made).astype(dtype)


@pytest.mark.parametrize("k", [0, 1, 255, 257, 512, 1024, 1025, 5000])
@pytest.mark.parametrize("types", [("i1", "i1"), ("u1", "i1"), ("i1", "u1"), ("u1", "u1")], ids="".join)
def test_sums_are_exact(types, k):
    rng = np.random.default_rng()
    a, b = ends(rng, types[0], (67, k)), ends(rng, types[1], (k, 45))
    got, _ = run(a, b)
    assert got.dtype == np.int32
    assert np.array_equal(got, a.astype(np.int64) @ b.astype(np.int64))


def test_transposes_batches_and_what_scales_them():
    rng = np.random.default_rng()
    a, b = ends(rng, "i1", (3, 40, 7)), ends(rng, "i1", (5, 40))
    got, (kernel,) = run(a, b, trans_a=True, trans_b=True)
    want = np.swapaxes(a, 1, 2).astype(np.int64) @ b.T.astype(np.int64)
    assert np.array_equal(got, want) and kernel == "cpu.gemm_blas.v3"
    got, kernels = run(a, b, trans_a=True, trans_b=True, out="f16")
    assert kernels == ["cpu.gemm_blas.v3"]  # one region
    np.testing.assert_allclose(got, want * 0.01, rtol=2e-3, atol=1e-3)


def test_a_sum_beyond_i32_wraps_around():
    a = np.full((1, 140_000), -128, np.int8)
    got, _ = run(a, a.reshape(-1, 1))
    assert got[0, 0] == np.int64(140_000 * 2**14).astype(np.int32)
