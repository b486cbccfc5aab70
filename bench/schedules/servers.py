"""A server that is killed and started again on the same data, and a way to put messages for later into it."""

from __future__ import annotations

import asyncio
import os
import signal
import struct
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

from bench.queues.servers import Server
from penstock import AsyncClient
from penstock.errors import PenstockError

SIZE = 100
PARTITIONS = 4
TOPIC = "later"
OnMessage = Callable[[int, float], None]  # when it was due and when it came, in milliseconds since 1970

_POLL_S = 0.005
_MOVED_AT_ONCE = 1_000
_HEAD = struct.Struct(">q")


def values_for(due_ms: int, count: int) -> list[bytes]:
    """Messages that tell when they are due; no two are alike."""
    head = _HEAD.pack(due_ms)
    return [head + os.urandom(SIZE - _HEAD.size) for _ in range(count)]


def due_of(value: bytes) -> int:
    due_ms: int = _HEAD.unpack_from(value)[0]
    return due_ms


def kill(server: Server) -> None:
    """As ``kill -9``."""
    os.kill(server.process._ps.pid, signal.SIGKILL)
    server.process.stop()


class Later(Protocol):
    """Messages for later, as the rows see them."""

    async def open(self, server: Server) -> None: ...

    async def make(self) -> None:
        """Whatever messages go to."""

    async def add(self, values: Sequence[bytes], due_ms: int) -> None:
        """Return when all of them are as safe as the server makes them."""

    async def pending(self) -> int:
        """How many are to come. Raises while the server does not answer."""

    async def follow(self, on_message: OnMessage) -> None:
        """Read what comes, until cancelled."""

    async def close(self) -> None: ...


class PenstockLater:
    """Penstock's own client adds, with `publish_many` and a time; who reads is a Kafka consumer."""

    async def open(self, server: Server) -> None:
        self._client = AsyncClient(f"http://127.0.0.1:{server.port}")
        arguments = server.process._ps.cmdline()
        self._kafka = arguments[arguments.index("--kafka") + 1]

    async def make(self) -> None:
        await self._client.create_topic(TOPIC, partitions=PARTITIONS)

    async def add(self, values: Sequence[bytes], due_ms: int) -> None:
        await self._client.publish_many(TOPIC, values, deliver_at=due_ms)

    async def pending(self) -> int:
        return (await self._client.schedules.stats()).pending

    async def follow(self, on_message: OnMessage) -> None:
        from confluent_kafka import Consumer, TopicPartition

        settings = {"bootstrap.servers": self._kafka, "group.id": "bench", "enable.auto.commit": False}
        consumer = Consumer(settings)
        consumer.assign([TopicPartition(TOPIC, partition, 0) for partition in range(PARTITIONS)])
        try:
            while True:
                messages = await asyncio.to_thread(consumer.consume, 500, 0.002)
                now_ms = time.time() * 1000
                for message in messages:
                    on_message(due_of(message.value()), now_ms)
        finally:
            consumer.close()

    async def close(self) -> None:
        await self._client.close()


# What is due goes from the sorted set to a stream, in one step.
_MOVE = """
local due = redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', ARGV[1], 'LIMIT', 0, ARGV[2])
for _, value in ipairs(due) do
  redis.call('XADD', KEYS[2], '*', 'v', value)
end
if #due > 0 then
  redis.call('ZREMRANGEBYRANK', KEYS[1], 0, #due - 1)
end
return #due
"""


class RedisLater:
    """A sorted set by due time, and a poller that moves what is due to a stream, as is usual with Redis."""

    async def open(self, server: Server) -> None:
        from redis import asyncio as redis

        self._redis: Any = redis.Redis(port=server.port)

    async def make(self) -> None:
        return

    async def add(self, values: Sequence[bytes], due_ms: int) -> None:
        await self._redis.zadd(TOPIC, dict.fromkeys(values, due_ms))

    async def pending(self) -> int:
        count: int = await self._redis.zcard(TOPIC)
        return count

    async def follow(self, on_message: OnMessage) -> None:
        await asyncio.gather(self._poll(), self._read(on_message))

    async def _poll(self) -> None:
        move = self._redis.register_script(_MOVE)
        while True:
            moved = await move(keys=[TOPIC, "came"], args=[int(time.time() * 1000), _MOVED_AT_ONCE])
            if moved < _MOVED_AT_ONCE:
                await asyncio.sleep(_POLL_S)

    async def _read(self, on_message: OnMessage) -> None:
        last = b"0"
        while True:
            for _, messages in await self._redis.xread({"came": last}, count=1_000, block=1_000):
                now_ms = time.time() * 1000
                for _, fields in messages:
                    on_message(due_of(fields[b"v"]), now_ms)
                last = messages[-1][0]

    async def close(self) -> None:
        await self._redis.aclose()


def unreachable() -> tuple[type[Exception], ...]:
    """What a client raises as long as its server is not back."""
    from redis.exceptions import RedisError

    return (PenstockError, RedisError, OSError)


def size_on_disk(directory: Path) -> float:
    """In megabytes."""
    return sum(path.stat().st_size for path in directory.rglob("*") if path.is_file()) / 1e6
