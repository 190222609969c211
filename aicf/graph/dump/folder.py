"""The folder of one compilation: a number that no other process has, files that are there whole or not at all."""

from __future__ import annotations

import os
import re
from pathlib import Path

from ...files import replacing
from ...text import visible

LONGEST = 60  # characters of a name


def slug(text: str) -> str:
    """Text as part of a file's name: layers and models are called what users like, `../x` or escape codes among it."""
    return re.sub(r"(?:[^A-Za-z0-9.-]|\.\.)+", "_", text).strip("._-")[:LONGEST] or "unnamed"


class DumpFolder:
    def __init__(self, path: Path) -> None:
        self.path = path

    @classmethod
    def claim(cls, base: Path, name: str) -> DumpFolder:
        """`base/0007-name`, of the first number that is free.

        `mkdir base/0007` is what one process alone succeeds at. Who gets it looks again whether the number was taken before, and
        renames it.
        """
        base.mkdir(parents=True, exist_ok=True)
        number = max(_taken(base), default=0)
        while True:
            number += 1
            reserved = base / f"{number:04}"
            try:
                reserved.mkdir()
            except FileExistsError:
                continue
            if number in _taken(base):
                reserved.rmdir()
                continue
            return cls(reserved.rename(base / f"{number:04}-{slug(name)}"))

    def write(self, name: str, text: str) -> None:
        """Control characters are written out: a file that is shown in a terminal does nothing to it."""
        self.write_bytes(name, (visible(text, keep="\n\t").rstrip() + "\n").encode(errors="backslashreplace"))

    def write_bytes(self, name: str, data: bytes) -> None:
        target = self.path / name
        target.parent.mkdir(parents=True, exist_ok=True)
        with replacing(target) as beside:
            beside.write_bytes(data)


def _taken(base: Path) -> set[int]:
    found = (re.match(r"(\d{4,})-", name) for name in os.listdir(base))
    return {int(match[1]) for match in found if match}
