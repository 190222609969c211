"""What is computed of params and kept from run to run, and which of it is out of date.

    copies     of params in narrower types, which plans of programs that compute in a half read. A training plan writes those that it reads
               together with their params
    results    of setups: what a plan reads that depends on params, states and constants alone

What else writes a param, such as a state dict that is loaded or a program of another policy, leaves them behind; they are made again before
the next run that reads them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from .plan import ExecPlan


class Derived:
    """Of one model on one device, by name. A run that follows one of the same plan costs three comparisons."""

    def __init__(self) -> None:
        self._params: dict[str, str] = {}  # copy -> param
        self._sources: dict[str, frozenset[str]] = {}  # of all: the params and states that it is made of
        self._outdated: set[str] = set()
        self._last: frozenset[str] | None = None  # what the last plan wrote, if nothing was written since

    def __contains__(self, name: object) -> bool:
        return name in self._sources

    def add(self, found: Mapping[str, str]) -> None:
        """Copies, with their params. A new one has no content yet."""
        self._params.update({copy: param for copy, param in found.items() if copy not in self._params})
        self._add({copy: frozenset((param,)) for copy, param in found.items()})

    def add_results(self, setup: ExecPlan) -> None:
        """Of each: where it comes from."""
        self._add({name: self._through_copies(made_of) for name, made_of in sources_of(setup).items()})

    def _through_copies(self, names: Iterable[str]) -> frozenset[str]:
        found = frozenset(names)
        return found.union(*(self._sources[name] for name in found if name in self._sources))

    def _add(self, found: Mapping[str, frozenset[str]]) -> None:
        new = {name: made_of for name, made_of in found.items() if name not in self._sources}
        self._sources |= new
        self._outdated |= new.keys()
        self._last = None if new else self._last

    def outdate(self, written: Iterable[str], but: frozenset[str] = frozenset()) -> None:
        """These params and states are written, and of what is made of them those in `but` with them."""
        names = frozenset(written)
        self._outdated |= {
            d for d, made_of in self._sources.items() if d not in but and not names.isdisjoint(made_of)
        }
        self._last = None

    def outdate_all(self) -> None:
        """Whatever was written."""
        self._outdated |= self._sources.keys()
        self._last = None

    def outdated_copies(self, plan: ExecPlan) -> list[tuple[str, str]]:
        """(copy, param) of those that a plan reads and that must be made before; they count as made."""
        found = sorted(self._outdated & plan.bound & self._params.keys()) if self._outdated else []
        self._made(found)
        return [(copy, self._params[copy]) for copy in found]

    def outdated_setup(self, plan: ExecPlan) -> ExecPlan | None:
        """The plan's setup, if it must run before; its results count as made. Copies must have been made before."""
        if not self._outdated or self._outdated.isdisjoint(plan.derived):
            return None
        self._made(plan.derived)
        return plan.setup

    def _made(self, names: Iterable[str]) -> None:
        made = set(names)
        self._outdated -= made
        self._last = None if made else self._last

    def ran(self, plan: ExecPlan) -> None:
        """A run of the plan is done."""
        if plan.updates and self._sources and self._last is not plan.written:
            self.outdate(plan.written, but=plan.written)
            self._last = plan.written


def sources_of(setup: ExecPlan) -> dict[str, frozenset[str]]:
    """Of each result the names of the params and states that it is made of."""
    made_of = {slot.vid: frozenset((slot.name,)) for slot in setup.externals()}
    for step in setup.steps:
        made_of.update(dict.fromkeys(step.out_vids, frozenset().union(*(made_of[v] for v in step.in_vids))))
    return {slot.name: made_of[slot.vid] for slot in setup.outputs}
