"""The shell: which partition a group belongs to, time that waits for us, and what is answered while a log is read."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from tests.unit.groups.test_partition_journal import World
from tests.unit.groups.transcript import subscription

from penstock.broker.coordination.coordinator import PatientClock, shard_of
from penstock.broker.coordination.journal import PartitionJournal
from penstock.broker.groups.config import GroupConfig
from penstock.broker.groups.consumer.topics import NoTopics
from penstock.broker.groups.coordinator import GroupCoordinator
from penstock.broker.groups.messages import Commit, Join, Leave, MemberIdentity
from penstock.errors import CoordinatorLoading, InvalidGroupId, NotCoordinator
from penstock.kafka.exchange import Exchange
from penstock.kafka.handlers.groups import heartbeat, list_groups, sync_group
from penstock.kafka.protocol import group_messages as wire
from penstock.kafka.protocol.errors import ErrorCode
from penstock.testing.files import MemoryFiles

NOBODY = MemberIdentity(member_id="")
JOIN = Join(
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
    coordinator = GroupCoordinator(GroupConfig(), Clock(), NoTopics(), syncs=False)
    coordinator.start(lambda: 1)
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
        assert (await coordinator.ask("", Commit(NOBODY, ()))).refused == {}
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
        exchange = Exchange(SimpleNamespace(groups=coordinator), 3, "c", "", "")  # type: ignore[arg-type]
        beat = wire.HeartbeatRequest(group_id="g", generation_id=1, member_id="m")
        assert heartbeat(exchange, beat).error_code == ErrorCode.NONE
        sync = wire.SyncGroupRequest(group_id="g", generation_id=1, member_id="m", assignments=())
        assert (await sync_group(exchange, sync)).error_code == ErrorCode.REBALANCE_IN_PROGRESS
        assert list_groups(exchange, wire.ListGroupsRequest()).error_code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        with pytest.raises(CoordinatorLoading):
            await coordinator.ask("g", JOIN)
        slow_replay.set()
        await loaded(coordinator)
        assert heartbeat(exchange, beat).error_code == ErrorCode.UNKNOWN_MEMBER_ID
        await coordinator.stop()

    asyncio.run(story())
