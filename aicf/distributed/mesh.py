"""What ranks tell each other on the host, by TCP: all send to rank 0, which answers all. It also adds up what the CPU device trains.

Every message says which turn it is and what it is about, so that ranks that do different things are told so, and whoever is missing is
named with what it said last. Nothing that comes is executed: messages are bytes, and JSON.
"""

from __future__ import annotations

import hashlib
import json
import selectors
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, NoReturn

from ..errors import DistributedError
from .joining import Door, join
from .wire import FAILED, SAID, Excess, receive_body, receive_head, send
from .world import World

MOST = 2**24  # bytes of what a rank says as JSON
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

    def together(self, title: str, body: bytes, combine: Combine, most: int, answer: int) -> bytes:
        """What rank 0 makes of the messages of all ranks, in their order. All ranks come here with the same title.

        most    bytes that each rank may say; answer: that rank 0 may. More is an error before it is read
        """
        if self.failed is not None:
            raise self.failed
        self.turn += 1
        if self.world.size == 1:
            return combine([body])
        try:
            if self._root is None:
                return self._serve(title, body, combine, most)
            return self._ask(title, body, answer)
        except DistributedError as error:
            self.failed = error
            raise
        except BaseException as error:
            self.fail(f"{type(error).__name__}: {error}")
            raise

    def all(self, title: str, said: Any) -> list[Any]:
        """What each rank says, by rank; as JSON has it."""
        answer = self.world.size * (MOST + 1) + 1
        join_all: Combine = lambda bodies: b"[" + b",".join(bodies) + b"]"  # noqa: E731
        parts = self.together(title, json.dumps(said).encode(), join_all, MOST, answer)
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
        self.together(title, b"", lambda bodies: b"", 0, 0)

    def fail(self, why: str) -> None:
        """Tell all other ranks that this one gives up."""
        if self.failed is None:
            self.failed = DistributedError(f"rank {self.world.rank} gave up: {why}")
        for peer in self._peers:
            with suppress(OSError):
                send(peer.socket, FAILED, self.turn, f"rank {self.world.rank}", why.encode())
        if self._root is not None:
            with suppress(OSError):
                send(self._root, FAILED, self.turn, f"rank {self.world.rank}", why.encode())
        self.close()

    def close(self) -> None:
        """Let go of all connections."""
        for each in (*(peer.socket for peer in self._peers), self._root):
            if each is not None:
                each.close()

    # --- rank 0

    def _serve(self, title: str, body: bytes, combine: Combine, most: int) -> bytes:
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
                    bodies[key.data.rank] = self._heard(key.data, title, most, until)
                    waiting.unregister(key.fileobj)
        answer = combine([part for part in bodies if part is not None])
        for peer in self._peers:
            try:
                send(peer.socket, SAID, self.turn, title, answer)
            except OSError as error:
                self._lost(peer, title, str(error))
        return answer

    def _heard(self, peer: _Peer, title: str, most: int, until: float) -> bytes:
        until = max(until, time.monotonic() + 1.0)
        try:
            head = receive_head(peer.socket, until)
            if head.kind == FAILED:
                given_up = _gave_up(peer.rank, head.title, receive_body(peer.socket, head, 0, until))
                self._tell(given_up, but=peer)
                raise given_up
            peer.title, peer.turn = head.title, head.turn
            if (head.turn, head.title) != (self.turn, title):
                self._tell(_apart(peer.rank, self.turn, title, head.turn, head.title))
                raise _apart(peer.rank, self.turn, title, head.turn, head.title)
            return receive_body(peer.socket, head, most, until)
        except Excess as error:
            refused = DistributedError(f"rank {peer.rank} sent {error}", hint=DIFFERS)
            refused.rank = peer.rank
            self._tell(refused)
            raise refused from None
        except (OSError, EOFError) as error:
            self._lost(peer, title, str(error))

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

    def _lost(self, peer: _Peer, title: str, why: str) -> NoReturn:
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
                    send(peer.socket, FAILED, self.turn, "rank 0", text)
        self.close()

    # --- the others

    def _ask(self, title: str, body: bytes, most: int) -> bytes:
        assert self._root is not None
        try:
            send(self._root, SAID, self.turn, title, body)
            until = time.monotonic() + 2 * self.timeout + 30  # rank 0 gives up first, and says why
            head = receive_head(self._root, until)
            answer = receive_body(self._root, head, most, until)
        except (OSError, EOFError, Excess) as error:
            if not isinstance(error, Excess):
                self._last_word()
            raise DistributedError(
                f"rank 0 sent {error}" if isinstance(error, Excess) else f"rank 0 is gone: {str(error) or 'it closed its connection'}",
                details=[f"this is rank {self.world.rank}, at {title!r}, turn {self.turn}"], hint="its own output says why",
            ) from error  # fmt: skip
        if head.kind == FAILED:
            raise _gave_up(0, head.title, answer)
        return answer

    def _last_word(self) -> None:
        """What rank 0 said before it closed, if that is still to be read."""
        assert self._root is not None
        with suppress(OSError, EOFError, Excess):
            until = time.monotonic() + 1.0
            head = receive_head(self._root, until)
            if head.kind == FAILED:
                raise _gave_up(0, head.title, receive_body(self._root, head, 0, until))


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


# --- joining ----------------------------------------------------------------------------------------------------------


def _listen(world: World, timeout: float) -> list[_Peer]:
    """The connections of all others, by rank."""
    try:
        door = Door(world, "mesh", world.port)
    except OSError as error:
        raise DistributedError(
            f"rank 0 can't listen at port {world.port}: {error.strerror}",
            hint="AICF_PORT names another; all ranks need the same",
        ) from error
    found = {rank: _Peer(rank, made) for rank, made in door.joined(range(1, world.size), timeout)}
    if missing := [str(r) for r in range(1, world.size) if r not in found]:
        for peer in found.values():
            peer.socket.close()
        raise DistributedError(
            f"rank{'s' * (len(missing) > 1)} {', '.join(missing)} did not join", expected=f"{world.size} ranks within {timeout:g} s",
            got=str(len(found) + 1), where=f"{world.address}:{world.port}",
            hint="is MASTER_ADDR the host of rank 0, the port open to the others, and AICF_TOKEN the same?",
        )  # fmt: skip
    return [found[rank] for rank in sorted(found)]


def _connect(world: World, timeout: float) -> socket.socket:
    until = time.monotonic() + timeout
    last: Exception | None = None
    while time.monotonic() < until:
        try:
            return join(world, "mesh", world.address, world.port, until)
        except (OSError, EOFError) as error:  # it does not listen yet, or another run does
            last = error
            time.sleep(0.05)
    raise DistributedError(
        f"rank {world.rank} does not reach rank 0: {last}", where=f"{world.address}:{world.port}", expected=f"an answer within {timeout:g} s",
        hint="is MASTER_ADDR the host of rank 0, does rank 0 run, and is AICF_TOKEN the same?",
    )  # fmt: skip
