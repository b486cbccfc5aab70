"""One member of a consumer group as a process of its own, so that it can crash.

It reads, writes down what it read, and only then commits: at least once, as an application would. Its diary has one
line for each thing that happens, stamped with the machine's monotonic clock, which all processes share:

    <seconds> assigned <partition>…     the partitions it was just given, maybe none
    <seconds> revoked <partition>…      the partitions it was asked to give up
    <seconds> got <partition> <offset> <value>
    <seconds> committed <partition> <next offset>

SIGTERM makes it leave the group in good order; SIGKILL is the crash.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import signal
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

SESSION_MS = 6_000
HEARTBEAT_MS = 500
MESSAGES_AT_ONCE = 20


class Diary:
    """Writes lines that survive the writer's death."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("a", buffering=1)

    def write(self, *words: object) -> None:
        self._file.write(" ".join([f"{time.monotonic():.6f}", *map(str, words)]) + "\n")

    def got(self, messages: Iterable[tuple[int, int, bytes]]) -> dict[int, int]:
        """Write down messages; the offsets to commit for them."""
        ends: dict[int, int] = {}
        for partition, offset, value in messages:
            self.write("got", partition, offset, value.decode())
            ends[partition] = offset + 1
        return ends

    def committed(self, ends: dict[int, int]) -> None:
        for partition, offset in ends.items():
            self.write("committed", partition, offset)


class Stop:
    """Set by SIGTERM."""

    def __init__(self) -> None:
        self.is_set = False
        signal.signal(signal.SIGTERM, self._set)

    def _set(self, *_: object) -> None:
        self.is_set = True


def run_confluent(options: argparse.Namespace, diary: Diary, stop: Stop) -> None:
    from confluent_kafka import Consumer, KafkaException, TopicPartition

    config: dict[str, Any] = {
        "bootstrap.servers": options.bootstrap,
        "group.id": options.group,
        "auto.offset.reset": "earliest",
        "enable.auto.commit": False,
        "reconnect.backoff.max.ms": 500,
        "log_level": 0,
    }
    if options.client == "confluent-consumer":  # the new protocol, in which the node has the timeouts and assigns
        config |= {"group.protocol": "consumer", "group.remote.assignor": options.strategy}
    else:
        config |= {
            "partition.assignment.strategy": options.strategy,
            "session.timeout.ms": SESSION_MS,
            "heartbeat.interval.ms": HEARTBEAT_MS,
        }
    if options.instance:
        config["group.instance.id"] = options.instance
    consumer = Consumer(config)

    def on_assign(_: Any, partitions: list[Any]) -> None:
        diary.write("assigned", *sorted(each.partition for each in partitions))

    def on_revoke(_: Any, partitions: list[Any]) -> None:
        diary.write("revoked", *sorted(each.partition for each in partitions))

    def on_lost(_: Any, partitions: list[Any]) -> None:
        diary.write("revoked", *sorted(each.partition for each in partitions))

    consumer.subscribe([options.topic], on_assign=on_assign, on_revoke=on_revoke, on_lost=on_lost)
    while not stop.is_set:
        messages = [each for each in consumer.consume(MESSAGES_AT_ONCE, timeout=0.2) if not each.error()]
        ends = diary.got((each.partition(), each.offset(), each.value()) for each in messages)
        with contextlib.suppress(KafkaException):  # the round will tell; what was not committed comes again
            if ends:
                consumer.commit(
                    offsets=[TopicPartition(options.topic, at, end) for at, end in ends.items()], asynchronous=False
                )
                diary.committed(ends)
    consumer.close()


