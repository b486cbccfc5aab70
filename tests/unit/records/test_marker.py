"""Markers as Kafka's clients read them."""

from __future__ import annotations

import pytest
from aiokafka.record.default_records import DefaultRecordBatch as AiokafkaBatch
from kafka.record.default_records import DefaultRecordBatch as KafkaPythonBatch
from kio.records import readers as kio_readers

from penstock.errors import CorruptRecords, InvalidRecord
from penstock.records import (
    Marker,
    Record,
    accept_batch,
    check_batch,
    encode_batch,
    encode_marker,
    parse_header,
    peek_transaction,
    read_marker,
)

T0 = 1_700_000_000_000


def marker(*, is_commit: bool = True, producer_id: int = 1 << 40, epoch: int = 7, coordinator_epoch: int = 9) -> bytes:
    return bytes(
        encode_marker(producer_id, epoch, is_commit=is_commit, coordinator_epoch=coordinator_epoch, timestamp_ms=T0)
    )


def control(key: bytes | None, value: bytes | None) -> bytes:
    return bytes(
        encode_batch(
            [Record(0, T0, key, value)], producer_id=1, producer_epoch=0, is_transactional=True, is_control=True
        )
    )


@pytest.mark.parametrize("is_commit", [True, False])
def test_what_is_written_is_read(is_commit: bool) -> None:
    batch = marker(is_commit=is_commit)
    assert read_marker(batch) == Marker(is_commit, 9)
    assert read_marker(batch).name == ("commit" if is_commit else "abort")
    header = check_batch(memoryview(batch))
    assert (header.is_transactional, header.is_control, header.count) == (True, True, 1)
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (1 << 40, 7, -1)
    assert (header.base_timestamp, header.max_timestamp) == (T0, T0)


@pytest.mark.parametrize("is_commit", [True, False])
@pytest.mark.parametrize("reader", [KafkaPythonBatch, AiokafkaBatch])
def test_clients_tell_commit_from_abort(is_commit: bool, reader: type) -> None:
    batch = reader(marker(is_commit=is_commit))
    assert batch.validate_crc()
    assert batch.is_control_batch
    assert batch.is_transactional
    assert batch.producer_id == 1 << 40
    record = next(iter(batch))
    assert record.key == bytes((0, 0, 0, is_commit))
    assert record.value == b"\0\0\0\0\0\x09"


def test_kio_reads_it_as_a_control_batch() -> None:
    batch, _ = kio_readers.read_batch(marker(is_commit=False), 0)
    assert batch.records[0].key == b"\0\0\0\0"
    assert batch.producer_id == 1 << 40


def test_later_versions_may_append_fields() -> None:
    assert read_marker(control(b"\0\1\0\1more", b"\0\1\0\0\0\5more")) == Marker(True, 5)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (None, b"\0\0\0\0\0\1"),
        (b"\0\0\0", b"\0\0\0\0\0\1"),
        (b"\0\0\0\1", None),
        (b"\0\0\0\1", b"\0"),
        (b"\0\0\0\2", bytes(6)),
    ],
)
def test_what_ends_no_transaction_is_no_marker(key: bytes | None, value: bytes | None) -> None:
    with pytest.raises(CorruptRecords):
        read_marker(control(key, value))


def test_only_the_broker_writes_markers_and_batches_without_a_sequence() -> None:
    with pytest.raises(InvalidRecord, match="Only the broker"):
        accept_batch(memoryview(marker()))
    with pytest.raises(InvalidRecord, match="Only the broker"):
        accept_batch(memoryview(marker()), is_internal=True)
    own = encode_batch([Record(0, T0, b"k", b"v")], producer_id=1, producer_epoch=0, is_transactional=True)
    with pytest.raises(InvalidRecord, match="sequence"):
        accept_batch(memoryview(own))
    assert accept_batch(memoryview(own), is_internal=True).base_sequence == -1
    without_epoch = encode_batch([Record(0, T0, b"k", b"v")], producer_id=1, is_transactional=True)
    with pytest.raises(InvalidRecord, match="epoch"):
        accept_batch(memoryview(without_epoch), is_internal=True)
    nobodys = encode_batch([Record(0, T0, b"k", b"v")], is_transactional=True)
    with pytest.raises(InvalidRecord, match="producer id"):
        accept_batch(memoryview(nobodys), is_internal=True)


def test_a_look_at_the_header_tells_whose_transaction_it_is() -> None:
    batch = encode_batch(
        [Record(0, T0, b"k", b"v")], producer_id=1 << 40, producer_epoch=3, base_sequence=0, is_transactional=True
    )
    header = parse_header(batch)
    assert peek_transaction(batch) == (header.producer_id, header.producer_epoch) == (1 << 40, 3)
    plain = encode_batch([Record(0, T0, b"k", b"v")], producer_id=1, producer_epoch=3, base_sequence=0)
    assert peek_transaction(plain) is None
    assert peek_transaction(batch[:60]) is None
