"""op_call on a GPU: PyTorch, CuPy, JAX, Numba and aicf tensors in every layout; streams, captures, overlaps."""

from __future__ import annotations

import threading

import numpy as np
import pytest
from ops import sampling

import aicf
from aicf.dispatch import call
from aicf.errors import CaptureError, DeviceError, FeedError, NoKernelError
from aicf.types import DType, TensorSpec

pytestmark = pytest.mark.gpu


@pytest.fixture
def torch():
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("this PyTorch has no CUDA")
    return torch


@pytest.fixture(autouse=True)
def _fresh():
    call.cache_clear()


def torch_layouts(torch):
    def dense(x):
        return x.clone()

    def offset(x):
        view = torch.empty(x.numel() + 1, dtype=x.dtype, device="cuda")[1:].view(x.shape)
        return view.copy_(x)

    def padded(x):
        if x.dim() == 0:
            return x.clone()
        view = torch.empty((*x.shape[:-1], 2 * x.shape[-1] + 3), dtype=x.dtype, device="cuda")
        return view[..., 1 : 2 * x.shape[-1] + 1 : 2].copy_(x)

    def columns(x):
        return x.mT.contiguous().mT if x.dim() > 1 else x.clone()

    return {f.__name__: f for f in (dense, offset, padded, columns)}


def to_torch(torch, array):
    kinds = {
        DType.bf16.numpy: (np.int16, torch.bfloat16), DType.f8e4m3.numpy: (np.uint8, torch.float8_e4m3fn),
        DType.f8e5m2.numpy: (np.uint8, torch.float8_e5m2),
    }  # fmt: skip
    if array.dtype in kinds:
        bits, kind = kinds[array.dtype]
        return torch.from_numpy(np.ascontiguousarray(array).view(bits)).cuda().reshape(array.shape).view(kind)
    return torch.from_numpy(np.ascontiguousarray(array)).cuda().reshape(array.shape)


TOLERANCE = {DType.f16: 4e-3, DType.bf16: 3e-2}


def every_op_in_every_layout():
    lacks = pytest.mark.xfail(
        raises=NoKernelError, strict=True, reason="no kernel copies i8 to other strides"
    )
    return [
        pytest.param(op, layout, marks=[lacks] * (op == "quantize" and layout in ("padded", "columns")))
        for op in sampling.names_on("cuda") for layout in ("dense", "offset", "padded", "columns")
    ]  # fmt: skip


@pytest.mark.sample(1, each="op", gpu=True)
@pytest.mark.spec("B1", "B3", "D13")
@pytest.mark.parametrize("op, layout", every_op_in_every_layout())
def test_every_op_on_torch_tensors_in_every_layout(torch, op, layout):
    make, schema = torch_layouts(torch)[layout], aicf.schema_of(op)
    for sample in schema.sample_specs:
        for dtype in sampling.types_of(schema):
            arrays = sampling.operands(schema, sample, dtype)
            specs = [sampling.spec(a) for a in arrays]
            attrs = schema.pack(schema.normalized(specs, sample["attrs"]))
            inferred = schema.infer(specs, attrs)
            wide = [
                a.astype(np.float64) if a is not None and a.dtype.kind not in "iub" else a for a in arrays
            ]
            want = schema.call_reference(wide, attrs)
            given = [None if a is None else make(to_torch(torch, a)) for a in arrays]
            results = [make(to_torch(torch, np.full(s.shape, 77).astype(s.dtype.numpy))) for s in inferred]
            selection = aicf.op_call(op, given, results, sample["attrs"])
            assert selection.kernel_id.startswith("cuda.")
            tolerance = max(TOLERANCE.get(d, 2e-5) for d in [dtype, *(s.dtype for s in inferred)])
            for got, expected in zip(results, want):
                np.testing.assert_allclose(
                    got.double().cpu().numpy(), expected.astype(np.float64), rtol=tolerance, atol=tolerance,
                    err_msg=f"{op} {sample} {dtype} by {selection.kernel_id}",
                )  # fmt: skip


