"""Queues whose messages are led by another node, as happens for a moment: everything is the same, by another way."""

from __future__ import annotations

import asyncio

from tests.support.queue_house import QueueHouse, values
from tests.support.virtual_time import run

from penstock.features.queues.core.messages import ReceiptOutcome
from penstock.features.queues.leading.sources import DecodedBatches, LedSource, MessageSource, RemoteSource


def lead_elsewhere(house: QueueHouse) -> None:
    """Have the queues find their messages as if another node had them."""
    remote, decoded = house.broker.partitions, DecodedBatches()

    def source_of(topic: str, partition: int, earlier: MessageSource | None) -> MessageSource:
        if isinstance(earlier, RemoteSource):
            return earlier
        return RemoteSource(topic, partition, remote, decoded)

    house.queues.coordinator.source_of = source_of  # type: ignore[method-assign]


def test_messages_of_another_leader_are_handed_out_and_waited_for() -> None:
    async def story() -> None:
        async with QueueHouse() as house:
            lead_elsewhere(house)
            await house.topic(partitions=2)
            house.put(*"abc")
            taken = await house.take(2)
            assert values(taken) == ["a", "b"]
            assert await house.ack(*taken) == [ReceiptOutcome.DONE, ReceiptOutcome.DONE]
            assert values(await house.take()) == ["c"]
            waiting = asyncio.ensure_future(house.take(wait_ms=20_000))
            await asyncio.sleep(0.3)
            began = asyncio.get_running_loop().time()
            house.put("d", partition=1)
            assert values(await waiting) == ["d"]
            assert asyncio.get_running_loop().time() - began < 3
            (stats,) = await house.queues.stats("orders", "workers")
            assert [(each.committed, each.end, each.in_flight) for each in stats.partitions] == [(2, 3, 1), (0, 1, 1)]
            peeked = await house.queues.peek("orders", "workers", max_messages=9)
            assert [each.record.value for each in peeked] == [b"c", b"d"]

    run(story)


def test_two_who_fetch_at_the_same_moment_never_get_the_same_message() -> None:
    async def story() -> None:
        async with QueueHouse() as house:
            lead_elsewhere(house)
            await house.topic()
            await house.queues.declare("orders", "workers")
            house.put(*(str(at) for at in range(40)))
            taken = await asyncio.gather(*(house.take(5, consumer=f"worker {at}") for at in range(8)))
            seen = [value for messages in taken for value in values(messages)]
            assert len(seen) == len(set(seen))
            while more := await house.take(5):
                seen += values(more)
            assert sorted(seen, key=int) == [str(at) for at in range(40)]

    run(story)


def test_keys_are_read_from_another_leader_too() -> None:
    async def story() -> None:
        async with QueueHouse() as house:
            lead_elsewhere(house)
            await house.topic(queue_order="key")
            await house.queues.declare("orders", "workers")
            house.put("a1", "a2", "b1", keys=["a", "a", "b"])
            both = await asyncio.gather(house.take(consumer="ann"), house.take(consumer="ben"))
            taken = [message for messages in both for message in messages]
            assert sorted(values(taken)) == ["a1", "b1"]
            await house.ack(*taken)
            assert values(await house.take()) == ["a2"]

    run(story)


def test_a_shard_goes_back_to_its_own_partition() -> None:
    async def story() -> None:
        async with QueueHouse() as house:
            here = house.queues.coordinator.source_of
            lead_elsewhere(house)
            await house.topic()
            waiting = asyncio.ensure_future(house.take(wait_ms=20_000))
            await asyncio.sleep(0.3)
            house.queues.coordinator.source_of = here  # type: ignore[method-assign]
            await asyncio.sleep(10)
            (shard,) = list(house.queues.coordinator)
            assert isinstance(shard.source(), LedSource)
            house.put("a")
            assert values(await waiting) == ["a"]

    run(story)
