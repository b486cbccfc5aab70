"""Consume, transform, produce in transactions, with any of the Python clients: ``--do work`` or ``--do read``.

Every fifth transaction is aborted once and done again. It works until it is killed. The diary has one line for each
state of a transaction; each is followed by a short pause, so that a kill meets all of them.
"""

from __future__ import annotations

import argparse
import asyncio
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

from tests.support.group_member import HEARTBEAT_MS, MESSAGES_AT_ONCE, SESSION_MS, Diary

ABORT_EACH = 5
PAUSE_S = 0.01
TRANSACTION_TIMEOUT_MS = 30_000
END = b"end"


class Message(NamedTuple):
    """What the clients agree on about a message."""

    partition: int
    offset: int
    value: bytes


def result_of(message: Message) -> bytes:
    return b"done:" + message.value


def ends_of(messages: Iterable[Message]) -> dict[int, int]:
    return {each.partition: each.offset + 1 for each in messages}


def print_values(messages: Iterable[Message]) -> set[int]:
    """Print the value of every message; the partitions that said that they end here."""
    ended: set[int] = set()
    for message in messages:
        if message.value == END:
            ended.add(message.partition)
        else:
            print(message.value.decode())
    return ended


def print_until_end(partitions: Iterable[int], poll: Callable[[], Iterable[Message]]) -> None:
    left = set(partitions)
    while left:
        left -= print_values(poll())


# -- confluent-kafka ---------------------------------------------------------------------------------------------------


def _confluent_consumer(options: argparse.Namespace, group: str, isolation: str) -> Any:
    from confluent_kafka import Consumer

    return Consumer(
        {
            "bootstrap.servers": options.bootstrap,
            "group.id": group,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "isolation.level": f"read_{isolation}",
            "session.timeout.ms": SESSION_MS,
            "heartbeat.interval.ms": HEARTBEAT_MS,
        }
    )


def _confluent_poll(consumer: Any, timeout_s: float) -> list[Message]:
    polled = consumer.consume(MESSAGES_AT_ONCE, timeout=timeout_s)
    return [Message(each.partition(), each.offset(), each.value()) for each in polled if not each.error()]


def work_confluent(options: argparse.Namespace) -> None:
    from confluent_kafka import Producer, TopicPartition

    diary = Diary(options.diary)
    producer = Producer(
        {
            "bootstrap.servers": options.bootstrap,
            "transactional.id": options.id,
            "transaction.timeout.ms": TRANSACTION_TIMEOUT_MS,
        }
    )
    consumer = _confluent_consumer(options, options.group, "committed")

    def send(messages: list[Message]) -> None:
        producer.begin_transaction()
        for message in messages:
            producer.produce(options.output, result_of(message), partition=message.partition)
        producer.flush()
        diary.write("sent", len(messages))
        time.sleep(PAUSE_S)
        ends = [TopicPartition(options.input, at, end) for at, end in ends_of(messages).items()]
        producer.send_offsets_to_transaction(ends, consumer.consumer_group_metadata())
        diary.write("offsets", len(messages))
        time.sleep(PAUSE_S)

    producer.init_transactions()
    consumer.subscribe([options.input])
    number = 1
    while True:
        messages = _confluent_poll(consumer, 0.2)
        if not messages:
            continue
        if number % ABORT_EACH == 0:
            send(messages)
            producer.abort_transaction()
            diary.write("aborted", number)
            time.sleep(PAUSE_S)
        send(messages)
        producer.commit_transaction()
        diary.write("committed", number)
        number += 1


def read_confluent(options: argparse.Namespace) -> None:
    from confluent_kafka import OFFSET_BEGINNING, TopicPartition

    consumer = _confluent_consumer(options, "reader", options.isolation)
    partitions = list(consumer.list_topics(options.topic).topics[options.topic].partitions)
    consumer.assign([TopicPartition(options.topic, each, OFFSET_BEGINNING) for each in partitions])
    print_until_end(partitions, lambda: _confluent_poll(consumer, 0.5))
    consumer.close()


# -- kafka-python ------------------------------------------------------------------------------------------------------


def _kafka_python_consumer(options: argparse.Namespace, group: str | None, isolation: str) -> Any:
    from kafka import KafkaConsumer

    return KafkaConsumer(
        bootstrap_servers=options.bootstrap,
        group_id=group,
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        isolation_level=f"read_{isolation}",
        session_timeout_ms=SESSION_MS,
        heartbeat_interval_ms=HEARTBEAT_MS,
        max_poll_records=MESSAGES_AT_ONCE,
    )


def _kafka_python_poll(consumer: Any) -> list[Message]:
    batches = consumer.poll(timeout_ms=200).values()
    return [Message(each.partition, each.offset, each.value) for batch in batches for each in batch]


