"""Kernel bodies, and what they are made of. None imports numba: see aicf/cuda_kernels/dsl.py."""
