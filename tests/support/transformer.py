"""An application that reads, transforms and writes in transactions, as a process of its own, so that it can be killed.

    python -m tests.support.transformer <bootstrap> <group> <source topic> <sink topic> <diary>

It writes a line to its diary for each transaction: how many messages, and ``committed`` or ``aborted``. An error that
it cannot go on after ends it, and so does a transaction that takes too long: when the node was down at the wrong moment
librdkafka never comes back from sending offsets, whatever the timeout (confluentinc/librdkafka#5456, #5511). Whoever
runs it starts it again. From its environment it takes MESSAGES_AT_ONCE, how many a transaction has at most, and
ABORTED_SHARE, how many of all transactions it aborts and does again.
"""

from __future__ import annotations

import os
import random
import sys
import threading
from pathlib import Path

from confluent_kafka import Consumer, KafkaException, Message, Producer, TopicPartition

MESSAGES_AT_ONCE = int(os.environ.get("MESSAGES_AT_ONCE", "50"))
ABORTED_SHARE = float(os.environ.get("ABORTED_SHARE", "0.1"))
PATIENCE_S = 30
STUCK_S = 4.0
EXIT_STUCK = 4


def transform(value: bytes) -> bytes:
    return b"result of " + value


def run(bootstrap: str, group: str, source: str, sink: str, diary: Path) -> None:
    backoff = {
        "bootstrap.servers": bootstrap,
        "reconnect.backoff.ms": 20,
        "reconnect.backoff.max.ms": 200,
        "retry.backoff.ms": 20,
        "retry.backoff.max.ms": 200,
        "log_level": 2,
    }
    producer = Producer(backoff | {"transactional.id": f"{group}-app", "transaction.timeout.ms": 60_000})
    producer.init_transactions(PATIENCE_S)
    consumer = Consumer(
        backoff
        | {
            "group.id": group,
            "group.instance.id": "app",  # it comes back at once, without a round
            "session.timeout.ms": 6_000,
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            "isolation.level": "read_committed",
        }
    )
    consumer.subscribe([source])
    with diary.open("a", buffering=1) as lines:
        while True:
            messages = [each for each in consumer.consume(MESSAGES_AT_ONCE, 0.1) if not each.error()]
            if messages:
                watchdog = threading.Timer(STUCK_S, os._exit, [EXIT_STUCK])
                watchdog.start()
                lines.write(f"{len(messages)} {work(producer, consumer, sink, messages)}\n")
                watchdog.cancel()


def work(producer: Producer, consumer: Consumer, sink: str, messages: list[Message]) -> str:
    """One transaction. Now and then it is aborted, and read again."""
    producer.begin_transaction()
    first: dict[tuple[str, int], int] = {}
    after: dict[tuple[str, int], int] = {}
    for message in messages:
        place = (message.topic(), message.partition())
        first.setdefault(place, message.offset())
        after[place] = message.offset() + 1
        producer.produce(sink, value=transform(message.value()), partition=message.partition())
    offsets = [TopicPartition(*place, offset) for place, offset in after.items()]
    producer.send_offsets_to_transaction(offsets, consumer.consumer_group_metadata(), PATIENCE_S)
    if random.random() < ABORTED_SHARE:
        producer.abort_transaction(PATIENCE_S)
        for place, offset in first.items():
            consumer.seek(TopicPartition(*place, offset))
        return "aborted"
    producer.commit_transaction(PATIENCE_S)
    return "committed"


if __name__ == "__main__":
    *words, path = sys.argv[1:]
    try:
        run(*words, Path(path))
    except KafkaException as error:
        print(error, file=sys.stderr, flush=True)
        os._exit(3)  # as it is: nothing is closed in good order
