"""Program: what `compile` returns. Plans for the sizes it has met, one set of variables, eager runs and frozen replays."""

from __future__ import annotations

import logging
import time
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from ... import channels, config
from ...device.faults import tell
from ...device.foreign import Foreign
from ...device.reading import remember
from ...device.tensor import Runtime, Tensor
from ...dispatch import KernelLoader
from ...errors import FeedError, Immovable, StateError, TypeInferenceError, VerifyError
from ...files import Bad
from ...ir import Recognised, Role
from ...pages import objects, story
from ...pages.data import check_profile
from ...pages.notebook import InNotebook
from ...pages.page import write
from ...registry.registry import KernelRegistry
from ...registry.tuning import Times
from ...training import History, fit
from ...types import TensorSpec
from ...weights import StoredArrays
from ...whole import Uninterrupted
from ..emit.step import ACCUMULATED, with_scale
from ..emit.trace import FED, Recipe, declared_names, trace
from ..fuse import Region
from ..fuse.once import KeptOnce
from .capture import CaptureReport
from .compilations import Compilations
from .executor import BoundPlan, Executor
from .explain import Explanation, explain
from .frozen import FrozenPlan, ReplayPolicy
from .peak import peak_seconds
from .plan import ExecPlan, Slot
from .profile import MEDIAN_OF, Profile, checked_runs, measure
from .ran import FirstRun, places_of, trace_of
from .slots import adopt_all, check_feed, examine_feed, feed_error
from .tell import tell_capture, tell_plan
from .variables import Variables

MAX_ENTRIES = 32  # plans, and frozen plans, that a program keeps; the least recently used goes first
OPTIMIZER = "optimizer."  # scope of the optimizer's counters and meta-parameters


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


@dataclass(frozen=True)
class ReplayKey:
    """What a frozen plan is good for. The feed's contiguity is no part of it: copied roles land in dense slots."""

    mode: str
    plan_key: str
    static_roles: frozenset[Role]
    copy_roles: frozenset[Role]
    feed_signature: tuple[tuple[str, tuple], ...]