@pytest.mark.spec("B8", "B12")
def test_layout_decides_and_the_reason_is_told(torch):
    n = (1 << 22) + 1
    x, y = torch.randn(n + 3, device="cuda"), torch.empty(n, device="cuda")
    for shift, chosen, why in (
        (0, "cuda.elementwise_vector.v1", None),
        (1, "cuda.elementwise_flat.v1", "aligned to 4 bytes, needs 16"),
    ):
        selection = aicf.op_call("relu", [x[shift : shift + n]], [y])
        assert selection.kernel_id == chosen
        assert why is None or why in " ".join(str(selection).split())  # lines are broken anywhere
        assert torch.equal(y, x[shift : shift + n].relu())
    strided = aicf.op_call("relu", [x[: n - 1].view(2048, 2048).t()], [y[: n - 1].view(2048, 2048)])
    assert strided.kernel_id == "cuda.elementwise_transposed.v1"
    assert torch.equal(y[: n - 1].view(2048, 2048), x[: n - 1].view(2048, 2048).t().relu())


@pytest.mark.spec("B5")
def test_work_runs_on_torch_s_current_stream(torch):
    """A producer that takes long on the side stream, the op, and a consumer: right only in the order of that stream."""
    side, x = torch.cuda.Stream(), torch.zeros(1 << 20, device="cuda")
    y = torch.empty_like(x)
    aicf.op_call("scale", [x], [y], {"factor": 2.0})
    for _ in range(20):
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            torch.cuda._sleep(2_000_000)
            x += 1
            aicf.op_call("scale", [x], [y], {"factor": 2.0})
            z = y.clone()
        torch.cuda.current_stream().wait_stream(side)
        assert torch.equal(z, 2 * x)


@pytest.mark.spec("B5")
def test_a_stream_may_be_named_in_every_way(torch):
    from cuda.core import Device

    x, y = torch.ones(1000, device="cuda"), torch.empty(1000, device="cuda")
    torch.cuda.synchronize()
    device = Device()
    device.set_current()
    side, own = torch.cuda.Stream(), device.create_stream()
    for stream in (side, side.cuda_stream, own, int(own.handle), 0):
        y.zero_()
        torch.cuda.synchronize()
        aicf.op_call("relu", [x], [y], stream=stream)
        torch.cuda.synchronize()
        assert torch.equal(x, y)


@pytest.mark.spec("B1", "B5", "D12")
def test_cupy(torch):
    cupy = pytest.importorskip("cupy")
    x = cupy.arange(1001, dtype=cupy.float32)
    y = cupy.empty_like(x)
    with cupy.cuda.Stream(non_blocking=True):
        for _ in range(3):
            x += 1
            aicf.op_call("square", [x], [y])
            assert (y == x * x).all()
    half = cupy.ones((4, 6), cupy.float16)[:, ::2]
    out = cupy.empty((4, 3), cupy.float16)
    aicf.op_call("neg", [half], [out])
    assert (out == -1).all()
    with pytest.raises(FeedError, match="runs backwards"):
        aicf.op_call("neg", [x[::-1]], [y])
    t = torch.zeros(1001, device="cuda")
    for _ in range(3):
        x += 1
        aicf.op_call("add", [x, t], [t])
        x *= 1
    assert torch.equal(
        t.cpu(), torch.from_numpy(sum(np.arange(1001, dtype=np.float32) + 3 + i for i in (1, 2, 3)))
    )


@pytest.mark.spec("B1", "D12")
def test_jax(torch):
    jax = pytest.importorskip("jax")
    try:
        device = jax.devices("gpu")[0]
    except RuntimeError:
        pytest.skip("this JAX has no CUDA")
    for dtype, ours in ((jax.numpy.float32, torch.float32), (jax.numpy.bfloat16, torch.bfloat16)):
        x = jax.device_put(jax.numpy.arange(1001, dtype=dtype), device)
        y = torch.empty(1001, dtype=ours, device="cuda")
        for _ in range(3):
            aicf.op_call("scale", [x], [y], {"factor": 2.0})
            assert torch.equal(y, 2 * torch.arange(1001, device="cuda").to(ours))
        with pytest.raises(FeedError, match="JAX arrays are immutable"):
            aicf.op_call("neg", [y], [x])


