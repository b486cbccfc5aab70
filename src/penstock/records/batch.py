"""Records in and out of a batch, for the features that must look inside one.

The stream path never comes here: it moves batches as they are. What comes here (queues with lanes, compaction, time
lookup, the doors that speak JSON, the client) may be handed hostile bytes, so every count and length is held against
the bytes that are left before it is believed. The CRC is not checked again; ``check_batch`` and ``accept_batch`` do.
Format: docs/formats/record-batch.md.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from operator import itemgetter
from typing import Final, NamedTuple

from penstock.errors import CorruptRecords, InvalidRecord, InvalidTimestamp, MessageTooLarge
from penstock.records.compression import DECOMPRESSED_BYTES_MAX, Codec, compress, decompress, decompressed_limit
from penstock.records.header import (
    APPEND_TIME_BIT,
    CODEC_MASK,
    CONTROL_BIT,
    HEADER,
    HEADER_BYTES,
    LENGTH_EXCLUDES,
    MAGIC,
    NO_TIMESTAMP,
    RECORD_BYTES_MIN,
    TRANSACTIONAL_BIT,
    BatchHeader,
    iter_batches,
    parse_header,
    seal,
)
from penstock.records.varint import (
    INT32_MAX,
    INT64_MAX,
    INT64_MIN,
    VARLONGS,
    ReadableBuffer,
    read_varint,
    read_varlong,
    varlong_bytes,
)

Headers = tuple[tuple[str, bytes | None], ...]

_TIMESTAMP: Final = itemgetter(1)
_NULL_BYTE: Final = 1
# Headers of a batch: as many as these, or one for so many of its bytes. They cost far more than the two bytes that the
# smallest of them take.
_HEADERS_FREE: Final = 100_000
_BYTES_FOR_HEADER: Final = 8
# As much as is decoded within a few milliseconds, even if it is all records or headers of the smallest kind.
_HEADER_BYTES_AT_LEAST: Final = 16
_QUICK_BYTES: Final = 64 * 1024
_NULL: Final = bytes((_NULL_BYTE,))  # the length of what is not there, -1


class Record(NamedTuple):
    """One message at its place in a log; a tuple, because these are made by the million."""

    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: Headers = ()


class TimestampedOffset(NamedTuple):
    """Where a search by time ended."""

    offset: int
    timestamp: int


def decode_records(buffer: ReadableBuffer, limit_bytes: int = DECOMPRESSED_BYTES_MAX) -> list[Record]:
    """Return the records of the one batch in ``buffer``, with absolute offsets and timestamps.

    `MessageTooLarge` if they take more than ``limit_bytes`` once decompressed, or than so small a batch may become.
    """
    header, data = open_batch(buffer, limit_bytes)
    try:
        return [record for record, _ in _walk_trusting(header, data)]
    except IndexError:
        raise _cut_short() from None


def is_quick_to_decode(data: ReadableBuffer) -> bool:
    """Whether batches, one behind the other, are small and not compressed: what is compressed may be anything."""
    return len(data) <= _QUICK_BYTES and all(header.codec is Codec.NONE for _, header in iter_batches(data))


def size_of_headers(headers: Headers) -> int:
    """What headers weigh, about, where memory counts: even one without a name and a value takes some."""
    return sum(_HEADER_BYTES_AT_LEAST + len(name) + len(value or b"") for name, value in headers)


def find_timestamp(buffer: ReadableBuffer, timestamp_ms: int) -> TimestampedOffset | None:
    """Return the first record of the one batch in ``buffer`` that is not older than ``timestamp_ms``."""
    if NO_TIMESTAMP < parse_header(buffer).max_timestamp < timestamp_ms:
        return None
    header, data = open_batch(buffer)
    for record, _ in _walk(header, data):
        if record.timestamp >= timestamp_ms:
            return TimestampedOffset(record.offset, record.timestamp)
    return None


def encode_batch(
    records: Sequence[Record],
    *,
    codec: Codec = Codec.NONE,
    leader_epoch: int = -1,
    producer_id: int = -1,
    producer_epoch: int = -1,
    base_sequence: int = -1,
    is_transactional: bool = False,
    is_control: bool = False,
    append_time_ms: int | None = None,
) -> bytearray:
    """Make a batch that begins at the first record's offset; offsets must rise and may leave gaps."""
    if not records:
        raise InvalidRecord("A batch needs at least one record.")
    base_offset, base_timestamp = records[0].offset, records[0].timestamp
    max_timestamp = max(map(_TIMESTAMP, records)) if append_time_ms is None else append_time_ms
    attributes = (
        codec
        | (TRANSACTIONAL_BIT if is_transactional else 0)
        | (CONTROL_BIT if is_control else 0)
        | (APPEND_TIME_BIT if append_time_ms is not None else 0)
    )
    header = BatchHeader(
        base_offset=base_offset,
        length=0,
        leader_epoch=leader_epoch,
        magic=MAGIC,
        crc=0,
        attributes=attributes,
        last_offset_delta=records[-1].offset - base_offset,
        base_timestamp=base_timestamp,
        max_timestamp=max_timestamp,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_sequence=base_sequence,
        count=len(records),
    )
    return assemble_batch(header, _encode_records(records))


