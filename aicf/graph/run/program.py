"""Program: what `compile` returns. Plans for the sizes it has met, one set of variables, eager runs and frozen replays."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np

from ...device.interop import adopt
from ...device.runtime import Runtime
from ...device.tensor import Tensor
from ...dispatch import KernelLoader
from ...errors import FeedError, StateError
from ...ir import Role
from ...registry.registry import KernelRegistry
from ..build.trace import Recipe, trace
from ..fuse import Region
from .executor import Executor, FrozenPlan
from .explain import Explanation, explain
from .plan import ExecPlan, Slot
from .slots import check_feed, examine_feed, feed_error
from .variables import Variables

MAX_ENTRIES = 32  # plans, and frozen plans, that a program keeps; the least recently used goes first
META = "optimizer."  # states of this scope are the meta-parameters that `set` changes


@dataclass(frozen=True)
class CompiledPlan:
    plan: ExecPlan
    regions: tuple[Region, ...]


@dataclass(frozen=True)
class ReplayKey:
    """What a frozen plan is good for (C9). The feed's contiguity is no part of it: copied roles land in dense slots."""

    mode: str
    plan_key: str
    static_roles: frozenset[Role]
    copy_roles: frozenset[Role]
    feed_signature: tuple[tuple[str, tuple[int, ...], str, str], ...]


