"""Requests to the doors that speak HTTP, WebSocket and gRPC, each large in one way: names, depth, counts, fragments."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import random
import struct
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

import grpc.aio
from google.protobuf.message import Message

from bench.fuzzing.requests import TOPICS
from penstock.broker.broker import Broker
from penstock.doors.grpc.config import GrpcConfig
from penstock.doors.grpc.server import GrpcServer
from penstock.doors.rest.config import HttpConfig
from penstock.doors.rest.server import HttpServer
from penstock.grpc.generated import dead_letters_pb2, groups_pb2, messages_pb2, queues_pb2, topics_pb2
from penstock.operations.services import Services

_ANSWER_LIMIT_S = 30.0
_TEXT, _CONTINUATION, _CLOSE = 1, 0, 8
_CLOSE_FRAME = bytes((0x80 | _CLOSE, 0x80, 0, 0, 0, 0))
_TOPIC = TOPICS[0]
_RECEIPT = f"{_TOPIC}:0:0:1:abcdefgh"


class Case(NamedTuple):
    """A request: what it is called, how long it is, and how to have it answered, which tells the answer's length."""

    name: str
    size: int
    ask: Callable[[], Awaitable[int]]


@contextlib.asynccontextmanager
async def doors(broker: Broker) -> AsyncIterator[tuple[int, int]]:
    """The ports of the HTTP and of the gRPC door of a broker."""
    services = Services.of(broker)
    http, rpc = (
        HttpServer(services, HttpConfig(port=0)),
        GrpcServer(services, GrpcConfig(port=0, stop_timeout_ms=100)),
    )
    await http.start()
    try:
        await rpc.start()
        try:
            yield http.port, rpc.port
        finally:
            await rpc.stop()
    finally:
        await http.stop()


def door_cases(rng: random.Random, http_port: int, grpc_port: int) -> list[Case]:
    """All of them, with counts of this seed."""
    count = rng.choice((1_000, 4_000, 10_000))
    cases = [_http_case(name, http_port, request) for name, request in _http_requests(count).items()]
    cases += [_websocket_case(name, http_port, frames) for name, frames in _websocket_frames(rng, count).items()]
    return cases + [_grpc_case(path, grpc_port, request) for path, request in _grpc_requests(count)]


# -- HTTP --------------------------------------------------------------------------------------------------------------


def _http_requests(count: int) -> dict[str, bytes]:
    names = [f"n{at}" for at in range(count)]
    batch, publish = f"/v1/topics/{_TOPIC}/batch", f"/v1/topics/{_TOPIC}/publish"
    bodies: list[tuple[str, str, str, Any]] = [
        ("batch of small messages", "POST", batch, {"messages": [{"value": 1}] * count}),
        ("batch of unknown fields", "POST", batch, {"messages": [{"x": 1}] * count}),
        ("headers of a message", "POST", publish, {"value": 1, "headers": dict.fromkeys(names, "")}),
        ("offsets of the same", "POST", "/v1/offsets", {"topics": [_TOPIC] * count}),
        ("offsets at many times", "POST", "/v1/offsets", {"topics": [_TOPIC], "timestamps_ms": list(range(count))}),
        ("offsets of the unknown", "POST", "/v1/offsets", {"topics": names}),
        ("acks of the same", "POST", f"/v1/queues/{_TOPIC}/ack", {"receipts": [_RECEIPT] * count}),
        ("acks of nonsense", "POST", f"/v1/queues/{_TOPIC}/ack", {"receipts": names}),
        ("a topic with many settings", "POST", "/v1/topics", {"name": "x", "configs": dict.fromkeys(names, "1")}),
        ("a group with many settings", "PATCH", "/v1/groups/g/configs", {"configs": dict.fromkeys(names, "1")}),
        ("all nodes with many settings", "PATCH", "/v1/cluster/configs", {"configs": dict.fromkeys(names)}),
    ]
    requests = {name: _http(method, path, json.dumps(body).encode()) for name, method, path, body in bodies}
    deep = b'{"messages": ' + b"[" * 10 * count + b"]" * 10 * count + b"}"
    query = "&".join(f"{name}=1" for name in names[:4_000])
    many = "".join(f"x-{name}: 1\r\n" for name in names[:3_000])
    return requests | {
        "deep JSON": _http("POST", batch, deep),
        "deep objects": _http("POST", batch, b'{"a":' * 10 * count),
        "a number of many digits": _http("POST", batch, b'{"messages": ' + b"9" * 10 * count + b"}"),
        "query parameters": _http("GET", f"/v1/topics?{query}"),
        "the same query parameter": _http("GET", "/v1/topics?" + "limit=1&" * 4_000),
        "fields of a head": _http("GET", "/v1/topics", more=many),
        "a length that is not there": _http("POST", batch, b"{}", length=1 << 40),
        "a large length": _http("POST", batch, b"{}", length=15 << 20),
        "tiny chunks": _http(
            "POST", batch, b"1\r\n[\r\n" * count + b"0\r\n\r\n", more="transfer-encoding: chunked\r\n"
        ),
        "a long path": _http("GET", "/v1/" + "a/" * 10_000),
        "escapes of a path": _http("GET", "/v1/topics/" + "%41" * 10_000),
    }


