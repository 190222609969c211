"""Kernels by what people call them: an id, a name, or a pattern of either; one that is not there is told with those spelt like it."""

from __future__ import annotations

import re
from collections.abc import Iterable
from difflib import get_close_matches
from fnmatch import fnmatchcase

from .. import near
from ..errors import MissingKernelError
from .registry import KernelRegistry
from .variant import KernelVariant


def matching(registry: KernelRegistry, pattern: str, device: str | None = None) -> tuple[KernelVariant, ...]:
    """The variants that a pattern means: of this kind of device if there are any, else of others. MissingKernelError if there are none.

    pattern  `cuda.gemm_wgmma_128x128.v1`, `gemm_wgmma_128x128`, `gemm_wgmma*`
    """
    found = tuple(v for v in registry if any(fnmatchcase(name, pattern) for name in (v.id, v.name)))
    if not found:
        raise _unknown(registry, pattern, device)
    return tuple(v for v in found if device in (None, v.device)) or found


def lacking(registry: KernelRegistry, patterns: str | Iterable[str]) -> KernelRegistry:
    """A registry that lacks every variant these patterns mean, or this one."""
    patterns = [patterns] if isinstance(patterns, str) else patterns
    gone = {v.id for pattern in patterns for v in matching(registry, pattern)}
    return KernelRegistry(v for v in registry if v.id not in gone) if gone else registry


def _unknown(registry: KernelRegistry, pattern: str, device: str | None) -> MissingKernelError:
    names = {v.name for v in registry if device in (None, v.device)} or {v.name for v in registry}
    stem = re.sub(r"^(cuda|cpu)\.|\.v\d+$", "", pattern.strip("*?"))
    words = get_close_matches(stem, {word for name in names for word in name.split("_")}, n=1)
    return MissingKernelError(
        f"no kernel is called {pattern!r}",
        expected="an id, a name, or a pattern such as gemm_wgmma*, of those that `aicf info` lists",
        hint=(f"'{stem}*'" if stem and any(name.startswith(stem) for name in names) else None)
        or near.hint(stem, {}, names)
        or (f"'*{words[0]}*'" if words else None),
    )
