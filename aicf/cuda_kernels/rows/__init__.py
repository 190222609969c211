"""Kernels along rows: softmax, norms, reductions."""
