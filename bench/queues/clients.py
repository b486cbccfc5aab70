"""One connection to each kind of queue, through its best Python client, behind the same few calls."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, Protocol

_FETCH_S = 2.0


class Client(Protocol):
    """A queue as the loops see it. Whatever is published here is safe when the call returns."""

    async def open(self, port: int) -> None: ...

    async def make(self, queue: str) -> None:
        """An empty queue, and whoever reads it."""

    async def publish(self, values: Sequence[bytes]) -> None: ...

    async def take(self, most: int) -> Sequence[Any]:
        """Up to so many messages, values and all, as what `done` takes; none if there are none."""

    async def done(self, taken: Sequence[Any]) -> None:
        """Acknowledge all of them, as the client's users would in a loop."""

    async def finish(self) -> None:
        """Return when every acknowledgement has reached the server, as far as it says so."""

    async def close(self) -> None: ...


class RedisStreams:
    """redis-py with hiredis; it blocks, which costs nothing as long as one loop is all there is."""

    async def open(self, port: int) -> None:
        import redis

        self._redis = redis.Redis(port=port)

    async def make(self, queue: str) -> None:
        self._queue = queue
        self._redis.xgroup_create(queue, "bench", id="0", mkstream=True)

    async def publish(self, values: Sequence[bytes]) -> None:
        if len(values) == 1:
            self._redis.xadd(self._queue, {"v": values[0]})
            return
        pipeline = self._redis.pipeline(transaction=False)
        for value in values:
            pipeline.xadd(self._queue, {"v": value})
        pipeline.execute()

    async def take(self, most: int) -> Sequence[Any]:
        found = self._redis.xreadgroup("bench", "one", {self._queue: ">"}, count=most)
        return [message_id for message_id, _ in found[0][1]] if found else []

    async def done(self, taken: Sequence[Any]) -> None:
        self._redis.xack(self._queue, "bench", *taken)

    async def finish(self) -> None:
        """Nothing is left: see `done`."""

    async def close(self) -> None:
        self._redis.close()


class JetStream:
    """nats-py: publishes wait for their acknowledgements together, a pull consumer fetches."""

    async def open(self, port: int) -> None:
        import nats

        self._nats = await nats.connect(f"nats://127.0.0.1:{port}")
        self._stream = self._nats.jetstream(timeout=30, publish_async_max_pending=4000)

    async def make(self, queue: str) -> None:
        self._queue = queue
        await self._stream.add_stream(name=queue, subjects=[queue], storage="file")
        self._reader = await self._stream.pull_subscribe(queue, durable=f"{queue}-bench")

    async def publish(self, values: Sequence[bytes]) -> None:
        if len(values) == 1:
            await self._stream.publish(self._queue, values[0])
            return
        waiting = [await self._stream.publish_async(self._queue, value) for value in values]
        await asyncio.gather(*waiting)

    async def take(self, most: int) -> Sequence[Any]:
        import nats.errors

        try:
            found: Sequence[Any] = await self._reader.fetch(most, timeout=_FETCH_S)
        except nats.errors.TimeoutError:
            return []
        return found

    async def done(self, taken: Sequence[Any]) -> None:
        for message in taken:
            await message.ack()
        await self._nats.flush()  # until the server has heard it; it does not say what became of it

    async def finish(self) -> None:
        """Nothing is left: see `done`."""

    async def close(self) -> None:
        await self._nats.close()


class QuorumQueue:
    """aio-pika: publisher confirms awaited together, a consumer with prefetch, one acknowledgement for many."""

    async def open(self, port: int) -> None:
        import aio_pika

        self._pika = aio_pika
        self._connection = await aio_pika.connect(f"amqp://guest:guest@127.0.0.1:{port}/")
        self._channel = await self._connection.channel(publisher_confirms=True)
        await self._channel.set_qos(prefetch_count=1000)

    async def make(self, queue: str) -> None:
        self._queue = await self._channel.declare_queue(queue, durable=True, arguments={"x-queue-type": "quorum"})
        self._received: asyncio.Queue[Any] = asyncio.Queue()
        self._tag: str | None = None

    async def publish(self, values: Sequence[bytes]) -> None:
        durable = self._pika.DeliveryMode.PERSISTENT
        await asyncio.gather(
            *(
                self._channel.default_exchange.publish(
                    self._pika.Message(value, delivery_mode=durable), self._queue.name
                )
                for value in values
            )
        )

    async def take(self, most: int) -> Sequence[Any]:
        if self._tag is None:
            self._tag = await self._queue.consume(self._received.put)
        found: list[Any] = []
        try:
            async with asyncio.timeout(_FETCH_S):
                while len(found) < most:
                    found.append(await self._received.get())
        except TimeoutError:
            pass
        return found

    async def done(self, taken: Sequence[Any]) -> None:
        await taken[-1].ack(multiple=True)  # the protocol has no answer to it

    async def finish(self) -> None:
        """Nothing is left: see `done`."""

    async def close(self) -> None:
        await self._connection.close()
