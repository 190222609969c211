"""Compiled code on disk, each piece a file of its own: a checksum, facts about it, and the code.

A file is written under another name and then renamed, so that a reader sees a whole entry or none, and processes that
compile the same code at once both succeed. Nothing is locked. What is damaged is removed and compiled again. A cache that
can't be used costs a warning, never a failure.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from hashlib import blake2b
from pathlib import Path
from typing import Any, TypeVar

from .. import channels, config
from ..files import replacing

MAGIC = b"aicf kernel 1\n"  # the number is the format's
CHECKSUM = 16  # bytes, of all that follows it
KERNEL, LOOP = ".kernel", ".loop"  # suffixes: a CUDA kernel, a loop of the host
MADE = ".made"  # and, in a folder of its own, what one of them was compiled by last: see ledger.py
LIMIT = 1 << 30  # bytes; beyond it, entries that were not used for longest go

T = TypeVar("T")


def folder(suffix: str = KERNEL) -> Path | None:
    base = config.cache_dir()
    return base and base / ("made" if suffix == MADE else "kernels")


def load(key: str, suffix: str, make: Callable[..., T]) -> T | None:
    """`make(code, **facts)` of an entry; None if there is none, or none that is whole."""
    if (place := folder(suffix)) is None:
        return None
    path = place / (key + suffix)
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        _warn_once(place.with_name("kernels"), error.strerror)
        return None
    try:
        code, facts = decode(data)
        made = make(code, **facts)
    except (TypeError, ValueError) as error:
        text = f"{path} is damaged and will be compiled again: {error}"
        channels.warn("cache", "damaged", text, path=str(path), why=str(error))
        remove(key, suffix)
        return None
    with contextlib.suppress(OSError):
        os.utime(path)  # used now
    return made


def store(key: str, suffix: str, code: bytes, facts: Mapping[str, Any]) -> None:
    """`facts` are what JSON can say."""
    if (place := folder(suffix)) is None:
        return
    try:
        place.mkdir(parents=True, exist_ok=True)
        with replacing(place / (key + suffix)) as beside:
            beside.write_bytes(encode(code, facts))
    except OSError as error:
        _warn_once(place.with_name("kernels"), error.strerror)
        return
    _trim_once(place)


def remove(key: str, suffix: str) -> None:
    if (place := folder(suffix)) is not None:
        with contextlib.suppress(OSError):
            (place / (key + suffix)).unlink()


def encode(code: bytes, facts: Mapping[str, Any]) -> bytes:
    header = json.dumps(facts).encode()
    content = len(header).to_bytes(4, "little") + header + code
    return MAGIC + _checksum(content) + content


def decode(data: bytes) -> tuple[bytes, dict[str, Any]]:
    """The code and the facts; ValueError says what is wrong with the bytes."""
    if not data.startswith(MAGIC):
        raise ValueError("it does not begin as an entry does")
    checksum, content = data[len(MAGIC) :][:CHECKSUM], data[len(MAGIC) + CHECKSUM :]
    if checksum != _checksum(content):
        raise ValueError("its checksum is not that of its content")
    end = 4 + int.from_bytes(content[:4], "little")
    return content[end:], json.loads(content[4:end])


def _checksum(content: bytes) -> bytes:
    return blake2b(content, digest_size=CHECKSUM).digest()


@functools.cache
def _warn_once(folder: Path, reason: str | None) -> None:
    text = f"the kernel cache {folder} can't be used: {reason}; AICF_CACHE_DIR names another place"
    channels.warn("cache", "unusable", text, path=str(folder), why=reason)


# --- the folder as a whole ----------------------------------------------------------------------------------------------


def entries(folder: Path) -> Iterator[tuple[Path, os.stat_result]]:
    """Files of the cache, unfinished ones included. What another process has just removed is left out."""
    for path in folder.glob("*"):
        if path.suffix in (KERNEL, LOOP, MADE, ".tmp"):
            with contextlib.suppress(OSError):
                yield path, path.stat()


def size(folder: Path) -> tuple[Counter[str], int]:
    """How many entries of each suffix, and how many bytes."""
    found = list(entries(folder))
    return Counter(path.suffix for path, _ in found), sum(stat.st_size for _, stat in found)


def clear(folder: Path) -> int:
    """Remove every entry; how many there were."""
    found = list(entries(folder))
    for path, _ in found:
        with contextlib.suppress(OSError):
            path.unlink()
    return len(found)


@functools.cache
def _trim_once(folder: Path) -> None:
    trim(folder, LIMIT)


def trim(folder: Path, limit: int) -> None:
    """Remove the entries that were not used for longest, until no more than `limit` bytes are left."""
    found = sorted(entries(folder), key=lambda entry: entry[1].st_mtime)
    excess = sum(stat.st_size for _, stat in found) - limit
    for path, stat in found:
        if excess <= 0:
            return
        with contextlib.suppress(OSError):
            path.unlink()
        excess -= stat.st_size
