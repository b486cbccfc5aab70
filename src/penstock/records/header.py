"""The 61 bytes in front of every batch: reading, judging and patching them without looking at the records.

This is the hot path. A batch from a producer is judged once (``accept_batch``), given its place in the log
(``assign``) and from then on only moved. The CRC covers everything from the attributes on, so that base offset and
leader epoch can be patched without it. Format: docs/formats/record-batch.md.
"""

from __future__ import annotations

from collections.abc import Iterator
from struct import Struct
from typing import Final, NamedTuple

from crc32c import crc32c

from penstock.errors import CorruptRecords, InvalidRecord, InvalidTimestamp, UnsupportedCompression, UnsupportedFormat
from penstock.records.compression import Codec, decompressed_limit
from penstock.records.varint import INT32_MAX, ReadableBuffer

HEADER: Final = Struct(">qiibIhiqqqhii")
HEADER_BYTES: Final = HEADER.size
MAGIC: Final = 2

NO_TIMESTAMP: Final = -1
NO_SEQUENCE: Final = -1

# The batch's length field counts what follows it: offset (8) and length (4) are left out.
LENGTH_EXCLUDES: Final = 12
_LENGTH_MIN: Final = HEADER_BYTES - LENGTH_EXCLUDES

CODEC_MASK: Final = 0b111
APPEND_TIME_BIT: Final = 1 << 3
TRANSACTIONAL_BIT: Final = 1 << 4
CONTROL_BIT: Final = 1 << 5
DELETE_HORIZON_BIT: Final = 1 << 6
_BROKER_BITS: Final = CONTROL_BIT | DELETE_HORIZON_BIT

# Length, attributes, timestamp delta, offset delta, key length, value length and header count: a byte each.
RECORD_BYTES_MIN: Final = 7

_LEADER_EPOCH_AT: Final = 12
_MAGIC_AT: Final = 16
_CRC_AT: Final = 17
_CRC_FROM: Final = 21
_MAX_TIMESTAMP_AT: Final = 35
_INT64: Final = Struct(">q")
_INT32: Final = Struct(">i")
_INT16: Final = Struct(">h")
_UINT32: Final = Struct(">I")
_TRANSACTION: Final = Struct(">h20xqh")  # attributes, producer id, producer epoch


class BatchHeader(NamedTuple):
    """A batch's header as it stands on disk and on the wire."""

    base_offset: int
    length: int
    leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    # Named after the format's field; it hides tuple.count, which no caller needs.
    count: int  # type: ignore[assignment]

    @property
    def size(self) -> int:
        """Bytes of the whole batch, header included."""
        return self.length + LENGTH_EXCLUDES

    @property
    def last_offset(self) -> int:
        return self.base_offset + self.last_offset_delta

    @property
    def next_offset(self) -> int:
        return self.base_offset + self.last_offset_delta + 1

    @property
    def last_sequence(self) -> int:
        """The sequence number of the last record; sequences go on at 0 after 2**31 - 1."""
        if self.base_sequence < 0:
            return NO_SEQUENCE
        return (self.base_sequence + self.last_offset_delta) & INT32_MAX

    @property
    def codec(self) -> Codec:
        return _codec_of(self.attributes)

    @property
    def is_transactional(self) -> bool:
        return self.attributes & TRANSACTIONAL_BIT != 0

    @property
    def is_control(self) -> bool:
        return self.attributes & CONTROL_BIT != 0

    @property
    def is_gap(self) -> bool:
        """Whether this stands for records that are kept elsewhere: a control batch that counts as its producer's."""
        return self.attributes & CONTROL_BIT != 0 and self.base_sequence >= 0

    @property
    def is_idempotent(self) -> bool:
        return self.producer_id >= 0

    @property
    def uses_append_time(self) -> bool:
        return self.attributes & APPEND_TIME_BIT != 0

    @property
    def has_delete_horizon(self) -> bool:
        """Whether compaction has put the time to drop tombstones into ``base_timestamp``."""
        return self.attributes & DELETE_HORIZON_BIT != 0


