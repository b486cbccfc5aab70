"""What one client of the gRPC door may take: whatever it does below the protocol's calls, others are served."""

from __future__ import annotations

import asyncio
import struct
import time
from collections.abc import Callable, Coroutine
from typing import Any

import grpc.aio
import psutil
import pytest
from grpc import StatusCode
from tests.support.queue_house import QueueHouse
from tests.support.virtual_time import run_in_real_time

from penstock.doors.grpc.config import GrpcConfig
from penstock.doors.grpc.server import GrpcServer
from penstock.grpc.generated.queues_pb2 import SubscribeRequest, Subscription
from penstock.grpc.generated.queues_pb2_grpc import QueuesStub
from penstock.grpc.generated.topics_pb2 import ListTopicsRequest
from penstock.grpc.generated.topics_pb2_grpc import TopicsStub
from penstock.operations.services import Services

LIST, SUBSCRIBE = b"/penstock.v1.Topics/ListTopics", b"/penstock.v1.Queues/Subscribe"
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, RESET, SETTINGS, PING, GOAWAY, END_STREAM, END_HEADERS = 0, 1, 3, 4, 6, 7, 1, 4
MAX_STREAMS, ENHANCE_YOUR_CALM, CANCEL = 3, 11, 8
T_S = 30.0


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    return struct.pack(">I", len(payload))[1:] + bytes((kind, flags)) + struct.pack(">I", stream) + payload


def literal(name: bytes, value: bytes) -> bytes:
    """A header as HPACK has it if nothing is known and nothing is to be remembered (RFC 7541, 6.2.2)."""
    return b"\0" + _length(len(name)) + name + _length(len(value)) + value


def _length(size: int) -> bytes:
    if size < 127:
        return bytes((size,))
    out, size = b"\x7f", size - 127
    while size >= 128:
        out, size = out + bytes((size % 128 + 128,)), size // 128
    return out + bytes((size,))


def call(stream: int, path: bytes, *more: tuple[bytes, bytes]) -> bytes:
    """The beginning of a call."""
    fields = (
        (b":method", b"POST"),
        (b":scheme", b"http"),
        (b":path", path),
        (b":authority", b"x"),
        (b"content-type", b"application/grpc"),
        (b"te", b"trailers"),
        *more,
    )
    return frame(HEADERS, END_HEADERS, stream, b"".join(literal(*field) for field in fields))


class Raw:
    """A connection whose frames are made by hand."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self.writer = reader, writer

    async def send(self, data: bytes) -> bool:
        """Whether the connection takes it."""
        try:
            self.writer.write(data)
            await self.writer.drain()
        except OSError:
            return False
        return not self._reader.at_eof()

    async def receive(self) -> tuple[int, int, int, bytes] | None:
        """Kind, flags, stream and payload of the next frame; None at the end."""
        try:
            head = await self._reader.readexactly(9)
            payload = await self._reader.readexactly(int.from_bytes(head[:3], "big"))
        except (asyncio.IncompleteReadError, OSError):
            return None
        return head[3], head[4], int.from_bytes(head[5:], "big"), payload

    async def until(self, kind: int) -> bytes | None:
        """The payload of the next frame of a kind; None if the connection ends before."""
        while (found := await self.receive()) is not None:
            if found[0] == kind:
                return found[3]
        return None


class Site:
    """A node's gRPC door."""

    def __init__(self, server: GrpcServer) -> None:
        self._server = server

    async def connect(self, *, preface: bool = True) -> Raw:
        raw = Raw(*await asyncio.open_connection("127.0.0.1", self._server.port))
        if preface:
            await raw.send(PREFACE + frame(SETTINGS, 0, 0))
        return raw

    def channel(self) -> grpc.aio.Channel:
        options = (("grpc.use_local_subchannel_pool", 1),)
        return grpc.aio.insecure_channel(f"127.0.0.1:{self._server.port}", options)

    async def is_served(self) -> bool:
        """Whether it gets one at the moment."""
        try:
            await self.check_served()
        except grpc.aio.AioRpcError:
            return False
        return True

    async def check_served(self) -> None:
        """A client that behaves gets its answer."""
        async with self.channel() as channel:
            answer = await TopicsStub(channel).ListTopics(ListTopicsRequest(), timeout=T_S, wait_for_ready=True)
            assert [topic.name for topic in answer.topics] == ["orders"]


def at_site(story: Callable[[Site], Coroutine[Any, Any, None]], **limits: int) -> None:
    async def housed() -> None:
        async with QueueHouse() as house:
            await house.topic()
            server = GrpcServer(Services.of(house.broker), GrpcConfig(port=0, stop_timeout_ms=100, **limits))
            await server.start()
            try:
                await story(Site(server))
            finally:
                await server.stop()

    run_in_real_time(housed)


