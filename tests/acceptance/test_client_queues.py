"""The Python client's queues and transactions against a real node."""

from __future__ import annotations

import asyncio
import time

import pytest
from tests.acceptance.conftest import NodeMaker
from tests.support.node import Node
from tests.support.python_client import run, texts

from penstock import AsyncClient, Draft, errors

# -- queues ------------------------------------------------------------------------------------------------------------


def test_messages_of_a_queue_are_done_when_they_are_acked(node: Node, topic: str) -> None:
    async def work(client: AsyncClient) -> None:
        await client.publish_many(topic, [Draft(f"job {number}", key=str(number)) for number in range(100)])
        queue = client.queue(topic, "g")
        messages = await queue.receive(100, wait=20)
        assert sorted(message.text for message in messages) == sorted(f"job {number}" for number in range(100))
        assert {message.delivery_count for message in messages} == {1}
        assert await queue.receive(100) == []
        assert await queue.ack(messages) == []
        assert await queue.ack(messages[:3]) == []  # once more does no harm
        assert len(await client.queue(topic, "other").receive(1_000)) == 100

    run(node.http_url, work)


def test_each_verb_does_what_it_says(node: Node, topic: str) -> None:
    async def work(client: AsyncClient) -> None:
        await client.create_topic(topic, partitions=1)
        await client.publish_many(topic, ["nacked", "rejected", "released", "kept"])
        queue = client.queue(topic)
        nacked, rejected, released = await queue.receive(3, visibility_timeout=60)
        (kept,) = await queue.receive(1, visibility_timeout=3)
        await kept.extend(60)
        await nacked.nack(delay=0, reason="try again")
        await rejected.reject(reason="hopeless")
        await queue.release([released])
        await asyncio.sleep(3.3)
        again = {message.text: message for message in await queue.receive(10, wait=1)}
        assert {text: message.delivery_count for text, message in again.items()} == {"nacked": 2, "released": 1}
        await kept.ack()
        for message in again.values():
            await message.ack()
        with pytest.raises(errors.LeaseLost, match="already_acked"):
            await kept.extend(5)
        letters = client.queue(f"{topic}.dlq")
        for _ in range(50):
            try:
                (letter,) = await letters.receive(1, wait=2)
                break
            except (errors.UnknownTopic, ValueError):
                await asyncio.sleep(0.1)
        assert letter.text == "rejected"
        assert letter.headers["penstock-dlq-reason"] == b"hopeless"

    run(node.http_url, work)


def test_a_lease_that_ran_out_is_lost(node: Node, topic: str) -> None:
    async def work(client: AsyncClient) -> None:
        await client.publish(topic, "x")
        queue = client.queue(topic)
        (message,) = await queue.receive(1, visibility_timeout=0.2)
        (again,) = await queue.receive(1, wait=20, visibility_timeout=20)
        assert again.delivery_count == 2
        with pytest.raises(errors.LeaseLost, match="redelivered"):
            await message.ack()
        ((refused, fate),) = await queue.nack([message])
        assert (refused, fate) == (message, "redelivered")
        await again.ack()

    run(node.http_url, work)


def test_a_loop_of_receive_and_ack_is_one_call_a_turn(node: Node, topic: str) -> None:
    async def work(client: AsyncClient) -> None:
        await client.create_topic(topic, partitions=1)
        await client.publish_many(topic, [str(number) for number in range(95)])
        queue = client.queue(topic)
        seen: list[str] = []
        messages = last = await queue.receive(10)
        while messages:
            seen += [message.text for message in messages]
            last, messages = messages, await queue.receive(10, ack=messages)
        assert seen == [str(number) for number in range(95)]
        await client.publish(topic, "more")
        (more,) = await queue.receive(10, ack=last, visibility_timeout=0.2)  # acked before, so no harm
        (again,) = await queue.receive(10, wait=20)
        with pytest.raises(errors.LeaseLost, match="redelivered"):
            await queue.receive(10, ack=[more])
        assert await queue.ack([again]) == []

    run(node.http_url, work)


