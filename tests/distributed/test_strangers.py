"""Who connects to rank 0 without the run's token: rejected, logged, and neither run nor ranks notice. What strangers do is drawn."""

from __future__ import annotations

import logging
import os
import socket
import time
from contextlib import suppress
from dataclasses import replace

import numpy as np
import pytest
from draws import seeds

from aicf.distributed import World, joining, pulse
from aicf.distributed.joining import GREETING, HELLO, NONCE, join, listen
from aicf.distributed.mesh import Mesh
from aicf.distributed.pulse import Pulse
from aicf.distributed.wire import HEAD, MAGIC, SAID
from aicf.errors import DistributedError
from examples import EVERYTHING

from .test_world import in_threads
from .threads import free_port


def silent(to, world, rng):
    time.sleep(0.2)


def garbage(to, world, rng):
    to.sendall(rng.bytes(int(rng.integers(1, 5000))))
    time.sleep(0.1)


def browser(to, world, rng):
    to.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n" + b"x" * 64)


def half(to, world, rng):
    to.sendall(rng.bytes(int(rng.integers(1, HELLO.size))))


def huge(to, world, rng):
    to.sendall(HEAD.pack(MAGIC, SAID, 2**12, 1, 2 ** int(rng.integers(32, 63))) + rng.bytes(500))


def no_token(to, world, rng):
    to.sendall(HELLO.pack(int(rng.integers(world.size)), world.size, rng.bytes(NONCE), bytes(32)))


def dribble(to, world, rng):
    for _ in range(20):
        to.sendall(rng.bytes(1))
        time.sleep(0.05)


def other_token(world, rng):
    other = replace(world, rank=int(rng.integers(1, world.size)), token=rng.bytes(8).hex())
    join(other, "mesh", "127.0.0.1", world.port, time.monotonic() + 2)


def other_purpose(world, rng):
    join(replace(world, rank=1), "pulse", "127.0.0.1", world.port, time.monotonic() + 2)


def another_run(world, rng):
    join(replace(world, rank=1, size=world.size + 1), "mesh", "127.0.0.1", world.port, time.monotonic() + 2)


def replayed(world, rng):
    """A hello that was right once, for another nonce."""
    right = joining._proof(world, "mesh", "rank", 1, world.size, bytes(NONCE), bytes(NONCE))
    with socket.create_connection(("127.0.0.1", world.port), timeout=2) as to:
        to.recv(len(GREETING) + NONCE)
        to.sendall(HELLO.pack(1, world.size, bytes(NONCE), right))
        to.recv(32)


RAW, JOINING = (
    (silent, garbage, browser, half, huge, no_token, dribble),
    (other_token, other_purpose, another_run, replayed),
)


def visit(world, rng):
    """One stranger."""
    kind = (*RAW, *JOINING)[rng.integers(len(RAW) + len(JOINING))]
    with suppress(OSError, EOFError):
        if kind in JOINING:
            return kind(world, rng)
        with socket.create_connection(("127.0.0.1", world.port), timeout=2) as to:
            kind(to, world, rng)


@pytest.mark.spec("C12")
@pytest.mark.parametrize("some", range(4 if EVERYTHING else 1))
def test_strangers_neither_stop_nor_corrupt_a_run(some, caplog, request):
    seed = int(seeds.rng(request.node.nodeid).integers(2**31))
    rng = np.random.default_rng(seed)
    size = int(rng.integers(2, 5))
    first = World(0, size, 0, "127.0.0.1", free_port(), token="a secret of the run")

    def work(n):
        if n < size:
            if n:
                time.sleep(0.5)  # strangers come first
            mesh = Mesh(replace(first, rank=n), 20.0)
            said = [mesh.all("numbers", [n, turn]) for turn in range(3)]
            mesh.close()
            return said
        for one in range(4):
            visit(first, np.random.default_rng((seed, n, one)))
        return None

    begun = time.monotonic()
    with caplog.at_level(logging.WARNING, "aicf.ranks"):
        found = in_threads(size + 8, work)[:size]
    assert found == [[[[n, turn] for n in range(size)] for turn in range(3)]] * size, seed
    assert time.monotonic() - begun < joining.PATIENCE, "a stranger delayed the run"
    told = [record.getMessage() for record in caplog.records]
    assert told and all("rank 0 rejected a connection from 127.0.0.1:" in text for text in told), seed
    assert len(told) <= joining.LOGGED and not any("secret" in text for text in told)
    with pytest.raises(OSError):  # nothing listens once all ranks are there
        socket.create_connection(("127.0.0.1", first.port), timeout=1)


def test_many_silent_strangers_make_room(monkeypatch):
    monkeypatch.setattr(joining, "GUESTS", 3)
    first = World(0, 2, 0, "127.0.0.1", free_port(), token="x")

    def work(n):
        if n == 2:
            time.sleep(0.2)
            many = [socket.create_connection(("127.0.0.1", first.port), timeout=2) for _ in range(9)]
            time.sleep(1.0)
            return [one.close() for one in many] and None
        if n == 1:
            time.sleep(0.7)
        return Mesh(replace(first, rank=n), 20.0).all("here", n)

    assert in_threads(3, work)[:2] == [[0, 1]] * 2


