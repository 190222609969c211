"""Kernels made ready and started: machine code found or compiled, loaded, packed, launched.

Compiled kernels are kept in memory by their key (keys.py) and on disk (cache.py); compile.py makes what is not there yet.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, TypeVar

from ... import config as settings
from ...code_cache import ledger
from ...collection import uncollected
from ...device.streams import Captured
from ...errors import DeviceError, KernelCompileError
from ...progress import compiling
from ...progress import kernels as making_ready
from ...registry import blame
from ...registry.variant import In, Launch, Num, Out, Table, TensorMap, Work
from ...rows import RegionSpec
from . import cache, workers
from .compile import (
    CompiledKernel,
    compile_kernel,
    compile_with_ptx,
    kernel_name,
    launch_bounds,
    may_begin_early,
    ptx_of,
    signature_of,
    waits_itself,
)
from .keys import kernel_key
from .simulate import simulate
from .table import tables_of
from .tensor_map import Descriptors, descriptors

T = TypeVar("T")
STATIC_SHARED_LIMIT = 48 * 1024  # above it, dynamic shared memory must be asked for kernel by kernel

# --- compiling --------------------------------------------------------------------------------------------------------

_COMPILED: dict[Any, CompiledKernel] = {}


def compile_launch(launch: Launch, region: RegionSpec, target: str, kernel_id: str = "") -> CompiledKernel:
    """One kernel, from this process's memory, from the disk, or compiled. Needs no GPU, and numba only to compile.

    `kernel_id` goes into error messages.
    """
    key = _key(launch, region, target, kernel_id)
    if (found := _cached(key, kernel_id)) is None:
        begun = cache.Begun(key, launch, region, target, kernel_id)
        with compiling(kernel_id or kernel_name(launch)):
            found = _compiled(launch, region, target, kernel_id, compile_kernel)
        _keep(key, found, begun)
    return found


def compile_shown(
    launch: Launch, region: RegionSpec, target: str, kernel_id: str = ""
) -> tuple[CompiledKernel, str]:
    """What `compile_launch` finds or compiles, with the PTX on its way there, to look at: no cache keeps PTX."""
    key = _key(launch, region, target, kernel_id)
    if (found := _cached(key, kernel_id)) is not None:
        return found, ptx_of(launch, region, target)
    begun = cache.Begun(key, launch, region, target, kernel_id)
    found, ptx = _compiled(launch, region, target, kernel_id, compile_with_ptx)
    _keep(key, found, begun)
    return found, ptx


def _keep(key: Any, made: CompiledKernel, begun: cache.Begun) -> None:
    _COMPILED[key] = made
    _AWAITED.pop(key, None)
    begun.done(made)


def _compiled(launch: Launch, region: RegionSpec, target: str, kernel_id: str, make: Callable[..., T]) -> T:
    """KernelCompileError, with the line of the body, where it can't be."""
    try:
        with uncollected():
            return make(launch, region, target)
    except Exception as error:
        unknown = next(blame.unknown_names(launch.body), None)
        in_body = unknown is not None or type(error).__module__.split(".")[0] == "numba"
        raise KernelCompileError(
            f"kernel {kernel_id or kernel_name(launch)} did not compile for {target}",
            where=blame.place(error, launch.body),
            got=f"there is no {unknown[2]!r}" if unknown else blame.told(error),
            hint="mend that line; docs/add-an-op.md shows how bodies are written"
            if in_body
            else "aicf doctor",
            details=[
                f"region: {region}",
                f"{kernel_name(launch)}({', '.join(map(str, signature_of(launch, region)))})",
            ],
        ) from error


def _key(launch: Launch, region: RegionSpec, target: str, kernel_id: str) -> Any:
    """What the kernel is kept by: text, or the body itself if that can't be described."""
    if wrong := blame.check_arguments(launch, region):
        raise KernelCompileError(
            f"kernel {kernel_id or kernel_name(launch)}: {wrong}", where=blame.definition(launch.body),
            details=[f"region: {region}"], hint="mend the Launch that its build returns",
        )  # fmt: skip
    signature = signature_of(launch, region)
    described = kernel_key(launch, signature, target, region.strict)
    how = launch_bounds(launch), region.strict, waits_itself(launch)
    return described or (launch.body, signature, target, *how)


def key_of(launch: Launch, region: RegionSpec, target: str, kernel_id: str = "") -> str | None:
    """What caches keep the kernel by; None if its body can't be described."""
    key = _key(launch, region, target, kernel_id)
    return key if isinstance(key, str) else None


def _cached(key: Any, kernel_id: str) -> CompiledKernel | None:
    found, where = _COMPILED.get(key), "memory"
    if found is None and isinstance(key, str) and (found := cache.load(key)):
        _COMPILED[key], where = found, "disk"
        ledger.note(kernel_id or found.name, where)
    if found is not None:
        cache.tell_hit(key, found, where)
    return found


Job = tuple[str, RegionSpec, list[Launch]]  # kernel id, region, launches


