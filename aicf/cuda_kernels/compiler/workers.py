"""Helper processes for work that holds a lock in this one: numba compiles one kernel at a time per process.

They are plain child processes that are handed pickled calls, not `multiprocessing`'s, which would run the user's script
again. This process works on the same list, and a helper takes a call only once it is ready; so helpers that are slow to
start, or fail, cost nothing but what they would have done.
"""

from __future__ import annotations

import contextlib
import heapq
import json
import os
import pickle
import signal
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from itertools import count
from typing import Any

from .. import dsl

# Importing numba takes each process about a second, in which this one compiles some ten small kernels, or two large ones.
MOST, CALLS_EACH, FEWEST_CALLS = 8, 3, 6
IN_BACKGROUND = 16  # helpers that work while this process does not
IDLE = 10.0  # seconds after which such a helper ends

Call = Callable[[], Any]


def helpers_for(calls: int) -> int:
    """How many helpers pay for themselves: up to half of the other cores, which may be busy with something else."""
    if not _can_start() or calls < FEWEST_CALLS:
        return 0
    return min(MOST, (_cores() - 1) // 2, calls // CALLS_EACH)


def background_for(calls: int) -> int:
    """How many helpers for calls that this process does not join in: all cores but one, if there are four."""
    return min(IN_BACKGROUND, _cores() - 1, calls) if _can_start() and _cores() >= 4 else 0


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _can_start() -> bool:
    """Whether there is an interpreter to start."""
    return bool(sys.executable) and not getattr(sys, "frozen", False)


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


class _Child:
    """A child process that does calls, one after the other."""

    START = "import sys, json; sys.path[:] = json.loads(sys.argv[1]); from aicf.cuda_kernels.compiler.workers import main; main()"

    def __init__(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", self.START, json.dumps(sys.path)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
        )  # fmt: skip

    def answer(self) -> Any:
        """The next thing that it says; EOFError, OSError or UnpicklingError if it died."""
        assert self.process.stdout
        return pickle.load(self.process.stdout)

    def ask(self, call: bytes) -> list[Any]:
        assert self.process.stdin
        self.process.stdin.write(call)
        self.process.stdin.flush()
        made: list[Any] = self.answer()
        return made

    def end(self) -> None:
        self.process.kill()
        self.process.wait()


_DIED = (EOFError, OSError, pickle.UnpicklingError)


class _Helper:
    """A child, and the thread that hands it calls and waits for it."""

    def __init__(
        self, todo: deque[tuple[int, bytes]], results: list[Any], told: Callable[[int], object]
    ) -> None:
        self.todo, self.results, self.told, self.busy = todo, results, told, False
        self.child = _Child()
        self.thread = threading.Thread(target=self._work, daemon=True)
        self.thread.start()

    def _work(self) -> None:
        with contextlib.suppress(IndexError, *_DIED):
            self.child.answer()  # it is ready
            while True:
                i, call = self.todo.popleft()
                self.busy = True
                self.results += self.child.ask(call)
                self.told(i)
                self.busy = False

    def dismiss(self) -> None:
        """When nothing is left to do: wait for the call it is at, if any, but not for its start."""
        if not self.busy:
            self.child.process.kill()
        self.thread.join()
        self.child.end()


class Background:
    """Calls that helpers do while this process goes on with something else, those of most weight first. Helpers end when nothing has come
    for a while."""

    def __init__(self) -> None:
        self._more = threading.Condition()
        self._todo: list[tuple[float, int, bytes, Future[list[Any]]]] = []
        self._number, self._helpers, self._idle = count(), 0, 0
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._forked)

    def submit(self, calls: Sequence[tuple[float, Call]], helpers: int) -> list[Future[list[Any]]]:
        """(weight, call) each; a Future of a list of one result, or of none if it failed."""
        futures: list[Future[list[Any]]] = []
        with self._more:
            for weight, call in calls:
                futures.append(Future())
                heapq.heappush(self._todo, (-weight, next(self._number), pickle.dumps(call), futures[-1]))
            for _ in range(min(len(self._todo) - self._idle, helpers - self._helpers)):
                self._helpers += 1
                threading.Thread(target=self._work, daemon=True).start()
            self._more.notify_all()
        return futures

    def _work(self) -> None:
        child = None
        try:
            child = _Child()
            child.answer()
            while (job := self._next()) is not None:
                call, future = job
                try:
                    future.set_result(child.ask(call))
                finally:
                    if not future.done():  # it died of this one
                        future.set_result([])
        except _DIED:
            pass
        finally:
            if child is not None:
                child.end()
            self._left()

    def _next(self) -> tuple[bytes, Future[list[Any]]] | None:
        with self._more:
            self._idle += 1
            try:
                if not self._more.wait_for(lambda: bool(self._todo), IDLE):
                    return None
            finally:
                self._idle -= 1
            *_, call, future = heapq.heappop(self._todo)
            return call, future

    def _left(self) -> None:
        """One helper fewer; what none is left to do has failed."""
        with self._more:
            self._helpers -= 1
            if not self._helpers:
                for *_, future in self._todo:
                    future.set_result([])
                self._todo.clear()

    def _forked(self) -> None:
        """A fork has no threads but its own."""
        waiting = self._todo
        self._more, self._todo, self._helpers, self._idle = threading.Condition(), [], 0, 0
        for *_, future in waiting:
            future.set_result([])


background = Background()


def main() -> None:
    """A helper: imports numba, says that it is ready, and does the calls it is sent. An answer is a list of one, or empty."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent is interrupted, and ends its helpers
    for told in ("AICF_LOGS", "AICF_DUMP"):  # the parent tells of what is made here
        os.environ.pop(told, None)
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
