"""Variable-length integers: seven bits a byte, lowest first, the top bit says that another byte follows.

Signed values are zigzag-coded so that small negative ones stay short. A reader takes ``(buffer, offset)`` and returns
``(value, next_offset)``; it raises CorruptRecords when the buffer ends inside a value or the value does not fit its
width. Padded encodings within the width are read, as Kafka does. Format: docs/formats/record-batch.md.
"""

from __future__ import annotations

from typing import Final, TypeAlias

from penstock.errors import CorruptRecords

ReadableBuffer: TypeAlias = bytes | bytearray | memoryview

INT32_MIN, INT32_MAX = -(2**31), 2**31 - 1
INT64_MIN, INT64_MAX = -(2**63), 2**63 - 1
_UINT32_MAX, _UINT32_BYTES_MAX = 2**32 - 1, 5
_UINT64_MAX, _UINT64_BYTES_MAX = 2**64 - 1, 10


def read_varint(buffer: ReadableBuffer, offset: int) -> tuple[int, int]:
    """Read a zigzag value of up to 32 bits."""
    # Lengths and deltas, nearly always one or two bytes: worth a path of their own.
    try:
        low = buffer[offset]
        if low < 0x80:
            return (low >> 1) ^ -(low & 1), offset + 1
        high = buffer[offset + 1]
        if high < 0x80:
            return ((low & 0x7F) >> 1 | high << 6) ^ -(low & 1), offset + 2
    except IndexError:
        raise _cut_short() from None
    raw, offset = _read(buffer, offset, _UINT32_BYTES_MAX, _UINT32_MAX)
    return (raw >> 1) ^ -(raw & 1), offset


def read_varlong(buffer: ReadableBuffer, offset: int) -> tuple[int, int]:
    """Read a zigzag value of up to 64 bits."""
    raw, offset = _read(buffer, offset, _UINT64_BYTES_MAX, _UINT64_MAX)
    return (raw >> 1) ^ -(raw & 1), offset


def write_varlong(out: bytearray, value: int) -> None:
    """Append a signed value of up to 64 bits, zigzag-coded."""
    if -64 <= value < 64:
        out.append((value << 1) ^ (value >> 63))
        return
    assert INT64_MIN <= value <= INT64_MAX, value
    _write(out, (value << 1) ^ (value >> 63))


def varlong_bytes(value: int) -> bytes:
    """A signed value of up to 64 bits, zigzag-coded; one of 32 bits looks the same as a varint."""
    if 0 <= value < len(VARLONGS):
        return VARLONGS[value]
    out = bytearray()
    write_varlong(out, value)
    return bytes(out)


def _read(buffer: ReadableBuffer, offset: int, bytes_max: int, value_max: int) -> tuple[int, int]:
    value = shift = 0
    try:
        for position in range(offset, offset + bytes_max):
            byte = buffer[position]
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                if value > value_max:
                    break
                return value, position + 1
            shift += 7
    except IndexError:
        raise _cut_short() from None
    raise CorruptRecords("A variable-length integer is longer than its type.")


def _cut_short() -> CorruptRecords:
    return CorruptRecords("The buffer ends inside a variable-length integer.")


def _write(out: bytearray, value: int) -> None:
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)


def _coded(value: int) -> bytes:
    out = bytearray()
    _write(out, value << 1)
    return bytes(out)


# Lengths and deltas of ordinary records, made once: writers of batches are mostly busy with these.
VARLONGS: Final = tuple(_coded(value) for value in range(2048))