@pytest.mark.spec("B1", "D12")
def test_numba():
    cuda = pytest.importorskip("numba.cuda")
    x = cuda.to_device(np.arange(1001, dtype=np.float32))
    y = cuda.device_array_like(x)
    for _ in range(5):
        aicf.op_call("square", [x], [y])
        np.testing.assert_array_equal(y.copy_to_host(), np.arange(1001, dtype=np.float32) ** 2)


@pytest.mark.spec("B1")
def test_ours():
    gpu = aicf.runtime("cuda")
    x = gpu.upload(np.arange(1001), TensorSpec((1001,), device="cuda"))
    y = gpu.empty(x.spec)
    for _ in range(3):
        aicf.op_call("square", [x], [y])
        np.testing.assert_array_equal(y.numpy(), np.arange(1001, dtype=np.float32) ** 2)


@pytest.mark.parametrize("dtype", DType, ids=str)
def test_torch_takes_ours_by_dlpack(torch, dtype):
    gpu = aicf.runtime("cuda")
    t = gpu.upload(np.arange(6).reshape(2, 3), TensorSpec((2, 3), dtype, "cuda"))
    taken = torch.from_dlpack(t)
    assert taken.data_ptr() == t.ptr and taken.is_cuda
    assert taken.float().cpu().tolist() == t.numpy().astype(np.float32).tolist()
    del t
    assert taken.float().cpu().reshape(-1)[1] == 1  # it keeps the memory


@pytest.mark.spec("D12")
def test_places_and_overlaps_are_checked(torch):
    x = torch.ones(100, device="cuda")
    with pytest.raises(DeviceError, match="tensors live on cpu and cuda:0"):
        aicf.op_call("relu", [x.cpu()], [x])
    for _ in range(2):
        with pytest.raises(FeedError, match="y overlaps x"):
            aicf.op_call("relu", [x[:-1]], [x[1:]])
        with pytest.raises(FeedError, match="overlaps itself"):
            aicf.op_call("relu", [x], [x[:1].expand(100)])
    w = torch.nn.Parameter(torch.randn(33, device="cuda"))
    want = w.detach().relu()
    aicf.op_call("relu", [w], [w])
    assert torch.equal(w.detach(), want)


def test_a_thread_without_a_context(torch):
    x = torch.full((100,), -3.0, device="cuda")
    y, failed = torch.empty_like(x), []

    def work():
        try:
            aicf.op_call("abs", [x], [y])
        except Exception as error:
            failed.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert not failed
    torch.cuda.synchronize()
    assert (y == 3).all()


# --- captures ---------------------------------------------------------------------------------------------------------


@pytest.mark.spec("B13")
def test_torch_s_graphs_capture_calls_and_choose_alike(torch):
    x, y = torch.randn(1 << 16, device="cuda"), torch.empty(1 << 16, device="cuda")
    total = torch.empty(1, device="cuda")

    def step():
        ids = [aicf.op_call("relu", [x], [y]).kernel_id]
        ids.append(
            aicf.op_call("reduce_sum", [y.view(1, -1)], [total], {"axes": (1,)}).kernel_id
        )  # has a workspace
        return ids

    eager = step()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = step()
    assert captured == eager
    for _ in range(5):
        x.normal_()
        graph.replay()
        torch.testing.assert_close(total, x.relu().sum().view(1), rtol=1e-4, atol=1e-2)


@pytest.mark.spec("B13")
def test_a_first_call_under_capture_is_refused_and_the_capture_lives(torch):
    x, y = torch.randn(12345, device="cuda"), torch.empty(12345, device="cuda")
    z = torch.empty_like(y)
    aicf.op_call("relu", [x], [y])
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        with pytest.raises(CaptureError, match="the first tanh of this kind falls into a capture"):
            aicf.op_call("tanh", [x], [z])
        aicf.op_call("relu", [x], [y])
    x.normal_()
    graph.replay()
    assert torch.equal(y, x.relu())
    aicf.op_call("tanh", [x], [z])
    torch.testing.assert_close(z, x.tanh())
