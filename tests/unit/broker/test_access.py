"""Partitions led by another node: appended to, read and looked at across a network in memory."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from uuid import UUID

import pytest
from msgspec.structs import replace
from tests.support.peers import PeerExchange
from tests.support.virtual_time import ClockWithHands
from tests.support.virtual_time import run as run_story

from penstock.consensus.metadata import ClusterMetadata
from penstock.consensus.records import NO_LEADER, PartitionAssigned, TopicCreated, TopicDeleted
from penstock.consensus.topic_config import TopicSettings
from penstock.errors import (
    InvalidRecord,
    LeaderNotAvailable,
    LogFailed,
    NotEnoughReplicas,
    NotLeader,
    OffsetNotAvailable,
    OffsetOutOfRange,
    PeerUnavailable,
    RequestTimedOut,
    UnknownPartition,
    UnknownTopic,
)
from penstock.model import TopicPartition
from penstock.partitions.access import APPEND, AppendBatch, PartitionRef, Partitions, PartitionService, SinceTime
from penstock.partitions.partition import LeadershipListener, Partition
from penstock.partitions.replication.followers import Followers, ReplicaAssignment
from penstock.partitions.stats import TopicStats
from penstock.records import Record, decode_records, encode_batch
from penstock.storage.config import LogConfig
from penstock.storage.log import Log
from penstock.testing.files import MemoryFiles

NOW_MS = 1_700_000_000_000
TOPIC_ID = UUID(int=7)
LEADER, ASKER, OTHER = 1, 2, 3


class Syncer:
    """Syncs at once, or not at all until the test says so."""

    def __init__(self) -> None:
        self.is_held = False
        self.partition: Partition | None = None

    def request(self, log: Log) -> None:
        if not self.is_held:
            log.sync()
            assert self.partition is not None
            asyncio.get_running_loop().call_soon(self.partition.on_synced)

    def release(self) -> None:
        self.is_held = False
        assert self.partition is not None
        self.request(self.partition.log)


class Node:
    """A node with one replica of the topic's only partition."""

    def __init__(self, exchange: PeerExchange, node_id: int, settings: TopicSettings | None = None) -> None:
        self.peers = exchange.join(node_id)
        self.syncer = Syncer()
        log = Log.open(MemoryFiles(seed=node_id), Path("/logs/t/0"), LogConfig())
        self.partition = Partition(
            TopicPartition("t", 0), log, settings or TopicSettings(min_insync_replicas=1), TopicStats(), self.syncer
        )
        self.syncer.partition = self.partition
        PartitionService(self, ClockWithHands(), syncs=True).serve(self.peers)

    def get(self, topic: str, index: int) -> Partition:
        return self.partition

    def listen(self, listener: LeadershipListener) -> None:
        """Leadership is what the story says."""

    def has(self, topic: str, index: int) -> bool:
        return (topic, index) == ("t", 0)

    def led(self, topic: str, index: int) -> Partition | None:
        return self.partition if (topic, index) == ("t", 0) and self.partition.is_leader else None

    def find(self, topic_id: UUID, index: int) -> Partition | None:
        return self.partition if (topic_id, index) == (TOPIC_ID, 0) else None


class NoReplicas:
    """The replicas of a node that has none."""

    def get(self, topic: str, index: int) -> Partition:
        raise NotLeader(f"{topic}-{index} is elsewhere.")

    def listen(self, listener: LeadershipListener) -> None:
        """Leadership is what the story says."""

    def has(self, topic: str, index: int) -> bool:
        return False

    def led(self, topic: str, index: int) -> None:
        return None

    def find(self, topic_id: UUID, index: int) -> None:
        return None


class Stage:
    """A leader, another replica, and a node that has none and asks."""

    def __init__(self) -> None:
        self.exchange = PeerExchange()
        self.leader = Node(self.exchange, LEADER)
        self.other = Node(self.exchange, OTHER)
        self.leader.partition.lead(4)
        self.metadata = ClusterMetadata()
        self.metadata.apply(TopicCreated(name="t", topic_id=TOPIC_ID))
        self.assigned = PartitionAssigned(
            topic_id=TOPIC_ID,
            partition=0,
            replicas=(LEADER, OTHER),
            in_sync=(LEADER, OTHER),
            leader=LEADER,
            leader_epoch=4,
            partition_epoch=9,
        )
        self.metadata.apply(self.assigned)
        self.partitions = Partitions(NoReplicas(), self.metadata, self.exchange.join(ASKER), ClockWithHands())

    def assign(self, leader: int, epoch: int) -> None:
        self.metadata.apply(replace(self.assigned, leader=leader, leader_epoch=epoch))

    def move_to_other(self) -> None:
        """The leader is replaced, and whoever asks hears of it last."""
        self.leader.partition.resign()
        self.other.partition.lead(5)

    def values(self, node: Node | None = None) -> list[bytes | None]:
        found = (node or self.leader).partition.read(0, 1 << 20)
        return [] if found is None else [record.value for record in decode_records(found.read())]

    async def append(self, *values: bytes, **options: int) -> int:
        placed = await self.partitions.append("t", 0, batch_of(*values, **options), timeout_ms=500)
        return placed.base_offset


