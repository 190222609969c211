"""How a rank joins rank 0: where rank 0 listens, and the proof that both have the run's token, which itself is never sent.

Rank 0 sends a nonce. The rank answers with its number, a nonce of its own, and a digest of all that under the token; rank 0 proves in the
same way that it has the token. Messages have a fixed size, several strangers are read side by side, and none of them for longer than
`PATIENCE`: whoever has no token delays nothing, is logged and rejected.
"""

from __future__ import annotations

import errno
import hashlib
import hmac
import ipaddress
import os
import selectors
import socket
import struct
import time
from collections import OrderedDict
from collections.abc import Collection, Iterator
from contextlib import suppress
from dataclasses import dataclass, field

from .. import channels
from ..errors import DistributedError
from .wire import exactly
from .world import World

GREETING = b"aicf-1\0\0"  # the version of this exchange
HELLO = struct.Struct("<II32s32s")  # rank, ranks, nonce, proof
NONCE = PROOF = 32  # bytes
REFUSED = bytes(PROOF)
PATIENCE = 10.0  # seconds that a stranger has
GUESTS = 128  # connections that have not proved anything yet
LOGGED = 20  # strangers that are logged one by one


@dataclass
class _Guest:
    """A connection that has not proved anything yet."""

    socket: socket.socket
    where: str
    nonce: bytes
    until: float
    data: bytearray = field(default_factory=bytearray)


