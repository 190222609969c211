"""The key of a compiled kernel: a digest of everything its machine code depends on, computed without numba.

That is the body's bytecode, constants, defaults and closure, and the functions and factories it calls, recursively, so that
a kernel written in a notebook counts as much as aicf's own; its parameter types, target, launch bounds and strictness; the
route from body to cubin (`compile.py`, read in the same way); and the versions of the compilers. Line numbers, file names and
comments don't count. Classes, and all that belongs to Python, NumPy, numba and the rest of `LIBRARIES`, are known by their names.
"""

from __future__ import annotations

import functools
import os
import pkgutil
import sys
import weakref
from pathlib import Path
from typing import Any

from ...code_cache.digest import Description, Undescribable, digest, pack, version
from ...registry.variant import Launch
from .compile import Signature, compile_kernel, kernel_name, launch_bounds, waits_itself

FORMAT = 2  # of keys; a change of what is hashed changes it

PACKAGES = ("aicf", "numba-cuda", "numba", "llvmlite", "cuda-core", "numpy")
# Each by the name of its wheel for CUDA 13 and for CUDA 12; a machine without a wheel takes the system's.
TOOLKIT = (("nvidia-nvvm", "nvidia-cuda-nvcc-cu12"), ("nvidia-nvjitlink", "nvidia-nvjitlink-cu12"))


def kernel_key(launch: Launch, signature: Signature, target: str, strict: bool = False) -> str | None:
    """32 hexadecimal digits; None for a body that depends on something which can't be described.

    strict  of the region: compiled without contraction
    """
    described, name = kernel_digest(launch, signature, target, strict), kernel_name(launch).encode()
    return None if described is None else digest(pack("kernel", name, described, toolchain())).hex()


def kernel_digest(
    launch: Launch, signature: Signature, target: str, strict: bool = False, by: Description | None = None
) -> bytes | None:
    """Of the kernel alone, whatever it is called and whatever compiles it; None as above. `by`: a `Portable` goes by source, the same for
    every Python; one for many kernels describes what they share once."""
    body = body_digest(launch.body, by)
    parts = (signature, target, launch_bounds(launch), strict, waits_itself(launch))
    return None if body is None else digest(pack("launch", body, repr(parts).encode()))


def question(kernel_id: str, launch: Launch, signature: Signature, target: str, region_key: str) -> str:
    """The name of what a kernel was compiled by: of the same kernel for the same region, whatever its code."""
    parts = kernel_id, kernel_name(launch), signature, target, region_key
    return digest(pack("question", repr(parts).encode())).hex()


def compiled_by(launch: Launch) -> dict[str, str]:
    """What a kernel's code depends on, by name: its body, and the compilers."""
    return {"its code": (body_digest(launch.body) or b"").hex(), **compilers()}


@functools.cache
def compilers() -> dict[str, str]:
    """What `toolchain` digests, by name."""
    names = (*PACKAGES, *(name for names in TOOLKIT for name in names))
    versions = {name: str(version(name)) for name in names}
    route = digest(_route()).hex()
    return {
        "Python": str(sys.implementation.cache_tag),
        **versions,
        "the route to machine code": route,
        "the compilers": toolchain().hex(),
    }


_BODIES: weakref.WeakKeyDictionary[Any, dict[type[Description], bytes | None]] = weakref.WeakKeyDictionary()


def body_digest(body: Any, by: Description | None = None) -> bytes | None:
    known, by = _BODIES.setdefault(body, {}), by or Description()
    kind = type(by)
    if kind not in known:
        try:
            known[kind] = digest(by.another().of(body))
        except Undescribable:
            known[kind] = None
    return known[kind]


@functools.cache
def toolchain() -> bytes:
    """What compiles: the route, the versions of its packages, and settings of numba's that change code."""
    versions = [(name, version(name)) for name in PACKAGES]
    wheels = [(name, version(name)) for names in TOOLKIT for name in names]
    settings = sorted(
        v for v in os.environ.items() if v[0].startswith(("NUMBA_CUDA_", "NUMBA_DEBUG", "NUMBA_OPT"))
    )
    system = [] if all(any(map(version, names)) for names in TOOLKIT) else system_toolkit()
    facts = (FORMAT, sys.implementation.cache_tag, versions, wheels, settings, system)
    return digest(pack("toolchain", repr(facts).encode(), _route()))


def _route() -> bytes:
    """Of the road from a body to a cubin: the code of `compile.py`, and the text of what it puts in the place of numba's."""
    text = pkgutil.get_data(__package__, "front_end.py") or b""
    return pack("route", Description().of(compile_kernel), text)


def system_toolkit() -> list[str]:
    """The compiler libraries where no wheel brings them: their real paths, whose names end in versions."""
    homes = [os.environ.get(v) for v in ("CONDA_PREFIX", "CUDA_HOME", "CUDA_PATH")]
    roots = [Path(home) for home in [*homes, "/usr/local/cuda", "/usr"] if home]
    patterns = ("lib*/libnvJitLink.so*", "lib/*/libnvJitLink.so*", "nvvm/lib*/libnvvm.so*", "lib/*/libnvvm.so*",
                "bin/nvJitLink*.dll", "nvvm/bin/nvvm*.dll")  # fmt: skip
    return sorted({os.path.realpath(file) for root in roots for p in patterns for file in root.glob(p)})
