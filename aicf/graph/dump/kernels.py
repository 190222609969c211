"""A plan's kernels as files: source, parameters, PTX, SASS and ptxas of a GPU's; loops, LLVM IR and assembly of the host's."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

from ...device.spec import DeviceSpec
from ...errors import AicfError
from ...progress import kernels as making_ready
from ...registry import blame
from ...registry.registry import KernelRegistry
from ...registry.variant import Built, Collective, HostCall, Launch
from ...rows import RegionSpec
from ..run.plan import ExecPlan
from .folder import DumpFolder, slug
from .source import python_of

FAILED = "error.txt"  # of a kernel that can't be built, or does not compile


def write_kernels(folder: DumpFolder, plan: ExecPlan, registry: KernelRegistry, device: DeviceSpec) -> None:
    """A folder for each kernel of each region, in the order of the steps: those of the setup, then those of a run."""
    steps: dict[tuple[str, RegionSpec], list[str]] = {}
    for prefix, part in (("setup ", plan.setup), ("", plan)):
        for n, step in enumerate(part.steps if part else ()):
            if step.kernel_id and any(t.numel for t in step.region.results):
                steps.setdefault((step.kernel_id, step.region), []).append(f"{prefix}{n}")
    width = max(2, len(str(len(steps))))
    with making_ready(len(steps)) as ready:
        for ready.done, ((kernel_id, region), used) in enumerate(steps.items()):
            ready.compiling(kernel_id)
            place = f"kernels/{ready.done:0{width}}-{slug(kernel_id)}"
            try:
                _write_kernel(folder, place, kernel_id, region, used, registry, device)
            except OSError:
                raise
            except Exception as error:  # the program meets it again, and tells, where it binds the kernel
                told = str(error) if isinstance(error, AicfError) else f"{type(error).__name__}: {error}"
                folder.write(f"{place}/{FAILED}", told)


def _write_kernel(
    folder: DumpFolder, place: str, kernel_id: str, region: RegionSpec, used: Sequence[str], registry: KernelRegistry,
    device: DeviceSpec,
) -> None:  # fmt: skip
    folder.write(f"{place}/region.json", json.dumps(region.to_json(), indent=1))
    built = blame.built(registry.by_id(kernel_id), region, device)
    folder.write(f"{place}/kernel.txt", "\n".join(_about(kernel_id, region, used, built)))
    if isinstance(built, HostCall):
        _write_host(folder, place, built)
    elif isinstance(built, list):
        for i, launch in enumerate(built):
            _write_launch(folder, place, f"-{i + 1}" if i else "", launch, region, device.target, kernel_id)


def _about(kernel_id: str, region: RegionSpec, used: Sequence[str], built: Built) -> Iterator[str]:
    yield f"kernel   {kernel_id}"
    yield f"steps    {', '.join(used)}"
    yield f"region   {region.signature}"
    yield f"reads    {', '.join(map(str, region.operands)) or 'nothing'}"
    yield f"writes   {', '.join(map(str, region.results))}"
    for op in region.ops:
        yield f"  {list(op.outputs)} = {op.kind.name}{list(op.inputs)} {op.attrs}"
    if isinstance(built, Collective):
        yield f"of {built.ranks} ranks: {built}"
    if not isinstance(built, list):
        return
    for n, launch in enumerate(built):
        yield f"launch {n}: grid {launch.grid}, block {launch.block}, cluster {launch.cluster}, {launch.shared} B of dynamic shared memory"
        yield from (f"  argument {i}: {arg}" for i, arg in enumerate(launch.args))


def _write_launch(
    folder: DumpFolder, place: str, more: str, launch: Launch, region: RegionSpec, target: str, kernel_id: str
) -> None:
    from ...cuda_kernels.compiler import shown

    name = f"{place}/kernel{more}"
    folder.write(f"{name}.py", python_of(launch.body))
    made, ptx = shown.compiled_and_ptx(launch, region, target, kernel_id)
    folder.write(f"{name}.ptx", ptx)
    folder.write_bytes(f"{name}.cubin", made.cubin)
    folder.write(f"{name}.sass", shown.sass(made.cubin))
    folder.write(
        f"{place}/ptxas{more}.txt", shown.resources(made, shown.key_of(launch, region, target, kernel_id))
    )


def _write_host(folder: DumpFolder, place: str, built: HostCall) -> None:
    from ...cpu_kernels.compiler import shown

    folder.write(f"{place}/kernel.py", python_of((built.function, built.bind)))
    loops: list[Any] = shown.loops_of((built.function, built.bind))
    if not loops:
        folder.write(f"{place}/loops.txt", "no compiled loop: it calls NumPy, as kernel.py says")
    for n, spec in enumerate(loops, 1):
        folder.write(f"{place}/loop-{n}.txt", shown.spec_text(spec))
        folder.write(f"{place}/loop-{n}.py", python_of(shown.expressions(spec)))
        ir, assembly = shown.code_texts(spec)
        folder.write(f"{place}/loop-{n}.ll", ir)
        folder.write(f"{place}/loop-{n}.s", assembly)
