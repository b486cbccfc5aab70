"""Batches against other people's codecs, in both directions, and against random damage.

kafka-python (pure Python) and aiokafka (which knows every codec) read what we write and write what we read; kio does
the same for uncompressed batches with whole seconds, all that it supports. Only our own batches go to kio: damaged
bytes can abort the process.
"""

from __future__ import annotations

import datetime
import io
import tracemalloc
from collections.abc import Callable

from aiokafka.record.default_records import DefaultRecordBatch as AiokafkaBatch
from aiokafka.record.default_records import DefaultRecordBatchBuilder as AiokafkaBuilder
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from kafka.record.default_records import DefaultRecordBatch as KafkaPythonBatch
from kafka.record.default_records import DefaultRecordBatchBuilder as KafkaPythonBuilder
from kio.records import readers as kio_readers
from kio.records import schema as kio_schema
from kio.records import writers as kio_writers
from kio.static.primitive import TZAwareMicros, i8, i16, i32, i64

from penstock.errors import PenstockError
from penstock.records import (
    Codec,
    Record,
    accept_batch,
    check_batch,
    decode_records,
    encode_batch,
    filter_batch,
    find_timestamp,
    iter_batches,
    parse_header,
)
from penstock.records.header import seal

T0 = 1_700_000_000_000

NULLABLE = st.none() | st.binary(max_size=200)
HEADERS = st.lists(st.tuples(st.text(max_size=20), st.none() | st.binary(max_size=40)), max_size=3).map(tuple)
TIMESTAMPS = st.integers(T0 - 10**9, T0 + 10**9)


@st.composite
def record_lists(
    draw: st.DrawFn, *, gaps: bool = True, timestamps: st.SearchStrategy[int] = TIMESTAMPS
) -> list[Record]:
    """Records at rising offsets, in any order of time."""
    offset = draw(st.integers(0, 2**50)) if gaps else 0
    records = []
    for _ in range(draw(st.integers(1, 6))):
        records.append(Record(offset, draw(timestamps), draw(NULLABLE), draw(NULLABLE), draw(HEADERS)))
        offset += draw(st.integers(1, 1000)) if gaps else 1
    return records


def as_records(batch: KafkaPythonBatch | AiokafkaBatch) -> list[Record]:
    return [Record(r.offset, r.timestamp, r.key, r.value, tuple(r.headers)) for r in batch]


def build(builder: KafkaPythonBuilder | AiokafkaBuilder, records: list[Record]) -> bytes:
    for record in records:
        assert builder.append(record.offset, record.timestamp, record.key, record.value, list(record.headers))
    return bytes(builder.build())


# -- round trips -------------------------------------------------------------------------------------------------------


@given(record_lists(timestamps=st.integers(-(2**62), 2**62)), st.sampled_from(Codec))
def test_records_come_back_as_they_were(records: list[Record], codec: Codec) -> None:
    batch = encode_batch(records, codec=codec)
    header = check_batch(memoryview(batch))
    assert decode_records(batch) == records
    assert (header.base_offset, header.last_offset) == (records[0].offset, records[-1].offset)
    assert header.max_timestamp == max(record.timestamp for record in records)


@given(record_lists(gaps=False), st.sampled_from(Codec))
def test_what_we_encode_without_gaps_we_accept_from_a_producer(records: list[Record], codec: Codec) -> None:
    assert accept_batch(memoryview(encode_batch(records, codec=codec))).count == len(records)


@given(record_lists(), st.sampled_from(Codec), st.sets(st.integers(0, 5)))
def test_filtering_is_a_filter_and_keeps_the_offset_range(
    records: list[Record], codec: Codec, places: set[int]
) -> None:
    kept = [record for place, record in enumerate(records) if place in places]
    batch = encode_batch(records, codec=codec)
    thinned = filter_batch(batch, lambda record: record in kept)
    if thinned is None:
        assert kept == records
        return
    header = check_batch(memoryview(thinned))
    assert decode_records(thinned) == kept
    assert (header.base_offset, header.last_offset) == (records[0].offset, records[-1].offset)


@given(record_lists(), TIMESTAMPS)
def test_search_by_time_finds_what_a_scan_finds(records: list[Record], wanted: int) -> None:
    scan = next(((r.offset, r.timestamp) for r in records if r.timestamp >= wanted), None)
    assert find_timestamp(encode_batch(records), wanted) == scan


# -- other people's codecs ---------------------------------------------------------------------------------------------


@given(record_lists(), st.sampled_from([Codec.NONE, Codec.GZIP]))
def test_kafka_python_reads_our_batches(records: list[Record], codec: Codec) -> None:
    theirs = KafkaPythonBatch(encode_batch(records, codec=codec))
    assert theirs.validate_crc()
    assert theirs.next_offset == records[-1].offset + 1
    assert as_records(theirs) == records


