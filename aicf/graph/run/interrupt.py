"""Ctrl-C between steps, never inside one."""

from __future__ import annotations

import threading
from _signal import getsignal, signal  # type: ignore[import-not-found]  # without enums: a tenth of the time
from signal import SIGINT
from typing import Any


class Uninterrupted:
    """SIGINT waits until the block ends. Other threads than the main one never get it, so for them this does nothing; and a
    handler that is not Python's stays, as it could not be brought back."""

    def __enter__(self) -> None:
        self.arrived: tuple[Any, ...] | None = None
        main = threading.current_thread() is threading.main_thread()
        self.here = main and getsignal(SIGINT) is not None
        if self.here:
            self.before = signal(SIGINT, self._later)

    def _later(self, *seen: Any) -> None:
        self.arrived = seen

    def __exit__(self, *raised: Any) -> None:
        if self.here:
            signal(SIGINT, self.before)
            if self.arrived is not None and callable(self.before):
                self.before(*self.arrived)
