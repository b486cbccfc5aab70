"""A member of a consumer group: reads its share, commits what it has read, and leaves and comes back now and then."""

from __future__ import annotations

import random
import time
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from bench.chaos.clients.client import CALL_LIMIT_S, FINISH_LIMIT_S, LOG_TOPIC, TOPICS, Client
from bench.chaos.clients.reader import value_of
from bench.chaos.history import Assigned, Committed, Finished, Outcome, Polled, Row, id_of, now

BATCH = 300
STAY_S = (15.0, 60.0)
# librdkafka leaves it to the application to commit again when the coordinator has moved.
TRY_AGAIN = {
    KafkaError.NOT_COORDINATOR,
    KafkaError.COORDINATOR_NOT_AVAILABLE,
    KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
    KafkaError.REQUEST_TIMED_OUT,
    KafkaError._TIMED_OUT,
    KafkaError._TRANSPORT,
    KafkaError._WAIT_COORD,
}


class Member:
    """One member at a time; when it leaves, a new one takes its place."""

    def __init__(self, client: Client, group: str, protocol: str) -> None:
        self._client = client
        self._group = group
        self._protocol = protocol
        self._random = random.Random(client.full_name)
        self._session = 0
        self._read: dict[int, int] = {}  # partition to the next offset, of what is read and not yet committed

    def run(self) -> int:
        while not self._client.stopping.is_set():
            consumer = self._join()
            leave_at = time.monotonic() + self._random.uniform(*STAY_S)
            while time.monotonic() < leave_at and not self._client.stopping.is_set():
                self._take(consumer)
            if self._client.stopping.is_set():
                is_done = self._finish(consumer)
                self._client.diary.write(Finished(self._client.full_name, is_done, now(), self._group))
            consumer.close()
        return 0

    def _join(self) -> Consumer:
        specific: dict[str, Any] = {"session_timeout_ms": 6_000} if self._protocol == "classic" else {}
        consumer = Consumer(
            self._client.settings(
                group_id=self._group,
                group_protocol=self._protocol,
                enable_auto_commit=False,
                auto_offset_reset="earliest",
                fetch_wait_max_ms=100,
                fetch_error_backoff_ms=100,
                **specific,
            )
        )
        consumer.subscribe([LOG_TOPIC], on_assign=self._on_assign, on_revoke=self._on_revoke, on_lost=self._on_revoke)
        return consumer

    def _on_assign(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        """Begin where the group had come to; ask for that here, so that the diary knows it."""
        self._session += 1
        asked_at = now()
        try:
            partitions = consumer.committed(partitions, timeout=CALL_LIMIT_S)
            for each in partitions:
                if each.error is not None:
                    raise KafkaException(each.error)
            for each in partitions:
                offset = each.offset if each.offset >= 0 else -1
                name = self._session_name()
                self._client.diary.write(Assigned(name, each.topic, each.partition, offset, asked_at, self._group))
                each.offset = max(offset, 0)
        except KafkaException as error:
            self._client.note(f"committed offsets: {error}")
            partitions = [TopicPartition(each.topic, each.partition) for each in partitions]
        if self._protocol == "classic":
            consumer.assign(partitions)
        else:
            consumer.incremental_assign(partitions)

    def _on_revoke(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        if self._read:
            self._commit(consumer)
        if self._protocol == "classic":
            consumer.unassign()
        else:
            consumer.incremental_unassign(partitions)

    def _session_name(self) -> str:
        return f"{self._client.full_name}:{self._session}"

    def _take(self, consumer: Consumer) -> None:
        rows: list[Row] = []
        for message in consumer.consume(BATCH, 0.2):
            if (error := message.error()) is not None:
                self._client.note(error)
                continue
            rows.append((message.topic(), message.partition(), message.offset(), id_of(value_of(message))))
            self._read[message.partition()] = message.offset() + 1
        if rows:
            self._client.diary.write(Polled(self._session_name(), "uncommitted", now(), rows, self._group))
        if self._read:
            self._commit(consumer)

    def _commit(self, consumer: Consumer) -> None:
        offsets = [TopicPartition(LOG_TOPIC, partition, offset) for partition, offset in self._read.items()]
        self._read = {}
        errors: dict[int, str] = {}
        deadline = time.monotonic() + CALL_LIMIT_S
        while True:
            try:
                for each in consumer.commit(offsets=offsets, asynchronous=False) or ():
                    if each.error is not None:
                        errors[each.partition] = str(each.error)
            except KafkaException as error:
                self._client.note(f"commit: {error}")
                if error.args[0].code() in TRY_AGAIN and time.monotonic() < deadline:
                    time.sleep(0.1)
                    continue
                errors = {each.partition: str(error) for each in offsets}
            break
        at = now()
        for each in offsets:
            failure = errors.get(each.partition, "")
            outcome: Outcome = "info" if failure else "ok"
            self._client.diary.write(
                Committed(self._group, LOG_TOPIC, each.partition, each.offset, outcome, at, failure)
            )

    def _finish(self, consumer: Consumer) -> bool:
        """Go on until the group has committed everything there is."""
        deadline = time.monotonic() + FINISH_LIMIT_S
        while time.monotonic() < deadline:
            self._take(consumer)
            if is_at_the_end(consumer, self._client):
                return True
        return False


def is_at_the_end(consumer: Consumer, client: Client) -> bool:
    """Whether the consumer's group has committed the end of every partition."""
    places = [TopicPartition(LOG_TOPIC, partition) for partition in range(TOPICS[LOG_TOPIC])]
    try:
        ends = {each.partition: consumer.get_watermark_offsets(each, timeout=CALL_LIMIT_S)[1] for each in places}
        committed = consumer.committed(places, timeout=CALL_LIMIT_S)
    except KafkaException as error:
        client.note(f"the end: {error}")
        return False
    return all(each.error is None and max(each.offset, 0) >= ends[each.partition] for each in committed)
