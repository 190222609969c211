"""Products with weights of 8 and 4 bits, for the tests of their kernels."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from kernel_cases import Operands, desc, fused

from aicf.rows import RegionSpec
from aicf.types import DType, bf16, f16, f32, i8, u8

CODES = "cuda.gemv_codes.v1"


def coded(m: int, n: int, k: int, bits: int = 4, group: int = 0, *then, dtype: DType = bf16, scale: DType = f32, given=(), keep=()) -> RegionSpec:  # fmt: skip
    """x, codes and scales; a group is all of k unless it is said; and ops that follow y."""
    stored, row = (i8, k) if bits == 8 else (u8, k // 2)
    pitch = -(-row // 16) * 16
    operands = {
        "x": desc((m, k), dtype), "w": desc((n, row), stored, (pitch, 1), 256), "scale": desc((n, k // (group or k)), scale), **dict(given),
    }  # fmt: skip
    return fused(operands, ("y", "gemm_codes", "x", "w", "scale", {"bits": bits}), *then, keep=keep)


def biased(m: int, n: int, k: int, bits: int = 4, group: int = 0, dtype: DType = bf16) -> RegionSpec:
    """A bias, an activation and a residual behind it."""
    given = {"row": desc((n,), dtype), "r": desc((m, n), dtype)}
    then = ("z", "bias_add", "y", "row"), ("a", "silu", "z"), ("d", "mul", "a", "r")
    return coded(m, n, k, bits, group, *then, dtype=dtype, given=given)


# one line and many, edges of both, one step of a warp and none for some warps, groups longer than a step, as long, shorter
SIZES = [
    (1, 16, 128, 0), (1, 40, 4096, 128), (3, 33, 1024, 256), (8, 17, 160, 32), (9, 50, 1280, 64), (16, 100, 1152, 128), (2, 16, 32, 0), (5, 48, 6400, 0),
]  # fmt: skip


def operands_of(r: RegionSpec, seed: int) -> Operands:
    """Every code; numbers near 1."""
    rng, made = np.random.default_rng(seed), Operands()
    for d in r.operands:
        if d.dtype in (i8, u8):
            info = np.iinfo(d.dtype.numpy)
            values = rng.integers(info.min, info.max, d.shape, endpoint=True)
        else:
            values = rng.uniform(0.001, 0.01, d.shape) if d.dtype is f32 else rng.normal(size=d.shape)
        memory = np.zeros(1 + sum((e - 1) * s for e, s in zip(d.shape, d.stride)), d.dtype.numpy)
        view = np.ndarray(d.shape, d.dtype.numpy, memory, strides=[s * d.dtype.itemsize for s in d.stride])
        view[...] = values
        made.memory.append(memory)
        made.arrays.append(view.copy())
    return made


def exactly(r: RegionSpec, arrays: Sequence[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """(The product in f64, of codes as they are packed; the sum of what it is made of, for a bound of its error)"""
    x, w, scale = arrays[:3]
    if r.attrs["bits"] == 4:
        codes = np.empty((w.shape[0], 2 * w.shape[1]), np.int64)
        codes[:, 0::2], codes[:, 1::2] = w % 16, w // 16
        codes -= 8
    else:
        codes = w.astype(np.int64)
    group = codes.shape[1] // scale.shape[1]
    wide = codes * scale[:, np.arange(codes.shape[1]) // group].astype(np.float64)
    x = x.astype(np.float64)
    return x @ wide.T, np.abs(x) @ np.abs(wide).T


def assert_near(r: RegionSpec, got: Sequence[np.ndarray], arrays: Sequence[np.ndarray]) -> None:
    """Of a region of the product alone, or of `biased`: within half a unit of x's type for each weight, and one of the result."""
    want, most = exactly(r, arrays)
    unit = {f16: 2.0**-11, bf16: 2.0**-8}[r.operands[0].dtype]
    if len(r.ops) > 1:
        row, residual = (a.astype(np.float64) for a in arrays[3:])
        z = want + row
        want = z / (1 + np.exp(-z)) * residual
        most = (most + np.abs(row)) * 1.2 * np.abs(residual)
    (y,) = got
    assert y.shape == want.shape
    error = np.abs(y.astype(np.float64) - want)
    bound = unit * (np.abs(want) + most / np.sqrt(max(1, r.operands[0].shape[1])) * 8) + 1e-6
    assert (error <= bound).all(), (str(r), float((error / bound).max()))
