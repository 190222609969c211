"""Tensor: aicf's own array on a device. It says where it lives, owns or borrows its memory, and speaks NumPy and DLPack.

Runtime: the device that gives the memory. `runtime.py` has those of the CPU and of CUDA.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..errors import Immovable
from ..types import DType, Shape, TensorDesc, TensorSpec, pointer_alignment, row_major
from .foreign import Foreign
from .spec import DeviceSpec

ALIGNMENT = 256  # of every allocation and of every slot in an arena
SMALL = 4096  # bytes: tensors up to this size that are made together share allocations
SHARED = 16384  # bytes that such an allocation has at most: a loss keeps no more than that alive


class Tensor(Immovable):
    """A view of device memory: spec, strides (in elements), pointer, and whatever keeps the memory alive.

    `numpy()` copies to the host; on the CPU device `array` is the memory itself. Other libraries take either by DLPack,
    without a copy: `torch.from_dlpack(t)`; a CUDA tensor speaks `__cuda_array_interface__` too, a CPU tensor `__array__`.

    A 0-D tensor, such as a loss, can be formatted, ordered and taken for a float, an int or a bool. `t[i]` and iteration
    give NumPy's copies. There is no arithmetic; `==` asks whether it is the same object.
    """

    instead = "t.numpy() is a copy of its own, on the host"
    __slots__ = ("array", "checks", "owner", "ptr", "runtime", "spec", "stride")

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
        self.checks: tuple[Callable[[], None], ...] = ()  # whether the runs that it is a result of went wrong

    @property
    def shape(self) -> Shape:
        """Elements along each axis."""
        return self.spec.shape

    @property
    def dtype(self) -> DType:
        """The element type."""
        return self.spec.dtype

    @property
    def device(self) -> str:
        """Where it is: "cpu" or "cuda"."""
        return self.spec.device

    @property
    def desc(self) -> TensorDesc:
        """What selection sees of it."""
        return TensorDesc(self.dtype, self.shape, self.stride, self.device, pointer_alignment(self.ptr))

    @property
    def contiguous(self) -> bool:
        """Whether its elements lie side by side in row-major order."""
        return self.stride == row_major(self.spec.shape) or self.desc.contiguous

    def numpy(self) -> np.ndarray:
        """A copy on the host, after waiting for the device's stream. LabelError if a run met a label that is no class."""
        for check in self.checks:  # first: one of them waits where the copy would wait for ever
            check()
        return self.runtime.download(self)

    def item(self) -> float:
        """The one element, as a number of Python; it waits for the device."""
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

    def __getattr__(self, name: str) -> Any:
        """What an array has and a tensor lacks says where it is."""
        text = f"aicf.Tensor has no {name!r}"
        if not name.startswith("_") and hasattr(np.ndarray, name):
            text += f": t.numpy().{name} is that of an array on the host"
        raise AttributeError(text, name=name, obj=self)

    def _no_arithmetic(self, other: Any) -> Any:
        """NumPy's arrays and other libraries' tensors answer for themselves."""
        if type(other) not in (int, float, Tensor):
            return NotImplemented
        raise TypeError("there is no arithmetic on tensors: float(t) of a 0-D one, t.numpy() of others")

    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = _no_arithmetic
    __truediv__ = __rtruediv__ = _no_arithmetic

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


@dataclass(slots=True)
class Memory:
    """An allocation. It lives as long as something holds it; tensors cut from it do."""

    ptr: int
    nbytes: int
    owner: Any


def _room(spec: TensorSpec) -> int:
    """Bytes of a tensor in an allocation that it shares; none where it has one of its own."""
    return -(-spec.nbytes // ALIGNMENT) * ALIGNMENT if spec.nbytes <= SMALL else 0


class Runtime(ABC):
    """One device. Work is ordered by its stream; `sync` waits for it."""

    kind: str
    spec: DeviceSpec
    stream: Any = None

    @property
    def stream_id(self) -> int:
        return 0

    @abstractmethod
    def allocate(self, nbytes: int) -> Memory: ...

    @abstractmethod
    def view(self, memory: Memory, offset: int, spec: TensorSpec) -> Tensor:
        """A dense tensor in an allocation, `offset` bytes from its start."""

    @abstractmethod
    def borrow(self, foreign: Foreign) -> Tensor:
        """A tensor over foreign memory that this device can reach, strides and all."""

    @abstractmethod
    def write(self, target: Tensor, source: Foreign | np.ndarray | Tensor, on: Any = None) -> None:
        """Copy into a dense tensor: from any host array, or from dense memory of this device. `on` is another stream."""

    @abstractmethod
    def download(self, tensor: Tensor) -> np.ndarray: ...

    @abstractmethod
    def sync(self) -> None:
        """Wait for all work on this runtime's stream."""

    @property
    def place(self) -> str:
        """`cpu`, or a CUDA device with its number: where tensors must be that this device is to reach."""
        return "cpu"

    def current(self) -> AbstractContextManager[None]:
        """The device is the thread's current one inside: what is compiled and loaded is for it."""
        return nullcontext()

    def refuse_capture(self) -> None:
        """CaptureError if the caller captures a stream, of which work on this device's own would be no part."""
        return None

    def ordered(self, fed: Iterable[Foreign]) -> AbstractContextManager[None]:
        """Work inside runs after what the owners of these tensors have done, and they go on after it."""
        return nullcontext()

    def empty(self, spec: TensorSpec) -> Tensor:
        return self.view(self.allocate(max(spec.nbytes, 1)), 0, spec)

    def empties(self, specs: Sequence[TensorSpec]) -> list[Tensor]:
        """Small ones share allocations of limited size, each of which lives as long as one of its tensors does; so a loss
        keeps neither great results nor many small ones."""
        sizes, places = [0], []
        for spec in specs:
            room = _room(spec)
            if sizes[-1] + room > SHARED:
                sizes.append(0)
            places.append((len(sizes) - 1, sizes[-1]))
            sizes[-1] += room
        shared = [self.allocate(size) if size else None for size in sizes]
        return [
            self.view(memory, place, s) if _room(s) and (memory := shared[n]) else self.empty(s)
            for s, (n, place) in zip(specs, places)
        ]

    @abstractmethod
    def copy(self, target: int, source: int, nbytes: int, on: Any = None) -> None:
        """Bytes between two places of this device. `on` is another stream."""

    def upload(self, array: np.ndarray, spec: TensorSpec) -> Tensor:
        tensor = self.empty(spec)
        self.write(tensor, np.asarray(array, spec.dtype.numpy))
        return tensor
