"""CUDA kernels: variants beside the bodies they launch. Importing this package imports no numba."""

from . import (
    add,
    dropout,
    elementwise,
    gemm,
    gemm_mma,
    gemm_packed,
    gemm_split,
    gemm_wgmma,
    gemv,
    gemv_mma,
    losses,
    memory,
    multi,
    reduce,
)

MODULES = (
    add,
    dropout,
    elementwise,
    gemm,
    gemm_mma,
    gemm_split,
    gemm_packed,
    gemm_wgmma,
    gemv,
    gemv_mma,
    losses,
    memory,
    multi,
    reduce,
)

__all__ = [
    "MODULES",
    "add",
    "dropout",
    "elementwise",
    "gemm",
    "gemm_mma",
    "gemm_packed",
    "gemm_split",
    "gemm_wgmma",
    "gemv",
    "gemv_mma",
    "losses",
    "memory",
    "multi",
    "reduce",
]
