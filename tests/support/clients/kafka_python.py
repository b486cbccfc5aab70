"""kafka-python 3."""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer, TopicPartition
from kafka.admin import ConfigResource, ConfigResourceType
from kafka.codec import has_lz4, has_snappy, has_zstd
from kafka.errors import BrokerResponseError, KafkaError
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

_PATIENCE_MS = int(PATIENCE_S * 1000)


@contextmanager
def _refusals() -> Iterator[None]:
    try:
        yield
    except BrokerResponseError as error:
        raise Refused(error.errno, str(error)) from error
    except KafkaError as error:
        raise AssertionError(f"kafka-python failed by itself: {error!r}") from error


class KafkaPythonClient:
    """The pure Python client."""

    name = "kafka-python"
    codecs = (NONE, GZIP, *(c for c, has in ((SNAPPY, has_snappy), (LZ4, has_lz4), (ZSTD, has_zstd)) if has()))

    def __init__(self, bootstrap: str) -> None:
        self._bootstrap = bootstrap
        self._admin = KafkaAdminClient(bootstrap_servers=bootstrap, request_timeout_ms=_PATIENCE_MS)

    def create_topic(self, topic: str, partitions: int = 1, **config: str) -> None:
        options = {"num_partitions": partitions, "replication_factor": 1, "configs": setting_names(config)}
        with _refusals():
            self._admin.create_topics({topic: options})

    def delete_topic(self, topic: str) -> None:
        with _refusals():
            self._admin.delete_topics([topic])

    def add_partitions(self, topic: str, total: int) -> None:
        with _refusals():
            self._admin.create_partitions({topic: total})

    def partition_count(self, topic: str) -> int:
        with _refusals():
            (found,) = self._admin.describe_topics([topic])
        if found["error_code"]:
            raise Refused(found["error_code"])
        return len(found["partitions"])

    def set_config(self, topic: str, name: str, value: str) -> None:
        with _refusals():
            results = self._admin.alter_configs([ConfigResource(ConfigResourceType.TOPIC, topic, {name: value})])
        for outcome in (outcome for by_name in results.values() for outcome in by_name.values()):
            if found := re.match(r"\[Error (\d+)\]", str(outcome)):  # this client tells errors only in words here
                raise Refused(int(found[1]), str(outcome))

    def config(self, topic: str) -> dict[str, str | None]:
        with _refusals():
            found = self._admin.describe_configs([ConfigResource(ConfigResourceType.TOPIC, topic)], config_filter="all")
        (by_name,) = found.values()
        return {name: facts["value"] for name, facts in by_name[topic].items()}

    def delete_records(self, topic: str, partition: int, before_offset: int) -> None:
        with _refusals():
            self._admin.delete_records({TopicPartition(topic, partition): before_offset}, timeout_ms=_PATIENCE_MS)

    def produce(self, topic: str, messages: Iterable[Message], *, codec: str = NONE) -> list[int]:
        # Nothing goes out before all is there: what is too small to shrink would be sent without the codec.
        producer = KafkaProducer(
            bootstrap_servers=self._bootstrap,
            enable_idempotence=True,
            acks="all",
            linger_ms=1_000,
            batch_size=64 * 1024,
            compression_type=None if codec == NONE else codec,
            max_block_ms=_PATIENCE_MS,
            delivery_timeout_ms=_PATIENCE_MS,
            request_timeout_ms=_PATIENCE_MS // 2,
        )
        try:
            with _refusals():
                sent = [
                    producer.send(
                        topic,
                        value=message.value,
                        key=message.key,
                        headers=list(message.headers),
                        partition=message.partition,
                        timestamp_ms=message.timestamp_ms,
                    )
                    for message in messages
                ]
                producer.flush(timeout=PATIENCE_S)
                return [future.get(timeout=PATIENCE_S).offset for future in sent]
        finally:
            producer.close(timeout=5)

    def _consumer(self) -> KafkaConsumer:
        return KafkaConsumer(
            bootstrap_servers=self._bootstrap, group_id=None, check_crcs=True, enable_auto_commit=False
        )

    def read(self, topic: str, partition: int, offset: int, count: int) -> list[Received]:
        consumer = self._consumer()
        where = TopicPartition(topic, partition)
        found: list[Received] = []
        deadline = time.monotonic() + PATIENCE_S
        try:
            with _refusals():
                consumer.assign([where])
                consumer.seek(where, offset)
                while len(found) < count and time.monotonic() < deadline:
                    for record in consumer.poll(timeout_ms=500, max_records=count - len(found)).get(where, ()):
                        headers = tuple((name, value) for name, value in record.headers)
                        message = Message(record.value, record.key, headers, partition, record.timestamp)
                        found.append(Received(record.offset, message))
        finally:
            consumer.close()
        return found

    def offset_at(self, topic: str, partition: int, timestamp_ms: int) -> int | None:
        consumer = self._consumer()
        where = TopicPartition(topic, partition)
        try:
            with _refusals():
                found = consumer.offsets_for_times({where: timestamp_ms})[where]
        finally:
            consumer.close()
        return None if found is None else found.offset

    def bounds(self, topic: str, partition: int) -> tuple[int, int]:
        consumer = self._consumer()
        where = TopicPartition(topic, partition)
        try:
            with _refusals():
                return consumer.beginning_offsets([where])[where], consumer.end_offsets([where])[where]
        finally:
            consumer.close()

    def close(self) -> None:
        self._admin.close()
