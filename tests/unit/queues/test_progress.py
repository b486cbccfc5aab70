"""How far queue groups are: told to the group coordinator and to retention, but only once it cannot be lost."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from tests.support.queue_house import QueueHouse
from tests.support.virtual_time import run

from penstock.clock import SystemClock
from penstock.consensus.controller import TopicSpec
from penstock.errors import InvalidTopicName, NotCoordinator, PenstockError, PolicyViolation, UnknownTopic
from penstock.features.groups.messages import CommitOffsets, DeleteOffsets, MemberIdentity, OffsetCommit
from penstock.features.queues.leading.progress import QueueProgress, TrimAcked
from penstock.features.queues.leading.shard import ensure_companion
from penstock.model import OFFSETS_TOPIC
from penstock.supervision import Supervision


def offsets(house: QueueHouse, group: str = "workers", topic: str = "orders") -> dict[int, int]:
    """What Kafka's tools would be told."""
    found = house.broker.groups.find(group) if house.broker.has_groups else None
    topic_id = house.broker.metadata.topic(topic).topic_id.hex
    if found is None:
        return {}
    kept = {where: found.offsets.get(where) for where in found.offsets}
    return {where[1]: one.offset for where, one in kept.items() if where[0] == topic and one.topic_id == topic_id}


async def step(house: QueueHouse) -> None:
    """A round of upkeep, twice: what is settled in the first is told in the second."""
    for _ in range(2):
        await house.queues._progress.step()
        await asyncio.sleep(0.01)


# -- offsets -----------------------------------------------------------------------------------------------------------


def test_a_group_that_is_moved_or_forgotten_is_so_for_the_tools_too() -> None:
    async def story() -> None:
        async with QueueHouse() as house:
            await house.topic(partitions=2)
            house.put("a", "b", "c")
            await house.ack(*await house.take(2))
            await step(house)
            assert offsets(house) == {0: 2, 1: 0}
            await house.queues.seek("orders", "workers", "earliest")
            await step(house)
            assert offsets(house) == {0: 0, 1: 0}
            await house.queues.forget("orders", "workers")
            await step(house)
            assert offsets(house) == {}
            assert house.broker.groups.find("workers") is None, "nothing of it is left"

    run(story)


def test_a_topic_made_again_under_the_same_name_shows_nothing_of_the_old_one() -> None:
    async def story() -> None:
        async with QueueHouse() as house:
            await house.topic()
            house.put("a", "b", "c")
            await house.ack(*await house.take(3))
            await step(house)
            assert offsets(house) == {0: 3}
            await house.broker.delete_topic("orders")
            await house.topic()
            await step(house)
            assert offsets(house) == {}
            house.put("d")
            await house.ack(*await house.take(1))
            await step(house)
            assert offsets(house) == {0: 1}

    run(story)


def test_many_queues_are_committed_in_a_round() -> None:
    async def story() -> None:
        async with QueueHouse() as house:
            await house.topic()
            commits = house.queues._progress._commits
            for number in range(1_100):
                commits.note("orders", 0, f"group-{number}", number)
            await commits.commit_due()
            assert [offsets(house, f"group-{number}") for number in (0, 499, 500, 1_099)] == [
                {0: 0},
                {0: 499},
                {0: 500},
                {0: 1_099},
            ]

    run(story)


def test_an_offset_that_somebody_else_committed_is_left_alone() -> None:
    async def story() -> None:
        async with QueueHouse() as house:
            await house.topic()
            await house.broker.ensure_offsets_topic()
            await house.broker.groups.await_shard("workers")
            topic_id = house.broker.metadata.topic("orders").topic_id.hex
            own = OffsetCommit("orders", 0, 1, -1, "", topic_id)
            await house.broker.groups.ask("workers", CommitOffsets(MemberIdentity(member_id=""), (own,)))
            house.put("a", "b", "c")
            await house.ack(*await house.take(3))
            await step(house)
            assert offsets(house) == {0: 1}
            await house.queues.forget("orders", "workers")
            await step(house)
            assert offsets(house) == {0: 1}

    run(story)


def test_what_could_not_be_committed_is_committed_later_unless_it_changed() -> None:
    async def story() -> None:
        async with QueueHouse() as house:
            await house.topic()
            await house.broker.ensure_offsets_topic()
            await house.broker.groups.await_shard("workers")
            commits = house.queues._progress._commits
            lost = [
                house.broker.partition(OFFSETS_TOPIC, index)
                for index in range(len(house.broker.metadata.topic(OFFSETS_TOPIC).partitions))
            ]
            for partition in lost:
                house.broker.groups.on_leadership_lost(partition)
            commits.note("orders", 0, "workers", 5)
            commits.note("orders", 0, "others", 7)
            await commits.commit_due()
            commits.note("orders", 0, "workers", 6)
            with pytest.raises(NotCoordinator):
                house.broker.groups.find("workers")
            for partition in lost:
                house.broker.groups.on_leadership_gained(partition)
            await commits.commit_due()
            assert offsets(house) == {0: 6}
            assert offsets(house, "others") == {0: 7}

    run(story)


