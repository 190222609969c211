"""Modules found by where they lie: a new file of ops or kernels is in no list."""

from __future__ import annotations

from collections.abc import Iterable
from importlib import import_module
from pkgutil import iter_modules
from types import ModuleType


def modules_in(package: str, path: Iterable[str]) -> tuple[ModuleType, ...]:
    """The modules of a package, by name, imported; `path` is its `__path__`. Packages within it are left alone."""
    return tuple(import_module(f"{package}.{m.name}") for m in iter_modules(path) if not m.ispkg)


def packages_in(package: str, path: Iterable[str]) -> tuple[ModuleType, ...]:
    """The packages within a package, by name, imported."""
    return tuple(import_module(f"{package}.{m.name}") for m in iter_modules(path) if m.ispkg)
