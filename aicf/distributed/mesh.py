"""What ranks tell each other on the host, by TCP: all send to rank 0, which answers all. It also adds up what the CPU device trains.

Every message says which turn it is and what it is about, so that ranks that do different things are told so, and whoever is missing is
named with what it said last. Nothing that comes is executed: messages are bytes, and JSON.
"""

from __future__ import annotations

import hashlib
import json
import selectors
import socket
import struct
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from ..errors import DistributedError
from .world import World

HEAD = struct.Struct("<4sBIQQ")  # magic, kind, bytes of the title, turn, bytes of the body
MAGIC, SAID, FAILED = b"aicf", 0, 1
LIMIT = 2**40  # bytes of a message
DIFFERS = (
    "start all ranks with the same script, versions and settings; what differs must not change the graph"
)
Combine = Callable[[list[bytes]], bytes]


@dataclass
class _Peer:
    """One rank, as rank 0 sees it."""

    rank: int
    socket: socket.socket
    title: str = "joined"
    turn: int = 0


class Mesh:
    """The ranks of a run around rank 0.

    timeout  seconds that rank 0 waits for a rank that others wait for
    """

    def __init__(self, world: World, timeout: float = 600.0) -> None:
        self.world, self.timeout = world, timeout
        self.turn = 0
        self.failed: DistributedError | None = None
        self._peers: list[_Peer] = []
        self._root: socket.socket | None = None
        if world.size > 1 and world.rank == 0:
            self._peers = _listen(world, timeout)
        elif world.size > 1:
            self._root = _connect(world, timeout)

    # --- what ranks do together

    def together(self, title: str, body: bytes, combine: Combine) -> bytes:
        """What rank 0 makes of the messages of all ranks, in their order. All ranks come here with the same title."""
        if self.failed is not None:
            raise self.failed
        self.turn += 1
        if self.world.size == 1:
            return combine([body])
        try:
            return self._serve(title, body, combine) if self._root is None else self._ask(title, body)
        except DistributedError as error:
            self.failed = error
            raise
        except BaseException as error:
            self.fail(f"{type(error).__name__}: {error}")
            raise

    def all(self, title: str, said: Any) -> list[Any]:
        """What each rank says, by rank; as JSON has it."""
        parts = self.together(
            title, json.dumps(said).encode(), lambda bodies: b"[" + b",".join(bodies) + b"]"
        )
        return list(json.loads(parts))

    def agree(self, title: str, lines: Sequence[str], hint: str = DIFFERS) -> None:
        """DistributedError, on all ranks, unless all say the same; it has the first line that differs."""
        self.agree_on({title: lines}, {title: hint})

    def agree_on(self, parts: Mapping[str, Sequence[str]], hints: Mapping[str, str] | None = None) -> None:
        """DistributedError, on all ranks, unless all say the same of all parts, by title. Lines are sent only where digests differ."""
        said = self.all(", ".join(parts), [_digest(lines) for lines in parts.values()])
        found = [title for n, title in enumerate(parts) if any(other[n] != said[0][n] for other in said)]
        if not found:
            return
        title = found[0]
        texts = self.all(f"lines of {title}", list(parts[title]))
        rank, other = next((rank, other) for rank, other in enumerate(texts) if other != texts[0])
        n = next(n for n in range(len(other) + 1) if other[n : n + 1] != texts[0][n : n + 1])
        mine, its = (" ".join(text[n : n + 1]) or "nothing more" for text in (texts[0], other))
        line = f"line {n + 1}: " if max(len(texts[0]), len(other)) > 1 else ""
        error = DistributedError(
            f"rank {rank} has another {title} than rank 0", expected=line + mine, got=line + its, hint=(hints or {}).get(title, DIFFERS)
        )  # fmt: skip
        raise self.refused(error, rank)

    def refused(self, error: DistributedError, rank: int | None) -> DistributedError:
        """An error that all ranks have found: they go separate ways."""
        error.rank = rank
        self.failed = error
        self.close()
        return error

    def wait(self, title: str) -> None:
        """Until all ranks are here."""
        self.together(title, b"", lambda bodies: b"")

    def fail(self, why: str) -> None:
        """Tell all other ranks that this one gives up."""
        if self.failed is None:
            self.failed = DistributedError(f"rank {self.world.rank} gave up: {why}")
        for peer in self._peers:
            with suppress(OSError):
                _send(peer.socket, FAILED, self.turn, f"rank {self.world.rank}", why.encode())
        if self._root is not None:
            with suppress(OSError):
                _send(self._root, FAILED, self.turn, f"rank {self.world.rank}", why.encode())
        self.close()

    def close(self) -> None:
        """Let go of all connections."""
        for each in (*(peer.socket for peer in self._peers), self._root):
            if each is not None:
                each.close()

    # --- rank 0

    def _serve(self, title: str, body: bytes, combine: Combine) -> bytes:
        bodies: list[bytes | None] = [body] + [None] * (self.world.size - 1)
        until = time.monotonic() + self.timeout
        with selectors.DefaultSelector() as waiting:
            for peer in self._peers:
                waiting.register(peer.socket, selectors.EVENT_READ, peer)
            while waiting.get_map():
                ready = waiting.select(max(0.0, until - time.monotonic()))
                if not ready:
                    self._give_up(title, [p for p in self._peers if bodies[p.rank] is None])
                for key, _ in ready:
                    bodies[key.data.rank] = self._heard(key.data, title, until)
                    waiting.unregister(key.fileobj)
        answer = combine([part for part in bodies if part is not None])
        for peer in self._peers:
            try:
                _send(peer.socket, SAID, self.turn, title, answer)
            except OSError as error:
                self._lost(peer, title, str(error))
        return answer

    def _heard(self, peer: _Peer, title: str, until: float) -> bytes:
        try:
            peer.socket.settimeout(max(1.0, until - time.monotonic()))
            kind, turn, said, body = _receive(peer.socket)
        except (OSError, EOFError) as error:
            self._lost(peer, title, str(error))
        if kind == FAILED:
            given_up = _gave_up(peer.rank, said, body)
            self._tell(given_up, but=peer)
            raise given_up
        peer.title, peer.turn = said, turn
        if (turn, said) != (self.turn, title):
            self._tell(_apart(peer.rank, self.turn, title, turn, said))
            raise _apart(peer.rank, self.turn, title, turn, said)
        return body

    def _give_up(self, title: str, missing: Sequence[_Peer]) -> None:
        last = [f"rank {p.rank} was last at {p.title!r}, turn {p.turn}" for p in missing]
        names = ", ".join(str(p.rank) for p in missing)
        error = DistributedError(
            f"rank{'s' * (len(missing) > 1)} {names} did not come to {title!r}, turn {self.turn}", details=last,
            expected=f"all ranks within {self.timeout:g} s of each other", got=f"{self.world.size - len(missing)} of {self.world.size}",
            hint="a rank that hangs has a stack: py-spy dump --pid PID; slow input needs a longer DataParallel(timeout=...)",
        )  # fmt: skip
        error.rank = missing[0].rank
        self._tell(error)
        raise error

    def _lost(self, peer: _Peer, title: str, why: str) -> Any:
        error = DistributedError(
            f"rank {peer.rank} is gone: {why or 'it closed its connection'}",
            details=[f"it was last at {peer.title!r}, turn {peer.turn}; the others are at {title!r}, turn {self.turn}"],
            hint=f"its own output says why; the launcher's log has it for rank {peer.rank}",
        )  # fmt: skip
        error.rank = peer.rank
        self._tell(error, but=peer)
        raise error

    def _tell(self, error: DistributedError, but: _Peer | None = None) -> None:
        text = json.dumps({"text": str(error), "rank": error.rank}).encode()
        for peer in self._peers:
            if peer is not but:
                with suppress(OSError):
                    _send(peer.socket, FAILED, self.turn, "rank 0", text)
        self.close()

    # --- the others

    def _ask(self, title: str, body: bytes) -> bytes:
        assert self._root is not None
        try:
            _send(self._root, SAID, self.turn, title, body)
            self._root.settimeout(2 * self.timeout + 30)  # rank 0 gives up first, and says why
            kind, _, said, answer = _receive(self._root)
        except (OSError, EOFError) as error:
            self._last_word()
            raise DistributedError(
                f"rank 0 is gone: {str(error) or 'it closed its connection'}", details=[f"this is rank {self.world.rank}, at {title!r}, turn {self.turn}"],
                hint="its own output says why",
            ) from error  # fmt: skip
        if kind == FAILED:
            raise _gave_up(0, said, answer)
        return answer

    def _last_word(self) -> None:
        """What rank 0 said before it closed, if that is still to be read."""
        assert self._root is not None
        with suppress(OSError, EOFError):
            self._root.settimeout(1.0)
            kind, _, said, body = _receive(self._root)
            if kind == FAILED:
                raise _gave_up(0, said, body)


