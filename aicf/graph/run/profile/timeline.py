"""A profile's run as trace events, the JSON that Perfetto and chrome://tracing open: what the host did, what the device did, and which
launch a kernel comes from. https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU has the format."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from .clocks import DeviceSpan, HostSpan
from .result import Profile, StepTime

Event = dict[str, Any]
PROCESS = 1
HOST, DEVICE = 1, 2  # threads


def trace_events(profile: Profile) -> dict[str, Any]:
    plan = profile.explanation.plan
    return {
        "traceEvents": [*_tracks(profile), *_host(profile), *_device(profile)],
        "displayTimeUnit": "ns",
        "otherData": {
            "plan": plan.key, "mode": plan.mode, "device": plan.device, "clock": profile.clock, "why": profile.why,
            "runs": profile.runs, "replay_us": profile.replay_us,
        },
    }  # fmt: skip


def _tracks(profile: Profile) -> Iterator[Event]:
    plan = profile.explanation.plan
    yield _named("process_name", HOST, f"aicf: {plan.mode} plan {plan.key}")
    for thread, name in ((HOST, "host"), (DEVICE, plan.device)):
        yield _named("thread_name", thread, name)
        yield {
            "ph": "M",
            "name": "thread_sort_index",
            "pid": PROCESS,
            "tid": thread,
            "args": {"sort_index": thread},
        }


def _named(what: str, thread: int, name: str) -> Event:
    return {"ph": "M", "name": what, "pid": PROCESS, "tid": thread, "args": {"name": name}}


def _slice(name: str, category: str, thread: int, start: int, end: int, args: Event) -> Event:
    """From nanoseconds, so that what is within another slice is there to the last digit."""
    return {
        "ph": "X", "name": name, "cat": category, "pid": PROCESS, "tid": thread, "ts": start / 1e3, "dur": (end - start) / 1e3,
        "args": args,
    }  # fmt: skip


def _ns(us: float) -> int:
    return round(us * 1e3)


def _host(profile: Profile) -> Iterator[Event]:
    """The run, and in it what follows one another."""
    run = profile.timeline
    yield _slice("run", "host", HOST, 0, _ns(run.wall), {"calls": len(profile.calls)})
    for span in run.host:
        yield _slice(
            _launch_name(span),
            "host",
            HOST,
            _ns(span.start),
            _ns(span.end),
            {"calls": span.last - span.first + 1},
        )


def _launch_name(span: HostSpan) -> str:
    return f"launch {span.name}" if span.last >= span.first else span.name


def _device(profile: Profile) -> Iterator[Event]:
    """A slice for each thing that the device did, and an arrow to it from the launch. One begins when the one before it has ended: of two
    kernels that overlap, the second is drawn where it is alone."""
    steps = {step.call: step for step in profile.steps}
    launched = {n: span for span in profile.timeline.host for n in range(span.first, span.last + 1)}
    free = 0
    for id, span in enumerate(profile.timeline.device):
        start = max(_ns(span.start), free)
        free = max(_ns(span.end), start)
        step = steps.get(span.call)
        name = step.brief if step is not None else profile.calls[span.call]
        args = _step_args(profile, step, span) if step is not None else {}
        yield _slice(name, "kernel" if step is not None else "copy", DEVICE, start, free, args)
        if span.call in launched:
            host = launched[span.call]
            at = min(max(_ns(host.start), 0), start)  # a flow goes forward in time
            flow = {"name": "launch", "cat": "flow", "id": id + 1, "pid": PROCESS}
            yield {**flow, "ph": "s", "tid": HOST, "ts": at / 1e3}
            yield {**flow, "ph": "f", "bp": "e", "tid": DEVICE, "ts": start / 1e3}


def _step_args(profile: Profile, step: StepTime, span: DeviceSpan) -> Event:
    launch = step.launches[0] if len(step.launches) == 1 else None
    shape: Event = {}
    if span.symbol:
        shape = {
            "symbol": span.symbol, "grid": list(span.grid), "block": list(span.block), "cluster": list(span.cluster),
            "registers": span.registers, "shared bytes": span.shared,
        }  # fmt: skip
    elif launch is not None:
        shape = {
            "grid": [*map(int, launch.grid)],
            "block": [*map(int, launch.block)],
            "cluster": launch.cluster,
            "shared bytes": int(launch.shared),
        }
    peaks = (
        {f"of peak {what}": round(step.of_peak(what), 4) for what in ("memory", "compute")}
        if profile.has_peaks
        else {}
    )
    return {
        "region": step.region, "ops": [str(o) for o in step.origins], "at": list(dict.fromkeys(o.where for o in step.origins if o.where)),
        "kernel": step.kernel, "predicted us": round(step.predicted_us, 3), "measured us": round(step.us, 3),
        "bytes": step.nbytes, "flops": step.flops, "GB/s": round(step.gbs, 1), "TFLOP/s": round(step.tflops, 3), **peaks,
        "bound": step.bound, "host us": round(step.host_us, 3), **shape,
    }  # fmt: skip
