"""Loads the ops and kernels, aicf's own and other packages' (B15), and turns a chosen kernel into a call."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache, partial
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
from .ops.schema import schema_of
from .registry.registry import KernelRegistry
from .registry.select import Selection, log_choice, select
from .registry.variant import HostCall, Launch
from .rows import RegionSpec
from .types import OpKind


Call = Callable[..., None]  # runs a bound kernel; on CUDA it takes another stream, or a graph builder, if given one


@lru_cache(maxsize=None)
def default_registry() -> KernelRegistry:
    """aicf's variants and those of installed packages; made once."""
    registry = KernelRegistry()
    for module in (*cpu_kernels.MODULES, *cuda_kernels.MODULES):
        registry.add_module(module)
    load_extensions(registry)
    return registry


def load_extensions(registry: KernelRegistry) -> list[str]:
    """Ops, variants and device specs of other packages, by entry points; returns what was loaded, `package: name`.

    aicf.ops       a module that declares ops with `@op` and `@elementwise`
    aicf.variants  a module that holds `@variant` records
    aicf.devices   a DeviceSpec
    """
    loaded = []
    for group in ("aicf.ops", "aicf.variants", "aicf.devices"):
        for point in sorted(entry_points(group=group), key=lambda p: (p.dist.name if p.dist else "", p.name)):
            package = point.dist.name if point.dist else point.module
            value = _load(point, package)
            if group == "aicf.variants":
                registry.add_module(value, origin=package)
            elif group == "aicf.devices":
                specs.PRESETS.setdefault(value.name, value)
            loaded.append(f"{package}: {point.name}")
    return loaded


def _load(point: EntryPoint, package: str) -> Any:
    wanted: type = DeviceSpec if point.group == "aicf.devices" else ModuleType
    try:
        value = point.load()
    except AicfError:
        raise
    except Exception as error:
        raise RegistryError(
            f"{package} brings {point.group} {point.name!r}, which can't be loaded: {error!r}",
            where=point.value, hint=f"pip uninstall {package}, or mend it",
        ) from error  # fmt: skip
    if not isinstance(value, wanted):
        raise RegistryError(
            f"{package}: entry point {point.name!r} of {point.group} is a {type(value).__name__}",
            expected=wanted.__name__, where=point.value,
        )  # fmt: skip
    return value


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
        self, kernel_id: str, region: RegionSpec, operands: Sequence[Tensor], results: Sequence[Tensor],
        workspace: Tensor | None = None,
    ) -> Call:  # fmt: skip
        """A call that runs the kernel on these tensors; it does nothing when every result is empty."""
        if all(t.numel == 0 for t in region.results):
            return _nothing
        built = self.build(kernel_id, region)
        if isinstance(built, HostCall):
            return _host_call(built, [t.array for t in operands], [t.array for t in results])
        from .cuda_kernels import engine

        scratch = workspace.ptr if workspace is not None else 0
        calls = [
            engine.bind(launch, region, self.runtime.stream, [t.ptr for t in operands], [t.ptr for t in results], scratch)
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
    kind: str, operands: Sequence[Tensor | None], results: Sequence[Tensor], attrs: Mapping[str, Any],
    runtime: Runtime, registry: KernelRegistry | None = None,
) -> Selection:  # fmt: skip
    """Infer, select and run one op on tensors of one runtime; the results are checked against the inferred types."""
    registry = registry or default_registry()
    schema = schema_of(kind)
    normal = schema.normalized([t.spec if t else None for t in operands], attrs)
    inferred = schema.infer([t.spec if t else None for t in operands], normal)
    for name, want, got in zip(schema.results, inferred, results):
        if (want.shape, want.dtype) != (got.spec.shape, got.spec.dtype):
            raise AicfError(f"{kind}: result {name} does not fit", expected=str(want), got=str(got.spec))
    region = RegionSpec.single(
        OpKind(kind), schema.pack(normal), [t.desc if t else None for t in operands], [t.desc for t in results]
    )
    selection = select(region, runtime.spec, registry)
    log_choice(selection, hex(runtime.stream_id))
    loader = KernelLoader(registry, runtime)
    loader.bind(selection.kernel_id, region, [t for t in operands if t is not None], list(results))()
    return selection
