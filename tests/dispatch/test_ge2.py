"""ge2_launch: products by the names and buffer orders of graph_executor_v2, on raw buffers, against NumPy in float64."""

import numpy as np
import pytest

from aicf.device.runtime import runtime
from aicf.dispatch import GemmBiasActParams, ge2_launch, op_call
from aicf.errors import FeedError, RegistryError
from aicf.types import ActKind, TensorSpec

pytestmark = pytest.mark.spec("D11")
M, N, K = 5, 7, 6
on_both = pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])


def launched(device, name, bufs):
    """ge2_launch on a device; buffers of a GPU are copied there, and back into the host's memory."""
    *memory, params = bufs
    if device == "cpu":
        return ge2_launch(name, bufs, None)
    rt = runtime(device)
    there = [rt.upload(m, TensorSpec(m.shape, m.dtype, device)) for m in memory]
    selection = ge2_launch(name, [*there, params], rt.stream)
    for m, t in zip(memory, there):
        m[...] = t.numpy()
    return selection


def act(kind, z, slope=0.2):
    """Each activation and its derivative, written out."""
    s = 1 / (1 + np.exp(-z))
    u = 0.7978845608028654 * (z + 0.044715 * z**3)
    du = 0.7978845608028654 * (1 + 3 * 0.044715 * z**2)
    return {
        ActKind.none: (z, np.ones_like(z)),
        ActKind.relu: (np.maximum(z, 0), (z > 0) * 1.0),
        ActKind.leaky_relu: (np.where(z > 0, z, slope * z), np.where(z > 0, 1, slope)),
        ActKind.sigmoid: (s, s * (1 - s)),
        ActKind.tanh: (np.tanh(z), 1 - np.tanh(z) ** 2),
        ActKind.gelu: (0.5 * z * (1 + np.tanh(u)), 0.5 * (1 + np.tanh(u)) + 0.5 * z * (1 - np.tanh(u) ** 2) * du),
    }[kind]  # fmt: skip


def raw(rng, rows, columns, ld=0, dtype=np.float32):
    """Memory of a matrix with rows `ld` apart, and a view of it; what lies between is poison."""
    ld = ld or columns
    memory = np.full(rows * ld, np.nan, dtype)
    view = np.lib.stride_tricks.as_strided(memory, (rows, columns), (ld * memory.itemsize, memory.itemsize))
    view[...] = rng.normal(size=(rows, columns))
    return memory, view


