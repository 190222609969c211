"""Collectives of a bound plan: neighbours leave together, and on CUDA they run beside the kernels that do not need them.

A collective is forked off the run's stream by an event, and joined by another before the first step that touches what it writes. So
its memory needs no care of its own: it lies in the arena until that step is done. Under capture both events become edges of the graph.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ...device.runtime import CudaRuntime
from ...device.tensor import Runtime
from ...dispatch import Call
from ...dispatch.collective import CollectiveCall
from .plan import ExecPlan, Step

Calls = list[tuple[Step, Call]]


def arranged(calls: Calls, plan: ExecPlan, runtime: Runtime) -> Calls:
    """The same calls, with collectives grouped, forked and joined."""
    if not any(isinstance(call, CollectiveCall) for _, call in calls):
        return calls
    _group(calls)
    return _forked(calls, plan, runtime) if isinstance(runtime, CudaRuntime) else calls


def bucket_of(step: Step) -> tuple[Any, ...]:
    """What collectives share that leave together."""
    op = step.region.anchor
    return op.kind, op.attrs["bucket"]


def _group(calls: Calls) -> None:
    first: tuple[Step, CollectiveCall] | None = None
    for step, call in calls:
        if not isinstance(call, CollectiveCall):
            first = None
        elif first is not None and bucket_of(first[0]) == bucket_of(step):
            first[1].take(call)
        else:
            first = step, call


def _forked(calls: Calls, plan: ExecPlan, runtime: CudaRuntime) -> Calls:
    made: Calls = []
    pending: dict[int, _Fork] = {}  # by the storage that it writes
    fork: _Fork | None = None
    for step, call in calls:
        if isinstance(call, CollectiveCall):
            if call.parts:
                fork = _Fork(runtime, call)
                call = fork
            assert fork is not None
            pending.update({plan.alias.get(vid, vid): fork for vid in step.out_vids})
        elif pending:
            touched = {plan.alias.get(vid, vid) for vid in (*step.in_vids, *step.out_vids)}
            if forks := [pending[at] for at in touched if at in pending]:
                pending = {at: f for at, f in pending.items() if f not in forks}
                call = _Join(dict.fromkeys(forks), call)
        made.append((step, call))
    for left in dict.fromkeys(pending.values()):
        left.at_once = True  # nothing of the run needs it, but who reads the results does
    return made


class _Fork:
    """A collective on the stream of its own."""

    def __init__(self, runtime: CudaRuntime, call: CollectiveCall) -> None:
        self.runtime, self.call, self.at_once = runtime, call, False
        self.begun, self.done = (_event(runtime) for _ in range(2))

    def __call__(self, *on: Any) -> str | None:
        runtime, driver = self.runtime, self.runtime.driver
        here, apart = stream_of(runtime, on), self.call.communicator.apart()
        runtime.check(driver.cuEventRecord(self.begun, here))
        runtime.check(driver.cuStreamWaitEvent(apart, self.begun, 0))
        ran = self.call(apart)
        runtime.check(driver.cuEventRecord(self.done, apart))
        if self.at_once:
            self.join(on)
        return ran

    def join(self, on: Sequence[Any]) -> None:
        """Later work of the run waits for it."""
        self.runtime.check(self.runtime.driver.cuStreamWaitEvent(stream_of(self.runtime, on), self.done, 0))


class _Join:
    """A call behind collectives that it needs."""

    def __init__(self, forks: Any, call: Call) -> None:
        self.forks, self.call = tuple(forks), call

    def __call__(self, *on: Any) -> str | None:
        for fork in self.forks:
            fork.join(on)
        return self.call(*on)


def stream_of(runtime: CudaRuntime, on: Sequence[Any]) -> Any:
    """The stream that a call is started on: the run's own unless another is given."""
    return on[0].handle if on else runtime.stream.handle


def _event(runtime: CudaRuntime) -> Any:
    flags = runtime.driver.CUevent_flags.CU_EVENT_DISABLE_TIMING
    (event,) = runtime.check(runtime.driver.cuEventCreate(flags))
    return event
