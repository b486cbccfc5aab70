"""Transactional clients: one writes over several partitions, the other turns one topic into another, exactly once.

librdkafka may hang in a transactional call when a node was lost at the wrong moment (confluentinc/librdkafka#5456), so
each transaction has a watchdog that ends the process: its next incarnation begins anew, as after any crash.
"""

from __future__ import annotations

import os
import random
import threading
import time
from collections.abc import Callable
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition

from bench.chaos.clients.client import (
    DERIVED_TOPIC,
    EXIT_FATAL,
    EXIT_STUCK,
    FINISH_LIMIT_S,
    LEDGER_TOPIC,
    LOG_TOPIC,
    TOPICS,
    Client,
    outcome_of,
)
from bench.chaos.clients.member import is_at_the_end
from bench.chaos.history import End, Ended, Finished, Intent, Send, Sent, now, text_of

ABORTED_SHARE = 0.15
BATCH = 1_000
PAUSE_S = 0.05
CALL_S = 20
STUCK_S = 45.0


class Transactions:
    """A transactional producer that writes down what it asks and what it is told."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._count = 0
        self._messages = 0
        self._over = ""
        self.producer = Producer(
            client.settings(transactional_id=f"chaos-{client.name}", transaction_timeout_ms=20_000, linger_ms=5)
        )

    def begin_life(self) -> None:
        with Watchdog(4 * STUCK_S):
            self._insist(lambda: self.producer.init_transactions(CALL_S))

    def begin(self) -> str:
        self._count += 1
        self.producer.begin_transaction()
        return f"{self._client.full_name}:{self._count}"

    def send(self, transaction: str, topic: str, partition: int, suffix: str = "") -> None:
        message_id = f"{self._client.full_name}-{self._messages}{suffix}"
        self._messages += 1
        diary = self._client.diary
        diary.write(Send(message_id, topic, partition, now(), transaction))

        def on_delivery(error: KafkaError | None, message: Any) -> None:
            offset = message.offset() if error is None else None
            diary.write(Sent(message_id, outcome_of(error), now(), -1 if offset is None else offset, str(error or "")))

        self.producer.produce(topic, text_of(message_id), partition=partition, on_delivery=on_delivery)

    def end(self, transaction: str, intent: Intent) -> bool:
        """Commit or abort; whether it came to what was wanted. An error that cannot be lived with ends the process."""
        call = self.producer.commit_transaction if intent == "commit" else self.producer.abort_transaction
        self._client.diary.write(End(transaction, intent, now()))
        try:
            self._insist(lambda: call(CALL_S))
        except KafkaException as raised:
            error: KafkaError = raised.args[0]
            self._client.note(f"{intent}: {error}")
            is_abortable = error.txn_requires_abort()
            outcome = "fail" if is_abortable else "info"
            self._client.diary.write(Ended(transaction, intent, outcome, now(), str(error)))
            if is_abortable and intent == "commit":
                self.end(transaction, "abort")
                return False
            os._exit(EXIT_FATAL)
        self._client.diary.write(Ended(transaction, intent, "ok", now()))
        self._over = transaction
        return True

    def is_over(self, transaction: str) -> bool:
        """Whether the transaction has ended, one way or the other."""
        return transaction == self._over

    def _insist(self, call: Callable[[], object]) -> None:
        """Call again as long as the error says that this is right."""
        while True:
            try:
                call()
                return
            except KafkaException as raised:
                error: KafkaError = raised.args[0]
                if not error.retriable() or error.txn_requires_abort() or error.fatal():
                    raise
                self._client.note(f"again: {error}")


class Writer:
    """Transactions over several partitions of one topic, some of them aborted on purpose."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._transactions = Transactions(client)
        self._random = random.Random(client.full_name)

    def run(self) -> int:
        try:
            self._transactions.begin_life()
            while not self._client.stopping.is_set():
                with Watchdog(STUCK_S):
                    self._write()
                time.sleep(PAUSE_S)
        except KafkaException as error:
            self._client.note(error)
            os._exit(EXIT_FATAL)  # as it is: nothing is closed in good order
        return 0

    def _write(self) -> None:
        transaction = self._transactions.begin()
        for _ in range(self._random.randint(2, 8)):
            partition = self._random.randrange(TOPICS[LEDGER_TOPIC])
            self._transactions.send(transaction, LEDGER_TOPIC, partition)
        if self._random.random() < ABORTED_SHARE:
            if self._random.random() < 0.5:
                self._transactions.producer.flush(1.0)  # some have reached the log when the abort comes
            self._transactions.end(transaction, "abort")
        else:
            self._transactions.end(transaction, "commit")


