"""The one door to numba-cuda: retype scalar functions, compile kernels, load them, launch them, simulate them.

Kernels are compiled from a Launch and the region it serves, for a named target such as `sm_90a`, with or without a GPU.
The road is LTO-IR linked by nvJitLink, because its cubin is the same in every process, and because PTX that nvJitLink
compiles comes out relocatable and ruins tensor-core kernels. numba is imported inside functions only, so that choosing,
explaining and launching a stored cubin need not pay for it; bodies name it through dsl.py.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from types import FunctionType
from typing import Any

import numpy as np

from ..errors import DeviceError, KernelCompileError
from ..ops import scalar
from ..registry.variant import In, Launch, Num, Out, Work
from ..rows import RegionSpec
from ..types import AttrPack, DType
from .dsl import SIMULATED, materialise

BLOCKS_PER_SM = (
    4  # at 256 threads a block: up to 64 registers; a body says otherwise with `body.blocks_per_sm`
)
STATIC_SHARED_LIMIT = 48 * 1024  # above it, dynamic shared memory must be asked for kernel by kernel

# --- scalar functions -------------------------------------------------------------------------------------------------


def typed_scalar(fn: Callable[..., Any], compute: DType, **attrs: Any) -> Callable[..., Any]:
    """`fn` with literals, number globals and attributes in the compute type (see ops/scalar.py), attributes bound.

    The attributes are trailing positional parameters whose defaults are the typed values: Python fills them in by
    itself, and `bodies.element.emit_call` as constants that the compiler folds. Equal requests return the identical
    function, so that kernels made of it are cached.
    """
    return _bound(fn, compute, AttrPack(attrs))


@functools.cache
def _bound(fn: Callable[..., Any], compute: DType, attrs: AttrPack) -> Callable[..., Any]:
    typed, constants = scalar.typed_scalar(fn, compute, attrs)
    return FunctionType(typed.__code__, typed.__globals__, typed.__name__, constants, typed.__closure__)


# --- compiling --------------------------------------------------------------------------------------------------------


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


def kernel_name(launch: Launch) -> str:
    """The symbol of a kernel: of its body's name alone, so that a cubin is the same in every process.

    The prefix matters: nvJitLink takes a kernel called `pow` for the C function and compiles it to nothing.
    """
    return "aicf_" + re.sub(r"\W", "_", launch.body.__name__)


def signature_of(launch: Launch, region: RegionSpec) -> Any:
    """The kernel's numba signature. f16 and bf16 are passed as uint16 pointers, bool as a pointer to bytes."""
    from numba.cuda import types

    from .bodies.element import numba_type, storage_type

    def of(arg: Any) -> Any:
        if isinstance(arg, tuple):
            return types.BaseTuple.from_types([of(a) for a in arg])
        if isinstance(arg, Num):
            return numba_type(arg.dtype)
        tensors = {In: region.operands, Out: region.results}
        dtype = arg.dtype if isinstance(arg, Work) else tensors[type(arg)][arg.index].dtype
        return types.CPointer(storage_type(dtype))

    return types.void(*map(of, launch.args))


_COMPILED: dict[Any, CompiledKernel] = {}


def compile_launch(launch: Launch, region: RegionSpec, target: str, kernel_id: str = "") -> CompiledKernel:
    """Compile and link one kernel; cached in this process. Needs no GPU. `kernel_id` goes into error messages."""
    name, signature = kernel_name(launch), signature_of(launch, region)
    key = (launch.body, signature, target, _threads(launch))
    if key not in _COMPILED:
        try:
            _COMPILED[key] = _link(name, target, _compile(launch, signature, target, "ltoir"))
        except Exception as error:
            raise KernelCompileError(
                f"kernel {kernel_id or name} did not compile for {target}",
                where=f"{name}{signature.args}",
                got=f"{type(error).__name__}: {error}",
                hint="aicf doctor",
                details=[f"region: {region}"],
            ) from error
    return _COMPILED[key]


def ptx_of(launch: Launch, region: RegionSpec, target: str) -> str:
    """The kernel as PTX, to look at: device code is never made from it."""
    return _compile(launch, signature_of(launch, region), target, "ptx")


def _threads(launch: Launch) -> int:
    return int(np.prod(launch.block))


def _arch(target: str) -> tuple[Any, ...]:
    major, minor, feature = re.fullmatch(r"sm_(\d+)(\d)(a?)", target).groups()  # type: ignore[union-attr]
    return (int(major), int(minor), feature) if feature else (int(major), int(minor))


def _compile(launch: Launch, signature: Any, target: str, output: str) -> Any:
    from numba import cuda

    # How many of its blocks a multiprocessor should hold is said aloud. Left to its own guess, ptxas takes registers that
    # cost the second block of a GEMM tile, and spills elsewhere for one block more.
    bounds = (_threads(launch), getattr(launch.body, "blocks_per_sm", BLOCKS_PER_SM))
    code, _ = cuda.compile(
        materialise(launch.body), signature, device=False, abi="numba", abi_info={"abi_name": kernel_name(launch)},
        cc=_arch(target), output=output, launch_bounds=bounds,
    )  # fmt: skip
    return code


