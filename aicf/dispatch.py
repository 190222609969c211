"""Loads the ops and kernels, aicf's own and other packages' (B15), and turns a chosen kernel into a call."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from importlib.metadata import EntryPoint, entry_points
from types import ModuleType
from typing import Any

from . import cpu_kernels, cuda_kernels
from . import ops as _ops  # noqa: F401  (registers aicf's own ops)
from .device import spec as specs
from .device.runtime import Runtime
from .device.spec import DeviceSpec
from .device.tensor import Tensor
from .errors import AicfError, RegistryError
from .ops import record
from .ops.schema import schema_of
from .registry.registry import KernelRegistry
from .registry.select import Selection, log_choice, select
from .registry.variant import HostCall, Launch
from .rows import RegionSpec
from .types import OpKind

# Runs a bound kernel; on CUDA it takes another stream, or a graph builder, if given one.
Call = Callable[..., None]


@cache
def default_registry() -> KernelRegistry:
    """aicf's variants and those of installed packages; made once."""
    registry = KernelRegistry()
    for module in (*cpu_kernels.MODULES, *cuda_kernels.MODULES):
        registry.add_module(module)
    load_extensions(registry)
    return registry


def load_extensions(registry: KernelRegistry) -> list[str]:
    """Ops, devices and variants of other packages, by entry points; returns the variants' `package: name`.

    aicf.ops       a module that declares ops with `@op` and `@elementwise`; loaded when an unknown op is asked for
    aicf.devices   a DeviceSpec; loaded when an unknown device is asked for
    aicf.variants  a module that holds `@variant` records
    """
    _load_ops()
    _load_devices()
    loaded = []
    for package, point in _points("aicf.variants"):
        module = _load(point, package)
        try:
            registry.add_module(module, origin=package)
        except AicfError as error:
            raise _broken(point, package, error) from error
        loaded.append(f"{package}: {point.name}")
    return loaded


def _load_ops() -> None:
    for package, point in _unseen("aicf.ops"):
        _load(point, package)


def _load_devices() -> None:
    for package, point in _unseen("aicf.devices"):
        device = _load(point, package)
        specs.PRESETS.setdefault(device.name, device)


record.load_more, specs.load_more = _load_ops, _load_devices


def _points(group: str) -> list[tuple[str, EntryPoint]]:
    found = [(p.dist.name if p.dist else p.module, p) for p in entry_points(group=group)]
    return sorted(found, key=lambda pair: (pair[0], pair[1].name))


_seen: set[str] = set()


def _unseen(group: str) -> list[tuple[str, EntryPoint]]:
    """The group's entry points the first time; nothing after that, nor while they are being loaded."""
    if group in _seen:
        return []
    _seen.add(group)
    return _points(group)


def _load(point: EntryPoint, package: str) -> Any:
    wanted: type = DeviceSpec if point.group == "aicf.devices" else ModuleType
    try:
        value = point.load()
    except Exception as error:
        _seen.discard(point.group)
        raise _broken(point, package, error) from error
    if not isinstance(value, wanted):
        _seen.discard(point.group)
        raise RegistryError(
            f"{package}: entry point {point.name!r} of {point.group} is a {type(value).__name__}",
            expected=wanted.__name__, where=point.value,
        )  # fmt: skip
    return value


def _broken(point: EntryPoint, package: str, error: Exception) -> RegistryError:
    why = error.what if isinstance(error, AicfError) else repr(error)
    return RegistryError(
        f"{package} brings {point.group} {point.name!r}, which can't be loaded: {why}",
        where=point.value, hint=f"pip uninstall {package}, or mend it",
    )  # fmt: skip


class KernelLoader:
    """Builds and compiles chosen kernels for one runtime, each region once. Plans launch by id only (B14)."""

    def __init__(self, registry: KernelRegistry, runtime: Runtime) -> None:
        self.registry, self.runtime = registry, runtime
        self._built: dict[tuple[str, RegionSpec], HostCall | list[Launch]] = {}

    def build(self, kernel_id: str, region: RegionSpec) -> HostCall | list[Launch]:
        key = (kernel_id, region)
        if key not in self._built:
            variant = self.registry.by_id(kernel_id)
            self._built[key] = variant.build(region, self.runtime.spec)
        return self._built[key]

    def bind(
        self,
        kernel_id: str,
        region: RegionSpec,
        operands: Sequence[Tensor],
        results: Sequence[Tensor],
        workspace: Tensor | None = None,
    ) -> Call:
        """A call that runs the kernel on these tensors; it does nothing when every result is empty."""
        if all(t.numel == 0 for t in region.results):
            return _nothing
        built = self.build(kernel_id, region)
        if isinstance(built, HostCall):
            return _host_call(built, [t.array for t in operands], [t.array for t in results])
        from .cuda_kernels import engine

        scratch = workspace.ptr if workspace is not None else 0
        calls = [
            engine.bind(
                launch,
                region,
                self.runtime.stream,
                [t.ptr for t in operands],
                [t.ptr for t in results],
                scratch,
            )
            for launch in built
        ]
        return calls[0] if len(calls) == 1 else partial(_all, calls)


def _nothing(*on: Any) -> None:
    pass


def _host_call(built: HostCall, operands: list[Any], results: list[Any]) -> Call:
    return lambda *on: built.function(operands, results)


def _all(calls: list[Call], *on: Any) -> None:
    for call in calls:
        call(*on)


def run_op(
    kind: str,
    operands: Sequence[Tensor | None],
    results: Sequence[Tensor],
    attrs: Mapping[str, Any],
    runtime: Runtime,
    registry: KernelRegistry | None = None,
) -> Selection:
    """Infer, select and run one op on tensors of one runtime; the results are checked against the inferred types."""
    registry = registry or default_registry()
    op = schema_of(kind)
    normal = op.normalized([t.spec if t is not None else None for t in operands], attrs)
    inferred = op.infer([t.spec if t is not None else None for t in operands], normal)
    for name, want, got in zip(op.results, inferred, results):
        if (want.shape, want.dtype) != (got.spec.shape, got.spec.dtype):
            raise AicfError(f"{kind}: result {name} does not fit", expected=str(want), got=str(got.spec))
    region = RegionSpec.single(
        OpKind(kind),
        op.pack(normal),
        [t.desc if t is not None else None for t in operands],
        [t.desc for t in results],
    )
    selection = select(region, runtime.spec, registry)
    log_choice(selection, hex(runtime.stream_id))
    loader = KernelLoader(registry, runtime)
    loader.bind(selection.kernel_id, region, [t for t in operands if t is not None], list(results))()
    return selection
