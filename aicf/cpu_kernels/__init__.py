"""Kernels of the CPU device: BLAS through NumPy, fused loops through numba on the host, references for the rest."""

from . import elementwise, gemm, reduce, reference, rows

MODULES = (elementwise, gemm, reduce, rows, reference)