class Program:
    """A compiled model on one device.

    run(feed)      eager: bind, alias, walk the plan
    replay(feed)   the frozen plan: bound once for each feed signature, then inputs in, kernels, outputs out
    program(feed)  is `replay`

    Both return {"output": …, "loss": …} as tensors of their own, and agree bit for bit. In train mode params and state are
    bound once: feeding them has no effect, only inputs change from run to run (C11).
    """

    def __init__(
        self,
        recipe: Recipe,
        runtime: Runtime,
        registry: KernelRegistry,
        variables: Variables,
        specialise: Callable[[Mapping[str, int], str], CompiledPlan],
    ) -> None:
        self.recipe, self.runtime, self.registry, self.variables = recipe, runtime, registry, variables
        self._specialise = specialise
        self._executor = Executor(runtime, KernelLoader(registry, runtime))
        self._plans: OrderedDict[tuple, CompiledPlan] = OrderedDict()
        self._frozen: OrderedDict[ReplayKey, FrozenPlan] = OrderedDict()
        self.static_roles = frozenset({Role.param, Role.state})
        self.copy_roles = frozenset({Role.input})
        self.runs = 0  # since the start or the last load; decides which runs of an accumulation step
        self.executed: list[str] = []  # kernel ids of the last run, in order
        self.notes: list[str] = []  # what the last eager run staged, and why

    # --- running ------------------------------------------------------------------------------------------------------

    @property
    def mode(self) -> str:
        return self.recipe.mode

    @property
    def device(self) -> str:
        return self.runtime.kind

    def run(self, feed: Mapping[str, Any], contiguous: str = "copy") -> dict[str, Tensor]:
        """One eager run. `contiguous="raise"` refuses strided or misaligned feeds instead of staging them."""
        compiled = self.compiled(self._sizes(feed))
        bound = self._executor.bind(
            compiled.plan,
            feed,
            self._bindings(feed),
            contiguous=contiguous,
            ignored=frozenset(self.variables.names()),
        )
        self.executed, self.notes = bound.run(), bound.notes
        self.runs += 1
        return {s.name: bound.tensors[s.vid] for s in compiled.plan.outputs}

    def replay(self, feed: Mapping[str, Any]) -> dict[str, Tensor]:
        """One run of the frozen plan for this feed's signature, which the first such call makes."""
        compiled = self.compiled(self._sizes(feed))
        inputs = compiled.plan.externals(Role.input)
        self._refuse_static(feed)
        ignored = frozenset(self.variables.names())  # in train mode they have no effect; else _refuse_static
        found = check_feed(inputs, feed, self.runtime.kind, ignored)
        signature = tuple(
            (n, f.desc.shape, f.desc.dtype.name, f.desc.device) for n, f in sorted(found.items())
        )
        key = ReplayKey(self.mode, compiled.plan.key, self.static_roles, self.copy_roles, signature)
        frozen = self._frozen.get(key)
        if frozen is None:
            frozen = FrozenPlan(
                self._executor, compiled.plan, feed, self._bindings({}), self.copy_roles, ignored
            )
            _remember(self._frozen, key, frozen)
        else:
            self._frozen.move_to_end(key)
        results, self.executed = frozen.replay(feed)
        self.runs += 1
        return results

    __call__ = replay

    def _refuse_static(self, feed: Mapping[str, Any]) -> None:
        fed = [n for n in feed if n in self.variables]
        if fed and self.mode != "train":
            raise FeedError(
                f"{fed[0]} is bound once for all replays",
                hint="run(feed) takes other parameters for one run; "
                "program.load_state_dict changes them for good",
            )

    def _bindings(self, feed: Mapping[str, Any]) -> Mapping[str, Tensor]:
        return (
            _Overlay(self.variables, feed, self.runtime)
            if self.mode != "train" and feed
            else _Overlay(self.variables)
        )

    # --- plans --------------------------------------------------------------------------------------------------------

    def compiled(self, sizes: Mapping[str, int] | None = None, phase: str | None = None) -> CompiledPlan:
        """The plan for some sizes of the named dimensions; the model's own sizes if none are given."""
        sizes = {**self.recipe.model.sizes, **(sizes or {})}
        phase = phase or self._phase()
        key = (phase, *sorted(sizes.items()))
        found = self._plans.get(key)
        if found is None:
            found = self._specialise(sizes, phase)
            _remember(self._plans, key, found)
        else:
            self._plans.move_to_end(key)
        return found

    @property
    def plan(self) -> ExecPlan:
        return self.compiled().plan

    def explain(self, sizes: Mapping[str, int] | None = None) -> Explanation:
        """Why each kernel was chosen: `print(program.explain())`."""
        compiled = self.compiled(sizes, "step")
        return explain(compiled.plan, compiled.regions)

    def _phase(self) -> str:
        return "step" if (self.runs + 1) % self.recipe.accumulate == 0 else "accumulate"

    def _sizes(self, feed: Mapping[str, Any]) -> dict[str, int]:
        """Sizes of the named dimensions, read off the fed inputs. Where they don't fit the model, FeedError says all."""
        sizes: dict[str, int] = {}
        first: dict[str, str] = {}
        expected: dict[str, str] = {}
        fits = True
        for name, spec in self.recipe.model.inputs.items():
            shape = _shape_of(feed[name]) if name in feed else None
            if shape is None or len(shape) != spec.rank:
                fits = False
                continue
            for dim, size in zip(spec.shape, shape):
                if isinstance(dim, str):
                    first.setdefault(dim, name)
                    if sizes.setdefault(dim, size) != size:
                        expected[name] = f"{dim} = {sizes[dim]}, as in {first[dim]}"
                elif dim != size:
                    fits = False
        if expected or not fits:
            self._refuse(feed, sizes, expected)
        return sizes

    def _refuse(
        self, feed: Mapping[str, Any], sizes: Mapping[str, int], expected: Mapping[str, str]
    ) -> NoReturn:
        """FeedError with everything that is wrong with the feed; no plan is made for it."""
        graph = trace(self.recipe, {**self.recipe.model.sizes, **sizes}, self.runtime.kind)
        slots = [Slot(v.vid, v.name, v.spec, v.role) for v in graph.externals(Role.input)]
        _, problems = examine_feed(slots, feed, self.runtime.kind, frozenset(self.variables.names()))
        raise feed_error([(name, expected.get(name, wanted), got) for name, wanted, got in problems])

    # --- variables ----------------------------------------------------------------------------------------------------

    def set(self, **meta: float) -> None:
        """Change meta-parameters, device state that no plan depends on (C13): program.set(lr=0.01)."""
        known = {n.removeprefix(META): n for n in self.variables.names() if n.startswith(META)}
        for name in meta:
            if name not in known:
                raise StateError(
                    f"no meta-parameter is called {name!r}",
                    expected=", ".join(sorted(known)) or "none at all",
                )
        self.variables.assign({known[name]: value for name, value in meta.items()})

    def get(self, name: str) -> np.ndarray:
        """A param, a state, or a meta-parameter by its short name, as a host array."""
        full = name if name in self.variables else META + name
        if full not in self.variables:
            raise StateError(f"no variable is called {name!r}", expected=", ".join(self.variables.names()))
        return self.variables[full].numpy()

    def state_dict(self) -> dict[str, np.ndarray]:
        """Params and states by name, with the run counter; load it into any program of the same model."""
        return {**self.variables.state_dict(), RUNS: np.asarray(self.runs, np.int64)}

    def load_state_dict(self, state: Mapping[str, Any], strict: bool = True) -> list[str]:
        """All or nothing; see Variables.load_state_dict. The run counter may be missing.

        A program that does not train takes a training program's checkpoint: it leaves the optimizer's state aside.
        """
        runs = int(np.asarray(state[RUNS])) if RUNS in state else self.runs
        named = {k: v for k, v in state.items() if k != RUNS and not self._of_an_optimizer(k)}
        missing = self.variables.load_state_dict(named, strict)
        self.runs = runs
        return missing

    def _of_an_optimizer(self, name: str) -> bool:
        """Whether a name that this program does not have is optimizer state: `optimizer.lr`, `0.weight.momentum`."""
        if self.mode == "train" or name in self.variables:
            return False
        return name.startswith((META, *(f"{param}." for param in self.variables.names(Role.param))))

    def __repr__(self) -> str:
        return (
            f"Program({self.mode} on {self.runtime.spec.name}, {len(self._plans)} plans, {len(self._frozen)} frozen, "
            f"{len(self.variables.names(Role.param))} params, {self.runs} runs)"
        )


RUNS = "program.runs"


def _shape_of(fed: Any) -> tuple[int, ...] | None:
    try:
        return adopt(fed).desc.shape
    except FeedError:
        return None


class _Overlay(Mapping[str, Tensor]):
    """The program's variables, with params of the feed in their place for one run."""

    def __init__(
        self, variables: Variables, feed: Mapping[str, Any] | None = None, runtime: Runtime | None = None
    ) -> None:
        self._variables = variables
        self._fed: dict[str, Tensor] = {}
        for name, given in (feed or {}).items():
            if name in variables and runtime is not None:
                slot = Slot(-1, name, variables[name].spec, Role.param)
                foreign = check_feed([slot], {name: given}, runtime.kind)[name]
                self._fed[name] = runtime.empty(variables[name].spec)
                runtime.write(self._fed[name], foreign)

    def __getitem__(self, name: str) -> Tensor:
        return self._fed[name] if name in self._fed else self._variables[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._variables.names())

    def __len__(self) -> int:
        return len(self._variables.names())


def _remember(cache: OrderedDict, key: Any, value: Any) -> None:
    cache[key] = value
    while len(cache) > MAX_ENTRIES:
        cache.popitem(last=False)
