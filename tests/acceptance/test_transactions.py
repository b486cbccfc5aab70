"""Transactions with real clients: all or nothing, fencing, offsets, timeouts."""

from __future__ import annotations

import asyncio
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import pytest
from aiokafka import AIOKafkaProducer
from aiokafka import TopicPartition as AioTopicPartition
from aiokafka.errors import KafkaError as AioKafkaError
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from kafka import KafkaConsumer, KafkaProducer
from kafka import TopicPartition as PythonTopicPartition
from kafka.errors import KafkaError as PythonKafkaError
from kafka.structs import OffsetAndMetadata
from tests.acceptance.conftest import NodeMaker
from tests.support.clients.confluent import ConfluentClient
from tests.support.node import Node

PARTITIONS = 3


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    """A running node whose groups wait for nobody."""
    with Node(tmp_path_factory.mktemp("node"), groups__initial_delay_ms="0s") as running:
        yield running
        assert running.is_running, f"the node died\n{running.log_tail()}"


@pytest.fixture
def made(node: Node, topic: str) -> str:
    ConfluentClient(node.bootstrap).create_topic(topic, partitions=PARTITIONS)
    return topic


def read(node: Node, topic: str, isolation: str = "read_committed") -> list[str]:
    """All values that a reader sees until the end of every partition."""
    config = {
        "bootstrap.servers": node.bootstrap,
        "group.id": "reader",
        "isolation.level": isolation,
        "enable.partition.eof": True,
        "enable.auto.commit": False,
        "auto.offset.reset": "earliest",
    }
    values, ended = [], set()
    with closing(Consumer(config)) as consumer:
        consumer.assign([TopicPartition(topic, at, 0) for at in range(PARTITIONS)])
        deadline = time.monotonic() + 60
        while len(ended) < PARTITIONS:
            assert time.monotonic() < deadline, f"stuck after {values} with {ended}"
            message = consumer.poll(1)
            if message is not None and message.error():
                ended.add(message.partition())
            elif message is not None:
                ended.discard(message.partition())
                values.append(message.value().decode())
    return sorted(values)


def producer(node: Node, transactional_id: str, **config: Any) -> Producer:
    made = Producer({"bootstrap.servers": node.bootstrap, "transactional.id": transactional_id, **config})
    made.init_transactions(60)
    return made


def send(sender: Producer, topic: str, *values: str) -> None:
    for number, value in enumerate(values):
        sender.produce(topic, value=value, partition=number % PARTITIONS)


def metric(node: Node, name: str) -> float:
    with urllib.request.urlopen(f"{node.http_url}/metrics") as answer:
        rows = [line.rsplit(" ", 1) for line in answer.read().decode().splitlines() if line.startswith(name)]
    return sum(float(value) for _, value in rows)


# -- all or nothing ----------------------------------------------------------------------------------------------------


def test_a_commit_shows_everything_at_once_and_an_abort_nothing(node: Node, made: str) -> None:
    committed = metric(node, "penstock_transactions_committed_total")
    sender = producer(node, made)
    for value in ("a", "b", "c"):
        sender.begin_transaction()
        send(sender, made, *[f"{value}{number}" for number in range(6)])
        sender.flush(60)
        assert not [each for each in read(node, made) if each.startswith(value)]
        assert metric(node, "penstock_open_transactions") >= 1
        if value == "b":
            sender.abort_transaction(60)
        else:
            sender.commit_transaction(60)
    assert read(node, made) == [f"{value}{number}" for value in "ac" for number in range(6)]
    assert len(read(node, made, "read_uncommitted")) == 18
    assert metric(node, "penstock_transactions_committed_total") == committed + 2
    assert metric(node, "penstock_open_transactions") == 0


def test_a_newer_instance_fences_the_older_and_aborts_what_it_left(node: Node, made: str) -> None:
    zombie = producer(node, made)
    zombie.begin_transaction()
    send(zombie, made, "zombie")
    zombie.flush(60)
    successor = producer(node, made)
    with pytest.raises(KafkaException) as refused:
        zombie.commit_transaction(60)
    assert refused.value.args[0].fatal()
    successor.begin_transaction()
    send(successor, made, "successor")
    successor.commit_transaction(60)
    assert read(node, made) == ["successor"]


def test_a_transaction_that_is_open_for_too_long_is_aborted(node: Node, made: str) -> None:
    before = metric(node, 'penstock_transactions_aborted_total{reason="timeout"}')
    sleeper = producer(node, made, **{"transaction.timeout.ms": 1_000})
    sleeper.begin_transaction()
    send(sleeper, made, "late")
    sleeper.flush(60)
    deadline = time.monotonic() + 60
    while metric(node, 'penstock_transactions_aborted_total{reason="timeout"}') == before:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    with pytest.raises(KafkaException):
        sleeper.commit_transaction(60)
    other = producer(node, f"{made}-other")
    other.begin_transaction()
    send(other, made, "other")
    other.commit_transaction(60)
    assert read(node, made) == ["other"]


# -- offsets -----------------------------------------------------------------------------------------------------------


