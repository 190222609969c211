"""The default registry: aicf's own ops and kernels, and what other packages bring by entry points."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from types import ModuleType
from typing import Any

from .. import cpu_kernels
from .. import ops as _ops  # noqa: F401  (registers aicf's own ops)
from ..device.spec import PRESETS, DeviceSpec
from ..errors import AicfError, RegistryError
from ..registry.registry import KernelRegistry


@cache
def default_registry() -> KernelRegistry:
    """aicf's variants and those of installed packages; made once. Those of CUDA are imported when CUDA is first chosen for."""
    registry = KernelRegistry()
    for module in cpu_kernels.MODULES:
        registry.add_module(module)
    registry.defer("cuda", _cuda_modules)
    load_extensions(registry)
    return registry


def _cuda_modules() -> Iterable[ModuleType]:
    from .. import cuda_kernels

    return cuda_kernels.MODULES


def load_extensions(registry: KernelRegistry) -> list[str]:
    """Ops, devices and variants of other packages, by entry points; returns the variants' `package: name`.

    aicf.ops       a module that declares ops with `@op` and `@elementwise`; loaded when an unknown op is asked for
    aicf.devices   a DeviceSpec; loaded when an unknown device is asked for
    aicf.variants  a module that holds `@variant` records
    """
    load_ops()
    load_devices()
    loaded = []
    for package, point in _points("aicf.variants"):
        module = _load(point, package)
        try:
            registry.add_module(module, origin=package)
        except AicfError as error:
            raise _broken(point, package, error) from error
        loaded.append(f"{package}: {point.name}")
    return loaded


def load_ops() -> None:
    for package, point in _unseen("aicf.ops"):
        _load(point, package)


def load_devices() -> None:
    for package, point in _unseen("aicf.devices"):
        device = _load(point, package)
        PRESETS.setdefault(device.name, device)


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
