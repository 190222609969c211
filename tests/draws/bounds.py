"""How far a correct kernel may be from an op's exact results: found by moving its operands, so it knows no op.

An op's reference runs in float64. Rounding inside a kernel acts as small relative changes of the operands do; how far the results
move under a few random ones, times a factor, is what a kernel may be off, beside the rounding of the results themselves.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import ml_dtypes
import numpy as np

from aicf.types import DType, Precision

Reference = Callable[[list[np.ndarray | None]], Sequence[np.ndarray]]
MOVES, FACTOR = 4, 8.0
F32_MAX = float(np.finfo(np.float32).max)
EPSILON = {DType.f32: 2.0**-22, DType.f64: 2.0**-50}


def epsilon(dtypes: Sequence[DType | None], attrs: dict, loose: bool) -> float:
    """The relative change that stands for a kernel's rounding: of its compute type, of TF32 where that is allowed, and, if loose, of
    halves, in which tensor cores take intermediate values."""
    if Precision.tf32 in [v for v in attrs.values() if isinstance(v, Precision)]:
        return 2.0**-10
    floats = [t for t in dtypes if t is not None and t.kind == "float"]
    if floats and all(t is DType.f64 for t in floats):
        return EPSILON[DType.f64]
    if loose and (narrow := [t for t in floats if t.itemsize == 2]):
        return max(float(ml_dtypes.finfo(t.numpy).eps) for t in narrow) / 4
    return EPSILON[DType.f32]


def bounds(
    reference: Reference, arrays: list[np.ndarray | None], exact: Sequence[np.ndarray], dtypes: Sequence[DType],
    eps: float, rng: np.random.Generator,
) -> list[np.ndarray]:  # fmt: skip
    """For each result how far each element may be from the exact one; infinite where a move turns it into no number.

    dtypes  element types of the results as they are stored
    """
    moved = [np.zeros(r.shape) for r in exact]
    for _ in range(MOVES):
        near = [a if a is None or a.dtype != np.float64 else _moved(a, eps, rng) for a in arrays]
        with np.errstate(all="ignore"):
            for n, (found, want) in enumerate(zip(reference(near), exact)):
                off = np.abs(_wide(found) - _wide(want))
                same = (_wide(found) == _wide(want)) | np.isnan(_wide(found)) & np.isnan(_wide(want))
                moved[n] = np.maximum(moved[n], np.where(same, 0.0, np.where(np.isnan(off), np.inf, off)))
    return [_stored(FACTOR * m, want, t, eps) for m, want, t in zip(moved, exact, dtypes)]


def _moved(a: np.ndarray, eps: float, rng: np.random.Generator) -> np.ndarray:
    with np.errstate(over="ignore"):
        return a * (1 + eps * rng.choice([-1.0, 1.0], a.shape))


def _wide(a: np.ndarray) -> np.ndarray:
    return a.astype(np.float64)


def _stored(moved: np.ndarray, want: np.ndarray, dtype: DType, eps: float) -> np.ndarray:
    """With the rounding of a result to its type."""
    if dtype.kind != "float":
        return moved
    info = ml_dtypes.finfo(dtype.numpy)
    with np.errstate(all="ignore"):
        own = (np.abs(want) + moved) * (float(info.eps) * 0.51 + FACTOR * eps)
    return moved + np.where(np.isfinite(want), own, 0.0) + float(info.smallest_subnormal)


def differs(got: np.ndarray, want: np.ndarray, allowed: np.ndarray, dtype: DType) -> np.ndarray:
    """Where a result is neither within its bound nor the same infinity or NaN."""
    if got.shape != want.shape:
        return np.ones(want.shape, bool)
    got, want = _wide(got), _wide(want)
    if dtype.kind == "float":
        largest = float(ml_dtypes.finfo(dtype.numpy).max)
        with np.errstate(all="ignore"):
            over = (
                (np.abs(want) + allowed > largest)
                & (np.isinf(got) | (np.abs(got) == largest))
                & (got * want > 0)
            )
            over |= (np.abs(want) > F32_MAX) & ~np.isfinite(got)  # a partial sum has overflown
    else:
        over = np.zeros(want.shape, bool)
    with np.errstate(all="ignore"):
        same = (got == want) | (np.isnan(got) & np.isnan(want))
        return ~(same | over | (np.abs(got - want) <= allowed) | np.isinf(allowed))
