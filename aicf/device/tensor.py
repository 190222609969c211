"""Tensor: aicf's own array on a device. It says where it lives, owns or borrows its memory, and speaks NumPy and DLPack."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import Immovable
from ..types import DType, Shape, TensorDesc, TensorSpec, pointer_alignment, row_major
from .faults import tell

if TYPE_CHECKING:
    from .runtime import Runtime


class Tensor(Immovable):
    """A view of device memory: spec, strides (in elements), pointer, and whatever keeps the memory alive.

    `numpy()` copies to the host; on the CPU device `array` is the memory itself. Other libraries take either by DLPack,
    without a copy: `torch.from_dlpack(t)`; a CUDA tensor speaks `__cuda_array_interface__` too, a CPU tensor `__array__`.

    A 0-D tensor, such as a loss, can be formatted, ordered and taken for a float, an int or a bool. `t[i]` and iteration
    give NumPy's copies. There is no arithmetic; `==` asks whether it is the same object.
    """

    instead = "t.numpy() is a copy of its own, on the host"
    __slots__ = ("array", "faults", "owner", "ptr", "runtime", "spec", "stride")

    def __init__(
        self,
        spec: TensorSpec,
        ptr: int,
        runtime: Runtime,
        owner: Any = None,
        stride: Shape | None = None,
        array: np.ndarray | None = None,
    ) -> None:
        self.spec, self.ptr, self.runtime, self.owner, self.array = spec, ptr, runtime, owner, array
        self.stride = row_major(spec.shape) if stride is None else stride
        self.faults: tuple[Tensor, ...] = ()  # records of the runs that it is a result of

    @property
    def shape(self) -> Shape:
        return self.spec.shape

    @property
    def dtype(self) -> DType:
        return self.spec.dtype

    @property
    def device(self) -> str:
        return self.spec.device

    @property
    def desc(self) -> TensorDesc:
        """What selection sees of it."""
        return TensorDesc(self.dtype, self.shape, self.stride, self.device, pointer_alignment(self.ptr))

    @property
    def contiguous(self) -> bool:
        return self.stride == row_major(self.spec.shape) or self.desc.contiguous

    def numpy(self) -> np.ndarray:
        """A copy on the host, after waiting for the device's stream. LabelError if a run met a label that is no class."""
        host = self.runtime.download(self)
        for record in self.faults:
            tell(record)
        return host

    def item(self) -> float:
        return self.numpy().item()

    def __float__(self) -> float:
        return float(self.item())

    def __int__(self) -> int:
        return int(self.item())

    def __bool__(self) -> bool:
        if self.spec.rank:
            raise ValueError(f"{self.spec} has no one truth value: `t.numpy().any()`, or `t is not None`")
        return bool(self.item())

    def __format__(self, how: str) -> str:
        """A 0-D tensor as its number: f"{loss:.4f}"."""
        return format(str(self) if self.spec.rank else self.item(), how)

    def __lt__(self, other: Any) -> bool:
        return self._number() < _number(other)

    def __le__(self, other: Any) -> bool:
        return self._number() <= _number(other)

    def __gt__(self, other: Any) -> bool:
        return self._number() > _number(other)

    def __ge__(self, other: Any) -> bool:
        return self._number() >= _number(other)

    def _number(self) -> float:
        if self.spec.rank:
            raise TypeError(f"{self.spec} is not ordered: compare `t.numpy()`")
        return self.item()

    def __len__(self) -> int:
        if not self.spec.rank:
            raise TypeError("a 0-D tensor has no len()")
        return self.shape[0]

    def __getitem__(self, index: Any) -> Any:
        return self.numpy()[index]

    def __iter__(self) -> Iterator[Any]:
        return iter(self.numpy())

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        host = self.numpy()
        return host if dtype is None else host.astype(dtype)

    def __dlpack__(self, **options: Any) -> Any:
        from .export import export

        return export(self, **options)

    def __dlpack_device__(self) -> tuple[int, int]:
        return (1, 0) if self.array is not None else (2, getattr(self.runtime, "ordinal", 0))

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        if self.device == "cpu" or self.dtype.numpy.isbuiltin != 1:  # of ml_dtypes: no typestr names it
            raise AttributeError(f"a {self.device} tensor of {self.dtype} has no __cuda_array_interface__")
        size = self.dtype.itemsize
        return {
            "shape": self.shape,
            "typestr": self.dtype.numpy.str,
            "data": (self.ptr, False),
            "version": 3,
            "strides": tuple(s * size for s in self.stride),
            "stream": int(self.runtime.stream_id) or 1,
        }

    def __repr__(self) -> str:
        body = np.array2string(self.numpy(), threshold=20, precision=4)
        return f"aicf.Tensor({body}, {self.spec}, device={self.device!r})"


def _number(value: Any) -> float:
    return value._number() if isinstance(value, Tensor) else value
