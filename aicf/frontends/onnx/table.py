"""The rules, by op: what each node becomes. A rule is for an op's definitions since a version of the ops; the files of `rules` have them."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any


@dataclass(frozen=True)
class OnnxRule:
    """function   of (call, *operands), None for those left out: returns the results, one or a tuple
    until         the last version of the ops whose definition it is for, 0 for all that are known
    folds         whether it is computed while the graph is read where all its operands are known
    """

    op: str
    since: int
    until: int
    function: Callable[..., Any]
    folds: bool = True


_RULES: dict[tuple[str, str], list[OnnxRule]] = {}


def rule(
    *ops: str, since: int = 1, until: int = 0, domain: str = "", folds: bool = True
) -> Callable[[Any], Any]:
    """Decorates the rule of some ops."""

    def register(function: Any) -> Any:
        for op in ops:
            _RULES.setdefault((domain, op), []).append(OnnxRule(op, since, until, function, folds))
        return function

    return register


@cache
def _load() -> None:
    from . import rules

    for module in pkgutil.iter_modules(rules.__path__):
        importlib.import_module(f"{rules.__name__}.{module.name}")


def find(domain: str, op: str, version: int) -> OnnxRule | None:
    """The rule for the definition of an op that came with this version."""
    _load()
    fits = [
        r for r in _RULES.get((domain, op), ()) if r.since <= version and (not r.until or version <= r.until)
    ]
    return max(fits, key=lambda r: r.since, default=None)


def without_rule(domain: str, op: str, version: int) -> str:
    """Why there is no rule for the definition of an op that came with this version."""
    _load()
    since = [r.since for r in _RULES.get((domain, op), ()) if r.since > version]
    if not since:
        return "aicf has no rule for it"
    return f"aicf has no rule for its definition of version {version}, but for those from version {min(since)} on"


def covered() -> list[tuple[str, str]]:
    """All ops that have a rule, as (domain, op)."""
    _load()
    return sorted(_RULES)
