"""CUPTI: NVIDIA's records of what a GPU did, through the package `cupti-python`, to which this file is the one door.

Each call is started under an external id, its number. CUPTI hands over, in any order, records that say which launches that were (their
correlation ids), and one for each kernel and copy: its correlation id, when it began and ended on the device, its shape.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from time import perf_counter_ns
from typing import Any

from ....device.tensor import Runtime
from ..capture import CapturedCall
from .clocks import DeviceSpan, Feed, TimedRun, walk

BUFFER = 8 * 2**20  # bytes that CUPTI fills at a time
KINDS = (
    "DRIVER",
    "EXTERNAL_CORRELATION",
    "CONCURRENT_KERNEL",
    "MEMCPY",
    "MEMSET",
)  # ids are told of recorded API calls only
DONE = "KERNEL", "CONCURRENT_KERNEL", "MEMCPY", "MEMSET"  # by the device

_USED = (
    threading.Lock()
)  # a process has one CUPTI: programs that are profiled in several threads take turns at it
_ids: dict[int, int] = {}  # correlation id -> external id, of the run that is measured
_done: list[tuple[int, int, int, dict[str, Any]]] = []  # correlation id, start, end, shape
_registered = False


class IncompleteRecords(Exception):
    """CUPTI did not tell of all that ran."""


def _completed(activities: Iterable[Any]) -> None:
    """Records are CUPTI's memory: what is wanted of them is copied."""
    from cupti import cupti

    done = [int(getattr(cupti.ActivityKind, name)) for name in DONE]
    for a in activities:
        if int(a.kind) in done:
            _done.append((a.correlation_id, a.start, a.end, _shape(a)))
        elif int(a.kind) == int(cupti.ActivityKind.EXTERNAL_CORRELATION):
            _ids[a.correlation_id] = a.external_id


def _shape(a: Any) -> dict[str, Any]:
    """Of a kernel; nothing of a copy."""
    if not hasattr(a, "grid_x"):
        return {}
    three = {of: tuple(getattr(a, f"{of}_{axis}") for axis in "xyz") for of in ("grid", "block", "cluster")}
    shared = a.static_shared_memory + a.dynamic_shared_memory
    return {"symbol": a.name, **three, "registers": a.registers_per_thread, "shared": shared}


class CuptiClock:
    """Nobody else in the process has one until `close`."""

    name = "CUPTI"

    def __init__(self, runtime: Runtime, work: Sequence[CapturedCall]) -> None:
        global _registered
        from cupti import cupti

        self.runtime, self.work, self._cupti = runtime, work, cupti
        self._enabled: list[Any] = []
        _USED.acquire()
        try:
            for name in KINDS:
                kind = getattr(cupti.ActivityKind, name)
                cupti.activity_enable(kind)
                self._enabled.append(kind)
            if not _registered:  # CUPTI keeps them
                cupti.activity_register_callbacks(lambda: (BUFFER, 0), _completed)
                _registered = True
        except BaseException:
            self.close()
            raise

    def run(self, feed: Feed) -> TimedRun:
        cupti, own = self._cupti, self._cupti.ExternalCorrelationKind.CUSTOM0
        cupti.activity_flush_all(1)  # what was done before
        _ids.clear()
        _done.clear()
        here, there = perf_counter_ns(), cupti.get_timestamp()  # the same moment by both clocks
        walked = walk(
            self.runtime, self.work, feed, lambda n: cupti.activity_push_external_correlation_id(own, n + 1),
            lambda: cupti.activity_pop_external_correlation_id(own),
        )  # fmt: skip
        cupti.activity_flush_all(1)
        device = self._spans(walked.start - here + there)
        seen = {span.call for span in device}
        launching = [n for n, ran in enumerate(walked.ran) if ran]
        if lost := [n for n in launching if n not in seen]:
            raise IncompleteRecords(
                f"of {len(launching)} kernels it told of {len(launching) - len(lost)}; none of {self.work[lost[0]].name}"
            )
        return TimedRun(walked.spans(self.work), tuple(device), walked.us(walked.end))

    def _spans(self, start: int) -> list[DeviceSpan]:
        """What was done for the calls, as it began; `start`: when the run did, by CUPTI's clock."""
        spans = [
            DeviceSpan(_ids[id] - 1, (begun - start) * 1e-3, (ended - start) * 1e-3, **shape)
            for id, begun, ended, shape in _done
            if id in _ids
        ]
        return sorted(spans, key=lambda span: span.start)

    def close(self) -> None:
        try:
            while self._enabled:
                self._cupti.activity_disable(self._enabled.pop())
        finally:
            _USED.release()
