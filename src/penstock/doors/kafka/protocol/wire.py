"""The primitives of the wire, for what is written by hand: varints, strings, tagged fields.

Unsigned varints are the lengths and counts of the flexible encoding. The codec and the hot paths read and write the
one-byte case in line, since nearly all are; these functions are for the rest.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple, TypeAlias

from penstock.doors.kafka.protocol.errors import ProtocolError

Buffer: TypeAlias = bytes | bytearray | memoryview

_SHIFTS = (7, 14, 21, 28)
_MAX_VALUE = (1 << 32) - 1


def read_varint(buffer: Buffer, position: int) -> tuple[int, int]:
    """The value, and the position after it; past the end it is an ``IndexError``, as for any other read."""
    value = buffer[position]
    if value < 128:
        return value, position + 1
    value &= 127
    for shift in _SHIFTS:
        position += 1
        byte = buffer[position]
        if byte < 128:
            value |= byte << shift
            if value > _MAX_VALUE:
                break
            return value, position + 1
        value |= (byte & 127) << shift
    raise ProtocolError("A varint is longer than 32 bits.")


def varint(value: int) -> bytes:
    """The bytes of a value that is not negative."""
    if value < 1 << 7:
        return _SHORT[value]
    if value < 1 << 14:
        return bytes((value & 127 | 128, value >> 7))
    if value < 1 << 21:
        return bytes((value & 127 | 128, value >> 7 & 127 | 128, value >> 14))
    low = bytes((value & 127 | 128, value >> 7 & 127 | 128, value >> 14 & 127 | 128))
    return low + varint(value >> 21)


def skip_tags(buffer: Buffer, position: int) -> int:
    """The position after a buffer of tagged fields, none of which is of interest."""
    count, position = read_varint(buffer, position)
    if not count:
        return position
    for _ in range(count):
        _, position = read_varint(buffer, position)
        length, position = read_varint(buffer, position)
        position += length
        if position > len(buffer):
            raise ProtocolError("A tagged field is longer than what is left of the message.")
    return position


_SHORT: Sequence[bytes] = [bytes([value]) for value in range(128)]


_INT16 = struct.Struct(">h")
_INT32 = struct.Struct(">i")
_NULL_STRING = b"\xff\xff"
_NAMES_KEPT = 4096  # topic names, mostly: the same few come again with every request


class LeaderHint(NamedTuple):
    """Who leads a partition now, sent along with "not the leader" so that the client need not ask (KIP-951)."""

    leader_id: int
    leader_epoch: int


class NodeAddress(NamedTuple):
    """Where a leader that was hinted at is found."""

    node_id: int
    host: str
    port: int
    rack: str | None = None


def read_string(buffer: memoryview, position: int) -> tuple[str | None, int]:
    length: int = _INT16.unpack_from(buffer, position)[0]
    position += 2
    if length == -1:
        return None, position
    end = position + length
    if not position <= end <= len(buffer):
        raise ProtocolError("A string is longer than what is left of the message.")
    return str(buffer[position:end], "utf-8"), end


def read_compact_string(buffer: memoryview, position: int) -> tuple[str | None, int]:
    stated = buffer[position]
    position += 1
    if stated > 127:
        stated, position = read_varint(buffer, position - 1)
    if stated == 0:
        return None, position
    end = position + stated - 1
    if end > len(buffer):
        raise ProtocolError("A string is longer than what is left of the message.")
    return str(buffer[position:end], "utf-8"), end


@lru_cache(_NAMES_KEPT)
def string(text: str) -> bytes:
    data = text.encode()
    return _INT16.pack(len(data)) + data


def nullable_string(text: str | None) -> bytes:
    return _NULL_STRING if text is None else string(text)


@lru_cache(_NAMES_KEPT)
def compact_string(text: str | None) -> bytes:
    if text is None:
        return b"\0"
    data = text.encode()
    return varint(len(data) + 1) + data


def node_endpoints_tag(nodes: Sequence[NodeAddress]) -> bytes:
    """A buffer of tagged fields that holds the nodes under tag 0, or nothing if there are none."""
    if not nodes:
        return b"\0"
    body = bytearray(varint(len(nodes) + 1))
    for node in nodes:
        body += _INT32.pack(node.node_id) + compact_string(node.host) + _INT32.pack(node.port)
        body += compact_string(node.rack) + b"\0"
    return b"\x01\x00" + varint(len(body)) + bytes(body)
