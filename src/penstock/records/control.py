"""Control batches, which only the broker writes and which readers step over: markers and gaps.

A *marker* ends a transaction on a partition. It is a transactional batch of one record, whose key tells commit from
abort and whose value names the coordinator's epoch. It carries the producer's id and epoch but no sequence.

A *gap* stands for a producer's batch whose records are all kept elsewhere. It has the offsets, the sequence numbers and
the producer of that batch, so that the partition goes on to recognise what is sent twice. It holds one control record,
at its last offset. A batch without any record would do for most consumers, but librdkafka takes a response without a
record for a sign that its fetch size is too small, doubles that, and reports MSG_SIZE_TOO_LARGE in the end; a control
record is stepped over by all of them. Format: docs/formats/record-batch.md.
"""

from __future__ import annotations

from struct import Struct
from typing import Final, NamedTuple

from penstock.errors import CorruptRecords
from penstock.records.batch import Record, assemble_batch, decode_records, encode_batch
from penstock.records.header import CONTROL_BIT, BatchHeader
from penstock.records.varint import ReadableBuffer, varlong_bytes

_KEY: Final = Struct(">hh")  # version, type
_VALUE: Final = Struct(">hi")  # version, coordinator epoch
_VERSION: Final = 0
_ABORT: Final = 0
_COMMIT: Final = 1


class Marker(NamedTuple):
    """How a transaction ended, and in which epoch of its coordinator that was decided."""

    is_commit: bool
    coordinator_epoch: int

    @property
    def name(self) -> str:
        return "commit" if self.is_commit else "abort"


def encode_marker(
    producer_id: int, producer_epoch: int, *, is_commit: bool, coordinator_epoch: int, timestamp_ms: int
) -> bytearray:
    """Make the batch that ends a producer's transaction on one partition."""
    key = _KEY.pack(_VERSION, _COMMIT if is_commit else _ABORT)
    value = _VALUE.pack(_VERSION, coordinator_epoch)
    return encode_batch(
        [Record(0, timestamp_ms, key, value)],
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        is_transactional=True,
        is_control=True,
    )


def read_marker(batch: ReadableBuffer) -> Marker:
    """Read a control batch as the end of a transaction; `CorruptRecords` if it is something else.

    Later versions may append fields to key and value, so what follows the known ones is left alone.
    """
    records = decode_records(batch)
    if len(records) != 1 or len(records[0].key or b"") < _KEY.size or len(records[0].value or b"") < _VALUE.size:
        raise CorruptRecords("A control batch holds no marker.")
    _, kind = _KEY.unpack_from(records[0].key or b"")
    _, coordinator_epoch = _VALUE.unpack_from(records[0].value or b"")
    if kind not in {_ABORT, _COMMIT}:
        raise CorruptRecords(f"A control record has type {kind}, which ends no transaction.")
    return Marker(kind == _COMMIT, coordinator_epoch)


_GAP_KEY: Final = Struct(">hh").pack(0, 0x5053)  # version, and a type that no client gives a meaning to
_GAP_VALUE: Final = Struct(">hi").pack(0, -1)  # as markers have it: some clients read it of every control record
_NO_HEADERS: Final = b"\0"


def encode_gap(header: BatchHeader) -> bytearray:
    """Make the batch that stands for the one with this header."""
    delta = header.last_offset_delta
    record = b"\0\0" + varlong_bytes(delta)  # attributes, timestamp, offset
    for part in (_GAP_KEY, _GAP_VALUE):
        record += varlong_bytes(len(part)) + part
    record += _NO_HEADERS
    gap = header._replace(attributes=CONTROL_BIT, count=1, base_timestamp=header.max_timestamp)
    return assemble_batch(gap, (varlong_bytes(len(record)), record))
