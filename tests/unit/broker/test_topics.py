"""Topics that are made when they are first needed: once, as declared, and open here when the caller goes on."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Iterable

import pytest
from tests.support.queue_house import QueueHouse
from tests.support.queue_nodes import NODES, QueueNodes, until
from tests.support.virtual_time import run

from penstock.broker.broker import Broker
from penstock.config.settings import GroupSettings
from penstock.consensus.metadata import Topic
from penstock.errors import ControllerUnavailable, InvalidConfig, PolicyViolation, UnknownTopic
from penstock.model import OFFSETS_TOPIC, REDRIVES_TOPIC, SCHEDULES_TOPIC, TRANSACTIONS_TOPIC
from penstock.testing.files import MemoryFiles

_METADATA_CALLS = 4  # of the disk, until the controller has decided


async def ensured(broker: Broker, name: str = OFFSETS_TOPIC) -> Topic:
    """An internal topic, whose partitions are open here by the time that the caller has it."""
    topic = await broker.topics.ensure_internal(name)
    mine = [each.partition for each in topic.partitions if broker.config.node_id in each.replicas]
    assert mine, "every node of these tests has a replica"
    assert all(broker.replicas.has(name, partition) for partition in mine)
    return topic


def one_id(topics: Iterable[Topic]) -> None:
    assert len({topic.topic_id for topic in topics}) == 1


@pytest.mark.parametrize("name", [OFFSETS_TOPIC, TRANSACTIONS_TOPIC, SCHEDULES_TOPIC, REDRIVES_TOPIC])
def test_an_internal_topic_is_made_as_declared_and_found_from_then_on(name: str) -> None:
    async def story() -> None:
        async with QueueHouse(groups=GroupSettings(offsets_partitions=7)) as house:
            made = await ensured(house.broker, name)
            assert made.configs["cleanup.policy"] == "compact"
            assert len(made.partitions) == (7 if name == OFFSETS_TOPIC else len(made.partitions))
            decided = house.broker.quorum.applied_index
            assert await ensured(house.broker, name) is made
            assert house.broker.quorum.applied_index == decided, "no command was needed"

    run(story)


def test_of_callers_that_race_on_one_node_one_makes_the_topic_and_all_find_it_open() -> None:
    async def story() -> None:
        async with QueueHouse() as house:

            async def late(turns: int) -> Topic:
                for _ in range(turns):
                    await asyncio.sleep(0)
                return await ensured(house.broker)

            one_id(await asyncio.gather(*(late(turns) for turns in range(60))))

    run(story)


def test_of_nodes_that_race_one_makes_the_topic_and_all_find_it_open() -> None:
    async def story() -> None:
        async with QueueNodes() as nodes:
            for name in (OFFSETS_TOPIC, TRANSACTIONS_TOPIC):
                found = await asyncio.gather(*(ensured(nodes.brokers[node_id], name) for node_id in NODES * 3))
                one_id(found)
                assert all(sorted(each.replicas) == [1, 2, 3] for each in found[0].partitions)

    run(story)


def test_a_topic_that_is_there_stays_as_it_is_whatever_would_be_made_today() -> None:
    files = MemoryFiles()

    async def first() -> None:
        async with QueueHouse(files, groups=GroupSettings(offsets_partitions=7)) as house:
            await ensured(house.broker)

    async def second() -> None:
        async with QueueHouse(files, groups=GroupSettings(offsets_partitions=3)) as house:
            topic = await ensured(house.broker)
            assert len(topic.partitions) == 7

    run(first, second)


def test_settings_that_no_topic_can_have_are_refused_and_nothing_is_made() -> None:
    async def story() -> None:
        async with QueueHouse() as house:
            with pytest.raises(InvalidConfig):
                await house.broker.topics.ensure_internal(OFFSETS_TOPIC, {"cleanup.policy": "sometimes"})
            assert OFFSETS_TOPIC not in house.broker.metadata.topics
            assert (await ensured(house.broker)).configs["cleanup.policy"] == "compact"

    run(story)


def test_what_clients_cannot_ask_for_by_name_is_not_made_for_them() -> None:
    async def story() -> None:
        async with QueueHouse() as house:
            assert (await house.broker.topics.ensure(OFFSETS_TOPIC)).name == OFFSETS_TOPIC
            for name in (SCHEDULES_TOPIC, "__queue.orders"):
                with pytest.raises(PolicyViolation):
                    await house.broker.topics.ensure(name)
                assert name not in house.broker.metadata.topics
            await asyncio.sleep(1)  # of virtual time, until the logs are read
        async with QueueHouse(auto_create_topics=False) as house:
            with pytest.raises(UnknownTopic):
                await house.broker.topics.ensure("orders")

    run(story)


def test_with_fewer_nodes_than_replicas_it_is_made_on_those_that_are_there() -> None:
    async def story() -> None:
        async with QueueNodes() as nodes:
            await nodes.stop(3)
            broker = nodes.brokers[1]
            await until(lambda: broker.metadata.nodes[3].is_fenced)
            assert all(sorted(each.replicas) == [1, 2] for each in (await ensured(broker)).partitions)

    run(story)


def test_without_a_controller_nothing_is_made_and_the_next_try_makes_it_once() -> None:
    async def story() -> None:
        async with QueueNodes() as nodes:
            lone = nodes.brokers[2]
            nodes.cut_off(2)
            with pytest.raises(ControllerUnavailable):
                await lone.topics.ensure_internal(OFFSETS_TOPIC)
            others = [nodes.brokers[1], nodes.brokers[3]]
            await until(lambda: any(broker.metadata.nodes[2].is_fenced for broker in others))
            nodes.exchange.heal()
            await until(lambda: not any(broker.metadata.nodes[2].is_fenced for broker in (lone, *others)))
            one_id(await asyncio.gather(*(ensured(broker) for broker in nodes.brokers.values())))

    run(story)


def test_an_answer_that_is_lost_leaves_one_topic() -> None:
    async def story() -> None:
        async with QueueNodes() as nodes:
            controller = nodes.brokers[1].quorum.leader_id
            assert controller is not None
            asking = next(node_id for node_id in NODES if node_id != controller)
            call = asyncio.ensure_future(ensured(nodes.brokers[asking]))
            await asyncio.sleep(0)
            nodes.exchange.cut(controller, asking, is_one_way=True, is_noticed=False)
            await until(lambda: OFFSETS_TOPIC in nodes.brokers[controller].metadata.topics)
            nodes.exchange.heal()
            one_id([await call, *[await ensured(broker) for broker in nodes.brokers.values()]])

    run(story)


def test_wherever_the_disk_refuses_once_the_topic_is_there_and_opens_later() -> None:
    async def story(nth: int) -> bool:
        async with QueueHouse(groups=GroupSettings(offsets_partitions=2)) as house:
            files, broker = house.files, house.broker
            files.fail_with, files.fail_at = errno.ENOSPC, files.calls + _METADATA_CALLS + nth
            topic = await broker.topics.ensure_internal(OFFSETS_TOPIC)
            was_open = all(broker.replicas.has(OFFSETS_TOPIC, partition) for partition in range(2))
            await broker.replicas.open_missing()
            assert await ensured(broker) is topic
            await asyncio.sleep(1)  # of virtual time, until their logs are read
            return was_open

    outcomes = []
    for nth in range(1, 30):

        async def nth_story(nth: int = nth) -> None:
            outcomes.append(await story(nth))

        run(nth_story)
    assert not all(outcomes), "some of the failures kept a partition closed"
