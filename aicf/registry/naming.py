"""Kernels by what people call them: an id, a name, or a pattern of either; one that is not there is told with those spelt like it."""

from __future__ import annotations

import re
from collections.abc import Iterable
from difflib import get_close_matches
from fnmatch import fnmatchcase

from .. import near
from ..errors import MissingKernelError
from .ids import former
from .registry import KernelRegistry
from .variant import KernelVariant


def matching(registry: KernelRegistry, pattern: str, device: str | None = None) -> tuple[KernelVariant, ...]:
    """The variants that a pattern means: of this kind of device if there are any, else of others. MissingKernelError if there are none.

    pattern  `cuda.gemm_wgmma.v1[128x128]`, `gemm_wgmma[128x128]`, `gemm_wgmma` in all configs, `gemm_wgmma[128x*`, or one of a former id;
             a bracket before a digit, `*` or `?` is the id's; any other begins a class of characters where that finds some, or else is the id's
    """
    matches: tuple[KernelVariant, ...] = ()
    for glob in _globs(pattern):
        matches = matches or tuple(v for v in registry if any(fnmatchcase(name, glob) for name in _names(v)))
    if not matches:
        raise _unknown(registry, pattern, device)
    return tuple(v for v in matches if device in (None, v.device)) or matches


def _globs(pattern: str) -> list[str]:
    """What a pattern may mean, first things first: an id or name, one with classes of characters, one whose last bracket is before a config."""
    start, _, config = pattern.rpartition("[")
    literal, classes = (
        pattern.replace("[", "[[]"),
        [re.sub(r"\[(?=[\d*?])", "[[]", p) for p in (pattern, start)],
    )
    return [literal, classes[0]] + ["[[]".join((classes[1], config))] * bool(start)


def _names(variant: KernelVariant) -> set[str]:
    """What a variant is, and was, called: with and without device, version and config."""
    ids = variant.id, variant.kernel, former(variant.id)
    return {name for id in ids for name in (id, re.sub(r"^\w+\.|\.v\d+", "", id))}


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
