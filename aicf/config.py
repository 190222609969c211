"""Settings from the environment, read when they are asked for, so that tests and notebooks can change them.

AICF_LOGS       comma-separated log channels: select, fusion, plan, capture, cache, tune, ranks, or `all`. `+plan` also tells its details,
                `-plan` warnings alone. See channels.py
AICF_LOGS_JSON  a file that the channels are written to as lines of JSON, in place of text; `-` is the standard error
AICF_DUMP       a folder in which each compilation writes its stages as numbered files, and its kernels. See graph/dump
AICF_CHECK      comma-separated run-time checks; `nan` names the first op that makes a NaN; `ops` compares
                each op's scalar function with its reference when it is first used
AICF_VERIFY     `on` verifies the graph after each pass, with the types that `infer` gives, and names the pass that broke it; `off` (the
                default), once before it is lowered
AICF_FOLD_MB    mebibytes of constants that are computed while a model is read, 512 by default; see graph/emit/evaluate.py
AICF_NVTX       `off` turns off the ranges that profilers show where the package `nvtx` is installed
AICF_CACHE      `off` keeps no compiled code, kernels or loops of the host, on disk and takes none from there
AICF_CACHE_DIR  the folder they are kept in; the user's cache folder if it is not set
AICF_CALIBRATION  constants of predictions for this machine's GPU: a file that `aicf calibrate` wrote; `off` uses the constants of the package. If it is
                not set, the file for the GPU in the user's data folder is used, if there is one
AICF_PDL        where a kernel's launch may overlap the end of the kernel before it: `graph` (the default), in what is
                captured; `on`, on streams as well, for kernels that are bound from then on; `off`, nowhere
AICF_DEVICE     the device used when none is named: `cpu`, `cuda` or `auto` (the default)
AICF_PORT       where the ranks of a run meet, on rank 0's machine. See distributed/world.py
AICF_TOKEN      what the ranks of a run have in common and others lack: who joins rank 0 must prove that it has it
AICF_RUN        set by `aicf run --processes` for those that it starts

A value that is not known is refused, not ignored: `compile` and the command line look at them all (`check_settings`).
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Mapping
from difflib import get_close_matches
from functools import lru_cache
from pathlib import Path

from . import near
from .errors import SettingError

NAMES = (
    "AICF_LOGS", "AICF_LOGS_JSON", "AICF_DUMP", "AICF_CHECK", "AICF_NVTX", "AICF_CACHE", "AICF_CACHE_DIR", "AICF_PDL", "AICF_DEVICE",
    "AICF_CALIBRATION", "AICF_FOLD_MB", "AICF_PORT", "AICF_RUN", "AICF_TOKEN", "AICF_VERIFY",
)  # fmt: skip
LISTS = {"AICF_CHECK": ("nan", "ops")}  # comma-separated, any of these
CHANNELS = "select", "fusion", "plan", "capture", "cache", "tune", "ranks"
LEVELS = {"+": logging.DEBUG, "": logging.INFO, "-": logging.WARNING}
SWITCHES = ("AICF_NVTX", "AICF_CACHE")  # on unless they are turned off
EARLY = ("off", "graph", "on")


def check_settings() -> None:
    """SettingError for the first variable whose value is none of those it can have, or whose name is nearly one of ours."""
    for variable in sorted(name for name in os.environ if name.startswith("AICF_") and name not in NAMES):
        if close := get_close_matches(variable, NAMES, n=1, cutoff=0.9):
            raise SettingError(
                f"{variable} is no setting", expected=" or ".join(NAMES), where=f"the environment variable {variable}",
                hint=f"export {close[0]}={os.environ[variable]}, and unset {variable}",
            )  # fmt: skip
    for variable in LISTS:
        _items(variable)
    log_levels()
    for variable in SWITCHES:
        _on(variable)
    verify_passes()
    early_launch()
    fold_bytes()


def _items(variable: str) -> frozenset[str]:
    return _parts(variable, os.environ.get(variable, ""))


@lru_cache(maxsize=64)
def _parts(variable: str, text: str) -> frozenset[str]:
    parts = frozenset(part.strip() for part in text.split(",") if part.strip())
    for part in sorted(parts.difference(LISTS[variable])):
        raise _unknown(variable, part, LISTS[variable])
    return parts


def _on(variable: str) -> bool:
    return _switch(variable, os.environ.get(variable, ""))


@lru_cache(maxsize=64)
def _switch(variable: str, text: str) -> bool:
    if text.lower() not in ("", "on", "1", "off", "0"):
        raise _unknown(variable, text, ("on", "off"))
    return text.lower() in ("", "on", "1")


def _unknown(variable: str, text: str, allowed: tuple[str, ...], said: str = "") -> SettingError:
    """`said`: it came from an argument, which this is, and not from the environment."""
    close = near.hint(text, {}, allowed)
    if said:
        return SettingError(
            f"{said}: there is no channel {text!r}", expected=" or ".join(allowed), hint=close
        )
    return SettingError(
        f"{variable} is {text!r}", expected=" or ".join(allowed), where=f"the environment variable {variable}",
        hint=f"export {variable}={close.split(' or ')[0] if close else allowed[0]}, or unset {variable}",
    )  # fmt: skip


def log_levels(text: str | None = None) -> Mapping[str, int]:
    """Of each channel that is on, the lowest of `logging`'s levels that is told; by `text` in the place of AICF_LOGS."""
    return _levels(os.environ.get("AICF_LOGS", "")) if text is None else _levels(text, f"aicf.logs({text!r})")


