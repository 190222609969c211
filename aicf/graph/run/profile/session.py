"""Measuring: the calls of a frozen plan, run again and again by the best clock that there is, and replays of it as they are."""

from __future__ import annotations

import gc
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from statistics import median, quantiles
from time import perf_counter_ns
from typing import Any

import numpy as np

from ....device.faults import tell
from ....device.foreign import Foreign
from ....device.runtime import CudaRuntime
from ....device.tensor import Tensor
from ....errors import AicfError, DeviceError, VerifyError
from ....ir import Role
from ....registry.cost import one_launch
from ....registry.variant import Built
from ....rows import RegionSpec
from ..explain import Explanation
from ..frozen import FrozenPlan
from ..peak import arithmetic_seconds, region_flops, unit_of
from ..plan import ExecPlan
from ..variables import Variables
from .clocks import Clock, EventClock, HostClock, TimedRun
from .cupti import CuptiClock
from .result import Origin, Profile, StepTime

MEDIAN_OF = 10
Build = Callable[[str, RegionSpec], Built]


def checked_runs(runs: Any) -> int:
    if type(runs) is not int or runs < 1:
        raise VerifyError(
            f"runs={runs!r}", expected="a whole number of 1 or more; the median of so many runs counts"
        )
    return runs


def random_feed(plan: ExecPlan, rng: np.random.Generator) -> dict[str, np.ndarray]:
    """Valid for any model whose integers are tokens or classes: 0 and 1 are, of two or more."""
    feed = {}
    for slot in plan.externals(Role.input):
        dtype, shape = slot.spec.dtype, slot.spec.shape
        array = rng.normal(size=shape) if dtype.kind == "float" else rng.integers(0, 2, shape)
        feed[slot.name] = np.asarray(array).astype(dtype.numpy)
    return feed


def measure(
    explanation: Explanation, frozen: FrozenPlan, found: dict[str, Foreign], variables: Variables, build: Build, runs: int,
    whole: Callable[[], AbstractContextManager[Any]],
) -> Profile:  # fmt: skip
    """Each step of a plan, where it stands among the others. What the runs write is put back.

    found  what is fed
    build  what says how a kernel is launched
    whole  is around each run
    """
    with variables.unchanged(frozen.plan) as put_back:
        session = _Measuring(frozen, found, variables, put_back, whole, runs)
        clock, why, timed, walks, replays = session.measured()
    return _profile(explanation, frozen, build, (clock.name, why), timed, walks, median(replays))


