"""Descriptors of matrices from TensorMap to device memory, with a stand-in for the driver."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from aicf.cuda_kernels.compiler import engine, tensor_map
from aicf.cuda_kernels.compiler.tensor_map import CHUNK, NBYTES, Descriptors, MapMemory
from aicf.dispatch import prepared
from aicf.errors import DeviceError
from aicf.registry.variant import In, Launch, Num, Out, TensorMap, Work
from aicf.types import DType, bf16, f16, f32, i32, i64, u8

A = TensorMap(In(0), f16, (40, 30), 96, (64, 128))


class Driver:
    """What descriptors need of `cuda.bindings.driver`; keeps what it was asked for, in order."""

    def __init__(self, fail: str = "") -> None:
        self.log, self.memory, self.allocated, self.fail = [], {}, 0, fail
        kinds = "FLOAT16", "BFLOAT16", "FLOAT32", "TFLOAT32", "INT32", "INT64", "UINT8"
        self.CUtensorMapDataType = SimpleNamespace(**{f"CU_TENSOR_MAP_DATA_TYPE_{k}": k for k in kinds})
        self.CUtensorMapInterleave = SimpleNamespace(CU_TENSOR_MAP_INTERLEAVE_NONE="flat")
        self.CUtensorMapSwizzle = SimpleNamespace(
            **{f"CU_TENSOR_MAP_SWIZZLE_{x}": f"swizzle {x}" for x in ("128B", "64B", "32B", "NONE")}
        )
        self.CUtensorMapL2promotion = SimpleNamespace(CU_TENSOR_MAP_L2_PROMOTION_L2_128B="promote 128")
        self.CUtensorMapFloatOOBfill = SimpleNamespace(CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE="zeros")
        self.CUstreamCaptureMode = SimpleNamespace(CU_STREAM_CAPTURE_MODE_RELAXED="relaxed")
        self.CUstream_flags = SimpleNamespace(CU_STREAM_NON_BLOCKING="non-blocking")
        self.cuuint64_t = self.cuuint32_t = int
        self.mode = "global"

    def _code(self, name: str):
        self.log.append(name)
        return Code(1 if name == self.fail else 0)

    def cuTensorMapEncodeTiled(self, *args):
        self.encoded = args
        pointer = args[2]
        return self._code("encode"), SimpleNamespace(opaque=[pointer + i for i in range(16)])

    def cuThreadExchangeStreamCaptureMode(self, mode):
        before, self.mode = self.mode, mode
        return Code(0), before

    def cuStreamCreate(self, flags):
        assert self.mode == "relaxed" and flags == "non-blocking"
        return self._code("stream"), "ours"

    def cuMemAlloc(self, nbytes):
        assert self.mode == "relaxed"
        self.allocated += 1
        return self._code("alloc"), 0x10000 * self.allocated

    def cuMemcpyHtoDAsync(self, to, data, nbytes, stream):
        assert self.mode == "relaxed" and stream == "ours" and nbytes == len(data) == NBYTES and to % 64 == 0
        assert to not in self.memory, "a descriptor is never overwritten"
        self.memory[to] = data
        return (self._code("copy"),)

    def cuStreamSynchronize(self, stream):
        return (self._code("sync"),)


class Code(int):
    name = "CUDA_ERROR"


def test_what_the_driver_is_told():
    driver = Driver()
    Descriptors(A, MapMemory(driver)).at(0x5000)
    assert driver.encoded == (
        "FLOAT16", 2, 0x5000, [40, 30], [96], [64, 128], [1, 1], "flat", "swizzle 128B", "promote 128", "zeros",
    )  # fmt: skip
    Descriptors(TensorMap(Out(0), bf16, (8, 8), 16, (64, 64)), MapMemory(driver)).at(0)
    assert driver.encoded[0] == "BFLOAT16"


@pytest.mark.parametrize("dtype, kind", [
    (f32, "FLOAT32"), ("tf32", "TFLOAT32"), (i32, "INT32"), (i64, "INT64"), (u8, "UINT8"), (DType.bool, "UINT8"),
])  # fmt: skip
@pytest.mark.parametrize("rank", range(1, 6))
def test_tensors_of_any_rank_and_element(dtype, kind, rank):
    driver, swizzle = Driver(), (0, 32, 64, 128)[rank % 4]
    extents, pitches = (48, 5, 4, 3, 2)[:rank], (512, 2560, 10240, 30720)[: rank - 1]
    row = swizzle or 48
    box = (row // {u8: 1, DType.bool: 1, i64: 8}.get(dtype, 4), 3, 2, 2, 1)[:rank]
    m = TensorMap(In(0), dtype, extents, pitches, box, swizzle)
    Descriptors(m, MapMemory(driver)).at(0x4000)
    said = f"swizzle {swizzle}B" if swizzle else "swizzle NONE"
    # the driver refuses a null pointer, which is what no pitches are
    pitches = pitches or (-(-extents[0] * m.itemsize // 16) * 16,)
    assert driver.encoded == (
        kind, rank, 0x4000, list(extents), list(pitches), list(box), [1] * rank, "flat", said, "promote 128", "zeros",
    )  # fmt: skip
    assert m.nbytes == row * np.prod(box[1:], dtype=int)


@pytest.mark.parametrize("extents, pitch, box, swizzle", [
    ((64, 64), (128, 128), (64, 64), 128),  # a pitch too many
    ((64, 64), 128, (64,), 128),
    ((64, 64), 136, (64, 64), 128),  # rows that are not 16-byte aligned
    ((64, 64), 128, (12, 64), 128),  # nor those of a box
    ((64, 64), 128, (64, 257), 128),
    ((64, 64), 128, (64, 64), 64),  # rows of 128 bytes
    ((64, 64), 128, (32, 64), 128),  # and of 64
    ((64, 64), 128, (64, 64), 48),
    ((64, -1), 128, (64, 64), 128),
])  # fmt: skip
def test_what_the_driver_would_refuse_is_not_made(extents, pitch, box, swizzle):
    with pytest.raises(AssertionError):
        TensorMap(In(0), f16, extents, pitch, box, swizzle)


@pytest.mark.spec("C14")
def test_one_descriptor_for_each_pointer_kept_for_good():
    """Also while a stream is being captured: allocations and copies are in relaxed mode, and the mode is put back."""
    driver = Driver()
    made = Descriptors(A, MapMemory(driver))
    first, second = made.at(0x5000), made.at(0x6000)
    assert first != second and made.at(0x5000) == first
    assert driver.log == ["encode", "stream", "alloc", "copy", "sync", "encode", "copy", "sync"]
    assert int.from_bytes(driver.memory[first][:8], "little") == 0x5000
    assert int.from_bytes(driver.memory[second][120:], "little") == 0x6000 + 15
    assert driver.mode == "global"


def test_memory_grows_by_chunks_and_holds_each_once():
    driver = Driver()
    made = Descriptors(A, MapMemory(driver))
    places = {made.at(p) for p in range(CHUNK + 3)}
    assert len(places) == CHUNK + 3 and driver.allocated == 2


@pytest.mark.parametrize("step", ["encode", "stream", "alloc", "copy", "sync"])
def test_what_the_driver_refuses_is_said(step):
    driver = Driver(fail=step)
    made = Descriptors(A, MapMemory(driver))
    with pytest.raises(DeviceError, match="CUDA driver answered CUDA_ERROR"):
        made.at(0x5000)
    assert driver.mode == "global"
    driver.fail = ""
    assert made.at(0x5000) in driver.memory, "nothing is remembered of a failure"


# --- in launches ------------------------------------------------------------------------------------------------------


def test_cores_launch_configuration_counts_clusters():
    plain, clustered = Launch(print, (6, 5), (384,), (), 1000), Launch(print, (6, 5), (384,), (), 1000, 2)
    assert engine.configuration(plain) == {"grid": (6, 5), "block": (384,), "shmem_size": 1000}
    assert engine.configuration(clustered) == {
        "grid": (3, 5),
        "block": (384,),
        "shmem_size": 1000,
        "cluster": 2,
    }
    with pytest.raises(AssertionError):
        engine.configuration(Launch(print, (5,), (384,), (), 0, 2))


@pytest.fixture
def made(monkeypatch):
    """The stand-in in the place of the current device's memory."""
    memory = MapMemory(Driver())
    known = {}
    monkeypatch.setattr(engine, "describe", lambda m: known.setdefault(m, Descriptors(m, memory)))
    return known


