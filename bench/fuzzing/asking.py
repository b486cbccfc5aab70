"""A broker in this process and a client of its Kafka door: the real connection, over a socket pair."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from bench.fuzzing.requests import TOPICS
from penstock.broker.broker import Broker
from penstock.broker.config import BrokerConfig
from penstock.broker.surroundings import alone
from penstock.config.settings import Fsync, StorageSettings
from penstock.consensus.controller import TopicSpec
from penstock.consensus.records import Endpoint
from penstock.doors.kafka.connection import Connection
from penstock.doors.kafka.dispatch import KafkaDispatcher
from penstock.network.channel import PlainChannel
from penstock.partitions.config import PartitionsConfig

_FRAME_LIMIT = 16 << 20


@contextlib.asynccontextmanager
async def node(directory: Path, partitions: int) -> AsyncIterator[Broker]:
    """A broker with the fuzzer's topics."""
    config = BrokerConfig(
        node_id=1,
        data_dir=directory,
        endpoints=(Endpoint(door="kafka", host="127.0.0.1", port=9092),),
        partitions=PartitionsConfig(storage=StorageSettings(fsync=Fsync.NONE)),
        auto_create_topics=False,
    )
    broker = Broker(config, alone(1))
    await broker.start()
    try:
        for topic in TOPICS:
            await broker.create_topic(TopicSpec(name=topic, partitions=partitions))
        yield broker
    finally:
        await broker.close()


class LocalSocket:
    """The node's end of a socket pair, with the addresses and options that a TCP socket would have."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sock, name)

    def getsockname(self) -> tuple[str, int]:
        return "127.0.0.1", 9092

    def getpeername(self) -> tuple[str, int]:
        return "127.0.0.1", 1

    def setsockopt(self, *_: object) -> None:
        """There is nothing to delay here."""


class Client:
    """A connection of the door's own kind, and the client's end of it."""

    def __init__(self, dispatcher: KafkaDispatcher) -> None:
        self._loop = asyncio.get_running_loop()
        here, there = socket.socketpair()
        here.settimeout(0)
        self._sock = here
        local: Any = LocalSocket(there)
        channel = PlainChannel(local)
        self.connection = Connection(self._loop, channel, dispatcher, max_request_bytes=_FRAME_LIMIT)
        self.connection.start()

    async def send(self, frame: bytes) -> None:
        with contextlib.suppress(OSError):
            await self._loop.sock_sendall(self._sock, frame)

    async def receive(self, limit_s: float) -> bytes | None:
        """A response without its length; None if the connection is closed; TimeoutError."""
        async with asyncio.timeout(limit_s):
            prefix = await self._receive_exactly(4)
            return None if prefix is None else await self._receive_exactly(struct.unpack(">i", prefix)[0])

    async def _receive_exactly(self, size: int) -> bytes | None:
        data = bytearray()
        while len(data) < size:
            try:
                part = await self._loop.sock_recv(self._sock, size - len(data))
            except OSError:
                return None
            if not part:
                return None
            data += part
        return bytes(data)

    def close(self) -> None:
        self._sock.close()
        self.connection.close()


async def ask(dispatcher: KafkaDispatcher, frame: bytes, limit_s: float) -> int:
    """Send a request on a connection of its own; how long the answer is, 0 if the connection was closed instead."""
    client = Client(dispatcher)
    sending = asyncio.ensure_future(client.send(frame))
    try:
        answer = await client.receive(limit_s)
    finally:
        sending.cancel()
        await asyncio.gather(sending, return_exceptions=True)
        client.close()
    return 0 if answer is None else len(answer)