class Program(Immovable, InNotebook):
    """A compiled model on one device.

    run(feed)      eager: bind, alias, walk the plan
    replay(feed)   the frozen plan: bound once for each feed signature, on CUDA captured, then inputs in, kernels, outputs out
    program(feed)  is `replay`
    capture(feed)  makes the frozen plan without running it, and reports

    Both return {"output": …, "loss": …} as tensors of their own, in the order of `outputs`, and agree bit for bit. In train mode params and state are
    bound once: feeding them has no effect, only inputs change from run to run.
    """

    instead = (
        "np.savez('model.npz', **program.state_dict()) keeps what it learned, program.plan.to_json() its plan; a model can be "
        "pickled: compile that again, and program.load_state_dict(np.load('model.npz'))"
    )

    def __init__(
        self,
        recipe: Recipe,
        runtime: Runtime,
        registry: KernelRegistry,
        variables: Variables,
        specialise: Callable[[Mapping[str, int], str], CompiledPlan],
        policy: ReplayPolicy,
        in_mode: Callable[..., Program],
    ) -> None:
        self.recipe, self.runtime, self.registry, self.variables = recipe, runtime, registry, variables
        self._specialise, self.in_mode = (
            specialise,
            in_mode,
        )  # in_mode: this model, loss and state, compiled for another mode; or another model with this one's params
        self._executor = Executor(runtime, KernelLoader(registry, runtime))
        self._plans: OrderedDict[tuple, CompiledPlan] = OrderedDict()
        self._frozen: OrderedDict[ReplayKey, FrozenPlan] = OrderedDict()
        self._names: set[str] = set()  # variables that this program's plans use: what its state dict holds
        self._keys: OrderedDict[tuple, ReplayKey] = OrderedDict()  # feeds that were checked
        self.policy = policy
        self.compilations = Compilations(
            f"{self.mode} on {runtime.spec.name}"
        )  # what was compiled for, and why again
        self.tuning: Times | None = None  # measured times that its choices were made with
        self.runs = 0  # since the start or the last load
        self._last: ExecPlan | None = None  # the plan of the last run
        self._watches: dict[str, FirstRun] = {}  # by plan, of those that have not run
        self._peaks: dict[str, float] = {}  # by plan: see `peak_seconds`
        self._ran: list[str | None] = []  # what the calls of the last run said, in order
        self.notes: list[str] = []  # what the last eager run staged, and why

    # --- running ------------------------------------------------------------------------------------------------------

    @property
    def mode(self) -> str:
        """The mode: "infer", "grad" or "train"."""
        return self.recipe.mode

    @property
    def accumulate(self) -> int:
        """Runs of an optimizer step."""
        return self.recipe.accumulate

    @property
    def accumulated(self) -> int:
        """Runs whose gradients are in the sums: 0 behind a step."""
        return self.variables.accumulated if self.accumulate > 1 else 0

    @property
    def executed(self) -> list[str]:
        """The ids of the kernels that the last run launched, in order, each said by its launch; of a graph, by the launches
        that were captured. What has no elements to compute launches nothing."""
        return [kernel_id for kernel_id in self._ran if kernel_id is not None]

    @property
    def device(self) -> str:
        """Where it is: "cpu" or "cuda"."""
        return self.runtime.kind

    def run(self, feed: Mapping[str, Any], contiguous: str = "copy") -> dict[str, Tensor]:
        """One eager run. `contiguous="raise"` refuses strided or misaligned feeds instead of staging them."""
        with self.variables.lock, self.runtime.current():
            self.runtime.refuse_capture()
            compiled, found = self._checked(self._adopt(feed))
            with self._whole_step(compiled.plan), self.runtime.ordered(found.values()):
                with self.compilations.made("bound", self._fed(found), always=False):
                    bound = self._executor.bind(compiled.plan, found, self.variables, contiguous=contiguous)
                self._ran, self.notes = bound.run(), bound.notes
                self._count()
                if self._watches:
                    self._first_run("run", bound)
            return _told({s.name: bound.tensors[s.vid] for s in compiled.plan.outputs}, bound.faults)

    def replay(self, feed: Mapping[str, Any]) -> dict[str, Tensor]:
        """One run of the frozen plan for this feed's signature, which the first such call makes."""
        with self.variables.lock, self.runtime.current():
            self.runtime.refuse_capture()
            frozen, found = self._frozen_for(feed)
            with self._whole_step(frozen.plan), self.runtime.ordered(found.values()):
                results, self._ran = frozen.replay(found, self.variables, config.check_enabled("nan"))
                self._count()
                if self._watches:
                    self._first_run("replay", frozen.bound, frozen.report)
            return _told(results, frozen.bound.faults)

    def _first_run(self, how: str, bound: BoundPlan, report: CaptureReport | None = None) -> None:
        if (watch := self._watches.pop(bound.plan.key, None)) is not None:
            stream, place = self.runtime.stream_id, places_of(bound.tensors)
            watch.ran(trace_of(bound.plan, how, stream, place, self._ran, report, bound.notes))

    @property
    def peak_seconds(self) -> float | None:
        """What the products of the last run take at the peak of the GPU, each in its type: by the time that it took, this is the share
        of the chip's peak. None before there is a run, and on the CPU, whose peak nobody knows."""
        if self._last is None or self.device == "cpu":
            return None
        key = self._last.key
        if key not in self._peaks:
            self._peaks[key] = peak_seconds(self._last, self.runtime.spec)
        return self._peaks[key]

    @contextmanager
    def _whole_step(self, plan: ExecPlan) -> Iterator[None]:
        """A training step is done or not: Ctrl-C waits for its end, so that no state is torn."""
        self._last = plan
        with (
            Uninterrupted() if self.mode == "train" else nullcontext(),
            self.variables.up_to_date(plan, self._run_setup),
        ):
            yield

    def _run_setup(self, plan: ExecPlan) -> None:
        self._executor.run_setup(plan, self.variables)

    __call__ = replay

    def fit(self, batches: Any, **how: Any) -> History:
        """Train: `aicf.training.fit(program, batches, steps=..., validation=..., checkpoints=..., log=...)`."""
        return fit(self, batches, **how)

    def capture(self, feed: Mapping[str, Any]) -> CaptureReport:
        """Make the frozen plan for a feed like this one without running it, and say what was captured, what not and why.

        Nothing changes but the cache: params, state, random state and step stay bit-identical.
        """
        with self.variables.lock, self.runtime.current():
            self.runtime.refuse_capture()
            return self._frozen_for(feed)[0].report

    def _adopt(self, feed: Mapping[str, Any]) -> dict[str, Foreign | FeedError]:
        return adopt_all(feed, self.runtime.stream_id or None)

    def _frozen_for(
        self, feed: Mapping[str, Any], adopted: Mapping[str, Foreign | FeedError] | None = None
    ) -> tuple[FrozenPlan, dict[str, Foreign]]:
        adopted = self._adopt(feed) if adopted is None else adopted
        signature = tuple((n, f.signature if isinstance(f, Foreign) else None) for n, f in adopted.items())
        key = self._keys.get((self._phase(adopted), signature))
        frozen = self._frozen.get(key) if key is not None else None
        if frozen is not None and not frozen.stale(adopted):  # a feed like one that was checked before
            assert key is not None
            self._frozen.move_to_end(key)
            found: dict[str, Any] = {n: adopted[n] for n, _ in key.feed_signature}  # not what is ignored
            return frozen, found
        compiled, found = self._checked(adopted)
        self._refuse_static(feed)
        policy, fed = self.policy, tuple((n, f.signature) for n, f in sorted(found.items()))
        key = ReplayKey(self.mode, compiled.plan.key, policy.static_roles, policy.copy_roles, fed)
        frozen = self._frozen.get(key)
        moved = None if frozen is None else frozen.stale(found)
        if moved and policy.capture != "auto":
            raise FeedError(
                f"a static input moved: {moved}",
                hint="feed the captured tensor, or copy its role: compile(..., copy_roles={'input'})",
            )
        if moved:
            text = f"plan {key.plan_key} is captured anew: a static input moved: {moved}"
            channels.tell("capture", "invalidated", text, logging.WARNING, plan=key.plan_key, why=moved)
        if frozen is None or moved:  # never replay a stale pointer
            with self.compilations.made(
                "bound", self._fed(found), moved and f"a static input moved: {moved}"
            ):
                start = time.perf_counter()
                frozen = FrozenPlan(self._executor, compiled.plan, found, self.variables, policy)
                tell_capture(compiled.plan, frozen.report, time.perf_counter() - start)
            remember(self._frozen, key, frozen, MAX_ENTRIES)
        remember(self._keys, (self._phase(adopted), signature), key, MAX_ENTRIES)
        return frozen, found

    def _fed(self, found: Mapping[str, Foreign]) -> dict[str, str]:
        """What a bound plan is good for, by name: types and places of feeds."""
        types = {
            name: f"{fed.desc.dtype}[{'x'.join(map(str, fed.desc.shape))}] on {fed.place}"
            for name, fed in sorted(found.items())
        }
        return {**types, **_phase_told(self._phase(found))}

    def _checked(self, adopted: Mapping[str, Foreign | FeedError]) -> tuple[CompiledPlan, dict[str, Foreign]]:
        """The plan for a feed, and the fed tensors, all right; or one FeedError with everything that is wrong."""
        compiled, sizes = self._compiled_for(adopted)
        inputs = compiled.plan.externals(Role.input)
        if self.mode != "train":  # then fed params and states take the variables' place for a run
            kept, derived = compiled.plan.externals(Role.param, Role.state), self.variables.shared.derived
            inputs = [*inputs, *(s for s in kept if s.name in adopted and s.name not in derived)]
        because = f" with {sizes}" if sizes else ""
        return compiled, check_feed(
            inputs, adopted, self.runtime.place, frozenset(self.variables.names()), because
        )

    def _refuse_static(self, feed: Mapping[str, Any]) -> None:
        if self.mode == "train":
            return  # what is bound once is ignored in a feed
        for name in feed:
            if name in self.variables and self.variables.role(name) in self.policy.static_roles:
                raise FeedError(
                    f"{name} is bound once for all replays",
                    hint="run(feed) takes other parameters for one run; program.load_state_dict changes them for good; "
                    "compile(..., copy_roles={'input', 'param'}) copies them for each replay",
                )

    # --- plans --------------------------------------------------------------------------------------------------------

    def compiled(self, sizes: Mapping[str, int] | None = None, phase: str | None = None) -> CompiledPlan:
        """The plan for some sizes of the named dimensions; the model's own sizes if none are given."""
        known = self.recipe.model.sizes
        if unknown := sorted(set(sizes or {}) - set(known)):
            raise VerifyError(
                f"no input has a dimension called {unknown[0]!r}",
                expected=", ".join(sorted(known)) or "no sizes",
            )
        sizes = {**known, **(sizes or {})}
        phase = phase or self._phase()
        key = (phase, *sorted(sizes.items()))
        found = self._plans.get(key)
        if found is None:
            found = self._if_fed_the_same(key) or self._made(sizes, phase)
            self._names.update(found.plan.bound)
            remember(self._plans, key, found, MAX_ENTRIES)
        else:
            self._plans.move_to_end(key)
        return found

    def _made(self, sizes: Mapping[str, int], phase: str) -> CompiledPlan:
        facts = {**sizes, **_phase_told(phase)}
        start, why = time.perf_counter(), self.compilations.why("plan", facts)
        with self.compilations.made("plan", facts, why):
            made = self._specialise(sizes, phase)
        seconds = time.perf_counter() - start
        if made.watch is not None:
            self._watches[made.plan.key] = made.watch
        tell_plan(made.plan, made.regions, made.once, self.runtime, phase, sizes, seconds, why)
        return made

    def _if_fed_the_same(self, key: tuple) -> CompiledPlan | None:
        """For runs that are fed params the plan of those that are not, if nothing of it is derived of params."""
        plain = self._plans.get(("step", *key[1:])) if key[0] == FED else None
        narrow = self.recipe.types.narrow is not None
        return plain if plain is not None and not narrow and plain.plan.setup is None else None

    @property
    def outputs(self) -> dict[str, TensorSpec]:
        """What a run returns, at the model's own sizes, by name and in this order: the model's results, the loss and what it has beside
        it, gradients."""
        plan = self.compiled(phase="step" if self.mode == "train" else None).plan
        return {slot.name: slot.spec for slot in plan.outputs}

    @property
    def plan(self) -> ExecPlan:
        """The plan for the model's own sizes."""
        return self.compiled().plan

    def explain(self, sizes: Mapping[str, int] | None = None) -> Explanation:
        """Why each kernel was chosen: `print(program.explain())`."""
        return _explained(self.compiled(sizes, "step" if self.mode == "train" else None))

    def profile(self, feed: Mapping[str, Any], runs: int = MEDIAN_OF) -> Profile:
        """Where the time goes: each step of the plan for this feed measured where it stands, beside its prediction. `print` it, or
        `save` its timeline. Params, states and counters are afterwards what they were; so much memory of the host is needed besides.

        runs  the median of so many counts
        """
        checked_runs(runs)
        with self.variables.lock, self.runtime.current():
            self.runtime.refuse_capture()
            adopted = self._adopt(feed)
            compiled, found = self._checked(adopted)
            frozen, found = self._frozen_for(feed, adopted)

            @contextmanager
            def whole() -> Iterator[None]:
                with self._whole_step(frozen.plan), self.runtime.ordered(found.values()):
                    yield

            last, build = self._last, self._executor.loader.build
            try:
                return measure(_explained(compiled), frozen, found, self.variables, build, runs, whole)
            finally:
                self._last = last

    def report(
        self,
        path: str | Path,
        sizes: Mapping[str, int] | None = None,
        profile: Mapping[str, Any] | None = None,
    ) -> Path:
        """Write what `explain` knows as one HTML file, which needs no network: graph, regions, candidates, memory, timeline, roofline.

        profile   a profile's `to_json()`, of the same plan: measured times beside the predicted ones
        """
        data = self.explain(sizes).to_json()
        if profile is not None:
            try:
                check_profile(profile, data)
            except Bad as bad:
                raise StateError(
                    f"this is no profile of the plan: {bad.at} is wrong", expected=bad.expected, got=bad.got,
                    hint="profile a run with the sizes that are reported",
                ) from None  # fmt: skip
        return write(data, path, profile=profile)

    def _phase(self, fed: Collection[str] = ()) -> str:
        """A training program steps as soon as its number of runs is in the sums, whoever made them. Others have a plan of its own for
        runs that may be fed params or states: nothing in it is derived of those."""
        if self.mode != "train":
            return FED if self._copies_variables or any(map(self._is_kept, fed)) else "step"
        wanted = self.recipe.accumulate
        return "step" if wanted == 1 or self.variables.accumulated + 1 >= wanted else "accumulate"

    @property
    def _copies_variables(self) -> bool:
        """Whether each replay copies params or states, which may be fed to it."""
        return bool(self.policy.copy_roles - {Role.input})

    def _is_kept(self, name: str) -> bool:
        return name not in self.recipe.model.inputs and name in self.variables

    def _count(self) -> None:
        """A run is done."""
        if self.recipe.accumulate > 1:
            self.variables.accumulated = 0 if self._phase() == "step" else self.variables.accumulated + 1
        self.runs += 1

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
            return self.compiled(sizes, self._phase(adopted)), chosen
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

    # --- variables ----------------------------------------------------------------------------------------------------

    def set(self, **meta: float) -> None:
        """Change this program's meta-parameters, device state that no plan depends on: program.set(lr=0.01)."""
        self.variables.set(meta)

    def get_last_lr(self) -> float:
        """The learning rate of now, which the next optimizer step takes: under a schedule what that makes of the steps done,
        else what `set` and `get("lr")` say. As PyTorch's schedulers have it behind each step."""
        if "lr" not in self.variables.meta:
            raise StateError(
                f"this program, of mode {self.mode!r}, has no learning rate",
                hint="compile(..., 'train', optimizer=nn.SGD(lr=0.1)) makes one that has",
            )
        base = float(self.get("lr"))
        rate = getattr(self.recipe.optimizer, "rate", None)  # an optimizer of the user's own need not have it
        return base if rate is None else rate(int(self.get("step")), base)

    def get(self, name: str) -> np.ndarray:
        """A param or state, or by its short name what the optimizer keeps (`lr`, `step`), as a host array."""
        names = (
            [name]
            if name in self.variables
            else [n for n in sorted(self._names) if n.startswith(OPTIMIZER) and n.endswith(f".{name}")]
        )
        if len(names) != 1:
            raise StateError(
                f"no variable is called {name!r}"
                if not names
                else f"{name!r} is short for {' and '.join(names)}",
                expected=", ".join(self.variables.names()),
            )
        return self.variables[names[0]].numpy()

    def state_dict(self) -> dict[str, np.ndarray]:
        """Params and states by name, with the run counter; load it into any program of the same model."""
        runs = {RUNS: np.asarray(self.runs, np.int64)} if self.mode == "train" else {}
        return {**self.variables.state_dict(self._names), **runs}

    def load_state_dict(self, state: Mapping[str, Any], strict: bool = True) -> list[str]:
        """All or nothing; see Variables.load_state_dict. The run counter may be missing.

        A program that does not train takes a training program's checkpoint, and leaves aside what only training needs: the
        optimizer's state, random states, the run counter. Programs with a scale of the loss and those without take each other's.
        """
        if not isinstance(state, Mapping):
            raise StateError(
                f"a state dict can't be {state!r}", expected="arrays by name", hint="load_state_dict(np.load('model.npz'))"
            )  # fmt: skip
        runs = _checked_runs(state[RUNS]) if RUNS in state else self.runs
        named = {
            k: state.unread(k) if isinstance(state, StoredArrays) else state[k] for k in state if k != RUNS
        }
        named = with_scale(named, self._names, self.recipe.types, strict)
        extra = set(named) - self._names
        for name in self._of_training(extra) if extra and self.mode != "train" else ():
            del named[name]
        if (
            RUNS in state and ACCUMULATED in self._names
        ):  # older checkpoints say it by the number of runs alone
            named.setdefault(ACCUMULATED, np.int32(runs % self.recipe.accumulate))
        with self.variables.lock:
            missing = self.variables.load_state_dict(named, strict, self._names)
            self.runs = runs
        return missing

    def _of_training(self, names: Collection[str]) -> Collection[str]:
        """Of names that this program does not have those that a training program of the model may: its optimizer's, such as
        `optimizer.lr` and `0.weight.momentum`, the random state, and what layers keep while they train."""
        prefixes = OPTIMIZER, *(f"{param}." for param in self.variables.names(Role.param))
        known = {"rng", *declared_names(self.recipe, self.runtime.kind, training=True)}
        return [name for name in names if name in known or name.startswith(prefixes)]

    def __repr__(self) -> str:
        return (
            f"Program({self.mode} on {self.runtime.spec.name}, {len(self._plans)} plans, {len(self._frozen)} frozen, "
            f"{len(self.variables.names(Role.param))} params, {self.runs} runs)"
        )

    def _repr_html_(self) -> str:
        newest = next(reversed(self._plans.values()), None)
        params = [slot.spec for slot in newest.plan.externals(Role.param)] if newest else []
        facts = [
            ("inputs", "; ".join(f"{name}: {spec}" for name, spec in self.recipe.model.inputs.items())),
            ("params", f"{sum(p.numel for p in params):,} in {len(params)}, {sum(p.nbytes for p in params):,} B" if params else ""),
            ("plans", f"{len(self._plans)}, {len(self._frozen)} of them frozen for replays"),
            ("runs", f"{self.runs:,}"),
        ]  # fmt: skip
        told = newest and _explained(newest)
        title = f"{self.mode} program on {self.runtime.spec.name}"
        return objects.program(facts, title, story.explanation(told.to_json()) if told else None)


def _explained(compiled: CompiledPlan) -> Explanation:
    return explain(compiled.plan, compiled.regions, compiled.recognised, compiled.once, compiled.told)


def _told(results: dict[str, Tensor], faults: tuple[Tensor, ...]) -> dict[str, Tensor]:
    """Results whose readers are told what was wrong."""
    checks = tuple(partial(tell, record) for record in faults)
    for tensor in results.values() if checks else ():
        tensor.checks = checks
    return results


def _phase_told(phase: str) -> dict[str, str]:
    """What a plan is for, where that is more than a run of the program's mode."""
    told = {FED: "that may be fed params or states", "accumulate": "that only add up gradients"}
    return {"runs": told[phase]} if phase in told else {}


RUNS = "program.runs"


def _checked_runs(value: Any) -> int:
    """A number of runs that was saved: an integer that 64 bits hold."""
    array = np.asarray(value)
    if array.ndim or array.dtype.kind not in "iu" or not 0 <= int(array) < 2**63:
        raise StateError(
            f"{RUNS} can't be loaded", expected="a 0-D integer, 0 or more, that i64 holds",
            got=array.tolist() if array.size < 8 else f"an array of shape {array.shape}",
        )  # fmt: skip
    return int(array)
