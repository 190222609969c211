"""Other libraries' tensors: NumPy, PyTorch, CuPy, JAX, Numba, through DLPack, `__array_interface__` and
`__cuda_array_interface__`. Nothing here imports them."""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from typing import Any

import numpy as np

from ..errors import AttrError, FeedError
from ..types import DType, TensorDesc, pointer_alignment, row_major
from .foreign import Foreign
from .reading import READERS, UNREADABLE, learn, remember
from .tensor import Tensor

# DLPack's device types. Pinned memory is the host's, managed memory the GPU's.
_DLPACK_HOST, _DLPACK_CUDA = (1, 3), (2, 13)

_TORCH_DTYPES = {
    "float32": DType.f32,
    "float16": DType.f16,
    "bfloat16": DType.bf16,
    "int32": DType.i32,
    "int64": DType.i64,
    "bool": DType.bool,
    "float8_e4m3fn": DType.f8e4m3,
    "float8_e5m2": DType.f8e5m2,
    "int8": DType.i8,
    "uint8": DType.u8,
    "int16": DType.i16,
    "uint16": DType.u16,
    "uint32": DType.u32,
    "uint64": DType.u64,
    "float64": DType.f64,
}
DLPACK_CODES = {DType.bf16: 4, DType.f8e4m3: 10, DType.f8e5m2: 12}  # of what NumPy's DLPack does not have


MET_LIMIT = 4096
_met: dict[Any, Foreign] = {}  # what tensors say of themselves -> what was found of one; it holds no memory


def adopt(obj: Any, name: str = "tensor", stream: int | None = None) -> Foreign:
    """Look at a tensor without copying it; FeedError if it is none.

    stream  the stream that is going to use it: a library that orders streams by DLPack is told (JAX)
    """
    if isinstance(obj, Foreign):
        return obj
    try:
        said, pointer = READERS[obj.__class__](obj)
        met = _met.get(said)
    except UNREADABLE:
        said, met = None, None
    if met is not None:
        library = met.library
        array = obj if library == "numpy" else obj.array if library == "aicf" else None
        return Foreign(met.desc, pointer, array, obj, met.ordinal, met.readonly, library, met.stream)
    found = _looked_at(obj, name, stream)
    learn(obj, found.library)
    if (
        said is not None
        and found.ptr == pointer
        and (found.array is None or found.library in ("numpy", "aicf"))
    ):
        remember(_met, said, replace(found, ptr=0, array=None, owner=None), MET_LIMIT)
    return found


def _looked_at(obj: Any, name: str, stream: int | None) -> Foreign:
    """What the first tensor of its kind is asked, and each that is no plain one."""
    if isinstance(obj, Tensor):
        ordinal = getattr(obj.runtime, "ordinal", 0)
        return Foreign(
            obj.desc, obj.ptr, obj.array, obj, ordinal, None, "aicf", obj.runtime.stream_id or None
        )
    if isinstance(obj, np.ma.MaskedArray):
        raise FeedError(
            f"{name} is a masked array", expected="an array without a mask", hint=f"{name}.filled(0)"
        )
    if isinstance(obj, (np.ndarray, np.generic)):
        return _host(np.asarray(obj), obj, name)
    library = library_of(obj)
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(obj, torch.Tensor):
        return _torch(torch, obj, name)
    if library in ("jax", "jaxlib"):  # its __cuda_array_interface__ names no stream, its DLPack does
        return _dlpack(obj, name, library, stream)
    if (interface := getattr(obj, "__cuda_array_interface__", None)) is not None:
        return _cuda(interface, obj, name, library)
    if hasattr(obj, "__dlpack__"):
        return _dlpack(obj, name, library, stream)
    if hasattr(obj, "__array_interface__"):
        return _host(np.asarray(obj), obj, name, library)
    error = FeedError(
        f"{name} is a {type(obj).__name__}, not a tensor",
        expected="a NumPy array, or anything that speaks DLPack or __cuda_array_interface__",
    )
    if isinstance(obj, (list, tuple, int, float)):
        error.library, error.hint = "numpy", conversion(name, DType.f32)
    raise error


