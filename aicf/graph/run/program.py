"""Program: what `compile` returns. Plans for the sizes it has met, one set of variables, eager runs and frozen replays."""

from __future__ import annotations

import logging
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from ... import channels, config
from ...device.faults import Fault, tell
from ...device.foreign import Foreign
from ...device.reading import remember
from ...device.tensor import Runtime, Tensor
from ...dispatch import KernelLoader
from ...errors import FeedError, Immovable, StateError
from ...ir import Role
from ...pages.notebook import InNotebook
from ...registry.registry import KernelRegistry
from ...registry.tuning import Times
from ...training import History, fit
from ...types import TensorSpec
from ...whole import Uninterrupted
from ..emit.trace import ModelLike, Recipe
from .capture import CaptureReport
from .drawn import drawn, written
from .executor import BoundPlan, Executor
from .explain import Explanation
from .frozen import FrozenPlan, ReplayPolicy
from .peak import peak_seconds
from .plan import ExecPlan
from .plans import MAX_ENTRIES, CompiledPlan, ProgramPlans, Specialise
from .profile import MEDIAN_OF, Profile, checked_runs, measure
from .ran import places_of, trace_of
from .slots import adopt_all
from .state import RUNS, checked_state, full_name
from .tell import tell_capture
from .variables import Variables


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
        "aicf.save('model.safetensors', program.state_dict()) keeps what it learned, program.plan.to_json() its plan; a model can be "
        "pickled: compile that again, and program.load_state_dict(aicf.load('model.safetensors'))"
    )

    def __init__(
        self,
        recipe: Recipe,
        runtime: Runtime,
        registry: KernelRegistry,
        variables: Variables,
        specialise: Specialise,
        policy: ReplayPolicy,
        in_mode: Callable[..., Program],
    ) -> None:
        self.recipe, self.runtime, self.registry, self.variables = recipe, runtime, registry, variables
        self.policy = policy
        self.model: ModelLike = recipe.model  # that was compiled; the recipe has a copy of it
        self.in_mode = in_mode  # this model, loss and state, compiled for another mode; or another model with this one's params
        self._executor = Executor(runtime, KernelLoader(registry, runtime))
        self._plans = ProgramPlans(recipe, runtime, variables, policy, specialise)
        self.compilations = self._plans.compilations  # what was compiled for, and why again
        self._frozen: OrderedDict[ReplayKey, FrozenPlan] = OrderedDict()
        self._keys: OrderedDict[tuple, ReplayKey] = OrderedDict()  # feeds that were checked
        self.tuning: Times | None = None  # measured times that its choices were made with
        self.runs = 0  # since the start or the last load
        self._last: ExecPlan | None = None  # the plan of the last run
        self._peaks: dict[str, float] = {}  # by plan: see `peak_seconds`
        self._ran: list[str | None] = []  # what the calls of the last run said, in order
        self.notes: list[str] = []  # what the last eager run staged, and why

    # --- running ------------------------------------------------------------------------------------------------------

    @property
    def mode(self) -> str:
        """The mode: "infer", "grad" or "train"."""
        return self.recipe.mode

    @property
    def parallel(self) -> Any:
        """How it is spread over ranks; None on one."""
        return self.recipe.parallel

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
            self._check_model()
            self._share()
            compiled, found = self._plans.checked(self._adopt(feed))
            with self._whole_step(compiled.plan), self.runtime.ordered(found.values()):
                with self.compilations.made("bound", self._plans.facts(found), always=False):
                    bound = self._executor.bind(compiled.plan, found, self.variables, contiguous=contiguous)
                self._ran, self.notes = bound.run(), bound.notes
                self._count()
                if self._plans.watches:
                    self._first_run("run", bound)
            return self._told({s.name: bound.tensors[s.vid] for s in compiled.plan.outputs}, bound.faults)

    def replay(self, feed: Mapping[str, Any]) -> dict[str, Tensor]:
        """One run of the frozen plan for this feed's signature, which the first such call makes."""
        with self.variables.lock, self.runtime.current():
            self.runtime.refuse_capture()
            self._check_model()
            self._share()
            frozen, found = self._frozen_for(feed)
            with self._whole_step(frozen.plan), self.runtime.ordered(found.values()):
                results, self._ran = frozen.replay(found, self.variables, config.check_enabled("nan"))
                self._count()
                if self._plans.watches:
                    self._first_run("replay", frozen.bound, frozen.report)
            return self._told(results, frozen.bound.faults)

    def _check_model(self) -> None:
        """StateError if the model has other layers than were compiled: results would be those of an older one."""
        if (check := getattr(self.model, "check_same", None)) is not None:
            check(self.recipe.model)

    def _share(self) -> None:
        """Before a run of several ranks: they are equal."""
        if self.parallel is not None:
            self.runs = self.parallel.share(self.runtime, self.variables, self._plans.names, self.runs)

    def _first_run(self, how: str, bound: BoundPlan, report: CaptureReport | None = None) -> None:
        if (watch := self._plans.watches.pop(bound.plan.key, None)) is not None:
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

    def fit(self, batches: Any = None, *more: Any, **how: Any) -> History:
        """Train: `aicf.training.fit(program, batches, steps=..., validation=..., checkpoints=..., log=...)`."""
        return fit(self, batches, *more, **how)

    def capture(self, feed: Mapping[str, Any]) -> CaptureReport:
        """Make the frozen plan for a feed like this one without running it, and say what was captured, what not and why.

        Nothing changes but the cache: params, state, random state and step stay bit-identical.
        """
        with self.variables.lock, self.runtime.current():
            self.runtime.refuse_capture()
            self._check_model()
            return self._frozen_for(feed)[0].report

    def _adopt(self, feed: Mapping[str, Any]) -> dict[str, Foreign | FeedError]:
        return adopt_all(feed, self.runtime.stream_id or None)

    def _frozen_for(
        self, feed: Mapping[str, Any], adopted: Mapping[str, Foreign | FeedError] | None = None
    ) -> tuple[FrozenPlan, dict[str, Foreign]]:
        adopted = self._adopt(feed) if adopted is None else adopted
        signature = tuple((n, f.signature if isinstance(f, Foreign) else None) for n, f in adopted.items())
        key = self._keys.get((self._plans.phase(adopted), signature))
        frozen = self._frozen.get(key) if key is not None else None
        if frozen is not None and not frozen.stale(adopted):  # a feed like one that was checked before
            assert key is not None
            self._frozen.move_to_end(key)
            found: dict[str, Any] = {n: adopted[n] for n, _ in key.feed_signature}  # not what is ignored
            return frozen, found
        compiled, found = self._plans.checked(adopted)
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
                "bound", self._plans.facts(found), moved and f"a static input moved: {moved}"
            ):
                start = time.perf_counter()
                frozen = FrozenPlan(self._executor, compiled.plan, found, self.variables, policy)
                tell_capture(compiled.plan, frozen.report, time.perf_counter() - start)
            remember(self._frozen, key, frozen, MAX_ENTRIES)
        remember(self._keys, (self._plans.phase(adopted), signature), key, MAX_ENTRIES)
        return frozen, found

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

    def _told(self, results: dict[str, Tensor], faults: tuple[Fault, ...]) -> dict[str, Tensor]:
        """Results whose readers are told what was wrong."""
        checks: tuple[Callable[[], None], ...] = (partial(tell, *faults),) if faults else ()
        if self.parallel is not None:
            checks = (self.parallel.check, *checks)
        for tensor in results.values() if checks else ():
            tensor.checks = checks
        return results

    # --- plans --------------------------------------------------------------------------------------------------------

    def compiled(self, sizes: Mapping[str, int] | None = None, phase: str | None = None) -> CompiledPlan:
        """The plan for some sizes of the named dimensions; the model's own sizes if none are given."""
        return self._plans.compiled(sizes, phase)

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
        return self.compiled(sizes, "step" if self.mode == "train" else None).explained()

    def profile(self, feed: Mapping[str, Any], runs: int = MEDIAN_OF) -> Profile:
        """Where the time goes: each step of the plan for this feed measured where it stands, beside its prediction. `print` it, or
        `save` its timeline. Params, states and counters are afterwards what they were; so much memory of the host is needed besides.

        runs  the median of so many counts
        """
        checked_runs(runs)
        with self.variables.lock, self.runtime.current():
            self.runtime.refuse_capture()
            adopted = self._adopt(feed)
            compiled, found = self._plans.checked(adopted)
            frozen, found = self._frozen_for(feed, adopted)

            @contextmanager
            def whole() -> Iterator[None]:
                with self._whole_step(frozen.plan), self.runtime.ordered(found.values()):
                    yield

            last, build = self._last, self._executor.loader.build
            try:
                return measure(compiled.explained(), frozen, found, self.variables, build, runs, whole)
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
        return written(self.explain(sizes), path, profile)

    def _count(self) -> None:
        """A run is done."""
        if self.recipe.accumulate > 1:
            self.variables.accumulated = (
                0 if self._plans.phase() == "step" else self.variables.accumulated + 1
            )
        self.runs += 1
        if self.parallel is not None:
            self.parallel.ran(self.runtime)

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
        return self.variables[full_name(self.variables, self._plans.names, name)].numpy()

    def state_dict(self) -> dict[str, np.ndarray]:
        """Params and states by name, with the run counter; load it into any program of the same model."""
        runs = {RUNS: np.asarray(self.runs, np.int64)} if self.mode == "train" else {}
        return {**self.variables.state_dict(self._plans.names), **runs}

    def load_state_dict(self, state: Mapping[str, Any], strict: bool = True) -> list[str]:
        """All or nothing; see Variables.load_state_dict. The run counter may be missing.

        A program that does not train takes a training program's checkpoint, and leaves aside what only training needs: the
        optimizer's state, random states, the run counter. Programs with a scale of the loss and those without take each other's.
        """
        runs, named = checked_state(self.recipe, self.variables, self._plans.names, state, strict, self.runs)
        with self.variables.lock:
            missing = self.variables.load_state_dict(named, strict, self._plans.names)
            self.runs = runs
        return missing

    def __repr__(self) -> str:
        return (
            f"Program({self.mode} on {self.runtime.spec.name}, {len(self._plans)} plans, {len(self._frozen)} frozen, "
            f"{len(self.variables.names(Role.param))} params, {self.runs} runs)"
        )

    def _repr_html_(self) -> str:
        title = f"{self.mode} program on {self.runtime.spec.name}"
        return drawn(title, self.recipe.model.inputs, self._plans, len(self._frozen), self.runs)
