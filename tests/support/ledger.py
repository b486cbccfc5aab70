"""Producers that keep books: what was sent, what was acknowledged, and whether the log agrees.

Every message says which producer sent it to which partition, and as its how-many-eth. Reading a partition back then
shows without doubt whether something acknowledged is missing, doubled, or out of order.
"""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from typing import Any, NamedTuple

from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition

_QUEUE_MESSAGES = 2_000
_FLUSH_LIMIT_S = 90.0


class Entry(NamedTuple):
    """One message: who sent it, and its number among those of that producer to that partition."""

    producer: str
    number: int

    def encode(self, size: int) -> bytes:
        return f"{self.producer} {self.number} ".encode().ljust(size, b".")

    @staticmethod
    def decode(value: bytes) -> Entry:
        producer, number, _ = value.decode().split(" ", 2)
        return Entry(producer, int(number))


class Books:
    """One producer that sends, in a thread of its own, until it is told to stop."""

    def __init__(self, name: str, bootstrap: str, topic: str, partitions: int, **config: Any) -> None:
        self.name = name
        self.sent: dict[int, int] = defaultdict(int)  # by partition
        self.acked: dict[int, list[int]] = defaultdict(list)
        self.failed: list[KafkaError] = []
        self.fatal: list[KafkaError] = []
        self._topic = topic
        self._partitions = partitions
        self._producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "message.timeout.ms": 0,  # never give up: whatever is sent is to arrive
                "reconnect.backoff.ms": 20,
                "reconnect.backoff.max.ms": 200,
                "retry.backoff.ms": 20,
                "retry.backoff.max.ms": 200,
                "linger.ms": 2,
                "queue.buffering.max.messages": _QUEUE_MESSAGES,
                "error_cb": self._on_error,
                "log_level": 0,
                **config,
            }
        )
        self._is_stopping = threading.Event()
        self._thread = threading.Thread(target=self._work, name=name, daemon=True)

    def start(self) -> Books:
        self._thread.start()
        return self

    @property
    def acked_count(self) -> int:
        return sum(len(numbers) for numbers in self.acked.values())

    def finish(self) -> int:
        """Send no more and wait for the answers; how many messages were never answered."""
        self._is_stopping.set()
        self._thread.join()
        return self._producer.flush(_FLUSH_LIMIT_S)

    def _on_error(self, error: KafkaError) -> None:
        if error.fatal():
            self.fatal.append(error)

    def _work(self) -> None:
        turn = 0
        while not self._is_stopping.is_set() and not self.fatal:
            turn += 1
            partition = turn % self._partitions
            number = self.sent[partition]
            value = Entry(self.name, number).encode(40 + turn * 37 % 900)
            try:
                self._producer.produce(
                    self._topic,
                    value,
                    partition=partition,
                    on_delivery=lambda error, _, at=partition, n=number: self._on_delivery(error, at, n),
                )
            except BufferError:
                self._producer.poll(0.05)
                continue
            self.sent[partition] += 1
            self._producer.poll(0)
            if turn % 20 == 0:
                time.sleep(0.002)  # a steady stream; the point is when the node dies, not how fast it is

    def _on_delivery(self, error: KafkaError | None, partition: int, number: int) -> None:
        if error is None:
            self.acked[partition].append(number)
        else:
            self.failed.append(error)


def read_partition(
    bootstrap: str, topic: str, partition: int, limit_s: float = 60.0, **config: Any
) -> list[tuple[int, bytes]]:
    """Every (offset, value) of a partition up to its end at this moment, with checksums checked by the client."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "unused",
            "check.crcs": True,
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "fetch.wait.max.ms": 50,
            **config,
        }
    )
    found: list[tuple[int, bytes]] = []
    deadline = time.monotonic() + limit_s
    try:
        low, _ = consumer.get_watermark_offsets(TopicPartition(topic, partition), timeout=limit_s)
        consumer.assign([TopicPartition(topic, partition, low)])
        while time.monotonic() < deadline:
            for record in consumer.consume(1_000, timeout=0.2):
                error = record.error()
                if error is None:
                    found.append((record.offset(), record.value()))
                elif error.code() == KafkaError._PARTITION_EOF:
                    return found
                else:
                    raise AssertionError(f"reading {topic}-{partition} failed: {error}")
    finally:
        consumer.close()
    raise AssertionError(f"{topic}-{partition} did not end within {limit_s:.0f} s; read {len(found)} records")


def entries_by_producer(records: list[tuple[int, bytes]]) -> dict[str, list[int]]:
    """The numbers of each producer's messages, in the order of the log."""
    numbers: dict[str, list[int]] = defaultdict(list)
    for _, value in records:
        entry = Entry.decode(value)
        numbers[entry.producer].append(entry.number)
    return numbers