def conversion(expression: str, dtype: DType, library: str = "numpy") -> str:
    """What to write for a tensor's values in another element type, in the words of its library."""
    spelt = dtype.numpy.name  # PyTorch, JAX and ml_dtypes spell bf16 and fp8 alike
    if library == "torch":
        return f"{expression}.to(torch.{spelt})"
    if library in ("jax", "jaxlib", "cupy"):
        return f'{expression}.astype("{spelt}")'
    array = {"aicf": f"{expression}.numpy()", "numba": f"{expression}.copy_to_host()"}.get(
        library, expression
    )
    if dtype.numpy.kind in "fiub" and dtype not in DLPACK_CODES:
        return f"np.asarray({array}, np.{spelt}{'_' * (dtype is DType.bool)})"
    return f"np.asarray({array}, ml_dtypes.{spelt}), of the package ml_dtypes, which aicf brings"


def library_of(obj: Any) -> str:
    """The top-level package of an object's type."""
    return type(obj).__module__.partition(".")[0]


def _dtype(name: str, dtype: Any, library: str) -> DType:
    try:
        return DType.of(dtype)
    except AttrError:
        error = FeedError(
            f"{name} has element type {dtype}",
            expected="one of " + ", ".join(DType.__members__),
            hint=f"convert it first, for example {conversion(name, DType.f32, library)}",
        )
        error.library = library
        raise error from None


# --- the host ---------------------------------------------------------------------------------------------------------


