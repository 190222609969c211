"""How much of the process' memory something takes for a while: NumPy's, that of libraries, and parts of files that are in memory."""

from __future__ import annotations

import ctypes
import gc
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

TELLS = os.access("/proc/self/clear_refs", os.W_OK)
TELLS_PEAKS = pytest.mark.skipif(not TELLS, reason="Linux tells peaks of memory, where one may ask it")


def peak_beyond(call: Callable[[], object]) -> int:
    """Bytes at the most, beyond what the process has before."""
    gc.collect()
    with suppress(OSError, AttributeError):  # what was freed is given back, or it would be used again unseen
        ctypes.CDLL("libc.so.6").malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")  # the peak is that of now
    before = _told("VmRSS")
    kept = call()
    peak = _told("VmHWM") - before
    del kept
    return peak


def _told(field: str) -> int:
    text = Path("/proc/self/status").read_text()
    return int(text.split(f"{field}:")[1].split()[0]) * 1024
