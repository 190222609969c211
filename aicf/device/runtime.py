"""Runtime: memory, copies and the stream of one device. `CpuRuntime` needs nothing, `CudaRuntime` stands on cuda-core."""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Iterable
from contextlib import AbstractContextManager
from functools import cache
from typing import Any

import numpy as np

from .. import config
from ..errors import DeviceError
from ..types import TensorSpec
from . import spec as specs
from . import streams
from .foreign import Foreign
from .own_calibration import calibrated
from .spec import DeviceSpec
from .tensor import ALIGNMENT, Memory, Runtime, Tensor


class CpuRuntime(Runtime):
    kind = "cpu"

    def __init__(self) -> None:
        self.spec = specs.host()

    def allocate(self, nbytes: int) -> Memory:
        try:
            raw = np.empty(nbytes + ALIGNMENT, np.uint8)
        except (MemoryError, ValueError) as error:  # ValueError: more than an address has bits for
            raise DeviceError(
                f"the host has no memory of {nbytes} bytes", got=str(error), hint="aicf.explain_for(model, 'cpu') says how much a plan takes; a smaller batch takes less"
            ) from None  # fmt: skip
        pointer = raw.__array_interface__["data"][0]
        start = -pointer % ALIGNMENT
        return Memory(pointer + start, nbytes, raw[start : start + nbytes])

    def view(self, memory: Memory, offset: int, spec: TensorSpec) -> Tensor:
        array = memory.owner[offset : offset + spec.nbytes].view(spec.dtype.numpy).reshape(spec.shape)
        return Tensor(spec, memory.ptr + offset, self, memory, array=array)

    def borrow(self, foreign: Foreign) -> Tensor:
        d = foreign.desc
        return Tensor(TensorSpec(d.shape, d.dtype), foreign.ptr, self, foreign.owner, d.stride, foreign.array)

    def write(self, target: Tensor, source: Foreign | np.ndarray | Tensor, on: Any = None) -> None:
        assert target.array is not None
        target.array[...] = source if isinstance(source, np.ndarray) else source.array

    def download(self, tensor: Tensor) -> np.ndarray:
        return np.array(tensor.array)

    def copy(self, target: int, source: int, nbytes: int, on: Any = None) -> None:
        ctypes.memmove(target, source, nbytes)

    def sync(self) -> None:
        pass  # host calls are done when they return


class CudaRuntime(Runtime):
    """One CUDA device, through cuda-core, with a stream of its own. `ordered` keeps it in order with other libraries'."""

    kind = "cuda"

    def __init__(self, ordinal: int = 0) -> None:
        from cuda.bindings import driver
        from cuda.core import Device

        self.ordinal, self.driver = ordinal, driver
        self.device = Device(ordinal)
        self.device.set_current()
        self.stream = self.device.create_stream()
        self._stream_id = int(self.stream.handle)
        self._handle = driver.CUstream(self._stream_id)  # asked of the stream it is made anew each time
        self.pool = self.device.memory_resource  # made now: its pool keeps what is freed, scratch too
        self.spec = calibrated(_spec_of(self.device))

    @property
    def stream_id(self) -> int:
        return self._stream_id

    @property
    def place(self) -> str:
        return f"cuda:{self.ordinal}"

    def current(self) -> AbstractContextManager[None]:
        refuse_forked(self.place)
        return streams.Entered(self.ordinal)

    def allocate(self, nbytes: int) -> Memory:
        previous = streams.enter(self.ordinal)
        try:
            buffer = self.pool.allocate(nbytes, stream=self.stream)
        finally:
            streams.leave(previous)
        return Memory(int(buffer.handle), nbytes, buffer)

    def view(self, memory: Memory, offset: int, spec: TensorSpec) -> Tensor:
        return Tensor(spec, memory.ptr + offset, self, memory)

    def borrow(self, foreign: Foreign) -> Tensor:
        d = foreign.desc
        return Tensor(TensorSpec(d.shape, d.dtype, "cuda"), foreign.ptr, self, foreign.owner, d.stride)

    def refuse_capture(self) -> None:
        streams.refuse_capture(self.ordinal)

    def ordered(self, fed: Iterable[Foreign]) -> AbstractContextManager[None]:
        homes, handed_over = set(), False
        for f in fed:
            if f.desc.device == "cuda":
                if f.handed_over:  # DLPack has ordered it, and nobody can be told when it is free again
                    handed_over = True
                else:
                    homes.add(streams.home_of(f))
        return streams.Between(self.ordinal, self._stream_id, homes, handed_over)

    def write(self, target: Tensor, source: Foreign | np.ndarray | Tensor, on: Any = None) -> None:
        if target.spec.nbytes == 0:
            return
        if isinstance(source, np.ndarray) or source.array is not None:
            host = np.ascontiguousarray(source if isinstance(source, np.ndarray) else source.array)
            pointer = host.__array_interface__["data"][0]
            self.copy(target.ptr, pointer, target.spec.nbytes)
            if self._page_locked(pointer):
                self.sync()  # the engine reads it later, when the caller may have changed it
            return  # pageable memory was staged by the driver before it answered
        assert source.contiguous, "strided device memory is gathered by a copy kernel, see graph/run/slots.py"
        self.copy(target.ptr, source.ptr, target.spec.nbytes, on)

    def download(self, tensor: Tensor) -> np.ndarray:
        """Strides are not negative."""
        host = np.empty(tensor.shape, tensor.dtype.numpy)
        if host.nbytes and tensor.contiguous:
            self.copy(host.ctypes.data, tensor.ptr, host.nbytes)
        elif host.nbytes:  # all from the first element to the last, of which some are no elements
            last = sum((n - 1) * step for n, step in zip(tensor.shape, tensor.stride))
            whole = np.empty(last + 1, host.dtype)
            self.copy(whole.ctypes.data, tensor.ptr, whole.nbytes)
            self.sync()
            steps = tuple(step * host.itemsize for step in tensor.stride)
            host[...] = np.lib.stride_tricks.as_strided(whole, tensor.shape, steps)
        self.sync()
        return host

    def copy(self, target: int, source: int, nbytes: int, on: Any = None) -> None:
        previous = streams.enter(self.ordinal)  # this thread may never have met the device
        try:
            handle = self._handle if on is None else on.handle
            self.check(self.driver.cuMemcpyAsync(target, source, nbytes, handle))
        finally:
            streams.leave(previous)

    def _page_locked(self, pointer: int) -> bool:
        """Whether the driver knows this host memory, so that copies from it are truly asynchronous."""
        kind = self.driver.CUpointer_attribute.CU_POINTER_ATTRIBUTE_MEMORY_TYPE
        return int(self.driver.cuPointerGetAttribute(kind, pointer)[0]) == 0

    def check(self, result: tuple[Any, ...]) -> tuple[Any, ...]:
        """The values of a driver call, or DeviceError with the driver's words."""
        if int(result[0]) != 0:
            _, text = self.driver.cuGetErrorString(result[0])
            raise DeviceError(f"the CUDA driver answered {result[0].name}: {text.decode() if text else '?'}")
        return result[1:]

    def sync(self) -> None:
        self.stream.sync()


