"""PyTorch's tensors as aicf sees them: element types, sizes, and how dense memory lies behind strides."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from ...types import DType, TensorSpec, row_major

DTYPES: dict[torch.dtype, DType] = {
    getattr(torch, d.numpy.name): d
    for d in DType
    if isinstance(getattr(torch, d.numpy.name, None), torch.dtype)
}
TORCH = {dtype: found for found, dtype in DTYPES.items()}

Concrete = Callable[[Any], int]  # a size that may be symbolic, as a number


class Unsupported(Exception):
    """Why an op is left to PyTorch: a short reason that reports count by."""


def hinted(size: Any) -> int:
    """A symbolic size as the number that it was traced with."""
    if isinstance(size, int):
        return size
    hint = size.node.hint
    if hint is None:
        raise Unsupported("a size is known only when it runs")
    return int(hint)


def dtype_of(dtype: torch.dtype) -> DType:
    found = DTYPES.get(dtype)
    if found is None:
        raise Unsupported(f"element type {str(dtype).removeprefix('torch.')}")
    return found


def spec_of(tensor: Any, device: str = "cpu") -> TensorSpec:
    """The type of a tensor, fake or real; of symbolic sizes those that it was traced with."""
    return TensorSpec(tuple(hinted(n) for n in tensor.shape), dtype_of(tensor.dtype), device)


@dataclass(frozen=True)
class TorchLayout:
    """How a tensor lies in memory, as a dense one: its axes in `order`, from the slowest; those in `repeated` have no memory of their
    own and lie outside of it.

    dense    the shape of that dense tensor
    """

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    order: tuple[int, ...]
    repeated: tuple[int, ...]

    @property
    def dense(self) -> tuple[int, ...]:
        return tuple(self.shape[axis] for axis in self.order)

    @property
    def plain(self) -> bool:
        """Whether it is row-major as it is."""
        return not self.repeated and self.order == tuple(range(len(self.shape)))


def layout_of(tensor: Any) -> TorchLayout:
    """The layout of a tensor; where its memory is not dense, that of a dense copy: row-major."""
    shape = tuple(hinted(n) for n in tensor.shape)
    stride = tuple(hinted(n) for n in tensor.stride())
    plain = TorchLayout(shape, row_major(shape), tuple(range(len(shape))), ())
    if not all(shape):
        return plain
    if _same(shape, stride, plain.stride):
        return replace(plain, stride=stride)
    repeated = tuple(axis for axis, (n, s) in enumerate(zip(shape, stride)) if s == 0 and n > 1)
    own = [axis for axis in range(len(shape)) if axis not in repeated]
    order = tuple(sorted(own, key=lambda axis: (-stride[axis], axis) if shape[axis] > 1 else (0, axis)))
    dense = row_major(tuple(shape[axis] for axis in order))
    if not _same([shape[axis] for axis in order], [stride[axis] for axis in order], dense):
        return plain
    return TorchLayout(
        shape, stride, order, repeated
    )  # also of axes of one element: PyTorch tells channels last by them


def is_dense(tensor: Any) -> bool:
    """Whether a tensor lies as `layout_of` says, each element in a place of its own."""
    layout = layout_of(tensor)
    return not layout.repeated and layout.stride == tuple(hinted(n) for n in tensor.stride())


def may_overlap(size: Sequence[int], stride: Sequence[int]) -> bool:
    """Whether two elements may share memory: an axis does not step over all that the faster ones reach."""
    reach = 0
    for step, n in sorted((step, n) for step, n in zip(stride, size) if n > 1):
        if step <= reach:
            return True
        reach += (n - 1) * step
    return False


def _same(shape: Sequence[int], stride: Sequence[int], wanted: Sequence[int]) -> bool:
    """Equal strides, but of axes of one element, which have none."""
    return all(n == 1 or s == w for n, s, w in zip(shape, stride, wanted))


def brief(value: Any) -> str:
    """`f32[32x64] on cpu`, with strides where they are not those of rows; of what is no tensor its text. Asks nothing of symbolic sizes."""
    if not isinstance(value, torch.Tensor):
        return str(value)
    shape, stride = tuple(value.shape), tuple(value.stride()) if value.layout is torch.strided else ()
    known = all(type(n) is int for n in (*shape, *stride))
    dtype = DTYPES.get(value.dtype, value.dtype)
    text = f"{dtype}[{'x'.join(map(str, shape))}] on {value.device}"
    return f"{text}, strides {stride}" if known and stride != row_major(shape) and value.numel() else text
