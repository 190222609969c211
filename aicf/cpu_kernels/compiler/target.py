"""The host's processor for LLVM, and how loops are optimised for it. numba's settings of the processor hold here, too."""

from __future__ import annotations

import os
import sys
from functools import cache
from typing import Any

import llvmlite.binding as llvm

WITHOUT_AVX = (
    "corei7-avx",
    "core-avx-i",
    "sandybridge",
    "ivybridge",
    "nocona",
)  # slow there; the last is what some machines without it report


@cache
def prepared() -> None:
    """LLVM knows this processor; and Intel's vectorised functions, where they are installed."""
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    if not _number("NUMBA_DISABLE_INTEL_SVML", 0) and llvm.targets.has_svml() and svml_found():
        # An option of the process, which may be set once. numba sets it when it is imported.
        import numba  # noqa: F401


def svml_found() -> bool:
    """Whether Intel's library of vectorised functions is in the process, into which it is loaded if it is installed."""
    name = {"darwin": "libsvml.dylib", "win32": "svml_dispmd"}.get(sys.platform, "libsvml.so")
    try:
        llvm.load_library_permanently(name)
    except RuntimeError:
        return False
    return True


def processor() -> tuple[str, str, str]:
    """(triple, processor, its features) that code is compiled for."""
    name = os.environ.get("NUMBA_CPU_NAME") or llvm.get_host_cpu_name()
    features = os.environ.get("NUMBA_CPU_FEATURES", "" if name.lower() == "generic" else None)
    if features is None:
        host = llvm.get_host_cpu_features()
        if not _number("NUMBA_ENABLE_AVX", int(name not in WITHOUT_AVX)):
            host.update({feature: False for feature in host if feature.startswith("avx")})
        features = host.flatten()
    return llvm.get_process_triple(), name, features


def _number(setting: str, default: int) -> int:
    return int(os.environ.get(setting, default))


@cache
def target_machine() -> Any:
    """The code may be stored anywhere in memory."""
    prepared()
    triple, name, features = processor()
    target = llvm.Target.from_triple(triple)
    return target.create_target_machine(name, features, opt=3, reloc="pic", codemodel="default", jit=True)


@cache
def target_data() -> str:
    return str(target_machine().target_data)


def optimise(module: Any, vectors: bool) -> None:
    """vectors: whether LLVM makes vectors of loops. Nothing is reassociated: numbers stay those of the expression.

    Level 3 and unrolling cost half of the time again, and make no loop faster.
    """
    tuning = llvm.create_pipeline_tuning_options(speed_level=2)
    tuning.loop_vectorization, tuning.slp_vectorization, tuning.loop_unrolling = vectors, False, False
    builder = llvm.create_pass_builder(target_machine(), tuning)
    builder.getModulePassManager().run(module, builder)