def test_rapid_resets_cost_neither_memory_nor_others_their_answers() -> None:
    async def story(site: Site) -> None:
        await site.check_served()
        before = psutil.Process().memory_info().rss
        raw = await site.connect()
        for first in range(1, 40_000, 2_000):
            streams = range(first, first + 2_000, 2)
            part = [call(stream, LIST) + frame(RESET, 0, stream, struct.pack(">I", CANCEL)) for stream in streams]
            if not await raw.send(b"".join(part)):
                break  # the library has had enough of it
            await site.check_served()
        assert psutil.Process().memory_info().rss - before < 100 << 20
        raw.writer.close()

    at_site(story)


def test_a_connection_has_so_many_streams_and_no_more() -> None:
    async def story(site: Site) -> None:
        raw = await site.connect()
        settings = await raw.until(SETTINGS)
        assert settings is not None
        told = dict(struct.iter_unpack(">HI", settings))
        assert told[MAX_STREAMS] == 50
        await raw.send(frame(SETTINGS, 1, 0))  # that it is heeded
        await raw.send(b"".join(call(stream, SUBSCRIBE) for stream in range(1, 401, 2)))
        refused = 0
        async with asyncio.timeout(T_S):
            while refused < 150 and (found := await raw.receive()) is not None:
                refused += found[0] in (RESET, GOAWAY)
                if found[0] == GOAWAY:
                    break
        assert refused
        await site.check_served()
        raw.writer.close()

    at_site(story, streams_max=50)


def test_all_connections_together_have_so_many_calls_and_no_more() -> None:
    async def story(site: Site) -> None:
        async with site.channel() as channel:
            streams = [QueuesStub(channel).Subscribe() for _ in range(20)]
            for stream in streams:
                await stream.write(SubscribeRequest(subscription=Subscription(topic="orders")))
                assert (await stream.read()).HasField("subscribed")
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await TopicsStub(channel).ListTopics(ListTopicsRequest(), timeout=T_S)
            assert refused.value.code() is StatusCode.RESOURCE_EXHAUSTED
            for stream in streams:
                await stream.done_writing()
                assert await stream.read() is grpc.aio.EOF
        async with asyncio.timeout(T_S):
            while not await site.is_served():  # noqa: ASYNC110 - nobody tells of it
                await asyncio.sleep(0.01)

    at_site(story, calls_max=20)


def test_a_stream_that_never_begins_is_ended() -> None:
    async def story(site: Site) -> None:
        async with site.channel() as channel:
            stream = QueuesStub(channel).Subscribe()
            async with asyncio.timeout(T_S):
                assert await stream.code() is StatusCode.INVALID_ARGUMENT
            assert "subscription is missing" in await stream.details()

    at_site(story, first_request_timeout_ms=100)


def test_who_asks_all_the_time_whether_the_node_is_there_is_told_to_calm_down() -> None:
    async def story(site: Site) -> None:
        raw = await site.connect()
        await raw.send(call(1, SUBSCRIBE))
        # Hardly more than are forgiven: bytes that the node has not read when it closes would have the kernel reset the
        # connection, and the farewell would be lost.
        for _ in range(11):
            if not await raw.send(frame(PING, 0, 0, b"12345678") * 10):
                break
        async with asyncio.timeout(T_S):
            farewell = await raw.until(GOAWAY)
        assert farewell is not None
        assert struct.unpack_from(">I", farewell, 4) == (ENHANCE_YOUR_CALM,)
        await site.check_served()

    at_site(story)


@pytest.mark.parametrize("said", [b"", PREFACE[:5], PREFACE], ids=["nothing", "half", "no settings"])
def test_who_connects_and_never_speaks_is_closed(said: bytes) -> None:
    async def story(site: Site) -> None:
        raw = await site.connect(preface=False)
        await raw.send(said)
        began = time.monotonic()
        async with asyncio.timeout(T_S):
            while await raw.receive() is not None:
                pass
        assert time.monotonic() - began < T_S
        await site.check_served()

    at_site(story, handshake_timeout_ms=300)


def test_much_metadata_is_refused() -> None:
    async def story(site: Site) -> None:
        async with site.channel() as channel:
            topics = TopicsStub(channel)
            await topics.ListTopics(ListTopicsRequest(), metadata=(("x", "y" * 8_000),), timeout=T_S)
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await topics.ListTopics(ListTopicsRequest(), metadata=(("x", "y" * 64_000),), timeout=T_S)
            assert refused.value.code() is StatusCode.RESOURCE_EXHAUSTED
        await site.check_served()

    at_site(story)


def test_connections_beyond_the_limit_are_closed_and_there_is_room_again_when_others_go() -> None:
    async def story(site: Site) -> None:
        held = [await site.connect() for _ in range(10)]
        for raw in held:
            assert await raw.until(SETTINGS) is not None
        extra = await site.connect()
        async with asyncio.timeout(T_S):
            assert await extra.until(SETTINGS) is None
        for raw in held:
            raw.writer.close()
        await site.check_served()

    at_site(story, connections_max=10)
