"""aiokafka. Each call runs its own event loop: slower than the client is, and free of state between calls."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from typing import Any, TypeVar

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewPartitions, NewTopic, RecordsToDelete
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from aiokafka.errors import BrokerResponseError
from tests.support.clients.contract import (
    GZIP,
    LZ4,
    NONE,
    PATIENCE_S,
    SNAPPY,
    ZSTD,
    Message,
    Received,
    Refused,
    setting_names,
)

T = TypeVar("T")
_PATIENCE_MS = int(PATIENCE_S * 1000)


class AioKafkaClient:
    """The asyncio client."""

    name = "aiokafka"
    codecs = (NONE, GZIP, SNAPPY, LZ4, ZSTD)

    def __init__(self, bootstrap: str) -> None:
        self._bootstrap = bootstrap

    def _run(self, work: Callable[[], Awaitable[T]]) -> T:
        async def bounded() -> T:
            async with asyncio.timeout(2 * PATIENCE_S):
                return await work()

        try:
            return asyncio.run(bounded())
        except BrokerResponseError as error:
            raise Refused(error.errno, str(error)) from error

    @asynccontextmanager
    async def _admin(self) -> AsyncIterator[AIOKafkaAdminClient]:
        admin = AIOKafkaAdminClient(bootstrap_servers=self._bootstrap, request_timeout_ms=_PATIENCE_MS)
        await admin.start()
        try:
            yield admin
        finally:
            await admin.close()

    def _ask_admin(self, work: Callable[[AIOKafkaAdminClient], Awaitable[T]]) -> T:
        async def asked() -> T:
            async with self._admin() as admin:
                return await work(admin)

        return self._run(asked)

    def create_topic(self, topic: str, partitions: int = 1, **config: str) -> None:
        new = NewTopic(topic, partitions, 1, topic_configs=setting_names(config))
        _check(self._ask_admin(lambda admin: admin.create_topics([new])).topic_errors)

    def delete_topic(self, topic: str) -> None:
        _check(self._ask_admin(lambda admin: admin.delete_topics([topic])).topic_error_codes)

    def add_partitions(self, topic: str, total: int) -> None:
        _check(self._ask_admin(lambda admin: admin.create_partitions({topic: NewPartitions(total)})).topic_errors)

    def partition_count(self, topic: str) -> int:
        (found,) = self._ask_admin(lambda admin: admin.describe_topics([topic]))
        if found["error_code"]:
            raise Refused(found["error_code"])
        return len(found["partitions"])

    def set_config(self, topic: str, name: str, value: str) -> None:
        resource = ConfigResource(ConfigResourceType.TOPIC, topic, configs={name: value})
        for response in self._ask_admin(lambda admin: admin.alter_configs([resource])):
            for code, message, *_ in response.resources:
                _check([(topic, code, message)])

    def config(self, topic: str) -> dict[str, str | None]:
        resource = ConfigResource(ConfigResourceType.TOPIC, topic)
        (response,) = self._ask_admin(lambda admin: admin.describe_configs([resource]))
        (found,) = response.resources
        _check([(topic, *found[:2])])
        return {entry[0]: entry[1] for entry in found[4]}

    def delete_records(self, topic: str, partition: int, before_offset: int) -> None:
        wanted = {TopicPartition(topic, partition): RecordsToDelete(before_offset)}
        self._ask_admin(lambda admin: admin.delete_records(wanted))

    def produce(self, topic: str, messages: Iterable[Message], *, codec: str = NONE) -> list[int]:
        async def produced() -> list[int]:
            producer = AIOKafkaProducer(
                bootstrap_servers=self._bootstrap,
                enable_idempotence=True,
                acks="all",
                linger_ms=20 if codec == NONE else 300,  # a batch that is too small to shrink goes without the codec
                max_batch_size=64 * 1024,
                compression_type=None if codec == NONE else codec,
                request_timeout_ms=_PATIENCE_MS,
            )
            await producer.start()
            try:
                sent = [
                    await producer.send(
                        topic,
                        value=message.value,
                        key=message.key,
                        headers=list(message.headers),
                        partition=message.partition,
                        timestamp_ms=message.timestamp_ms,
                    )
                    for message in messages
                ]
                return [placed.offset for placed in await asyncio.gather(*sent)]
            finally:
                await producer.stop()

        return self._run(produced)

    def _ask_consumer(self, work: Callable[[AIOKafkaConsumer], Awaitable[T]]) -> T:
        async def asked() -> T:
            consumer = AIOKafkaConsumer(bootstrap_servers=self._bootstrap, group_id=None, check_crcs=True)
            await consumer.start()
            try:
                return await work(consumer)
            finally:
                await consumer.stop()

        return self._run(asked)

    def read(self, topic: str, partition: int, offset: int, count: int) -> list[Received]:
        where = TopicPartition(topic, partition)

        async def read(consumer: AIOKafkaConsumer) -> list[Received]:
            consumer.assign([where])
            consumer.seek(where, offset)
            found: list[Received] = []
            deadline = asyncio.get_running_loop().time() + PATIENCE_S
            while len(found) < count and asyncio.get_running_loop().time() < deadline:
                batch = await consumer.getmany(where, timeout_ms=500, max_records=count - len(found))
                found += [_received(record) for record in batch.get(where, ())]
            return found

        return self._ask_consumer(read)

    def offset_at(self, topic: str, partition: int, timestamp_ms: int) -> int | None:
        where = TopicPartition(topic, partition)
        found = self._ask_consumer(lambda consumer: consumer.offsets_for_times({where: timestamp_ms}))[where]
        return None if found is None else found.offset

    def bounds(self, topic: str, partition: int) -> tuple[int, int]:
        where = TopicPartition(topic, partition)

        async def bounds(consumer: AIOKafkaConsumer) -> tuple[int, int]:
            low = await consumer.beginning_offsets([where])
            high = await consumer.end_offsets([where])
            return low[where], high[where]

        return self._ask_consumer(bounds)

    def close(self) -> None:
        """Nothing is kept open between calls."""


def _check(errors: Iterable[tuple[Any, ...]]) -> None:
    for _, code, *message in errors:
        if code:
            raise Refused(code, str(message))


def _received(record: Any) -> Received:
    message = Message(record.value, record.key, tuple(record.headers), record.partition, record.timestamp)
    return Received(record.offset, message)