def _host(array: np.ndarray, owner: Any, name: str, library: str = "numpy") -> Foreign:
    dtype = _dtype(name, array.dtype, library)
    readonly = None if array.flags.writeable else "the array is read-only"
    if isinstance(owner, np.generic):
        readonly = "a NumPy scalar is a value, not memory"
    if library in ("jax", "jaxlib"):
        readonly = "JAX arrays are immutable"
    if any(s % array.itemsize for s in array.strides):  # fields of records
        readonly = f"its strides of {array.strides} bytes are no whole elements"
        array = np.ascontiguousarray(array)
    pointer = array.__array_interface__["data"][0]
    stride = tuple(s // array.itemsize for s in array.strides)
    desc = TensorDesc(dtype, array.shape, stride, "cpu", pointer_alignment(pointer))
    return Foreign(desc, pointer, array, owner, readonly=readonly, library=library)


# --- CUDA -------------------------------------------------------------------------------------------------------------


def _device(
    dtype: DType, shape: tuple[int, ...], stride: tuple[int, ...], pointer: int, owner: Any, name: str, **more: Any
) -> Foreign:  # fmt: skip
    desc = _device_desc(dtype, shape, stride, pointer_alignment(pointer))
    if any(s < 0 and d > 1 for s, d in zip(stride, shape)):
        raise FeedError(
            f"{name} runs backwards through device memory", expected="strides >= 0", got=f"strides {stride}",
            hint=f"copy it first: {name}.copy()",
        )  # fmt: skip
    return Foreign(desc, pointer, None, owner, **more)


@lru_cache(maxsize=4096)
def _device_desc(dtype: DType, shape: tuple[int, ...], stride: tuple[int, ...], alignment: int) -> TensorDesc:
    return TensorDesc(dtype, shape, stride, "cuda", alignment)


def _cuda(interface: dict[str, Any], owner: Any, name: str, library: str) -> Foreign:
    if interface.get("mask") is not None:
        raise FeedError(f"{name} is a masked array", expected="an array without a mask")
    raw = np.dtype(interface["typestr"])
    dtype, shape = _dtype(name, raw, library), tuple(interface["shape"])
    pointer, readonly = int(interface["data"][0] or 0), interface["data"][1]
    strides = interface.get("strides")
    if strides is not None and any(s % raw.itemsize for s in strides):
        raise FeedError(
            f"{name} has strides that are no whole elements", expected=f"multiples of {raw.itemsize}",
            got=f"{tuple(strides)} bytes",
        )  # fmt: skip
    stride = row_major(shape) if strides is None else tuple(s // raw.itemsize for s in strides)
    return _device(
        dtype, shape, stride, pointer, owner, name, ordinal=_ordinal(owner, pointer), library=library,
        readonly="its __cuda_array_interface__ says read-only" if readonly else None, stream=interface.get("stream"),
    )  # fmt: skip


def _ordinal(obj: Any, pointer: int) -> int:
    """Which CUDA device an array is on, as its owner says, or else the driver of its pointer."""
    if hasattr(obj, "__dlpack_device__"):
        return int(obj.__dlpack_device__()[1])
    if pointer == 0:
        return 0
    try:
        from cuda.bindings import driver

        status, ordinal = driver.cuPointerGetAttribute(
            driver.CUpointer_attribute.CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, pointer
        )
    except Exception:  # no bindings, or no driver: nothing will run on it either
        return 0
    return int(ordinal) if int(status) == 0 else 0


@cache
def _torch_dtypes(torch: Any) -> dict[Any, DType]:
    return {getattr(torch, name): dtype for name, dtype in _TORCH_DTYPES.items() if hasattr(torch, name)}


def _torch(torch: Any, tensor: Any, name: str) -> Foreign:
    """A torch tensor, read directly: its DLPack and __cuda_array_interface__ are slow, and refuse what needs gradients."""
    if tensor.layout is not torch.strided:
        raise FeedError(
            f"{name} is a {tensor.layout} tensor", expected="a strided one", hint=f"{name}.to_dense()"
        )
    if tensor.is_neg():
        raise FeedError(f"{name} is a view that negates lazily", hint=f"{name}.resolve_neg() makes it plain")
    dtype, device = (
        _torch_dtypes(torch).get(tensor.dtype) or _dtype(name, tensor.dtype, "torch"),
        tensor.device,
    )
    if tensor.requires_grad:
        tensor = tensor.detach()
    if device.type == "cpu":
        bits = {DType.bf16: torch.int16, DType.f8e4m3: torch.int8, DType.f8e5m2: torch.int8}.get(dtype)
        array = tensor.numpy() if bits is None else tensor.view(bits).numpy().view(dtype.numpy)
        return _host(array, tensor, name, "torch")
    if device.type != "cuda" or getattr(torch.version, "hip", None):
        raise FeedError(f"{name} is on {device}", expected="the host or a CUDA device")
    try:
        pointer = tensor.data_ptr()
    except RuntimeError as error:  # tensors of torch.compile, vmap, DTensor, …
        raise FeedError(f"{name} has no memory of its own: {error}", expected="a plain tensor") from error
    return _device(
        dtype, tuple(tensor.shape), tensor.stride(), pointer, tensor, name, ordinal=device.index or 0, library="torch"
    )  # fmt: skip


# --- DLPack -----------------------------------------------------------------------------------------------------------


def _dlpack(obj: Any, name: str, library: str, stream: int | None) -> Foreign:
    kind, ordinal = map(int, obj.__dlpack_device__())
    if kind in _DLPACK_HOST:
        return _host(_host_array(obj, name), obj, name, library)
    if kind not in _DLPACK_CUDA:
        raise FeedError(f"{name} is on DLPack device {kind}", expected="the host (1) or a CUDA device (2)")
    from cuda.core.utils import StridedMemoryView

    asked = _Unordered(obj) if stream is None and library in ("jax", "jaxlib") else obj
    view = StridedMemoryView.from_dlpack(asked, stream_ptr=-1 if stream is None else stream or 1)
    dtype, shape = _dtype(name, view.dtype, library), tuple(view.shape)
    stride = row_major(shape) if view.strides is None else tuple(view.strides)
    readonly = "its DLPack capsule says read-only" if view.readonly else None
    if library in ("jax", "jaxlib"):
        readonly = "JAX arrays are immutable"
    return _device(
        dtype, shape, stride, int(view.ptr), Handed(obj, view), name, ordinal=ordinal, readonly=readonly, library=library,
        handed_over=True,
    )  # fmt: skip


@dataclass(frozen=True)
class Handed:
    """A tensor that came by DLPack, and the view that keeps its memory."""

    exporter: Any
    view: Any


class _Unordered:
    """An exporter that is asked for no order among streams. JAX takes DLPack's number for that, -1, for a stream; asked for
    none, it waits until the array is there."""

    def __init__(self, exporter: Any) -> None:
        self.exporter = exporter
        self.__dlpack_device__ = exporter.__dlpack_device__

    def __dlpack__(self, stream: int | None = None, **how: Any) -> Any:
        return self.exporter.__dlpack__(**how)


def _host_array(obj: Any, name: str) -> np.ndarray:
    try:
        return np.from_dlpack(obj)
    except (BufferError, RuntimeError, TypeError, ValueError):  # NumPy's DLPack has no bf16 and no fp8
        try:
            return np.asarray(obj, copy=False)
        except (TypeError, ValueError) as error:
            raise FeedError(f"{name} can't be seen by NumPy without a copy: {error}") from error
