"""Kernels of the CPU device: BLAS through NumPy, fused loops through numba on the host, references for the rest."""

from . import dropout, elementwise, gemm, reference

MODULES = (dropout, elementwise, gemm, reference)
