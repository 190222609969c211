"""`uncollected`: Python's cyclic garbage collector, put off while many objects are made that stay."""

from __future__ import annotations

import gc
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager

_LOCK = threading.Lock()
_inside = 0  # blocks that are under way


@contextmanager
def uncollected() -> Iterator[None]:
    """A graph is hundreds of thousands of objects, all of which stay: looking through them again and again was up to half of the time
    that it took to emit one. Who has switched the collector off finds it off behind."""
    global _inside
    with _LOCK:
        puts_off = _inside > 0 or gc.isenabled()
        _inside += puts_off
        gc.disable()
    try:
        yield
    finally:
        with _LOCK:
            _inside = max(0, _inside - puts_off)  # less in the child of a fork
            if puts_off and not _inside:
                gc.enable()


def _forked() -> None:
    """In the child of a fork other threads, and their blocks, are gone, and the lock may have been theirs."""
    global _inside, _LOCK
    _LOCK = threading.Lock()
    if _inside:
        _inside = 0
        gc.enable()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)
