"""A product's backward (D6): gA, gB, gC and gBias from A, B, C, gY and Z, against formulas in float64."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from aicf.ops.schema import schema_of
from aicf.types import ActKind, DType

from .numpy_emitter import NumpyEmitter, call_gradient
from .sampling import packed

M, N, K = 6, 5, 4
SLOPE = 0.2
BIASES = {"none": None, "scalar": (1,), "per N": (N,), "per M": (M,)}
TRANSPOSES = list(itertools.product([False, True], repeat=2))


def derivative(act: ActKind, z: np.ndarray) -> np.ndarray:
    """act'(z), written out once more."""
    if act == ActKind.relu:
        return (z > 0) * 1.0
    if act == ActKind.leaky_relu:
        return np.where(z > 0, 1.0, SLOPE)
    if act == ActKind.sigmoid:
        return np.exp(-z) / (1 + np.exp(-z)) ** 2
    if act == ActKind.tanh:
        return 1 / np.cosh(z) ** 2
    if act == ActKind.gelu_erf:
        normal = np.exp(-z * z / 2) / math.sqrt(2 * math.pi)
        return 0.5 * (1 + np.vectorize(math.erf)(z / math.sqrt(2))) + z * normal
    if act == ActKind.gelu:
        u, du = (math.sqrt(2 / math.pi) * f for f in (z + 0.044715 * z**3, 1 + 0.134145 * z**2))
        return 0.5 * (1 + np.tanh(u)) + 0.5 * z * du / np.cosh(u) ** 2
    return np.ones_like(z)


@pytest.mark.spec("D6", "D10")
@pytest.mark.parametrize("act", [ActKind.none, ActKind.gelu], ids=lambda a: a.name)
def test_gradients_of_f16_operands_are_f16_whatever_the_results_are(act):
    """gC and gBias have the results' type, and are not rounded on the way."""
    rng, gemm = np.random.default_rng(act), schema_of("gemm")
    a, b = (rng.normal(size=s).astype(np.float16) for s in ((M, K), (K, N)))
    c, bias, gy = (rng.normal(size=s).astype(np.float32) for s in ((M, N), (N,), (M, N)))
    attrs = packed(gemm, [a, b, c, bias], {"act": act, "out_dtype": DType.f32})
    results = gemm.call_reference([a, b, c, bias], attrs)
    assert results[0].dtype == np.float32
    ga, gb, gc, gbias = call_gradient(gemm, [a, b, c, bias], results, [gy], attrs)
    wide_a, wide_b = a.astype(np.float64), b.astype(np.float64)
    gz = gy * derivative(act, wide_a @ wide_b + c + bias)
    for got, want, dtype, tolerance in (
        (ga, gz @ wide_b.T, np.float16, 4e-3), (gb, wide_a.T @ gz, np.float16, 4e-3), (gc, gz, np.float32, 1e-5),
        (gbias, gz.sum(0), np.float32, 1e-5),
    ):  # fmt: skip
        assert got.dtype == dtype
        np.testing.assert_allclose(got, want, rtol=tolerance, atol=4 * tolerance)


@pytest.mark.sample(8, each="act")
@pytest.mark.spec("D3", "D4", "D6", "D7", "D8")
@pytest.mark.parametrize("dtype, tolerance", [(np.float32, 1e-5), (np.float16, 1e-2)], ids=["f32", "f16"])
@pytest.mark.parametrize("stashed", [False, True], ids=["", "z"])
@pytest.mark.parametrize("act", ActKind, ids=lambda a: a.name)
@pytest.mark.parametrize("bias", BIASES)
@pytest.mark.parametrize("trans_a, trans_b", TRANSPOSES)
def test_backward(trans_a, trans_b, bias, act, stashed, dtype, tolerance):
    rng, gemm, emit = np.random.default_rng([trans_a, trans_b, act]), schema_of("gemm"), NumpyEmitter()

    def draw(shape):
        return None if shape is None else rng.normal(size=shape).astype(dtype)

    a, b, c = draw((K, M) if trans_a else (M, K)), draw((N, K) if trans_b else (K, N)), draw((M, N))
    operands = [a, b, c, draw(BIASES[bias])]
    attrs = packed(gemm, operands, {"alpha": 0.5, "beta": -1.5, "trans_a": trans_a, "trans_b": trans_b, "act": act,
                                    "slope": SLOPE, "save_preact": stashed})  # fmt: skip
    results = gemm.call_reference(operands, attrs)
    gy = draw((M, N))
    grads = call_gradient(gemm, operands, results, [gy], attrs, emit)

    wide = [None if x is None else x.astype(np.float64) for x in (*operands, gy)]
    left, right = wide[0].T if trans_a else wide[0], wide[1].T if trans_b else wide[1]
    z = 0.5 * left @ right - 1.5 * wide[2]
    if wide[3] is not None:
        z = z + wide[3].reshape((-1, 1) if bias == "per M" else (1, -1))
    gz = wide[4] * derivative(act, z)
    ga, gb = 0.5 * gz @ right.T, 0.5 * left.T @ gz
    want = [ga.T if trans_a else ga, gb.T if trans_b else gb, -1.5 * gz]
    sums = {"scalar": gz.sum(keepdims=True).reshape(1), "per N": gz.sum(0), "per M": gz.sum(1)}
    for got, expected, x in zip(grads, [*want, sums.get(bias)], operands):
        if x is None:
            assert got is None
            continue
        assert (got.shape, got.dtype) == (x.shape, x.dtype)
        np.testing.assert_allclose(got, expected, rtol=tolerance, atol=tolerance * 4)

    # gZ is one op, or none; the product is formed again only where Z is wanted and was not kept
    again = act not in (ActKind.none, ActKind.relu, ActKind.sigmoid, ActKind.tanh) and not stashed
    made = [kind for kind in emit.emitted if kind not in ("scale", "reshape")]
    gz = [f"{act.name}_grad"] if act else []
    assert made == ["gemm"] * again + gz + ["gemm"] * 2 + ["reduce_sum"] * (bias != "none")
