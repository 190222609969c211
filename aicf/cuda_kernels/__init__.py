"""CUDA kernels: variants beside the bodies they launch. Importing this package imports no numba."""

from . import add, elementwise, gemm, losses, memory, reduce

MODULES = (add, elementwise, gemm, losses, memory, reduce)

__all__ = ["MODULES", "add", "elementwise", "gemm", "losses", "memory", "reduce"]
