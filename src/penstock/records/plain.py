"""Batches of bare values: no keys, one timestamp, the same headers. The quick way for those who send many at once.

What stands around a value is the same for all of one length but for its number, so it is made once for each length, and
read by comparing it with what it should be. The bytes are those of ``encode_batch``, and whatever is not
of this form is left to ``decode_records``. Format: docs/formats/record-batch.md.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from penstock.errors import CorruptRecords, InvalidRecord
from penstock.records.batch import Headers, assemble_batch, encode_headers, open_batch, read_headers
from penstock.records.compression import Codec
from penstock.records.header import MAGIC, BatchHeader
from penstock.records.varint import (
    INT64_MAX,
    INT64_MIN,
    VARLONGS,
    ReadableBuffer,
    read_varint,
    read_varlong,
    varlong_bytes,
)

_NO_HEADERS: Final = b"\0"
_FIRST: Final = b"\0\0"  # attributes, of which the format defines none, and a timestamp that is the batch's own
_NO_KEY: Final = b"\1"


def encode_values(
    values: Sequence[bytes],
    timestamp: int,
    *,
    headers: Headers = (),
    codec: Codec = Codec.NONE,
    producer_id: int = -1,
    producer_epoch: int = -1,
    base_sequence: int = -1,
) -> bytearray:
    """Make a batch of these values, numbered from 0, all of one timestamp and with the same headers."""
    if not values:
        raise InvalidRecord("A batch needs at least one record.")
    header = BatchHeader(
        base_offset=0,
        length=0,
        leader_epoch=-1,
        magic=MAGIC,
        crc=0,
        attributes=int(codec),
        last_offset_delta=len(values) - 1,
        base_timestamp=timestamp,
        max_timestamp=timestamp,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_sequence=base_sequence,
        count=len(values),
    )
    return assemble_batch(header, _encode(values, encode_headers(headers) if headers else _NO_HEADERS))


def _encode(values: Sequence[bytes], tail: bytes) -> list[bytes]:
    count = len(values)
    heads: list[bytes] = []
    append = heads.append
    begin = 0
    for end in (64, 8192, 1 << 20, 1 << 27, 1 << 31):  # numbers below each of these take one byte more than before
        numbers = _numbers(begin, min(end, count))
        made: dict[int, tuple[bytes, bytes]] = {}
        get = made.get
        for number, value in zip(numbers, values[begin:end], strict=True):
            length = len(value)
            around = get(length)
            if around is None:
                size = varlong_bytes(length)
                whole = len(_FIRST) + len(number) + len(_NO_KEY) + len(size) + length + len(tail)
                # The end of the record before this one comes first, so that there are two pieces a record, not three.
                around = made[length] = (tail + varlong_bytes(whole) + _FIRST, _NO_KEY + size)
            append(around[0] + number + around[1])
        begin = end
        if begin >= count:
            break
    heads[0] = heads[0][len(tail) :]
    heads.append(tail)
    parts = [b""] * (2 * count + 1)
    parts[::2] = heads
    parts[1::2] = values
    return parts


def decode_values(buffer: ReadableBuffer) -> list[bytes] | None:
    """The values of the one batch in ``buffer``, neighbours up to its last offset.

    None if there is a key, a missing value or a gap, or if headers differ: then only ``decode_records`` tells all.
    """
    header, data = open_batch(buffer)
    count = header.count
    lead = header.last_offset_delta + 1 - count  # a part of a batch begins later than its first offset says
    if lead < 0 or header.has_delete_horizon:
        return None
    values: list[bytes] = []
    append = values.append
    position, total = 0, len(data)
    before = after = tail = b""
    length = 0
    for number in _numbers(lead, lead + count):
        head = before + number + after
        start = position + len(head)
        end = start + length
        if not before or data[position:start] != head or not data.startswith(tail, end):
            found = _head_at(data, position, number, header.base_timestamp)
            if found is None or (tail and found[3] != tail):
                return None
            before, after, length, tail = found
            start = position + len(before) + len(number) + len(after)
            end = start + length
        append(data[start:end])
        position = end + len(tail)
    return values if position == total else None


def _numbers(begin: int, end: int) -> Iterable[bytes]:
    return VARLONGS[begin:end] if end <= len(VARLONGS) else map(varlong_bytes, range(begin, end))


def _head_at(data: bytes, position: int, number: bytes, base_timestamp: int) -> tuple[bytes, bytes, int, bytes] | None:
    """What stands before and after the number of the record at ``position``, its value's length, and its headers.

    None if it is not bare, not that number, or broken.
    """
    try:
        size, at = read_varint(data, position)
        end = at + size
        later, at = read_varlong(data, at + 1)
        if not INT64_MIN <= base_timestamp + later <= INT64_MAX or not data.startswith(number + _NO_KEY, at):
            return None
        before = data[position:at]
        at += len(number)
        length, start = read_varint(data, at + 1)
        if length < 0 or start + length >= end or read_headers(data, start + length, end)[1] != end:
            return None
    except (IndexError, CorruptRecords):
        return None
    return before, data[at:start], length, data[start + length : end]
