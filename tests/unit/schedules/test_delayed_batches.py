"""Records for later in a Kafka producer's batch: found, judged, taken out, and not scheduled twice."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from penstock.consensus.topic_config import TopicSettings
from penstock.errors import InvalidRecord
from penstock.features.messages.delayed_batches import DelayedBatch, delayed_of
from penstock.features.schedules.messages import DUE_MS_MAX
from penstock.model import TopicPartition
from penstock.partitions.partition import Partition
from penstock.partitions.stats import TopicStats
from penstock.records import Codec, Record, check_batch, decode_records, encode_batch, parse_header
from penstock.storage.config import LogConfig
from penstock.storage.log import Log
from penstock.testing.files import MemoryFiles

NOW_MS = 1_700_000_000_000
PRODUCER = {"producer_id": 7, "producer_epoch": 0}

Headers = tuple[tuple[str, bytes | None], ...]
LATER: Headers = (("penstock-delay-ms", b"5000"),)


class Idle:
    def request(self, log: Log) -> None: ...


def partition_of(**settings: Any) -> Partition:
    log = Log.open(MemoryFiles(seed=1), Path("/logs/t/0"), LogConfig())
    allowed = TopicSettings(has_delay_headers=True, **settings)
    made = Partition(TopicPartition("t", 0), log, allowed, TopicStats(), Idle())
    made.lead(0)
    return made


def batch_of(*headers: Headers, **options: Any) -> memoryview:
    records = [Record(at, NOW_MS, b"k", b"%d" % at, each) for at, each in enumerate(headers)]
    return memoryview(encode_batch(records, **options))


def delayed_in(batch: memoryview, partition: Partition | None = None) -> DelayedBatch:
    found = delayed_of(partition or partition_of(), batch, NOW_MS)
    assert found is not None
    return found


def rest_of(found: DelayedBatch) -> bytearray:
    assert found.rest is not None
    return found.rest


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.GZIP, Codec.ZSTD])
def test_records_for_later_are_taken_out_and_leave_gaps(codec: Codec) -> None:
    found = delayed_in(batch_of((), LATER, (("a", b"b"), *LATER), (), codec=codec))
    assert [(new.message.value, new.due_ms, new.id) for new in found.schedules] == [
        (b"1", NOW_MS + 5_000, ""),
        (b"2", NOW_MS + 5_000, ""),
    ]
    assert found.schedules[1].message.headers == (("a", b"b"),), "what delays a record is no part of it any more"
    rest = rest_of(found)
    check_batch(memoryview(rest))
    assert [(record.offset, record.value) for record in decode_records(rest)] == [(0, b"0"), (3, b"3")]
    assert parse_header(rest).last_offset_delta == 3


def test_a_batch_that_says_nothing_of_later_is_left_alone() -> None:
    assert delayed_of(partition_of(), batch_of((), (("a", b"b"),)), NOW_MS) is None
    mentions = memoryview(encode_batch([Record(0, NOW_MS, None, b"penstock-delay-ms", (("penstock-delay", b"5"),))]))
    assert delayed_of(partition_of(), mentions, NOW_MS) is None


@pytest.mark.parametrize(
    "header",
    [
        ("penstock-delay-ms", b"0"),
        ("penstock-deliver-at", b"%d" % NOW_MS),
        ("penstock-deliver-at", b"1969-07-20T20:17:00Z"),
        ("penstock-deliver-at", b"2023-11-14T23:13:20+01:00"),
    ],
)
def test_zero_and_the_past_are_delivered_at_once(header: tuple[str, bytes]) -> None:
    assert delayed_of(partition_of(), batch_of((header,)), NOW_MS) is None


def test_a_moment_may_be_milliseconds_or_text_with_a_zone() -> None:
    for value in (b"%d" % (NOW_MS + 60_000), b"2023-11-14T22:14:20Z", b"2023-11-14T23:14:20+01:00"):
        found = delayed_in(batch_of((("penstock-deliver-at", value),)))
        assert found.schedules[0].due_ms == NOW_MS + 60_000


@pytest.mark.parametrize(
    ("headers", "told"),
    [
        ((("penstock-delay-ms", b"soon"),), "penstock-delay-ms of record 1 is 'soon'; give milliseconds"),
        ((("penstock-delay-ms", b"-5"),), "'-5'"),
        ((("penstock-delay-ms", b"1.5"),), "'1.5'"),
        ((("penstock-delay-ms", None),), "is empty"),
        ((("penstock-delay-ms", b"9" * 30),), "give milliseconds"),
        ((("penstock-delay-ms", b"%d" % DUE_MS_MAX),), "beyond the year 9999"),
        ((("penstock-deliver-at", b"%d" % (DUE_MS_MAX + 1)),), "beyond the year 9999"),
        ((("penstock-deliver-at", b"tomorrow"),), "give milliseconds since 1970 as text, or a time with its zone"),
        ((("penstock-deliver-at", b"2030-01-01T00:00:00"),), "a time with its zone"),
        ((("penstock-deliver-at", b"\xff\xfe"),), "a time with its zone"),
        ((("penstock-delay-ms", b"5"), ("penstock-deliver-at", b"5")), "not both"),
        ((("penstock-delay-ms", b"5"), ("penstock-delay-ms", b"6")), "more than once"),
    ],
)
def test_headers_that_make_no_sense_are_refused_with_what_to_do(headers: Headers, told: str) -> None:
    with pytest.raises(InvalidRecord, match=told):
        delayed_of(partition_of(), batch_of((), headers), NOW_MS)


def test_a_transaction_cannot_be_for_later() -> None:
    with pytest.raises(InvalidRecord, match="transactional id"):
        delayed_of(partition_of(), batch_of(LATER, base_sequence=0, is_transactional=True, **PRODUCER), NOW_MS)


def test_what_the_log_will_refuse_is_not_scheduled_first() -> None:
    small = partition_of(max_message_bytes=80)
    assert delayed_of(small, batch_of(LATER, LATER), NOW_MS) is None
    compacted = partition_of(log=LogConfig(is_compacting=True))
    keyless = memoryview(encode_batch([Record(0, NOW_MS, b"k", b"v", LATER), Record(1, NOW_MS, None, b"v")]))
    assert delayed_of(compacted, keyless, NOW_MS) is None
    assert delayed_of(compacted, batch_of(LATER), NOW_MS) is not None


def test_without_numbers_a_batch_that_is_all_for_later_leaves_nothing() -> None:
    assert delayed_in(batch_of(LATER, LATER)).rest is None


def test_numbered_records_have_ids_of_their_numbers_which_wrap() -> None:
    partition = partition_of()
    found = delayed_in(batch_of(LATER, (), LATER, base_sequence=(1 << 31) - 1, **PRODUCER), partition)
    place = f"kafka:{partition.topic_id.hex}:0:7:0"
    assert [new.id for new in found.schedules] == [f"{place}:{(1 << 31) - 1}", f"{place}:1"]


def test_the_partition_goes_on_counting_over_what_is_for_later() -> None:
    """All for later, some, none: sequences follow on each other, and each batch sent again is a duplicate."""
    partition = partition_of()
    shapes: list[tuple[Headers, ...]] = [(LATER, LATER), ((), LATER, ()), (LATER,), ((),)]
    sequence, offsets = 0, list[int]()
    for shape in shapes:
        batch = batch_of(*shape, base_sequence=sequence, **PRODUCER)
        again = memoryview(bytearray(batch))
        found = delayed_of(partition, batch, NOW_MS)
        if found is None:
            placed = partition.append(batch, NOW_MS, is_durable=False)
        else:
            placed = partition.append(memoryview(rest_of(found)), NOW_MS, is_durable=False, is_thinned=True)
        offsets.append(placed.base_offset)
        repeated = delayed_of(partition, again, NOW_MS + 3_600_000)
        assert (repeated is None) == (found is None)
        if repeated is not None and found is not None:
            assert [new.id for new in repeated.schedules] == [new.id for new in found.schedules]
            assert repeated.stored_at == placed.base_offset
        assert partition.append(again, NOW_MS, is_durable=False)[:2] == placed[:2]
        sequence += len(shape)
    assert offsets == [0, 2, 5, 6]
    assert partition.high_watermark == 7
    read = partition.read(0, 1 << 20)
    assert read is not None


def test_the_log_is_recovered_with_its_gaps() -> None:
    files = MemoryFiles(seed=1)
    log = Log.open(files, Path("/logs/t/0"), LogConfig())
    settings = TopicSettings(has_delay_headers=True)
    partition = Partition(TopicPartition("t", 0), log, settings, TopicStats(), Idle())
    partition.lead(0)
    for sequence, shape in ((0, (LATER, LATER)), (2, ((), LATER))):
        found = delayed_in(batch_of(*shape, base_sequence=sequence, **PRODUCER), partition)
        partition.append(memoryview(rest_of(found)), NOW_MS, is_durable=True, is_thinned=True)
    log.sync()
    files.crash()
    reopened = Log.open(files, Path("/logs/t/0"), LogConfig())
    assert reopened.end_offset == 4
    assert reopened.producers.last_sequence_of(7, 0) == 3
