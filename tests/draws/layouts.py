"""Arrays in drawn layouts: the memory, where an array starts in it, and its strides."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.lib.stride_tricks import as_strided

from aicf.types import DType, TensorDesc, pointer_alignment, row_major

LAYOUTS = "dense", "offset", "transposed", "padded", "stepped", "expanded"
GUARD = 64  # elements of a result's memory before and after it


@dataclass(frozen=True)
class Laid:
    """An array in one-dimensional memory. Start and strides are in elements."""

    memory: np.ndarray
    start: int
    shape: tuple[int, ...]
    stride: tuple[int, ...]

    @property
    def array(self) -> np.ndarray:
        item = self.memory.itemsize
        plain = self.memory.view(f"u{item}")[self.start :]  # as_strided does not know fp8
        return as_strided(plain, self.shape, [s * item for s in self.stride]).view(self.memory.dtype)

    def desc(self, device: str) -> TensorDesc:
        """The descriptor of the array, with the memory at a multiple of 256 bytes."""
        alignment = pointer_alignment(self.start * self.memory.itemsize)
        return TensorDesc(DType.of(self.memory.dtype), self.shape, self.stride, device, alignment)


def extent(shape: tuple[int, ...], stride: tuple[int, ...]) -> int:
    """Elements from the first to the last."""
    return 0 if 0 in shape else 1 + sum((d - 1) * s for d, s in zip(shape, stride))


def strides(shape: tuple[int, ...], layout: str) -> tuple[int, ...]:
    """Strides of a layout, in elements."""
    if layout == "transposed":
        return row_major(shape[::-1])[::-1]
    if layout == "padded" and shape:
        return row_major((*shape[:-1], shape[-1] + 3))
    if layout == "stepped" and shape:
        return tuple(2 * s for s in row_major(shape))
    if layout == "expanded" and shape:
        return (0, *row_major(shape)[1:])
    return row_major(shape)


def laid(values: np.ndarray, layout: str) -> Laid:
    """An array's values in a layout; of an expanded one the first row in the place of all."""
    stride = strides(values.shape, layout)
    start = 1 if layout == "offset" else 0
    made = Laid(np.zeros(start + extent(values.shape, stride), values.dtype), start, values.shape, stride)
    if layout == "expanded" and values.ndim and values.shape[0] > 1:
        values = np.broadcast_to(values[:1], values.shape)
        Laid(made.memory, start, (1, *values.shape[1:]), stride).array[...] = values[:1]
    elif values.size:
        made.array[...] = values
    return made


def poisoned(shape: tuple[int, ...], dtype: DType, layout: str = "dense") -> Laid:
    """Memory for a result, every byte 0xFF: NaN in every float type, -1 in signed integers."""
    stride = strides(shape, layout)
    start = GUARD + (layout == "offset")
    memory = np.full((start + extent(shape, stride) + GUARD) * dtype.itemsize, 0xFF, np.uint8)
    return Laid(memory.view(dtype.numpy), start, shape, stride)


def strayed(result: Laid) -> bool:
    """Whether anything was written to a result's memory outside of its elements."""
    outside = np.ones(result.memory.size, bool)
    Laid(outside, result.start, result.shape, result.stride).array[...] = False
    item = result.memory.itemsize
    return bool((result.memory.view(np.uint8).reshape(-1, item)[outside] != 0xFF).any())