def work_kafka_python(options: argparse.Namespace) -> None:
    from kafka import KafkaProducer, OffsetAndMetadata, TopicPartition

    diary = Diary(options.diary)
    producer = KafkaProducer(
        bootstrap_servers=options.bootstrap,
        transactional_id=options.id,
        transaction_timeout_ms=TRANSACTION_TIMEOUT_MS,
    )
    consumer = _kafka_python_consumer(options, options.group, "committed")

    def send(messages: list[Message]) -> None:
        producer.begin_transaction()
        for message in messages:
            producer.send(options.output, result_of(message), partition=message.partition)
        producer.flush()
        diary.write("sent", len(messages))
        time.sleep(PAUSE_S)
        ends = {
            TopicPartition(options.input, at): OffsetAndMetadata(end, "", -1) for at, end in ends_of(messages).items()
        }
        producer.send_offsets_to_transaction(ends, consumer.group_metadata())
        diary.write("offsets", len(messages))
        time.sleep(PAUSE_S)

    producer.init_transactions()
    consumer.subscribe([options.input])
    number = 1
    while True:
        messages = _kafka_python_poll(consumer)
        if not messages:
            continue
        if number % ABORT_EACH == 0:
            send(messages)
            producer.abort_transaction()
            diary.write("aborted", number)
            time.sleep(PAUSE_S)
        send(messages)
        producer.commit_transaction()
        diary.write("committed", number)
        number += 1


def read_kafka_python(options: argparse.Namespace) -> None:
    from kafka import TopicPartition

    consumer = _kafka_python_consumer(options, None, options.isolation)
    partitions = [TopicPartition(options.topic, each) for each in consumer.partitions_for_topic(options.topic)]
    consumer.assign(partitions)
    consumer.seek_to_beginning(*partitions)
    print_until_end([each.partition for each in partitions], lambda: _kafka_python_poll(consumer))
    consumer.close()


# -- aiokafka ----------------------------------------------------------------------------------------------------------


def _aiokafka_consumer(options: argparse.Namespace, topic: str, group: str | None, isolation: str) -> Any:
    from aiokafka import AIOKafkaConsumer

    return AIOKafkaConsumer(
        topic,
        bootstrap_servers=options.bootstrap,
        group_id=group,
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        isolation_level=f"read_{isolation}",
        session_timeout_ms=SESSION_MS,
        heartbeat_interval_ms=HEARTBEAT_MS,
    )


async def _aiokafka_poll(consumer: Any) -> list[Message]:
    batches = (await consumer.getmany(timeout_ms=200, max_records=MESSAGES_AT_ONCE)).values()
    return [Message(each.partition, each.offset, each.value) for batch in batches for each in batch]


async def _work_aiokafka(options: argparse.Namespace) -> None:
    from aiokafka import AIOKafkaProducer, TopicPartition

    diary = Diary(options.diary)
    producer = AIOKafkaProducer(
        bootstrap_servers=options.bootstrap,
        transactional_id=options.id,
        transaction_timeout_ms=TRANSACTION_TIMEOUT_MS,
    )
    consumer = _aiokafka_consumer(options, options.input, options.group, "committed")

    async def send(messages: list[Message]) -> None:
        await producer.begin_transaction()
        for message in messages:
            await producer.send(options.output, result_of(message), partition=message.partition)
        await producer.flush()
        diary.write("sent", len(messages))
        await asyncio.sleep(PAUSE_S)
        ends = {TopicPartition(options.input, at): end for at, end in ends_of(messages).items()}
        await producer.send_offsets_to_transaction(ends, options.group)
        diary.write("offsets", len(messages))
        await asyncio.sleep(PAUSE_S)

    await producer.start()
    await consumer.start()
    number = 1
    while True:
        messages = await _aiokafka_poll(consumer)
        if not messages:
            continue
        if number % ABORT_EACH == 0:
            await send(messages)
            await producer.abort_transaction()
            diary.write("aborted", number)
            await asyncio.sleep(PAUSE_S)
        await send(messages)
        await producer.commit_transaction()
        diary.write("committed", number)
        number += 1


async def _read_aiokafka(options: argparse.Namespace) -> None:
    consumer = _aiokafka_consumer(options, options.topic, None, options.isolation)
    await consumer.start()  # without a group it has all partitions
    left = {each.partition for each in consumer.assignment()}
    while left:
        left -= print_values(await _aiokafka_poll(consumer))
    await consumer.stop()


def work_aiokafka(options: argparse.Namespace) -> None:
    asyncio.run(_work_aiokafka(options))


def read_aiokafka(options: argparse.Namespace) -> None:
    asyncio.run(_read_aiokafka(options))


PROGRAMS = {
    "confluent-kafka": (work_confluent, read_confluent),
    "kafka-python": (work_kafka_python, read_kafka_python),
    "aiokafka": (work_aiokafka, read_aiokafka),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--client", choices=list(PROGRAMS), required=True)
    parser.add_argument("--do", choices=("work", "read"), required=True)
    for name in ("bootstrap", "group", "input", "output", "id", "topic", "isolation"):
        parser.add_argument(f"--{name}")
    parser.add_argument("--diary", type=Path)
    options = parser.parse_args()
    work, read = PROGRAMS[options.client]
    (work if options.do == "work" else read)(options)


if __name__ == "__main__":
    main()
