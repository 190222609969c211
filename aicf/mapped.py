"""Files mapped into memory. What is read of one is a view; when the last array over a part is gone, that part leaves memory again."""

from __future__ import annotations

import mmap
import os
import stat
import weakref
from pathlib import Path
from typing import Any

import numpy as np

from .errors import StateError

PAGE = mmap.ALLOCATIONGRANULARITY
_DROP = getattr(mmap, "MADV_DONTNEED", None)  # not on Windows


class MappedFile:
    """The bytes of a file, read-only. It is one mapping, whatever is read of it: a file with a thousand tensors is open once. Who
    replaces the file by another does not change it."""

    def __init__(self, path: str | Path) -> None:
        """OSError if there is no file that can be read, or if it is something else, such as a pipe, which has no end."""
        self.path = path
        flags = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
        descriptor = os.open(path, flags)
        try:
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode):
                raise OSError("it is no file")
            self.size = status.st_size
            self._map = mmap.mmap(descriptor, self.size, access=mmap.ACCESS_READ) if self.size else None
        finally:
            os.close(descriptor)

    def __reduce__(self) -> tuple[Any, ...]:
        """Of what is pickled the file is read again where it lies."""
        return _again, (self.path, self.size)

    def read(self, first: int, end: int) -> np.ndarray:
        """Bytes, as a view of the file."""
        assert 0 <= first <= end <= self.size, (first, end, self.size)
        if self._map is None or first == end:
            return np.empty(0, np.uint8)
        made = np.frombuffer(self._map, np.uint8, end - first, first)
        if _DROP is not None and end - first >= PAGE:
            weakref.finalize(made, _drop, self._map, first, end).atexit = False
        return made

    def array(self, first: int, end: int, dtype: np.dtype, shape: tuple[int, ...]) -> np.ndarray:
        """An array, read-only: a view where its elements are aligned, as kernels of the host read whole elements, else a copy."""
        data = self.read(first, end)
        made = (data if first % dtype.itemsize == 0 else data.copy()).view(dtype).reshape(shape)
        made.flags.writeable = False
        return made


def _again(path: str | Path, size: int) -> MappedFile:
    file = MappedFile(path)
    if file.size != size:
        raise StateError(f"{path} is another file now", expected=f"{size} bytes", got=file.size)
    return file


def _drop(mapping: mmap.mmap, first: int, end: int) -> None:
    """Pages that others read, too, come back from the file when they do."""
    start = first - first % PAGE
    assert _DROP is not None
    mapping.madvise(_DROP, start, end - start)
