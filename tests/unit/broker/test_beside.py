"""Batches that are small and take long to look into never keep the event loop: they are looked into in threads."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable
from contextlib import asynccontextmanager
from typing import Any

import grpc.aio
import httpx
import pytest
from tests.support.looks import Looks, note_looks
from tests.support.queue_house import QueueHouse
from tests.support.virtual_time import run_in_real_time
from websockets.asyncio.client import connect

from penstock.api import messages as api_messages
from penstock.api.messages import header_pairs_of
from penstock.doors.grpc.config import GrpcConfig
from penstock.doors.grpc.server import GrpcServer
from penstock.doors.rest import HttpConfig, HttpServer
from penstock.features.dead_letters.letters import retrieve
from penstock.features.messages.reading import read_messages
from penstock.features.queues.leases import unpack_beside
from penstock.grpc import converters
from penstock.grpc.generated import queues_pb2
from penstock.grpc.generated.messages_pb2 import ReadRequest
from penstock.grpc.generated.messages_pb2_grpc import MessagesStub
from penstock.grpc.generated.queues_pb2_grpc import QueuesStub
from penstock.operations.services import Services
from penstock.partitions.access import SinceTime
from penstock.priorities import PRIORITIES, with_priority
from penstock.records import Codec, Record, encode_batch
from penstock.records.batch import Headers

COUNT = 60_000  # records of the smallest kind: tens of kilobytes, and a tenth of a second to decode


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> Looks:
    return note_looks(monkeypatch)


def worst(make: Callable[[int], Record] = lambda at: Record(at, 1_000 + at, None, None)) -> memoryview:
    return memoryview(encode_batch([make(at) for at in range(COUNT)], codec=Codec.ZSTD))


def in_house(story: Callable[[QueueHouse], Coroutine[Any, Any, None]], **configs: str) -> None:
    async def housed() -> None:
        async with QueueHouse() as house:
            await house.topic(**configs)
            await story(house)

    run_in_real_time(housed)


def put(house: QueueHouse, batch: memoryview) -> None:
    house.broker.partition("orders", 0).append(batch, house.broker.clock.now_ms(), is_durable=False)


def mixed(at: int) -> Record:
    return Record(at, 1_000, None, None, with_priority((), PRIORITIES[at % 2]))


def keyed(at: int) -> Record:
    return Record(at, 1_000, b"%d" % (at % 1_000), None, ())


@pytest.mark.parametrize(
    ("make", "configs"),
    [
        (mixed, {"queue_lanes": "on"}),
        (keyed, {"queue_order": "key"}),
        (keyed, {"queue_fair_by": "key"}),
    ],
    ids=["lanes", "keys", "tenants"],
)
def test_labels_are_read_beside_the_loop(looks: Looks, make: Callable[[int], Record], configs: dict[str, str]) -> None:
    async def story(house: QueueHouse) -> None:
        put(house, worst(make))
        assert len(await house.take(10)) == 10

    in_house(story, **configs)
    looks.check()


def test_a_few_messages_are_cut_out_beside_the_loop(looks: Looks) -> None:
    async def story(house: QueueHouse) -> None:
        put(house, worst())
        first = await house.take(10)
        assert [message.offset for message in first] == list(range(10))
        looks.check()
        before = len(looks.beside)
        assert [message.offset for message in await house.take(10)] == list(range(10, 20))
        assert len(looks.beside) == before, "it is known by now where its records are"

    in_house(story)


def test_who_asks_meanwhile_waits_for_the_same_look(looks: Looks) -> None:
    async def story(house: QueueHouse) -> None:
        put(house, worst())
        taken = await asyncio.gather(*(house.take(10, consumer=f"c{at}") for at in range(5)))
        offsets = sorted(message.offset for messages in taken for message in messages)
        assert offsets == list(range(50)), "each message is leased once"
        assert looks.beside == ["positions"]

    in_house(story)
    looks.check()


def with_headers(count: int) -> memoryview:
    return memoryview(encode_batch([Record(0, 1_000, None, b"x", (("", None),) * count)], codec=Codec.ZSTD))


def test_leases_are_unpacked_beside_the_loop(looks: Looks) -> None:
    async def story(house: QueueHouse) -> None:
        put(house, with_headers(90_000))
        leases = await house.queues.receive("orders", "workers", consumer="ann", max_messages=10)
        ((message,), _, _) = await unpack_beside(leases, 1 << 20)
        assert len(message.headers) == 90_000

    in_house(story)
    looks.check()


def test_a_receive_over_grpc_is_unpacked_and_packed_beside_the_loop(
    looks: Looks, monkeypatch: pytest.MonkeyPatch
) -> None:
    def noting_pairs(view: Any) -> Headers:
        looks.note("view")
        return header_pairs_of(view)

    monkeypatch.setattr(converters, "header_pairs_of", noting_pairs)

    async def story(house: QueueHouse) -> None:
        server = GrpcServer(Services.of(house.broker), GrpcConfig(port=0))
        await server.start()
        try:
            options = (("grpc.max_receive_message_length", -1),)
            async with grpc.aio.insecure_channel(f"127.0.0.1:{server.port}", options) as channel:
                put(house, with_headers(90_000))
                queues = QueuesStub(channel)
                received = await queues.Receive(queues_pb2.ReceiveRequest(topic="orders", group="one"))
                assert len(received.messages[0].headers) == 90_000
                pages = MessagesStub(channel).Read(ReadRequest(topic="orders"))
                assert len((await pages.read()).messages[0].headers) == 90_000
        finally:
            await server.stop()

    in_house(story)
    looks.check()
    assert looks.beside.count("view") == 2


HEADERS = 90_000


@asynccontextmanager
async def http_client(house: QueueHouse) -> AsyncIterator[httpx.AsyncClient]:
    server = HttpServer(Services.of(house.broker), HttpConfig(port=0))
    await server.start()
    try:
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{server.port}", timeout=60) as client:
            yield client
    finally:
        await server.stop()


@pytest.fixture
def views(looks: Looks, monkeypatch: pytest.MonkeyPatch) -> Looks:
    """In which threads headers become JSON."""

    def noting_groups(headers: Headers) -> Iterable[tuple[str, list[bytes | None]]]:
        looks.note("view")
        return grouped(headers)

    grouped = api_messages._grouped
    monkeypatch.setattr(api_messages, "_grouped", noting_groups)
    return looks


async def ask(client: httpx.AsyncClient, path: str, body: Any = None) -> Any:
    answer = await client.request("GET" if body is None else "POST", f"/v1/{path}", json=body)
    assert answer.status_code < 300, answer.text
    return answer.json()


async def read_over_rest(client: httpx.AsyncClient) -> Any:
    return (await ask(client, "topics/orders/messages?partition=0&offset=0"))["messages"]


async def receive_over_rest(client: httpx.AsyncClient) -> Any:
    return (await ask(client, "queues/orders/receive", {"group": "one"}))["messages"]


async def peek_over_rest(client: httpx.AsyncClient) -> Any:
    declared = await client.put("/v1/queues/orders/groups/one", json={})
    assert declared.status_code < 300, declared.text
    return (await ask(client, "queues/orders/groups/one/peek"))["messages"]


async def poll_over_rest(client: httpx.AsyncClient) -> Any:
    joined = await ask(client, "groups/g/join", {"topics": ["orders"], "auto_offset_reset": "earliest"})
    wait = {"member_id": joined["member_id"], "wait_ms": 20_000}
    return (await ask(client, "groups/g/poll", wait))["messages"]


async def dead_letter_over_rest(client: httpx.AsyncClient) -> Any:
    received = await ask(client, "queues/orders/receive", {"group": "one"})
    receipts = [message["receipt"] for message in received["messages"]]
    await ask(client, "queues/orders/reject", {"group": "one", "receipts": receipts})
    for _ in range(1_000):
        found = (await ask(client, "queues/orders/dead-letters"))["dead_letters"]
        if found:
            return found
        await asyncio.sleep(0.01)
    raise AssertionError("the dead letter did not come")


async def schedule_over_rest(client: httpx.AsyncClient) -> Any:
    headers = {f"h{at}": "" for at in range(HEADERS)}
    schedule = {"topic": "orders", "value": 1, "id": "later", "delay_ms": 3_600_000, "headers": headers}
    await ask(client, "schedules", schedule)
    await ask(client, "schedules")
    return [await ask(client, "schedules/later")]


async def subscribe_over_websocket(client: httpx.AsyncClient, **start: str) -> Any:
    url = f"ws://{client.base_url.host}:{client.base_url.port}/v1/ws"
    async with connect(url, max_size=None) as socket:
        await socket.send(json.dumps({"op": "subscribe", "topic": "orders", "credits": 1, **start}))
        while (frame := json.loads(await socket.recv()))["type"] != "messages":
            pass
        return frame["messages"]


async def stream_over_websocket(client: httpx.AsyncClient) -> Any:
    return await subscribe_over_websocket(client, **{"from": "earliest"})


@pytest.mark.parametrize(
    "get",
    [
        read_over_rest,
        receive_over_rest,
        peek_over_rest,
        poll_over_rest,
        dead_letter_over_rest,
        schedule_over_rest,
        subscribe_over_websocket,
        stream_over_websocket,
    ],
)
def test_messages_with_many_headers_become_json_beside_the_loop(
    views: Looks, get: Callable[[httpx.AsyncClient], Coroutine[Any, Any, Any]]
) -> None:
    headers = tuple((f"h{at}", b"") for at in range(HEADERS))
    batch = encode_batch([Record(0, 1_000, None, b"x", headers)], codec=Codec.ZSTD)

    async def story(house: QueueHouse) -> None:
        if get is not schedule_over_rest:
            put(house, memoryview(batch))
        async with http_client(house) as client:
            (message,) = await get(client)
            assert len(message["headers"]) == HEADERS

    in_house(story)
    views.check()
    assert "view" in views.beside


def test_of_many_small_batches_that_become_large_as_much_is_unpacked_as_fits() -> None:
    async def story(house: QueueHouse) -> None:
        for _ in range(20):
            put(house, with_headers(50_000))
        leases = await house.queues.receive("orders", "workers", consumer="ann", max_messages=100)
        found, unreadable, left = await unpack_beside(leases, 2_000_000)
        assert ([message.offset for message in found], unreadable) == ([0, 1], [])
        assert [receipt.split(":")[2] for receipt in left] == [str(offset) for offset in range(2, 20)]
        await house.queues.release("workers", left)
        assert [message.offset for message in await house.take(2)] == [2, 3], "they come at once"
        page = await read_messages(house.broker, "orders", 0, 0, limit=100, max_bytes=2_000_000)
        assert len(page.messages) == 3

    in_house(story)


def test_a_search_by_time_looks_beside_the_loop(looks: Looks) -> None:
    async def story(house: QueueHouse) -> None:
        put(house, worst())
        page = await read_messages(house.broker, "orders", 0, SinceTime(1_000 + COUNT - 1), limit=1)
        assert [record.offset for record in page.messages] == [COUNT - 1]

    in_house(story)
    looks.check()


def test_peeking_looks_beside_the_loop(looks: Looks) -> None:
    async def story(house: QueueHouse) -> None:
        await house.queues.declare("orders", "workers")
        put(house, worst())
        assert len(await house.queues.peek("orders", "workers", max_messages=20_000)) == 20_000

    in_house(story)
    looks.check()


def test_messages_that_died_are_looked_at_beside_the_loop(looks: Looks) -> None:
    async def story(house: QueueHouse) -> None:
        put(house, worst())
        found = await retrieve(house.broker, "orders", 0, 7, 7, 1 << 20)
        assert [record.offset for record in found.records] == [7]

    in_house(story)
    looks.check()
