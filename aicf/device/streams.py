"""Streams: whose stream work runs on, and how streams of different owners wait for one another.

A stream is its handle, an int as CUDA's runtime has it: 0 and 1 are the legacy default stream, 2 the per-thread one.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Collection, Sequence
from contextlib import suppress
from functools import cache, lru_cache
from typing import Any

from ..errors import CaptureError, DeviceError

LEGACY, PER_THREAD = 1, 2
NO_PART = "a program can't be a part of that"
OUTSIDE = "run the program outside: its replays are graphs already; aicf.op_call can be captured"


def handle_of(stream: Any) -> int:
    """The handle of any library's stream: `__cuda_stream__`, PyTorch's, CuPy's, cuda-python's, Numba's, or an int."""
    if hasattr(stream, "__cuda_stream__"):
        protocol = stream.__cuda_stream__
        return int((protocol() if callable(protocol) else protocol)[1])
    for attribute in ("cuda_stream", "ptr"):  # PyTorch; CuPy
        if hasattr(stream, attribute):
            return int(getattr(stream, attribute))
    if isinstance(stream, bool) or not hasattr(stream, "__int__"):
        raise DeviceError(
            f"{stream!r} is no stream",
            expected="an object with __cuda_stream__, a stream of PyTorch, CuPy or cuda.core, or a handle",
        )
    return int(stream)


def same(a: int, b: int) -> bool:
    """Whether two handles name one stream: the legacy default stream has two."""
    return a == b or (a <= LEGACY and b <= LEGACY)


def torch_stream(ordinal: int) -> int:
    """PyTorch's current stream of a device."""
    torch = sys.modules["torch"]
    raw = getattr(torch._C, "_cuda_getCurrentRawStream", None)  # 0.1 us; the public way takes ten times that
    return raw(ordinal) if raw is not None else torch.cuda.current_stream(ordinal).cuda_stream


def cupy_stream(ordinal: int) -> int:
    """CuPy's current stream of a device."""
    return sys.modules["cupy"].cuda.get_current_stream(ordinal).ptr


@lru_cache(maxsize=256)
def stream_object(ordinal: int, handle: int) -> Any:
    """The `cuda.core.Stream` over a handle. It does not own the stream."""
    from cuda.core import LEGACY_DEFAULT_STREAM, PER_THREAD_DEFAULT_STREAM, Stream

    if handle <= LEGACY:
        return LEGACY_DEFAULT_STREAM
    return PER_THREAD_DEFAULT_STREAM if handle == PER_THREAD else Stream.from_handle(handle)


def home_of(foreign: Any) -> int:
    """The stream that a CUDA tensor was made on and will be used on. A library that names none uses the default stream."""
    if foreign.library == "torch":
        return torch_stream(foreign.ordinal)
    if foreign.library == "cupy":
        return cupy_stream(foreign.ordinal)
    return LEGACY if foreign.stream is None else foreign.stream


def wait(ordinal: int, waiter: int, on: int) -> None:
    """Later work of one stream waits for the work that another has now; nothing waits on the host."""
    if same(waiter, on):
        return
    previous = enter(ordinal)  # events belong to a context, and so does what the default stream means
    try:
        spare = _events(ordinal)
        try:
            event = spare.pop()
        except IndexError:  # there is none, or another thread was faster
            event = None
        event = stream_object(ordinal, on).record(event)
        stream_object(ordinal, waiter).wait(event)
        spare.append(event)  # who waits for it waits for what it recorded by now
    finally:
        leave(previous)


@cache
def _events(ordinal: int) -> list[Any]:
    """Events of a device that nobody is using now."""
    return []


def is_capturing(handle: int, unknown: bool = True) -> bool:
    """Whether a stream of the current device is being captured; `unknown` if it can't be asked, mostly as another one is."""
    from cuda.bindings import driver

    status, state = driver.cuStreamIsCapturing(handle)
    return unknown if int(status) != 0 else int(state) != 0


def refuse_capture(ordinal: int) -> None:
    """CaptureError if this thread captures what it does on a library's current stream: a program's work is on a stream of its own,
    where it would be done now, once, and be missing from the graph."""
    raw = getattr(getattr(sys.modules.get("torch"), "_C", None), "_cuda_getCurrentRawStream", None)
    current = {"PyTorch": raw, "CuPy": cupy_stream if "cupy" in sys.modules else None}
    for library, stream in current.items():
        handle = LEGACY if stream is None else stream(ordinal)
        if handle > LEGACY and is_capturing(handle, unknown=False):  # the default stream can't be captured
            raise CaptureError(f"{library}'s current stream is being captured, and {NO_PART}", hint=OUTSIDE)


