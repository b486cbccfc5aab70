"""Markers: the control batches with which a transaction ends on a partition.

A marker is a batch of one record that is transactional and a control batch. Its key tells commit from abort, its value
names the coordinator's epoch. It carries the producer's id and epoch but no sequence. Only the broker writes markers;
readers step over them. Format: docs/formats/record-batch.md.
"""

from __future__ import annotations

from struct import Struct
from typing import Final, NamedTuple

from penstock.errors import CorruptRecords
from penstock.records.batch import Record, decode_records, encode_batch
from penstock.records.varint import ReadableBuffer

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
