"""Compiled loops of the host: found in memory, on disk, or compiled; linked; called.

A stored loop is an object file for this host's processor, which llvmlite links in a third of a millisecond. The key is a digest of
the loop's expression and types, of the code that compiles it, of the versions of numba and llvmlite, and of the processor. numba is
imported only where a scalar function was never compiled before (functions.py).
"""

from __future__ import annotations

import ctypes
import itertools
import sys
import threading
import time
from array import array
from collections.abc import Callable, Iterable
from functools import cache, lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from ... import channels
from ...code_cache import disk, ledger
from ...code_cache.digest import Description, Undescribable, digest, pack
from ...collection import uncollected
from ...errors import KernelCompileError
from ...ops.whose_line import unknown_names
from ...progress import compiling
from ...rows.program import Expression
from ...whole import Whole
from .spec import ENTRY, SCRATCH, FoldSpec, MapSpec
from .toolchain import compilers, toolchain

Spec = MapSpec | FoldSpec


if TYPE_CHECKING:
    Numbers = array[int]
else:
    Numbers = array


def pointer(tensor: Any) -> int:
    """Of an array's first element."""
    return tensor.__array_interface__["data"][0]


class _Scratch(threading.local):
    """Memory of each thread that loops may use."""

    def __init__(self) -> None:
        self.memory = np.empty(SCRATCH + 64, np.uint8)
        self.start = ctypes.c_void_p(-(-pointer(self.memory) // 64) * 64)


_SCRATCH = _Scratch()


# --- finding ----------------------------------------------------------------------------------------------------------


class Code:
    """A linked loop: `run(frame, scratch, first, count)`; the first two are pointers. Its machine code goes when this does."""

    def __init__(self, object_file: bytes, needs: Iterable[str]) -> None:
        self.jit = _jit()
        self.tracker = _link(self.jit, object_file, needs)
        self.address = self.tracker[ENTRY]
        pointer, number = ctypes.c_void_p, ctypes.c_int64
        self.run = ctypes.CFUNCTYPE(ctypes.c_int32, pointer, pointer, number, number)(self.address)

    def bound(
        self, frame: Numbers, keeps: Any, core_result: int | None, first: int, count: int
    ) -> Callable[..., None]:
        """A call of the loop.

        keeps    what the pointers in the frame point at
        core_result  where in the frame the pointer of the call's argument goes, an array; None if there is no argument
        first, count  of what it computes
        """
        run, at = self.run, ctypes.c_void_p(frame.buffer_info()[0])
        begin, number = ctypes.c_int64(first), ctypes.c_int64(count)  # ready: each call would convert them

        def call(array: Any = None, _keeps: Any = (self, frame, keeps)) -> None:
            if core_result is not None:
                frame[core_result] = pointer(array)
            if status := run(at, _SCRATCH.start, begin, number):
                raise RuntimeError(f"a loop of the host ended with status {status}")

        return call

    def bound_span(self, frame: Numbers, keeps: Any) -> Callable[[int, int], None]:
        """The same where each call says what is computed."""
        run, at = self.run, ctypes.c_void_p(frame.buffer_info()[0])

        def span(first: int, count: int, _keeps: Any = (self, frame, keeps)) -> None:
            if status := run(at, _SCRATCH.start, int(first), int(count)):
                raise RuntimeError(f"a loop of the host ended with status {status}")

        return span


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
            object_file, needs, movable = _compiled(spec)
        seconds = time.perf_counter() - start
        ledger.note(name, "compiled", seconds, why)
        channels.tell(
            "cache", "compiled", f"the loop {name} compiled for the CPU in {seconds:.2f} s: {why}",
            symbol=name, target="cpu", key=key, seconds=seconds, why=why,
        )  # fmt: skip
        if key is not None and movable:
            ledger.remember(asked, compilers())
            disk.store(key, disk.LOOP, object_file, {"needs": needs})
        try:
            return Code(object_file, needs)
        except ValueError as error:
            raise KernelCompileError(
                f"the loop {name} was compiled for this host and can't be linked",
                got=str(error),
                hint="aicf doctor",
            ) from error


def _compiled(spec: Spec) -> tuple[bytes, list[str], bool]:
    """(object file, symbols that it needs from elsewhere, whether another process may run it)."""
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
    return [spec.expression] if isinstance(spec, MapSpec) else []


def _name(spec: Spec) -> str:
    return spec.expression.name if isinstance(spec, MapSpec) else f"reduce_{spec.how}"


def loop_key(spec: Spec) -> str | None:
    """32 hexadecimal digits; None if its scalar functions depend on something that can't be described."""
    try:
        return digest(pack("loop", Description().of(spec), toolchain())).hex()
    except Undescribable:
        return None


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


def _link(jit: Any, object_file: bytes, needs: Iterable[str]) -> Any:
    """ValueError if it is no object file, or if a symbol is nowhere."""
    import llvmlite.binding as llvm

    library = llvm.JITLibraryBuilder().add_object_img(object_file).add_current_process().export_symbol(ENTRY)
    for name in needs:
        if (address := llvm.address_of_symbol(name)) is None:
            _bring(name)
            address = llvm.address_of_symbol(name)
        if address is not None:
            library.import_symbol(name, address)
    try:
        return library.link(jit, f"loop {next(_NAMES)}")
    except RuntimeError as error:
        raise ValueError(f"it can't be linked: {error}") from error


def _bring(name: str) -> None:
    """Makes a function known that Intel's library has, or numba itself, such as those that allocate."""
    if name.startswith("__svml_"):
        from .target import svml_found

        svml_found()
    else:
        from numba.core.registry import cpu_target

        cpu_target.target_context.refresh()