@lru_cache(maxsize=64)
def _levels(text: str, said: str = "") -> Mapping[str, int]:
    found: dict[str, int] = {}
    for part in filter(None, map(str.strip, text.split(","))):
        sign = part[0] if part[0] in LEVELS else ""
        name = part.removeprefix(sign).strip()
        if name not in (*CHANNELS, "all"):
            raise _unknown("AICF_LOGS", name, (*CHANNELS, "all"), said)
        found.update(dict.fromkeys(CHANNELS if name == "all" else (name,), LEVELS[sign]))
    return found


def logs_as_json() -> str | None:
    """Where lines of JSON go: a file, or `-`; None for text."""
    return os.environ.get("AICF_LOGS_JSON") or None


def dump_dir() -> Path | None:
    """The folder of dumps; None if none are asked for."""
    chosen = os.environ.get("AICF_DUMP")
    return Path(chosen) if chosen else None


def check_enabled(check: str) -> bool:
    return check in _items("AICF_CHECK")


def verify_passes() -> bool:
    """Whether graphs are verified after each pass."""
    return _switch("AICF_VERIFY", os.environ.get("AICF_VERIFY") or "off")


def nvtx_enabled() -> bool:
    return _on("AICF_NVTX")


def cache_dir() -> Path | None:
    """The folder of what aicf keeps from process to process; None if it keeps nothing."""
    if not _on("AICF_CACHE"):
        return None
    if chosen := os.environ.get("AICF_CACHE_DIR"):
        return Path(chosen)
    from platformdirs import user_cache_path

    return user_cache_path("aicf", appauthor=False)


def calibration_file(gpu: str) -> Path | None:
    """The file with the constants of predictions for a GPU, which may not exist; None for the constants of the package."""
    chosen = os.environ.get("AICF_CALIBRATION", "")
    if chosen.lower() in ("off", "0"):
        return None
    return Path(chosen) if chosen else own_calibration_file(gpu)


def own_calibration_file(gpu: str) -> Path:
    """The file of a GPU in the user's data folder."""
    from platformdirs import user_data_path

    name = re.sub(r"[^a-z0-9.]+", "-", gpu.lower())
    return user_data_path("aicf", appauthor=False) / "calibrations" / f"{name}.json"


def fold_bytes() -> int:
    """Bytes of constants that are computed while a model is read."""
    text = os.environ.get("AICF_FOLD_MB") or "512"
    if not (text.isascii() and text.isdigit() and len(text) <= 9):
        raise SettingError(
            f"AICF_FOLD_MB is {text!r}", expected="a whole number of mebibytes", where="the environment variable AICF_FOLD_MB",
            hint="export AICF_FOLD_MB=512, or unset AICF_FOLD_MB",
        )  # fmt: skip
    return int(text) << 20


def early_launch() -> str:
    """`off`, `graph` or `on`."""
    chosen = os.environ.get("AICF_PDL", "graph").lower()
    if chosen not in EARLY:
        raise _unknown("AICF_PDL", chosen, EARLY)
    return chosen


def default_device() -> str:
    return os.environ.get("AICF_DEVICE", "auto")
