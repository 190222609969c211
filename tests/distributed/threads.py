"""Ranks as threads of one process: each has a communicator of the CPU device, as if it were a process. Far cheaper to start."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator, MutableMapping
from typing import Any

import pytest

from aicf.device import collectives
from aicf.distributed import World, parallel


class PerThread(MutableMapping):
    """A dict of which each thread sees its own."""

    def __init__(self) -> None:
        self.here = threading.local()

    def _own(self) -> dict:
        return self.here.__dict__

    def __getitem__(self, key: Any) -> Any:
        return self._own()[key]

    def __setitem__(self, key: Any, value: Any) -> None:
        self._own()[key] = value

    def __delitem__(self, key: Any) -> None:
        del self._own()[key]

    def __iter__(self) -> Iterator:
        return iter(self._own())

    def __len__(self) -> int:
        return len(self._own())


@pytest.fixture
def rank_threads(monkeypatch):
    """`rank_threads(n, work)` is what each of n ranks returns, or raises, of work(World)."""
    monkeypatch.setattr(collectives, "_joined", PerThread())
    monkeypatch.setattr(parallel, "_joined", PerThread())
    monkeypatch.setattr(parallel, "_meshes", PerThread())
    return run


def run(ranks: int, work: Callable[[World], Any]) -> list[Any]:
    made: list[Any] = [None] * ranks
    port = free_port()

    def one(rank: int) -> None:
        try:
            made[rank] = work(World(rank, ranks, rank, "127.0.0.1", port))
        except Exception as error:
            made[rank] = error
        finally:
            for mesh in parallel._meshes.values():
                mesh.close()

    threads = [threading.Thread(target=one, args=(rank,), daemon=True) for rank in range(ranks)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
        assert not thread.is_alive(), "a rank hangs"
    return made


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as found:
        return found.getsockname()[1]
