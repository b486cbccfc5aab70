"""Attempts to receive whose answer was lost: made again they get the messages, and no try was spent."""

from __future__ import annotations

import pytest
from tests.support.queue_house import QueueHouse, values
from tests.support.queue_nodes import NODES, QueueNodes
from tests.support.virtual_time import run

from penstock.broker.broker import Broker
from penstock.errors import InvalidRequest, UnknownTopic
from penstock.features.queues.core.messages import OfferedSpan, ReceiptOutcome
from penstock.features.queues.leases import Attempts, LeasedRecord, PartitionLease


async def attempt(broker: Broker, name: str, *, is_repeat: bool = False, max_messages: int = 100) -> list[LeasedRecord]:
    await broker.queues.begin_attempt("orders", "workers", name, is_repeat=is_repeat)
    leases = await broker.queues.receive(
        "orders", "workers", consumer="ann", max_messages=max_messages, attempt=name, wait_ms=5_000
    )
    return [message for lease in leases for message in lease.messages()]


def lease(partition: int = 0, spans: int = 1) -> PartitionLease:
    return PartitionLease(
        "orders", partition, "nonce", 0, tuple(OfferedSpan(at, at, 1) for at in range(spans)), b"batches"
    )


@pytest.mark.parametrize("order", ["none", "key"])
def test_an_attempt_made_again_gets_the_same_messages_at_the_same_count(order: str) -> None:
    async def story() -> None:
        async with QueueHouse() as house:
            await house.topic(partitions=2, queue_order=order)
            house.put("a", "b", partition=0, keys=["k", "l"])
            house.put("c", partition=1, keys=["m"])
            for _ in range(5):  # more often than there are tries
                again = await attempt(house.broker, "one")
                assert sorted(values(again)) == ["a", "b", "c"]
                assert {message.delivery_count for message in again} == {1}
            assert await house.take() == [], "they are in flight"
            assert await house.ack(*again) == [ReceiptOutcome.DONE] * 3

    run(story)


def test_what_was_settled_meanwhile_stays_settled() -> None:
    async def story() -> None:
        async with QueueHouse() as house:
            await house.topic()
            house.put("a", "b")
            first = await attempt(house.broker, "one")
            await house.ack(first[0])
            again = await attempt(house.broker, "one")
            assert values(again) == ["b"]
            assert await house.ack(first[1]) == [ReceiptOutcome.REDELIVERED], "the first attempt's lease is over"

    run(story)


def test_another_attempt_takes_nothing_away() -> None:
    async def story() -> None:
        async with QueueHouse() as house:
            await house.topic()
            house.put("a", "b")
            first = await attempt(house.broker, "one", max_messages=1)
            assert values(await attempt(house.broker, "two", is_repeat=True)) == ["b"]
            assert await house.ack(*first) == [ReceiptOutcome.DONE]

    run(story)


def test_attempts_have_names_and_topics() -> None:
    async def story() -> None:
        async with QueueHouse() as house:
            with pytest.raises(UnknownTopic):
                await house.queues.begin_attempt("orders", "workers", "one")
            await house.topic()
            for name in ("", "x" * 65):
                with pytest.raises(InvalidRequest):
                    await house.queues.begin_attempt("orders", "workers", name)

    run(story)


def test_an_attempt_is_made_again_at_another_node() -> None:
    async def story() -> None:
        async with QueueNodes() as nodes:
            await nodes.topic()
            for partition in range(3):
                await nodes.put(f"a{partition}", partition=partition)
            for node_id in (*NODES, *NODES):
                again = await attempt(nodes.brokers[node_id], "one", is_repeat=True)
                more = await nodes.brokers[node_id].queues.receive(
                    "orders", "workers", consumer="ann", max_messages=100, attempt="one"
                )
                again += [message for lease in more for message in lease.messages()]
                assert sorted(values(again)) == ["a0", "a1", "a2"]
                assert {message.delivery_count for message in again} == {1}

    run(story)


# -- what is remembered ------------------------------------------------------------------------------------------------


def test_what_an_attempt_got_is_taken_once_and_without_its_batches() -> None:
    attempts = Attempts()
    assert not attempts.note(("t", "g", "one"), [lease(0)], now=0)
    assert attempts.note(("t", "g", "one"), [lease(1)], now=1)
    assert [(each.partition, each.batches) for each in attempts.take(("t", "g", "one"), now=2)] == [(0, b""), (1, b"")]
    assert attempts.take(("t", "g", "one"), now=2) == []


def test_old_attempts_and_those_that_are_too_many_are_forgotten() -> None:
    attempts = Attempts(attempts_max=3, spans_max=10)
    for at in range(5):
        attempts.note(("t", "g", str(at)), [lease()], now=at)
    assert len(attempts) == 3
    attempts.note(("t", "g", "large"), [lease(spans=9)], now=5)
    assert len(attempts) == 2
    attempts.note(("t", "g", "huge"), [lease(spans=900)], now=6)
    assert len(attempts) == 1
    assert attempts.take(("t", "g", "huge"), now=200) == []
    assert len(attempts) == 0