@on_both
@pytest.mark.parametrize("kind", [ActKind.none, ActKind.leaky_relu, ActKind.gelu])
def test_forward_with_everything(kind, device):
    rng = np.random.default_rng()
    p = GemmBiasActParams(
        M,
        N,
        K,
        alpha=0.5,
        beta=-1.5,
        act=kind,
        slope=0.2,
        bias=N,
        use_c=True,
        save_z=True,
        lda=9,
        ldc=8,
        ldz=10,
    )
    (a, va), (b, vb), (c, vc) = raw(rng, M, K, 9), raw(rng, K, N), raw(rng, M, N, 8)
    (d, vd), (z, vz), bias = raw(rng, M, N), raw(rng, M, N, 10), rng.normal(size=N).astype(np.float32)
    selection = launched(device, "gemm_bias_act_f32_ex", [a, b, c, d, bias, z, p])
    want = 0.5 * va.astype(np.float64) @ vb - 1.5 * vc + bias
    np.testing.assert_allclose(vz, want, atol=2e-5)
    if device == "cpu":  # and what `gemm` gives, called by itself
        attrs = {"alpha": 0.5, "beta": -1.5, "act": kind, "slope": 0.2, "save_preact": True}
        same = [np.empty((M, N), np.float32) for _ in range(2)]
        op_call("gemm", [np.ascontiguousarray(x) for x in (va, vb, vc)] + [bias], same, attrs)
        np.testing.assert_allclose(vd, same[0], rtol=1e-6, atol=1e-6)
        np.testing.assert_allclose(vz, same[1], rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(vd, act(kind, want)[0], atol=2e-5)
    assert np.isnan(z.reshape(M, 10)[:, N:]).all(), "what lies between rows is not written"
    assert selection.region.ops[0].kind.name == "gemm"


@pytest.mark.parametrize(
    "name, dtype, tolerance",
    [("gemm_bias_act_f32", np.float32, 2e-5), ("gemm_bias_act_tc_f16", np.float16, 2e-2)],
)
@on_both
@pytest.mark.parametrize("bias", [0, 1, N, M])
def test_forward_without_c(name, dtype, tolerance, bias, device):
    rng = np.random.default_rng()
    p = GemmBiasActParams(M, N, K, act=ActKind.relu, bias=bias, trans_a=True, trans_b=True)
    (a, va), (b, vb), (d, vd) = (raw(rng, *shape, dtype=dtype) for shape in ((K, M), (N, K), (M, N)))
    biases = [rng.normal(size=bias).astype(dtype)] if bias else []
    launched(device, name, [a, b, d, *biases, p])
    z = va.T.astype(np.float64) @ vb.T.astype(np.float64)
    if bias:
        z = z + biases[0].astype(np.float64).reshape((-1, 1) if bias == M else (1, -1))
    np.testing.assert_allclose(vd, np.maximum(z, 0), atol=tolerance)


@on_both
@pytest.mark.parametrize(
    "kind, use_c, bias, trans",
    [(ActKind.leaky_relu, True, N, False), (ActKind.tanh, False, 0, True), (ActKind.none, False, 1, False),
     (ActKind.gelu, True, M, True)],
)  # fmt: skip
def test_backward(kind, use_c, bias, trans, device):
    rng = np.random.default_rng()
    p = GemmBiasActParams(
        M,
        N,
        K,
        alpha=0.5,
        beta=-1.5,
        act=kind,
        slope=0.2,
        bias=bias,
        use_c=use_c,
        trans_a=trans,
        trans_b=trans,
        lda=9,
    )
    (a, va), (b, vb) = raw(rng, *((K, M) if trans else (M, K)), 9), raw(rng, *((N, K) if trans else (K, N)))
    (c, vc), (gy, vgy), (ga, vga) = raw(rng, M, N), raw(rng, M, N), raw(rng, *va.shape, 9)
    (gb, vgb), (gc, vgc), gbias = raw(rng, *vb.shape), raw(rng, M, N), np.full(bias, np.nan, np.float32)
    opa, opb = (
        (va.T.astype(np.float64), vb.T.astype(np.float64))
        if trans
        else (va.astype(np.float64), vb.astype(np.float64))
    )
    z = (0.5 * opa @ opb - 1.5 * vc * use_c).astype(np.float32)
    gz = vgy * act(kind, z.astype(np.float64))[1]
    bufs = [a, b, *[c] * use_c, gy, z, ga, gb, *[gc] * use_c, *[gbias] * (bias > 0), p]
    launched(device, "gemm_bias_act_bwd_f32_ex", bufs)
    wa, wb = 0.5 * gz @ opb.T, 0.5 * opa.T @ gz
    np.testing.assert_allclose(vga, wa.T if trans else wa, atol=5e-5)
    np.testing.assert_allclose(vgb, wb.T if trans else wb, atol=5e-5)
    if use_c:
        np.testing.assert_allclose(vgc, -1.5 * gz, atol=5e-5)
    if bias:
        np.testing.assert_allclose(gbias, {1: [gz.sum()], N: gz.sum(0), M: gz.sum(1)}[bias], atol=5e-5)


def test_what_is_refused():
    p = GemmBiasActParams(M, N, K, bias=N)
    a, b, d, bias = (np.zeros(n, np.float32) for n in (M * K, K * N, M * N, N))
    with pytest.raises(RegistryError, match=r"knows no 'gemm'\n  expected: gemm_bias_act_f32, "):
        ge2_launch("gemm", [a, b, d, bias, p])
    with pytest.raises(FeedError, match="last of bufs is a ndarray"):
        ge2_launch("gemm_bias_act_f32", [a, b, d, bias])
    with pytest.raises(FeedError, match=r"3 buffers\n  expected: A, B, D, bias, params"):
        ge2_launch("gemm_bias_act_f32", [a, b, d, p])
    with pytest.raises(
        FeedError,
        match=r"buffer D does not hold 5x7 with rows 7 apart\n  expected: dense memory of 35 elements of f32",
    ):
        ge2_launch("gemm_bias_act_f32", [a, b, d[1:], bias, p])
    with pytest.raises(FeedError, match=r"buffer A does not hold(.|\n)*of f16 or more\n  got: f32\[30\]"):
        ge2_launch("gemm_bias_act_tc_f16", [a, b, d, bias, p])
    with pytest.raises(FeedError, match="leading dimension of A is 3"):
        ge2_launch("gemm_bias_act_f32", [a, b, d, bias, GemmBiasActParams(M, N, K, bias=N, lda=3)])
    d.flags.writeable = False
    with pytest.raises(FeedError, match="buffer D can't be written"):
        ge2_launch("gemm_bias_act_f32", [a, b, d, bias, p])