def allocate(handle: int, nbytes: int) -> int:
    """Memory of the current device for work on a stream. Under a capture it becomes a part of the graph, which
    cuda.core's allocations refuse to."""
    from cuda.bindings import driver

    status, pointer = driver.cuMemAllocAsync(nbytes, handle)
    if int(status) != 0:
        raise DeviceError(
            f"the CUDA driver answered {status.name}", where=f"{nbytes:,} bytes of scratch memory"
        )
    return int(pointer)


def free(handle: int, pointer: int) -> None:
    """Give it back once the work that is on the stream by now is done."""
    from cuda.bindings import driver

    driver.cuMemFreeAsync(pointer, handle)


class Captured:
    """A stream that is captured into a graph. A kernel of aicf's that comes right after another one may begin early there.

    early  whether kernels may at all
    Whoever asks for the stream itself has other work for it: the kernel after that one waits in the usual way.
    """

    def __init__(self, stream: Any, early: bool) -> None:
        self._stream, self._early, self._kernel_last = stream, early, False

    @property
    def handle(self) -> Any:
        self._kernel_last = False
        return self._stream.handle

    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, int(self.handle)

    def launch(self, config: Any, early: Any, kernel: Any, args: Sequence[Any]) -> None:
        """One of aicf's kernels; it waits for the one before it by itself if there is an `early` configuration."""
        from cuda.core import launch

        begins_early = early and self._early and self._kernel_last
        launch(self._stream, early if begins_early else config, kernel, *args)
        self._kernel_last = True


# --- the current device -----------------------------------------------------------------------------------------------


class _Here(threading.local):
    settled = False  # whether this thread has entered the only device


_here = _Here()


@cache
def _devices() -> int:
    from cuda.bindings import driver

    driver.cuInit(0)
    return int(driver.cuDeviceGetCount()[1])


@cache
def _primary(ordinal: int) -> Any:
    from cuda.bindings import driver

    return driver.cuDevicePrimaryCtxRetain(driver.cuDeviceGet(ordinal)[1])[1]


def enter(ordinal: int) -> Any:
    """Make a device current in this thread; what `leave` takes to undo it, None if nothing changed.

    The legacy default stream means that of the current device. With a single device only a thread's first call asks.
    """
    if _here.settled:
        return None
    from cuda.bindings import driver

    previous, wanted = driver.cuCtxGetCurrent()[1], _primary(ordinal)
    _here.settled = _devices() == 1
    if int(previous) == int(wanted):
        return None
    driver.cuCtxSetCurrent(wanted)
    return previous


def current_context() -> Any:
    """This thread's current context, for `leave` to restore."""
    from cuda.bindings import driver

    return driver.cuCtxGetCurrent()[1]


def leave(previous: Any) -> None:
    """Undo an `enter`."""
    if previous is not None and int(previous):
        from cuda.bindings import driver

        driver.cuCtxSetCurrent(previous)


class Entered:
    """A device is this thread's current one inside."""

    def __init__(self, ordinal: int) -> None:
        self.ordinal = ordinal

    def __enter__(self) -> None:
        self.previous = enter(self.ordinal)

    def __exit__(self, *raised: Any) -> None:
        leave(self.previous)


class Between:
    """Work inside, on the stream `work`, runs after what the streams `others` have by now, and they go on after it: what is
    freed on them after the work is not given away while the work may still read it.

    settled  the host waits, too
    """

    def __init__(self, ordinal: int, work: int, others: Collection[int], settled: bool = False) -> None:
        self.ordinal, self.work, self.others, self.settled = ordinal, work, others, settled

    def __enter__(self) -> None:
        for other in self.others:
            wait(self.ordinal, self.work, other)

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if self.others and isinstance(error, Exception) and is_capturing(self.work, unknown=False):
            with suppress(Exception):  # the capture may be broken by now
                self._after()
            raise CaptureError(
                f"the stream of a fed tensor is being captured, and {NO_PART}", hint=OUTSIDE
            ) from error
        self._after()

    def _after(self) -> None:
        for other in self.others:
            wait(self.ordinal, other, self.work)
        if self.settled:
            stream_object(self.ordinal, self.work).sync()