def _digest(lines: Sequence[str]) -> str:
    return hashlib.blake2s("\n".join(lines).encode()).hexdigest()


def _apart(rank: int, turn: int, title: str, its_turn: int, its_title: str) -> DistributedError:
    error = DistributedError(
        f"rank {rank} does something else than rank 0", expected=f"{title!r}, turn {turn}", got=f"{its_title!r}, turn {its_turn}",
        hint="all ranks run the same steps in the same order: look for a condition on the rank around a step",
    )  # fmt: skip
    error.rank = rank
    return error


def _gave_up(rank: int, said: str, body: bytes) -> DistributedError:
    text = body.decode(errors="replace")
    try:
        told = json.loads(text)
        error = DistributedError(str(told["text"]))
        error.rank = told["rank"]
    except (ValueError, KeyError, TypeError):
        error = DistributedError(f"{said} gave up: {text}", hint="its own output has the whole error")
        error.rank = rank
    return error


# --- sockets ----------------------------------------------------------------------------------------------------------


def _listen(world: World, timeout: float) -> list[_Peer]:
    """The connections of all others, by rank."""
    try:
        server = socket.create_server(("", world.port), backlog=world.size)
    except OSError as error:
        raise DistributedError(
            f"rank 0 can't listen at port {world.port}: {error.strerror}",
            hint="AICF_PORT names another; all ranks need the same",
        ) from error
    found: dict[int, _Peer] = {}
    until = time.monotonic() + timeout
    with server:
        while len(found) < world.size - 1:
            server.settimeout(max(0.01, until - time.monotonic()))
            try:
                made, _ = server.accept()
            except TimeoutError:
                missing = [str(r) for r in range(1, world.size) if r not in found]
                raise DistributedError(
                    f"rank{'s' * (len(missing) > 1)} {', '.join(missing)} did not join", expected=f"{world.size} ranks within {timeout:g} s",
                    got=str(len(found) + 1), where=f"{world.address}:{world.port}", hint="is MASTER_ADDR the host of rank 0, and the port open to the others?",
                ) from None  # fmt: skip
            try:
                made.settimeout(10.0)
                _, rank, size, _ = _receive(made)
                fits = size == f"of {world.size}" and 0 < rank < world.size and rank not in found
            except (OSError, EOFError):
                fits = False
            if not fits:  # somebody else's, or a rank of another run
                made.close()
                continue
            made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            _send(made, SAID, 0, "welcome", b"")
            found[rank] = _Peer(rank, made)
    return [found[rank] for rank in sorted(found)]


