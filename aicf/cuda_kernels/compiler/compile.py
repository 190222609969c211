"""From a launch to machine code, for a named target such as `sm_90a`, with or without a GPU. Nothing is cached here.

The road is LTO-IR linked by nvJitLink, because its cubin is the same in every process, and because PTX that nvJitLink
compiles comes out relocatable and ruins tensor-core kernels. It is called by its bindings, since cuda.core's Linker words
`-fma` in a way that libnvvm refuses. numba is imported inside functions only.
"""

from __future__ import annotations

import re
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from math import prod
from typing import Any

from ...registry.variant import In, Launch, Num, Out, Table, TensorMap, Work
from ...rows import RegionSpec
from ...types import DType, bf16, f16, f32, i32, i64
from ...whole import Whole
from ..dsl import materialise, module
from ..hopper.entry import waiting

BLOCKS_PER_SM = 4  # at 256 threads a block: up to 64 registers; a body says otherwise by `body.blocks_per_sm`


@dataclass(frozen=True)
class CompiledKernel:
    """Machine code for one target, with what ptxas said of it. Loads without numba."""

    name: str
    target: str
    cubin: bytes = field(repr=False)
    log: str = field(repr=False)
    registers: int = 0
    spill_bytes: int = 0
    stack_bytes: int = 0
    shared_bytes: int = 0
    barriers: int = 0


# --- what a kernel is compiled for, as data -----------------------------------------------------------------------------


def kernel_name(launch: Launch) -> str:
    """The symbol of a kernel: of its body's name alone, so that a cubin is the same in every process.

    The prefix matters: nvJitLink takes a kernel called `pow` for the C function and compiles it to nothing.
    """
    return "aicf_" + re.sub(r"\W", "_", launch.body.__name__)


# What a pointer points at, or a number is. Half types and fp8 travel as their bits: CUDA C++ shims would be needed for more.
_NUMBERS = {
    f32: "float32", i32: "int32", i64: "int64", f16: "uint16", bf16: "uint16", DType.bool: "boolean",
    DType.f8e4m3: "uint8", DType.f8e5m2: "uint8", DType.i8: "int8", DType.u8: "uint8",
}  # fmt: skip


def in_memory(dtype: DType) -> str:
    """numba's name of an element of memory."""
    return _NUMBERS[dtype]


Signature = tuple[Any, ...]  # names of numba's types, `*` for a pointer; tuples for tuple arguments


def signature_of(launch: Launch, region: RegionSpec) -> Signature:
    """The kernel's parameter types, as numba names them."""

    def of(arg: Any) -> Any:
        if isinstance(arg, tuple):
            return tuple(map(of, arg))
        if isinstance(arg, Num):
            return _NUMBERS[arg.dtype]
        if isinstance(arg, Work):
            return "*" + _NUMBERS[arg.dtype]
        if isinstance(arg, TensorMap):
            return "uint64"
        if isinstance(arg, Table):
            return "*int64"
        return "*" + _NUMBERS[{In: region.operands, Out: region.results}[type(arg)][arg.index].dtype]

    return tuple(map(of, launch.args))


def launch_bounds(launch: Launch) -> tuple[int, int]:
    """Threads per block, and how many blocks a multiprocessor should hold.

    The latter is said aloud. Left to its own guess, ptxas takes registers that cost the second block of a GEMM tile, and
    spills elsewhere for one block more.
    """
    return prod(launch.block), getattr(launch.body, "blocks_per_sm", BLOCKS_PER_SM)


def may_begin_early(target: str) -> bool:
    """Whether kernels for this target wait for the one before, and may so be launched while that one still runs."""
    return _arch(target)[0] >= 9


def waits_itself(launch: Launch) -> bool:
    """Whether the body does that where it wants to; others do it before anything else. See hopper/entry.py."""
    return getattr(launch.body, "waits", False)


# --- compiling ----------------------------------------------------------------------------------------------------------


def compile_kernel(launch: Launch, region: RegionSpec, target: str) -> CompiledKernel:
    """Compile and link one kernel. What goes wrong is raised as it is: the engine tells whose line it was."""
    name = kernel_name(launch)
    with Whole():
        cubin, log = _link(_ltoir(launch, region, target), name, target, region.strict, "cubin")
    return _with_resources(name, target, cubin, log)


