"""Kernel bodies. They import numba at the top, so only a variant's `build` imports them."""