def _connect(world: World, timeout: float) -> socket.socket:
    until = time.monotonic() + timeout
    last: Exception | None = None
    while time.monotonic() < until:
        try:
            made = socket.create_connection((world.address, world.port), timeout=5.0)
            made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            _send(made, SAID, world.rank, f"of {world.size}", b"")
            made.settimeout(timeout)
            _receive(made)
            return made
        except (OSError, EOFError) as error:  # it does not listen yet, or another run does
            last = error
            time.sleep(0.05)
    raise DistributedError(
        f"rank {world.rank} does not reach rank 0: {last}", where=f"{world.address}:{world.port}", expected=f"an answer within {timeout:g} s",
        hint="is MASTER_ADDR the host of rank 0, and does rank 0 run?",
    )  # fmt: skip


def _send(to: socket.socket, kind: int, turn: int, title: str, body: bytes) -> None:
    name = title.encode()
    to.settimeout(None)
    to.sendall(HEAD.pack(MAGIC, kind, len(name), turn, len(body)) + name)
    if body:
        to.sendall(body)


def _receive(of: socket.socket) -> tuple[int, int, str, bytes]:
    magic, kind, named, turn, length = HEAD.unpack(_exactly(of, HEAD.size))
    if magic != MAGIC or named > 2**16 or length > LIMIT:
        raise EOFError("what came is no message of aicf's")
    return kind, turn, bytes(_exactly(of, named)).decode(errors="replace"), bytes(_exactly(of, length))


def _exactly(of: socket.socket, count: int) -> bytearray:
    got, room = 0, bytearray()
    while got < count:
        part = of.recv(min(count - got, 2**22))
        if not part:
            raise EOFError("it closed its connection")
        room += part
        got += len(part)
    return room
