"""Loops that numba compiles for the host, from the same scalar functions as the CUDA kernels. Imported by `build` only."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, lru_cache
from typing import Any

import numba
import numpy as np

from ..ops.dropout import philox4x32

# error_model="numpy": division by zero gives Inf or NaN, as on the GPU; no fastmath: NaN and Inf mean something
_jit = numba.njit(error_model="numpy", nogil=True)


@cache
def _load(count: int) -> Callable[..., Any]:
    """Element i of each array as a tuple. Recursive, so that it unrolls."""
    if count == 0:
        return _jit(lambda arrays, i: ())
    rest, k = _load(count - 1), count - 1

    @_jit
    def load(arrays, i):
        return rest(arrays, i) + (arrays[k][i],)

    return load


@cache
def _merge(scalars: tuple[bool, ...]) -> Callable[..., Any]:
    """The operands of one element in order: from `fixed` where an operand is a single element, else from `moving`."""
    if not scalars:
        return _jit(lambda fixed, moving: ())
    rest, one, k = _merge(scalars[:-1]), scalars[-1], scalars[:-1].count(scalars[-1])

    if one:
        return _jit(lambda fixed, moving: rest(fixed, moving) + (fixed[k],))
    return _jit(lambda fixed, moving: rest(fixed, moving) + (moving[k],))


@cache
def _store(count: int) -> Callable[..., Any]:
    k = count - 1
    if k == 0:

        @_jit
        def first(arrays, i, values):
            arrays[0][i] = values[0]

        return first
    rest = _store(k)

    @_jit
    def store(arrays, i, values):
        rest(arrays, i, values)
        arrays[k][i] = values[k]

    return store


def _cached(make: Callable[..., Any]) -> Callable[..., Any]:
    """Keep what is made for (scalar, constants, …). Constants count by their bits: 0.0 == -0.0, but their loops differ."""

    @lru_cache(maxsize=512)
    def kept(bits: tuple[bytes, ...], *what: Any) -> Any:
        return make(*what)

    def find(scalar: Callable[..., Any] | None, constants: tuple[Any, ...], *more: Any) -> Any:
        return kept(tuple(np.asarray(c).tobytes() for c in constants), scalar, constants, *more)

    return find


@_cached
def elementwise(
    scalar: Callable[..., Any], constants: tuple[Any, ...], scalars: tuple[bool, ...], results: int
):
    """loop(fixed, moving, results): tuples of flat arrays, single elements apart from those that are walked.

    Single elements are read once, before the loop: the compiler can't, as results may alias operands. Every operand of an
    element is read before a result is written.
    """
    body, merge, store = _jit(scalar), _merge(scalars), _store(results)
    load_fixed, load_moving = _load(sum(scalars)), _load(len(scalars) - sum(scalars))
    several = results > 1

    @_jit
    def loop(fixed, moving, targets):
        if targets[0].size == 0:
            return
        once = load_fixed(fixed, 0)
        for i in range(targets[0].size):
            values = body(*(merge(once, load_moving(moving, i)) + constants))
            store(targets, i, values if several else (values,))

    return loop


@_cached
def gemm_epilogue(scalar: Callable[..., Any] | None, constants: tuple[Any, ...], keep_z: bool, per_m: bool):
    """loop(d, bias, z): d = act(d + bias) in place, with the sum kept in z if asked. bias has length N, M or 1."""
    body = _jit(scalar) if scalar is not None else None

    @_jit
    def loop(d, bias, z):
        m, n = d.shape
        scale = 1 if bias.size > 1 else 0
        for i in range(m):
            for j in range(n):
                v = d[i, j] + bias[(i if per_m else j) * scale]
                if keep_z:
                    z[i, j] = v
                if body is not None:
                    v = body(*((v,) + constants))
                d[i, j] = v

    return loop


@cache
def dropout() -> Callable[..., Any]:
    """loop(x, rng, y, threshold, scale, layer): y[i] = x[i] * scale where its random word is at least the threshold."""
    philox, word = _jit(philox4x32), np.uint64(32)

    @_jit
    def loop(x, rng, y, threshold, scale, layer):
        key, step = np.uint64(rng[0]), np.uint32(rng[1])
        for group in range((x.size + 3) // 4):
            high = np.uint32(np.uint64(group) >> word)
            words = philox(
                np.uint32(group), high, step, np.uint32(layer), np.uint32(key), np.uint32(key >> word)
            )
            for j in range(min(4, x.size - 4 * group)):
                i = 4 * group + j
                y[i] = x[i] * scale if np.int64(words[j]) >= threshold else np.float32(0)

    return loop
