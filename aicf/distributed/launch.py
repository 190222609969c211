"""`aicf run --processes N FILE.py`: a file run by N processes of this machine, each with a rank. Of several machines torchrun, mpirun and
srun are the launchers: this one places nothing and restarts nothing."""

from __future__ import annotations

import os
import secrets
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import IO

GRACE = 30.0  # seconds that the others have to say what they lack when one has failed


def launch(command: Sequence[str], processes: int) -> int:
    """Run a command so many times at once, with the variables that torchrun sets. What ranks print stands behind their numbers, of rank 0
    as it is. When one fails the others have half a minute to end by themselves, and are terminated. The first exit status that is not 0."""
    port, token = _free_port(), os.environ.get("AICF_TOKEN") or secrets.token_hex(16)
    ranks = [_start(command, rank, processes, port, token) for rank in range(processes)]
    pumps = [_pump(process.stdout, rank) for rank, process in enumerate(ranks) if process.stdout]
    try:
        status = _watch(ranks)
    finally:
        for process in ranks:
            if process.poll() is None:
                process.terminate()
        for process in ranks:
            with suppress(subprocess.TimeoutExpired):
                process.wait(5.0)
            if process.poll() is None:
                process.kill()
    for pump in pumps:
        pump.join(5.0)
    return status


def _start(
    command: Sequence[str], rank: int, processes: int, port: int, token: str
) -> subprocess.Popen[bytes]:
    env = {
        **os.environ, "RANK": str(rank), "WORLD_SIZE": str(processes), "LOCAL_RANK": str(rank),
        "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "AICF_RUN": "1", "AICF_TOKEN": token,
        "PYTHONUNBUFFERED": "1",
    }  # fmt: skip
    own = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT} if rank else {}
    return subprocess.Popen(list(command), env=env, **own)  # type: ignore[call-overload]


def _watch(ranks: Sequence[subprocess.Popen[bytes]]) -> int:
    first, until = 0, float("inf")
    while any(process.poll() is None for process in ranks) and time.monotonic() < until:
        if not first and (failed := [p.returncode for p in ranks if p.poll()]):
            first, until = failed[0], time.monotonic() + GRACE
        time.sleep(0.05)
    failed = [process.returncode for process in ranks if process.poll()]
    return first or (failed[0] if failed else 0)


def _pump(stream: IO[bytes], rank: int) -> threading.Thread:
    def work() -> None:
        for line in stream:
            sys.stdout.write(f"rank {rank}: {line.decode(errors='replace')}")
            sys.stdout.flush()

    thread = threading.Thread(target=work, name=f"output of rank {rank}", daemon=True)
    thread.start()
    return thread


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as found:
        return int(found.getsockname()[1])
