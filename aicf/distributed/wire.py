"""Messages between ranks that know each other: a head of fixed size, a title, and a body no longer than what is due."""

from __future__ import annotations

import socket
import struct
import time
from typing import NamedTuple

HEAD = struct.Struct("<4sBIQQ")  # magic, kind, bytes of the title, turn, bytes of the body
MAGIC, SAID, FAILED = b"aicf", 0, 1
TITLE, REASON = 2**12, 2**20  # bytes, at most, of a title, and of why a rank gives up


class Head(NamedTuple):
    kind: int
    turn: int
    title: str
    length: int


class Excess(Exception):
    """A message is longer than what is due."""


def send(to: socket.socket, kind: int, turn: int, title: str, body: bytes) -> None:
    name, body = title.encode()[:TITLE], body if kind == SAID else body[:REASON]
    to.settimeout(None)
    to.sendall(HEAD.pack(MAGIC, kind, len(name), turn, len(body)) + name)
    if body:
        to.sendall(body)


def receive_head(of: socket.socket, until: float) -> Head:
    magic, kind, named, turn, length = HEAD.unpack(exactly(of, HEAD.size, until))
    if magic != MAGIC or kind not in (SAID, FAILED) or named > TITLE:
        raise EOFError("what came is no message of aicf's")
    return Head(kind, turn, bytes(exactly(of, named, until)).decode(errors="replace"), length)


def receive_body(of: socket.socket, head: Head, most: int, until: float) -> bytes:
    """Excess, before a byte of it is read, if there is more than `most`."""
    most = REASON if head.kind == FAILED else most
    if head.length > most:
        raise Excess(f"{head.length:,} bytes for {head.title!r}, where at most {most:,} are due")
    return bytes(exactly(of, head.length, until))


def exactly(of: socket.socket, count: int, until: float) -> bytearray:
    """So many bytes; TimeoutError unless all are here by then."""
    room = bytearray()
    while len(room) < count:
        of.settimeout(max(1e-3, until - time.monotonic()))
        part = of.recv(min(count - len(room), 2**22))
        if not part:
            raise EOFError("it closed its connection")
        room += part
    return room
