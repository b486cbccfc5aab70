"""A broker that runs in memory and on virtual time, with messages that die in it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from tests.support import virtual_time
from tests.support.virtual_time import surroundings

from penstock.broker.broker import Broker
from penstock.broker.config import BrokerConfig
from penstock.features.dead_letters.letters import DeadMessage
from penstock.features.messages.publishing import OutgoingMessage, PublishedAt, publish_each
from penstock.features.messages.reading import read_messages
from penstock.features.queues.leases import LeasedRecord
from penstock.features.redrives.records import DeadLetterFilter, RedriveJob
from penstock.records import Record
from penstock.testing.files import MemoryFiles


def make(files: MemoryFiles) -> Broker:
    return Broker(BrokerConfig(node_id=1, data_dir=Path("/data")), surroundings(files))


@asynccontextmanager
async def running(files: MemoryFiles | None = None) -> AsyncIterator[Broker]:
    broker = make(files or MemoryFiles())
    await broker.start()
    try:
        yield broker
    finally:
        await broker.close()


def run(story: Coroutine[Any, Any, None], begin_s: float = 0.0) -> float:
    return virtual_time.run(lambda: story, begin_s=begin_s)


async def until(check: Callable[[], Awaitable[bool]]) -> None:
    for _ in range(2_000):
        if await check():
            return
        await asyncio.sleep(0.005)
    raise AssertionError("it never came to that")


async def publish(broker: Broker, topic: str, *values: bytes, **fields: Any) -> None:
    for outcome in await publish_each(
        broker.ports, topic, [OutgoingMessage(value=value, **fields) for value in values]
    ):
        assert isinstance(outcome, PublishedAt), outcome


async def receive(broker: Broker, topic: str, group: str = "g", limit: int = 100) -> list[LeasedRecord]:
    leases = await broker.queues.receive(topic, group, consumer="c", max_messages=limit, wait_ms=2_000)
    return [message for lease in leases for message in lease.messages()]


async def records(broker: Broker, topic: str, partition: int = 0) -> list[Record]:
    if topic not in broker.metadata.topics:
        return []
    return (await read_messages(broker.ports, topic, partition, "earliest", limit=100_000)).messages


async def values(broker: Broker, topic: str, partition: int = 0) -> list[bytes | None]:
    return [record.value for record in await records(broker, topic, partition)]


async def kill_all(broker: Broker, topic: str, count: int, reason: str = "bad", group: str = "g") -> None:
    """Have the next messages rejected, and wait until they are buried."""
    name = broker.dead_letters.topic_of(topic)
    before = sum([len(await records(broker, name, at)) for at in range(len(broker.metadata.topic(topic).partitions))])
    left = count
    while left:
        messages = await receive(broker, topic, group, left)
        await broker.queues.reject(group, [message.receipt for message in messages], reason=reason)
        left -= len(messages)

    async def is_buried() -> bool:
        partitions = range(len(broker.metadata.topic(topic).partitions))
        return sum([len(await records(broker, name, at)) for at in partitions]) >= before + count

    await until(is_buried)


async def listed(broker: Broker, topic: str, wanted: DeadLetterFilter | None = None, **how: Any) -> list[DeadMessage]:
    return (await broker.dead_letters.page(topic, wanted, **how)).messages


async def finished(broker: Broker, topic: str, job: RedriveJob) -> RedriveJob:
    async def is_over() -> bool:
        return {each.id: each for each in await broker.dead_letters.redrives(topic)}[job.id].state.is_over

    await until(is_over)
    return {each.id: each for each in await broker.dead_letters.redrives(topic)}[job.id]


async def until_count(broker: Broker, topic: str, count: int) -> None:
    async def is_there() -> bool:
        return len(await records(broker, topic)) >= count

    await until(is_there)


async def until_none_dies(broker: Broker, topic: str) -> None:
    async def is_done() -> bool:
        stats = await broker.queues.stats(topic, "g")
        return bool(stats) and all(at.dying == 0 for at in stats[0].partitions)

    await until(is_done)
