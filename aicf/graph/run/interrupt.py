"""Ctrl-C between steps, never inside one."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def uninterrupted() -> Iterator[None]:
    """SIGINT waits until the block ends. Other threads than the main one never get it, so for them this does nothing."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    arrived: list[tuple] = []
    before = signal.signal(signal.SIGINT, lambda *seen: arrived.append(seen))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
        if arrived and callable(before):
            before(*arrived[-1])
