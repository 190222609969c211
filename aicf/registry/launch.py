"""What `build` makes: launches of CUDA kernels, calls on the host, collectives, and the arguments that they take."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from math import prod
from typing import Any, ClassVar, Literal

from ..types import DType


@dataclass(frozen=True)
class In:
    """Pointer to the region's i-th operand, `offset` bytes from its start."""

    index: int
    offset: int = 0


@dataclass(frozen=True)
class Out:
    """Pointer to the region's i-th result, `offset` bytes from its start."""

    index: int
    offset: int = 0


@dataclass(frozen=True)
class Work:
    """Pointer into the workspace, `offset` bytes from its start."""

    offset: int = 0
    dtype: DType = DType.f32


@dataclass(frozen=True)
class Num:
    """A number passed by value. `dtype` is f32, i32 or i64."""

    value: float
    dtype: DType = DType.i64


# tf32: f32, rounded to it (nearest even) as it is brought. Bytes that have a type of their own, such as fp8, are u8.
Element = DType | Literal["tf32"]


@dataclass(frozen=True)
class TensorMap:
    """Pointer to a descriptor of a tensor, for copies by the tensor memory accelerator (sm_90): 128 bytes in device memory.

    source   the tensor, at a 16-byte aligned place: 1 to 5 dimensions, the contiguous one first; it may be a copy in the workspace
    extents  elements along each dimension
    pitch    bytes from one to the next along each dimension but the first, multiples of 16; a number is a matrix's
    box      elements along each dimension of what one copy moves, at most 256; the first's take a multiple of 16 bytes
    swizzle  128, 64 or 32: rows of a box take so many bytes, and 16-byte pieces change places among neighbouring rows, so
             that a column of them lies in banks of its own; or 0: rows of any length, as they are
    """

    source: In | Out | Work
    dtype: Element
    extents: tuple[int, ...]
    pitch: int | tuple[int, ...]
    box: tuple[int, ...]
    swizzle: int = 128

    def __post_init__(self) -> None:
        row = self.box[0] * self.itemsize
        assert 1 <= len(self.extents) == len(self.box) == len(self.pitches) + 1 <= 5, self
        assert all(0 <= e <= 2**32 for e in self.extents) and all(1 <= e <= 256 for e in self.box), self
        assert all(p % 16 == 0 and 0 < p < 2**40 for p in self.pitches) and row % 16 == 0, self
        assert self.swizzle in (0, 32, 64, 128) and row == (self.swizzle or row), self

    @property
    def pitches(self) -> tuple[int, ...]:
        return (self.pitch,) if isinstance(self.pitch, int) else self.pitch

    @property
    def itemsize(self) -> int:
        return self.dtype.itemsize if isinstance(self.dtype, DType) else 4

    @property
    def nbytes(self) -> int:
        """Of a box: what a copy brings, wherever it lies."""
        return prod(self.box) * self.itemsize


@dataclass(frozen=True)
class WindowMap(TensorMap):
    """Of (N, …, C), for copies of a run of channels of windows, one after the other: see `load_windows` in ptx/tma.py.

    extents, pitch  of C, the spatial axes from the last one on, N
    box             channels, and windows: at most 1024 of them
    first           of each spatial axis, from the last one on: where the first window begins
    last            and where the last one does, from the axis' last element on
    steps           from window to window, at most 8
    """

    first: tuple[int, ...] = ()
    last: tuple[int, ...] = ()
    steps: tuple[int, ...] = ()

    CORNERS: ClassVar = {
        1: 2**15,
        2: 2**7,
        3: 2**4,
    }  # that `first` and `last` are within, by the number of axes

    def __post_init__(self) -> None:
        axes = len(self.first)
        assert 3 <= len(self.extents) == len(self.pitches) + 1 == axes + 2 <= 5 and len(self.box) == 2, self
        assert len(self.last) == len(self.steps) == axes and all(1 <= n <= 8 for n in self.steps), self
        assert all(-self.CORNERS[axes] <= n < self.CORNERS[axes] for n in (*self.first, *self.last)), self
        assert (
            all(1 <= e <= 2**32 for e in self.extents)
            and 1 <= self.box[0] <= 256
            and 1 <= self.box[1] <= 1024
        ), self
        assert all(p % 16 == 0 and 0 < p < 2**40 for p in self.pitches), self
        assert self.swizzle in (32, 64, 128) and self.box[0] * self.itemsize == self.swizzle, self


@dataclass(frozen=True)
class Table:
    """Pointer to numbers in device memory, 64 bits each, pointers among them: for what does not fit a kernel's parameters.

    Filled when a launch is bound, and kept as long as it is. For regions of several ops only: a call of one op binds nothing.
    Its pointers are to where tensors start.
    """

    entries: tuple[In | Out | Num, ...]


Arg = (
    In | Out | Work | Num | TensorMap | Table | tuple
)  # a tuple of Args becomes a tuple argument of the kernel


@dataclass(frozen=True)
class Launch:
    """One kernel launch. `body` is a Python function that numba.cuda compiles for the arguments' types.

    grid     of blocks
    shared   dynamic shared memory in bytes
    cluster  blocks that run together and share memory, neighbours in the grid, whose first extent is a multiple (sm_90)
    """

    body: Callable[..., None]
    grid: tuple[int, ...]
    block: tuple[int, ...]
    args: tuple[Arg, ...]
    shared: int = 0
    cluster: int = 1


@dataclass(frozen=True)
class HostCall:
    """Work of the CPU device: `function(operands, results)` over NumPy arrays, filling the results.

    bind  `bind(operands, results)` is the same as a call that can be made many times, on the same arrays: what is found out
          of them once, such as their pointers, is not found out in each run
    """

    function: Callable[[list[Any], list[Any]], None]
    bind: Callable[[list[Any], list[Any]], Callable[[], None]] = field(default=None)  # type: ignore[assignment]

    def __post_init__(self) -> None:
        if self.bind is None:
            object.__setattr__(self, "bind", partial(partial, self.function))

    @classmethod
    def binding(cls, bind: Callable[[list[Any], list[Any]], Callable[[], None]]) -> HostCall:
        """By `bind` alone."""
        return cls(lambda operands, results: bind(operands, results)(), bind)


@dataclass(frozen=True)
class Collective:
    """What all ranks do together with the result's memory, where the operand is: see device/collectives.py (Exchanged)."""

    kind: str
    ranks: int
    mean: bool = False
    root: int = 0


Built = list[Launch] | HostCall | Collective
