"""Other libraries' tensors: NumPy, PyTorch, CuPy, JAX, Numba, through DLPack, `__array_interface__` and
`__cuda_array_interface__`. Nothing here imports them."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np

from ..errors import AttrError, FeedError
from ..types import DType, TensorDesc, pointer_alignment, row_major
from .tensor import Tensor


@dataclass(frozen=True)
class Foreign:
    """A tensor that came from outside: its descriptor and pointer, the host array if it has one, and its owner."""

    desc: TensorDesc
    ptr: int
    array: np.ndarray | None
    owner: Any

    @property
    def device(self) -> str:
        return self.desc.device


def adopt(obj: Any, name: str = "tensor") -> Foreign:
    """Look at a tensor without copying it; FeedError if it is none."""
    if isinstance(obj, Tensor):
        return Foreign(obj.desc, obj.ptr, obj.array, obj)
    if isinstance(obj, (np.ndarray, np.generic)):
        return _host(np.asarray(obj), obj, name)
    if hasattr(obj, "__cuda_array_interface__"):
        return _cuda(obj.__cuda_array_interface__, obj, name)
    if hasattr(obj, "__dlpack__"):
        return _dlpack(obj, name)
    if hasattr(obj, "__array_interface__"):
        return _host(np.asarray(obj), obj, name)
    raise FeedError(
        f"{name} is a {type(obj).__name__}, not a tensor",
        expected="a NumPy array, or anything that speaks DLPack or __cuda_array_interface__",
        hint="np.asarray(...) makes an array of lists and numbers",
    )


def _dtype(name: str, dtype: Any) -> DType:
    try:
        return DType.of(dtype)
    except AttrError:
        raise FeedError(
            f"{name} has element type {dtype}",
            expected="one of " + ", ".join(DType.__members__),
            hint=f"cast it first, for example {name}.astype(np.float32)",
        ) from None


def _host(array: np.ndarray, owner: Any, name: str) -> Foreign:
    dtype = _dtype(name, array.dtype)
    if any(s % array.itemsize for s in array.strides):
        array = np.ascontiguousarray(array)  # fields of records: strides that are no whole elements
    pointer = array.__array_interface__["data"][0]
    stride = tuple(s // array.itemsize for s in array.strides)
    return Foreign(
        TensorDesc(dtype, array.shape, stride, "cpu", pointer_alignment(pointer)), pointer, array, owner
    )


def _cuda(interface: dict[str, Any], owner: Any, name: str) -> Foreign:
    raw = np.dtype(interface["typestr"])
    dtype, shape, pointer = _dtype(name, raw), tuple(interface["shape"]), int(interface["data"][0])
    strides = interface.get("strides")
    stride = row_major(shape) if strides is None else tuple(s // raw.itemsize for s in strides)
    return Foreign(TensorDesc(dtype, shape, stride, "cuda", pointer_alignment(pointer)), pointer, None, owner)


def _dlpack(obj: Any, name: str) -> Foreign:
    obj = obj.detach() if hasattr(obj, "detach") else obj
    torch = sys.modules.get("torch")
    bf16 = torch is not None and isinstance(obj, torch.Tensor) and obj.dtype == torch.bfloat16
    view = (
        obj.view(torch.int16) if bf16 and torch is not None else obj
    )  # NumPy's DLPack knows no bf16: take its bits
    if int(obj.__dlpack_device__()[0]) == 1:
        array = np.from_dlpack(view)
        return _host(array.view(ml_dtypes.bfloat16) if bf16 else array, obj, name)
    if hasattr(view, "__cuda_array_interface__"):  # torch's bf16, seen as int16
        found = _cuda(view.__cuda_array_interface__, obj, name)
        d = found.desc
        return Foreign(TensorDesc(DType.bf16, d.shape, d.stride, "cuda", d.alignment), found.ptr, None, obj)
    from cuda.core.utils import StridedMemoryView

    strided = StridedMemoryView.from_dlpack(obj, stream_ptr=-1)
    dtype, shape = _dtype(name, strided.dtype), tuple(strided.shape)
    stride = row_major(shape) if strided.strides is None else tuple(strided.strides)
    desc = TensorDesc(dtype, shape, stride, "cuda", pointer_alignment(strided.ptr))
    return Foreign(desc, strided.ptr, None, strided)
