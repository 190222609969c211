"""Whether tensors share memory, from descriptors and the distance of their pointers; nothing is read."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..types import TensorDesc

WORK = 100_000  # steps of NumPy's exact search; what takes more counts as overlapping


def extent(desc: TensorDesc) -> tuple[int, int]:
    """First byte, and first byte behind, counted from the pointer."""
    if desc.numel == 0:
        return 0, 0
    steps = [(d - 1) * s for d, s in zip(desc.shape, desc.stride)]
    low, high = sum(min(s, 0) for s in steps), sum(max(s, 0) for s in steps)
    return low * desc.dtype.itemsize, (high + 1) * desc.dtype.itemsize


def distances(a: TensorDesc, b: TensorDesc) -> tuple[int, int]:
    """The extents of a and b meet where `low < pointer of a - pointer of b < high`; never, if one is empty."""
    (a_low, a_high), (b_low, b_high) = extent(a), extent(b)
    return (0, 0) if a_low == a_high or b_low == b_high else (b_low - a_high, b_high - a_low)


def share(a: TensorDesc, b: TensorDesc, distance: int) -> bool:
    """Whether some byte belongs to both; `distance` is a's pointer minus b's. Interleaved columns share none."""
    base = 1 << 46
    try:
        return bool(np.shares_memory(_phantom(a, base + distance), _phantom(b, base), max_work=WORK))  # type: ignore[arg-type]
    except np.exceptions.TooHardError:
        return True


def overlaps_itself(desc: TensorDesc) -> bool:
    """Whether two elements may share memory, as in an expanded tensor. Exact for all but contrived strides."""
    reach = 1
    for stride, size in sorted((abs(s), d) for s, d in zip(desc.stride, desc.shape) if d > 1):
        if stride < reach:
            return desc.numel > 0
        reach = stride * (size - 1) + reach
    return False


class _Phantom:
    """Memory that is nowhere, for NumPy to reason about."""

    def __init__(self, interface: dict[str, Any]) -> None:
        self.__array_interface__ = interface


def _phantom(desc: TensorDesc, pointer: int) -> np.ndarray:
    size = desc.dtype.itemsize
    return np.asarray(_Phantom({
        "version": 3, "data": (pointer, True), "typestr": f"|V{size}", "shape": desc.shape,
        "strides": tuple(s * size for s in desc.stride),
    }))  # fmt: skip
