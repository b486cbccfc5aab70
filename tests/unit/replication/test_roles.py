"""A partition as leader and as follower: what is stable, what is committed, and what readers see in between."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.unit.broker.test_partition import NOW_MS, ManualSyncer, Stage, batch_of

from penstock.consensus.topic_config import TopicSettings
from penstock.errors import CorruptRecords, NotEnoughReplicas, NotLeader
from penstock.model import TopicPartition
from penstock.partitions.partition import Partition
from penstock.partitions.replication.followers import Followers, ReplicaAssignment
from penstock.partitions.stats import TopicStats
from penstock.records import Record, assign, encode_batch, encode_marker
from penstock.storage.config import LogConfig
from penstock.storage.log import Log
from penstock.testing.files import MemoryFiles


def copy(*, syncs: bool = True) -> Partition:
    log = Log.open(MemoryFiles(seed=2), Path("/logs/t/0"), LogConfig())
    partition = Partition(TopicPartition("t", 0), log, TopicSettings(), TopicStats(), ManualSyncer(), syncs=syncs)
    partition.follow(3)
    return partition


def stored(offset: int, epoch: int, *, producer: int = -1) -> memoryview:
    batch = encode_batch(
        [Record(0, NOW_MS, None, b"x")],
        producer_id=producer,
        producer_epoch=0 if producer >= 0 else -1,
        base_sequence=0 if producer >= 0 else -1,
        is_transactional=producer >= 0,
    )
    assign(batch, offset, epoch)
    return memoryview(batch)


def marker(offset: int, epoch: int, producer: int, *, is_commit: bool) -> memoryview:
    batch = bytearray(encode_marker(producer, 0, is_commit=is_commit, coordinator_epoch=0, timestamp_ms=NOW_MS))
    assign(batch, offset, epoch)
    return memoryview(batch)


def test_a_hasty_producer_does_not_get_another_s_durable_record_acknowledged() -> None:
    stage = Stage()
    stage.append(b"durable")
    stage.append(b"hasty", is_durable=False)
    assert stage.answers == []
    assert stage.visible() == []
    stage.sync()
    assert stage.answers == [None, None]
    stage.append(b"hasty again", is_durable=False)
    assert stage.partition.high_watermark == 3


def test_a_copy_is_stable_once_synced() -> None:
    partition = copy()
    told: list[int] = []
    partition.on_stable = lambda: told.append(partition.stable_end)
    partition.append_stored(stored(0, 1), 3)
    assert (partition.log.end_offset, partition.stable_end) == (1, 0)
    partition.log.sync()
    partition.on_synced()
    assert (partition.stable_end, told) == (1, [1])


def test_without_syncs_a_copy_is_stable_when_written() -> None:
    partition = copy(syncs=False)
    partition.append_stored(stored(0, 1), 3)
    assert partition.stable_end == 1


def test_a_copy_takes_nothing_out_of_order_of_a_wrong_epoch_or_damaged() -> None:
    partition = copy()
    partition.append_stored(stored(0, 2), 3)
    damaged = bytearray(stored(1, 2))
    damaged[-1] ^= 1
    for bad in (stored(0, 2), stored(1, 1), stored(1, 4), memoryview(damaged)):
        with pytest.raises(CorruptRecords):
            partition.append_stored(bad, 3)
    with pytest.raises(NotLeader):
        partition.append_stored(stored(1, 2), 2)
    assert partition.log.end_offset == 1
    partition.append_stored(stored(5, 3), 3)  # compaction leaves gaps
    assert partition.log.end_offset == 6


def test_a_copy_s_watermark_is_what_it_was_told_and_has_and_never_goes_back() -> None:
    partition = copy()
    partition.learn(5)
    assert partition.high_watermark == 0
    partition.append_stored(stored(0, 1), 3)
    partition.append_stored(stored(1, 1), 3)
    partition.learn(1)
    assert partition.high_watermark == 1
    partition.learn(0)
    assert partition.high_watermark == 1


def test_readers_of_committed_data_wait_for_a_copied_marker_to_be_committed() -> None:
    partition = copy()
    partition.append_stored(stored(0, 1), 3)
    partition.append_stored(stored(1, 1, producer=7), 3)
    partition.append_stored(stored(2, 1), 3)
    partition.append_stored(marker(3, 1, 7, is_commit=True), 3)
    partition.learn(3)
    assert partition.last_stable_offset == 1
    partition.learn(4)
    assert partition.last_stable_offset == 4


def test_after_a_restart_readers_of_committed_data_stop_where_they_had_to_before() -> None:
    partition = copy()
    for offset in range(3):
        partition.append_stored(stored(offset, 1), 3)
    partition.restore(2, 1)
    assert (partition.high_watermark, partition.last_stable_offset) == (2, 1)
    partition.log.truncate(2)
    partition.on_truncated()
    assert partition.last_stable_offset == 2
    partition.append_stored(stored(2, 1), 3)
    partition.learn(3)
    assert partition.last_stable_offset == 3


def test_a_truncated_marker_leaves_its_transaction_open() -> None:
    partition = copy()
    partition.append_stored(stored(0, 1, producer=7), 3)
    partition.append_stored(marker(1, 1, 7, is_commit=True), 3)
    partition.append_stored(stored(2, 1), 3)
    partition.learn(1)
    partition.log.sync()
    partition.log.truncate(1)
    partition.on_truncated()
    partition.append_stored(stored(1, 3), 3)
    partition.learn(2)
    assert partition.last_stable_offset == 0


def led_by_three(stage: Stage) -> Partition:
    partition = stage.partition
    partition.resign()
    followers = Followers(
        1,
        ReplicaAssignment((1, 2, 3), (1, 2, 3), 0),
        lambda node_id, epoch: True,
        min_in_sync=2,
        epoch_start=partition.log.end_offset,
        lag_s=10.0,
        now=0.0,
    )
    partition.in_sync_count = 3
    partition.lead(partition.leader_epoch + 1, followers)
    return partition


def test_a_new_leader_knows_the_watermark_once_its_followers_have_what_it_had() -> None:
    stage = Stage(TopicSettings(min_insync_replicas=2))
    stage.append(b"a")
    stage.partition.log.sync()
    partition = led_by_three(stage)
    assert not partition.is_watermark_known
    partition.on_fetched(2, 0, 1, 1, 0.0)
    assert not partition.is_watermark_known
    partition.on_fetched(3, 0, 1, 1, 0.0)
    assert partition.is_watermark_known
    assert partition.high_watermark == 1


def test_a_coordinator_s_batch_is_refused_where_too_few_are_in_sync() -> None:
    stage = Stage(TopicSettings(min_insync_replicas=2))
    partition = led_by_three(stage)
    partition.in_sync_count = 1
    with pytest.raises(NotEnoughReplicas):
        partition.append(memoryview(batch_of(b"a")), NOW_MS, is_durable=True, is_internal=True)
    with pytest.raises(NotEnoughReplicas):
        partition.end_transaction(7, 0, is_commit=True, coordinator_epoch=0, now_ms=NOW_MS, is_durable=True)
    assert partition.log.end_offset == 0


def test_whoever_waits_on_a_partition_that_resigned_is_sent_away() -> None:
    stage = Stage()
    stage.append(b"a")
    stage.partition.resign()
    (refused,) = stage.answers
    assert isinstance(refused, NotLeader)
    stage.partition.when_committed(1, stage.answers.append)
    assert isinstance(stage.answers[1], NotLeader)
