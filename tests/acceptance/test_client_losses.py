"""The Python client behind a way that loses answers: everything happens, and happens once."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress
from urllib.parse import urlsplit

import pytest
from tests.support.node import Node

from penstock import AsyncClient, errors


class LossyWay:
    """Hands requests on to a node, and loses every third answer together with its connection."""

    def __init__(self, node: Node) -> None:
        self._node = urlsplit(node.http_url)
        self._answers = 0
        self.lost: Counter[str] = Counter()
        self.url = ""

    async def __aenter__(self) -> LossyWay:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(self, *exc: object) -> None:
        self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, thither = await asyncio.open_connection(self._node.hostname, self._node.port)
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                request = await _message(reader)
                thither.write(request)
                answer = await _message(there)
                self._answers += 1
                if self._answers % 3 == 0:
                    self.lost[request.split(b" ")[1].decode().rpartition("/")[2].partition("?")[0]] += 1
                    break
                writer.write(answer)
        writer.close()
        thither.close()


async def _message(reader: asyncio.StreamReader) -> bytes:
    head = await reader.readuntil(b"\r\n\r\n")
    lengths = [line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")]
    return head + (await reader.readexactly(int(lengths[0].split(b":")[1])) if lengths else b"")


def run(node: Node, work: Callable[[AsyncClient, LossyWay], Awaitable[None]]) -> None:
    async def main() -> None:
        async with LossyWay(node) as way, AsyncClient(way.url) as client:
            await asyncio.wait_for(work(client, way), 60)

    asyncio.run(main())


def test_what_is_published_is_there_once(node: Node, topic: str) -> None:
    async def work(client: AsyncClient, way: LossyWay) -> None:
        with suppress(errors.TopicExists):  # told so if the first answer was lost
            await client.create_topic(topic, partitions=2)
        published = [await client.publish(topic, str(number), key=str(number)) for number in range(60)]
        published += await client.publish_many(topic, [str(number) for number in range(60, 100)])
        assert way.lost["batches"] > 10
        found = {
            (message.partition, message.offset): message.text
            for index in range(2)
            async for message in client.read(topic, index)
        }
        assert [found[each.partition, each.offset] for each in published] == [str(number) for number in range(100)]
        assert len(found) == 100

    run(node, work)


def test_what_is_in_a_transaction_is_there_once(node: Node, topic: str) -> None:
    async def work(client: AsyncClient, way: LossyWay) -> None:
        with suppress(errors.TopicExists):
            await client.create_topic(topic, partitions=1)
        for turn in range(4):
            async with client.transaction() as txn:
                for number in range(5):
                    await txn.publish(topic, f"{turn} {number}")
        assert way.lost["batch"] > 3
        found = [message.text async for message in client.read(topic)]
        assert found == [f"{turn} {number}" for turn in range(4) for number in range(5)]

    run(node, work)


@pytest.mark.parametrize("in_one_call", [False, True])
def test_every_message_of_a_queue_is_acked_although_answers_are_lost(node: Node, topic: str, in_one_call: bool) -> None:
    async def work(client: AsyncClient, way: LossyWay) -> None:
        with suppress(errors.TopicExists):
            await client.create_topic(topic, partitions=1)
        await client.publish_many(topic, [str(number) for number in range(60)])
        queue = client.queue(topic)
        seen: list[str] = []
        last = []
        while len(set(seen)) < 60:
            # What was in an answer that got lost comes again at once, and no try was spent on it.
            messages = await queue.receive(5, wait=20, ack=last if in_one_call else ())
            assert {message.delivery_count for message in messages} <= {1}
            seen += [message.text for message in messages]
            if not in_one_call:
                assert await queue.ack(messages) == []
            last = messages
        assert await queue.ack(last) == []
        assert way.lost["receive"] > 3
        assert len(seen) == 60  # nothing that was acked came again
        assert await queue.receive(5, wait=0.5) == []

    run(node, work)


def test_a_consumer_sees_every_message_once(node: Node, topic: str) -> None:
    async def work(client: AsyncClient, way: LossyWay) -> None:
        await client.publish_many(topic, [str(number) for number in range(100)])
        async with client.consume(topic, group=f"{topic}-g", max_messages=7, session_timeout=6) as consumer:
            seen = [(await anext(consumer)).text for _ in range(100)]
            assert sorted(seen, key=int) == [str(number) for number in range(100)]
        assert way.lost["poll"] + way.lost["commit"] > 0

    run(node, work)