def test_bound_launches_get_the_descriptor_of_their_pointer(made):
    maps = A, TensorMap(Out(0), f16, (8, 8), 16, (64, 64)), TensorMap(Work(64), f16, (40, 30), 96, (64, 128))
    start = engine.Start(None, None, *engine.parameters((maps, In(1), Num(5, i32), Work(4))))
    packed = start.packed([10, 20], [30], 1000)
    assert packed[3:] == [20, 5, 1004]
    assert packed[:3] == [d.at(p) for d, p in zip(made.values(), (10, 30, 1064))]


def test_op_calls_describe_whatever_pointer_comes(made, monkeypatch):
    """One preparation, another tensor each call; a copy in scratch memory has its place there."""
    args = (A, Out(0), TensorMap(Work(32), f16, (8, 8), 16, (64, 64)), Work(8))
    start = engine.Start("kernel", "config", *engine.parameters(args))
    monkeypatch.setattr(engine, "prepare", lambda *given: start)
    one = prepared.start_of(Launch(print, (1,), (1,), args), None, "", [(0, 0)], [(1, 64)], (2, 512))
    launched = []
    monkeypatch.setattr(
        prepared, "_launcher", lambda: lambda stream, config, kernel, *given: launched.append(given)
    )
    monkeypatch.setattr(prepared.streams, "stream_object", lambda *given: None)
    monkeypatch.setattr(prepared.streams, "enter", lambda *given: None)
    monkeypatch.setattr(prepared.streams, "leave", lambda *given: None)
    call = object.__new__(prepared.Prepared)
    call.ordinal, call.scratch, call.starts = 0, 0, (one,)
    for pointer in (0x100, 0x200, 0x100):
        call._launch([pointer, 0x1000, 0x2000], 0)
    given, copied = made.values()
    assert launched == [
        (given.at(p), 0x1040, copied.at(0x2000 + 512 + 32), 0x2000 + 512 + 8) for p in (0x100, 0x200, 0x100)
    ]


def test_equal_maps_share_descriptors_on_a_device(monkeypatch):
    monkeypatch.setattr(tensor_map, "_memory", lambda device: MapMemory(Driver()))
    tensor_map.descriptors.cache_clear()
    again = TensorMap(In(0), f16, (40, 30), 96, (64, 128))
    assert tensor_map.descriptors(0, A) is tensor_map.descriptors(0, again)
    assert tensor_map.descriptors(0, A) is not tensor_map.descriptors(1, A)
    tensor_map.descriptors.cache_clear()


def test_a_kernel_sees_an_address():
    assert engine.signature_of(Launch(print, (1,), (1,), ((A,), Num(1, i32))), None) == (("uint64",), "int32")
