"""Ops with bodies: the launches of their bodies' kernels."""