def filter_batch(buffer: ReadableBuffer, keep: Callable[[Record], bool]) -> bytearray | None:
    """Return the one batch in ``buffer`` with only the records that ``keep`` wants; None when it wants all of them.

    What remains is copied byte for byte, and offsets, sequences and producer of the batch stay, so that readers see a
    gap and idempotence still works. With no record left it is a bare header, uncompressed as Kafka writes it.
    """
    header, data = open_batch(buffer)
    kept = bytearray()
    count = start = 0
    max_timestamp = INT64_MIN
    for record, end in _walk(header, data):
        if keep(record):
            kept += data[start:end]
            count += 1
            max_timestamp = max(max_timestamp, record.timestamp)
        start = end
    if count == header.count:
        return None
    if count == 0:
        return assemble_batch(header._replace(count=0, attributes=header.attributes & ~CODEC_MASK), ())
    return assemble_batch(header._replace(count=count, max_timestamp=max_timestamp), (kept,))


def open_batch(buffer: ReadableBuffer, limit_bytes: int = DECOMPRESSED_BYTES_MAX) -> tuple[BatchHeader, bytes]:
    """Return a batch's header and its records, decompressed, once the two can agree."""
    header = parse_header(buffer)
    if header.magic != MAGIC or header.size != len(buffer):
        raise CorruptRecords(f"There is no batch of {len(buffer)} bytes here.")
    if header.count == 0:
        return header, b""
    with memoryview(buffer) as view:
        limit = DECOMPRESSED_BYTES_MAX
        if header.codec is not Codec.NONE:
            limit = min(limit_bytes, decompressed_limit(len(view)))
        data = decompress(header.codec, view[HEADER_BYTES:], limit)
    if not 0 < header.count <= len(data) // RECORD_BYTES_MIN:
        raise CorruptRecords(f"A batch claims {header.count} records in {len(data)} bytes.")
    return header, data


def _walk(header: BatchHeader, data: bytes) -> Iterator[tuple[Record, int]]:
    """Yield each record and where its bytes end."""
    try:
        yield from _walk_trusting(header, data)
    except IndexError:
        raise _cut_short() from None


def _cut_short() -> CorruptRecords:
    return CorruptRecords("The buffer ends inside a record.")


