"""A tensor of ours, handed to another library as a DLPack capsule."""

from __future__ import annotations

import ctypes
from contextlib import suppress
from typing import Any

import numpy as np

from .interop import DLPACK_CODES
from .tensor import Tensor


def export(tensor: Tensor, stream: int | None = None, **options: Any) -> Any:
    """A tensor of ours as a DLPack capsule; `stream`, the consumer's, waits for the work on ours. `options` as DLPack's."""
    options = {name: value for name, value in options.items() if value is not None}
    code = DLPACK_CODES.get(tensor.dtype)  # neither NumPy's nor every cuda.core's DLPack has it
    bits = tensor.dtype.numpy if code is None else np.dtype(f"i{tensor.dtype.itemsize}")
    if tensor.array is not None:
        capsule = tensor.array.view(bits).__dlpack__(stream=stream, **options)
    else:
        capsule = _export_cuda(tensor, bits, stream, options)
    return capsule if code is None else _coded(capsule, code)


def _export_cuda(tensor: Tensor, bits: np.dtype, stream: int | None, options: dict[str, Any]) -> Any:
    from cuda.core import Buffer
    from cuda.core.utils import StridedMemoryView

    from . import streams

    ordinal, ours = getattr(tensor.runtime, "ordinal", 0), tensor.runtime.stream_id
    theirs = streams.LEGACY if stream is None else stream
    if stream != -1:  # DLPack's "do not synchronise"; none means the legacy default stream
        streams.wait(ordinal, theirs, ours)
    reach = 1 + sum((d - 1) * s for d, s in zip(tensor.shape, tensor.stride)) if tensor.spec.numel else 0
    buffer = Buffer.from_handle(tensor.ptr, reach * bits.itemsize, owner=_Lent(tensor, ordinal, ours, theirs))
    view = StridedMemoryView.from_buffer(buffer, tensor.shape, tensor.stride, dtype=bits)
    return view.__dlpack__(**options)


class _Lent:
    """A tensor of ours that another library holds. When it lets go, our stream waits for theirs: the memory is freed, and
    given to another tensor, in the order of ours."""

    def __init__(self, tensor: Tensor, ordinal: int, ours: int, theirs: int) -> None:
        self.tensor, self.wait = tensor, (ordinal, ours, theirs)

    def __del__(self) -> None:
        from . import streams

        if self.wait[2] != -1:
            with suppress(Exception):  # their stream, or the interpreter, may be gone
                streams.wait(*self.wait)


class _DLTensor(ctypes.Structure):
    """As far as the element type."""

    _fields_ = [
        ("data", ctypes.c_void_p), ("device_type", ctypes.c_int32), ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32), ("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16),
    ]  # fmt: skip


_VERSIONED_HEAD = 32  # version, context, deleter and flags come before the tensor


def _coded(capsule: Any, code: int) -> Any:
    """A capsule of integers, made one of floats of as many bits."""
    pointer_of = ctypes.pythonapi.PyCapsule_GetPointer
    pointer_of.restype, pointer_of.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    versioned = "dltensor_versioned" in repr(capsule)
    address = pointer_of(capsule, b"dltensor_versioned" if versioned else b"dltensor")
    _DLTensor.from_address(address + _VERSIONED_HEAD * versioned).code = code
    return capsule
