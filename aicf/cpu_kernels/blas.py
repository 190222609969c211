"""BLAS on as many threads as a product is worth.

A product of a hundred microseconds gains little from a second thread, and where the cores are busy it waits for that thread
until the system gives it its turn: milliseconds. So the number of threads grows with the work, by nothing but the size, and
equal calls have equal results. What other code of the process sees is unchanged once the call is over.
"""

from __future__ import annotations

import threading
from functools import cache
from typing import Any

import numpy as np

ALONE_FLOPS = 2 * 64**3  # OpenBLAS itself starts no thread for less
THREAD_FLOPS = 25e6  # of each thread: a third of a millisecond of a core


def threads_for(flops: float) -> int | None:
    """The most threads for a product of so many flops; None where BLAS decides well by itself."""
    return None if flops <= ALONE_FLOPS else max(1, int(flops / THREAD_FLOPS))


class _Limit:
    """Fewer threads for BLAS while something is inside, whichever threads of Python are; then what was there before."""

    def __init__(self) -> None:
        self.lock, self.inside, self.before = threading.Lock(), 0, [0]

    def enter(self, most: int) -> bool:
        """Whether there is something to leave."""
        libraries = _libraries()
        with self.lock:
            if self.inside == 0:
                self.before = [library.get_num_threads() or 1 for library in libraries]
                if all(n <= most for n in self.before):
                    return False
                for library, n in zip(libraries, self.before):
                    library.set_num_threads(min(n, most))
            self.inside += 1
        return True

    def leave(self) -> None:
        with self.lock:
            self.inside -= 1
            if self.inside == 0:
                for library, n in zip(_libraries(), self.before):
                    library.set_num_threads(n)


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
    limited = most is not None and _LIMIT.enter(most)
    try:
        with np.errstate(all="ignore"):
            if a.shape[-1] > SLICE and 1 in (a.shape[-2], b.shape[-1]):
                return _by_slices(a, b, out)
            return np.matmul(a, b, out=out)
    finally:
        if limited:
            _LIMIT.leave()


def _by_slices(a: np.ndarray, b: np.ndarray, out: np.ndarray | None) -> np.ndarray:
    total = np.zeros((*np.broadcast_shapes(a.shape[:-2], b.shape[:-2]), a.shape[-2], b.shape[-1]))
    for k in range(0, a.shape[-1], SLICE):
        total += np.matmul(a[..., k : k + SLICE], b[..., k : k + SLICE, :])
    if out is None:
        return total.astype(np.float32)
    out[...] = total
    return out
