"""Products with few rows or columns: regions and cases for the tests of their kernels."""

from __future__ import annotations

import itertools
from typing import Any

from fused_gemm_cases import Product, case_of, regions, residual
from kernel_cases import Case, desc, gemm, region

from aicf.rows import RegionSpec
from aicf.types import ActKind, DType, bf16, f16, f32

SIMT, MMA, WARPS = "cuda.gemv_simt.v2", "cuda.gemv_mma.v1", "cuda.gemv_warps.v1"
TYPES = (f32, f16, bf16)
TRANSPOSES = [{"trans_a": ta, "trans_b": tb} for ta in (False, True) for tb in (False, True)]


def strided(dtype: DType) -> list[RegionSpec]:
    """Rows further apart than they are long; columns apart; a vector with a step; both strides over one."""

    def of(a: Any, b: Any) -> RegionSpec:
        return region("gemm", desc(a[0], dtype, a[1]), desc(b[0], dtype, b[1]), None, None)

    return [
        of(((3, 40), (48, 1)), ((40, 24), (32, 1))),
        of(((3, 40), (1, 5)), ((40, 24), (1, 48))),
        of(((1, 40), (1, 1)), ((40, 9), (27, 3))),
        of(((24, 40), (81, 2)), ((40, 2), (5, 2))),
    ]  # fmt: skip


def plain(dtype: DType) -> list[RegionSpec]:
    """Every layout of both operands, few rows and few columns, whole runs and ragged ones, one block and several, parts of k."""
    made = []
    for t in TRANSPOSES:
        for m, n, k in ((3, 40, 72), (40, 3, 72), (5, 37, 29), (37, 7, 29)):
            made.append(gemm(m, n, k, dtype=dtype, **t))
        made.append(gemm(1, 72, 1100, dtype=dtype, **t))
        made.append(gemm(12, 24, 200, dtype=dtype, alignment=dtype.itemsize, **t))
    made += strided(dtype)
    made += [gemm(*sizes, dtype=dtype, bias=1) for sizes in (
        (1, 1, 1), (1, 1, 9000), (1, 40, 1), (40, 1, 1), (16, 16, 0), (0, 5, 3), (5, 0, 3), (1, 3, 2500))]  # fmt: skip
    made.append(
        gemm(
            9, 33, 65, dtype=dtype, c=True, bias=33, alpha=0.5, beta=-1.5, act=ActKind.gelu, save_preact=True
        )
    )
    made.append(
        gemm(
            1, 8, 9000, dtype=dtype, c=True, bias=8, alpha=0.5, beta=-1.5, act=ActKind.relu, save_preact=True
        )
    )
    return made


def halves(dtype: DType) -> list[RegionSpec]:
    """For tensor cores: the smaller operand along k, in whole runs of eight; the other one either way. Each count of few lines,
    one step and many, parts of k, edges, nothing at all."""
    made = []
    for t in (False, True):
        for few, many, k in (
            (3, 40, 72),
            (12, 64, 520),
            (31, 72, 264),
            (64, 136, 1032),
            (1, 72, 9000),
            (33, 40, 8),
        ):
            made.append(gemm(few, many, k, dtype=dtype, trans_b=t))
            made.append(gemm(many, few, k, dtype=dtype, trans_a=t, trans_b=True))
        made += [gemm(*sizes, dtype=dtype, trans_b=t, bias=1) for sizes in ((0, 8, 8), (8, 8, 8), (1, 8, 8))]
    made.append(gemm(1, 1, 8, dtype=dtype, trans_b=True))
    made.append(region("gemm", desc((3, 40), dtype, (48, 1)), desc((40, 24), dtype, (32, 1)), None, None))
    made.append(region("gemm", desc((24, 40), dtype, (1, 48)), desc((40, 5), dtype, (1, 56)), None, None))
    more = {"c": True, "alpha": 0.5, "beta": -1.5, "act": ActKind.gelu, "save_preact": True}
    made += [gemm(9, 32, k, dtype=dtype, bias=32, **more) for k in (64, 9000)]
    return made


def along_k(dtype: DType) -> list[RegionSpec]:
    """For warps: both operands along k in whole runs; one to four lines, edges of both, one warp of a team and eight, k in steps."""
    made, width = [], 16 // dtype.itemsize
    for few, many, k in ((1, 40, 3), (3, 37, 40), (2, 5, 129), (4, 9, 300), (1, 8195, 2), (1, 3, 1100)):
        made.append(gemm(few, many, k * width, dtype=dtype, trans_b=True))
        made.append(gemm(many, few, k * width, dtype=dtype, trans_b=True))
    made.append(region("gemm", desc((3, 40), dtype, (48, 1)), desc((40, 24), dtype, (1, 80)), None, None))
    more = {"c": True, "alpha": 0.5, "beta": -1.5, "act": ActKind.gelu, "save_preact": True}
    return [*made, gemm(1, 33, 64, dtype=dtype, trans_b=True, bias=33, **more)]


def fused_cases(variant: str, dtype: DType) -> list[Case]:
    """Every epilogue, behind few rows or behind few columns; parts of k are the same for all."""
    some = {
        SIMT: [(6, 20, 24), (20, 5, 24), (2, 18, 9)],
        WARPS: [(3, 20, 24), (20, 4, 24)],
        MMA: [(6, 24, 24), (40, 24, 16)],
    }[variant]
    sizes = itertools.cycle(some)
    made = [
        case_of(variant, regions(Product(*next(sizes), dtype, trans_b=variant != SIMT))[name])
        for name in regions(Product(2, 3, 4, dtype))
        if "[" not in name
    ]
    return [*made, case_of(variant, residual(Product(1, 24, 9000, dtype, trans_b=variant == WARPS)))]


def cases(variant: str, dtype: DType) -> list[Case]:
    own = {SIMT: plain, MMA: halves, WARPS: along_k}[variant]
    return [*(case_of(variant, r) for r in own(dtype)), *fused_cases(variant, dtype)]
