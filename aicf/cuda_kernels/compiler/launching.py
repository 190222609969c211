"""Compiled kernels loaded, packed and launched."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from ... import config as settings
from ...device.streams import Captured
from ...errors import DeviceError
from ...registry.variant import In, Launch, Num, Out, Table, TensorMap, Work
from .compile import CompiledKernel
from .table import tables_of
from .tensor_map import Descriptors, descriptors

STATIC_SHARED_LIMIT = 48 * 1024  # above it, dynamic shared memory must be asked for kernel by kernel


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
    from cuda.bindings import driver
    from cuda.core import ObjectCode

    kernel = ObjectCode.from_cubin(compiled.cubin).get_kernel(compiled.name)
    # loads it now: the driver would at its first launch, maybe inside a capture
    code, _ = driver.cuKernelGetFunction(kernel.handle)
    if code != driver.CUresult.CUDA_SUCCESS:
        raise DeviceError(
            f"{compiled.name} can't be loaded", expected=f"a device that runs {compiled.target} code", got=str(code),
            hint="aicf doctor --device cuda",
        )  # fmt: skip
    if dynamic_shared > STATIC_SHARED_LIMIT:
        attribute = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
        (code,) = driver.cuKernelSetAttribute(attribute, dynamic_shared, kernel.handle, device_id)
        if code != driver.CUresult.CUDA_SUCCESS:
            raise DeviceError(
                f"{compiled.name} can't have {dynamic_shared} bytes of shared memory", got=str(code)
            )
    return kernel


Pointer = In | Out | Work | TensorMap | Table


@dataclass(frozen=True)
class Start:
    """A kernel ready to be launched: only its pointers are missing.

    config    cuda.core's
    pointers  their places among the arguments
    early     the configuration by which it may begin while the kernel before it still runs; None where there is no such thing
    """

    kernel: Any
    config: Any
    args: tuple[Any, ...]
    pointers: tuple[tuple[int, Pointer], ...]
    early: Any = None

    @property
    def on_streams(self) -> Any:
        """The configuration of launches that are not captured."""
        return self.early if self.early and settings.early_launch() == "on" else self.config

    def packed(self, ins: Sequence[int], outs: Sequence[int], workspace: int = 0) -> list[Any]:
        """The kernel's parameters: pointers as int, numbers as NumPy scalars; of a table, 0."""
        args = list(self.args)
        for at, arg in self.pointers:
            if isinstance(arg, Table):
                continue
            tensor = arg.source if isinstance(arg, TensorMap) else arg
            if isinstance(tensor, Work):
                pointer = workspace
            else:
                pointer = ins[tensor.index] if isinstance(tensor, In) else outs[tensor.index]
            pointer += tensor.offset
            args[at] = describe(arg).at(pointer) if isinstance(arg, TensorMap) else pointer
        return args


def describe(tensor_map: TensorMap) -> Descriptors:
    """The descriptors of a TensorMap on the current device."""
    return descriptors(current_device().device_id, tensor_map)


def configuration(launch: Launch) -> dict[str, Any]:
    """The arguments of cuda.core's LaunchConfig, whose grid is of clusters if there are any."""
    shape: dict[str, Any] = {"grid": launch.grid, "block": launch.block, "shmem_size": launch.shared}
    if launch.cluster > 1:
        first, *others = launch.grid
        assert first % launch.cluster == 0, launch
        shape |= {"grid": (first // launch.cluster, *others), "cluster": launch.cluster}
    return shape


def parameters(args: Sequence[Any]) -> tuple[tuple[Any, ...], tuple[tuple[int, Pointer], ...]]:
    """The numbers of a kernel's arguments, with 0 for each pointer, and where the pointers go."""
    flat = list(_flat(args))
    numbers = tuple(a.dtype.numpy.type(a.value) if isinstance(a, Num) else 0 for a in flat)
    return numbers, tuple((i, a) for i, a in enumerate(flat) if not isinstance(a, Num))


def _flat(args: Sequence[Any]) -> Iterator[Any]:
    """Tuples of arguments become neighbours, as numba passes them."""
    for arg in args:
        if isinstance(arg, tuple):
            yield from _flat(arg)
        else:
            yield arg


def bind(
    start: Start, stream: Any, ins: Sequence[int], outs: Sequence[int], workspace: int = 0
) -> Callable[..., None]:
    """A call that launches a kernel on these pointers; another stream is its one optional argument, or one that is captured."""
    from cuda.core import launch

    kernel, config, args = start.kernel, start.on_streams, start.packed(ins, outs, workspace)
    tables = [
        (at, tables_of(arg).put(ins, outs, stream)) for at, arg in start.pointers if isinstance(arg, Table)
    ]
    for at, memory in tables:
        args[at] = int(memory.handle)

    def go(on: Any = stream, alive: Any = tables) -> None:
        if isinstance(on, Captured):
            on.launch(start.config, start.early, kernel, args)
        else:
            launch(on, config, kernel, *args)

    return go
