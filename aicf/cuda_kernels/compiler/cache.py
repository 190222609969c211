"""Compiled CUDA kernels on disk. Read without numba."""

from __future__ import annotations

import dataclasses

from ...code_cache import disk
from .compile import CompiledKernel


def load(key: str) -> CompiledKernel | None:
    return disk.load(key, disk.KERNEL, lambda code, **facts: CompiledKernel(cubin=code, **facts))


def store(key: str, kernel: CompiledKernel) -> None:
    names = [f.name for f in dataclasses.fields(kernel) if f.name != "cubin"]
    disk.store(key, disk.KERNEL, kernel.cubin, {name: getattr(kernel, name) for name in names})
