"""Rows of a product at other places: the same rows in another order, alone, and among others."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from kernel_cases import Case, Operands, gemm, operands_for

from aicf.types import DType

Runner = Callable[..., list[list[np.ndarray]]]  # (case, *operands): results of each


def rows_of(case: Case, operands: Operands) -> np.ndarray:
    """A view of the first operand whose first axis is the result's rows."""
    a = operands.arrays[0]
    return a.T if case.region.attrs.get("trans_a") else a


def reordered(case: Case, order: Sequence[int], seed: int) -> Operands:
    """Operands as of this seed, but for the order of their rows."""
    made = operands_for(case, seed)
    rows = rows_of(case, made)
    rows[...] = rows[np.asarray(order)].copy()
    return made


def moved_rows(case: Case, run: Runner, draw: np.random.Generator) -> list[int]:
    """Rows whose bits change when all rows are reordered."""
    seed, m = int(draw.integers(2**32)), case.region.results[0].shape[0]
    order = draw.permutation(m)
    (first, *_), (second, *_) = run(case, operands_for(case, seed), reordered(case, order, seed))
    return [int(i) for n, i in enumerate(order) if first[i].tobytes() != second[n].tobytes()]


def drawn_gemm(
    draw: np.random.Generator, dtypes: Sequence[DType], m: Sequence[int], n: Sequence[int], k: Sequence[int]
):
    """A product with drawn layouts and type, and sizes from the ranges; half of n and k are multiples of 8."""
    m, n, k = (int(draw.integers(*size)) for size in (m, n, k))
    n, k = (size // 8 * 8 if size > 8 and draw.random() < 0.5 else size for size in (n, k))
    dtype = dtypes[draw.integers(len(dtypes))]
    return gemm(m, n, k, dtype=dtype, trans_a=bool(draw.random() < 0.3), trans_b=bool(draw.random() < 0.6))
