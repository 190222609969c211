"""CUDA kernels: variants beside the bodies they launch. Importing this package imports no numba."""

from . import elementwise, gemm, losses, memory, reduce

MODULES = (elementwise, gemm, losses, memory, reduce)

__all__ = ["MODULES", "elementwise", "gemm", "losses", "memory", "reduce"]
