"""What a tensor says of itself, read as cheaply as its library allows: a key to what is known of tensors like it.

Two tensors that say the same differ in their memory alone. By exact class, as subclasses may be anything; a library's readers
are added when one of its tensors is first met.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import numpy as np

from ..types import pointer_alignment
from .tensor import Tensor

ALIGNMENT = tuple(pointer_alignment(p) for p in range(256))
UNREADABLE = (KeyError, TypeError, RuntimeError, NotImplementedError)  # another library's, or no plain tensor


def _none(tensor: None) -> tuple[Any, int]:
    return None, 0


def _numpy(array: np.ndarray) -> tuple[Any, int]:
    pointer, readonly = array.__array_interface__["data"]
    return (array.dtype, array.shape, array.strides, readonly, ALIGNMENT[pointer & 255]), pointer


def _aicf(tensor: Tensor) -> tuple[Any, int]:
    spec, pointer = tensor.spec, tensor.ptr
    return (spec.dtype.id, spec.shape, tensor.stride, tensor.runtime, ALIGNMENT[pointer & 255]), pointer


def _torch(tensor: Any) -> tuple[Any, int]:
    pointer = tensor.data_ptr()
    alignment = ALIGNMENT[pointer & 255]
    return (tensor.dtype, tensor.shape, tensor.stride(), tensor.device, tensor.is_neg(), alignment), pointer


def _cupy(array: Any) -> tuple[Any, int]:
    pointer, strides = array.data.ptr, array.strides
    alignment = ALIGNMENT[pointer & 255]
    # named, as NumPy's look alike
    return (array.dtype, array.shape, strides, array.device.id, alignment, "cupy"), pointer


READERS: dict[type, Callable[[Any], tuple[Any, int]]] = {type(None): _none, np.ndarray: _numpy, Tensor: _aicf}


def learn(tensor: Any, library: str) -> None:
    """Add the reader of a tensor's class, if its library has one."""
    module = sys.modules.get(library)
    if library == "torch" and type(tensor) in (module.Tensor, module.nn.Parameter):  # type: ignore[union-attr]
        READERS[type(tensor)] = _torch
    elif library == "cupy" and type(tensor) is module.ndarray:  # type: ignore[union-attr]
        READERS[type(tensor)] = _cupy


def remember(table: dict[Any, Any], key: Any, value: Any, limit: int) -> None:
    """Insert as the newest; the oldest entry goes when there are too many."""
    table[key] = value
    while len(table) > limit:
        try:
            del table[next(iter(table))]
        except (KeyError, RuntimeError):  # another thread was faster
            continue
