"""Other libraries' tensors, by protocol: what is read off them, what is refused, and how ours are handed over."""

from __future__ import annotations

import ctypes
import weakref
from types import SimpleNamespace

import numpy as np
import pytest

import aicf
from aicf.device import interop, reading
from aicf.device.interop import adopt
from aicf.device.tensor import Tensor
from aicf.errors import FeedError
from aicf.types import DType, TensorSpec


class Speaks:
    """An array of some library on a CUDA device."""

    def __init__(self, ordinal=1, **interface):
        self.ordinal = ordinal
        self.__cuda_array_interface__ = {
            "shape": (4, 3), "typestr": "<f2", "data": (4096 + 16, False), "version": 3, **interface,
        }  # fmt: skip

    def __dlpack_device__(self):
        return 2, self.ordinal


@pytest.mark.spec("B1", "B3", "D12")
def test_a_cuda_array_interface_is_read_whole():
    found = adopt(Speaks(strides=(16, 4), stream=7, data=(4096 + 16, True)))
    assert (found.desc.dtype, found.desc.shape, found.desc.stride) == (DType.f16, (4, 3), (8, 2))
    assert (found.desc.device, found.place, found.ptr, found.desc.alignment) == ("cuda", "cuda:1", 4112, 16)
    assert found.stream == 7 and "read-only" in found.readonly
    plain = adopt(Speaks())
    assert plain.desc.stride == (3, 1) and plain.readonly is None and plain.stream is None
    empty = adopt(Speaks(shape=(0, 3), data=(0, False)))
    assert empty.desc.numel == 0 and empty.desc.contiguous


@pytest.mark.parametrize(
    "interface, said",
    [
        ({"mask": np.ones(3)}, "weights is a masked array"),
        ({"strides": (-6, 2)}, "weights runs backwards through device memory"),
        ({"strides": (7, 2)}, "weights has strides that are no whole elements"),
        ({"typestr": "<c8"}, "weights has element type complex64"),
        ({"typestr": ">f4"}, "weights has element type >f4"),
        ({"typestr": "<c8"}, "weights has element type complex64"),
    ],
)
def test_what_kernels_can_t_walk_is_refused_by_name(interface, said):
    with pytest.raises(FeedError, match=said):
        adopt(Speaks(**interface), "weights")


def test_an_axis_of_one_may_have_any_stride():
    assert adopt(Speaks(shape=(1, 3), strides=(-6, 2))).desc.contiguous


def test_the_host_s_arrays_may_run_backwards_and_be_read_only():
    x = np.arange(6, dtype=np.float32)[::-1]
    found = adopt(x)
    assert found.desc.stride == (-1,) and found.array is x and found.readonly is None
    assert "read-only" in adopt(np.broadcast_to(x, (2, 6))).readonly
    records = np.array([(n, n) for n in range(3)], [("a", "f4"), ("b", "i1")])
    for _ in range(2):
        found = adopt(records["a"])
        assert "no whole elements" in found.readonly and found.array.tolist() == [0, 1, 2]


@pytest.mark.spec("B1", "B3")
def test_what_was_found_of_one_tensor_is_told_of_the_next_like_it():
    """All but the memory, which is not kept."""
    rng, cpu = np.random.default_rng(), aicf.runtime("cpu")
    made = [
        lambda: rng.normal(size=(3, 4)).astype(np.float32),
        lambda: rng.normal(size=(3, 4)).astype(np.float32).T,
        lambda: rng.normal(size=(6, 4)).astype(np.float32)[::-2],
        lambda: np.broadcast_to(rng.normal(size=4).astype(np.float32), (3, 4)),
        lambda: np.array(3, np.int64),
        lambda: cpu.upload(rng.normal(size=(3, 4)), TensorSpec((3, 4))),
    ]
    for make in made:
        adopt(make())
        x = make()
        found, want = adopt(x), interop._looked_at(x, "x", None)
        assert (found.desc, found.ptr, found.readonly, found.library) == (
            want.desc,
            want.ptr,
            want.readonly,
            want.library,
        )
        assert found.owner is x and np.array_equal(found.array, want.array)
    kept = weakref.ref(x := rng.normal(size=5).astype(np.float32))
    adopt(x)
    del x
    assert kept() is None


def test_arrays_of_numpy_and_of_cupy_do_not_say_the_same():
    """Of one shape, one element type and at one alignment; a read-only flag is no device number."""
    x = np.ones(3, np.float32)
    pointer = x.__array_interface__["data"][0]
    twin = SimpleNamespace(
        data=SimpleNamespace(ptr=pointer), dtype=x.dtype, shape=x.shape, strides=x.strides, device=SimpleNamespace(id=0)
    )  # fmt: skip
    assert reading._numpy(x) != reading._cupy(twin)


class Packed:
    def __init__(self, kind, array=None):
        self.kind, self.array = kind, array

    def __dlpack_device__(self):
        return self.kind, 0

    def __dlpack__(self, **options):
        return self.array.__dlpack__(**options)


def test_dlpack_says_where():
    x = np.arange(3, dtype=np.int64)
    assert adopt(Packed(1, x)).ptr == x.__array_interface__["data"][0]
    for kind in (8, 10):  # Metal, ROCm
        with pytest.raises(FeedError, match=rf"x is on DLPack device {kind}"):
            adopt(Packed(kind, x), "x")


def test_adopting_twice_changes_nothing():
    once = adopt(np.ones(3, np.float32))
    assert adopt(once) is once


