"""An idempotent producer: a steady stream with keys to every partition, acks=all."""

from __future__ import annotations

import os
import time
from typing import Any

from confluent_kafka import KafkaError, Producer

from bench.chaos.clients.client import EXIT_FATAL, FINISH_LIMIT_S, LOG_TOPIC, TOPICS, Client, outcome_of, partition_of
from bench.chaos.history import Send, Sent, now, text_of

RATE = int(os.environ.get("CHAOS_RATE", "100"))
KEYS = 32
IN_HAND_MAX = 1_000


class SteadyProducer:
    """Sends until it is told to stop, and then waits for every answer."""

    def __init__(self, client: Client, topic: str = LOG_TOPIC) -> None:
        self._client = client
        self._topic = topic
        self._number = 0
        self._fatal: KafkaError | None = None
        # Whatever librdkafka gives up on by itself makes it begin a new epoch, in which it sends again what may have
        # been stored already: duplicates that no broker can tell. So it does not give up.
        self._producer = Producer(
            client.settings(enable_idempotence=True, acks="all", message_timeout_ms=300_000, linger_ms=5)
            | {"error_cb": self._on_error, "queue.buffering.max.messages": 2 * IN_HAND_MAX}
        )

    def run(self) -> int:
        began = time.monotonic()
        while not self._client.stopping.is_set() and self._fatal is None:
            due = int((time.monotonic() - began) * RATE)
            if self._number < due and len(self._producer) < IN_HAND_MAX:
                self._send()
                self._producer.poll(0)
            else:
                began = max(began, time.monotonic() - (self._number + RATE) / RATE)  # what was missed is not caught up
                self._producer.poll(0.01)
        self._producer.flush(FINISH_LIMIT_S if self._fatal is None else 1.0)
        return EXIT_FATAL if self._fatal else 0

    def _send(self) -> None:
        key = self._number % KEYS
        partition = partition_of(key, TOPICS[self._topic])
        message_id = f"{self._client.full_name}-{self._number}"
        self._number += 1
        self._client.diary.write(Send(message_id, self._topic, partition, now()))

        def on_delivery(error: KafkaError | None, message: Any) -> None:
            offset = message.offset() if error is None else -1
            reason = str(error) if error else ""
            self._client.diary.write(
                Sent(message_id, outcome_of(error), now(), -1 if offset is None else offset, reason)
            )

        self._producer.produce(
            self._topic, text_of(message_id), f"key-{key}", partition=partition, on_delivery=on_delivery
        )

    def _on_error(self, error: KafkaError) -> None:
        self._client.note(error)
        if error.fatal():
            self._fatal = error
