"""Receiving through a real broker: from all partitions, in turn, waiting, and what happens to those who leave."""

from __future__ import annotations

import asyncio

import pytest
from tests.support.queue_house import QueueHouse, values
from tests.support.virtual_time import run

from penstock.config.settings import Fsync, StorageSettings
from penstock.errors import GroupNotFound, InvalidGroupId, InvalidRequest, PolicyViolation, UnknownTopic
from penstock.features.queues.core.messages import ReceiptOutcome
from penstock.partitions.config import PartitionsConfig


def test_messages_are_received_acked_and_gone() -> None:
    async def story() -> None:
        async with QueueHouse() as house:
            await house.topic()
            house.put("a", "b", "c")
            taken = await house.take()
            assert values(taken) == ["a", "b", "c"]
            assert [message.delivery_count for message in taken] == [1, 1, 1]
            assert await house.take() == [], "they are in flight"
            assert await house.ack(*taken) == [ReceiptOutcome.DONE] * 3
            assert await house.ack(*taken) == [ReceiptOutcome.ALREADY_ACKED] * 3
            (stats,) = await house.queues.stats("orders", "workers")
            assert (stats.partitions[0].committed, stats.partitions[0].in_flight) == (3, 0)
            assert stats.partitions[0].oldest_ms is None

    run(story)


def test_a_part_of_a_batch_comes_with_the_whole_batch() -> None:
    async def story() -> None:
        async with QueueHouse() as house:
            await house.topic()
            house.put(*"abcdef")
            (lease,) = await house.queues.receive("orders", "workers", consumer="", max_messages=2)
            assert [tuple(each) for each in lease.deliveries] == [(0, 1, 1)]
            assert values(lease.messages()) == ["a", "b"]
            (lease,) = await house.queues.receive("orders", "workers", consumer="", max_messages=3)
            assert values(lease.messages()) == ["c", "d", "e"]

    run(story)


def test_bytes_limit_an_answer_but_one_batch_always_comes() -> None:
    async def story() -> None:
        async with QueueHouse() as house:
            await house.topic()
            for each in "abc":
                house.put(each * 1000, each)
            assert [value[0] for value in values(await house.take(max_bytes=10))] == ["a", "a"]
            assert [value[0] for value in values(await house.take(max_bytes=5_000))] == ["b", "b", "c", "c"]

    run(story)


def test_partitions_have_their_turn() -> None:
    async def story() -> None:
        async with QueueHouse() as house:
            await house.topic(partitions=3)
            for partition in range(3):
                for _ in range(4):
                    house.put("x", partition=partition)
            served = [message.partition for _ in range(6) for message in await house.take(1)]
            assert served == [0, 1, 2, 0, 1, 2]
            assert len(await house.take(100)) == 6, "what one partition lacks the others have"

    run(story)


def test_a_group_is_remembered_in_every_partition_and_groups_are_independent() -> None:
    async def story() -> None:
        async with QueueHouse() as house:
            await house.topic(partitions=2)
            house.put("a")
            assert await house.queues.groups("orders") == []
            assert values(await house.take(group="red")) == ["a"]
            assert values(await house.take(group="blue")) == ["a"]
            assert await house.queues.groups("orders") == ["blue", "red"]
            (stats,) = await house.queues.stats("orders", "blue")
            assert [each.partition for each in stats.partitions] == [0, 1]

    run(story)


def test_whoever_waits_hears_of_a_message_at_once() -> None:
    async def story() -> None:
        async with QueueHouse() as house:
            await house.topic(partitions=2)
            waiting = asyncio.ensure_future(house.take(wait_ms=10_000))
            await asyncio.sleep(0.1)
            house.put("a", partition=1)
            began = asyncio.get_running_loop().time()
            assert values(await waiting) == ["a"]
            assert asyncio.get_running_loop().time() - began < 0.5
            assert await house.take(wait_ms=50) == []

    run(story)


def test_whoever_waits_hears_of_retries_and_of_ended_leases() -> None:
    async def story() -> None:
        async with QueueHouse() as house:
            await house.topic()
            house.put("a")
            taken = await house.take()
            await house.nack(*taken, delay_ms=150)
            began = asyncio.get_running_loop().time()
            again = await house.take(wait_ms=5_000, visibility_timeout_ms=100)
            assert 0.1 <= asyncio.get_running_loop().time() - began < 0.5
            assert [message.delivery_count for message in again] == [2]
            (third,) = await house.take(wait_ms=5_000)
            assert third.delivery_count == 3
            assert await house.ack(*again) == [ReceiptOutcome.REDELIVERED]
            assert await house.ack(third) == [ReceiptOutcome.DONE]

    run(story)


