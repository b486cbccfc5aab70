"""confluent-kafka, which is librdkafka."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
    ResourceType,
)
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


@contextmanager
def _refusals() -> Iterator[None]:
    try:
        yield
    except KafkaException as error:
        raise Refused(error.args[0].code(), error.args[0].str()) from error


class ConfluentClient:
    """The recommended Python client."""

    name = "confluent-kafka"
    codecs = (NONE, GZIP, SNAPPY, LZ4, ZSTD)

    def __init__(self, bootstrap: str) -> None:
        self._common: dict[str, Any] = {"bootstrap.servers": bootstrap, "socket.timeout.ms": int(PATIENCE_S * 1000)}
        self._admin = AdminClient(self._common)

    def _outcome(self, futures: dict[Any, Any]) -> Any:
        (future,) = futures.values()
        with _refusals():
            return future.result(PATIENCE_S)

    def create_topic(self, topic: str, partitions: int = 1, **config: str) -> None:
        self._outcome(self._admin.create_topics([NewTopic(topic, partitions, 1, config=setting_names(config))]))

    def delete_topic(self, topic: str) -> None:
        self._outcome(self._admin.delete_topics([topic]))

    def add_partitions(self, topic: str, total: int) -> None:
        self._outcome(self._admin.create_partitions([NewPartitions(topic, total)]))

    def partition_count(self, topic: str) -> int:
        found = self._admin.list_topics(topic, timeout=PATIENCE_S).topics[topic]
        if found.error is not None:
            raise Refused(found.error.code(), found.error.str())
        return len(found.partitions)

    def set_config(self, topic: str, name: str, value: str) -> None:
        entry = ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
        resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])
        self._outcome(self._admin.incremental_alter_configs([resource]))

    def config(self, topic: str) -> dict[str, str | None]:
        entries = self._outcome(self._admin.describe_configs([ConfigResource(ResourceType.TOPIC, topic)]))
        return {name: entry.value for name, entry in entries.items()}

    def delete_records(self, topic: str, partition: int, before_offset: int) -> None:
        self._outcome(self._admin.delete_records([TopicPartition(topic, partition, before_offset)]))

    def produce(
        self, topic: str, messages: Iterable[Message], *, codec: str = NONE, batch_messages: int = 10_000
    ) -> list[int]:
        settings = {"enable.idempotence": True, "acks": "all", "linger.ms": 1_000, "compression.type": codec}
        settings |= {"message.timeout.ms": int(PATIENCE_S * 1000), "message.max.bytes": 1_000_000}
        settings |= {"batch.num.messages": batch_messages}
        producer = Producer(self._common | settings)
        reports: list[tuple[int, KafkaError | None, int]] = []
        count = 0
        for number, message in enumerate(messages):
            count += 1
            producer.produce(
                topic,
                value=message.value,
                key=message.key,
                headers=list(message.headers),
                partition=message.partition,
                timestamp=message.timestamp_ms,
                on_delivery=lambda error, sent, at=number: reports.append((at, error, sent.offset())),
            )
            producer.poll(0)
        assert producer.flush(PATIENCE_S) == 0, "not every message was answered"
        for _, error, _ in reports:
            if error is not None:
                raise Refused(error.code(), error.str())
        assert len(reports) == count
        return [offset for _, _, offset in sorted(reports)]

    def _consumer(self) -> Consumer:
        settings = {"group.id": "unused", "enable.auto.commit": False, "check.crcs": True, "fetch.wait.max.ms": 50}
        return Consumer(self._common | settings)

    def read(self, topic: str, partition: int, offset: int, count: int) -> list[Received]:
        consumer = self._consumer()
        found: list[Received] = []
        deadline = time.monotonic() + PATIENCE_S
        try:
            consumer.assign([TopicPartition(topic, partition, offset)])
            while len(found) < count and time.monotonic() < deadline:
                for record in consumer.consume(count - len(found), timeout=0.5):
                    if record.error():
                        raise Refused(record.error().code(), record.error().str())
                    found.append(Received(record.offset(), _message(record)))
        finally:
            consumer.close()
        return found

    def offset_at(self, topic: str, partition: int, timestamp_ms: int) -> int | None:
        consumer = self._consumer()
        try:
            with _refusals():
                asked = [TopicPartition(topic, partition, timestamp_ms)]
                (found,) = consumer.offsets_for_times(asked, timeout=PATIENCE_S)
        finally:
            consumer.close()
        return found.offset if found.offset >= 0 else None

    def bounds(self, topic: str, partition: int) -> tuple[int, int]:
        consumer = self._consumer()
        try:
            with _refusals():
                low, high = consumer.get_watermark_offsets(TopicPartition(topic, partition), timeout=PATIENCE_S)
        finally:
            consumer.close()
        return low, high

    def close(self) -> None:
        """Nothing is kept open but the admin client, which goes with its last reference."""


def _message(record: Any) -> Message:
    headers = tuple(record.headers() or ())
    return Message(record.value(), record.key(), headers, record.partition(), record.timestamp()[1])