def batch_of(*values: bytes, **options: int) -> bytearray:
    return encode_batch([Record(at, NOW_MS + at, None, value) for at, value in enumerate(values)], **options)  # type: ignore[arg-type]


def run(story: Callable[[Stage], Awaitable[None]]) -> None:
    async def play() -> None:
        await story(Stage())

    run_story(play)


@pytest.fixture(autouse=True)
def _short_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.partitions.access._RETRY_SECONDS", 0.4)
    monkeypatch.setattr("penstock.partitions.access._PAUSE_SECONDS", 0.01)


# -- appending ---------------------------------------------------------------------------------------------------------


def test_an_append_is_answered_when_it_is_committed_and_not_before() -> None:
    async def story(stage: Stage) -> None:
        stage.leader.syncer.is_held = True
        appending = asyncio.ensure_future(stage.append(b"a", b"b"))
        await asyncio.sleep(0.05)
        assert not appending.done()
        assert stage.leader.partition.log.end_offset == 2
        stage.leader.syncer.release()
        assert await appending == 0
        assert stage.values() == [b"a", b"b"]

    run(story)


def test_an_append_that_is_not_committed_in_time_says_that_it_may_still_be() -> None:
    async def story(stage: Stage) -> None:
        stage.leader.syncer.is_held = True
        with pytest.raises(RequestTimedOut, match="may still be"):
            await stage.append(b"a")
        assert stage.leader.partition.log.end_offset == 1, "it was written once"

    run(story)


def test_an_append_follows_the_leader_that_metadata_names_late() -> None:
    async def story(stage: Stage) -> None:
        stage.move_to_other()
        appending = asyncio.ensure_future(stage.append(b"a"))
        await asyncio.sleep(0.05)
        assert not appending.done(), "the old leader refused, and nobody knows the new one yet"
        stage.assign(OTHER, 5)
        assert await appending == 0
        assert (stage.values(), stage.values(stage.other)) == ([], [b"a"])

    run(story)


def test_an_append_waits_for_a_leader_that_does_not_know_of_its_luck_yet() -> None:
    async def story(stage: Stage) -> None:
        stage.leader.partition.resign()
        stage.assign(OTHER, 5)
        appending = asyncio.ensure_future(stage.append(b"a"))
        await asyncio.sleep(0.05)
        stage.other.partition.lead(5)
        assert await appending == 0

    run(story)


def test_an_append_gives_up_on_a_partition_without_a_leader() -> None:
    async def story(stage: Stage) -> None:
        stage.assign(NO_LEADER, 5)
        with pytest.raises(LeaderNotAvailable):
            await stage.append(b"a")

    run(story)


def test_a_batch_that_may_have_been_written_is_not_sent_again() -> None:
    async def story(stage: Stage) -> None:
        stage.leader.syncer.is_held = True
        appending = asyncio.ensure_future(stage.append(b"a"))
        await asyncio.sleep(0.05)
        stage.exchange.cut(ASKER, LEADER)
        with pytest.raises(PeerUnavailable):
            await appending
        stage.exchange.heal()
        await asyncio.sleep(0.05)
        assert stage.leader.partition.log.end_offset == 1

    run(story)


def test_a_batch_that_was_never_sent_is_sent_to_the_next_leader() -> None:
    async def story(stage: Stage) -> None:
        stage.exchange.cut(ASKER, LEADER)
        appending = asyncio.ensure_future(stage.append(b"a"))
        await asyncio.sleep(0.05)
        assert not appending.done()
        stage.move_to_other()
        stage.assign(OTHER, 5)
        assert await appending == 0
        assert (stage.values(), stage.values(stage.other)) == ([], [b"a"])

    run(story)