def run_kafka_python(options: argparse.Namespace, diary: Diary, stop: Stop) -> None:
    from kafka import ConsumerRebalanceListener, KafkaConsumer, OffsetAndMetadata, TopicPartition
    from kafka.coordinator.assignors.cooperative_sticky import CooperativeStickyAssignor
    from kafka.coordinator.assignors.range import RangePartitionAssignor
    from kafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor
    from kafka.errors import KafkaError

    assignors = {
        "range": RangePartitionAssignor,
        "roundrobin": RoundRobinPartitionAssignor,
        "cooperative-sticky": CooperativeStickyAssignor,
    }
    consumer = KafkaConsumer(
        bootstrap_servers=options.bootstrap,
        group_id=options.group,
        group_instance_id=options.instance,
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        partition_assignment_strategy=[assignors[options.strategy]],
        session_timeout_ms=SESSION_MS,
        heartbeat_interval_ms=HEARTBEAT_MS,
        max_poll_records=MESSAGES_AT_ONCE,
        reconnect_backoff_max_ms=500,
    )

    class Listener(ConsumerRebalanceListener):  # type: ignore[misc]
        def on_partitions_revoked(self, revoked: Any) -> None:
            diary.write("revoked", *sorted(each.partition for each in revoked))

        def on_partitions_assigned(self, assigned: Any) -> None:
            diary.write("assigned", *sorted(each.partition for each in assigned))

    consumer.subscribe([options.topic], listener=Listener())
    while not stop.is_set:
        batches = consumer.poll(timeout_ms=200).values()
        ends = diary.got((each.partition, each.offset, each.value) for batch in batches for each in batch)
        with contextlib.suppress(KafkaError):
            if ends:
                consumer.commit(
                    {TopicPartition(options.topic, at): OffsetAndMetadata(end, "", -1) for at, end in ends.items()}
                )
                diary.committed(ends)
    consumer.close()


def run_aiokafka(options: argparse.Namespace, diary: Diary, stop: Stop) -> None:
    from aiokafka import AIOKafkaConsumer, ConsumerRebalanceListener, TopicPartition
    from aiokafka.coordinator.assignors.range import RangePartitionAssignor
    from aiokafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor
    from aiokafka.errors import KafkaError

    assignors = {"range": RangePartitionAssignor, "roundrobin": RoundRobinPartitionAssignor}

    class Listener(ConsumerRebalanceListener):  # type: ignore[misc]
        async def on_partitions_revoked(self, revoked: Any) -> None:
            diary.write("revoked", *sorted(each.partition for each in revoked))

        async def on_partitions_assigned(self, assigned: Any) -> None:
            diary.write("assigned", *sorted(each.partition for each in assigned))

    async def run() -> None:
        consumer = AIOKafkaConsumer(
            bootstrap_servers=options.bootstrap,
            group_id=options.group,
            group_instance_id=options.instance,
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            partition_assignment_strategy=[assignors[options.strategy]],
            session_timeout_ms=SESSION_MS,
            heartbeat_interval_ms=HEARTBEAT_MS,
        )
        consumer.subscribe([options.topic], listener=Listener())
        await consumer.start()
        while not stop.is_set:
            with contextlib.suppress(KafkaError):
                batches = (await consumer.getmany(timeout_ms=200, max_records=MESSAGES_AT_ONCE)).values()
                ends = diary.got((each.partition, each.offset, each.value) for batch in batches for each in batch)
                if ends:
                    await consumer.commit({TopicPartition(options.topic, at): end for at, end in ends.items()})
                    diary.committed(ends)
        await consumer.stop()

    asyncio.run(run())


CLIENTS = {
    "confluent": run_confluent,
    "confluent-consumer": run_confluent,
    "kafka-python": run_kafka_python,
    "aiokafka": run_aiokafka,
}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--client", choices=CLIENTS, required=True)
    for name in ("--bootstrap", "--group", "--topic", "--strategy"):
        parser.add_argument(name, required=True)
    parser.add_argument("--diary", type=Path, required=True)
    parser.add_argument("--instance")
    options = parser.parse_args()
    CLIENTS[options.client](options, Diary(options.diary), Stop())


if __name__ == "__main__":
    main()
