"""Kernels by what people call them: an id, a name, or a pattern of either; one that is not there is told with those spelt like it."""

from __future__ import annotations

import re
from collections.abc import Iterable
from difflib import get_close_matches
from fnmatch import fnmatchcase

from .. import near
from ..errors import MissingKernelError
from .ids import current
from .registry import KernelRegistry
from .variant import KernelVariant


def matching(registry: KernelRegistry, pattern: str, device: str | None = None) -> tuple[KernelVariant, ...]:
    """The variants that a pattern means: of this kind of device if there are any, else of others. MissingKernelError if there are none.

    pattern  `cuda.gemm_wgmma.v1[128x128]`, `gemm_wgmma[128x128]`, `gemm_wgmma` in all configs, `gemm_wgmma[128x*`; brackets are the id's
    """
    glob = current(pattern).replace("[", "[[]")
    names = [(v, (v.id, v.name, v.kernel, v.name.partition("[")[0])) for v in registry]
    found = tuple(v for v, called in names if any(fnmatchcase(name, glob) for name in called))
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
    stem = re.sub(r"^(cuda|cpu)\.|\.v\d+", "", pattern.strip("*?"))
    words = get_close_matches(
        stem, {word for name in names for word in name.partition("[")[0].split("_")}, n=1
    )
    return MissingKernelError(
        f"no kernel is called {pattern!r}",
        expected="an id, a name, or a pattern such as gemm_wgmma*, of those that `aicf info` lists",
        hint=(f"'{stem}*'" if stem and any(name.startswith(stem) for name in names) else None)
        or near.hint(stem, {}, names)
        or (f"'*{words[0]}*'" if words else None),
    )