@given(record_lists(gaps=False), st.sampled_from([Codec.NONE, Codec.GZIP]))
def test_we_accept_and_read_the_batches_of_kafka_python(records: list[Record], codec: Codec) -> None:
    batch = build(KafkaPythonBuilder(2, codec, False, 7, 1, 5, 2**24), records)
    header = accept_batch(memoryview(batch))
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (7, 1, 5)
    assert decode_records(batch) == records


@given(record_lists(gaps=False))
def test_our_uncompressed_bytes_are_those_of_kafka_python(records: list[Record]) -> None:
    assert build(KafkaPythonBuilder(2, 0, False, -1, -1, -1, 2**24), records) == encode_batch(records, leader_epoch=0)


@given(record_lists(), st.sampled_from(Codec))
def test_aiokafka_reads_our_batches(records: list[Record], codec: Codec) -> None:
    theirs = AiokafkaBatch(bytes(encode_batch(records, codec=codec)))
    assert theirs.validate_crc()
    assert as_records(theirs) == records


@given(record_lists(gaps=False), st.sampled_from(Codec))
def test_we_accept_and_read_the_batches_of_aiokafka(records: list[Record], codec: Codec) -> None:
    # aiokafka leaves small batches uncompressed, whatever it is asked for.
    records = [record._replace(value=(record.value or b"v") * 50) for record in records]
    batch = build(AiokafkaBuilder(2, codec, 0, -1, -1, -1, 2**24), records)
    assert accept_batch(memoryview(batch)).count == len(records)
    assert decode_records(batch) == records


SECONDS = st.integers(1_500_000_000, 1_900_000_000).map(lambda seconds: seconds * 1000)


@given(record_lists(timestamps=SECONDS))
def test_kio_reads_our_batches_and_writes_the_same_bytes(records: list[Record]) -> None:
    ours = bytes(encode_batch(records, leader_epoch=4, producer_id=7, producer_epoch=1, base_sequence=5))
    theirs, size = kio_readers.read_batch(ours, 0)
    assert size == len(ours)
    assert theirs.records == tuple(map(as_kio, records))
    out = io.BytesIO()
    kio_writers.write_batch(
        out,
        kio_schema.NewRecordBatch(
            producer_id=i64(7),
            producer_epoch=i16(1),
            partition_leader_epoch=i32(4),
            base_sequence=i32(5),
            records=tuple(map(as_kio, records)),
            attributes=i16(0),
        ),
    )
    assert out.getvalue() == ours


def as_kio(record: Record) -> kio_schema.Record:
    return kio_schema.Record(
        attributes=i8(0),
        timestamp=TZAwareMicros.parse(datetime.datetime.fromtimestamp(record.timestamp / 1000, datetime.UTC)),
        offset=i64(record.offset),
        key=record.key,
        value=record.value,
        headers=tuple(kio_schema.RecordHeader(key=name.encode(), value=value) for name, value in record.headers),
    )


# -- damage ------------------------------------------------------------------------------------------------------------

READERS: list[Callable[[bytearray], object]] = [
    parse_header,
    decode_records,
    lambda batch: check_batch(memoryview(batch)),
    lambda batch: accept_batch(memoryview(batch)),
    lambda batch: list(iter_batches(batch)),
    lambda batch: find_timestamp(batch, T0),
    lambda batch: filter_batch(batch, lambda record: record.key is None),
]


@st.composite
def damaged_batches(draw: st.DrawFn) -> bytearray:
    """A valid batch with bytes overwritten, cut or put in, sometimes with lengths and checksum made good again."""
    batch = encode_batch(draw(record_lists()), codec=draw(st.sampled_from(Codec)))
    original = bytes(batch)
    for _ in range(draw(st.integers(1, 4))):
        place = draw(st.integers(0, len(batch) - 1))
        noise = draw(
            st.binary(min_size=1, max_size=8) | st.sampled_from([b"\xff" * 4, b"\xff\xff\xff\xff\x0f", b"\x7f\xff"])
        )
        cut = draw(st.sampled_from([len(noise), len(noise), 0, 1]))
        batch[place : place + cut] = noise
    assume(bytes(batch) != original)
    if draw(st.booleans()) and len(batch) >= 61:
        batch[8:12] = (len(batch) - 12).to_bytes(4, "big")
        batch[16] = 2
        seal(batch)
    elif draw(st.booleans()):
        del batch[draw(st.integers(0, len(batch))) :]
    return batch


@settings(max_examples=150, deadline=None)
@given(damaged_batches())
def test_damage_raises_nothing_but_our_own_errors_and_allocates_little(batch: bytearray) -> None:
    tracemalloc.start()
    try:
        for read in READERS:
            try:
                read(batch)
            except PenstockError:
                continue
        peak_bytes = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak_bytes < 4_000_000
