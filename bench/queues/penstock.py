"""Penstock in the same bench: its server, its client, and the rows that are about its queues alone."""

from __future__ import annotations

import os
import random
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.process import BrokerProcess, free_port
from bench.queues.loops import Lost
from bench.queues.servers import Server
from bench.targets import Penstock as Target
from bench.targets import is_ready, penstock_targets
from penstock import AsyncClient
from penstock.client.leases import AsyncQueueMessage

Row = tuple[str, float, str]


@dataclass(frozen=True, slots=True)
class Software:
    """Penstock as a user would start it, reached at its HTTP door."""

    target: Target

    @property
    def name(self) -> str:
        return self.target.name

    def prepare(self) -> str:
        return self.target.prepare()

    def start(self, directory: Path) -> Server:
        http = free_port()
        command = [str(self.target.command), "serve", "--node-id", "1", "--data-dir", str(directory / "data")]
        command += ["--kafka", f"127.0.0.1:{free_port()}", "--http", f"127.0.0.1:{http}"]
        command += ["--grpc", f"127.0.0.1:{free_port()}"]
        left_out = ("PENSTOCK_", "PYTHONDONTWRITEBYTECODE")
        inherited = {key: value for key, value in os.environ.items() if not key.startswith(left_out)}
        environment = {**inherited, **self.target.settings}
        process = BrokerProcess(command, directory / "server.log", environment, directory)
        try:
            process.wait_until(lambda: is_ready(http), self.target.ready_limit_s)
        except BaseException:
            process.stop()
            raise
        return Server(http, process, directory)


_EVERYSEC = Target(
    "penstock+everysec",
    "storage.fsync=interval: once a second, as Redis with everysec does by default",
    {"PENSTOCK_STORAGE__FSYNC": "interval", "PENSTOCK_STORAGE__FSYNC_INTERVAL_MS": "1s"},
)


def penstock_software() -> list[Software]:
    """As it is shipped, first; then less durable, to stand beside peers that are."""
    targets = [target for target in penstock_targets() if isinstance(target, Target)]
    return [Software(target) for target in (targets[0], _EVERYSEC, *targets[1:])]


class PenstockQueues:
    """Penstock's own client. What is done is acked by the call that receives the next, which is its way in a loop."""

    def __init__(self) -> None:
        self._done: Sequence[AsyncQueueMessage] = ()

    async def open(self, port: int) -> None:
        self._client = AsyncClient(f"http://127.0.0.1:{port}")

    async def make(self, queue: str) -> None:
        self._topic = queue
        await self._client.create_topic(queue, partitions=1)
        self._queue = self._client.queue(queue, "bench")

    async def publish(self, values: Sequence[bytes]) -> None:
        if len(values) == 1:
            await self._client.publish(self._topic, values[0])
        else:
            await self._client.publish_many(self._topic, values)

    async def take(self, most: int) -> list[AsyncQueueMessage]:
        done, self._done = self._done, ()
        messages = await self._queue.receive(most, ack=done)  # raises if a lease was over
        for message in messages:
            _ = message.value  # other clients have read it by now; this one does so when it is asked
        return messages

    async def done(self, taken: Sequence[AsyncQueueMessage]) -> None:
        self._done = taken

    async def finish(self) -> None:
        done, self._done = self._done, ()
        if done and (refused := await self._queue.ack(done)):
            raise Lost(f"{len(refused)} leases were over: {refused[0]}")

    async def close(self) -> None:
        await self._client.close()


# -- rows of its own ---------------------------------------------------------------------------------------------------


async def _fill(client: AsyncClient, topic: str, count: int, size: int, **configs: str) -> None:
    await client.create_topic(topic, partitions=1, **configs)
    values = [os.urandom(size) for _ in range(5_000)]
    for begin in range(0, count, len(values)):
        await client.publish_many(topic, values[: count - begin])


async def million_in_flight(server: Server) -> list[Row]:
    """What the broker's memory grows by when a million messages are in flight, 500 to a lease."""
    count = 1_000_000
    async with AsyncClient(f"http://127.0.0.1:{server.port}") as client:
        await _fill(client, "flight", count, 100)
        queue = client.queue("flight", "bench")
        await queue.receive(500, visibility_timeout=3600)
        before = server.process.memory().anon_mb
        taken = 500
        while messages := await queue.receive(500, visibility_timeout=3600):
            taken += len(messages)
        if taken != count:
            raise Lost(f"{taken:,} of {count:,} could be in flight")
        return [("a million in flight: memory", server.process.memory().anon_mb - before, "MB")]


async def large_backlog(server: Server) -> list[Row]:
    """How fast messages come out with ten million behind them, and with a hundred thousand."""
    rates: dict[int, float] = {}
    async with AsyncClient(f"http://127.0.0.1:{server.port}") as client:
        for count in (100_000, 10_000_000):
            topic = f"backlog-{count}"
            await _fill(client, topic, count, 100)
            queue = client.queue(topic, "bench")
            for _ in range(20):
                await queue.ack(await queue.receive(500))
            begun, taken = time.perf_counter(), 0
            while taken < 80_000:
                messages = await queue.receive(500)
                await queue.ack(messages)
                taken += len(messages)
            rates[count] = taken / (time.perf_counter() - begun)
    small, large = rates.values()
    return [
        ("receive + ack, backlog 100 thousand", small, "messages/s"),
        ("receive + ack, backlog 10 million", large, "messages/s"),
    ]


async def expiry(server: Server) -> list[Row]:
    """How late leases end with 100,000 in flight: from the end that a lease was given to its next delivery."""
    chance = random.Random(7)
    late_ms: list[float] = []
    async with AsyncClient(f"http://127.0.0.1:{server.port}") as client:
        await _fill(client, "expiry", 100_000, 100)
        queue = client.queue("expiry", "bench")
        held = 0
        while held < 99_500:
            held += len(await queue.receive(500, visibility_timeout=600))
        ends: dict[int, float] = {}
        for _ in range(500):
            for message in await queue.receive(1, visibility_timeout=chance.uniform(4.0, 8.0)):
                ends[message.offset] = message.lease_until.timestamp()
        while ends:
            for message in await queue.receive(100, wait=5.0, visibility_timeout=600):
                now = time.time()
                if message.offset in ends:
                    late_ms.append((now - ends.pop(message.offset)) * 1000)
    if min(late_ms) < -1:
        raise Lost(f"a lease ended {-min(late_ms):.0f} ms early")
    late_ms.sort()
    return [
        ("leases end late by, median", statistics.median(late_ms), "ms"),
        ("leases end late by, 99th percentile", late_ms[int(len(late_ms) * 0.99)], "ms"),
        ("leases end late by, worst", late_ms[-1], "ms"),
    ]


OWN_ROWS = (million_in_flight, large_backlog, expiry)
