"""Ctrl-C and forks at the worst moments: while numba is imported or compiles, and while another thread is in the middle of a run."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

import aicf
from aicf.whole import Uninterrupted, Whole, shared_lock

ROOT = Path(aicf.__file__).parents[1]
pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork")

COMMON = """
import faulthandler, os, random, signal, sys, threading, time
import numpy as np
import aicf
from aicf import nn

def program_of(act, device="cpu"):
    model = nn.Model({"x": aicf.TensorSpec(("batch", 5))}, batch=4).add(nn.Linear(5, 7)).add(act)
    return aicf.compile(model, device=device)

def works(program, scalar, batch=4):
    x = np.linspace(-1, 1, batch * 5, dtype=np.float32).reshape(batch, 5)
    got = program.run({"x": x})["output"].numpy()
    want = scalar(x.astype(float) @ program.get("0.weight").T + program.get("0.bias"))
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)

def in_child(function, seconds=40):
    pid = os.fork()
    if pid == 0:
        faulthandler.dump_traceback_later(seconds - 10)
        try:
            function()
        except BaseException:
            import traceback
            traceback.print_exc()
            sys.stderr.flush()
            os._exit(1)
        os._exit(0)
    end = time.monotonic() + seconds
    while (done := os.waitpid(pid, os.WNOHANG))[0] == 0:
        if time.monotonic() > end:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            raise SystemExit("the child hangs")
        time.sleep(0.05)
    if done[1]:
        raise SystemExit("the child failed")
"""


def run(code: str, *args: str) -> None:
    env = {**os.environ, "PYTHONPATH": str(ROOT), "AICF_CACHE": "off"}
    ran = subprocess.run(
        [sys.executable, "-c", COMMON + code, *args], env=env, capture_output=True, text=True, timeout=300
    )
    assert ran.returncode == 0, ran.stderr


# --- Ctrl-C -----------------------------------------------------------------------------------------------------------


@pytest.mark.sample(1, pool="processes")
def test_ctrl_c_while_numba_is_imported_or_compiles_leaves_it_whole():
    """In children that import nothing of numba before: at the n-th import of one of its modules, or some time after the first. Numba
    compiles the script's op: those of aicf come compiled."""
    run("""
from aicf.ops.schema import elementwise

@elementwise("twice_its_own")
def twice_its_own(x):
    return x + x

class Twice(nn.Layer):
    def emit(self, ctx, x):
        return ctx.twice_its_own(x)

def interrupted(at, delay):
    program, seen = program_of(Twice()), []

    def hook(event, args):
        if event == "import" and args[0].startswith("numba"):
            seen.append(args[0])
            if len(seen) == at:
                if delay:
                    threading.Timer(delay, os.kill, (os.getpid(), signal.SIGINT)).start()
                else:
                    os.kill(os.getpid(), signal.SIGINT)

    sys.addaudithook(hook)
    assert "numba" not in sys.modules
    try:
        works(program, lambda z: 2 * z)
        time.sleep(delay)
        assert False, f"KeyboardInterrupt was lost; {len(seen)} imports"
    except KeyboardInterrupt:
        pass
    works(program, lambda z: 2 * z)
    works(program_of(nn.Tanh()), np.tanh)

for at, delay in ((random.randint(10, 120), 0), (1, random.uniform(0.3, 1.5))):
    in_child(lambda: interrupted(at, delay))
""")


def test_ctrl_c_waits_for_the_end_of_what_is_to_be_whole():
    before, reached = signal.getsignal(signal.SIGINT), []
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt), Whole():
            with Uninterrupted():
                os.kill(os.getpid(), signal.SIGINT)
                reached.append(1)
            reached.append(2)
        assert reached == [1, 2]
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    finally:
        signal.signal(signal.SIGINT, before)


# --- forks ------------------------------------------------------------------------------------------------------------


@pytest.mark.sample(1, pool="processes")
def test_a_child_that_is_forked_from_busy_threads_works():
    """One thread trains, one compiles; children run a program of the first one's model, compile, and read whole steps."""
    run("""
class Halves(nn.Layer):  # two states that are always equal after a step
    def emit(self, ctx, x):
        a, b = (ctx.state(n, (), 0, aicf.i32) for n in "ab")
        ctx.update(a, ctx.increment(a)), ctx.update(b, ctx.increment(b))
        return ctx.relu(x)

both = aicf.compile(nn.Model({"x": aicf.TensorSpec((4, 5))}).add(Halves()), device="cpu")
x, stop = np.ones((4, 5), np.float32), threading.Event()
program = program_of(nn.ReLU())
works(program, lambda z: np.maximum(z, 0))

def busy():
    while not stop.is_set():
        with both.variables.lock:  # as a long step has it
            both.run({"x": x})
            time.sleep(0.05)
        time.sleep(0.001)

def compiling():
    for n in range(1, 1000):
        if stop.is_set():
            return
        class Scaled(nn.Layer):
            def emit(self, ctx, x):
                return ctx.leaky_relu(x, slope=n / 1000)
        works(program_of(Scaled()), lambda z: np.where(z > 0, z, z * n / 1000))

def child():
    both.run({"x": x})
    assert both.get("0.a") == both.get("0.b")
    works(program, lambda z: np.maximum(z, 0), batch=random.randint(1, 99))
    works(program_of(nn.Tanh()), np.tanh)

threads = [threading.Thread(target=t, daemon=True) for t in (busy, compiling)]
[t.start() for t in threads]
for _ in range(3):
    time.sleep(random.uniform(0.05, 0.3))
    in_child(child)
stop.set()
[t.join(60) for t in threads]
works(program, lambda z: np.maximum(z, 0))
""")


def test_a_forked_child_refuses_cuda_that_was_started_before():
    run("""
from aicf.device import runtime
from aicf.errors import DeviceError

def refuses():
    for device in ("cuda", "cuda:0", "auto", None):
        try:
            aicf.runtime(device)
        except DeviceError as error:
            assert "this process was forked from one that had started CUDA" in str(error), error
            assert "spawn" in error.hint and "device='cpu' works here" in error.hint
        else:
            assert False, device
    works(program_of(nn.ReLU()), lambda z: np.maximum(z, 0))

os.environ["AICF_DEVICE"] = "auto"
runtime._started = True  # as cuda_missing() notes it where there is a driver
in_child(refuses)
runtime._started = False
in_child(lambda: aicf.runtime("auto"))
""")


def test_a_fork_waits_for_a_lock_but_not_for_good(monkeypatch):
    from aicf import whole

    monkeypatch.setattr(whole, "PATIENCE", 0.2)
    lock, held, done = shared_lock(), threading.Event(), threading.Event()

    def hold():
        with lock:
            held.set()
            done.wait(30)

    thread = threading.Thread(target=hold)
    thread.start()
    held.wait(30)
    start = time.monotonic()
    pid = os.fork()
    if pid == 0:
        os._exit(0 if lock.acquire(blocking=False) else 1)
    assert time.monotonic() - start > 0.1
    assert os.waitpid(pid, 0)[1] == 0, "the child's lock is free"
    assert not lock.acquire(blocking=False), "the parent's is held"
    done.set()
    thread.join()
    assert lock.acquire(blocking=False)
    lock.release()