def test_those_who_wait_are_served_in_turn_and_each_message_goes_to_one() -> None:
    async def story() -> None:
        async with QueueHouse() as house:
            await house.topic()
            await house.queues.declare("orders", "workers")
            waiting = []
            for place, name in enumerate(("ann", "ben", "cy"), 1):
                waiting.append(asyncio.ensure_future(house.take(1, wait_ms=20_000, consumer=name)))
                await house.line(place)
            house.put("a")
            assert values(await waiting[0]) == ["a"]
            house.put("b", "c")
            assert sorted(values(await waiting[1]) + values(await waiting[2])) == ["b", "c"]

    run(story)


def test_who_is_full_does_not_keep_a_message_from_others() -> None:
    async def story() -> None:
        async with QueueHouse() as house:
            await house.topic(queue_in_flight_consumer_max="1")
            house.put("a")
            (first,) = await house.take(consumer="ann")
            full = asyncio.ensure_future(house.take(wait_ms=20_000, consumer="ann"))
            await house.line(1)
            free = asyncio.ensure_future(house.take(wait_ms=20_000, consumer="ben"))
            await house.line(2)
            house.put("b", "c")
            assert values(await free) == ["b"]
            await asyncio.sleep(0.05)
            assert not full.done()
            await house.ack(first)
            assert values(await full) == ["c"]

    run(story)


def test_a_wait_that_is_cancelled_takes_nothing_and_passes_the_turn_on() -> None:
    async def story() -> None:
        async with QueueHouse() as house:
            await house.topic()
            await house.queues.declare("orders", "workers")
            first = asyncio.ensure_future(house.take(1, wait_ms=20_000))
            await house.line(1)
            second = asyncio.ensure_future(house.take(1, wait_ms=20_000))
            await house.line(2)
            house.put("a")  # wakes the first, who goes before it can look
            first.cancel()
            taken = await second
            assert values(taken) == ["a"]
            assert [message.delivery_count for message in taken] == [1]

    run(story)


def test_what_is_granted_to_somebody_who_is_gone_by_then_is_given_back() -> None:
    async def story() -> None:
        async with QueueHouse(partitions=PartitionsConfig(storage=StorageSettings(fsync=Fsync.EVERY))) as house:
            await house.topic()
            await house.queues.declare("orders", "workers")
            house.put("a", "b")
            acked = await house.take(1)
            acking = asyncio.ensure_future(house.ack(*acked))  # its sync is under way, and the grant waits for that
            gone = asyncio.ensure_future(house.take())
            await asyncio.sleep(0)
            (queue,) = [shard.machines["workers"] for shard in house.queues.coordinator]
            assert queue.in_flight == 1
            assert not gone.done()
            gone.cancel()
            await acking
            taken = await house.take(wait_ms=2_000)
            assert values(taken) == ["b"]
            assert taken[0].delivery_count == 1

    run(story)


def test_a_node_that_stops_ends_waits_with_nothing() -> None:
    async def story() -> None:
        house = QueueHouse()
        await house.broker.start()
        await house.topic()
        waiting = asyncio.ensure_future(house.take(wait_ms=20_000))
        await asyncio.sleep(0.1)
        began = asyncio.get_running_loop().time()
        await house.broker.close()
        assert await waiting == []
        assert asyncio.get_running_loop().time() - began < 5

    run(story)


def test_what_makes_no_sense_is_refused() -> None:
    async def story() -> None:
        async with QueueHouse() as house:
            await house.topic()
            with pytest.raises(UnknownTopic):
                await house.take(topic="nobody")
            with pytest.raises(PolicyViolation):
                await house.take(topic="__queue.orders")
            with pytest.raises(InvalidGroupId):
                await house.take(group="")
            for bad in ({"max_messages": 0}, {"wait_ms": -1}, {"max_bytes": 0}, {"consumer": "x" * 300}):
                with pytest.raises(InvalidRequest):
                    await house.take(**bad)  # type: ignore[arg-type]
            house.put("a")
            for timeout_ms in (0, -5, 10**12):
                with pytest.raises(InvalidRequest):
                    await house.take(visibility_timeout_ms=timeout_ms)
            with pytest.raises(GroupNotFound):
                await house.queues.ack("strangers", ["orders:0:0:1:1aaaaaaaaaaaaaaaa"])
            with pytest.raises(UnknownTopic):
                await house.queues.ack("workers", [], topic="nobody")
            taken = await house.take()
            verdicts = await house.queues.ack(
                "workers",
                ["rubbish", "other:0:0:1:1aaaaaaaaaaaaaaaa", "orders:7:0:1:1aaaaaaaaaaaaaaaa", taken[0].receipt],
            )
            assert [verdict.fate for verdict in verdicts] == [
                ReceiptOutcome.MALFORMED,
                ReceiptOutcome.FOREIGN,
                ReceiptOutcome.FOREIGN,
                ReceiptOutcome.DONE,
            ]

    run(story)
