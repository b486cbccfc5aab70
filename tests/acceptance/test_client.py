"""The Python client against a real node: publishing and reading, also while the node dies."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from datetime import UTC, datetime, timedelta

import pytest
from tests.acceptance.conftest import NodeMaker
from tests.support.node import Node, free_port
from tests.support.python_client import run, texts

import penstock
from penstock import AsyncClient, Client, Draft, errors

# -- publishing --------------------------------------------------------------------------------------------------------


def test_a_message_comes_back_as_it_was_published(node: Node, topic: str) -> None:
    async def work(client: AsyncClient) -> None:
        await client.create_topic(topic, retention_ms=-1)  # for the message is older than topics keep them
        moment = datetime(2026, 5, 4, 3, 2, 1, tzinfo=UTC)
        headers = [("a", "1"), ("b", None), ("c", b"\xff")]
        published = await client.publish(topic, {"n": 1}, key="k", headers=headers, timestamp=moment)
        assert (published.topic, published.timestamp) == (topic, moment)
        (message,) = [each async for each in client.read(topic, published.partition)]
        assert (message.topic, message.partition, message.offset) == (topic, published.partition, published.offset)
        assert (message.key, message.json(), message.timestamp) == (b"k", {"n": 1}, moment)
        assert message.headers == {"a": b"1", "b": None, "c": b"\xff"}
        assert message.json(dict[str, int]) == {"n": 1}

    run(node.http_url, work)


@pytest.mark.parametrize("compression", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_many_are_published_in_order_and_told_in_order(node: Node, topic: str, compression: str) -> None:
    async def work(client: AsyncClient) -> None:
        await client.create_topic(topic, partitions=3)
        drafts = [Draft(f"value {number}", key=f"key {number % 7}") for number in range(1_000)]
        published = await client.publish_many(topic, drafts)
        assert len({(each.partition, each.offset) for each in published}) == 1_000
        by_place = {
            (message.partition, message.offset): message.text
            for index in range(3)
            async for message in client.read(topic, index)
        }
        assert [by_place[each.partition, each.offset] for each in published] == [draft.value for draft in drafts]

    run(node.http_url, work, compression=compression)


def test_keys_go_where_the_rest_door_and_kafka_put_them(node: Node, topic: str) -> None:
    async def work(client: AsyncClient) -> None:
        await client.create_topic(topic, partitions=5)
        async with client.transaction() as txn:  # goes by JSON, where the node chooses
            there = [await txn.publish(topic, "x", key=f"key {number}") for number in range(20)]
        here = [await client.publish(topic, "x", key=f"key {number}") for number in range(20)]
        assert [each.partition for each in here] == [each.partition for each in there]

    run(node.http_url, work)


def test_sent_messages_gather_into_few_batches(node: Node, topic: str) -> None:
    async def work(client: AsyncClient) -> None:
        await client.create_topic(topic, partitions=1)
        futures = [await client.send(topic, f"{number}") for number in range(2_000)]
        await client.flush()
        assert all(future.done() for future in futures)
        assert [future.result().offset for future in futures] == list(range(2_000))
        assert len({future.result().timestamp_ms for future in futures}) < 50  # a batch has one time

    run(node.http_url, work)


def test_a_full_buffer_makes_publishers_wait_and_loses_nothing(node: Node, topic: str) -> None:
    async def work(client: AsyncClient) -> None:
        await client.create_topic(topic, partitions=1)
        futures = [await client.send(topic, b"x" * 1_000) for _ in range(300)]
        assert sum(future.done() for future in futures) > 200  # there was room for twenty at a time
        await client.flush()
        assert sorted(future.result().offset for future in futures) == list(range(300))

    run(node.http_url, work, buffer_bytes=20_000)


def test_batches_too_large_for_the_topic_are_made_smaller(node: Node, topic: str) -> None:
    async def work(client: AsyncClient) -> None:
        await client.create_topic(topic, partitions=1, max_message_bytes=2_000)
        published = await client.publish_many(topic, [f"{number:03}" + "x" * 300 for number in range(100)])
        assert [each.offset for each in published] == list(range(100))
        assert [text[:3] for text in await texts(client, topic)] == [f"{number:03}" for number in range(100)]
        with pytest.raises(errors.MessageTooLarge):
            await client.publish(topic, "x" * 3_000)
        assert (await client.publish(topic, "fits")).offset == 100

    run(node.http_url, work)


def test_a_message_at_fault_takes_no_others_with_it(node: Node, topic: str) -> None:
    async def work(client: AsyncClient) -> None:
        await client.create_topic(topic, partitions=1, cleanup_policy="compact")
        keys = ["a", "b", None, "c", "d"]  # a compacted topic takes none without a key
        outcomes = await asyncio.gather(*(client.publish(topic, "x", key=key) for key in keys), return_exceptions=True)
        assert [type(outcome).__name__ for outcome in outcomes] == [
            "Published",
            "Published",
            "InvalidRecord",
            "Published",
            "Published",
        ]
        assert [message.key async for message in client.read(topic)] == [b"a", b"b", b"c", b"d"]

    run(node.http_url, work)


def test_bad_input_is_refused_with_the_error_it_is(node: Node, topic: str) -> None:
    async def work(client: AsyncClient) -> None:
        with pytest.raises(errors.InvalidTopicName):
            await client.publish("no spaces", "x")
        with pytest.raises(errors.InvalidRecord):
            await client.publish(topic, object())
        await client.publish(topic, "x")
        with pytest.raises(errors.UnknownPartition):
            await client.publish(topic, "x", partition=99)
        with pytest.raises(errors.UnknownTopic):
            await client.queue("not-there").receive()
        with pytest.raises(errors.UnknownTopic):
            await texts(client, "not-there")
        with pytest.raises(errors.InvalidRequest):
            await client.queue(topic).receive(0)
        with pytest.raises(errors.InvalidRequest):
            client.consume(group="g")

    run(node.http_url, work)


def test_a_closed_client_says_so(node: Node, topic: str) -> None:
    async def work() -> None:
        client = AsyncClient(node.http_url)
        future = await client.send(topic, "sent before the end")
        await client.close()
        assert future.result().topic == topic
        with pytest.raises(errors.ClientClosed):
            await client.publish(topic, "x")
        with pytest.raises(errors.ClientClosed):
            await client.queue(topic).receive()

    asyncio.run(work())


def test_nothing_is_lost_or_twice_when_the_node_is_killed_under_load(make_node: NodeMaker, topic: str) -> None:
    node = make_node()
    node.start()

    async def work(client: AsyncClient) -> None:
        await client.create_topic(topic, partitions=3)
        futures: list[asyncio.Future[penstock.Published]] = []
        is_over = asyncio.Event()

        async def produce(name: str) -> None:
            number = 0
            while not is_over.is_set():
                futures.append(await client.send(topic, f"{name} {number}", key=f"{name}{number % 5}"))
                number += 1
                await asyncio.sleep(0.001)

        producers = [asyncio.create_task(produce(name)) for name in "abc"]
        for _ in range(3):
            await asyncio.sleep(0.5)
            await asyncio.to_thread(node.kill)
            await asyncio.to_thread(node.restart)
        await asyncio.sleep(0.3)
        is_over.set()
        await asyncio.gather(*producers)
        await client.flush()
        assert all(future.exception() is None for future in futures)
        found = await texts(client, topic, 3)
        assert len(futures) > 100
        assert [text for text, times in Counter(found).items() if times > 1] == []
        assert len(found) == len(futures)
        for key in ("a0", "b3"):
            name, remainder = key
            numbers = [int(text[2:]) for text in found if text[0] == name and int(text[2:]) % 5 == int(remainder)]
            assert numbers == sorted(numbers)

    run(node.http_url, work, delivery_timeout=50)


def test_publishing_gives_up_in_time_and_says_where_it_tried(make_node: NodeMaker, topic: str) -> None:
    url = f"http://127.0.0.1:{free_port()}"

    async def work(client: AsyncClient) -> None:
        with pytest.raises(errors.NodesUnreachable, match=url):
            await client.publish(topic, "x")

    run(url, work, timeout=0.5, delivery_timeout=0.5)


# -- reading -----------------------------------------------------------------------------------------------------------


def test_reading_begins_where_it_is_told(node: Node, topic: str) -> None:
    async def work(client: AsyncClient) -> None:
        await client.create_topic(topic, partitions=1)
        now = datetime.now(UTC).replace(microsecond=0)
        for number in range(2_500):
            await client.send(topic, f"{number}", timestamp=now + timedelta(seconds=number))
        await client.flush()
        assert await texts(client, topic) == [str(number) for number in range(2_500)]
        assert [message.text async for message in client.read(topic, 0, 2_498)] == ["2498", "2499"]
        assert [message.text async for message in client.read(topic, 0, "latest")] == []
        since = [message.text async for message in client.read(topic, 0, now + timedelta(seconds=2_499))]
        assert since == ["2499"]

    run(node.http_url, work)


def test_following_waits_for_what_comes(node: Node, topic: str) -> None:
    async def work(client: AsyncClient) -> None:
        await client.create_topic(topic, partitions=1)
        reader = client.read(topic, follow=True)
        waiting = asyncio.ensure_future(anext(reader))
        await asyncio.sleep(0.2)
        await client.publish(topic, "late")
        assert (await waiting).text == "late"

    run(node.http_url, work)


def test_members_share_a_topic_and_the_next_one_goes_on_where_they_stopped(node: Node, topic: str) -> None:
    async def work(client: AsyncClient) -> None:
        await client.create_topic(topic, partitions=4)
        await client.publish_many(topic, [Draft(str(number), key=str(number)) for number in range(400)])
        seen: list[str] = []

        async def read(count: int) -> None:
            async with client.consume(topic, group=f"{topic}-g", max_messages=20) as consumer:
                async for message in consumer:
                    seen.append(message.text)
                    if len(seen) >= count:
                        break
                await consumer.commit()

        await read(150)
        first = list(seen)
        await read(400)
        assert sorted(seen, key=int) == [str(number) for number in range(400)]
        assert len(first) == 150

    run(node.http_url, work)


def test_what_is_not_committed_is_read_again(node: Node, topic: str) -> None:
    async def work(client: AsyncClient) -> None:
        await client.create_topic(topic, partitions=1)
        await client.publish_many(topic, [str(number) for number in range(10)])

        async def read(commits: bool) -> list[str]:
            async with client.consume(topic, group=f"{topic}-g", auto_commit=False) as consumer:
                got = [message.text for message in await consumer.batch()]
                if commits:
                    await consumer.commit()
                return got

        assert await read(commits=False) == await read(commits=True) == [str(number) for number in range(10)]
        await client.publish(topic, "new")
        assert await read(commits=False) == ["new"]

    run(node.http_url, work)


def test_a_consumer_outlives_its_node(make_node: NodeMaker, topic: str) -> None:
    node = make_node()
    node.start()

    async def work(client: AsyncClient) -> None:
        await client.create_topic(topic, partitions=1)
        await client.publish_many(topic, [str(number) for number in range(10)])
        async with client.consume(topic, group="g") as consumer:
            got = [await anext(consumer) for _ in range(10)]
            waiting = asyncio.ensure_future(anext(consumer))
            await asyncio.sleep(0.2)
            await asyncio.to_thread(node.kill)
            await asyncio.to_thread(node.restart)
            await client.publish(topic, "after")
            got.append(await waiting)
            # Whatever was not committed may come again, and nothing may be missing.
            while got[-1].text != "after":
                got.append(await anext(consumer))
        assert [message.text for message in got][:10] == [str(number) for number in range(10)]

    run(node.http_url, work)


# -- without an event loop ---------------------------------------------------------------------------------------------


def test_the_blocking_client_does_the_same(node: Node, topic: str) -> None:
    with Client(node.http_url) as client:
        client.create_topic(topic, partitions=1)
        assert client.publish(topic, {"n": 1}).offset == 0
        futures = [client.send(topic, str(number)) for number in range(100)]
        client.flush()
        assert [future.result(0).offset for future in futures] == list(range(1, 101))
        assert len(client.publish_many(topic, ["a", "b"])) == 2
        assert len(list(client.read(topic))) == 103
        with client.consume(topic, group=f"{topic}-g") as consumer:
            assert [next(consumer).offset for _ in range(103)] == list(range(103))
            consumer.commit()
            assert len(consumer.assignment) == 1
        queue = client.queue(topic)
        first, *rest = queue.receive(200, wait=20)
        first.ack()
        assert queue.ack(rest) == []
        with client.transaction() as txn:
            txn.publish(topic, "in a transaction")
        assert next(client.read(topic, 0, 103)).text == "in a transaction"
    with pytest.raises(errors.ClientClosed):
        client.publish(topic, "x")
    with pytest.raises(errors.ClientClosed):
        client.send(topic, "x")
    client.close()


def test_threads_share_a_client(node: Node, topic: str) -> None:
    with Client(node.http_url) as client:
        client.create_topic(topic, partitions=1)

        def work(name: str) -> None:
            for number in range(500):
                client.send(topic, f"{name} {number}")

        threads = [threading.Thread(target=work, args=(name,)) for name in "abcd"]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        client.flush()
        found = [message.text for message in client.read(topic)]
        for name in "abcd":
            assert [text for text in found if text[0] == name] == [f"{name} {number}" for number in range(500)]
