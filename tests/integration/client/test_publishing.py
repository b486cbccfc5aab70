"""Publishing one by one: a batch goes out without a task, and whatever goes wrong with it ends as it would with one."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import msgspec
import pytest

from penstock import AsyncClient, errors
from penstock.api.topics import TopicDetail
from penstock.records import decode_records

from .test_transport import Server, answer, problem, run

TOPIC = answer(
    200,
    msgspec.json.encode(
        TopicDetail(
            name="t",
            topic_id="0",
            partitions=1,
            replication_factor=1,
            is_internal=False,
            messages=0,
            size_bytes=0,
            configs={},
            settings={},
            partition_details=[],
        )
    ),
)
PRODUCER = answer(200, b'{"producer_id": 7, "producer_epoch": 0}')


class Node(Server):
    """A node that keeps batches; ``fate`` says what becomes of the next one, None for nothing special."""

    def __init__(self, *fates: Callable[[], bytes | None] | None) -> None:
        super().__init__(self._answer)
        self._fates = list(fates)
        self._next_offset = 0

    def _answer(self, head: bytes) -> bytes | None:
        if b"/producers" in head:
            return PRODUCER
        if b"/batches" not in head:
            return TOPIC
        fate = self._fates.pop(0) if self._fates else None
        if fate is not None:
            return fate()
        self._next_offset += len(decode_records(self.batches[-1]))
        return answer(200, msgspec.msgpack.encode([[self._next_offset - len(decode_records(self.batches[-1])), -1]]))

    @property
    def batches(self) -> list[memoryview]:
        """Every batch that came, in order."""
        bodies = [request.partition(b"\r\n\r\n")[2] for request in self.requests if b"/batches" in request[:60]]
        return [memoryview(msgspec.msgpack.decode(body)[0][1]) for body in bodies]


def lost() -> None:
    return None


def refused() -> bytes:
    return answer(200, msgspec.msgpack.encode([[-1, "message_too_large", "Too large."]]))


def not_now() -> bytes:
    return problem(errors.NotLeader("Elsewhere."))


def nonsense() -> bytes:
    return answer(200, b"\xc1")


def test_each_message_is_told_its_place() -> None:
    async def test() -> None:
        async with Node() as node, AsyncClient(node.url) as client:
            for number in range(5):
                published = await client.publish("t", f"value {number}", headers={"a": "b"} if number % 2 else None)
                assert (published.topic, published.partition, published.offset) == ("t", 0, number)
        records = [decode_records(batch)[0] for batch in node.batches]
        assert [record.value for record in records] == [f"value {number}".encode() for number in range(5)]
        assert [bool(record.headers) for record in records] == [False, True, False, True, False]

    run(test)


def test_messages_published_at_once_travel_together() -> None:
    async def test() -> None:
        async with Node() as node, AsyncClient(node.url) as client:
            await client.publish("t", "first")
            told = await asyncio.gather(*(client.publish("t", f"{number}") for number in range(50)))
            assert [each.offset for each in told] == list(range(1, 51))
            assert len(node.batches) == 2

    run(test)


@pytest.mark.parametrize("fate", [lost, not_now, nonsense])
def test_what_may_have_been_written_is_sent_again_as_it_was(fate: Callable[[], bytes | None]) -> None:
    async def test() -> None:
        async with Node(None, fate) as node, AsyncClient(node.url) as client:
            assert (await client.publish("t", "a")).offset == 0
            if fate is nonsense:
                with pytest.raises(errors.UnexpectedAnswer):
                    await client.publish("t", "b")
                return
            assert (await client.publish("t", "b")).offset == 1
            first, second, third = node.batches
            assert bytes(second) == bytes(third), "under the same number"
            assert bytes(first) != bytes(second)

    run(test)


def test_what_is_refused_is_told_and_others_go_on() -> None:
    async def test() -> None:
        async with Node(None, refused) as node, AsyncClient(node.url) as client:
            await client.publish("t", "a")
            with pytest.raises(errors.MessageTooLarge):
                await client.publish("t", "b")
            assert (await client.publish("t", "c")).offset == 1
            await asyncio.wait_for(client.flush(), 60)

    run(test)


def test_who_gives_up_waiting_leaves_the_message_on_its_way() -> None:
    async def test() -> None:
        async with Node() as node, AsyncClient(node.url) as client:
            await client.publish("t", "a")
            given_up = asyncio.ensure_future(client.publish("t", "b"))
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            given_up.cancel()
            assert (await client.publish("t", "c")).offset == 2
            assert len(node.batches) == 3

    run(test)


def test_a_client_that_is_closed_tells_who_waits() -> None:
    async def test() -> None:
        has_come = asyncio.Event()

        def silent() -> bytes:
            has_come.set()
            return b""

        async with Node(None, silent) as node:
            client = AsyncClient(node.url)
            await client.publish("t", "a")
            waiting = asyncio.ensure_future(client.publish("t", "never answered"))
            await has_come.wait()
            client._publisher.abandon()
            with pytest.raises(errors.ClientClosed):
                await waiting
            await asyncio.wait_for(client.close(), 60)

    run(test)
