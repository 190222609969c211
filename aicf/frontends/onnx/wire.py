"""The weights of an ONNX file stay where they are: the message without the bytes of its initializers, and where those lie.

protobuf copies all bytes of a message, more than once. So the wire format is walked down to the initializers, whose `raw_data` is left
out of what protobuf is given. What looks in any way unusual is left to protobuf as it is, which says what is wrong.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

LEAST = 1 << 12  # bytes of an initializer that are left out
GRAPH, INITIALIZER, RAW_DATA = 7, 5, 9  # of ModelProto, GraphProto and TensorProto
VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5
WIDTHS = {FIXED64: 8, FIXED32: 4}

Span = tuple[int, int]  # of the file: from where to where


class _Unusual(Exception):
    """Groups, damaged numbers, or a field twice that is one."""


@dataclass
class Stripped:
    """A message as parts of the file and lengths that were made anew; `spans` has the bytes of initializers by their number."""

    parts: list[Span | bytes] = field(default_factory=list)
    spans: dict[int, Span] = field(default_factory=dict)


def without_weights(data: memoryview) -> tuple[bytes, dict[int, Span]] | None:
    """The message without the bytes of its large initializers, and where those are, by the number of the initializer; None if it is better
    read as it is."""
    try:
        graphs = [(start, end) for number, start, _, end in _fields(data, 0, len(data)) if number == GRAPH]
        if len(graphs) != 1:
            return None
        made = Stripped()
        for number, start, first, end in _fields(data, 0, len(data)):
            made.parts += (
                _nested(data, start, _graph(data, first, end, made.spans))
                if number == GRAPH
                else [(start, end)]
            )
    except _Unusual:
        return None
    if not made.spans:
        return None
    return b"".join(p if isinstance(p, bytes) else data[p[0] : p[1]] for p in made.parts), made.spans


def _graph(data: memoryview, at: int, end: int, spans: dict[int, Span]) -> list[Span | bytes]:
    parts: list[Span | bytes] = []
    count = 0
    for number, start, first, last in _fields(data, at, end):
        if number != INITIALIZER:
            parts.append((start, last))
            continue
        raw = [f for f in _fields(data, first, last) if f[0] == RAW_DATA]
        if len(raw) == 1 and raw[0][3] - raw[0][2] >= LEAST:
            _, cut, here, after = raw[0]
            spans[count] = here, after
            parts += _nested(data, start, [(first, cut), (after, last)])
        else:
            parts.append((start, last))
        count += 1
    return parts


def _nested(data: memoryview, start: int, parts: list[Span | bytes]) -> list[Span | bytes]:
    """A field of these parts, with the tag that it has at `start`."""
    _, after = _varint(data, start, len(data))
    length = sum(len(p) if isinstance(p, bytes) else p[1] - p[0] for p in parts)
    return [(start, after), _encoded(length), *parts]


def _fields(data: memoryview, at: int, end: int) -> Iterator[tuple[int, int, int, int]]:
    """(number, where it starts, where its content does, where that ends) of each field of a message; 0 for one that has no bytes."""
    while at < end:
        start = at
        tag, at = _varint(data, at, end)
        number, kind = tag >> 3, tag & 7
        first = at
        if kind == VARINT:
            _, at = _varint(data, at, end)
        elif kind == BYTES:
            length, first = _varint(data, at, end)
            at = first + length
        elif kind in WIDTHS:
            at += WIDTHS[kind]
        else:
            raise _Unusual
        if at > end:
            raise _Unusual
        yield number if kind == BYTES else 0, start, first, at


def _varint(data: memoryview, at: int, end: int) -> tuple[int, int]:
    """A number, and where it ends."""
    value = 0
    for shift in range(0, 64, 7):
        if at >= end:
            raise _Unusual
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
    raise _Unusual


def _encoded(value: int) -> bytes:
    made = bytearray()
    while value >= 0x80:
        made.append(value & 0x7F | 0x80)
        value >>= 7
    made.append(value)
    return bytes(made)