def test_a_batch_with_sequence_numbers_is_sent_again_and_written_once() -> None:
    async def story(stage: Stage) -> None:
        stage.leader.syncer.is_held = True
        appending = asyncio.ensure_future(stage.append(b"a", b"b", producer_id=5, producer_epoch=0, base_sequence=0))
        await asyncio.sleep(0.05)
        stage.exchange.cut(ASKER, LEADER)
        await asyncio.sleep(0.05)
        stage.exchange.heal()
        stage.leader.syncer.release()
        assert await appending == 0
        assert stage.values() == [b"a", b"b"]

    run(story)


def test_a_leader_that_is_replaced_before_the_commit_cannot_say_what_becomes_of_the_batch() -> None:
    async def story(stage: Stage) -> None:
        stage.leader.syncer.is_held = True
        appending = asyncio.ensure_future(stage.append(b"a"))
        await asyncio.sleep(0.05)
        stage.move_to_other()
        stage.assign(OTHER, 5)
        with pytest.raises(RequestTimedOut, match="another leader"):
            await appending
        assert stage.values(stage.other) == [], "nobody sent it a second time"

    run(story)


def test_errors_cross_as_themselves() -> None:
    async def story(stage: Stage) -> None:
        with pytest.raises(UnknownTopic):
            await stage.partitions.append("nowhere", 0, batch_of(b"a"), timeout_ms=500)
        with pytest.raises(UnknownPartition):
            await stage.partitions.append("t", 1, batch_of(b"a"), timeout_ms=500)
        stage.leader.partition.in_sync_count = 0
        with pytest.raises(NotEnoughReplicas):
            await stage.append(b"a")
        stage.leader.partition.in_sync_count = 1
        with pytest.raises(InvalidRecord):
            await stage.append(b"a", producer_id=5, producer_epoch=0)
        stage.leader.partition.log.fail("The disk is gone.")
        with pytest.raises(LogFailed, match="disk is gone"):
            await stage.append(b"a")

    run(story)


def test_a_topic_of_the_same_name_is_another_one() -> None:
    async def story(stage: Stage) -> None:
        stage.assign(NO_LEADER, 5)
        appending = asyncio.ensure_future(stage.append(b"a"))
        await asyncio.sleep(0.02)
        stage.metadata.apply(TopicDeleted(topic_id=TOPIC_ID))
        other_id = UUID(int=8)
        stage.metadata.apply(TopicCreated(name="t", topic_id=other_id))
        stage.metadata.apply(replace(stage.assigned, topic_id=other_id))
        with pytest.raises(UnknownTopic, match="deleted"):
            await appending

    run(story)


def test_an_old_epoch_is_refused_by_the_leader_itself() -> None:
    async def story(stage: Stage) -> None:
        request = AppendBatch(PartitionRef(TOPIC_ID, 0), 3, 500)
        peers = stage.exchange.join(9)
        with pytest.raises(Exception, match="leader epoch 4"):
            await peers.call(LEADER, APPEND, request, (bytes(batch_of(b"a")),))
        assert stage.leader.partition.log.end_offset == 0

    run(story)


# -- reading -----------------------------------------------------------------------------------------------------------


def test_batches_come_as_they_are_stored_with_how_far_the_partition_reaches() -> None:
    async def story(stage: Stage) -> None:
        await stage.append(b"a", b"b")
        await stage.append(b"c")
        found = await stage.partitions.read("t", 0, 1, 1 << 20)
        assert [record.value for record in decode_records(found.data[: _size_of_first(found.data)])] == [b"a", b"b"]
        assert (found.extent.high_watermark, found.extent.log_start_offset, found.extent.is_leader) == (3, 0, True)
        with pytest.raises(OffsetOutOfRange):
            await stage.partitions.read("t", 0, 9, 1 << 20)

    run(story)


def _size_of_first(data: memoryview) -> int:
    return 12 + int.from_bytes(data[8:12], "big")


def test_a_reader_at_the_end_waits_there_for_more() -> None:
    async def story(stage: Stage) -> None:
        nothing = await stage.partitions.read("t", 0, 0, 1 << 20, wait_ms=20)
        assert not nothing.data
        reading = asyncio.ensure_future(stage.partitions.read("t", 0, 0, 1 << 20, wait_ms=5_000))
        await asyncio.sleep(0.02)
        await stage.append(b"a")
        assert (await asyncio.wait_for(reading, 1)).data

    run(story)


