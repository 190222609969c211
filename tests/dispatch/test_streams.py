"""Whose stream a call runs on, and who waits for whom; with libraries and a driver that only write down what is asked."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace

import pytest

import aicf
from aicf.device import interop, streams
from aicf.dispatch import call
from aicf.errors import CaptureError, DeviceError

OURS, TORCH, CUPY, NAMED = 0x11, 0x22, 0x33, 0x44


class Array:
    def __init__(self, pointer, stream=None):
        self.pointer = pointer
        self.__cuda_array_interface__ = {
            "shape": (8,), "typestr": "<f4", "data": (pointer, False), "version": 3, "stream": stream,
        }  # fmt: skip

    def __dlpack_device__(self):
        return 2, 0


@pytest.fixture
def world(monkeypatch):
    """`world.log` lists what happened, in order; `world.tensor(library, pointer)` makes tensors."""
    log: list = []
    capturing: set = set()

    class Prepared:
        ordinal, starts = 0, (None,)
        selection = SimpleNamespace(kernel_id="cuda.fake.v1")
        schema = SimpleNamespace(name="relu")

        def check_overlap(self, pointers):
            pass

        def run(self, pointers, stream):
            log.append(("run", pointers, stream))

    class TorchTensor:
        dtype, shape = "torch.float32", (8,)
        layout, requires_grad = "strided", False

        def __init__(self, pointer):
            self.pointer = pointer
            self.device = SimpleNamespace(type="cuda", index=0)

        def data_ptr(self):
            return self.pointer

        def stride(self):
            return (1,)

        def is_neg(self):
            return False

    torch = ModuleType("torch")
    torch.Tensor, torch.strided, torch.version = TorchTensor, "strided", SimpleNamespace(hip=None)
    torch.nn, torch.float32 = SimpleNamespace(Parameter=None), "torch.float32"
    torch._C = SimpleNamespace(_cuda_getCurrentRawStream=lambda ordinal: TORCH)
    TorchTensor.__module__ = "torch"
    cupy = ModuleType("cupy")
    cupy.ndarray = type("ndarray", (Array,), {"__module__": "cupy"})
    cupy.cuda = SimpleNamespace(get_current_stream=lambda ordinal: SimpleNamespace(ptr=CUPY))
    monkeypatch.setitem(sys.modules, "torch", torch)
    monkeypatch.setitem(sys.modules, "cupy", cupy)
    monkeypatch.setattr(interop, "learn", lambda tensor, library: None)
    monkeypatch.setattr(call, "_find", lambda *arguments: Prepared())
    monkeypatch.setattr(call, "log_choice", lambda *arguments: None)
    monkeypatch.setattr(call.annotate, "domain", lambda: None)
    monkeypatch.setattr(call, "_runtime", lambda place: SimpleNamespace(stream_id=OURS))
    monkeypatch.setattr(streams, "wait", lambda ordinal, waiter, on: log.append((waiter, "waits for", on)))
    monkeypatch.setattr(streams, "enter", lambda ordinal: None)
    monkeypatch.setattr(streams, "is_capturing", lambda stream: stream in capturing)
    makers = {"torch": TorchTensor, "cupy": cupy.ndarray, "numba": Array}
    return SimpleNamespace(log=log, capturing=capturing, tensor=lambda library, *a: makers[library](*a))


def relu(world, x, y, **more):
    aicf.op_call("relu", [world.tensor(*x)], [world.tensor(*y)], **more)
    return world.log


@pytest.mark.spec("B5")
def test_torch_s_current_stream_is_taken_and_nobody_waits(world):
    assert relu(world, ("torch", 512), ("torch", 1024)) == [("run", [512, 1024], TORCH)]


@pytest.mark.spec("B5")
def test_cupy_s_current_stream_is_taken(world):
    assert relu(world, ("cupy", 512, CUPY), ("cupy", 1024, CUPY)) == [("run", [512, 1024], CUPY)]


@pytest.mark.spec("B5", "D12")
def test_torch_goes_first_and_the_others_wait_in_turn(world):
    assert relu(world, ("cupy", 512), ("torch", 1024)) == [
        (TORCH, "waits for", CUPY), ("run", [512, 1024], TORCH), (CUPY, "waits for", TORCH),
    ]  # fmt: skip


@pytest.mark.spec("B5", "D12")
def test_arrays_of_other_libraries_run_on_ours_between_two_waits(world):
    """The stream that an interface names, once; the default stream where it names none."""
    assert relu(world, ("numba", 512, 0x77), ("numba", 1024, 0x77)) == [
        (OURS, "waits for", 0x77), ("run", [512, 1024], OURS), (0x77, "waits for", OURS),
    ]  # fmt: skip
    world.log.clear()
    assert relu(world, ("numba", 512), ("numba", 1024)) == [
        (OURS, "waits for", streams.LEGACY), ("run", [512, 1024], OURS), (streams.LEGACY, "waits for", OURS),
    ]  # fmt: skip


@pytest.mark.spec("B5")
def test_a_named_stream_is_used_as_it_is(world):
    class Torch:
        cuda_stream = NAMED

    class Cupy:
        ptr = NAMED

    class Protocol:
        def __cuda_stream__(self):
            return 0, NAMED

    class Property:
        __cuda_stream__ = (0, NAMED)

    for stream in (Torch(), Cupy(), Protocol(), Property(), NAMED):
        world.log.clear()
        assert relu(world, ("torch", 512), ("cupy", 1024), stream=stream) == [("run", [512, 1024], NAMED)]
    for wrong in ("0", object(), True):
        with pytest.raises(DeviceError, match="is no stream"):
            relu(world, ("torch", 512), ("torch", 1024), stream=wrong)


@pytest.mark.spec("B13")
def test_a_capture_takes_tensors_of_one_stream_only(world):
    world.capturing.add(TORCH)
    assert relu(world, ("torch", 512), ("torch", 1024))[-1] == ("run", [512, 1024], TORCH)
    world.log.clear()
    with pytest.raises(CaptureError, match="ordered by several streams"):
        relu(world, ("cupy", 512), ("torch", 1024))
    assert not world.log


@pytest.mark.spec("B13")
def test_the_first_call_under_capture_is_refused_before_anything_is_touched(monkeypatch):
    """No runtime is opened, nothing is compiled, nothing is remembered."""
    call.cache_clear()
    monkeypatch.setattr(streams, "is_capturing", lambda stream: stream == NAMED)
    monkeypatch.setattr(streams, "enter", lambda ordinal: None)
    monkeypatch.setattr(call, "_runtime", lambda place: pytest.fail("opened"))
    monkeypatch.setattr(call, "prepare", lambda *arguments: pytest.fail("prepared"))
    with pytest.raises(CaptureError, match="the first relu of this kind falls into a capture") as error:
        aicf.op_call("relu", [Array(512)], [Array(1024)], stream=NAMED)
    assert "before the capture begins" in str(error.value)
    assert not call._prepared and not call._quick


def test_the_default_stream_has_two_handles():
    assert streams.same(0, 1) and streams.same(5, 5) and not streams.same(1, 2)


class Recorded:
    """A stream that writes down what it records and waits for; recording may be interrupted by a finalizer."""

    def __init__(self, handle, log, finalizers):
        self.handle, self.log, self.finalizers = handle, log, finalizers

    def record(self, event):
        event = event or SimpleNamespace(of=None)
        event.of = self.handle
        while self.finalizers:
            self.finalizers.pop()()
        return event

    def wait(self, event):
        self.log.append((self.handle, event.of))


@pytest.mark.spec("B5")
def test_a_wait_inside_a_wait_has_an_event_of_its_own(monkeypatch):
    """A tensor that another library held is let go when garbage is collected, anywhere."""
    log: list = []
    finalizers: list = []
    monkeypatch.setattr(streams, "enter", lambda ordinal: None)
    monkeypatch.setattr(streams, "stream_object", lambda ordinal, handle: Recorded(handle, log, finalizers))
    streams._events.cache_clear()
    for _ in range(3):
        finalizers.append(lambda: streams.wait(0, CUPY, NAMED))
        streams.wait(0, OURS, TORCH)
    assert log == [(CUPY, NAMED), (OURS, TORCH)] * 3
    assert len(streams._events(0)) == 2
    streams._events.cache_clear()


@pytest.mark.spec("B5")
def test_others_wait_for_work_that_fails(monkeypatch):
    log: list = []
    monkeypatch.setattr(streams, "wait", lambda ordinal, waiter, on: log.append((waiter, on)))
    monkeypatch.setattr(streams, "is_capturing", lambda stream, unknown: False)
    with pytest.raises(KeyError), streams.Between(0, OURS, {TORCH}):
        raise KeyError
    assert log == [(OURS, TORCH), (TORCH, OURS)]


@pytest.mark.spec("B5", "B13")
@pytest.mark.parametrize("error", [RuntimeError("a capturing stream"), KeyboardInterrupt()])
def test_work_that_fails_as_its_feed_s_stream_is_captured_says_so(error, monkeypatch):
    """Ours joined the capture when it waited for theirs; it leaves again all the same."""
    log: list = []
    monkeypatch.setattr(streams, "wait", lambda ordinal, waiter, on: log.append((waiter, on)))
    monkeypatch.setattr(streams, "is_capturing", lambda stream, unknown: stream == OURS)
    expected = CaptureError if isinstance(error, Exception) else KeyboardInterrupt
    with pytest.raises(expected) as seen, streams.Between(0, OURS, {TORCH}):
        raise error
    assert log == [(OURS, TORCH), (TORCH, OURS)]
    assert expected is KeyboardInterrupt or seen.value.__cause__ is error


@pytest.mark.spec("B5", "B13")
@pytest.mark.parametrize("library, stream", [("PyTorch", TORCH), ("CuPy", CUPY)])
def test_a_capture_of_the_caller_s_is_refused_whatever_is_fed(library, stream, world, monkeypatch):
    monkeypatch.setattr(streams, "is_capturing", lambda handle, unknown: handle in world.capturing)
    streams.refuse_capture(0)
    world.capturing.add(NAMED)  # nobody's current stream
    streams.refuse_capture(0)
    world.capturing.add(stream)
    with pytest.raises(
        CaptureError, match=f"{library}'s current stream is being captured(.|\n)*run the program outside"
    ):
        streams.refuse_capture(0)


@pytest.mark.parametrize("torch", [None, ModuleType("torch")], ids=["none", "without CUDA"])
def test_the_default_stream_is_not_asked_nor_a_library_that_is_not_there(torch, world, monkeypatch):
    monkeypatch.setattr(streams, "is_capturing", lambda *arguments: pytest.fail("asked"))
    monkeypatch.setitem(sys.modules, "torch", torch)
    monkeypatch.delitem(sys.modules, "cupy")
    streams.refuse_capture(0)
    monkeypatch.setitem(
        sys.modules, "torch", SimpleNamespace(_C=SimpleNamespace(_cuda_getCurrentRawStream=lambda ordinal: 0))
    )
    streams.refuse_capture(0)


@pytest.mark.spec("B5")
def test_an_event_that_another_thread_took_first_is_made_anew(monkeypatch):
    class Taken(list):
        def __bool__(self):
            return True  # as it was when this thread looked

    recorded, spare = [], Taken()

    def stream(ordinal, handle):
        record = lambda event: recorded.append(event) or "event"  # noqa: E731
        return SimpleNamespace(record=record, wait=recorded.append)

    monkeypatch.setattr(streams, "_events", lambda ordinal: spare)
    monkeypatch.setattr(streams, "stream_object", stream)
    monkeypatch.setattr(streams, "enter", lambda ordinal: None)
    streams.wait(0, OURS, TORCH)
    streams.wait(0, OURS, TORCH)
    assert recorded == [None, "event", "event", "event"]
