"""Compiled loops of the host: found in memory, on disk, or compiled; linked; called.

A stored loop is an object file for this host's processor, which llvmlite links in a third of a millisecond: a process that
finds all of its loops never imports numba. The key is a digest of the loop's expression and types, of the code that compiles
it, of the versions of numba and llvmlite, and of the processor.
"""

from __future__ import annotations

import ctypes
import itertools
import os
import sys
import threading
import time
from array import array
from collections.abc import Callable, Iterable
from functools import cache, lru_cache
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import numpy as np

from ... import channels
from ...code_cache import disk, ledger
from ...code_cache.digest import Description, Undescribable, digest, pack, version
from ...collection import uncollected
from ...errors import KernelCompileError
from ...ops.whose_line import unknown_names
from ...progress import compiling
from ...rows.program import Expression
from ...whole import Whole
from .spec import FOLD_BLOCK, SCRATCH, FoldSpec, MapSpec

FORMAT = 2  # of keys and of frames
COMPILERS = (
    "compile",
    "compose",
    "fold",
    "frame",
    "halves",
    "linked",
    "vector_math",
    "wide_math",
)  # modules that make a loop's code
PACKAGES = "numba", "llvmlite", "numpy", "icc_rt", "intel-cmplr-lib-rt"  # the last two bring numba's SVML
SETTINGS = (
    "NUMBA_CPU_", "NUMBA_OPT", "NUMBA_ENABLE_AVX", "NUMBA_DISABLE_INTEL_SVML", "NUMBA_LOOP_VECTORIZE", "NUMBA_SLP_VECTORIZE",
    "NUMBA_BOUNDSCHECK", "NUMBA_DEBUGINFO", "NUMBA_LLVM_PASS",
)  # fmt: skip

Spec = MapSpec | FoldSpec

if TYPE_CHECKING:
    Numbers = array[int]
else:
    Numbers = array


def pointer(tensor: Any) -> int:
    """Of an array's first element."""
    return tensor.__array_interface__["data"][0]