def _http(method: str, path: str, body: bytes = b"", *, length: int | None = None, more: str = "") -> bytes:
    if "chunked" not in more:
        more += f"content-length: {len(body) if length is None else length}\r\n"
    head = (
        f"{method} {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-type: application/json\r\n{more}"
    )
    return head.encode() + b"\r\n" + body


def _http_case(name: str, port: int, request: bytes) -> Case:
    return Case(f"HTTP: {name}", len(request), partial(_exchange, port, request, is_cut="length" in name))


async def _exchange(port: int, request: bytes, *, is_cut: bool = False) -> int:
    """Send everything, perhaps say that there is no more, and count what comes until the other side closes."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    size = 0
    try:
        async with asyncio.timeout(_ANSWER_LIMIT_S):
            with contextlib.suppress(OSError):
                writer.write(request)
                if is_cut:
                    writer.write_eof()
                while data := await reader.read(1 << 16):
                    size += len(data)
    finally:
        writer.close()
    return size


# -- WebSocket ---------------------------------------------------------------------------------------------------------


def _websocket_frames(rng: random.Random, count: int) -> dict[str, Callable[[], bytes]]:
    """What makes the frames of each case, again for each time that it is asked."""

    def frame(kind: int, payload: bytes, *, is_last: bool = True) -> bytes:
        mask = rng.randbytes(4)
        size = len(payload)
        if size < 126:
            length = bytes((0x80 | size,))
        elif size <= 0xFFFF:
            length = b"\xfe" + struct.pack(">H", size)
        else:
            length = b"\xff" + struct.pack(">Q", size)
        key = (mask * (size // 4 + 1))[:size]
        masked = (int.from_bytes(payload, "big") ^ int.from_bytes(key, "big")).to_bytes(size, "big")
        return bytes((kind | (0x80 if is_last else 0),)) + length + mask + masked

    def text(value: Any) -> bytes:
        return frame(_TEXT, json.dumps(value).encode())

    one_byte = frame(_TEXT, b"[", is_last=False) + b"".join(
        frame(_CONTINUATION, b"[", is_last=False) for _ in range(count)
    )
    empty = frame(_TEXT, b"", is_last=False) + frame(_CONTINUATION, b"", is_last=False) * count

    def subscriptions(groups: Iterator[str]) -> bytes:
        # A subscription waits at every partition of its topic, and a new group is written in each.
        subscribe = {"op": "subscribe", "topic": _TOPIC}
        return b"".join(text(subscribe | {"group": next(groups), "subscription": f"s{at}"}) for at in range(200))

    new_groups = (f"g{number:06}" for number in itertools.count())
    same = {
        "fragments of one byte": one_byte + frame(_CONTINUATION, b"]"),
        "empty fragments": empty + frame(_CONTINUATION, b"{}"),
        "many small frames": text({"op": "next", "subscription": "x", "credits": 1}) * min(count, 2_000),
        "acks of the same": text({"op": "ack", "group": "g", "receipts": [_RECEIPT] * count}),
        "a publish of empty messages": text({"op": "publish", "topic": _TOPIC, "messages": [{}] * count}),
        "deep JSON": frame(_TEXT, b"[" * 10 * count),
        "subscriptions": subscriptions(itertools.repeat("g")),
        "pings": frame(9, b"x" * 100) * min(count, 4_000),
    }
    made = {name: partial(bytes, data) for name, data in same.items()}
    return made | {"subscriptions to new groups": partial(subscriptions, new_groups)}


def _websocket_case(name: str, port: int, frames: Callable[[], bytes]) -> Case:
    head = (
        "GET /v1/ws HTTP/1.1\r\nhost: localhost\r\nupgrade: websocket\r\nconnection: upgrade\r\n"
        "sec-websocket-version: 13\r\nsec-websocket-key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n"
    )
    size = len(head) + len(frames()) + len(_CLOSE_FRAME)
    return Case(f"WebSocket: {name}", size, partial(_converse, port, head.encode(), frames))


async def _converse(port: int, head: bytes, frames: Callable[[], bytes]) -> int:
    """Send everything, and count what comes until the other side says goodbye, or closes."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    size = 0
    try:
        async with asyncio.timeout(_ANSWER_LIMIT_S):
            with contextlib.suppress(OSError, asyncio.IncompleteReadError):
                writer.write(head)
                size += len(await reader.readuntil(b"\r\n\r\n"))
                writer.write(frames() + _CLOSE_FRAME)
                kind = _TEXT
                while kind != _CLOSE:
                    first, length = await reader.readexactly(2)
                    kind = first & 0x0F
                    if length >= 126:
                        length = int.from_bytes(await reader.readexactly(2 if length == 126 else 8), "big")
                    size += 2 + len(await reader.readexactly(length))
    finally:
        writer.close()
    return size


