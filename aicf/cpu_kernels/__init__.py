"""Kernels of the CPU device: BLAS through NumPy, fused loops through numba on the host, references for the rest.

Every module here is imported, so that a new file's variants are found without a list; `compiler` is imported when a loop is made.
"""

from ..discover import modules_in

MODULES = modules_in(__name__, __path__)
