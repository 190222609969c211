"""Kernels made ready: machine code found or compiled, here or by other processes.

Compiled kernels are kept in memory by their key (keys.py) and on disk (cache.py); compile.py makes what is not there yet, launching.py
loads and launches it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any, TypeVar

from ...code_cache import ledger
from ...errors import KernelCompileError
from ...progress import compiling
from ...progress import kernels as making_ready
from ...registry import blame
from ...registry.variant import Launch
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
from .launching import (
    STATIC_SHARED_LIMIT,
    Start,
    bind,
    configuration,
    current_device,
    describe,
    load,
    parameters,
    target_of,
)
from .simulate import simulate

T = TypeVar("T")

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


def prepare(launch: Launch, region: RegionSpec, kernel_id: str = "") -> Start:
    """Compile, or find, and load a kernel for the current device."""
    from cuda.core import LaunchConfig

    target = target_of(current_device())
    compiled = compile_launch(launch, region, target, kernel_id)
    kernel, shape = load(compiled, launch.shared), configuration(launch)
    early = LaunchConfig(**shape, programmatic_stream_serialization=True) if may_begin_early(target) else None
    return Start(kernel, LaunchConfig(**shape), *parameters(launch.args), early)


__all__ = [
    "STATIC_SHARED_LIMIT", "CompiledKernel", "Start", "bind", "compile_launch", "compile_shown", "configuration", "current_device", "describe", "kernel_name", "load",
    "parameters", "prepare", "ptx_of", "signature_of", "simulate", "target_of",
]  # fmt: skip