def _walk_trusting(header: BatchHeader, data: bytes) -> Iterator[tuple[Record, int]]:
    """Yield each record and where its bytes end; past the end of ``data`` it raises IndexError.

    Slices are not checked one by one: a slice that reached past the record leaves ``position`` past its end. The
    commonest forms of every number, one or two bytes, are read in place: calls would take most of the time.
    """
    base_offset, base_timestamp = header.base_offset, header.base_timestamp
    append_time = header.max_timestamp if header.uses_append_time else None
    previous_delta, last_delta = -1, header.last_offset_delta
    new, total = tuple.__new__, len(data)
    headers_left = max(_HEADERS_FREE, total // _BYTES_FOR_HEADER)
    position = 0
    for _ in range(header.count):
        if (low := data[position]) >= 0x80 and (high := data[position + 1]) < 0x80:
            length, position = ((low & 0x7F) >> 1 | high << 6) ^ -(low & 1), position + 2
        else:
            length, position = read_varint(data, position)
        end = position + length
        if length < RECORD_BYTES_MIN - 1 or end > total:
            raise CorruptRecords("A record's length does not fit its batch.")
        # The next byte holds attributes, of which the format defines none.
        if (low := data[position + 1]) < 0x80:
            timestamp, position = base_timestamp + ((low >> 1) ^ -(low & 1)), position + 2
        else:
            timestamp, position = read_varlong(data, position + 1)
            timestamp += base_timestamp
        if (low := data[position]) < 0x80:
            delta, position = (low >> 1) ^ -(low & 1), position + 1
        elif (high := data[position + 1]) < 0x80:
            delta, position = ((low & 0x7F) >> 1 | high << 6) ^ -(low & 1), position + 2
        else:
            delta, position = read_varint(data, position)
        if not previous_delta < delta <= last_delta or not INT64_MIN <= timestamp <= INT64_MAX:
            raise CorruptRecords("A record is out of the order or the range of its batch.")
        previous_delta = delta
        key = None
        if data[position] == _NULL_BYTE:
            position += 1
        else:
            key, position = _read_bytes(data, position)
        value, position = _read_bytes(data, position)
        headers: Headers = ()
        if position < end and data[position] == 0:
            position += 1
        else:
            headers, position = read_headers(data, position, end, headers_left)
            headers_left -= len(headers)
        if position != end:
            raise CorruptRecords("A record's fields do not add up to its length.")
        yield (
            new(Record, (base_offset + delta, timestamp if append_time is None else append_time, key, value, headers)),
            end,
        )
    if position != total:
        raise CorruptRecords("Bytes are left after the last record of a batch.")


def _read_bytes(data: bytes, position: int) -> tuple[bytes | None, int]:
    if (low := data[position]) & 0x81 == 0:
        position += 1
        length = low >> 1
        return data[position : position + length], position + length
    if low & 1 == 0 and (high := data[position + 1]) < 0x80:
        position += 2
        length = (low & 0x7F) >> 1 | high << 6
        return data[position : position + length], position + length
    length, position = read_varint(data, position)
    if length >= 0:
        return data[position : position + length], position + length
    if length == -1:
        return None, position
    raise CorruptRecords(f"A field has length {length}.")


def read_headers(data: bytes, position: int, end: int, count_max: int = _HEADERS_FREE) -> tuple[Headers, int]:
    """The headers at ``position`` of a record that ends at ``end``, and where they end."""
    count, position = read_varint(data, position)
    # A header takes two bytes at least: its name's length and its value's.
    if not 0 <= count <= (end - position) // 2:
        raise CorruptRecords(f"A record claims {count} headers in {end - position} bytes.")
    if count > count_max:
        raise MessageTooLarge("A batch has more headers than its size allows; send fewer headers in smaller batches.")
    headers = []
    for _ in range(count):
        name, position = _read_bytes(data, position)
        if name is None:
            raise CorruptRecords("A header has no name.")
        value, position = _read_bytes(data, position)
        # Kafka never checks names; what is not UTF-8 reads as it does in Java.
        headers.append((name.decode("utf-8", "replace"), value))
    return tuple(headers), position


def _encode_records(records: Sequence[Record]) -> list[bytes | bytearray]:
    base_offset, base_timestamp = records[0].offset, records[0].timestamp
    previous = base_offset - 1
    parts: list[bytes | bytearray] = []
    table, size = VARLONGS, len(VARLONGS)  # looked up here, because calls would take most of the time
    for offset, timestamp, key, value, headers in records:
        delta, later = offset - base_offset, timestamp - base_timestamp
        if offset <= previous or delta > INT32_MAX:
            raise InvalidRecord(f"Offset {offset} cannot follow {previous} in a batch that begins at {base_offset}.")
        previous = offset
        if not (INT64_MIN <= timestamp <= INT64_MAX and INT64_MIN <= later <= INT64_MAX):
            raise InvalidTimestamp(f"Timestamps {base_timestamp} and {timestamp} do not fit one batch.")
        # The first byte is the attributes, of which the format defines none. The value is not copied before the join.
        head = b"\0" + (table[later] if 0 <= later < size else varlong_bytes(later))
        head += table[delta] if delta < size else varlong_bytes(delta)
        if key is None:
            head += _NULL
        else:
            head += varlong_bytes(len(key)) + key
        if value is None:
            head += _NULL
            value = b""
        else:
            length = len(value)
            head += table[length] if length < size else varlong_bytes(length)
        tail = encode_headers(headers) if headers else b"\0"
        length = len(head) + len(value) + len(tail)
        parts += (table[length] if length < size else varlong_bytes(length), head, value, tail)
    return parts


def encode_headers(headers: Headers) -> bytes:
    """How headers stand at the end of a record."""
    out = varlong_bytes(len(headers))
    for name, value in headers:
        out += _encode_name(name) + (_NULL if value is None else varlong_bytes(len(value)) + value)
    return out


@lru_cache(maxsize=1024)
def _encode_name(name: str) -> bytes:
    """A header's name behind its length. Few names are used again and again."""
    try:
        encoded = name.encode()
    except UnicodeEncodeError:
        raise InvalidRecord(f"Header name {name!r} is not valid Unicode.") from None
    return varlong_bytes(len(encoded)) + encoded


def recompress_batch(buffer: ReadableBuffer, codec: Codec, level: int | None = None) -> bytearray:
    """Return the one batch in ``buffer`` with its records compressed by another codec, and nothing else changed."""
    header, data = open_batch(buffer)
    attributes = header.attributes & ~CODEC_MASK | codec
    return assemble_batch(header._replace(attributes=attributes), (data,) if header.count else (), level)


def assemble_batch(header: BatchHeader, parts: Sequence[ReadableBuffer], level: int | None = None) -> bytearray:
    """Put a batch together from the pieces of its records, not yet compressed, filling in its length and CRC."""
    if header.codec is not Codec.NONE and parts:
        parts = (compress(header.codec, b"".join(parts), level),)
    length = HEADER_BYTES - LENGTH_EXCLUDES + sum(map(len, parts))
    if length > INT32_MAX:
        raise MessageTooLarge(f"A batch holds 2 GiB; these records take {length:,} bytes.")
    out = bytearray().join((HEADER.pack(*header._replace(length=length)), *parts))
    seal(out)
    return out


def complete_batch(header: BatchHeader, batch: memoryview) -> None:
    """Write the header of a batch into the room that was left for it before its records, with its length and CRC."""
    assert header.codec is Codec.NONE, "what is compressed is put together"
    HEADER.pack_into(batch, 0, *header._replace(length=len(batch) - LENGTH_EXCLUDES))
    seal(batch)


def positions_of(header: BatchHeader, data: bytes, begin: int = 0) -> array[int]:
    """Where each record begins, and where the last one ends; ``data`` holds them from ``begin`` on, not compressed."""
    positions = array("I", [begin])
    append = positions.append
    position, total = begin, len(data)
    try:
        while position < total:
            if (low := data[position]) < 0x80:
                position += 1 + (low >> 1)
            elif (high := data[position + 1]) < 0x80:
                position += 2 + ((low & 0x7F) >> 1 | high << 6)
            else:
                length, position = read_varint(data, position)
                position += max(length, 0)
            append(position)
    except IndexError:
        raise CorruptRecords("The buffer ends inside a record.") from None
    if position != total or len(positions) != header.count + 1:
        raise CorruptRecords(f"A batch claims {header.count} records and has {len(positions) - 1}.")
    return positions


def slice_batch(
    header: BatchHeader, data: bytes, positions: Sequence[int], spans: Sequence[tuple[int, int]]
) -> bytearray:
    """The records between these offsets, first and last, of a batch that has no gaps; spans rise and are not empty.

    They are copied by their bytes: nothing is decoded and encoded again. The new batch keeps the first offset and the
    base timestamp of the whole one, so a record's own numbers stay true; what was left out is a gap.
    """
    base = header.base_offset
    view = memoryview(data)
    parts = [view[positions[first - base] : positions[last - base + 1]] for first, last in spans]
    part = header._replace(
        attributes=header.attributes & APPEND_TIME_BIT,
        last_offset_delta=spans[-1][1] - base,
        producer_id=-1,
        producer_epoch=-1,
        base_sequence=-1,
        count=sum(last - first + 1 for first, last in spans),
    )
    return assemble_batch(part, parts)
