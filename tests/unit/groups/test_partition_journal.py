"""A shard on a real partition log: what it wrote is there again, whatever happened to the disk in between."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from penstock.config.settings import GroupSettings
from penstock.consensus.topic_config import TopicSettings
from penstock.errors import LogFailed, MessageTooLarge, NotCoordinator, ProducerFenced
from penstock.features.groups import records
from penstock.features.groups.coordinator import GroupShard
from penstock.features.groups.messages import CommitInTransaction, CommitOffsets, MemberIdentity, OffsetCommit, Settled
from penstock.features.groups.records import OFFSETS_TOPIC, GroupChange, GroupKey, StoredGroup, StoredMember
from penstock.machines.journal import PartitionJournal
from penstock.machines.messages import ProducerIdentity, Rejected
from penstock.model import TopicPartition
from penstock.partitions.partition import Partition
from penstock.partitions.stats import TopicStats
from penstock.records import Record, encode_batch
from penstock.storage.config import LogConfig
from penstock.storage.log import Log
from penstock.testing.files import MemoryFiles

DIRECTORY = Path("/data/logs/__consumer_offsets/0")


class Syncer:
    """Syncs when it is told to."""

    def __init__(self) -> None:
        self.wanted: list[Log] = []

    def request(self, log: Log) -> None:
        self.wanted.append(log)


class World:
    """One shard on one partition on a disk in memory."""

    def __init__(self, files: MemoryFiles) -> None:
        self.files = files
        self.syncer = Syncer()
        settings = TopicSettings(log=LogConfig(is_compacting=True, is_deleting=False))
        name = TopicPartition(OFFSETS_TOPIC, 0)
        self.partition = Partition(name, Log.open(files, DIRECTORY, settings.log), settings, TopicStats(), self.syncer)
        self.partition.lead(1)
        journal = PartitionJournal(self.partition, records, syncs=True)
        self.shard = GroupShard(journal, GroupSettings(), lambda: 0, lambda: 1_000, lambda work: work())
        self.shard.open(self.shard.read_log())
        self.answers: list[Any] = []

    def commit(self, offset: int) -> None:
        row = OffsetCommit("orders", 0, offset, -1, "", "id")
        self.shard.ask("g", CommitOffsets(MemberIdentity(member_id=""), (row,)), self.answers.append)

    def sync(self) -> None:
        for log in self.syncer.wanted:
            try:
                log.sync()
            except LogFailed:
                pass
        self.syncer.wanted.clear()
        self.partition.on_synced()

    def committed(self) -> int | None:
        group = self.shard.machines.get("g")
        kept = group.offsets.get(("orders", 0)) if group else None
        return kept.offset if kept else None


@pytest.mark.parametrize(("is_commit", "expected"), [(True, 9), (False, 5)])
def test_offsets_of_a_transaction_lie_in_the_log_as_part_of_it(*, is_commit: bool, expected: int) -> None:
    world = World(MemoryFiles())
    world.commit(5)
    row = OffsetCommit("orders", 0, 9, -1, "", "id")
    request = CommitInTransaction(MemberIdentity(member_id=""), ProducerIdentity(77, 3), (row,))
    world.shard.ask("g", request, world.answers.append)
    world.sync()
    assert world.answers == [Settled({}), Settled({})]
    (opened,) = world.partition.transactions()
    assert (opened.producer_id, opened.producer_epoch, opened.first_offset) == (77, 3, 1)
    assert World(world.files).committed() == 5
    world.partition.end_transaction(77, 3, is_commit=is_commit, coordinator_epoch=0, now_ms=2_000, is_durable=True)
    world.shard.end_transaction(77, is_commit=is_commit)
    assert world.committed() == expected
    world.sync()
    assert World(world.files).committed() == expected


def test_a_fenced_producer_is_told_so() -> None:
    world = World(MemoryFiles())
    row = OffsetCommit("orders", 0, 9, -1, "", "id")
    for epoch in (3, 2):
        request = CommitInTransaction(MemberIdentity(member_id=""), ProducerIdentity(77, epoch), (row,))
        world.shard.ask("g", request, world.answers.append)
        world.sync()
    assert world.answers[0] == Settled({})
    assert isinstance(world.answers[1].error, ProducerFenced)


def test_a_commit_is_answered_when_it_is_synced_and_found_by_the_next_process() -> None:
    world = World(MemoryFiles())
    world.commit(5)
    assert world.answers == []
    world.sync()
    assert world.answers == [Settled({})]
    assert World(world.files).committed() == 5


def test_a_failed_sync_closes_the_shard_and_takes_nothing_back_into_memory() -> None:
    world = World(MemoryFiles())
    world.commit(5)
    world.sync()
    world.commit(6)
    world.files.is_failing_syncs = True
    world.sync()
    assert isinstance(world.answers[-1], Rejected)
    assert isinstance(world.answers[-1].error, NotCoordinator)
    with pytest.raises(NotCoordinator):
        world.commit(7)
    assert world.committed() is None


def test_who_waits_is_sent_away_when_leadership_is_lost() -> None:
    world = World(MemoryFiles())
    world.commit(5)
    world.partition.resign()
    assert isinstance(world.answers[-1], Rejected)
    assert not world.shard.is_ready


def test_foreign_records_are_left_out(caplog: pytest.LogCaptureFixture) -> None:
    world = World(MemoryFiles())
    world.commit(5)
    world.sync()
    junk = [Record(0, 0, b"{}", b"x"), Record(1, 0, b'{"type":"offset","group":"g"}', None), Record(2, 0, b"\xff", b"")]
    world.partition.append(memoryview(encode_batch(junk)), 0, is_durable=False)
    again = World(world.files)
    assert again.committed() == 5
    assert len([record for record in caplog.records if "left out" in record.message]) == 3


def member(number: int) -> StoredMember:
    return StoredMember(
        member_id=f"member-{number}",
        instance_id=None,
        client_id="client",
        client_host="/127.0.0.1",
        session_timeout_ms=45_000,
        rebalance_timeout_ms=300_000,
        protocols=(("range", bytes(range(256)) * 10),),
        assignment=b"partitions" * 100,
    )


def stored(members: int) -> GroupChange:
    group = StoredGroup(
        generation=1,
        protocol_type="consumer",
        protocol="range",
        leader_id="member-0",
        members=tuple(member(number) for number in range(members)),
    )
    return GroupChange(GroupKey("g"), group)


def test_a_generation_of_a_thousand_members_fits_a_batch() -> None:
    """Six megabytes of JSON, and all members say much the same."""
    world = World(MemoryFiles())
    journal = PartitionJournal(world.partition, records, syncs=False)
    journal.append([stored(1_000)], 1)
    assert World(world.files).shard.machines["g"].group.generation == 1


def test_commits_that_do_not_fit_one_batch_are_written_one_by_one() -> None:
    world = World(MemoryFiles())
    deferred: list[Any] = []
    world.shard._defer = deferred.append
    world.partition.settings = TopicSettings(log=world.partition.settings.log, max_message_bytes=400)
    for offset in range(5):
        world.commit(offset)
    (flush,) = deferred
    flush()
    world.sync()
    assert world.answers == [Settled({})] * 5
    world.partition.settings = TopicSettings(log=world.partition.settings.log, max_message_bytes=100)
    world.commit(9)
    world.shard.flush()
    assert isinstance(world.answers[-1].error, MessageTooLarge)