def compile_with_ptx(launch: Launch, region: RegionSpec, target: str) -> tuple[CompiledKernel, str]:
    """`compile_kernel`'s and `ptx_of`'s, of one run of numba. Apart from them, whose code is part of every key."""
    name = kernel_name(launch)
    with Whole():
        ltoir = _ltoir(launch, region, target)
        ptx, _ = _link(ltoir, name, target, region.strict, "ptx")
        cubin, log = _link(ltoir, name, target, region.strict, "cubin")
    return _with_resources(name, target, cubin, log), ptx.rstrip(b"\0").decode()


def ptx_of(launch: Launch, region: RegionSpec, target: str) -> str:
    """The kernel as PTX on its way to the cubin, to look at: device code is never made from it."""
    with Whole():
        code, _ = _link(_ltoir(launch, region, target), kernel_name(launch), target, region.strict, "ptx")
    return code.rstrip(b"\0").decode()


def numba_signature(signature: Signature) -> Any:
    types = module("numba.cuda.types")

    def of(part: Any) -> Any:
        if isinstance(part, tuple):
            return types.BaseTuple.from_types([of(p) for p in part])
        return types.CPointer(of(part[1:])) if part.startswith("*") else getattr(types, part)

    return types.void(*map(of, signature))


def _ltoir(launch: Launch, region: RegionSpec, target: str) -> bytes:
    cuda, cuda_target = module("numba.cuda"), module("numba.cuda.descriptor").cuda_target

    # numba remembers functions that intrinsics call by their bytecode, not by the globals that they read.
    cuda_target.target_context.cached_internal_func.clear()
    body = launch.body
    if may_begin_early(target) and not waits_itself(launch):
        body = waiting(body, len(launch.args))
    with _front_end():
        code, _ = cuda.compile(
            materialise(body), numba_signature(signature_of(launch, region)), device=False, abi="numba",
            abi_info={"abi_name": kernel_name(launch)}, cc=_arch(target), output="ltoir",
            launch_bounds=launch_bounds(launch),
        )  # fmt: skip
    return code


def _front_end() -> AbstractContextManager[None]:
    """What makes numba faster. A release of numba's that lacks something it names does without."""
    try:
        from .front_end import faster
    except (ImportError, AttributeError):
        return nullcontext()
    return faster()


def _arch(target: str) -> tuple[Any, ...]:
    major, minor, feature = re.fullmatch(r"sm_(\d+)(\d)(a?)", target).groups()  # type: ignore[union-attr]
    return (int(major), int(minor), feature) if feature else (int(major), int(minor))


def _link(ltoir: bytes, name: str, target: str, strict: bool, output: str) -> tuple[bytes, str]:
    """(the kernel as "cubin" or "ptx", the log).

    strict  no product is contracted with a sum. Contraction is decided here, where machine code is made of LTO-IR;
            what is called by name, such as `fma` and the functions of libdevice, is the same either way
    """
    from cuda.bindings import nvjitlink

    def read(what: str) -> bytes:
        into = bytearray(getattr(nvjitlink, f"get_{what}_size")(handle))
        getattr(nvjitlink, f"get_{what}")(handle, into)
        return bytes(into)

    options = [f"-arch={target}", "-lto", "-Xptxas=-v"]
    options += ["-fma=0"] * strict + ["-ptx"] * (output == "ptx")
    handle = nvjitlink.create(len(options), options)
    try:
        nvjitlink.add_data(handle, nvjitlink.InputType.LTOIR, ltoir, len(ltoir), name)
        nvjitlink.complete(handle)
        return read(f"linked_{output}"), (read("info_log") + read("error_log")).decode()
    except nvjitlink.nvJitLinkError as error:
        raise RuntimeError(f"{error}: {read('error_log').decode()}") from error
    finally:
        nvjitlink.destroy(handle)


def _with_resources(name: str, target: str, cubin: bytes, log: str) -> CompiledKernel:
    """What ptxas says that the kernel takes."""

    def total(pattern: str) -> int:
        return sum(map(int, re.findall(pattern, log)))

    return CompiledKernel(
        name, target, cubin, log,
        registers=total(r"Used (\d+) registers"),
        spill_bytes=total(r"(\d+) bytes spill stores") + total(r"(\d+) bytes spill loads"),
        stack_bytes=total(r"(\d+) bytes stack frame"),
        shared_bytes=total(r"(\d+) bytes smem"),
        barriers=total(r"used (\d+) barriers"),
    )  # fmt: skip
