"""A partition: what readers may see and when producers are answered, without files, threads or sockets."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from penstock.consensus.topic_config import TopicSettings
from penstock.errors import (
    CorruptRecords,
    DiskFull,
    FencedLeaderEpoch,
    InvalidRecord,
    LogFailed,
    MessageTooLarge,
    NotEnoughReplicas,
    NotLeader,
    OffsetOutOfRange,
    OutOfOrderSequence,
    PenstockError,
    UnknownLeaderEpoch,
)
from penstock.model import TopicPartition
from penstock.partitions.partition import Partition
from penstock.partitions.stats import TopicStats
from penstock.records import Record, decode_records, encode_batch, parse_header
from penstock.storage.config import LogConfig
from penstock.storage.log import Log
from penstock.testing.files import MemoryFiles

NOW_MS = 1_700_000_000_000


class ManualSyncer:
    """Syncs when the test says so."""

    def __init__(self) -> None:
        self.requested: list[Log] = []

    def request(self, log: Log) -> None:
        self.requested.append(log)


class Stage:
    """A leading partition on a file system in memory."""

    def __init__(self, settings: TopicSettings | None = None) -> None:
        self.files = MemoryFiles(seed=1)
        self.syncer = ManualSyncer()
        log = Log.open(self.files, Path("/logs/t/0"), LogConfig())
        self.partition = Partition(TopicPartition("t", 0), log, settings or TopicSettings(), TopicStats(), self.syncer)
        self.partition.lead(0)
        self.answers: list[PenstockError | None] = []

    def append(self, *values: bytes, is_durable: bool = True, **options: int) -> int:
        batch = batch_of(*values, **options)
        placed = self.partition.append(memoryview(batch), NOW_MS, is_durable=is_durable)
        self.partition.when_committed(placed.next_offset, self.answers.append)
        return placed.base_offset

    def sync(self) -> None:
        self.partition.log.sync()
        self.partition.on_synced()

    def visible(self) -> list[bytes | None]:
        found = self.partition.read(0, 1 << 20)
        return [] if found is None else [record.value for record in decode_records(found.read())]


def batch_of(*values: bytes, key: bytes | None = None, **options: int) -> bytearray:
    return encode_batch([Record(at, NOW_MS, key, value) for at, value in enumerate(values)], **options)  # type: ignore[arg-type]


def test_a_durable_record_is_seen_and_acknowledged_only_once_it_is_synced() -> None:
    stage = Stage()
    stage.append(b"a")
    assert stage.visible() == []
    assert stage.answers == []
    stage.sync()
    assert stage.visible() == [b"a"]
    assert stage.answers == [None]


def test_a_record_for_acks_1_is_seen_at_once_and_asks_for_no_sync() -> None:
    stage = Stage()
    stage.append(b"a", is_durable=False)
    assert stage.visible() == [b"a"]
    assert stage.answers == [None]
    assert stage.syncer.requested == []


def test_one_sync_answers_everybody_who_waited_in_order() -> None:
    stage = Stage()
    order: list[int] = []
    for number in range(5):
        stage.append(b"x")
        stage.partition.when_committed(number + 1, lambda _, number=number: order.append(number))
    stage.sync()
    assert order == [0, 1, 2, 3, 4]


def test_what_is_appended_during_a_sync_waits_for_the_next_one() -> None:
    stage = Stage()
    stage.append(b"a")
    stage.partition.log.sync()
    stage.append(b"b")
    stage.partition.on_synced()
    assert stage.visible() == [b"a"]
    stage.sync()
    assert stage.answers == [None, None]


def test_a_failed_sync_tells_everybody_who_waits_and_refuses_further_writes() -> None:
    stage = Stage()
    stage.append(b"a", is_durable=False)
    stage.append(b"b")
    stage.files.is_failing_syncs = True
    with pytest.raises(LogFailed):
        stage.partition.log.sync()
    stage.partition.on_synced()
    assert isinstance(stage.answers[-1], LogFailed)
    with pytest.raises(LogFailed):
        stage.append(b"c")
    assert stage.visible() == [b"a"]


def test_a_watcher_hears_of_every_advance_until_it_stops_watching() -> None:
    stage = Stage()
    wakes: list[int] = []

    def wake() -> None:
        wakes.append(stage.partition.high_watermark)

    stage.partition.watch(wake)
    stage.append(b"a", is_durable=False)
    stage.append(b"b")
    stage.sync()
    stage.partition.unwatch(wake)
    stage.append(b"c", is_durable=False)
    assert wakes == [1, 2]


def test_a_repeated_batch_of_an_idempotent_producer_is_stored_once_and_answered_like_the_first() -> None:
    stage = Stage()
    first = stage.append(b"a", b"b", producer_id=7, producer_epoch=0, base_sequence=0)
    again = stage.append(b"a", b"b", producer_id=7, producer_epoch=0, base_sequence=0)
    assert first == again == 0
    assert stage.answers == []
    stage.sync()
    assert stage.answers == [None, None]
    assert stage.visible() == [b"a", b"b"]


def test_what_comes_behind_a_batch_that_could_not_be_written_is_told_the_same() -> None:
    """A producer that hears of a gap instead begins a new epoch, and may send again what is under way elsewhere."""
    stage = Stage()
    stage.append(b"a", producer_id=7, producer_epoch=0, base_sequence=0)
    stage.files.capacity_bytes = stage.files.used_bytes
    with pytest.raises(DiskFull):
        stage.append(b"b", producer_id=7, producer_epoch=0, base_sequence=1)
    stage.files.capacity_bytes = None
    with pytest.raises(DiskFull):
        stage.append(b"c", producer_id=7, producer_epoch=0, base_sequence=2)
    stage.append(b"b", producer_id=7, producer_epoch=0, base_sequence=1)
    stage.append(b"c", producer_id=7, producer_epoch=0, base_sequence=2)
    with pytest.raises(OutOfOrderSequence):
        stage.append(b"e", producer_id=7, producer_epoch=0, base_sequence=4)
    stage.sync()
    assert stage.partition.high_watermark == 3


def test_a_log_that_takes_no_more_writes_does_not_judge_what_it_lacks() -> None:
    """Others may lead by now, and have what is missing here."""
    stage = Stage()
    stage.append(b"a", producer_id=7, producer_epoch=0, base_sequence=0)
    stage.partition.log.fail("The disk fails.")
    with pytest.raises(LogFailed):
        stage.append(b"d", producer_id=7, producer_epoch=0, base_sequence=3)


def test_whoever_resigns_sends_those_who_wait_to_the_new_leader() -> None:
    stage = Stage()
    stage.append(b"a")
    stage.partition.resign()
    assert isinstance(stage.answers[0], NotLeader)
    with pytest.raises(NotLeader):
        stage.append(b"b")


def test_leader_epochs_are_checked_both_ways() -> None:
    stage = Stage()
    stage.partition.lead(3)
    stage.partition.check_leader(3)
    stage.partition.check_leader(-1)
    with pytest.raises(FencedLeaderEpoch):
        stage.partition.check_leader(2)
    with pytest.raises(UnknownLeaderEpoch):
        stage.partition.check_leader(4)


def test_batches_carry_the_epoch_they_were_written_in() -> None:
    stage = Stage()
    stage.append(b"a", is_durable=False)
    stage.partition.lead(5)
    stage.append(b"b", is_durable=False)
    found = [parse_header(batch.read()).leader_epoch for batch in stage.partition.log.batches(0)]
    assert found == [0, 5]


def test_too_large_a_batch_is_refused_by_its_topics_limit() -> None:
    stage = Stage(TopicSettings(max_message_bytes=200))
    with pytest.raises(MessageTooLarge, match=r"max\.message\.bytes"):
        stage.append(b"x" * 300)


def test_a_compacted_topic_wants_keys() -> None:
    stage = Stage(TopicSettings(log=replace(LogConfig(), is_compacting=True)))
    with pytest.raises(InvalidRecord, match="key"):
        stage.append(b"a")
    batch = batch_of(b"a", key=b"k")
    stage.partition.append(memoryview(batch), NOW_MS, is_durable=False)
    assert stage.visible() == [b"a"]


def test_append_time_replaces_the_producers_timestamps() -> None:
    stage = Stage(TopicSettings(has_append_time=True))
    placed = stage.partition.append(memoryview(batch_of(b"a")), NOW_MS + 5, is_durable=False)
    assert placed.append_time_ms == NOW_MS + 5
    found = stage.partition.read(0, 1 << 20)
    assert found is not None
    assert decode_records(found.read())[0].timestamp == NOW_MS + 5


def test_too_few_replicas_in_sync_refuse_acks_all() -> None:
    stage = Stage(TopicSettings(min_insync_replicas=2))
    with pytest.raises(NotEnoughReplicas, match=r"min\.insync\.replicas"):
        stage.partition.check_in_sync()


def test_a_damaged_batch_is_refused_and_leaves_no_trace() -> None:
    stage = Stage()
    batch = batch_of(b"a")
    batch[-1] ^= 1
    with pytest.raises(CorruptRecords):
        stage.partition.append(memoryview(batch), NOW_MS, is_durable=False)
    assert stage.partition.log.end_offset == 0


def test_reading_outside_the_log_says_what_it_holds() -> None:
    stage = Stage()
    stage.append(b"a", is_durable=False)
    with pytest.raises(OffsetOutOfRange, match="0 to 1"):
        stage.partition.read(2, 100)


def test_what_comes_behind_a_refused_batch_is_told_the_same_until_that_comes_again() -> None:
    stage = Stage()
    stage.append(b"a", producer_id=7, producer_epoch=0, base_sequence=0)
    stage.partition.refused.note(
        memoryview(batch_of(b"b", producer_id=7, producer_epoch=0, base_sequence=1)), NotLeader("not yet")
    )
    with pytest.raises(NotLeader, match="not yet"):
        stage.append(b"c", producer_id=7, producer_epoch=0, base_sequence=2)
    stage.append(b"b", producer_id=7, producer_epoch=0, base_sequence=1)
    with pytest.raises(OutOfOrderSequence):
        stage.append(b"d", producer_id=7, producer_epoch=0, base_sequence=3)
    stage.append(b"c", producer_id=7, producer_epoch=0, base_sequence=2)


def test_a_producer_that_lost_a_batch_hears_of_it_though_another_was_refused() -> None:
    stage = Stage()
    stage.append(b"a", producer_id=7, producer_epoch=0, base_sequence=0)
    stage.partition.refused.note(
        memoryview(batch_of(b"b", producer_id=7, producer_epoch=0, base_sequence=1)), NotLeader("not yet")
    )
    for _ in range(5):
        with pytest.raises(NotLeader):
            stage.append(b"c", producer_id=7, producer_epoch=0, base_sequence=2)
    with pytest.raises(OutOfOrderSequence):
        stage.append(b"c", producer_id=7, producer_epoch=0, base_sequence=2)
