"""The shell: which partition a group belongs to, time that waits for us, and what is answered while a log is read."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest
from tests.support import peers
from tests.unit.groups.test_partition_journal import World
from tests.unit.groups.transcript import subscription

from penstock.config.settings import GroupSettings
from penstock.consensus.metadata import ClusterMetadata
from penstock.consensus.records import PartitionAssigned, TopicCreated
from penstock.doors.kafka.handler import RequestContext
from penstock.doors.kafka.handlers.groups import heartbeat, list_groups, sync_group
from penstock.doors.kafka.protocol.errors import ErrorCode
from penstock.doors.kafka.protocol.messages import groups as wire
from penstock.errors import CoordinatorLoading, InvalidGroupId, NotCoordinator
from penstock.features.groups.consumer.topics import NoTopics
from penstock.features.groups.coordinator import GroupCoordinator
from penstock.features.groups.messages import CommitOffsets, JoinRequest, Leave, MemberIdentity
from penstock.machines.clocks import PatientClock
from penstock.machines.journal import PartitionJournal
from penstock.machines.leaders import Leaders, shard_of
from penstock.model import OFFSETS_TOPIC
from penstock.supervision import Supervision
from penstock.testing.files import MemoryFiles

NOBODY = MemberIdentity(member_id="")
JOIN = JoinRequest(
    member_id="",
    instance_id=None,
    client_id="c",
    client_host="/here",
    session_timeout_ms=45_000,
    rebalance_timeout_ms=60_000,
    protocol_type="consumer",
    protocols=(("range", subscription("orders")),),
    fresh_id="m",
    takes_id_first=False,
    can_skip_assignment=True,
)


class Clock:
    """Goes on when it is told to."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def now_ms(self) -> int:
        return int(self.seconds * 1000)

    def monotonic(self) -> float:
        return self.seconds


@pytest.mark.parametrize(("name", "hashed"), [("", 0), ("abc", 96354), ("polygenelubricants", 0), ("😀", 1772899)])
def test_a_group_belongs_where_java_would_put_it(name: str, hashed: int) -> None:
    assert shard_of(name, 1 << 31) == hashed


def test_time_stands_still_while_the_node_does() -> None:
    clock = Clock()
    time = PatientClock(clock)
    for _ in range(20):
        clock.seconds += 0.05
        time.tick()
    assert 995 <= time.now_ms() <= 1_000
    clock.seconds += 3_600
    assert time.now_ms() <= 2_000
    time.tick()
    clock.seconds += 0.5
    assert 2_495 <= time.now_ms() <= 2_500


async def coordinator_of(world: World) -> GroupCoordinator:
    clock, metadata, topic_id = Clock(), ClusterMetadata(), UUID(int=1)
    metadata.apply(TopicCreated(name=OFFSETS_TOPIC, topic_id=topic_id))
    one = (1,)
    metadata.apply(
        PartitionAssigned(
            topic_id=topic_id,
            partition=0,
            replicas=one,
            in_sync=one,
            leader=1,
            leader_epoch=0,
            partition_epoch=0,
        )
    )
    leaders, time = Leaders(1, metadata, peers.PeerExchange().join(1), clock), PatientClock(clock)
    coordinator = GroupCoordinator(
        GroupSettings(), leaders, time, NoTopics(), syncs=False, supervision=Supervision(clock)
    )
    coordinator.start()
    coordinator.on_leadership_gained(world.partition)
    return coordinator


async def loaded(coordinator: GroupCoordinator) -> None:
    while coordinator._shards[0].is_loading:  # noqa: ASYNC110
        await asyncio.sleep(0)


def test_who_waits_hears_when_leadership_is_lost_and_when_the_node_stops() -> None:
    async def story() -> None:
        world = World(MemoryFiles())
        for end in ("lost", "stopped"):
            coordinator = await coordinator_of(world)
            await loaded(coordinator)
            waiting = asyncio.ensure_future(coordinator.ask("g", JOIN))
            await asyncio.sleep(0)
            if end == "lost":
                coordinator.on_leadership_lost(world.partition)
            await coordinator.stop()
            with pytest.raises(NotCoordinator):
                await waiting
            with pytest.raises(NotCoordinator):
                await coordinator.ask("g", JOIN)

    asyncio.run(story())


def test_groups_with_members_need_a_name_and_those_that_only_keep_offsets_do_not() -> None:
    async def story() -> None:
        coordinator = await coordinator_of(World(MemoryFiles()))
        await loaded(coordinator)
        with pytest.raises(InvalidGroupId):
            await coordinator.ask("", JOIN)
        with pytest.raises(InvalidGroupId):
            await coordinator.ask("", Leave((NOBODY,)))
        assert (await coordinator.ask("", CommitOffsets(NOBODY, ()))).refused == {}
        await coordinator.stop()

    asyncio.run(story())


@pytest.fixture
def slow_replay(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """A log that takes as long to read as the test likes."""
    go_on = threading.Event()

    def replay(self: PartitionJournal) -> Iterator[Any]:
        go_on.wait(60)
        return iter(())

    monkeypatch.setattr(PartitionJournal, "replay", replay)
    yield go_on
    go_on.set()


def test_while_the_log_is_read_clients_hear_what_they_understand(slow_replay: threading.Event) -> None:
    """Java's client takes "loading" for fatal in the answer to a heartbeat, and old ones in that to a sync."""

    async def story() -> None:
        slow_replay.set()
        world = World(MemoryFiles())
        slow_replay.clear()
        coordinator = await coordinator_of(world)
        context = RequestContext(SimpleNamespace(groups=coordinator), 3, "c", "", "", None)  # type: ignore[arg-type]
        beat = wire.HeartbeatRequest(group_id="g", generation_id=1, member_id="m")
        assert heartbeat(context, beat).error_code == ErrorCode.NONE
        sync = wire.SyncGroupRequest(group_id="g", generation_id=1, member_id="m", assignments=())
        assert (await sync_group(context, sync)).error_code == ErrorCode.REBALANCE_IN_PROGRESS
        assert list_groups(context, wire.ListGroupsRequest()).error_code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        with pytest.raises(CoordinatorLoading):
            await coordinator.ask("g", JOIN)
        slow_replay.set()
        await loaded(coordinator)
        assert heartbeat(context, beat).error_code == ErrorCode.UNKNOWN_MEMBER_ID
        await coordinator.stop()

    asyncio.run(story())
