"""The table of rules: which function emits which operation. `rules/` fills it; a new file there is found by where it lies."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ...ir import Value

Rule = Callable[..., "Value | tuple[Value, ...] | list[Value]"]  # (emission, node, *operands)

RULES: dict[str, Rule] = {}


def rule(*names: str, **more: Any) -> Callable[[Rule], Rule]:
    """Declare the rule of operations: `@rule("stablehlo.slice")`. Keywords are given to it with each node."""

    def declare(function: Rule) -> Rule:
        for name in names:
            assert name not in RULES, name
            RULES[name] = (lambda e, node, *xs: function(e, node, *xs, **more)) if more else function
        return function

    return declare


class UnsupportedForm(Exception):
    """An operation, or this form of it, that aicf's ops can't say. The text is the reason."""