def parse_header(buffer: ReadableBuffer, position: int = 0) -> BatchHeader:
    """Read the header at ``position`` as it is, judging nothing."""
    if len(buffer) - position < HEADER_BYTES:
        raise CorruptRecords(f"A batch header takes {HEADER_BYTES} bytes; {len(buffer) - position} are left.")
    # Past BatchHeader's own constructor, which takes a third longer: the Struct has the number of fields right.
    return tuple.__new__(BatchHeader, HEADER.unpack_from(buffer, position))


def check_batch(buffer: memoryview) -> BatchHeader:
    """Vouch for a stored batch that fills ``buffer``; ``count`` may be 0 where compaction removed every record."""
    header = parse_header(buffer)
    if header.magic != MAGIC:
        raise CorruptRecords(f"A stored batch has format version {header.magic} instead of {MAGIC}.")
    if header.length + LENGTH_EXCLUDES != len(buffer):
        raise CorruptRecords(f"A batch claims {header.size} bytes and has {len(buffer)}.")
    if crc32c(buffer[_CRC_FROM:]) != header.crc:
        raise CorruptRecords("A stored batch fails its checksum.")
    if header.last_offset_delta < 0 or not 0 <= header.count <= header.last_offset_delta + 1:
        raise CorruptRecords(f"A batch over {header.last_offset_delta + 1} offsets claims {header.count} records.")
    if header.base_offset < 0:
        raise CorruptRecords(f"A stored batch begins at offset {header.base_offset}.")
    return header


def accept_batch(buffer: memoryview, *, is_internal: bool = False) -> BatchHeader:
    """Judge what a producer sent for one partition: exactly one batch that may go into a log.

    Records are not looked at, so compressed batches stay compressed. Only what the broker itself writes into a
    transaction (``is_internal``) may go without sequence numbers: it never sends anything twice.
    """
    if len(buffer) < HEADER_BYTES or buffer[_MAGIC_AT] != MAGIC:
        raise _not_a_batch(buffer)
    header = parse_header(buffer)
    # Local names, because each look at a field through the tuple costs about four times as much.
    _, length, _, _, crc, attributes, last_delta, first_ms, max_ms, producer_id, epoch, sequence, count = header
    if length + LENGTH_EXCLUDES != len(buffer):
        raise _wrong_size(length + LENGTH_EXCLUDES, len(buffer))
    if crc32c(buffer[_CRC_FROM:]) != crc:
        raise CorruptRecords("A batch fails its checksum; send it again.")
    if attributes & _BROKER_BITS:
        raise InvalidRecord("Only the broker writes control batches and delete horizons.")
    if attributes & APPEND_TIME_BIT:
        raise InvalidTimestamp("Only the broker stamps append time; send the batch with create time.")
    if first_ms < NO_TIMESTAMP or (max_ms < first_ms and max_ms != NO_TIMESTAMP):
        raise InvalidTimestamp(f"Timestamps {first_ms} to {max_ms} make no range.")
    if count != last_delta + 1 or count <= 0:
        raise InvalidRecord(f"A batch of {count} records has last offset delta {last_delta}.")
    # Offsets are given out by count, so a false one would burn them.
    if count > _records_max(length - _LENGTH_MIN, attributes & CODEC_MASK):
        raise InvalidRecord(f"A batch of {length + LENGTH_EXCLUDES} bytes has no room for {count} records.")
    if producer_id >= 0:
        if (sequence < 0 and not (is_internal and sequence == NO_SEQUENCE)) or epoch < 0:
            raise InvalidRecord("A batch with a producer id needs an epoch and a sequence number.")
    elif attributes & TRANSACTIONAL_BIT:
        raise InvalidRecord("A transactional batch needs a producer id.")
    return header


