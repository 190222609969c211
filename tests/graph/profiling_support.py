"""Stand-ins for what tells times on a GPU: the package cupti-python, and the events of the driver. Both tell times that are known."""

from __future__ import annotations

from enum import IntEnum
from types import ModuleType, SimpleNamespace

from aicf.device.runtime import CudaRuntime


class ActivityKind(IntEnum):
    MEMCPY = 1
    MEMSET = 2
    KERNEL = 3
    DRIVER = 4
    CONCURRENT_KERNEL = 10
    EXTERNAL_CORRELATION = 39


class CuptiStandIn(ModuleType):
    """`from cupti import cupti`. Of each call under an external id, `launches[id - 1]` are the kernels that it launched: (start, end) in
    nanoseconds after the run began. Records come when they are flushed, the last first, and are gone when the callback returns."""

    def __init__(self, launches: list[list[tuple[int, int]]], offset: int = 5_000_000) -> None:
        super().__init__("cupti.cupti")
        self.ActivityKind, self.ExternalCorrelationKind = ActivityKind, SimpleNamespace(CUSTOM0=3)
        self.launches, self.now, self.enabled, self.ids, self.records = launches, offset, set(), [], []
        self.completed = None
        self.drop = 0  # so many kernels of a run are not told

    def activity_enable(self, kind):
        self.enabled.add(kind)

    def activity_disable(self, kind):
        self.enabled.discard(kind)

    def activity_register_callbacks(self, requested, completed):
        size, count = requested()
        assert size > 0 and count == 0
        self.completed = completed

    def get_timestamp(self):
        return self.now

    def activity_push_external_correlation_id(self, kind, id):
        assert kind == self.ExternalCorrelationKind.CUSTOM0 and not self.ids, "ids are not nested"
        self.ids.append(id)
        for n, (start, end) in enumerate(self.launches[id - 1]):
            correlation = 1000 + 10 * id + n
            self.records.append(
                SimpleNamespace(kind=39, correlation_id=correlation, external_id=id, external_kind=kind)
            )
            axes = {
                f"{of}_{axis}": at for of in ("grid", "block", "cluster") for at, axis in enumerate("xyz", 1)
            }
            self.records.append(
                SimpleNamespace(
                    kind=10, correlation_id=correlation, start=self.now + start, end=self.now + end, name=f"kernel_{id}_{n}",
                    static_shared_memory=16, dynamic_shared_memory=32, registers_per_thread=40, **axes,
                )
            )  # fmt: skip

    def activity_pop_external_correlation_id(self, kind):
        return self.ids.pop()

    def activity_flush_all(self, flag):
        stranger = SimpleNamespace(kind=10, correlation_id=7, start=0, end=10**9, name="somebody else's")
        told = [stranger, *reversed(self.records[: len(self.records) - 2 * self.drop])]
        self.records.clear()
        self.completed(told)
        for record in told:
            vars(record).clear()


class Event:
    at = None  # microseconds


class CudaStandIn(CudaRuntime):
    """A CudaRuntime on a host's memory: events take the time of a clock that calls move."""

    def __init__(self, host) -> None:
        self.host, self.spec, self.us = host, host.spec, 0.0
        self.stream = SimpleNamespace(handle=0)
        self.driver = SimpleNamespace(
            cuEventCreate=lambda flags: (0, Event()), cuEventDestroy=lambda event: (0,),
            cuEventRecordWithFlags=self._record, cuEventElapsedTime=lambda a, b: (0, (b.at - a.at) * 1e-3),
        )  # fmt: skip
        self.flags = []

    def _record(self, event, handle, flags):
        event.at = self.us
        self.flags.append(flags)
        return (0,)

    def sync(self):
        pass
