"""Descriptors for the tensor memory accelerator: a TensorMap and a pointer, as 128 bytes in device memory.

A descriptor says all that there is to say of a tensor: it is made once for each pointer, and stays right whatever is done
with the memory that it points at. So none is ever given back: a launch that is under way or a captured graph may read it.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from ...errors import DeviceError
from ...registry.variant import Element, TensorMap, WindowMap, cdiv
from ...types import DType, bf16, f16, f32, i32, i64, u8
from ...whole import shared_lock

NBYTES = 128  # of a descriptor; it is aligned to 64
CHUNK = 512  # descriptors that memory is allocated for at once


# What an element is to the driver. Only what lies outside of a tensor, and tf32's rounding, depend on it.
_ELEMENTS: dict[Element, str] = {
    f16: "FLOAT16", bf16: "BFLOAT16", f32: "FLOAT32", "tf32": "TFLOAT32", i32: "INT32", u8: "UINT8", DType.bool: "UINT8",
    i64: "INT64",
}  # fmt: skip


def encode(driver: Any, tensor_map: TensorMap, pointer: int) -> bytes:
    """As the driver writes it: zeros outside. L2 gets the lines that are asked for: two at a time took 8.2 us for 7.6 at 1000³, whose
    rows begin within lines, and no product less."""
    m = tensor_map
    kind = getattr(driver.CUtensorMapDataType, "CU_TENSOR_MAP_DATA_TYPE_" + _ELEMENTS[m.dtype])
    # none at all would be a null pointer, which is refused
    pitches = m.pitches or (cdiv(m.extents[0] * m.itemsize, 16) * 16,)
    swizzle = f"CU_TENSOR_MAP_SWIZZLE_{m.swizzle}B" if m.swizzle else "CU_TENSOR_MAP_SWIZZLE_NONE"
    place = (
        kind,
        len(m.extents),
        pointer,
        [driver.cuuint64_t(x) for x in m.extents],
        [driver.cuuint64_t(x) for x in pitches],
    )
    ways = (
        driver.CUtensorMapInterleave.CU_TENSOR_MAP_INTERLEAVE_NONE,
        getattr(driver.CUtensorMapSwizzle, swizzle),
        driver.CUtensorMapL2promotion.CU_TENSOR_MAP_L2_PROMOTION_L2_128B,
        driver.CUtensorMapFloatOOBfill.CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
    )
    ones = [driver.cuuint32_t(1)] * len(m.extents)
    if isinstance(m, WindowMap):
        steps = [ones[0], *map(driver.cuuint32_t, m.steps), ones[0]]
        code, made = driver.cuTensorMapEncodeIm2col(*place, list(m.first), list(m.last), *m.box, steps, *ways)
    else:
        code, made = driver.cuTensorMapEncodeTiled(*place, [driver.cuuint32_t(x) for x in m.box], ones, *ways)
    _check(code, f"describing {tensor_map} at {pointer:#x}")
    return np.array([int(word) for word in made.opaque], np.uint64).tobytes()


def _check(code: Any, what: str) -> None:
    if int(code) != 0:
        raise DeviceError(f"the CUDA driver answered {code.name}", where=what)


class MapMemory:
    """Memory of the current device for descriptors. `driver` is `cuda.bindings.driver`.

    It may be asked for while a stream of the caller's is captured: it allocates and copies in relaxed mode, on a stream of
    its own, and waits for the copy.
    """

    def __init__(self, driver: Any) -> None:
        self.driver = driver
        self._free: list[int] = []
        self._stream: Any = None

    def put(self, descriptor: bytes) -> int:
        """Its address."""
        assert len(descriptor) == NBYTES
        relaxed = self.driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED
        code, before = self.driver.cuThreadExchangeStreamCaptureMode(relaxed)
        _check(code, "changing the capture mode")
        try:
            address = self._free.pop() if self._free else self._grow()
            _check(
                self.driver.cuMemcpyHtoDAsync(address, descriptor, NBYTES, self._stream)[0],
                "copying a descriptor",
            )
            _check(self.driver.cuStreamSynchronize(self._stream)[0], "copying a descriptor")
        finally:
            self.driver.cuThreadExchangeStreamCaptureMode(before)
        return address

    def _grow(self) -> int:
        if self._stream is None:
            flags = self.driver.CUstream_flags.CU_STREAM_NON_BLOCKING
            code, self._stream = self.driver.cuStreamCreate(flags)
            _check(code, "making a stream")
        code, first = self.driver.cuMemAlloc(CHUNK * NBYTES)
        _check(code, f"{CHUNK} descriptors")
        self._free = [int(first) + i * NBYTES for i in reversed(range(1, CHUNK))]
        return int(first)


class Descriptors:
    """Of one TensorMap, by the pointers that it was launched with."""

    def __init__(self, tensor_map: TensorMap, memory: MapMemory) -> None:
        self.tensor_map, self.memory = tensor_map, memory
        self._known: dict[int, int] = {}

    def at(self, pointer: int) -> int:
        """The descriptor's address, for a tensor at this pointer."""
        found = self._known.get(pointer)
        return self._add(pointer) if found is None else found

    def _add(self, pointer: int) -> int:
        with _ADDING:
            if pointer not in self._known:
                made = encode(self.memory.driver, self.tensor_map, pointer)
                self._known[pointer] = self.memory.put(made)
            return self._known[pointer]


_ADDING = shared_lock(inner=True)


@functools.cache
def descriptors(device_id: int, tensor_map: TensorMap) -> Descriptors:
    """On a device, which is the current one whenever they are asked for a pointer."""
    return Descriptors(tensor_map, _memory(device_id))


@functools.cache
def _memory(device_id: int) -> MapMemory:
    from cuda.bindings import driver

    return MapMemory(driver)
