"""Compiled CUDA kernels on disk, and what the channel `cache` is told of them. Read without numba."""

from __future__ import annotations

import dataclasses
import logging
import time
from typing import Any

from ... import channels
from ...code_cache import disk, ledger
from ...registry.variant import Launch
from ...rows import RegionSpec
from .compile import CompiledKernel, signature_of
from .keys import body_digest, compiled_by, question, toolchain


def load(key: str) -> CompiledKernel | None:
    return disk.load(key, disk.KERNEL, lambda code, **facts: CompiledKernel(cubin=code, **facts))


def store(key: str, kernel: CompiledKernel) -> None:
    names = [f.name for f in dataclasses.fields(kernel) if f.name != "cubin"]
    disk.store(key, disk.KERNEL, kernel.cubin, {name: getattr(kernel, name) for name in names})


def tell_hit(key: Any, kernel: CompiledKernel, where: str) -> None:
    """where  "memory" or "disk"."""
    level = logging.DEBUG if where == "memory" else logging.INFO
    if channels.enabled("cache", level):
        text = f"{kernel.name} for {kernel.target} found {'in memory' if where == 'memory' else 'on disk'}"
        channels.tell(
            "cache", "hit", text, level, symbol=kernel.name, target=kernel.target, key=str(key), where=where
        )


def tell_compiled(
    key: Any,
    kernel: CompiledKernel,
    why: str,
    kernel_id: str = "",
    body: Any = None,
    seconds: float | None = None,
) -> None:
    """In detail with the digests that a key is made of: of two runs, the one that differs is why.

    seconds  None: another process has compiled it
    """
    if not channels.enabled("cache"):
        return
    described = isinstance(key, str)
    digests: dict[str, Any] = {}
    if described and body is not None and channels.enabled("cache", logging.DEBUG):
        digests = {"body": (body_digest(body) or b"").hex(), "toolchain": toolchain().hex()}
    how = "by a helper process" if seconds is None else f"in {seconds:.2f} s"
    channels.tell(
        "cache", "compiled", f"{kernel_id or kernel.name} compiled for {kernel.target} {how}: {why}"
        + "".join(f", {name} {value}" for name, value in digests.items()),
        kernel=kernel_id, symbol=kernel.name, target=kernel.target, key=key if described else None, seconds=seconds,
        why=why, registers=kernel.registers, spill_bytes=kernel.spill_bytes, **digests,
    )  # fmt: skip


class Begun:
    """A kernel that is nowhere and about to be compiled: since when, and why."""

    def __init__(self, key: Any, launch: Launch, region: RegionSpec, target: str, kernel_id: str) -> None:
        self.key, self.launch, self.kernel_id = key, launch, kernel_id
        self.question = question(kernel_id, launch, signature_of(launch, region), target, region.key)
        self.why = ledger.why_again(self.question if isinstance(key, str) else None, compiled_by(launch))
        self.start = time.perf_counter()

    def done(self, made: CompiledKernel) -> None:
        """Store it, and tell of it."""
        seconds = time.perf_counter() - self.start
        ledger.note(self.kernel_id or made.name, "compiled", seconds, self.why)
        tell_compiled(self.key, made, self.why, self.kernel_id, self.launch.body, seconds)
        if isinstance(self.key, str):
            store(self.key, made)
            ledger.remember(self.question, compiled_by(self.launch))
