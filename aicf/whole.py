"""Whole or not at all: what Ctrl-C must not cut off, and what a fork must not find half done in another thread.

Half an import of numba, or half of its first compilation, breaks numba for as long as the process lives. A fork copies the one
thread that forks: locks that others hold stay locked in the child for good, and what they were at stays half done.
"""

from __future__ import annotations

import os
import sys
import threading
import time
import weakref
from _signal import getsignal, signal  # type: ignore[import-not-found]  # without enums: a tenth of the time
from signal import SIGINT
from typing import Any

PATIENCE = 30.0  # seconds that a fork waits for other threads, in all; then the child goes without what they were doing


class Uninterrupted:
    """SIGINT waits until the block ends. Other threads than the main one never get it, so for them this does nothing; and a
    handler that is not Python's stays, as it could not be brought back."""

    def __enter__(self) -> None:
        self.arrived: tuple[Any, ...] | None = None
        main = threading.current_thread() is threading.main_thread()
        self.here = main and getsignal(SIGINT) is not None
        if self.here:
            self.before = signal(SIGINT, self._later)

    def _later(self, *seen: Any) -> None:
        self.arrived = seen

    def __exit__(self, *raised: Any) -> None:
        if self.here:
            signal(SIGINT, self.before)
            if self.arrived is not None and callable(self.before):
                self.before(*self.arrived)


# --- forks ------------------------------------------------------------------------------------------------------------

_OUTER: weakref.WeakSet[Any] = weakref.WeakSet()
_INNER: list[Any] = []  # taken by who may hold an outer one, never the other way round
_taken: list[Any] = []  # by the fork that is going on


def shared_lock(inner: bool = False) -> Any:
    """A lock, reentrant, that a fork waits for: the child finds it free, and what it guards whole."""
    lock = threading.RLock()
    _INNER.append(lock) if inner else _OUTER.add(lock)
    return lock


def _locks() -> list[Any]:
    """In the order in which they are taken. The last is llvmlite's own: whatever thread collects garbage frees modules of LLVM under
    it, long after they were compiled."""
    ffi = sys.modules.get("llvmlite.binding.ffi")
    own = getattr(getattr(getattr(ffi, "lib", None), "_lock", None), "_lock", None)
    return [*_OUTER, *_INNER, *([] if own is None else [own])]


def _before() -> None:
    end = time.monotonic() + PATIENCE
    for lock in _locks():
        if lock.acquire(timeout=max(end - time.monotonic(), 0.0)):
            _taken.append(lock)


def _in_parent() -> None:
    while _taken:
        _taken.pop().release()


def _in_child() -> None:
    late = [lock for lock in _locks() if not any(lock is t for t in _taken)]
    _in_parent()
    for lock in late:
        lock._at_fork_reinit()  # as Python's own modules do


if hasattr(os, "register_at_fork"):  # not on Windows
    os.register_at_fork(before=_before, after_in_parent=_in_parent, after_in_child=_in_child)


# --- compilers --------------------------------------------------------------------------------------------------------

_COMPILER = shared_lock(inner=True)  # numba and LLVM have locks of their own, which a fork doesn't know


class Whole(Uninterrupted):
    """An import of a compiler, or a compilation: one at a time, whatever signals and forks there are meanwhile."""

    def __enter__(self) -> None:
        super().__enter__()
        _COMPILER.acquire()

    def __exit__(self, *raised: Any) -> None:
        _COMPILER.release()
        super().__exit__(*raised)
