"""Unsigned varints, the lengths and counts of the flexible encoding.

The compiler writes the one-byte case in line, since nearly all of them are; these are for the rest.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

from penstock.kafka.protocol.errors import ProtocolError

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