def _spec_of(device: Any) -> DeviceSpec:
    p = device.properties
    cc = device.compute_capability
    bandwidth = (
        2.0 * p.memory_clock_rate * p.global_memory_bus_width / 8 / 1e6
    )  # kHz, bits -> GB/s, double data rate
    return specs.from_properties(
        device.name,
        (cc.major, cc.minor),
        p.multiprocessor_count,
        p.l2_cache_size,
        p.max_shared_memory_per_block_optin,
        0,
        p.clock_rate / 1e6,
        bandwidth or 500.0,
    )


_started = False  # CUDA, in this process
_lost = False  # it was started before this process was forked


def _in_child() -> None:
    global _lost
    _lost = _started


if hasattr(os, "register_at_fork"):  # not on Windows
    os.register_at_fork(after_in_child=_in_child)


def refuse_forked(name: str) -> None:
    if _lost:
        raise DeviceError(
            f"{name} can't be used here: this process was forked from one that had started CUDA, which does not survive a fork",
            expected="a process that starts CUDA itself",
            hint="multiprocessing.get_context('spawn') starts such processes; device='cpu' works here",
        )


def _driver_library() -> bool:
    try:
        ctypes.CDLL("nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1")
    except OSError:
        return False
    return True


def cuda_missing() -> str | None:
    """None if a CUDA device can be opened; else why not. Cheap, and safe without a driver."""
    if not _driver_library():  # asked first, so that a machine without a GPU imports no NVIDIA package
        return "there is no NVIDIA driver on this machine"
    try:
        from cuda.bindings import driver
    except ImportError as error:
        return f"cuda-python can't be imported ({error})"
    global _started
    try:
        (status,) = driver.cuInit(0)
        _started = True
        if int(status) != 0:
            return f"the driver answered {status.name}"
        status, count = driver.cuDeviceGetCount()
    except Exception as error:  # no libcuda: the bindings raise RuntimeError
        return f"no NVIDIA driver ({error})"
    return None if int(status) == 0 and count > 0 else "the driver sees no GPU"


@cache
def _open(kind: str, ordinal: int) -> Runtime:
    return CpuRuntime() if kind == "cpu" else CudaRuntime(ordinal)


def runtime(device: str | None = None) -> Runtime:
    """The runtime of a device: `cpu`, `cuda`, `cuda:1`, or `auto` (CUDA if there is one). One for each device."""
    name = config.default_device() if device is None else device
    kind, _, ordinal = name.partition(":") if isinstance(name, str) else ("", "", "")
    if kind not in ("cpu", "cuda", "auto") or (ordinal and not ordinal.isdigit()):
        raise DeviceError(
            f"no device is called {name!r}",
            expected="cpu, cuda, cuda:N or auto",
            where="the environment variable AICF_DEVICE" if device is None else None,
        )
    if kind == "cpu":
        return _open("cpu", 0)
    refuse_forked(name)
    if reason := cuda_missing():
        if kind == "auto":
            return _open("cpu", 0)
        raise DeviceError(
            f"{name} can't be used: {reason}", hint="`aicf doctor` says what is missing; device='cpu' works"
        )
    return _open("cuda", int(ordinal or 0))


def current() -> DeviceSpec:
    """The DeviceSpec of the default device of this machine."""
    return runtime().spec
