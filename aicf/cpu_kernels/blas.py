"""BLAS on as many threads as a product is worth.

A product of a hundred microseconds gains little from a second thread, and where the cores are busy it waits for that thread
until the system schedules it: milliseconds. So the number of threads grows with the work, by nothing but the size. A product's bits
depend on that number (OpenBLAS divides the product by it), so calls of several Python threads run at once only if theirs is the same:
equal calls have equal results, whatever runs at the same time. What other code of the process sees is unchanged once the call is over.
"""

from __future__ import annotations

import threading
from functools import cache
from itertools import product
from math import prod
from typing import Any

import numpy as np

ALONE_FLOPS = 2 * 64**3  # OpenBLAS itself starts no thread for less
THREAD_FLOPS = 25e6  # of each thread: a third of a millisecond of a core


def threads_for(flops: float) -> int | None:
    """The most threads for a product of so many flops; None where BLAS decides well by itself."""
    return None if flops <= ALONE_FLOPS else max(1, int(flops / THREAD_FLOPS))


class _Limit:
    """The number of threads of BLAS while a product is computed; calls that need another number wait, later ones after them."""

    def __init__(self) -> None:
        self.door, self.changed = threading.Lock(), threading.Condition()
        self.inside, self.before, self.now = 0, [0], [0]

    def enter(self, most: int) -> None:
        """Set at most so many threads, once no call with another number is inside."""
        with self.door, self.changed:
            while True:
                if not self.inside:
                    self.before = self.now = [library.get_num_threads() or 1 for library in _libraries()]
                wanted = [min(n, most) for n in self.before]
                if not self.inside or wanted == self.now:
                    break
                self.changed.wait()
            self._set(wanted)
            self.inside += 1

    def leave(self) -> None:
        with self.changed:
            self.inside -= 1
            if self.inside == 0:
                self._set(self.before)
                self.changed.notify_all()

    def _set(self, wanted: list[int]) -> None:
        for library, new, old in zip(_libraries(), wanted, self.now):
            if new != old:
                library.set_num_threads(new)
        self.now = wanted


_LIMIT = _Limit()


@cache
def _libraries() -> tuple[Any, ...]:
    """NumPy's BLAS, as threadpoolctl knows it; where NumPy brings none of its own, all that are loaded."""
    from threadpoolctl import ThreadpoolController

    loaded = ThreadpoolController().select(user_api="blas").lib_controllers
    own = tuple(library for library in loaded if "numpy" in (library.filepath or ""))
    return own or tuple(loaded)


SLICE = 2048  # of k: BLAS multiplies matrices in blocks of k, but vectors element after element, so that their error grows with k


def matmul(a: np.ndarray, b: np.ndarray, out: np.ndarray | None, most: int | None) -> np.ndarray:
    """`np.matmul`, on at most so many threads; without NumPy's warnings of overflow. Where a factor is a vector, slices of k are
    added up in f64."""
    if most is not None:
        _LIMIT.enter(most)
    try:
        with np.errstate(all="ignore"):
            if a.shape[-1] > SLICE and 1 in (a.shape[-2], b.shape[-1]):
                return _by_slices(a, b, out)
            return np.matmul(a, b, out=out)
    finally:
        if most is not None:
            _LIMIT.leave()


def _by_slices(a: np.ndarray, b: np.ndarray, out: np.ndarray | None) -> np.ndarray:
    total = np.zeros((*np.broadcast_shapes(a.shape[:-2], b.shape[:-2]), a.shape[-2], b.shape[-1]))
    for k in range(0, a.shape[-1], SLICE):
        total += np.matmul(a[..., k : k + SLICE], b[..., k : k + SLICE, :])
    if out is None:
        return total.astype(np.float32)
    out[...] = total
    return out


# --- blocks of rows -----------------------------------------------------------------------------------------------------

BLOCK_ROWS = 16  # a tile of most of OpenBLAS' kernels; of 32 and 64 rows, rows of different tiles have different bits on Haswell


def matmul_in_blocks(
    a: np.ndarray, b: np.ndarray, out: np.ndarray | None, most: int | None, rows: int = BLOCK_ROWS
) -> np.ndarray:
    """`a @ b`, one call of BLAS for each block of so many rows, the last one padded with zeros: each call has one shape, whatever the number
    of rows is. It computes b^T a^T: rows are then the elements of vectors, which all have one order of sums. As a b they are columns
    of BLAS' matrices, and Haswell's kernel adds up the columns of a block in three different orders."""
    lead, m, (k, n) = np.broadcast_shapes(a.shape[:-2], b.shape[:-2]), a.shape[-2], b.shape[-2:]
    apart = (
        out is not None and out.flags.c_contiguous and not any(np.may_share_memory(out, x) for x in (a, b))
    )
    whole: np.ndarray = out if out is not None and apart else np.empty((*lead, m, n), np.float32)
    by_rows = whole
    if all(size == 1 for size in b.shape[:-2]):  # all matrices share blocks
        m *= prod(lead)
        a, b, by_rows = a.reshape(m, k), b.reshape(k, n), whole.reshape(m, n)
    left = b.swapaxes(-1, -2)
    if (
        min(k, n) == 1
    ):  # of vectors NumPy and BLAS have other kernels, and NumPy knows vectors by their strides
        left = np.repeat(left, 2, axis=-2) if n == 1 else np.ascontiguousarray(left)
    block = np.empty((*a.shape[:-2], k, rows), np.float32)
    made = np.empty((*by_rows.shape[:-2], left.shape[-2], rows), np.float32)
    if most is not None:
        _LIMIT.enter(most)
    try:
        with np.errstate(all="ignore"):
            for first in range(0, m if whole.size else 0, rows):
                size = min(rows, m - first)
                block[..., :size] = a[..., first : first + size, :].swapaxes(-1, -2)
                block[..., size:] = 0
                np.matmul(left, block, out=made)
                by_rows[..., first : first + size, :] = made[..., :n, :size].swapaxes(-1, -2)
    finally:
        if most is not None:
            _LIMIT.leave()
    if out is None or out is whole:
        return whole
    out[...] = whole
    return out


@cache
def blocks_differ(rows: int = BLOCK_ROWS) -> str:
    """The BLAS and the first shape for which equal rows of one block have different bits; "" where all have equal ones: short and long
    sums, few and many columns, both layouts, on both sides of the size below which BLAS has other kernels."""
    draw = np.random.default_rng(0)
    for k, n, transposed in product((1, 3, 21, 64, 347), (1, 2, 5, 17, 40, 260), (False, True)):
        a = np.repeat(draw.standard_normal((1, k), np.float32), rows, axis=0)
        b = draw.standard_normal((n, k) if transposed else (k, n), np.float32)
        b = b.T if transposed else b
        bits = matmul_in_blocks(a, b, None, threads_for(2 * rows * n * k), rows).view(np.uint32)
        if (bits != bits[0]).any():
            names = sorted({f"{library.internal_api} for {library.architecture}" for library in _libraries()})
            return f"{' and '.join(names) or 'BLAS'}, {rows} x {n} x {k}"
    return ""