class _Scratch(threading.local):
    """Memory of each thread that loops may use; the first 64 bytes are for what numba's calling convention returns."""

    def __init__(self) -> None:
        self.memory = np.empty(SCRATCH + 128, np.uint8)
        self.start = -(-pointer(self.memory) // 64) * 64


_SCRATCH = _Scratch()


# --- finding ----------------------------------------------------------------------------------------------------------


class Code:
    """A linked loop: `run(result, exception, frame, scratch)`, all of them pointers. Its machine code goes when this does."""

    def __init__(self, object_file: bytes, symbol: str, needs: Iterable[str]) -> None:
        self.jit = _jit()
        self.tracker = _link(self.jit, object_file, symbol, needs)
        pointers = (ctypes.c_void_p,) * 4
        self.run = ctypes.CFUNCTYPE(ctypes.c_int32, *pointers)(self.tracker[symbol])

    def bound(self, frame: Numbers, keeps: Any, core_result: int | None) -> Callable[..., None]:
        """A call of the loop.

        keeps    what the pointers in the frame point at
        core_result  where in the frame the pointer of the call's argument goes, an array; None if there is no argument
        """
        run, at = self.run, frame.buffer_info()[0]

        def call(array: Any = None, _keeps: Any = (self, frame, keeps)) -> None:
            if core_result is not None:
                frame[core_result] = pointer(array)
            space = _SCRATCH.start
            if status := run(space, space + 8, at, space + 64):
                raise RuntimeError(f"a loop of the host ended with status {status}")

        return call


@lru_cache(maxsize=1024)
def code_of(spec: Spec) -> Code:
    with Whole():
        key = loop_key(spec)
        name = _name(spec)
        if key is not None and (found := disk.load(key, disk.LOOP, Code)):
            ledger.note(name, "disk")
            channels.tell(
                "cache",
                "hit",
                f"the loop {name} found on disk",
                symbol=name,
                target="cpu",
                key=key,
                where="disk",
            )
            return found
        asked = None if key is None else digest(pack("question", Description().of(spec))).hex()
        start, why = time.perf_counter(), ledger.why_again(asked, compilers())
        with compiling(name):
            made = _compiled(spec)
        seconds = time.perf_counter() - start
        ledger.note(name, "compiled", seconds, why)
        channels.tell(
            "cache", "compiled", f"the loop {name} compiled for the CPU in {seconds:.2f} s: {why}",
            symbol=name, target="cpu", key=key, seconds=seconds, why=why,
        )  # fmt: skip
        if key is not None:
            ledger.remember(asked, compilers())
            disk.store(key, disk.LOOP, made[0], {"symbol": made[1], "needs": made[2]})
        return Code(*made)


def _compiled(spec: Spec) -> tuple[bytes, str, list[str]]:
    """(object file, the symbol to call, symbols that it needs from elsewhere), made by numba."""
    from .compile import compile_loop

    try:
        with uncollected():
            return compile_loop(spec)
    except Exception as error:
        unknown = next((found for e in _expressions(spec) for found in unknown_names(e)), None)
        code, line, name = unknown or (None, 0, "")
        raise KernelCompileError(
            f"the loop {_name(spec)} did not compile for this host",
            where=f"{code.co_filename}:{line}, in {code.co_name}" if code else None,
            got=f"there is no {name!r}" if code else f"{type(error).__name__}: {error}",
            hint="mend that line; docs/add-an-op.md shows how ops are written" if code else "aicf doctor",
        ) from error  # fmt: skip


def _expressions(spec: Spec) -> list[Expression]:
    if isinstance(spec, MapSpec):
        return [spec.expression]
    return [spec.map.expression] if spec.map else []


def _name(spec: Spec) -> str:
    if isinstance(spec, MapSpec):
        return spec.expression.name
    return f"{_name(spec.map)}, reduce_{spec.how}" if spec.map else f"reduce_{spec.how}"


def loop_key(spec: Spec) -> str | None:
    """32 hexadecimal digits; None if its scalar functions depend on something that can't be described."""
    try:
        return digest(pack("loop", Description().of(spec), toolchain())).hex()
    except Undescribable:
        return None


@cache
def toolchain() -> bytes:
    """What compiles, and for which processor."""
    import llvmlite.binding as llvm

    settings = sorted(item for item in os.environ.items() if item[0].startswith(SETTINGS))
    processor = llvm.get_process_triple(), llvm.get_host_cpu_name(), llvm.get_host_cpu_features().flatten()
    facts = (
        FORMAT, sys.implementation.cache_tag, [(p, version(p)) for p in PACKAGES], settings, processor,
        FOLD_BLOCK,
    )  # fmt: skip
    return digest(pack("toolchain", repr(facts).encode(), *map(_module, COMPILERS)))


@cache
def compilers() -> dict[str, str]:
    """What `toolchain` digests, by name."""
    import llvmlite.binding as llvm

    versions = {name: str(version(name)) for name in PACKAGES}
    code = digest(pack("modules", *map(_module, COMPILERS))).hex()
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


# --- linking ----------------------------------------------------------------------------------------------------------


@cache
def _jit() -> Any:
    import llvmlite.binding as llvm

    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    # JITLink puts all sections of an object file into one piece of memory. LLVM's older linker maps each by itself, and where memory is
    # in pieces, as beside CUDA, a loop's constants may come to lie more than 2 GB from its code: beyond what an instruction
    # reaches, for which that linker aborts the process. Windows has no other.
    return llvm.create_lljit_compiler(suppress_errors=True, use_jit_link=sys.platform != "win32")


_NAMES = itertools.count()


def _link(jit: Any, object_file: bytes, symbol: str, needs: Iterable[str]) -> Any:
    """ValueError if it is no object file, or if a symbol is nowhere."""
    import llvmlite.binding as llvm

    library = llvm.JITLibraryBuilder().add_object_img(object_file).add_current_process().export_symbol(symbol)
    for name in needs:
        if (address := llvm.address_of_symbol(name)) is None and name.startswith("numba_"):
            _numbas_own()
            address = llvm.address_of_symbol(name)
        if address is not None:
            library.import_symbol(name, address)
    try:
        return library.link(jit, f"loop {next(_NAMES)}")
    except RuntimeError as error:
        raise ValueError(f"it can't be linked: {error}") from error


def _numbas_own() -> None:
    """Makes the functions known that numba itself brings to compiled code."""
    from numba.core.registry import cpu_target

    assert cpu_target.target_context is not None
