"""Files: text read whole or refused in words, JSON of which every field is checked before it is used, and files written whole or not at all.

A check is a function (value, where) -> None that raises Bad; `must`, `record` and `list_of` make them.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NoReturn

from .errors import AicfError
from .text import shortened

LIMIT = 1 << 28  # bytes: more is no file of ours, and /dev/zero has no end


def read_text(path: str | Path, what: str, hint: str, error: type[AicfError] = AicfError) -> str:
    """The text of a file that should be `what`, such as "a tuning file"; else an `error` with that hint, which says how one is made."""
    name = str(path)
    try:
        with open(Path(path), "rb") as file:  # not a descriptor, which a number would be
            data = file.read(LIMIT + 1)
        if len(data) > LIMIT:
            raise error(f"{name} is not {what}: it has more than {LIMIT >> 20} MB", hint=hint)
        return data.decode("utf-8")
    except UnicodeDecodeError as refused:
        raise error(f"{name} is not {what}: it is not UTF-8", got=str(refused), hint=hint) from None
    except OSError as refused:
        raise error(f"{name} can't be read: {refused.strerror}", hint=hint) from None
    except (TypeError, ValueError):  # no text; a NUL in it
        raise error(f"{name!r} can't be the name of a file", hint=hint) from None


def example_folder() -> Path:
    """The folder of the example models: that of the wheel, or of the checkout."""
    here = Path(__file__).parent
    return next(filter(Path.is_dir, (here / "examples", here.parent / "examples")))


@contextmanager
def replacing(target: Path, folder: bool = False, orphans: bool = True) -> Iterator[Path]:
    """A fresh file next to the target, or a fresh folder, which replaces the target when the block ends: whoever reads sees the old one or
    the new one, complete. If the block raises, nothing is left of it; after a process that was killed, the next such block removes what
    it left, except with orphans=False: finding that lists the folder."""
    if orphans:
        _remove_orphans(target)
    fresh, lock = _fresh(target, folder)
    try:
        yield fresh
        os.replace(fresh, target)
    finally:
        _remove(fresh)
        if lock is not None:
            os.close(lock)


TEMPORARY = re.compile(r"\.(?P<name>.+)\.(?P<pid>\d+)\.[0-9a-f]{8}\.tmp", re.DOTALL)


def _fresh(target: Path, folder: bool) -> tuple[Path, int | None]:
    """A new file or folder that this process has locked, with the descriptor that has the lock; None where there are no locks."""
    while True:
        fresh = target.with_name(f".{target.name}.{os.getpid()}.{os.urandom(4).hex()}.tmp")
        if folder:
            fresh.mkdir()
        try:
            file = os.open(fresh, os.O_RDONLY | (0 if folder else os.O_CREAT | os.O_EXCL), 0o666)
        except OSError:
            if not folder:
                raise
            if fresh.exists():  # where folders can't be opened, as on Windows
                return fresh, None
            continue  # another process took it for an orphan
        locked = _lock(file)
        if locked is None:
            os.close(file)
            return fresh, None
        if locked and _is_file(fresh, file):
            return fresh, file
        os.close(file)  # another process took it for an orphan before it was locked


def _remove_orphans(target: Path) -> None:
    """Remove what killed processes have left: temporary files named as the target but for numbers, whose writer is neither alive on this
    machine nor has the lock, as one on another machine has."""
    name, folder = _without_numbers(target.name), target.parent
    with suppress(OSError, ValueError):
        for entry in os.listdir(folder):
            match = TEMPORARY.fullmatch(entry)
            if match and _without_numbers(match["name"]) == name:
                remove_orphan(folder / entry)


def remove_orphan(path: Path) -> None:
    """Remove a temporary file whose writer is neither alive on this machine nor has the lock."""
    match = TEMPORARY.fullmatch(path.name)
    if match and not _is_alive(int(match["pid"])):
        _remove_unless_locked(path)


def _remove_unless_locked(path: Path) -> None:
    with suppress(OSError):
        file = os.open(path, os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0))
        try:
            if _lock(file) and _is_file(path, file):
                _remove(path)
        finally:
            os.close(file)


def _remove(path: Path) -> None:
    """A file or a folder, if it is there."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def _lock(file: int) -> bool | None:
    """Whether this process now has the lock of an open file; None where there are no locks."""
    try:
        import fcntl

        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except (ImportError, OSError):
        return None
    return True