def test_a_queue_that_stands_still_is_not_forgotten_by_the_coordinator() -> None:
    async def story() -> None:
        async with QueueHouse() as house:
            await house.topic()
            house.put("a", "b")
            await house.ack(*await house.take(1))
            await step(house)
            await house.broker.groups.ask("workers", DeleteOffsets((("orders", 0),)))
            await step(house)
            assert offsets(house) == {}, "nothing changed"
            commits = house.queues._progress._commits
            commits._renewed_ms -= house.broker.config.groups.offsets_retention_ms
            await step(house)
            assert offsets(house) == {0: 1}

    run(story)


# -- what is certain ---------------------------------------------------------------------------------------------------


class Waiting:
    """The queues of a partition whose companion does not get what it needs to be committed."""

    def __init__(self, **committed: int) -> None:
        self.topic, self.partition = "orders", 0
        self.machines: Any = {name: SimpleNamespace(committed=offset) for name, offset in committed.items()}
        self.waits: list[Callable[[PenstockError | None], None]] = []

    def when_settled(self, done: Callable[[PenstockError | None], None]) -> None:
        self.waits.append(done)


class Listener:
    """Takes the part of commits and of retention."""

    def __init__(self) -> None:
        self.told: list[object] = []

    def follow(self, topic: str, partition: int, committed: dict[str, int]) -> None:
        self.told.append(committed)

    def drop(self, topic: str, partition: int) -> None:
        self.told.append("dropped")

    async def commit_due(self) -> None: ...
    async def trim_due(self) -> None: ...


def test_nothing_is_told_before_it_is_certain() -> None:
    async def story() -> None:
        shard, listener = Waiting(a=5), Listener()
        led = [shard]
        progress = QueueProgress(led, listener, listener, Supervision(SystemClock()))  # type: ignore[arg-type]
        await progress.step()
        await progress.step()
        assert (len(shard.waits), listener.told) == (1, [])
        shard.machines["a"].committed = 9
        await progress.step()
        shard.waits[0](None)
        assert listener.told == [{"a": 5}, {"a": 5}]
        shard.waits[1](NotCoordinator("Leadership is gone."))
        assert len(listener.told) == 2
        led[0] = Waiting(a=7)
        await progress.step()
        led[0].waits[0](None)
        assert listener.told[2:] == ["dropped", "dropped", {"a": 7}, {"a": 7}]
        shard.waits[1](None)
        assert len(listener.told) == 6, "what an earlier leadership has to say is over"

    run(story)


# -- retention ---------------------------------------------------------------------------------------------------------


def test_the_log_begins_where_the_slowest_group_is() -> None:
    async def story() -> None:
        async with QueueHouse() as house:
            await house.topic(queue_retention="acked")
            house.put(*"abcdef")
            await house.queues.declare("orders", "slow")
            await house.ack(*await house.take(6))
            await step(house)
            log = house.broker.partition("orders", 0).log
            assert log.start_offset == 0
            await house.queues.forget("orders", "slow")
            house.queues._progress._retention._not_before_ms.clear()
            await step(house)
            assert log.start_offset == 6

    run(story)


def test_a_trim_for_a_topic_that_is_gone_leaves_the_next_one_alone() -> None:
    async def story() -> None:
        async with QueueHouse() as house:
            await house.topic(queue_retention="acked")
            house.put(*"abc")
            retention = house.queues._progress._retention
            retention.follow("orders", 0, {"workers": 3})
            old = house.broker.metadata.topic("orders").topic_id
            await house.broker.delete_topic("orders")
            await house.topic(queue_retention="acked")
            house.put(*"def")
            assert house.broker.metadata.topic("orders").topic_id != old
            await retention._on_trim(1, TrimAcked("orders", old, 0, 3), memoryview(b""))
            assert house.broker.partition("orders", 0).log.start_offset == 0

    run(story)


# -- companions --------------------------------------------------------------------------------------------------------


def test_two_that_ask_for_a_companion_at_once_get_the_same() -> None:
    async def story() -> None:
        async with QueueHouse() as house:
            await house.topic(partitions=3)
            first, second = await asyncio.gather(*(ensure_companion(house.broker.ports, "orders") for _ in range(2)))
            assert first.topic_id == second.topic_id
            assert len(first.partitions) == 3
            assert all(house.broker.replicas.has("__queue.orders", index) for index in range(3))
            await house.broker.add_partitions("orders", 5)
            assert len((await ensure_companion(house.broker.ports, "orders")).partitions) == 5

    run(story)


def test_what_cannot_have_a_companion_says_why() -> None:
    async def story() -> None:
        async with QueueHouse() as house:
            await house.broker.ensure_offsets_topic()
            await house.broker.create_topic(TopicSpec(name="x" * 245))
            for topic, error in (
                ("nothing", UnknownTopic),
                (OFFSETS_TOPIC, PolicyViolation),
                ("__queue.orders", PolicyViolation),
                ("x" * 245, InvalidTopicName),
            ):
                with pytest.raises(error):
                    await ensure_companion(house.broker.ports, topic)

    run(story)
