"""Copies of params in narrower types: which of them are out of date.

Plans of programs that compute in a half read them. A training plan writes those that it reads together with their params. What else writes a param, such as a state dict that is
loaded or a program of another policy, leaves copies behind; they are made again before the next run that reads them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from .plan import ExecPlan


class Copies:
    """Of one model on one device, by name. A run that follows one of the same plan costs three comparisons."""

    def __init__(self) -> None:
        self._params: dict[str, str] = {}  # copy -> param
        self._outdated: set[str] = set()
        self._last: frozenset[str] | None = None  # what the last plan wrote, if nothing was written since

    def __contains__(self, name: object) -> bool:
        return name in self._params

    @property
    def params(self) -> set[str]:
        return set(self._params.values())

    def add(self, found: Mapping[str, str]) -> None:
        """A new copy has no content yet."""
        new = {copy: param for copy, param in found.items() if copy not in self._params}
        self._params |= new
        self._outdated |= new.keys()
        self._last = None if new else self._last

    def outdate(self, params: Iterable[str], but: frozenset[str] = frozenset()) -> None:
        """These params are written, and of their copies those in `but` with them."""
        written = frozenset(params)
        self._outdated |= {c for c, param in self._params.items() if param in written and c not in but}
        self._last = None

    def outdated(self, plan: ExecPlan) -> list[tuple[str, str]]:
        """(copy, param) of those that a plan reads and that must be made before; they count as made."""
        found = sorted(self._outdated & plan.bound) if self._outdated else []
        self._outdated -= set(found)
        self._last = None if found else self._last
        return [(copy, self._params[copy]) for copy in found]

    def ran(self, plan: ExecPlan) -> None:
        """A run of the plan is done."""
        if plan.trains and self._params and self._last is not plan.written:
            self.outdate(plan.written, but=plan.written)
            self._last = plan.written
