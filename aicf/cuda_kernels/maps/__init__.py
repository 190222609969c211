"""Kernels that work element by element."""