def _is_file(path: Path, file: int) -> bool:
    """Whether the path still names an open file."""
    try:
        return os.path.samestat(os.stat(path, follow_symlinks=False), os.fstat(file))
    except FileNotFoundError:
        return False


def _is_alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except OSError:  # another user's
        return True
    return True


def _without_numbers(name: str) -> str:
    return re.sub(r"\d+", "#", name)


# --- JSON -------------------------------------------------------------------------------------------------------------


class Bad(Exception):
    """What is wrong at a place of the data."""

    def __init__(self, at: str, expected: str, got: Any) -> None:
        self.at, self.expected, self.got = at, expected, got


def parse_json(text: str) -> Any:
    """The data; ValueError if it is no JSON, or says something twice, or is too deep for Python's parser."""
    try:
        data = json.loads(text, parse_constant=_no_number, object_pairs_hook=_unique)
    except RecursionError as error:
        raise ValueError(f"it is nested too deeply: {error}") from None
    check_depth(data)
    return data


DEPTH = 100  # containers in containers: functions that walk the data call themselves so often


def check_depth(data: Any) -> None:
    """ValueError if data of JSON is deeper than any file of ours."""
    level = [data]
    for _ in range(DEPTH + 1):
        inner = [
            one.values() if isinstance(one, dict) else one for one in level if isinstance(one, (dict, list))
        ]
        if not inner:
            return
        level = [one for several in inner for one in several]
    raise ValueError(f"it is nested too deeply: more than {DEPTH} levels")


def _no_number(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is no JSON number")


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) != len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"{next(n for n in names if names.count(n) > 1)!r} is there twice")
    return made


def shown(value: Any) -> str:
    text = value if isinstance(value, str) else repr(value)
    return shortened(text, 80)


Check = Callable[[Any, str], None]


def must(expected: str, test: Callable[[Any], bool]) -> Check:
    def check(value: Any, at: str) -> None:
        if not test(value):
            raise Bad(at, expected, value)

    return check


def record(optional: tuple[str, ...] = (), /, **fields: Check) -> Check:
    """An object with these fields, no others; all of them but for the optional ones."""
    known = has(optional, **fields)

    def check(value: Any, at: str) -> None:
        known(value, at)
        if unknown := sorted(value.keys() - fields.keys()):
            raise Bad(f"{at}.{unknown[0]}".lstrip("."), f"only {', '.join(fields)}", unknown[0])

    return check


def has(optional: tuple[str, ...] = (), /, **fields: Check) -> Check:
    """An object with these fields, and maybe others."""

    def check(value: Any, at: str) -> None:
        if not isinstance(value, dict):
            raise Bad(at or "the file", f"an object with {', '.join(fields)}", value)
        for name, inner in fields.items():
            if name in value:
                inner(value[name], f"{at}.{name}".lstrip("."))
            elif name not in optional:
                raise Bad(f"{at}.{name}".lstrip("."), "a value", "nothing")

    return check


def list_of(inner: Check) -> Check:
    def check(value: Any, at: str) -> None:
        if not isinstance(value, list):
            raise Bad(at, "a list", value)
        for n, item in enumerate(value):
            inner(item, f"{at}[{n}]")

    return check


def anything(value: Any, at: str) -> None:
    pass


TEXT = must("some text", lambda v: isinstance(v, str) and v != "")
WHOLE = must("a whole number from 0 to 2^63 - 1", lambda v: type(v) is int and 0 <= v < 2**63)
COUNT = must("a whole number of 1 or more", lambda v: type(v) is int and 1 <= v < 2**63)
HEX = must(
    "hexadecimal digits",
    lambda v: isinstance(v, str) and v == v.strip() and set(v) <= set("0123456789abcdef"),
)