def _link(name: str, target: str, ltoir: bytes) -> CompiledKernel:
    from cuda.core import Linker, LinkerOptions, ObjectCode

    options = LinkerOptions(arch=target, link_time_optimization=True, ptxas_options=["-v"])
    linker = Linker(ObjectCode.from_ltoir(ltoir), options=options)
    cubin = linker.link("cubin").code
    log = linker.get_info_log() + linker.get_error_log()

    def total(pattern: str) -> int:
        return sum(map(int, re.findall(pattern, log)))

    return CompiledKernel(
        name, target, bytes(cubin), log,
        registers=total(r"Used (\d+) registers"),
        spill_bytes=total(r"(\d+) bytes spill stores") + total(r"(\d+) bytes spill loads"),
        stack_bytes=total(r"(\d+) bytes stack frame"),
        shared_bytes=total(r"(\d+) bytes smem"),
        barriers=total(r"used (\d+) barriers"),
    )  # fmt: skip


# --- launching --------------------------------------------------------------------------------------------------------


def current_device() -> Any:
    """The current `cuda.core.Device`, made current if there was none.

    Asked before anything else of cuda.core: without a driver this raises, where `get_kernel` would leave the library
    in a state in which its next call hangs.
    """
    from cuda.core import Device

    try:
        device = Device()
        device.set_current()
    except Exception as error:
        raise DeviceError("no usable CUDA device", got=str(error), hint="aicf doctor") from error
    return device


def target_of(device: Any) -> str:
    """The compiler's name for a `cuda.core.Device`; as `DeviceSpec.target`."""
    major, minor = device.compute_capability
    return f"sm_{major}{minor}" + ("a" if major >= 9 else "")


def load(compiled: CompiledKernel, dynamic_shared: int = 0) -> Any:
    """The `cuda.core.Kernel` on the current device; loaded once per device."""
    return _load(current_device().device_id, compiled, dynamic_shared)


@functools.cache
def _load(device_id: int, compiled: CompiledKernel, dynamic_shared: int) -> Any:
    from cuda.core import ObjectCode

    kernel = ObjectCode.from_cubin(compiled.cubin).get_kernel(compiled.name)
    if dynamic_shared > STATIC_SHARED_LIMIT:
        from cuda.bindings import driver

        attribute = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
        (code,) = driver.cuKernelSetAttribute(attribute, dynamic_shared, kernel.handle, device_id)
        if code != driver.CUresult.CUDA_SUCCESS:
            raise DeviceError(
                f"{compiled.name} can't have {dynamic_shared} bytes of shared memory", got=str(code)
            )
    return kernel


def bind(launch: Launch, region: RegionSpec, stream: Any, pointers_in: Sequence[int], pointers_out: Sequence[int],
         workspace_pointer: int = 0, kernel_id: str = "") -> Callable[..., None]:  # fmt: skip
    """A call that launches the kernel on these pointers. Compiled, loaded and packed here, so that a call only launches.

    The call takes another stream, or a graph builder while capturing, as its one optional argument.
    """
    from cuda.core import LaunchConfig
    from cuda.core import launch as start

    compiled = compile_launch(launch, region, target_of(current_device()), kernel_id)
    kernel = load(compiled, launch.shared)
    config = LaunchConfig(grid=launch.grid, block=launch.block, shmem_size=launch.shared)
    args = tuple(_pack(launch.args, pointers_in, pointers_out, workspace_pointer))

    def go(on: Any = stream) -> None:
        start(on, config, kernel, *args)

    return go


def _pack(args: Sequence[Any], ins: Sequence[int], outs: Sequence[int], workspace: int) -> Iterator[Any]:
    """Kernel parameters in order: pointers as int, numbers as NumPy scalars; tuples are flattened, as numba does."""
    for arg in args:
        if isinstance(arg, tuple):
            yield from _pack(arg, ins, outs, workspace)
        elif isinstance(arg, Num):
            yield arg.dtype.numpy.type(arg.value)
        elif isinstance(arg, Work):
            yield int(workspace) + arg.offset
        else:
            yield int(ins[arg.index] if isinstance(arg, In) else outs[arg.index])


# --- simulating -------------------------------------------------------------------------------------------------------


def simulate(launch: Launch, arrays_in: Sequence[np.ndarray], arrays_out: Sequence[np.ndarray],
             workspace: np.ndarray | None = None) -> None:  # fmt: skip
    """Run a launch in numba's simulator; needs NUMBA_ENABLE_CUDASIM=1 from the start of the process.

    Each array is the memory behind a pointer: C-contiguous; results are written in place. `workspace` is of bytes.
    Indexing is checked, which a GPU does not do. Seconds per thousand threads: for tiny shapes only.
    """
    if not SIMULATED:
        raise DeviceError(
            "the simulator is off", hint="set NUMBA_ENABLE_CUDASIM=1 before the first import of numba"
        )
    from numba import cuda

    def of(arg: Any) -> Any:
        if isinstance(arg, tuple):
            return tuple(map(of, arg))
        if isinstance(arg, Num):
            return arg.dtype.numpy.type(arg.value)
        if isinstance(arg, Work):
            assert workspace is not None, "this launch uses a workspace"
            return workspace[arg.offset :].view(arg.dtype.numpy)
        memory = (arrays_in if isinstance(arg, In) else arrays_out)[arg.index]
        return memory.reshape(-1) if memory.flags.c_contiguous else _refuse(memory)

    with np.errstate(all="ignore"):
        cuda.jit(materialise(launch.body))[launch.grid, launch.block, 0, launch.shared](*map(of, launch.args))


def _refuse(memory: np.ndarray) -> Any:
    raise DeviceError(
        "the simulator takes contiguous memory", got=f"strides {memory.strides} for {memory.shape}"
    )


__all__ = [
    "CompiledKernel", "bind", "compile_launch", "current_device", "kernel_name", "load", "ptx_of", "signature_of",
    "simulate", "target_of", "typed_scalar",
]  # fmt: skip