def precompile(kernels: Sequence[Job], target: str, build: Callable[[str, RegionSpec], list[Launch]]) -> None:
    """Compile what of (kernel id, region, launches) is nowhere yet, in several processes if there is much of it.

    build     what makes the launches of an id and a region; it is pickled, and called in other processes
    What can't be compiled there, such as a variant that only this process knows, is left to `compile_launch`.
    """
    jobs = [job for job, _ in _missing(kernels, target)]
    done: list[int] = []
    helpers = workers.helpers_for(len(jobs))
    if helpers == 0:
        return

    calls = [
        functools.partial(_build_and_compile, build, kernel_id, region, target)
        for kernel_id, region, _ in jobs
    ]
    with making_ready(len(jobs)) as ready:

        def told(i: int, finished: bool = True) -> None:  # by helpers' threads too
            done.extend([i] * finished)
            ready.done = len(done)
            ready.compiling(jobs[i][0])

        def here(i: int) -> None:
            told(i, False)
            _compile_all(*jobs[i], target)
            told(i)

        for made in workers.share(calls, here, helpers, told):
            _take_over(made)


_UNDERWAY: dict[Any, Future[list[Any]]] = {}  # keys of what is compiled in the background


def begin(
    kernels: Sequence[Job], target: str, build: Callable[[str, RegionSpec], list[Launch]]
) -> Callable[[], None]:
    """Have what is nowhere yet compiled by other processes, while this one goes on. What is returned waits for them.

    Without cores to spare nothing is begun. What was not compiled is left to `compile_launch`.
    """
    missing = _missing(kernels, target)
    new = [(job, keys) for job, keys in missing if not keys <= _UNDERWAY.keys()]
    helpers = workers.background_for(len(new))
    if helpers:
        # kernels with much shared memory are large: the last to be begun should be a small one
        calls = [
            (
                max(launch.shared for launch in made),
                functools.partial(_build_and_compile, build, kernel_id, region, target),
            )
            for (kernel_id, region, made), _ in new
        ]
        for future, (_, keys) in zip(workers.background.submit(calls, helpers), new):
            _UNDERWAY.update(dict.fromkeys(keys, future))
    awaited = {key: _UNDERWAY[key] for _, keys in missing for key in keys if key in _UNDERWAY}

    names = {key: job[0] for job, keys in missing for key in keys}

    def wait() -> None:
        with making_ready(len(awaited)) as ready:
            for ready.done, (key, future) in enumerate(awaited.items()):
                if not future.done():
                    ready.compiling(names[key])
                for made in future.result():
                    _take_over(made)
                if _UNDERWAY.get(key) is future:
                    _UNDERWAY.pop(key, None)

    return wait


_AWAITED: dict[Any, tuple[str, str]] = {}  # of what is compiled nowhere yet the kernel's id, and why


def _take_over(made: dict[Any, CompiledKernel]) -> None:
    """What another process has compiled, and stored."""
    for key, kernel in made.items():
        if key not in _COMPILED:
            name, why = _AWAITED.pop(key, (kernel.name, ledger.NEW))
            ledger.note(name, "compiled", why=why)
            cache.tell_compiled(key, kernel, why, name)
    _COMPILED.update(made)


def _missing(kernels: Sequence[Job], target: str) -> list[tuple[Job, set[Any]]]:
    """Of these kernels those that are compiled nowhere, each once, with the keys of their launches that are not."""
    found: list[tuple[Job, set[Any]]] = []
    claimed: set[Any] = set()
    for job in kernels:
        keys = {_key(launch, job[1], target, job[0]): launch for launch in job[2]}
        missing = {key for key in keys if _cached(key, job[0]) is None} - claimed
        if missing:
            for key in missing:  # now: whoever compiles it writes down by what
                _AWAITED[key] = job[0], cache.Begun(key, keys[key], job[1], target, job[0]).why
            found.append((job, missing))
            claimed |= missing
    return found


def _build_and_compile(
    build: Callable[[str, RegionSpec], list[Launch]], kernel_id: str, region: RegionSpec, target: str
) -> dict[Any, CompiledKernel]:
    return _compile_all(kernel_id, region, build(kernel_id, region), target)


def _compile_all(
    kernel_id: str, region: RegionSpec, launches: list[Launch], target: str
) -> dict[str, CompiledKernel]:
    keys = [_key(launch, region, target, kernel_id) for launch in launches]
    made = [compile_launch(launch, region, target, kernel_id) for launch in launches]
    return {key: kernel for key, kernel in zip(keys, made) if isinstance(key, str)}


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


def prepare(launch: Launch, region: RegionSpec, kernel_id: str = "") -> Start:
    """Compile, or find, and load a kernel for the current device."""
    from cuda.core import LaunchConfig

    target = target_of(current_device())
    compiled = compile_launch(launch, region, target, kernel_id)
    kernel, shape = load(compiled, launch.shared), configuration(launch)
    early = LaunchConfig(**shape, programmatic_stream_serialization=True) if may_begin_early(target) else None
    return Start(kernel, LaunchConfig(**shape), *parameters(launch.args), early)


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


__all__ = [
    "CompiledKernel", "Start", "bind", "compile_launch", "compile_shown", "current_device", "describe", "kernel_name", "load",
    "parameters", "prepare", "ptx_of", "signature_of", "simulate", "target_of",
]  # fmt: skip
