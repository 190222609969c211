"""A compiled kernel, to be looked at: PTX, SASS and what ptxas says of it. Needs no GPU; SASS needs NVIDIA's disassembler."""

from __future__ import annotations

import functools
import shutil
import subprocess
import tempfile
from pathlib import Path

from ...registry.variant import Launch
from ...rows import RegionSpec
from . import engine
from .compile import CompiledKernel
from .engine import key_of

__all__ = ["compiled_and_ptx", "key_of", "resources", "sass"]

COMMANDS = {"nvdisasm": ("--print-code",), "cuobjdump": ("--dump-sass",)}
MISSING = (
    "// neither nvdisasm nor cuobjdump is on this machine: `pip install nvidia-cuda-nvdisasm` brings the first, and so does a CUDA "
    "toolkit.\n// Then: nvdisasm --print-code kernel.cubin"
)
PATIENCE = 120.0  # seconds

_PTX: dict[str, str] = {}  # of kernels that were shown: plans of other sizes have the same


def compiled_and_ptx(
    launch: Launch, region: RegionSpec, target: str, kernel_id: str
) -> tuple[CompiledKernel, str]:
    """What is launched, and the PTX on its way there."""
    key = key_of(launch, region, target, kernel_id)
    if key is not None and key in _PTX:
        return engine.compile_launch(launch, region, target, kernel_id), _PTX[key]
    made, ptx = engine.compile_shown(launch, region, target, kernel_id)
    if key is not None:
        _PTX[key] = ptx
    return made, ptx


def resources(made: CompiledKernel, key: str | None) -> str:
    """What ptxas says, and what caches know the machine code by."""
    rows = {
        "kernel": made.name, "key in caches": key or "none: its body can't be described", "target": made.target, "registers a thread": made.registers, "spilled bytes": made.spill_bytes,
        "stack bytes": made.stack_bytes, "static shared bytes": made.shared_bytes, "barriers": made.barriers,
    }  # fmt: skip
    return "\n".join([*(f"{name:20} {value}" for name, value in rows.items()), "", made.log.rstrip("\0\n")])


def sass(cubin: bytes) -> str:
    """The machine code as text; where nothing is here that can read it, what is missing and what brings it."""
    found = disassembler()
    if found is None:
        return MISSING
    name, program = found
    try:
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "kernel.cubin"
            file.write_bytes(cubin)
            done = subprocess.run(
                [program, *COMMANDS[name], str(file)], capture_output=True, text=True, timeout=PATIENCE
            )
    except (OSError, subprocess.SubprocessError) as error:
        return f"// {program} can't be run: {error}"
    if done.returncode:
        return (
            f"// {program} can't read it, and ends with {done.returncode}: {(done.stderr or done.stdout).strip()}\n"
            "// It may be older than the compiler: `pip install --upgrade nvidia-cuda-nvdisasm`"
        )
    return done.stdout


@functools.cache
def disassembler() -> tuple[str, str] | None:
    """(its name, its path): of NVIDIA's wheels, a toolkit, or the PATH."""
    try:
        from cuda.pathfinder import find_nvidia_binary_utility as find
    except ImportError:  # before cuda-pathfinder 1.3

        def find(utility_name: str) -> str | None:
            return None

    for name in COMMANDS:
        if path := find(name) or shutil.which(name):
            return name, path
    return None