def peek_transaction(buffer: ReadableBuffer) -> tuple[int, int] | None:
    """The producer id and epoch that a transactional batch claims, None for any other; judges nothing.

    For a decision to be taken before the batch is accepted. What is too short for a batch is none.
    """
    if len(buffer) < HEADER_BYTES:
        return None
    attributes, producer_id, epoch = _TRANSACTION.unpack_from(buffer, _CRC_FROM)
    return (producer_id, epoch) if attributes & TRANSACTIONAL_BIT else None


def peek_producer(buffer: ReadableBuffer) -> int:
    """The producer id that a batch claims, -1 if it has none or is too short for a batch; judges nothing."""
    if len(buffer) < HEADER_BYTES:
        return -1
    producer_id: int = _TRANSACTION.unpack_from(buffer, _CRC_FROM)[1]
    return producer_id


def assign(buffer: memoryview | bytearray, base_offset: int, leader_epoch: int) -> None:
    """Give a batch its place in the log, in the buffer itself; the CRC covers neither field and stays."""
    _INT64.pack_into(buffer, 0, base_offset)
    _INT32.pack_into(buffer, _LEADER_EPOCH_AT, leader_epoch)


def stamp_append_time(buffer: memoryview | bytearray, now_ms: int) -> None:
    """Make ``now_ms`` the timestamp of every record, in the buffer itself, without decompressing.

    The base timestamp and the records' deltas stay as sent: readers ignore them once the append-time bit is set.
    """
    (attributes,) = _INT16.unpack_from(buffer, _CRC_FROM)
    _INT16.pack_into(buffer, _CRC_FROM, attributes | APPEND_TIME_BIT)
    _INT64.pack_into(buffer, _MAX_TIMESTAMP_AT, now_ms)
    seal(buffer)


def seal(buffer: memoryview | bytearray) -> None:
    """Write the CRC that the batch's bytes call for."""
    with memoryview(buffer) as view:
        _UINT32.pack_into(buffer, _CRC_AT, crc32c(view[_CRC_FROM:]))


def iter_batches(buffer: ReadableBuffer, position: int = 0) -> Iterator[tuple[int, BatchHeader]]:
    """Yield ``(position, header)`` of each complete batch, stopping without complaint at a partial one."""
    end = len(buffer)
    while end - position >= HEADER_BYTES:
        header = parse_header(buffer, position)
        if header.length < _LENGTH_MIN or header.magic != MAGIC:
            raise CorruptRecords(f"There is no batch at byte {position}.")
        if header.size > end - position:
            return
        yield position, header
        position += header.size


_CODECS: Final = tuple(Codec)


def _codec_of(attributes: int) -> Codec:
    number = attributes & CODEC_MASK
    if number >= len(_CODECS):
        raise UnsupportedCompression(f"Compression codec {number} is not known; use gzip, snappy, lz4 or zstd.")
    return _CODECS[number]


def _records_max(payload_bytes: int, codec: int) -> int:
    """Return how many records the payload can hold; compressed, as many as what it may become can."""
    if codec == 0:
        return payload_bytes // RECORD_BYTES_MIN
    _codec_of(codec)
    return decompressed_limit(payload_bytes) // RECORD_BYTES_MIN if payload_bytes else 0


def _not_a_batch(buffer: memoryview) -> UnsupportedFormat | CorruptRecords:
    # Older formats have the version in the same place, but may be shorter than our header.
    if len(buffer) <= _MAGIC_AT:
        return CorruptRecords(f"{len(buffer)} bytes are too few for a batch.")
    magic = buffer[_MAGIC_AT]
    if magic < MAGIC:
        return UnsupportedFormat(f"Record format {magic} is too old; use a client that writes version {MAGIC} batches.")
    return CorruptRecords(f"{len(buffer)} bytes of record format {magic} are no batch.")


def _wrong_size(claimed: int, actual: int) -> InvalidRecord | CorruptRecords:
    if HEADER_BYTES <= claimed < actual:
        return InvalidRecord("Send exactly one batch for each partition.")
    return CorruptRecords(f"A batch claims {claimed} bytes and has {actual}.")