def test_offsets_count_with_the_transaction_they_are_part_of(node: Node, made: str) -> None:
    group = f"group-{made}"
    config = {"bootstrap.servers": node.bootstrap, "group.id": group, "enable.auto.commit": False}
    with closing(Consumer(config)) as consumer:
        consumer.subscribe([made])
        deadline = time.monotonic() + 60
        while not consumer.assignment():
            assert time.monotonic() < deadline
            consumer.poll(0.1)
        place = TopicPartition(made, 0, 7)
        sender = producer(node, made)
        for is_commit, expected in ((False, None), (True, 7)):
            sender.begin_transaction()
            send(sender, made, "a")
            sender.send_offsets_to_transaction([place], consumer.consumer_group_metadata(), 20)
            if is_commit:
                sender.commit_transaction(60)
            else:
                sender.abort_transaction(60)
            (found,) = consumer.committed([TopicPartition(made, 0)], timeout=60)
            assert (found.offset if found.offset >= 0 else None) == expected


def test_offsets_of_a_member_that_is_gone_are_refused(node: Node, made: str) -> None:
    config = {"bootstrap.servers": node.bootstrap, "group.id": f"group-{made}", "enable.auto.commit": False}
    with closing(Consumer(config)) as consumer:
        consumer.subscribe([made])
        deadline = time.monotonic() + 60
        while not consumer.assignment():
            assert time.monotonic() < deadline
            consumer.poll(0.1)
        metadata = consumer.consumer_group_metadata()
    sender = producer(node, made)
    sender.begin_transaction()
    with pytest.raises(KafkaException) as refused:
        sender.send_offsets_to_transaction([TopicPartition(made, 0, 7)], metadata, 20)
    assert refused.value.args[0].txn_requires_abort()
    sender.abort_transaction(60)


# -- other clients -----------------------------------------------------------------------------------------------------


def test_aiokafka_commits_aborts_fences_and_commits_offsets(node: Node, made: str) -> None:
    async def scenario() -> None:
        def make() -> AIOKafkaProducer:
            return AIOKafkaProducer(bootstrap_servers=node.bootstrap, transactional_id=made)

        first, second = make(), make()
        await first.start()
        try:
            async with first.transaction():
                await first.send_and_wait(made, b"a", partition=0)
                offsets = {AioTopicPartition(made, 1): 5}
                await first.send_offsets_to_transaction(offsets, f"group-{made}")
            await first.begin_transaction()
            await first.send_and_wait(made, b"b", partition=1)
            await first.abort_transaction()
            await first.begin_transaction()
            await first.send_and_wait(made, b"zombie", partition=2)
            await second.start()
            with pytest.raises(AioKafkaError):
                await first.commit_transaction()
            async with second.transaction():
                await second.send_and_wait(made, b"c", partition=0)
        finally:
            await first.stop()
            await second.stop()

    asyncio.run(scenario())
    assert read(node, made) == ["a", "c"]
    with closing(Consumer({"bootstrap.servers": node.bootstrap, "group.id": f"group-{made}"})) as consumer:
        (found,) = consumer.committed([TopicPartition(made, 1)], timeout=60)
    assert found.offset == 5


def test_kafka_python_commits_aborts_fences_and_commits_offsets(node: Node, made: str) -> None:
    def make() -> KafkaProducer:
        made_now = KafkaProducer(bootstrap_servers=node.bootstrap, transactional_id=made)
        made_now.init_transactions()
        return made_now

    def in_transaction(sender: KafkaProducer, value: bytes, end: Callable[[], None]) -> None:
        sender.begin_transaction()
        sender.send(made, value, partition=0).get(20)
        end()

    first = make()
    try:
        in_transaction(first, b"a", first.commit_transaction)
        in_transaction(first, b"b", first.abort_transaction)
        first.begin_transaction()
        first.send(made, b"c", partition=1)
        offsets = {PythonTopicPartition(made, 1): OffsetAndMetadata(5, "", -1)}
        first.send_offsets_to_transaction(offsets, f"group-{made}")
        first.commit_transaction()
        first.begin_transaction()
        first.send(made, b"zombie", partition=2).get(20)
        second = make()
        try:
            with pytest.raises(PythonKafkaError):
                first.commit_transaction()
            in_transaction(second, b"d", second.commit_transaction)
        finally:
            second.close(5)
    finally:
        first.close(5)
    assert read(node, made) == ["a", "c", "d"]
    reader = KafkaConsumer(bootstrap_servers=node.bootstrap, group_id=f"group-{made}")
    assert reader.committed(PythonTopicPartition(made, 1)) == 5
    reader.close()


# -- the node dies -----------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_an_open_transaction_outlives_the_node(make_node: NodeMaker, topic: str) -> None:
    node = make_node().start()
    ConfluentClient(node.bootstrap).create_topic(topic, partitions=PARTITIONS)
    sender = producer(node, topic, **{"reconnect.backoff.max.ms": 200, "retry.backoff.max.ms": 200})
    for value in ("a", "b"):
        sender.begin_transaction()
        send(sender, topic, value, value)
        sender.flush(20)
        node.kill()
        node.restart()
        assert read(node, topic) == (["a", "a", "a"] if value == "b" else [])
        send(sender, topic, value)
        if value == "a":
            sender.commit_transaction(30)
        else:
            sender.abort_transaction(30)
        assert read(node, topic) == ["a", "a", "a"]
