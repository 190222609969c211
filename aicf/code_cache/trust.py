"""Which files of the cache this user trusts: machine code is read only if no other user can have written it.

On POSIX the file, its folder and the cache folder around it must belong to this user or to root, and neither the group nor others
may write them. A folder may be sticky instead, as /tmp is: what others add to it is refused file by file.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import stat
from pathlib import Path

WRITABLE = stat.S_IWGRP | stat.S_IWOTH


def distrust(status: os.stat_result) -> str | None:
    """Why another user may have written a file or folder; None if none can have, and on Windows, where modes say nothing."""
    if not hasattr(os, "geteuid"):
        return None
    if status.st_uid not in (os.geteuid(), 0):
        return f"another user (uid {status.st_uid}) owns it"
    sticky = stat.S_ISDIR(status.st_mode) and status.st_mode & stat.S_ISVTX
    if status.st_mode & WRITABLE and not sticky:
        return f"other users may write it (mode {stat.S_IMODE(status.st_mode):o})"
    return None


def untrusted_folder(place: Path) -> tuple[Path, str] | None:
    """The first of the cache folder and its folder `place` that another user may write, with the reason; None if neither is."""
    for folder in (place.parent, place):
        with contextlib.suppress(
            OSError
        ):  # it does not exist, or can't be read: then nothing is read from it
            if why := distrust(folder.stat()):
                return folder, why
    return None


def next_step(folder: Path, why: str) -> str:
    """The command that makes a folder trusted, or names another one."""
    if "may write" in why and folder.stat().st_uid == os.geteuid():
        return f"chmod go-w {shlex.quote(str(folder))}"
    return 'export AICF_CACHE_DIR="$HOME/.cache/aicf-own"'
