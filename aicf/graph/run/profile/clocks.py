"""Clocks: what runs the calls of a replay once, and says when each was started and when the device worked on it.

    HostClock    the host's own clock around each call. On the CPU device a call is done when it returns
    EventClock   CUDA events between the calls, as nodes of the graph that the calls are captured into: what is between two events is
                 the device's time, not Python's. Calls that no graph may hold have their events on the stream

`cupti.py` has a third, which sees each kernel that a call launches.
"""

from __future__ import annotations

import weakref
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from time import perf_counter_ns
from typing import Any, Protocol

from ....device.runtime import CudaRuntime
from ....device.tensor import Runtime
from ....registry.measured import counted
from ..capture import CapturedCall, segments_of

Feed = Callable[[], Any]  # makes the inputs of a run ready; what it returns has to live until the run is done
EXTERNAL = (
    1  # CU_EVENT_RECORD_EXTERNAL: an event that is recorded under a capture becomes a node of the graph
)


@dataclass(frozen=True)
class HostSpan:
    """What the host did, in microseconds since the run began. `first`, `last`: the calls that it started, if any."""

    name: str
    start: float
    end: float
    first: int = 0
    last: int = -1


@dataclass(frozen=True)
class DeviceSpan:
    """What the device did for a call. What of a kernel is known beside its time only CUPTI says."""

    call: int
    start: float
    end: float
    symbol: str = ""
    grid: tuple[int, ...] = ()
    block: tuple[int, ...] = ()
    cluster: tuple[int, ...] = ()
    registers: int = 0
    shared: int = 0  # bytes

    @property
    def us(self) -> float:
        return self.end - self.start


@dataclass(frozen=True)
class TimedRun:
    """One run. `wall`: until the device was done, with what it took to feed it."""

    host: tuple[HostSpan, ...]
    device: tuple[DeviceSpan, ...]
    wall: float

    def device_us(self, calls: int) -> list[float]:
        """Of each call, all that the device did for it."""
        found: dict[int, float] = defaultdict(float)
        for span in self.device:
            found[span.call] += span.us
        return [found[n] for n in range(calls)]

    def host_us(self, calls: int) -> list[float]:
        """Of each call that was started by itself."""
        found = {span.first: span.end - span.start for span in self.host if span.first == span.last}
        return [found.get(n, 0.0) for n in range(calls)]


class Clock(Protocol):
    name: str

    def run(self, feed: Feed) -> TimedRun: ...


@dataclass
class HostWalk:
    """A run in which each call was started by itself, by the host's clock in nanoseconds: `marks[n]` is the start of call n. `ran`:
    what the calls say that they ran."""

    start: int
    marks: list[int]
    end: int
    ran: list[str | None]

    def us(self, ns: int) -> float:
        return (ns - self.start) * 1e-3

    def spans(self, work: Sequence[CapturedCall]) -> tuple[HostSpan, ...]:
        times = [self.us(mark) for mark in self.marks]
        calls = (HostSpan(w.name, *t, n, n) for n, (w, t) in enumerate(zip(work, pairwise(times))))
        return HostSpan("feed", 0.0, times[0]), *calls, HostSpan("sync", times[-1], self.us(self.end))


def walk(
    runtime: Runtime, work: Sequence[CapturedCall], feed: Feed, before: Callable[[int], Any] | None = None,
    after: Callable[[], Any] | None = None,
) -> HostWalk:  # fmt: skip
    """Start the calls one by one, each between `before(its number)` and `after()`, and wait for the device."""
    start = perf_counter_ns()
    alive = feed()
    marks, ran = [perf_counter_ns()], []
    for n, captured in enumerate(work):
        if before is not None:
            before(n)
        try:
            ran.append(captured.call())
        finally:
            if after is not None:
                after()
        marks.append(perf_counter_ns())
    runtime.sync()
    end = perf_counter_ns()
    del alive
    return HostWalk(start, marks, end, ran)


class HostClock:
    name = "the host's clock"

    def __init__(self, runtime: Runtime, work: Sequence[CapturedCall]) -> None:
        self.runtime, self.work = runtime, work

    def run(self, feed: Feed) -> TimedRun:
        walked = walk(self.runtime, self.work, feed)
        spans = walked.spans(self.work)
        device = (DeviceSpan(s.first, s.start, s.end) for s in spans if s.first == s.last)
        return TimedRun(spans, tuple(device), walked.us(walked.end))


class EventClock:
    """mode  "off" captures nothing: then what is between two events is no less than what the host takes to start a call"""

    def __init__(self, runtime: CudaRuntime, work: Sequence[CapturedCall], mode: str = "auto") -> None:
        self.runtime = runtime
        self._between: list[tuple[Any, Any]] = []  # events before and behind each call
        marked: list[CapturedCall] = []
        at = []  # of each call its place there
        for n, call in enumerate(work):
            if n == 0 or call.refused != work[n - 1].refused:  # a segment begins when the host starts it
                begun = self._event()
                marked.append(self._mark(begun, call))
            else:
                begun = self._between[-1][1]
            at.append(len(marked))
            self._between.append((begun, self._event()))
            marked += [call, self._mark(self._between[-1][1], call)]
        self._segments = [
            (segment, [n for n, place in enumerate(at) if segment.first <= place <= segment.last])
            for segment in segments_of(runtime, marked, mode)
        ]
        graphs = sum(1 for segment, _ in self._segments if segment.nodes)
        self.name = f"CUDA events in {counted(graphs, 'graph')}" if graphs else "CUDA events on the stream"

    def _event(self) -> Any:
        (event,) = self.runtime.check(self.runtime.driver.cuEventCreate(0))  # with timing
        weakref.finalize(self, self.runtime.driver.cuEventDestroy, event)
        return event

    def _mark(self, event: Any, beside: CapturedCall) -> CapturedCall:
        """What records an event: behind what is on the stream, or as a node of the graph that the call beside it is captured into."""
        runtime, record = self.runtime, self.runtime.driver.cuEventRecordWithFlags

        def mark(*on: Any) -> None:
            if on:
                runtime.check(record(event, on[0].handle, EXTERNAL))
            else:
                runtime.check(record(event, runtime.stream.handle, 0))

        return CapturedCall("event", mark, beside.refused)

    def run(self, feed: Feed) -> TimedRun:
        start = perf_counter_ns()
        alive = feed()
        marks = [perf_counter_ns()]
        for segment, _ in self._segments:
            segment.launch()
            marks.append(perf_counter_ns())
        self.runtime.sync()
        end = (perf_counter_ns() - start) * 1e-3
        del alive
        times = [(mark - start) * 1e-3 for mark in marks]
        host = [HostSpan("feed", 0.0, times[0])]
        for (segment, calls), between in zip(self._segments, pairwise(times)):
            how = f"graph of {segment.nodes} nodes" if segment.nodes else "one by one"
            host.append(HostSpan(how, *between, calls[0], calls[-1]))
        host.append(HostSpan("sync", times[-1], end))
        return TimedRun(tuple(host), tuple(self._device(times[0])), end)

    def _device(self, launched: float) -> list[DeviceSpan]:
        """The first event is taken for the moment of the launch: the device's clock can't be compared with the host's."""
        elapsed, check = self.runtime.driver.cuEventElapsedTime, self.runtime.check

        def at(event: Any) -> float:
            first = self._between[0][0]
            return launched + (1e3 * float(check(elapsed(first, event))[0]) if event is not first else 0.0)

        return [DeviceSpan(n, at(begun), at(ended)) for n, (begun, ended) in enumerate(self._between)]