class Transformer:
    """Reads a topic in a group, and writes results and its own offsets in one transaction."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._transactions = Transactions(client)
        self._random = random.Random(client.full_name)
        self._consumer = Consumer(
            client.settings(
                group_id="chaos-transformers",
                session_timeout_ms=6_000,
                enable_auto_commit=False,
                auto_offset_reset="earliest",
                isolation_level="read_committed",
                fetch_wait_max_ms=100,
            )
        )

    def run(self) -> int:
        try:
            self._transactions.begin_life()
            self._consumer.subscribe([LOG_TOPIC])
            deadline = float("inf")
            while time.monotonic() < deadline:
                with Watchdog(STUCK_S):
                    self._turn()
                if self._client.stopping.is_set():
                    deadline = min(deadline, time.monotonic() + FINISH_LIMIT_S)
                    if is_at_the_end(self._consumer, self._client):
                        break
        except KafkaException as error:
            self._client.note(error)
            os._exit(EXIT_FATAL)
        is_caught_up = time.monotonic() < deadline
        self._client.diary.write(Finished(self._client.full_name, is_caught_up, now()))
        self._consumer.close()
        return 0

    def _turn(self) -> None:
        messages = [each for each in self._consumer.consume(BATCH, 0.2) if not each.error()]
        if not messages:
            return
        transaction = self._transactions.begin()
        first, after = _span(messages)
        for message in messages:
            source = f"/{message.partition()}.{message.offset()}"
            self._transactions.send(transaction, DERIVED_TOPIC, message.partition(), source)
        offsets = [TopicPartition(LOG_TOPIC, partition, offset) for partition, offset in after.items()]
        try:
            self._send_offsets(offsets)
        except KafkaException as raised:
            self._client.note(f"offsets: {raised}")
            if not raised.args[0].txn_requires_abort():
                raise
            self._give_up(transaction, first)
            return
        if self._random.random() < ABORTED_SHARE or not self._transactions.end(transaction, "commit"):
            self._give_up(transaction, first)

    def _send_offsets(self, offsets: list[TopicPartition]) -> None:
        metadata = self._consumer.consumer_group_metadata()
        self._transactions.producer.send_offsets_to_transaction(offsets, metadata, CALL_S)

    def _give_up(self, transaction: str, first: dict[int, int]) -> None:
        """Abort, unless that was done already, and read the same again."""
        if not self._transactions.is_over(transaction):
            self._transactions.end(transaction, "abort")
        for partition, offset in first.items():
            try:
                self._consumer.seek(TopicPartition(LOG_TOPIC, partition, offset))
            except KafkaException as error:  # no longer ours: whoever has it reads it from the committed offset
                self._client.note(f"seek: {error}")


def _span(messages: list[Message]) -> tuple[dict[int, int], dict[int, int]]:
    """The first offset of each partition, and the one after the last."""
    first: dict[int, int] = {}
    after: dict[int, int] = {}
    for message in messages:
        first.setdefault(message.partition(), message.offset())
        after[message.partition()] = message.offset() + 1
    return first, after


class Watchdog:
    """Ends the process unless what it guards ends in time."""

    def __init__(self, limit_s: float) -> None:
        self._timer = threading.Timer(limit_s, os._exit, [EXIT_STUCK])
        self._timer.daemon = True

    def __enter__(self) -> None:
        self._timer.start()

    def __exit__(self, *exc: object) -> None:
        self._timer.cancel()