class _Measuring:
    def __init__(
        self, frozen: FrozenPlan, found: dict[str, Foreign], variables: Variables, put_back: Callable[[], None],
        whole: Callable[[], AbstractContextManager[Any]], runs: int,
    ) -> None:  # fmt: skip
        self.frozen, self.found, self.variables = frozen, found, variables
        self.put_back, self.whole, self.runs = put_back, whole, runs

    def measured(self) -> tuple[Clock, str, list[TimedRun], list[TimedRun], list[float]]:
        """The best clock that works here, and why no better one does; runs by it, runs whose calls were started one by one by the host's
        clock, and microseconds of replays."""
        runtime, work = self.frozen.runtime, self.frozen.work
        host = HostClock(runtime, work)
        walks, replays = self._in_turn(self._by(host), self._replay)  # before CUPTI watches, which takes time
        if not isinstance(runtime, CudaRuntime):
            return host, "", walks, walks, replays
        try:
            cupti = CuptiClock(runtime, work)
            try:
                (timed,) = self._in_turn(self._by(cupti))
            finally:
                cupti.close()
            return cupti, "", timed, walks, replays
        except AicfError:  # the program's, not the clock's
            raise
        except ImportError as error:
            why = f"cupti-python can't be imported ({error}): pip install cupti-python"
        # another profiler that is there, a driver that is older, a container that may not
        except Exception as error:
            why = f"CUPTI does not work here: {type(error).__name__}: {error}"
        try:
            clock, timed = self._by_events("off" if self.frozen.policy.capture == "off" else "auto")
        # of events in a graph; what is wrong with the device itself is raised again
        except DeviceError as error:
            why = f"{why}; events in a graph can't be timed: {error.what}"
            clock, timed = self._by_events("off")
        return clock, why, timed, walks, replays

    def _by_events(self, mode: str) -> tuple[EventClock, list[TimedRun]]:
        runtime = self.frozen.runtime
        assert isinstance(runtime, CudaRuntime)
        alive = self._ready()  # a copy is captured with memory that is there
        clock = EventClock(runtime, self.frozen.work, mode)
        runtime.sync()
        del alive
        (timed,) = self._in_turn(self._by(clock))
        return clock, timed

    def _by(self, clock: Clock) -> Callable[[], TimedRun]:
        return lambda: clock.run(self._ready)

    def _in_turn(self, *kinds: Callable[[], Any]) -> list[list[Any]]:
        """Runs of each kind, one of each after the other, so that a drifting clock rate meets all of them. The first finds kernels that
        were never launched, memory that was never touched: it does not count."""
        taken = [[self._attempt(run) for run in kinds] for _ in range(self.runs + 1)][1:]
        return [list(samples) for samples in zip(*taken)]

    def _replay(self) -> float:
        """Microseconds of a call of the program, until it is done."""
        start = perf_counter_ns()
        results, _ = self.frozen.replay(self.found, self.variables, False)
        self.frozen.runtime.sync()
        us = (perf_counter_ns() - start) * 1e-3
        del results
        return us

    def _ready(self) -> tuple[dict[str, Tensor], list[Tensor]]:
        return self.frozen.ready(self.found, self.variables)

    def _attempt(self, run: Callable[[], Any]) -> Any:
        self.put_back()
        collecting = gc.isenabled()
        gc.disable()
        try:
            with self.whole():
                self.frozen.runtime.sync()  # what makes the plan's states up to date is done
                made = run()
        finally:
            if collecting:
                gc.enable()
        tell(*self.frozen.bound.faults)  # of a run that met no class, say, nothing is to be said
        return made


def _profile(
    explanation: Explanation, frozen: FrozenPlan, build: Build, clock: tuple[str, str], timed: Sequence[TimedRun],
    walks: Sequence[TimedRun], replay_us: float,
) -> Profile:  # fmt: skip
    calls, spec = len(frozen.work), frozen.runtime.spec
    device = list(zip(*(run.device_us(calls) for run in timed)))
    host = list(zip(*(run.host_us(calls) for run in walks)))
    number = {region.anchor: n for n, region in enumerate(explanation.regions)}
    steps = []
    for (step, _), call in zip(frozen.bound.calls, frozen.step_calls):
        region, built = step.region, build(step.kernel_id, step.region)
        runs_something = any(t.numel for t in region.results)
        steps.append(
            StepTime(
                number[step.anchor], call, region.signature, step.kernel_id,
                explanation.regions[number[step.anchor]].selection.chosen.us, median(device[call]), _spread(device[call]),
                median(host[call]), region.nbytes if runs_something else 0, region_flops(region), unit_of(region),
                {"memory": region.nbytes / spec.bandwidth * 1e-3, "compute": arithmetic_seconds(region, spec) * 1e6,
                 "launch": one_launch(region, spec)},
                tuple(Origin(op.kind.name, op.layer, op.where) for op in step.ops),
                tuple(built) if isinstance(built, list) and runs_something else (),
            )
        )  # fmt: skip
    whole = sorted(timed, key=lambda run: run.wall)[len(timed) // 2]
    others = sum(median(us) for call, us in enumerate(device) if call not in frozen.step_calls)
    return Profile(
        explanation, spec, tuple(steps), *clock, len(timed), replay_us, median(run.wall for run in walks), others, whole,
        tuple(w.name for w in frozen.work),
    )  # fmt: skip


def _spread(samples: Sequence[float]) -> float:
    """Between the quartiles, of the median."""
    if len(samples) < 2:
        return 0.0
    low, middle, high = quantiles(samples, n=4, method="inclusive")
    return (high - low) / middle if middle else 0.0
