"""Helper processes for work that holds a lock in this one: numba compiles one kernel at a time per process.

They are plain child processes that are handed pickled calls, not `multiprocessing`'s, which would run the user's script
again. This process works on the same list, and a helper takes a call only once it is ready; so helpers that are slow to
start, or fail, cost nothing but what they would have done.
"""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import signal
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from .. import dsl

# Importing numba takes each process about a second, in which this one compiles some ten small kernels, or two large ones.
MOST, CALLS_EACH, FEWEST_CALLS = 8, 3, 6

Call = Callable[[], Any]


def helpers_for(calls: int) -> int:
    """How many helpers pay for themselves: up to half of the other cores, which may be busy with something else."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    frozen = getattr(sys, "frozen", False) or not sys.executable  # there is no interpreter to start
    if frozen or calls < FEWEST_CALLS:
        return 0
    return min(MOST, (cores - 1) // 2, calls // CALLS_EACH)


def share(
    calls: Sequence[Call],
    here: Callable[[int], object],
    helpers: int,
    told: Callable[[int], object] = lambda i: None,
) -> list[Any]:
    """Do the calls in helpers and, by `here(i)`, in this process. What the helpers returned; what failed is left out.

    told   told when a helper is done with call i, in the thread that waits for it
    """
    todo = deque(enumerate(map(pickle.dumps, calls)))
    results: list[Any] = []
    started: list[_Helper] = []
    try:
        with contextlib.suppress(OSError):
            for _ in range(helpers):
                started.append(_Helper(todo, results, told))
        with contextlib.suppress(IndexError):  # until nothing is left
            while True:
                here(todo.popleft()[0])
    finally:
        for helper in started:
            helper.dismiss()
    return results


class _Helper:
    """A child process, and the thread that hands it calls and waits for it."""

    START = "import sys, json; sys.path[:] = json.loads(sys.argv[1]); from aicf.cuda_kernels.compiler.workers import main; main()"

    def __init__(
        self, todo: deque[tuple[int, bytes]], results: list[Any], told: Callable[[int], object]
    ) -> None:
        self.todo, self.results, self.told, self.busy = todo, results, told, False
        self.process = subprocess.Popen(
            [sys.executable, "-c", self.START, json.dumps(sys.path)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        self.thread = threading.Thread(target=self._work, daemon=True)
        self.thread.start()

    def _work(self) -> None:
        ask, answer = self.process.stdin, self.process.stdout
        assert ask and answer
        with contextlib.suppress(EOFError, IndexError, OSError, pickle.UnpicklingError):
            pickle.load(answer)  # it is ready
            while True:
                i, call = self.todo.popleft()
                self.busy = True
                ask.write(call)
                ask.flush()
                self.results += pickle.load(answer)
                self.told(i)
                self.busy = False

    def dismiss(self) -> None:
        """When nothing is left to do: wait for the call it is at, if any, but not for its start."""
        if not self.busy:
            self.process.kill()
        self.thread.join()
        self.process.kill()
        self.process.wait()


def main() -> None:
    """A helper: imports numba, says that it is ready, and does the calls it is sent. An answer is a list of one, or empty."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent is interrupted, and ends its helpers
    asked, answers = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what numba prints is no answer

    def answer(value: Any) -> None:
        pickle.dump(value, answers)
        answers.flush()

    dsl.cuda.resolve()
    answer("ready")
    while True:
        try:
            call = pickle.load(asked)
        except EOFError:
            return
        try:
            result = [call()]
        except Exception:  # the parent meets it again, and tells the user
            result = []
        answer(result)
