"""Compiled code on disk, each piece a file of its own: a checksum, the file's name, facts about it, and the code.

A file is written under another name and then renamed, so that a reader sees a whole entry or none, and processes that
compile the same code at once both succeed. Nothing is locked. What is damaged is removed and compiled again. A cache that
can't be used costs a warning, never a failure.

The checksum covers the file's name, which has the key in it: a copy of another entry under this name is damage as well. An entry that
another user may have written is not read: see trust.py.
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
from ..files import remove_orphan, replacing
from . import trust

FORMAT = b"aicf kernel "
MAGIC = FORMAT + b"2\n"  # the number is the format's
CHECKSUM = 16  # bytes, of all that follows it
KERNEL, LOOP = ".kernel", ".loop"  # suffixes: a CUDA kernel, a loop of the host
FUNCTION = ".function"  # a scalar function that such loops call
MADE = ".made"  # and, in a folder of its own, what one of them was compiled by last: see ledger.py
LIMIT = 1 << 30  # bytes; beyond it, entries that were not used for longest go

T = TypeVar("T")


def folder(suffix: str = KERNEL) -> Path | None:
    base = config.cache_dir()
    return base and base / ("made" if suffix == MADE else "kernels")


def load(key: str, suffix: str, make: Callable[..., T]) -> T | None:
    """`make(code, **facts)` of an entry; None if there is none, or none that is complete and trusted."""
    if (place := folder(suffix)) is None or not _trusted(place):
        return None
    path = place / (key + suffix)
    try:
        with open(path, "rb") as file:
            if why := trust.distrust(os.fstat(file.fileno())):
                _warn_untrusted_files(place, why)
                return None
            data = file.read()
    except FileNotFoundError:
        return None
    except OSError as error:
        _warn_once(place.with_name("kernels"), error.strerror)
        return None
    if data.startswith(FORMAT) and not data.startswith(MAGIC):  # from another version of aicf
        remove(key, suffix)
        return None
    try:
        code, facts = decode(data, path.name)
        made = make(code, **facts)
    except (KeyError, TypeError, ValueError) as error:
        text = f"{path} is damaged and will be compiled again: {error}"
        channels.warn("cache", "damaged", text, path=str(path), why=str(error))
        remove(key, suffix)
        return None
    with contextlib.suppress(OSError):
        os.utime(path)  # used now
    return made


def store(key: str, suffix: str, code: bytes, facts: Mapping[str, Any]) -> None:
    """Write an entry, which this user alone may change. `facts` are what JSON can say."""
    if (place := folder(suffix)) is None:
        return
    path = place / (key + suffix)
    try:
        for each in (place.parent, place):
            each.mkdir(0o755, parents=True, exist_ok=True)
        if not _trusted(place):
            return
        with replacing(path, orphans=False) as beside:  # thousands of entries are listed once a process
            beside.write_bytes(encode(code, facts, path.name))
            beside.chmod(beside.stat().st_mode & ~trust.WRITABLE)
    except OSError as error:
        _warn_once(place.with_name("kernels"), error.strerror)
        return
    _trim_once(place)


def remove(key: str, suffix: str) -> None:
    if (place := folder(suffix)) is not None:
        with contextlib.suppress(OSError):
            (place / (key + suffix)).unlink()


def encode(code: bytes, facts: Mapping[str, Any], name: str) -> bytes:
    """The content of the file of that name."""
    header = json.dumps({"name": name, "facts": facts}).encode()
    content = len(header).to_bytes(4, "little") + header + code
    return MAGIC + _checksum(content) + content


def decode(data: bytes, name: str) -> tuple[bytes, dict[str, Any]]:
    """The code and the facts in the file of that name; ValueError says what is wrong with the bytes."""
    if not data.startswith(MAGIC):
        raise ValueError("it does not begin as an entry does")
    checksum, content = data[len(MAGIC) :][:CHECKSUM], data[len(MAGIC) + CHECKSUM :]
    if checksum != _checksum(content):
        raise ValueError("its checksum is not that of its content")
    end = 4 + int.from_bytes(content[:4], "little")
    header = json.loads(content[4:end])
    if header["name"] != name:
        raise ValueError(f"its content is that of {header['name']}")
    return content[end:], header["facts"]


def _checksum(content: bytes) -> bytes:
    return blake2b(content, digest_size=CHECKSUM).digest()


@functools.cache
def _warn_once(folder: Path, reason: str | None) -> None:
    text = f"the kernel cache {folder} can't be used: {reason}; AICF_CACHE_DIR names another place"
    channels.warn("cache", "unusable", text, path=str(folder), why=reason)


def _trusted(place: Path) -> bool:
    """Whether no other user may write the folder; a warning once if one may."""
    if (found := trust.untrusted_folder(place)) is None:
        return True
    _warn_untrusted(*found, f"the cache is not used; next: {trust.next_step(*found)}")
    return False


def _warn_untrusted_files(place: Path, why: str) -> None:
    _warn_untrusted(
        place, why, "such files are compiled again; next: aicf cache --clear removes them", "a file in "
    )


@functools.cache
def _warn_untrusted(path: Path, why: str, then: str, what: str = "") -> None:
    channels.warn(
        "cache", "untrusted", f"{what}{path} is not trusted: {why}; {then}", path=str(path), why=why
    )


# --- the folder as a whole ----------------------------------------------------------------------------------------------


def entries(folder: Path) -> Iterator[tuple[str, str, os.stat_result]]:
    """Path, suffix and status of the files of the cache, unfinished ones included. What another process has just removed is left out."""
    with contextlib.suppress(OSError), os.scandir(folder) as found:
        for entry in found:
            suffix = os.path.splitext(entry.name)[1]
            if suffix in (KERNEL, LOOP, FUNCTION, MADE, ".tmp"):
                with contextlib.suppress(OSError):
                    yield entry.path, suffix, entry.stat()


def size(folder: Path) -> tuple[Counter[str], int]:
    """How many entries of each suffix, and how many bytes."""
    found = list(entries(folder))
    return Counter(suffix for _, suffix, _ in found), sum(stat.st_size for *_, stat in found)


def refused(folder: Path) -> tuple[str, str] | None:
    """(what is not read and why, the command that mends it); None if everything in the folder is trusted."""
    if (found := trust.untrusted_folder(folder)) is not None:
        return f"nothing is read: {found[0]}: {found[1]}", trust.next_step(*found)
    reasons = [why for *_, status in entries(folder) if (why := trust.distrust(status))]
    if reasons:
        return f"{len(reasons)} files are not read: {reasons[0]}", "aicf cache --clear"
    return None


def clear(folder: Path) -> int:
    """Remove every entry; how many were removed."""
    count = 0
    for path, *_ in entries(folder):
        with contextlib.suppress(OSError):
            os.unlink(path)
            count += 1
    return count


@functools.cache
def _trim_once(folder: Path) -> None:
    """`trim`, once a process."""
    trim(folder, LIMIT)


def trim(folder: Path, limit: int) -> None:
    """Remove what killed processes have left, then the entries that were not used for longest, until no more than `limit` bytes are left."""
    found = []
    for path, suffix, stat in entries(folder):
        if suffix == ".tmp":
            remove_orphan(Path(path))
        else:
            found.append((path, stat))
    excess = sum(stat.st_size for _, stat in found) - limit
    if excess <= 0:
        return
    for path, stat in sorted(found, key=lambda entry: entry[1].st_mtime):
        if excess <= 0:
            return
        with contextlib.suppress(OSError):
            os.unlink(path)
        excess -= stat.st_size