class Door:
    """Where rank 0 listens for the others.

    purpose  what the connections are for: a proof for one purpose is none for another
    port     0 is any that is free
    """

    def __init__(self, world: World, purpose: str, port: int) -> None:
        self.world, self.purpose = world, purpose
        _check_token(world)
        self._server = listen(world.address, port, world.size + GUESTS)
        self._guests: OrderedDict[socket.socket, _Guest] = OrderedDict()
        self._strangers = 0

    @property
    def port(self) -> int:
        return int(self._server.getsockname()[1])

    @property
    def address(self) -> str:
        """By which rank 0 itself reaches it."""
        found = ipaddress.ip_address(self._server.getsockname()[0])
        return {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(str(found), str(found))

    def joined(self, ranks: Collection[int], timeout: float) -> Iterator[tuple[int, socket.socket]]:
        """Each of these ranks, with its connection, as it comes; those that have come when time is over. Then nothing listens any more."""
        missing, until = set(ranks), time.monotonic() + timeout
        with self._server, selectors.DefaultSelector() as waiting:
            self._server.setblocking(False)
            waiting.register(self._server, selectors.EVENT_READ)
            while missing and (now := time.monotonic()) < until:
                for guest in [g for g in self._guests.values() if g.until <= now]:
                    self._reject(waiting, guest, f"{len(guest.data)} of {HELLO.size} bytes in {PATIENCE:g} s")
                first = min((g.until for g in self._guests.values()), default=until)
                for key, _ in waiting.select(max(0.0, min(first, until) - now)):
                    if key.fileobj is self._server:
                        self._greet(waiting)
                    elif (known := self._guests.get(key.data)) and self._heard(waiting, known):
                        rank = self._admitted(waiting, known, missing)
                        if rank is not None:
                            missing.discard(rank)
                            yield rank, known.socket
            for guest in list(self._guests.values()):
                self._reject(waiting, guest, "all ranks are here")

    def _greet(self, waiting: selectors.BaseSelector) -> None:
        try:
            made, where = self._server.accept()
            made.setblocking(False)
            guest = _Guest(made, f"{where[0]}:{where[1]}", os.urandom(NONCE), time.monotonic() + PATIENCE)
            made.send(GREETING + guest.nonce)  # 40 bytes fit into the buffer of a new connection
        except OSError:  # it is gone already
            return
        self._guests[made] = guest
        waiting.register(made, selectors.EVENT_READ, made)
        if len(self._guests) > GUESTS:
            self._reject(waiting, next(iter(self._guests.values())), "too many others that prove nothing")

    def _heard(self, waiting: selectors.BaseSelector, guest: _Guest) -> bool:
        """Whether all of its hello is here. No more than that is read."""
        try:
            part = guest.socket.recv(HELLO.size - len(guest.data))
        except BlockingIOError:
            return False
        except OSError as error:
            self._reject(waiting, guest, str(error))
            return False
        guest.data += part
        if not part:
            self._reject(
                waiting, guest, f"it closed its connection after {len(guest.data)} of {HELLO.size} bytes"
            )
        return len(guest.data) == HELLO.size

    def _admitted(
        self, waiting: selectors.BaseSelector, guest: _Guest, missing: Collection[int]
    ) -> int | None:
        """The number of a rank that has the token and is waited for."""
        rank, size, nonce, proof = HELLO.unpack(guest.data)
        due = _proof(self.world, self.purpose, "rank", rank, size, guest.nonce, nonce)
        if not hmac.compare_digest(proof, due):
            self._reject(waiting, guest, "it does not have this run's token")
            return None
        if size != self.world.size or rank not in missing:
            self._reject(waiting, guest, f"it is rank {rank} of {size}, which is not waited for")
            return None
        waiting.unregister(guest.socket)
        del self._guests[guest.socket]
        try:
            guest.socket.settimeout(PATIENCE)
            guest.socket.sendall(_proof(self.world, self.purpose, "root", rank, size, guest.nonce, nonce))
            guest.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        except OSError:  # it comes again
            guest.socket.close()
            return None
        return rank

    def _reject(self, waiting: selectors.BaseSelector, guest: _Guest, why: str) -> None:
        with suppress(OSError):
            guest.socket.send(REFUSED)
        waiting.unregister(guest.socket)
        del self._guests[guest.socket]
        guest.socket.close()
        self._strangers += 1
        if self._strangers <= LOGGED:
            more = "; others are not logged" if self._strangers == LOGGED else ""
            text = f"rank 0 rejected a connection from {guest.where}: {why}{more}"
            channels.warn("ranks", "stranger", text, where=guest.where, why=why)


def join(world: World, purpose: str, address: str, port: int, until: float) -> socket.socket:
    """A connection to rank 0, which has proved that it has the token; OSError or EOFError if that fails now."""
    _check_token(world)
    made = socket.create_connection((address, port), timeout=5.0)
    try:
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        greeting = bytes(exactly(made, len(GREETING) + NONCE, until))
        if not greeting.startswith(GREETING):
            raise EOFError("what listens there is no rank 0 of this version of aicf")
        theirs, mine = greeting[len(GREETING) :], os.urandom(NONCE)
        given = purpose, "rank", world.rank, world.size, theirs, mine
        made.sendall(HELLO.pack(world.rank, world.size, mine, _proof(world, *given)))
        answer = bytes(exactly(made, PROOF, until))
        if answer == REFUSED:
            raise EOFError("it refuses this rank: another token (AICF_TOKEN), or another number of ranks")
        if not hmac.compare_digest(
            answer, _proof(world, purpose, "root", world.rank, world.size, theirs, mine)
        ):
            raise EOFError("it does not have this run's token (AICF_TOKEN)")
    except BaseException:
        made.close()
        raise
    return made


def _proof(world: World, purpose: str, who: str, rank: int, size: int, theirs: bytes, mine: bytes) -> bytes:
    text = f"{purpose} {who} {rank} {size} ".encode() + theirs + mine
    return hmac.new(world.token.encode(), text, hashlib.sha256).digest()


def _check_token(world: World) -> None:
    if not world.token and not _is_loopback(world.address):
        raise DistributedError(
            f"{world.told_by} gives the ranks of a run no token, and rank 0 listens at {world.address}", expected="AICF_TOKEN, the same text for all ranks",
            hint='export AICF_TOKEN="$(openssl rand -hex 16)" before the launcher starts, and have it hand it on: mpirun -x AICF_TOKEN (Open MPI)',
        )  # fmt: skip


# --- addresses --------------------------------------------------------------------------------------------------------


def listen(address: str, port: int, backlog: int) -> socket.socket:
    """A socket at the address that ranks use. Where that is none of this machine's, as behind a router or in /etc/hosts, at all of its."""
    try:
        found = socket.getaddrinfo(address, port, type=socket.SOCK_STREAM)
    except OSError:
        found = []
    for family, *_, where in found:
        if _is_ip_loopback(str(where[0])) and not _is_loopback(address):
            continue  # 127.0.1.1 in /etc/hosts: other machines know another one
        try:
            return socket.create_server(where, family=family, backlog=backlog)
        except OSError as error:
            if error.errno in (errno.EADDRINUSE, errno.EACCES):
                raise
    text = f"rank 0 listens at all addresses of its machine: {address} is none of them"
    channels.tell("ranks", "listening", text, address=address, port=port)
    return socket.create_server(("", port), backlog=backlog)


def _is_loopback(address: str) -> bool:
    return address == "localhost" or _is_ip_loopback(address)


def _is_ip_loopback(address: str) -> bool:
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return False
