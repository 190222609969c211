"""Dropout: one Philox counter per four neighbours, whose mask is never stored."""

from __future__ import annotations

import functools
from collections.abc import Callable

import numpy as np

from ...ops.dropout import philox4x32
from ...types import DType, bool_, i64
from ..dsl import cuda, device, float32
from ..tiles.element import getter, putter
from ..tiles.tile import put_run, runs

philox = device(philox4x32)


def _drop(value, word, threshold, scale):
    return value * scale if np.int64(word) >= threshold else float32(0)


@functools.cache
def dropout(dtype: DType, vector: bool) -> Callable[..., None]:
    """y[i] = x[i] * scale where its random word is at least the threshold, else 0; four elements per thread and step.

    vector  whole groups in one load and one store; x and y are aligned to them
    All of a group is read before it is written, so y may take over x's memory.
    """
    state, get, put, drop = getter(i64), getter(dtype), putter(dtype), device(_drop)
    load, store = runs(dtype, 1, 4, _start), put_run(dtype, 4)

    def kernel(x, rng, y, n, threshold, scale, layer):
        key, number = np.uint64(state(rng, 0)), np.uint32(state(rng, 1))
        step = np.int64(cuda.gridDim.x) * cuda.blockDim.x * 4
        i = (np.int64(cuda.blockIdx.x) * cuda.blockDim.x + cuda.threadIdx.x) * 4
        while i < n:
            group = np.uint64(i >> 2)
            w0, w1, w2, w3 = philox(
                np.uint32(group), np.uint32(group >> np.uint64(32)), number, np.uint32(layer),
                np.uint32(key), np.uint32(key >> np.uint64(32)),
            )  # fmt: skip
            if vector and i + 4 <= n:
                v = load(x, (i,))
                a, b = drop(v[0], w0, threshold, scale), drop(v[1], w1, threshold, scale)
                c, d = drop(v[2], w2, threshold, scale), drop(v[3], w3, threshold, scale)
                store(y, i, (a, b, c, d))
            else:
                put(y, i, drop(get(x, i), w0, threshold, scale))
                if i + 1 < n:
                    put(y, i + 1, drop(get(x, i + 1), w1, threshold, scale))
                if i + 2 < n:
                    put(y, i + 2, drop(get(x, i + 2), w2, threshold, scale))
                if i + 3 < n:
                    put(y, i + 3, drop(get(x, i + 3), w3, threshold, scale))
            i += step

    kernel.__name__ = f"dropout_{'vector' if vector else 'flat'}_{dtype}"
    return kernel


def _start(i, env):
    return env[0]


state, put_state, get_flag = getter(i64), putter(i64), getter(bool_)


def rng_advance(rng, valid, out):
    """(key, step) to (key, step + 1) if valid, by one thread; out may be rng."""
    key, number = state(rng, 0), state(rng, 1)
    put_state(out, 0, key)
    put_state(out, 1, number + 1 if get_flag(valid, 0) else number)