@pytest.mark.spec("C12")
def test_a_rank_with_another_token_is_told_why():
    first = World(0, 2, 0, "127.0.0.1", free_port(), token="x")
    found = in_threads(2, lambda n: Mesh(replace(first, rank=n, token="xy"[n]), 1.5))
    assert "rank 1 did not join" in str(found[0]) and "AICF_TOKEN" in str(found[0])
    assert "does not reach rank 0" in str(found[1]) and "another token" in str(found[1])


def test_who_listens_in_rank_0s_place_is_no_rank_0():
    """It greets as rank 0 does, and has no token."""
    port = free_port()

    def work(n):
        if n:
            return Mesh(World(1, 2, 1, "127.0.0.1", port, token="x"), 1.0)
        with socket.create_server(("127.0.0.1", port)) as server:
            server.settimeout(3)
            made, _ = server.accept()
            with made:
                made.sendall(GREETING + os.urandom(NONCE))
                made.recv(HELLO.size)
                made.sendall(os.urandom(32))
        return None

    assert "does not reach rank 0" in str(in_threads(2, work)[1])


def pair():
    first = World(0, 2, 0, "127.0.0.1", free_port(), token="x")
    return in_threads(2, lambda n: Mesh(replace(first, rank=n), 5.0))


@pytest.mark.parametrize("length", [11, 2**24, 2**40, 2**63])
def test_a_rank_that_sends_more_than_is_due_is_named(length):
    meshes = pair()

    def work(n):
        if n:
            meshes[1]._root.sendall(HEAD.pack(MAGIC, SAID, 3, 1, length) + b"sum")
            return None
        return meshes[0].together("sum", b"0" * 10, b"".join, 10, 20)

    error = in_threads(2, work)[0]
    assert isinstance(error, DistributedError) and error.rank == 1, error
    assert f"rank 1 sent {length:,} bytes for 'sum', where at most 10 are due" in str(error)


def test_half_a_message_is_a_rank_that_is_gone():
    meshes = pair()

    def work(n):
        if n:
            meshes[1]._root.sendall(HEAD.pack(MAGIC, SAID, 3, 1, 10) + b"sum" + b"12345")
            return meshes[1].close()
        return meshes[0].together("sum", b"0" * 10, b"".join, 10, 20)

    assert "rank 1 is gone" in str(in_threads(2, work)[0])


def test_pulses_of_strangers_count_for_nothing(monkeypatch):
    monkeypatch.setattr(pulse, "EVERY", 0.02)
    meshes, doors = pair(), []

    class Noted(joining.Door):
        def __init__(self, *how):
            super().__init__(*how)
            doors.append(self)
            for n in range(6):
                to = socket.create_connection((self.address, self.port), timeout=2)
                to.sendall([b"", b'{"rank": 1, "launched": 9, "done": 9}\n', os.urandom(72)][n % 3])

    monkeypatch.setattr(pulse, "Door", Noted)
    made = in_threads(2, lambda n: Pulse(meshes[n], 5.0, lambda: None))
    until = time.monotonic() + 5
    while len(made[0]._table) < 2 and time.monotonic() < until:
        time.sleep(0.02)
    assert {rank: row["done"] for rank, row in made[0]._table.items()} == {0: 0, 1: 0}
    for one in made:
        one.failed = DistributedError("the test is over")
        one._beating.join()


@pytest.mark.parametrize(
    ("address", "bound"),
    [
        ("127.0.0.1", "127.0.0.1"),
        ("localhost", "127.0.0.1"),
        ("no-such-host.invalid", "0.0.0.0"),
        ("203.0.113.7", "0.0.0.0"),
    ],
)
def test_rank_0_listens_where_ranks_look_for_it(address, bound):
    with listen(address, 0, 1) as server:
        assert server.getsockname()[0] == bound


def test_a_name_that_is_only_here_loopback_is_for_other_machines(monkeypatch):
    found = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.1.1", 0))]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *how, **more: found)
    with listen("node7", 0, 1) as server:
        assert server.getsockname()[0] == "0.0.0.0"


def test_other_machines_need_a_token():
    with pytest.raises(DistributedError, match="no token") as refused:
        Mesh(World(0, 2, 0, "node7", free_port(), "torchrun"), 1.0)
    assert "AICF_TOKEN" in str(refused.value)


def test_the_launcher_draws_a_token(monkeypatch):
    from aicf.distributed import launch

    started = []
    monkeypatch.setattr(
        launch, "_start", lambda *how: started.append(how) or (_ for _ in ()).throw(KeyboardInterrupt)
    )
    for _ in range(2):
        with suppress(KeyboardInterrupt):
            launch.launch(["true"], 2)
    assert len({how[-1] for how in started}) == 2 and all(len(how[-1]) == 32 for how in started)
