"""The plans of a program: which one a feed needs, and making those that are not there yet."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import NoReturn

from ...device.foreign import Foreign
from ...device.reading import remember
from ...device.tensor import Runtime
from ...errors import FeedError, Immovable, TypeInferenceError, VerifyError
from ...ir import Recognised, Role
from ..emit.trace import FED, Recipe, trace
from ..fuse import Region
from ..fuse.once import KeptOnce
from .compilations import Compilations
from .explain import Explanation, explain
from .frozen import ReplayPolicy
from .plan import ExecPlan, Slot
from .ran import FirstRun
from .slots import check_feed, examine_feed, feed_error
from .tell import tell_plan
from .variables import Variables

MAX_ENTRIES = 32  # plans, and frozen plans, that a program keeps; the least recently used goes first


@dataclass(frozen=True)
class CompiledPlan(Immovable):
    """regions   of the plan's steps; `once` those of its setup's; `told` what was said of what could be computed once
    watch     wants to know of the first run
    """

    plan: ExecPlan
    regions: tuple[Region, ...]
    recognised: tuple[Recognised, ...] = ()
    once: tuple[Region, ...] = ()
    told: tuple[KeptOnce, ...] = ()
    watch: FirstRun | None = None
    instead = "its plan can be, and plan.to_json() saves it"

    def explained(self) -> Explanation:
        return explain(self.plan, self.regions, self.recognised, self.once, self.told)


Specialise = Callable[[Mapping[str, int], str], CompiledPlan]  # of sizes and a phase


class ProgramPlans:
    """By sizes and phase.

    compilations  what was compiled for, and why again
    names         variables that the plans use: what the program's state dict holds
    watches       by plan, of those that have not run
    """

    def __init__(
        self,
        recipe: Recipe,
        runtime: Runtime,
        variables: Variables,
        policy: ReplayPolicy,
        specialise: Specialise,
    ) -> None:
        self.recipe, self.runtime, self.variables, self.policy = recipe, runtime, variables, policy
        self.compilations = Compilations(f"{recipe.mode} on {runtime.spec.name}")
        self.names: set[str] = set()
        self.watches: dict[str, FirstRun] = {}
        self._specialise = specialise
        self._by_sizes: OrderedDict[tuple, CompiledPlan] = OrderedDict()

    def __len__(self) -> int:
        return len(self._by_sizes)

    @property
    def newest(self) -> CompiledPlan | None:
        return next(reversed(self._by_sizes.values()), None)

    def compiled(self, sizes: Mapping[str, int] | None = None, phase: str | None = None) -> CompiledPlan:
        """The plan for some sizes of the named dimensions; the model's own sizes if none are given."""
        known = self.recipe.model.sizes
        if unknown := sorted(set(sizes or {}) - set(known)):
            raise VerifyError(
                f"no input has a dimension called {unknown[0]!r}",
                expected=", ".join(sorted(known)) or "no sizes",
            )
        sizes = {**known, **(sizes or {})}
        phase = phase or self.phase()
        key = (phase, *sorted(sizes.items()))
        with self.variables.lock:  # a thread may ask for an explanation while another one runs
            found = self._by_sizes.get(key)
            if found is None:
                found = self._if_fed_the_same(key) or self._made(sizes, phase)
                self.names.update(found.plan.bound)
                remember(self._by_sizes, key, found, MAX_ENTRIES)
            else:
                self._by_sizes.move_to_end(key)
            return found

    def _made(self, sizes: Mapping[str, int], phase: str) -> CompiledPlan:
        facts = {**sizes, **_phase_told(phase)}
        start, why = time.perf_counter(), self.compilations.why("plan", facts)
        with self.compilations.made("plan", facts, why):
            made = self._specialise(sizes, phase)
        seconds = time.perf_counter() - start
        if made.watch is not None:
            self.watches[made.plan.key] = made.watch
        tell_plan(made.plan, made.regions, made.once, self.runtime, phase, sizes, seconds, why)
        return made

    def _if_fed_the_same(self, key: tuple) -> CompiledPlan | None:
        """For runs that are fed params the plan of those that are not, if nothing of it is derived of params."""
        plain = self._by_sizes.get(("step", *key[1:])) if key[0] == FED else None
        narrow = self.recipe.types.narrow is not None
        return plain if plain is not None and not narrow and plain.plan.setup is None else None

    def phase(self, fed: Collection[str] = ()) -> str:
        """A training program steps as soon as its number of runs is in the sums, whoever made them. Others have a plan of its own for
        runs that may be fed params or states: nothing in it is derived of those."""
        if self.recipe.mode != "train":
            return FED if self._copies_variables or any(map(self._is_kept, fed)) else "step"
        wanted = self.recipe.accumulate
        return "step" if wanted == 1 or self.variables.accumulated + 1 >= wanted else "accumulate"

    @property
    def _copies_variables(self) -> bool:
        """Whether each replay copies params or states, which may be fed to it."""
        return bool(self.policy.copy_roles - {Role.input})

    def _is_kept(self, name: str) -> bool:
        return name not in self.recipe.model.inputs and name in self.variables

    # --- feeds --------------------------------------------------------------------------------------------------------

    def checked(self, adopted: Mapping[str, Foreign | FeedError]) -> tuple[CompiledPlan, dict[str, Foreign]]:
        """The plan for a feed, and the fed tensors, all right; or one FeedError with everything that is wrong."""
        compiled, sizes = self._compiled_for(adopted)
        inputs = compiled.plan.externals(Role.input)
        if self.recipe.mode != "train":  # then fed params and states take the variables' place for a run
            kept, derived = compiled.plan.externals(Role.param, Role.state), self.variables.shared.derived
            inputs = [*inputs, *(s for s in kept if s.name in adopted and s.name not in derived)]
        because = f" with {sizes}" if sizes else ""
        return compiled, check_feed(
            inputs, adopted, self.runtime.place, frozenset(self.variables.names()), because
        )

    def facts(self, found: Mapping[str, Foreign]) -> dict[str, str]:
        """What a bound plan is good for, by name: types and places of feeds."""
        types = {
            name: f"{fed.desc.dtype}[{'x'.join(map(str, fed.desc.shape))}] on {fed.place}"
            for name, fed in sorted(found.items())
        }
        return {**types, **_phase_told(self.phase(found))}

    def _compiled_for(self, adopted: Mapping[str, Foreign | FeedError]) -> tuple[CompiledPlan, str]:
        """The plan for the sizes of the fed inputs, and those in words. Where they don't fit the model, FeedError."""
        sizes: dict[str, int] = {}
        first: dict[str, str] = {}
        expected: dict[str, str] = {}
        fits = True
        for name, spec in self.recipe.model.inputs.items():
            fed = adopted.get(name)
            if not isinstance(fed, Foreign) or fed.desc.rank != spec.rank:
                fits = False
                continue
            for dim, size in zip(spec.shape, fed.desc.shape):
                if isinstance(dim, str):
                    first.setdefault(dim, name)
                    if sizes.setdefault(dim, size) != size:
                        expected[name] = f"{dim} = {sizes[dim]}, as in {first[dim]}"
                elif dim != size:
                    fits = False
        if expected or not fits:
            self._refuse(adopted, sizes, expected)
        chosen = ", ".join(f"{dim} = {size} from {first[dim]}" for dim, size in sizes.items())
        try:
            return self.compiled(sizes, self.phase(adopted)), chosen
        except TypeInferenceError as error:
            fed_shapes = ", ".join(f"{n} {f.desc}" for n, f in adopted.items() if isinstance(f, Foreign))
            raise FeedError(
                f"the model does not work for {chosen}",
                details=str(error).splitlines(),
                expected=", ".join(f"{n} {s}" for n, s in self.recipe.model.inputs.items()),
                got=fed_shapes,
            ) from error

    def _refuse(
        self,
        adopted: Mapping[str, Foreign | FeedError],
        sizes: Mapping[str, int],
        expected: Mapping[str, str],
    ) -> NoReturn:
        """FeedError with everything that is wrong with the feed; no plan is made for it."""
        try:
            graph = trace(self.recipe, {**self.recipe.model.sizes, **sizes}, self.runtime.kind)
        except TypeInferenceError:  # these sizes fit no layer: say what the model's own would want
            graph = trace(self.recipe, self.recipe.model.sizes, self.runtime.kind)
        slots = [Slot(v.vid, v.name, v.spec, v.role) for v in graph.externals(Role.input)]
        _, problems = examine_feed(slots, adopted, self.runtime.place, frozenset(self.variables.names()))
        raise feed_error(
            [
                (name, expected.get(name, wanted), got, hint or self._fixed(name, adopted.get(name)))
                for name, wanted, got, hint in problems
            ]
        )

    def _fixed(self, name: str, fed: Foreign | FeedError | None) -> str | None:
        """What to do where a size is fed that the model declares as a number."""
        declared = self.recipe.model.inputs.get(name)
        if declared is None or not isinstance(fed, Foreign) or fed.desc.rank != declared.rank:
            return None
        if all(isinstance(size, str) or size == n for size, n in zip(declared.shape, fed.desc.shape)):
            return None
        return f"{name} is declared {declared}: only dimensions that have names follow the feed"


def _phase_told(phase: str) -> dict[str, str]:
    """What a plan is for, where that is more than a run of the program's mode."""
    told = {FED: "that may be fed params or states", "accumulate": "that only add up gradients"}
    return {"runs": told[phase]} if phase in told else {}
