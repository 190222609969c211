"""The same values in every layout that memory can have."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np


def dense(a: np.ndarray) -> np.ndarray:
    return a.copy()


def offset(a: np.ndarray) -> np.ndarray:
    """Dense, one element behind an aligned address."""
    flat = np.zeros(a.size + 1 + 64 // a.itemsize, a.dtype)
    start = (-flat.__array_interface__["data"][0] % 64) // a.itemsize + 1
    view = flat[start : start + a.size].reshape(a.shape)
    view[...] = a
    return view


def unaligned(a: np.ndarray) -> np.ndarray:
    """Dense, at an odd address."""
    raw = np.zeros(a.nbytes + 64, np.uint8)
    start = -raw.__array_interface__["data"][0] % 64 + 1
    view = raw[start : start + a.nbytes].view(a.dtype).reshape(a.shape)
    view[...] = a
    return view


def padded(a: np.ndarray) -> np.ndarray:
    """Every second element of rows that are longer."""
    if a.ndim == 0:
        return dense(a)
    view = np.zeros((*a.shape[:-1], 2 * a.shape[-1] + 3), a.dtype)[..., 1 : 2 * a.shape[-1] + 1 : 2]
    view[...] = a
    return view


def columns(a: np.ndarray) -> np.ndarray:
    """Column-major."""
    return np.asfortranarray(a) if a.ndim > 1 else dense(a)


def backwards(a: np.ndarray) -> np.ndarray:
    """Every axis reversed."""
    return np.flip(np.flip(a).copy()) if a.ndim else dense(a)


LAYOUTS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    f.__name__: f for f in (dense, offset, unaligned, padded, columns, backwards)
}
