"""Settings from the environment, read when they are asked for, so that tests and notebooks can change them.

AICF_LOGS       comma-separated log channels; `select` logs each kernel choice
AICF_CHECK      comma-separated run-time checks; `nan` names the first op that makes a NaN
AICF_NVTX       `0` turns off the ranges that profilers show where the package `nvtx` is installed
AICF_CACHE      `off` keeps no compiled kernels on disk and takes none from there
AICF_CACHE_DIR  the folder they are kept in; the user's cache folder if it is not set
AICF_PDL        where a kernel's launch may overlap the end of the kernel before it: `graph` (the default), in what is
                captured; `on`, on streams as well, for kernels that are bound from then on; `off`, nowhere
AICF_DEVICE     the device used when none is named: `cpu`, `cuda` or `auto` (the default)
"""

from __future__ import annotations

import os
from functools import lru_cache
from pathlib import Path

from .errors import DeviceError


def _items(variable: str) -> frozenset[str]:
    return _parts(os.environ.get(variable, ""))


@lru_cache(maxsize=64)
def _parts(text: str) -> frozenset[str]:
    return frozenset(part.strip() for part in text.split(",") if part.strip())


def log_enabled(channel: str) -> bool:
    return channel in _items("AICF_LOGS")


def check_enabled(check: str) -> bool:
    return check in _items("AICF_CHECK")


def nvtx_enabled() -> bool:
    return os.environ.get("AICF_NVTX") != "0"


def cache_dir() -> Path | None:
    """The folder of what aicf keeps from process to process; None if it keeps nothing."""
    if os.environ.get("AICF_CACHE", "").lower() in ("off", "0"):
        return None
    if chosen := os.environ.get("AICF_CACHE_DIR"):
        return Path(chosen)
    from platformdirs import user_cache_path

    return user_cache_path("aicf", appauthor=False)


def early_launch() -> str:
    """`off`, `graph` or `on`."""
    chosen = os.environ.get("AICF_PDL", "graph").lower()
    if chosen not in ("off", "graph", "on"):
        raise DeviceError(
            f"AICF_PDL is {chosen!r}", expected="off, graph or on", where="the environment variable AICF_PDL"
        )
    return chosen


def default_device() -> str:
    return os.environ.get("AICF_DEVICE", "auto")
