"""Products of 8-bit integers for the tests of their kernels."""

from __future__ import annotations

import numpy as np
from kernel_cases import Operands, desc, fused
from wgmma_cases import matrix

from aicf.rows import RegionSpec
from aicf.types import DType, bf16, f16, f32, i8, i32, u8

SIGNS = (i8, i8), (u8, i8), (i8, u8), (u8, u8)


def pitch(extent: int) -> int:
    """Bytes from row to row: whole sixteens."""
    return -(-extent // 16) * 16


def whole(
    m: int, n: int, k: int, types=(i8, i8), *then, ta=False, tb=True, keep=(), given=(), apart=pitch
) -> RegionSpec:
    """A product of integers, with i32 for a result, and ops that follow."""
    a, b = (k, m) if ta else (m, k), (n, k) if tb else (k, n)
    operands = {"a": matrix(*a, types[0], apart(a[1])), "b": matrix(*b, types[1], apart(b[1])), **dict(given)}
    attrs = {"trans_a": ta, "trans_b": tb}
    return fused(operands, ("y", "gemm", "a", "b", None, None, attrs), *then, keep=keep)


def scaled(m: int, n: int, k: int, types=(i8, i8), out: DType = bf16, **more) -> RegionSpec:
    """By a scale for each row and one for each column: what quantised activations and weights are."""
    given = {"s": desc((m, 1), f32), "t": desc((n,), f32)}
    then = (
        ("f", "convert", "y", {"dtype": f32.id}), ("g", "mul", "f", "s"), ("h", "mul", "g", "t"), ("r", "convert", "h", {"dtype": out.id}),
    )  # fmt: skip
    return whole(m, n, k, types, *(then[:-1] if out is f32 else then), given=given, **more)


def residual(m: int, n: int, k: int, types=(i8, i8), out: DType = f16, **more) -> RegionSpec:
    """As scaled, with a bias, an activation and a matrix added."""
    given = {
        "t": desc((n,), f32), "row": desc((n,), out),
        "x": desc((m, n), out),
    }  # fmt: skip
    then = (
        ("f", "convert", "y", {"dtype": f32.id}), ("g", "mul", "f", "t"), ("h", "convert", "g", {"dtype": out.id}),
        ("u", "bias_add", "h", "row"), ("v", "relu", "u"), ("d", "add", "x", "v"),
    )  # fmt: skip
    return whole(m, n, k, types, *then, given=given, **more)


def operands_of(r: RegionSpec, seed: int) -> Operands:
    """All of the range of 8-bit integers, its ends often; scales so that results are of a size with the floats."""
    rng, made = np.random.default_rng(seed), Operands()
    for d in r.operands:
        if d.dtype in (i8, u8):
            info = np.iinfo(d.dtype.numpy)
            values = rng.integers(info.min, info.max, d.shape, endpoint=True)
            ends = rng.random(d.shape) < 0.2
            values[ends] = rng.choice([info.min, info.max], int(ends.sum()))
        else:
            values = rng.uniform(-1, 1, d.shape) / (4096 if d.dtype is f32 else 1)
        memory = np.zeros(1 + sum((e - 1) * s for e, s in zip(d.shape, d.stride)), d.dtype.numpy)
        view = np.ndarray(d.shape, d.dtype.numpy, memory, strides=[s * d.dtype.itemsize for s in d.stride])
        view[...] = values
        made.memory.append(memory)
        made.arrays.append(view.copy())
    return made


def exactly(r: RegionSpec, arrays: list[np.ndarray]) -> list[np.ndarray]:
    """What a region makes, op by op as these cases have them, in i64 and f64: an oracle of their own."""
    values = dict(zip(r.inputs, arrays))
    for op in r.ops:
        a, *rest = [values[i] for i in op.inputs if i >= 0]
        if op.kind.name == "gemm":
            a, b = (x.astype(np.float64) for x in (a, rest[0]))  # exact to 2^53, and by BLAS
            a, b = (np.swapaxes(x, -1, -2) if op.attrs[t] else x for x, t in ((a, "trans_a"), (b, "trans_b")))
            made = (a @ b).astype(np.int64)
        elif op.kind.name == "convert":
            made = a.astype(np.float64)
        elif op.kind.name == "relu":
            made = np.maximum(a.astype(np.float64), 0)
        elif op.kind.name == "mul":
            made = a * rest[0].astype(np.float64)
        else:
            made = a.astype(np.float64) + rest[0].astype(np.float64)
        values[op.outputs[0]] = made
    return [values[i] for i in r.outputs]


def assert_exact(r: RegionSpec, got: list[np.ndarray], arrays: list[np.ndarray], rtol: float = 0.0) -> None:
    """i32 to the last bit, floats to that of their type."""
    for g, w, t in zip(got, exactly(r, arrays), r.results, strict=True):
        assert g.shape == t.shape and g.dtype == t.dtype.numpy
        if t.dtype is i32:
            np.testing.assert_array_equal(g, w.astype(np.int32))
        else:
            near = rtol or {f32: 1e-5, f16: 2e-3, bf16: 2e-2}[t.dtype]
            np.testing.assert_allclose(
                g.astype(np.float64), w, rtol=near, atol=near * float(np.abs(w).max(initial=1))
            )