# -- gRPC --------------------------------------------------------------------------------------------------------------


def _grpc_requests(count: int) -> list[tuple[str, Message | bytes]]:
    names = [f"n{at}" for at in range(count)]
    place = dead_letters_pb2.DeadLetterFilter(places=[{"partition": 0, "offset": 0}] * count)
    deep = b""
    for _ in range(200):
        deep = b"\x12" + _varint(len(deep)) + deep
    return [
        ("Topics/ListTopics", b"\x92\x03\x00" * count),  # fields that nobody defined
        ("Topics/ListTopics", deep),
        ("Topics/CreateTopic", topics_pb2.CreateTopicRequest(name="x", configs=dict.fromkeys(names, "1"))),
        ("Messages/PublishBatch", messages_pb2.PublishBatchRequest(topic=_TOPIC, messages=[{}] * count)),
        (
            "Messages/Publish",
            messages_pb2.PublishRequest(topic=_TOPIC, message={"headers": [{"name": name} for name in names]}),
        ),
        ("Messages/Publish", b"\x0a\x01\xff" * count),  # a name that is no text, over and over
        ("Queues/Ack", queues_pb2.AckRequest(group="g", receipts=[_RECEIPT] * count)),
        ("Queues/Ack", queues_pb2.AckRequest(group="g", receipts=names)),
        ("Queues/Receive", queues_pb2.ReceiveRequest(topic=_TOPIC, ack_receipts=names)),
        ("Groups/Join", groups_pb2.JoinRequest(group="g", topics=names, wait={})),
        ("Groups/Join", groups_pb2.JoinRequest(group="g", topics=[_TOPIC] * count, wait={})),
        (
            "Groups/Commit",
            groups_pb2.CommitRequest(group="g", offsets=[{"topic": name, "offset": 0} for name in names]),
        ),
        ("DeadLetters/ListDeadLetters", dead_letters_pb2.ListDeadLettersRequest(topic=_TOPIC, filter=place)),
    ]


def _varint(value: int) -> bytes:
    out = b""
    while value >= 128:
        out, value = out + bytes((value % 128 + 128,)), value // 128
    return out + bytes((value,))


def _grpc_case(path: str, port: int, request: Message | bytes) -> Case:
    data = request if isinstance(request, bytes) else request.SerializeToString()
    return Case(f"gRPC: {path}", len(data), partial(_call, port, f"/penstock.v1.{path}", data))


async def _call(port: int, path: str, data: bytes) -> int:
    options = (("grpc.max_receive_message_length", -1),)
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}", options) as channel:
        call: Any = channel.unary_unary(path)(data, timeout=_ANSWER_LIMIT_S)
        try:
            return len(await call)
        except grpc.aio.AioRpcError as error:
            return len(error.details() or "")