def test_a_waiting_reader_follows_a_leader_that_is_replaced() -> None:
    async def story(stage: Stage) -> None:
        reading = asyncio.ensure_future(stage.partitions.read("t", 0, 0, 1 << 20, wait_ms=5_000))
        await asyncio.sleep(0.02)
        stage.move_to_other()
        stage.assign(OTHER, 5)
        await stage.append(b"a")
        assert (await asyncio.wait_for(reading, 1)).data

    run(story)


def test_starts_are_found_where_the_log_is() -> None:
    async def story(stage: Stage) -> None:
        await stage.append(b"a", b"b", b"c")
        assert await stage.partitions.locate("t", 0, "earliest") == 0
        assert await stage.partitions.locate("t", 0, "latest") == 3
        assert await stage.partitions.locate("t", 0, SinceTime(NOW_MS + 1)) == 1
        assert await stage.partitions.locate("t", 0, 17) == 17

    run(story)


def test_a_new_leader_is_asked_for_the_end_until_it_knows_it() -> None:
    async def story(stage: Stage) -> None:
        partition = stage.leader.partition
        stage.leader.syncer.is_held = True
        appending = asyncio.ensure_future(stage.append(b"a"))
        await asyncio.sleep(0.05)
        partition.resign()
        assigned = ReplicaAssignment(replicas=(LEADER, OTHER), in_sync=(LEADER, OTHER), partition_epoch=10)
        followers = Followers(LEADER, assigned, lambda *_: True, min_in_sync=1, epoch_start=1, lag_s=10, now=0.0)
        partition.lead(5, followers)
        stage.assign(LEADER, 5)
        with pytest.raises(RequestTimedOut):
            await appending
        for start in ("latest", SinceTime(NOW_MS)):
            with pytest.raises(OffsetNotAvailable):
                await stage.partitions.locate("t", 0, start)  # type: ignore[arg-type]
        assert await stage.partitions.locate("t", 0, "earliest") == 0
        locating = asyncio.ensure_future(stage.partitions.locate("t", 0, "latest"))
        await asyncio.sleep(0.05)
        assert not locating.done()
        stage.leader.syncer.release()
        partition.on_fetched(OTHER, 1, 1, 1, 0.1)  # the follower has it, too
        assert await locating == 1

    run(story)


# -- looking -----------------------------------------------------------------------------------------------------------


def test_what_is_led_by_a_node_that_does_not_answer_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.partitions.access._EXTENTS_TIMEOUT_SECONDS", 0.05)

    async def story(stage: Stage) -> None:
        await stage.append(b"a")
        [(where, extent)] = (await stage.partitions.extents([("t", 0), ("t", 1), ("gone", 0)])).items()
        assert (where, extent.high_watermark, extent.log_end_offset) == (("t", 0), 1, 1)
        stage.exchange.cut(ASKER, LEADER)
        assert await stage.partitions.extents([("t", 0)]) == {}

    run(story)


def test_every_replica_tells_what_it_holds() -> None:
    async def story(stage: Stage) -> None:
        await stage.append(b"a")
        found = await stage.partitions.extents_at({("t", 0): (LEADER, OTHER)})
        assert {at: extent.log_end_offset for at, extent in found.items()} == {
            (("t", 0), LEADER): 1,
            (("t", 0), OTHER): 0,
        }

    run(story)


def test_whoever_waits_for_more_is_woken_by_the_first_partition_that_moves() -> None:
    async def story(stage: Stage) -> None:
        waiting = asyncio.ensure_future(stage.partitions.await_more({("t", 0): 0}, 5_000))
        await asyncio.sleep(0.02)
        assert not waiting.done()
        await stage.append(b"a")
        await asyncio.wait_for(waiting, 1)
        await asyncio.wait_for(stage.partitions.await_more({("t", 0): 0}, 5_000), 1)  # there is more already

    run(story)


def test_the_leader_itself_asks_no_other_node() -> None:
    async def story(stage: Stage) -> None:
        at_leader = Partitions(stage.leader, stage.metadata, stage.exchange.join(4), ClockWithHands())
        stage.exchange.cut(4, LEADER)
        waiting = asyncio.ensure_future(at_leader.await_more({("t", 0): 0}, 5_000))
        await asyncio.sleep(0.02)
        assert not waiting.done()
        await stage.append(b"a", b"b")
        await asyncio.wait_for(waiting, 1)
        assert at_leader.local("t", 0) is stage.leader.partition
        assert await at_leader.locate("t", 0, "latest") == 2
        assert (await at_leader.extents([("t", 0)]))[("t", 0)].log_end_offset == 2

    run(story)