def test_receive_waits_for_the_first_message(node: Node, topic: str) -> None:
    async def work(client: AsyncClient) -> None:
        await client.create_topic(topic, partitions=2)
        queue = client.queue(topic)
        waiting = asyncio.ensure_future(queue.receive(5, wait=20))
        await asyncio.sleep(0.3)
        began = time.monotonic()
        await client.publish(topic, "x")
        assert [message.text for message in await waiting] == ["x"]
        assert time.monotonic() - began < 15

    run(node.http_url, work)


# -- transactions ------------------------------------------------------------------------------------------------------


def test_a_transaction_is_seen_at_once_or_never(node: Node, topic: str) -> None:
    async def work(client: AsyncClient) -> None:
        await client.create_topic(topic, partitions=1)
        async with client.transaction() as txn:
            await txn.publish(topic, "one", key="k", headers={"h": "v"})
            await txn.publish_many(topic, ["two", Draft("three", key="k")])
            assert await texts(client, topic) == []
        abandoned = client.transaction()
        with pytest.raises(errors.MessageTooLarge):  # noqa: PT012
            async with abandoned as txn:
                await txn.publish(topic, "never")
                await txn.publish(topic, "x" * 2_000_000)
        with pytest.raises(errors.InvalidTxnState):
            await abandoned.publish(topic, "too late")
        with pytest.raises(errors.InvalidTxnState, match="not committed"):  # noqa: PT012
            async with client.transaction() as txn:
                await txn.publish(topic, "never")
                with pytest.raises(errors.MessageTooLarge):
                    await txn.publish(topic, "x" * 2_000_000)
        assert await texts(client, topic) == ["one", "two", "three"]

    run(node.http_url, work)


def test_acks_count_if_the_transaction_does(node: Node, topic: str) -> None:
    async def work(client: AsyncClient) -> None:
        await client.create_topic(topic, partitions=1)
        await client.publish_many(topic, [f"order {number}" for number in range(20)])
        queue, out = client.queue(topic, "g"), f"{topic}-out"
        await client.create_topic(out, partitions=1)
        messages = await queue.receive(20, visibility_timeout=20)
        with pytest.raises(errors.MessageTooLarge):  # noqa: PT012
            async with client.transaction() as txn:
                await txn.publish_many(out, [f"void {message.text}" for message in messages])
                await txn.ack(messages)
                await txn.publish(out, "x" * 2_000_000)
        async with client.transaction() as txn:
            await txn.publish_many(out, [f"bill for {message.text}" for message in messages[:10]])
            await txn.ack(messages[:10])
            assert await texts(client, out) == []
        assert await texts(client, out) == [f"bill for order {number}" for number in range(10)]
        assert await queue.nack(messages[10:], delay=0) == []  # still this consumer's
        again = await queue.receive(20, wait=20)
        assert [message.text for message in again] == [f"order {number}" for number in range(10, 20)]
        with pytest.raises(errors.LeaseLost):
            async with client.transaction() as txn:
                await txn.ack(messages[10])

    run(node.http_url, work)


def test_a_transaction_outlives_its_own_timeout_while_its_block_runs(node: Node, topic: str) -> None:
    async def work(client: AsyncClient) -> None:
        async with client.transaction(timeout=1.0) as txn:
            await txn.publish(topic, "slow", partition=0)
            await asyncio.sleep(2.5)
        assert await texts(client, topic) == ["slow"]

    run(node.http_url, work)


def test_a_transaction_outlives_its_node(make_node: NodeMaker, topic: str) -> None:
    node = make_node()
    node.start()

    async def work(client: AsyncClient) -> None:
        await client.create_topic(topic, partitions=1)
        async with client.transaction() as txn:
            await txn.publish(topic, "before")
            await asyncio.to_thread(node.kill)
            restarting = asyncio.create_task(asyncio.to_thread(node.restart))
            await txn.publish(topic, "after")
            await restarting
        assert await texts(client, topic) == ["before", "after"]

    run(node.http_url, work, timeout=60)
