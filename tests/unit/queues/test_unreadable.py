"""Messages that nobody can unpack: they go to the dead letters and hold up nobody else."""

from __future__ import annotations

import asyncio
from random import Random

import pytest
from tests.support.poison import poisoned
from tests.support.queue_house import QueueHouse, values
from tests.support.virtual_time import run

from penstock.errors import NotLeader, UnknownTopic
from penstock.features.queues.leases import reject_unreadable, unpack
from penstock.records import Record, decode_records, iter_batches


def put_poison(house: QueueHouse, count: int = 3, size: int = 1) -> None:
    now_ms = house.broker.clock.now_ms()
    batch = poisoned(*("x" * size for _ in range(count)), at_ms=now_ms)
    house.broker.partition("orders", 0).append(memoryview(batch), now_ms, is_durable=False)


async def dead_letters(house: QueueHouse, count: int) -> list[Record]:
    """The dead letters of the topic, once there are so many."""
    while True:
        await asyncio.sleep(0.01)
        if "orders.dlq" not in house.broker.metadata.topics:
            continue
        try:
            partition = house.broker.partition("orders.dlq", 0)
        except (NotLeader, UnknownTopic):  # it is being made
            continue
        if partition.last_stable_offset < count:
            continue
        found = partition.read(0, 1 << 20, is_committed_only=True)
        assert found is not None
        data = memoryview(found.read())
        return [
            record
            for position, header in iter_batches(data)
            for record in decode_records(data[position : position + header.size])
        ]


@pytest.mark.parametrize("order", ["none", "key"])
def test_what_cannot_be_unpacked_goes_to_the_dead_letters_and_the_rest_is_delivered(order: str) -> None:
    async def story() -> None:
        async with QueueHouse() as house:
            await house.topic(queue_order=order)
            house.put("a", "b")
            put_poison(house)
            house.put("c")
            leases = await house.queues.receive("orders", "workers", consumer="", max_messages=100)
            messages, unreadable, _ = unpack(leases, 1 << 20)
            assert values(messages) == ["a", "b", "c"]
            assert sum(each.size for each in unreadable) == 3
            await reject_unreadable(house.queues, "workers", unreadable)
            letters = await dead_letters(house, 3)
            headers = [dict(letter.headers) for letter in letters]
            assert [header["penstock-dlq-offset"] for header in headers] == [b"2", b"3", b"4"]
            for header in headers:
                assert "cannot be unpacked" in (header["penstock-dlq-reason"] or b"").decode()
                assert b"does not decompress" in (header["penstock-dlq-error"] or b"")
            await house.ack(*messages)
            (stats,) = await house.queues.stats("orders", "workers")
            assert stats.partitions[0].committed == 6

    run(story)


def test_one_message_of_a_large_batch_is_not_held_up_by_what_cannot_be_cut() -> None:
    async def story() -> None:
        async with QueueHouse() as house:
            await house.topic()
            now_ms = house.broker.clock.now_ms()
            random = Random(1)
            noise = [random.randbytes(100).hex() for _ in range(100)]
            batch = poisoned(*noise, at_ms=now_ms)
            assert len(batch) >= 4096, "else nobody would cut it"
            house.broker.partition("orders", 0).append(memoryview(batch), now_ms, is_durable=False)
            leases = await house.queues.receive("orders", "workers", consumer="", max_messages=1)
            messages, unreadable, _ = unpack(leases, 1 << 20)
            assert (messages, [each.size for each in unreadable]) == ([], [1])
            assert unreadable[0].receipt.startswith("orders:0:0:1:")

    run(story)


def test_peeking_shows_that_something_cannot_be_unpacked() -> None:
    async def story() -> None:
        async with QueueHouse() as house:
            await house.topic()
            await house.queues.declare("orders", "workers")
            put_poison(house, 1)
            house.put("a")
            first, second = await house.queues.peek("orders", "workers", max_messages=10)
            assert first.record.value is None
            assert b"cannot be unpacked" in (dict(first.record.headers)["penstock-dlq-error"] or b"")
            assert second.record.value == b"a"

    run(story)


def test_what_could_not_be_rejected_comes_again_after_its_lease() -> None:
    async def story() -> None:
        async with QueueHouse() as house:
            await house.topic()
            put_poison(house, 1)
            leases = await house.queues.receive(
                "orders", "workers", consumer="", max_messages=1, visibility_timeout_ms=30
            )
            _, unreadable, _ = unpack(leases, 1 << 20)
            await asyncio.sleep(0.1)
            await reject_unreadable(house.queues, "workers", unreadable)
            (again,) = await house.queues.receive("orders", "workers", consumer="", max_messages=1, wait_ms=1_000)
            assert [tuple(each) for each in again.deliveries] == [(0, 0, 2)]

    run(story)