@pytest.mark.parametrize("dtype", DType, ids=str)
def test_ours_are_handed_over_by_dlpack(dtype):
    """NumPy's own DLPack has no bf16 and no fp8: ours says so itself."""
    t = aicf.runtime("cpu").upload(np.arange(6).reshape(2, 3), TensorSpec((2, 3), dtype))
    assert t.__dlpack_device__() == (1, 0)
    if dtype in (DType.bf16, DType.f8e4m3, DType.f8e5m2):
        assert repr(t.__dlpack__()).startswith('<capsule object "dltensor"')
        assert repr(t.__dlpack__(max_version=(1, 0))).startswith('<capsule object "dltensor_versioned"')
        return
    taken = np.from_dlpack(t)
    np.testing.assert_array_equal(taken, t.array)
    assert np.shares_memory(taken, t.array)


# --- real libraries, on the host --------------------------------------------------------------------------------------


TORCH = {
    "float32": "f32",
    "float16": "f16",
    "bfloat16": "bf16",
    "int32": "i32",
    "int64": "i64",
    "bool": "bool",
    "float8_e4m3fn": "f8e4m3",
    "float8_e5m2": "f8e5m2",
}


@pytest.mark.spec("D10")
@pytest.mark.parametrize("code, dtype", [(10, DType.f8e4m3), (12, DType.f8e5m2)], ids=str)
def test_dlpack_knows_fp8_by_its_codes(code, dtype):
    """kDLFloat8_e4m3fn and kDLFloat8_e5m2 of DLPack 1.1, eight bits each."""
    t = aicf.runtime("cpu").upload(np.arange(6), TensorSpec((6,), dtype))
    for options, head in (({}, 0), ({"max_version": (1, 1)}, 32)):
        capsule = t.__dlpack__(**options)
        name = b"dltensor_versioned" if head else b"dltensor"
        get = ctypes.pythonapi.PyCapsule_GetPointer
        get.restype, get.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
        found = ctypes.string_at(get(capsule, name) + head + 20, 2)
        assert tuple(found) == (code, 8)


@pytest.mark.parametrize("dtype", DType, ids=str)
def test_a_cuda_array_interface_is_given_where_a_typestr_names_the_type(dtype):
    ours = Tensor(TensorSpec((2, 3), dtype, "cuda"), 4096, SimpleNamespace(stream_id=7))
    if dtype in (DType.bf16, DType.f8e4m3, DType.f8e5m2):
        assert not hasattr(ours, "__cuda_array_interface__")
        return
    found = ours.__cuda_array_interface__
    assert np.dtype(found["typestr"]) == dtype.numpy and found["strides"] == (
        3 * dtype.itemsize,
        dtype.itemsize,
    )
    assert found["stream"] == 7 and found["data"] == (4096, False)


@pytest.mark.spec("D10")
@pytest.mark.parametrize("dtype", [DType.f8e4m3, DType.f8e5m2], ids=str)
def test_numpy_s_fp8_is_taken_and_given(dtype):
    x = np.arange(12, dtype=np.float32).reshape(3, 4)
    narrow, back = np.zeros((3, 4), dtype.numpy), np.zeros((4, 3), np.float32)
    aicf.op_call("convert", [x], [narrow], {"dtype": dtype.id})
    np.testing.assert_array_equal(narrow, x.astype(dtype.numpy))
    aicf.op_call("convert", [narrow.T], [back], {"dtype": DType.f32.id})
    np.testing.assert_array_equal(back, narrow.T.astype(np.float32))


@pytest.mark.parametrize("name", TORCH)
def test_torch(name):
    torch = pytest.importorskip("torch")
    x = torch.arange(12).reshape(3, 4).to(getattr(torch, name))
    y = torch.zeros(4, 3, dtype=x.dtype)
    for _ in range(2):
        aicf.op_call("copy", [x.t()], [y])
    assert torch.equal(x.t().float(), y.float())
    ours = aicf.runtime("cpu").upload(np.arange(6), TensorSpec((6,), TORCH[name]))
    taken = torch.from_dlpack(ours)
    assert taken.dtype == x.dtype and taken.tolist() == torch.arange(6).to(x.dtype).tolist()


def test_torch_tensors_that_need_gradients_are_written_behind_autograd_s_back():
    torch = pytest.importorskip("torch")
    w = torch.nn.Parameter(torch.ones(5))
    aicf.op_call("scale", [w], [w], {"factor": 2.0})
    assert w.tolist() == [2.0] * 5 and w.requires_grad and w.grad_fn is None


def test_torch_tensors_that_are_no_plain_memory_are_refused():
    torch = pytest.importorskip("torch")
    y = torch.ones(3)
    for x, said in (
        (torch.eye(3).to_sparse(), "x is a torch.sparse_coo tensor"),
        (torch.complex(y, y).conj().imag, "x is a view that negates lazily"),
        (torch.ones(3, device="meta"), "x is on meta"),
        (torch.ones(3, dtype=torch.complex64), "x has element type torch.complex64"),
    ):
        for _ in range(2):
            with pytest.raises(FeedError, match=said):
                aicf.op_call("relu", [x], [y])


def test_jax():
    jax = pytest.importorskip("jax")
    for dtype in (jax.numpy.float32, jax.numpy.bfloat16, jax.numpy.int32):
        x = jax.device_put(jax.numpy.arange(5, dtype=dtype), jax.devices("cpu")[0])
        y = np.empty(5, x.dtype)
        aicf.op_call("neg", [x], [y])
        np.testing.assert_array_equal(y, -np.arange(5).astype(x.dtype))
        with pytest.raises(FeedError, match="JAX arrays are immutable"):
            aicf.op_call("neg", [y], [x])
