"""What compiles the host's loops and their scalar functions: part of the key of all that is stored."""

from __future__ import annotations

import os
import sys
from functools import cache
from importlib.util import find_spec

from ...code_cache.digest import Description, digest, pack, version
from .spec import FOLD_BLOCK

FORMAT = 3  # of keys and of frames
# Modules that make the code of scalar functions; and of loops, which have these inside them.
FUNCTIONS = "functions", "halves", "numba_functions", "shipped", "target", "vector_math", "wide_math"
LOOPS = *FUNCTIONS, "compile", "emit", "fold_loop", "map_loop", "spec"
SVML = "icc_rt", "intel-cmplr-lib-rt"  # packages that bring Intel's vectorised functions
PACKAGES = "numba", "llvmlite", "numpy", *SVML
SETTINGS = (
    "NUMBA_CPU_", "NUMBA_OPT", "NUMBA_ENABLE_AVX", "NUMBA_DISABLE_INTEL_SVML", "NUMBA_LOOP_VECTORIZE", "NUMBA_SLP_VECTORIZE",
    "NUMBA_BOUNDSCHECK", "NUMBA_DEBUGINFO", "NUMBA_LLVM_PASS",
)  # fmt: skip


@cache
def toolchain(modules: tuple[str, ...] = LOOPS) -> bytes:
    """What compiles, and for which processor."""
    import llvmlite.binding as llvm

    settings = sorted(item for item in os.environ.items() if item[0].startswith(SETTINGS))
    processor = llvm.get_process_triple(), llvm.get_host_cpu_name(), llvm.get_host_cpu_features().flatten()
    facts = (
        FORMAT, sys.implementation.cache_tag, [(p, version(p)) for p in PACKAGES], settings, processor,
        FOLD_BLOCK,
    )  # fmt: skip
    return digest(pack("toolchain", repr(facts).encode(), *map(_module, modules)))


@cache
def compilers() -> dict[str, str]:
    """What `toolchain` digests, by name."""
    import llvmlite.binding as llvm

    versions = {name: str(version(name)) for name in PACKAGES}
    code = digest(pack("modules", *map(_module, LOOPS))).hex()
    known = {
        "Python": str(sys.implementation.cache_tag),
        **versions,
        "the processor": str(llvm.get_host_cpu_name()),
    }
    return {**known, "what makes loops": code, "the compilers": toolchain().hex()}


def _module(name: str) -> bytes:
    """A module's code, which need not be run for that."""
    found = find_spec(f"{__package__}.{name}")
    assert found is not None and found.loader is not None, name
    return Description().of(found.loader.get_code(found.name))
