"""Whether all ranks are alive while GPUs work, which the host does not see: a thread asks how far each rank is, and ends what hangs.

A collective of NCCL's waits for ever if a rank does not come, and with it all that is behind it on the stream. So each rank has an event
at the end of every run. One that is not reached in time, or a rank whose connection is closed, aborts the communicator: its kernels
return, and whoever reads a result is told which rank was last where. Where they do not return, the process says so and ends.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from ..errors import DistributedError
from .joining import Door, join
from .mesh import Mesh

EVERY, LOST = 0.5, 5.0  # seconds between pulses, and after which a run waits for a rank that is gone
JOIN, LINE = 10.0, 256  # seconds in which a rank joins; bytes of what one says
ASKING = 1e-4  # seconds between questions whether a run is done
FREED, STUCK = (
    10.0,
    70,
)  # seconds in which an abort frees the GPU; the exit status of a process whose GPU it did not free


class Pulse:
    """mesh     what ranks meet by; it tells where rank 0 listens
    timeout  seconds that a run may take
    abort    ends collectives that hang
    """

    def __init__(self, mesh: Mesh, timeout: float, abort: Callable[[], None]) -> None:
        self.rank, self.size = mesh.world.rank, mesh.world.size
        self.timeout, self.abort = timeout, abort
        self.failed: DistributedError | None = None
        self.launched = self.done = 0
        self._runs: deque[tuple[Any, float]] = (
            deque()
        )  # the event at the end of each run, and when it was started
        self._table: dict[int, dict[str, Any]] = {}  # how far each rank is, as rank 0 has told it
        self._rows: dict[int, dict[str, Any]] = {}  # of rank 0: what each rank has said last
        door = Door(mesh.world, "pulse", 0) if self.rank == 0 else None
        port = mesh.all("pulse", door.port if door else 0)[0]
        if door is not None:
            threading.Thread(target=self._serve, args=(door,), name="aicf pulses", daemon=True).start()
        address = door.address if door else mesh.world.address
        self._to = join(mesh.world, "pulse", address, port, time.monotonic() + JOIN)
        self._to.settimeout(JOIN)
        self._beating = threading.Thread(target=self._beat, name="aicf pulse", daemon=True)
        self._beating.start()

    def started(self, runtime: Any) -> None:
        """A run was started on this runtime's stream."""
        if self.failed is not None:
            raise self.failed
        self._runs.append((runtime.stream.record(), time.monotonic()))
        self.launched += 1

    def wait(self) -> None:
        """Until all runs are done, or one never will be. By asking, again and again: who waits inside of the driver can't be told."""
        last = self._runs[-1][0] if self._runs else None
        while last is not None and self.failed is None and not last.is_done:
            time.sleep(ASKING)
        if self.failed is not None:
            raise self.failed

    # --- this rank

    def _beat(self) -> None:
        with self._to, self._to.makefile("r", encoding="utf-8") as answers:
            while self.failed is None:
                while self._runs and self._runs[0][0].is_done:
                    self._runs.popleft()
                    self.done += 1
                try:
                    told = {"rank": self.rank, "launched": self.launched, "done": self.done}
                    self._to.sendall(json.dumps(told).encode() + b"\n")
                    self._table = {
                        int(r): row for r, row in json.loads(answers.readline(LINE * self.size)).items()
                    }
                except (OSError, ValueError):
                    self._table[0] = {**self._table.get(0, {}), "gone": True}
                self._judge()
                time.sleep(EVERY)

    def _judge(self) -> None:
        if not self._runs:
            return
        waited = time.monotonic() - self._runs[0][1]
        gone = sorted(rank for rank, row in self._table.items() if row.get("gone"))
        if waited > self.timeout or (gone and waited > LOST):
            self.failed = self._error(gone, waited)
            threading.Thread(target=self._abort, name="aicf abort", daemon=True).start()
            threading.Thread(target=self._end, name="aicf end", daemon=True).start()

    def _abort(self) -> None:
        with suppress(Exception):
            self.abort()

    def _end(self) -> None:
        """End the process if aborting did not free the GPU: whoever waits for it would wait for ever, and hear nothing."""
        event, _ = self._runs[0]
        until = time.monotonic() + FREED
        while time.monotonic() < until:
            if event.is_done:
                return
            time.sleep(EVERY)
        print(f"aicf: {self.failed}", file=sys.stderr, flush=True)
        os._exit(STUCK)

    def _error(self, gone: list[int], waited: float) -> DistributedError:
        rows = [
            f"rank {rank}: {row.get('done', 0)} runs done, {row.get('launched', 0)} started{', gone' if row.get('gone') else ''}"
            for rank, row in sorted(self._table.items())
        ]
        least = min((row.get("launched", 0) for row in self._table.values()), default=0)
        late = gone or [rank for rank, row in sorted(self._table.items()) if row.get("launched", 0) == least]
        how = "is gone" if gone else "is late" if least < self.launched else "may be stuck on its GPU"
        error = DistributedError(
            f"run {self.done + 1} did not end in {waited:.0f} s: rank {', '.join(map(str, late))} {how}", details=rows,
            expected=f"each run within {self.timeout:g} s", hint="that rank's own output says why; DataParallel(timeout=...) waits longer",
        )  # fmt: skip
        error.rank = late[0] if late else None
        return error

    # --- rank 0's table

    def _serve(self, door: Door) -> None:
        for rank, found in door.joined(range(self.size), self.timeout):
            thread = threading.Thread(
                target=self._listen, args=(rank, found), name="aicf pulse of a rank", daemon=True
            )
            thread.start()

    def _listen(self, rank: int, found: socket.socket) -> None:
        found.settimeout(None)
        with found, suppress(OSError, ValueError, TypeError), found.makefile("r", encoding="utf-8") as lines:
            while line := lines.readline(LINE):
                told = json.loads(line)
                self._rows[rank] = {"rank": rank, **{name: int(told[name]) for name in ("launched", "done")}}
                found.sendall(json.dumps(self._rows).encode() + b"\n")
        if rank in self._rows:
            self._rows[rank] = {**self._rows[rank], "gone": True}
